"""``checkpointed_batches``: each micro-batch of a streaming query lands once, whatever fails and is handed over again."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from support.world import World, rows

from airflow_ckpt_provider.checkpoint.layout import author_of
from airflow_ckpt_provider.exceptions import CheckpointError, InvalidInputError
from airflow_ckpt_provider.spark import checkpointed_batches
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def spark():
    with spark_session(SparkTarget("local[2]", conf={"spark.sql.shuffle.partitions": "2"}), "streams") as session:
        yield session


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    found.create_table()
    found.put_files(3)
    for number in range(3):
        # Spark takes the older file first, and files of one moment in any order.
        os.utime(found.input / f"{number}.parquet", (1_700_000_000 + number,) * 2)
    return found


def batches(world, **changes):
    """The function for ``foreachBatch``."""
    facts = {"table": "shop.orders", "catalog": world.catalog_properties, "store": world.store.uri, "key": "orders"} | changes
    return checkpointed_batches(**{name: value for name, value in facts.items() if value is not None})


def into_lance(world, **changes):
    uri = str(world.root / "orders.lance")
    if not (world.root / "orders.lance").exists():
        lance.write_dataset(rows(0, 0), uri)
    return batches(world, table=None, catalog=None, uri=uri, **changes)


def lance_ids(world):
    return sorted(lance.dataset(str(world.root / "orders.lance")).to_table()["id"].to_pylist())


def run(spark, world, function, *, location="stream", each=lambda frame: frame, source=None):
    """All files that are there, one in each micro-batch, by one query."""
    stream = spark.readStream.schema("id long, value double, kind string, at timestamp_ntz").option("maxFilesPerTrigger", "1")
    frame = stream.parquet(str(world.input)) if source is None else source
    query = (
        each(frame)
        .writeStream.foreachBatch(function)
        .option("checkpointLocation", str(world.root / location))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def snapshots(world):
    return len(world.table().snapshots())


def failing(function, *, batch, before=False):
    """The function, and an error after (or before) it in one batch: of a process that ends before Spark has recorded it."""

    def passing(frame, number):
        if before and number == batch:
            raise RuntimeError("stopped before the batch")
        function(frame, number)
        if number == batch:
            raise RuntimeError("stopped behind the commit")

    return passing


def test_each_micro_batch_lands_in_a_snapshot_of_its_own(spark, world):
    query = run(spark, world, batches(world))
    assert world.ids() == list(range(300))
    keys = [snapshot.summary["airflow.checkpoint.key"] for snapshot in world.table().snapshots()]
    assert keys == [f"orders/{query.id}/{number}" for number in range(3)]


def test_a_batch_that_failed_behind_its_commit_lands_once(spark, world):
    with pytest.raises(StreamingQueryException, match="stopped behind the commit"):
        run(spark, world, failing(batches(world), batch=1))
    assert (world.ids(), snapshots(world)) == (list(range(200)), 2)
    run(spark, world, batches(world))
    assert (world.ids(), snapshots(world)) == (list(range(300)), 3)


def test_a_batch_lands_once_without_its_checkpoint_store_too(spark, world):
    with pytest.raises(StreamingQueryException, match="stopped behind the commit"):
        run(spark, world, failing(batches(world), batch=1))
    shutil.rmtree(world.root / "store")
    run(spark, world, batches(world))
    assert (world.ids(), snapshots(world)) == (list(range(300)), 3)


def test_a_batch_that_failed_while_it_was_staged_is_staged_anew_as_a_whole(spark, world):
    failed = world.root / "failed"

    def once(frame):
        def passing(parts):
            for part in parts:
                yield part
                if 150 in part["id"].to_pylist() and not failed.exists():
                    failed.touch()
                    raise ValueError("no luck")

        return frame.mapInArrow(passing, frame.schema)

    with pytest.raises(StreamingQueryException, match="no luck"):
        run(spark, world, batches(world), each=once)
    assert world.ids() == list(range(100))
    run(spark, world, batches(world), each=once)
    assert (world.ids(), snapshots(world)) == (list(range(300)), 3)


def test_a_query_whose_checkpoint_location_was_lost_is_refused_until_its_rows_are_said_to_be_new(spark, world):
    first = run(spark, world, batches(world))
    with pytest.raises(StreamingQueryException, match=rf"micro-batches of the query {first.id}, up to number 2(.|\n)*new_query"):
        run(spark, world, batches(world), location="lost")
    assert (world.ids(), snapshots(world)) == (list(range(300)), 3)
    for number in range(3):
        (world.input / f"{number}.parquet").unlink()
    pq.write_table(rows(300, 50), world.input / "new.parquet")
    run(spark, world, batches(world, new_query=True), location="another")
    assert world.ids() == list(range(350))
    # The query before it may still be running somewhere, and does not land any more, whatever it says.
    with pytest.raises(StreamingQueryException, match=r"written by the query .* since it was told that its rows are new"):
        run(spark, world, batches(world, new_query=True))
    assert world.ids() == list(range(350))


def test_a_lost_checkpoint_location_is_noticed_without_the_store_too(spark, world):
    run(spark, world, batches(world))
    shutil.rmtree(world.root / "store")
    with pytest.raises(StreamingQueryException, match="landed micro-batches of the query"):
        run(spark, world, batches(world), location="lost")
    assert world.ids() == list(range(300))


def test_a_checkpoint_location_that_was_set_back_is_refused(spark, world):
    with pytest.raises(StreamingQueryException, match="stopped before"):
        run(spark, world, failing(batches(world), batch=1, before=True))
    shutil.copytree(world.root / "stream", world.root / "earlier")
    run(spark, world, batches(world))
    with pytest.raises(StreamingQueryException, match="was set back to an earlier state"):
        run(spark, world, batches(world), location="earlier")
    assert (world.ids(), snapshots(world)) == (list(range(300)), 3)


@pytest.mark.parametrize("told", [{}, {"mode": "upsert", "upsert_keys": ["id"]}])
def test_two_that_run_one_batch_at_the_same_time_land_it_once(spark, world, told):
    def twice(frame, number):
        if number != 1:
            batches(world, **told)(frame, number)
            return
        # Two drivers of one query: neither knows of the other, and the local properties are those of this thread.
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")

        def other():
            frame.sparkSession.sparkContext.setLocalProperty("sql.streaming.queryId", query)
            try:
                batches(world, **told)(frame, number)
            except CheckpointError as error:
                errors.append(error)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: other(), range(2)))

    errors = []
    query = run(spark, world, twice)
    # Whoever has lost a race is told so, and its query starts again.
    run(spark, world, batches(world, **told))
    assert (world.ids(), snapshots(world)) == (list(range(300)), 3)
    assert len(errors) < 2, errors
    assert {snapshot.summary["airflow.checkpoint.key"] for snapshot in world.table().snapshots()} == {
        f"orders/{query.id}/{number}" for number in range(3)
    }


@pytest.mark.parametrize("recover", [None, "buckets"])
def test_batches_are_upserted(spark, world, recover):
    run(spark, world, batches(world))
    changed = rows(50, 100).set_column(1, "value", pa.array([-1.0] * 100))
    pq.write_table(changed, world.input / "changed.parquet")
    pq.write_table(rows(300, 20), world.input / "more.parquet")
    run(spark, world, batches(world, key="changes", mode="upsert", upsert_keys=["id"], recover=recover), location="changes")
    table = world.table().scan().to_arrow().sort_by("id")
    assert table["id"].to_pylist() == list(range(320))
    assert table["value"].to_pylist() == [-1.0 if 50 <= n < 150 else n / 4 for n in range(320)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_lance_datasets_take_streams_too(spark, world, mode):
    told = {} if mode == "append" else {"mode": "upsert", "upsert_keys": ["id"]}
    with pytest.raises(StreamingQueryException, match="stopped behind the commit"):
        run(spark, world, failing(into_lance(world, **told), batch=1))
    run(spark, world, into_lance(world, **told))
    assert lance_ids(world) == list(range(300))
    with pytest.raises(StreamingQueryException, match="landed micro-batches of the query"):
        run(spark, world, into_lance(world, **told), location="lost")
    assert lance_ids(world) == list(range(300))


def test_a_complete_aggregation_overwrites_the_table_with_each_batch(spark, world):
    world.catalog.drop_table("shop.orders")
    counts = pa.schema([("kind", pa.string()), ("count", pa.int64())])
    world.catalog.create_table("shop.counts", counts)
    stream = spark.readStream.schema("id long, kind string").option("maxFilesPerTrigger", "1").parquet(str(world.input))
    query = (
        stream.groupBy("kind")
        .count()
        .writeStream.outputMode("complete")
        .foreachBatch(batches(world, table="shop.counts", mode="overwrite"))
        .option("checkpointLocation", str(world.root / "counts"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = world.table("shop.counts").scan().to_arrow()
    assert dict(zip(found["kind"].to_pylist(), found["count"].to_pylist(), strict=True)) == {f"kind-{n}": 100 for n in range(3)}


def test_a_rate_source_lands_each_of_its_rows_once(spark, world):
    world.catalog.create_table("shop.rates", pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())]))
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "20").option("numPartitions", "2").load()
    function = failing(batches(world, table="shop.rates"), batch=2)
    for last in (2, None):
        query = (
            rate.writeStream.foreachBatch(function if last else batches(world, table="shop.rates"))
            .option("checkpointLocation", str(world.root / "rates"))
            .start()
        )
        if last is not None:
            with pytest.raises(StreamingQueryException, match="stopped behind the commit"):
                query.awaitTermination(120)
        else:
            while (query.lastProgress or {"batchId": 0})["batchId"] < 5:
                query.awaitTermination(0.1)
            query.stop()
    values = sorted(world.table("shop.rates").scan().to_arrow()["value"].to_pylist())
    assert values == list(range(len(values)))
    assert len(values) >= 100


def test_an_empty_batch_lands_nothing(spark, world):
    run(spark, world, batches(world), each=lambda frame: frame.where("id >= 100"))
    assert (world.ids(), snapshots(world)) == (list(range(100, 300)), 2)


def test_the_table_remembers_a_stream_by_two_properties_however_many_batches_land(spark, world):
    run(spark, world, batches(world))
    ours = [name for name in world.table().properties if name.startswith("airflow.checkpoint")]
    assert len(ours) == 2


def test_every_file_of_a_batch_says_whose_it_is(spark, world):
    run(spark, world, batches(world))
    assert len({author_of(file.rpartition("/")[2]).key_hash for file in world.referenced_files()}) == 3


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"mode": "create"}, "a stream cannot land in mode='create'"),
        ({"recover": "partitions"}, "neither None nor 'buckets'"),
        ({"recover": "buckets"}, "needs id_column="),
        ({"assert_unique": True}, "needs id_column="),
    ],
)
def test_what_cannot_work_is_refused_before_the_query_starts(world, told, said):
    with pytest.raises(InvalidInputError, match=said):
        batches(world, **told)


def test_a_call_outside_a_stream_names_what_there_is_for_that(spark, world):
    with pytest.raises(InvalidInputError, match="there is checkpointed_write"):
        batches(world)(spark.range(3), 0)
