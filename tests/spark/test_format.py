"""The format ``checkpointed``: each save lands its rows once, whatever Spark runs twice, and takes none from another save."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField
from pyspark.errors import PySparkException

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import BindingMismatchError, CheckpointMissingError
from airflow_ckpt_provider.spark import checkpointed_write, commit
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.spark.stage import spark_settings

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    # A task that fails once runs again.
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("tables"))}
    with spark_session(SparkTarget("local[2,2]", conf=conf), "the format") as session:
        yield session


def options(world, **changes):
    catalog = {f"catalog.{name}": value for name, value in world.catalog_properties.items()}
    facts = catalog | {"table": "shop.orders", "key": "orders", "store": world.store.uri, "commit": "true"} | changes
    return {name: value for name, value in facts.items() if value is not None}


def save(world, frame, *, how="append", **changes):
    frame.write.format("checkpointed").mode(how).options(**options(world, **changes)).save()


def landed(world, **changes):
    return commit("orders", **({"table": "shop.orders", "catalog": world.catalog_properties, "store": world.store.uri} | changes))


def orders(spark, world):
    return spark.read.parquet(str(world.input))


def checkpoint(world):
    return Checkpoint.latest(world.store, IdempotenceKey("orders"))


def objects(world):
    return {str(path) for path in (world.root / "store").rglob("*") if path.is_file()}


def _wait_for_a_staged_task(store):
    """Another task of the job is done, unless there is none."""
    end = time.monotonic() + 20
    while store and time.monotonic() < end and not list(Path(store).rglob("staged/*.json")):
        time.sleep(0.05)


def failing(frame, marker, *, above, times, store=""):
    """The same rows; the function fails at ids above a number, that many times.

    :param store: a folder: it fails once some task has staged there.
    """

    def passing(batches):
        for batch in batches:
            yield batch
            failed = len(list(Path(marker).iterdir()))
            if failed < times and max(batch["id"].to_pylist()) > above:
                _wait_for_a_staged_task(store)
                (Path(marker) / str(failed)).touch()
                raise ValueError("the function failed")

    return frame.mapInArrow(passing, frame.schema)


@pytest.fixture
def marker(tmp_path):
    folder = tmp_path / "failures"
    folder.mkdir()
    return str(folder)


def test_a_save_lands_its_rows_once(spark, world):
    save(world, orders(spark, world))
    assert world.ids() == list(range(400))
    assert state_of(checkpoint(world)) is State.COMMITTED
    assert world.files_on_disk() == world.referenced_files()


def test_without_commit_the_rows_are_staged_and_whoever_has_the_key_lands_them(spark, world):
    save(world, orders(spark, world), commit=None)
    assert (world.ids(), state_of(checkpoint(world))) == ([], State.SEALED)
    first, again = landed(world), landed(world)
    assert (first["state"], first["commit"]["landed_now"], again["commit"]["landed_now"]) == ("committed", True, False)
    assert world.ids() == list(range(400))


@pytest.mark.parametrize("commits", ["true", "false"])
def test_a_second_save_of_a_key_adds_nothing_and_stages_nothing(spark, world, commits):
    save(world, orders(spark, world), commit=commits)
    before = objects(world), {file for file in world.files_on_disk() if file.endswith(".parquet")}
    save(world, orders(spark, world).where("id >= 100").repartition(5), commit=commits)
    assert (objects(world), {file for file in world.files_on_disk() if file.endswith(".parquet")}) == before
    assert world.ids() == (list(range(400)) if commits == "true" else [])


def test_a_save_that_is_sealed_only_is_landed_by_the_next_one(spark, world):
    save(world, orders(spark, world), commit="false")
    save(world, orders(spark, world).where("id < 7"))
    assert world.ids() == list(range(400))


def test_a_save_after_one_that_failed_half_way_has_its_own_rows_only_however_they_are_cut(spark, world, marker):
    frame = orders(spark, world)
    with pytest.raises(PySparkException, match="the function failed"):
        save(world, failing(frame.repartition(3, "id"), marker, above=398, times=2, store=str(world.root / "store")))
    staged = checkpoint(world).staged_ids()
    assert staged
    save(world, frame.where("id >= 50").repartition(5, "kind"))
    assert world.ids() == list(range(50, 400))
    sealed = {split.id for split in checkpoint(world).plan().splits}
    assert len(sealed) == 5
    assert not sealed & staged


def test_a_task_that_spark_runs_again_counts_once(spark, world, marker):
    save(world, failing(orders(spark, world).repartition(3, "id"), marker, above=398, times=1))
    assert os.listdir(marker) == ["0"]
    assert world.ids() == list(range(400))


def test_saves_of_one_key_at_the_same_time_land_the_rows_of_one_of_them(spark, world):
    frame = orders(spark, world)

    def saved(partitions):
        # Spark looks for a data source in the session that is active in this thread, and this makes it so.
        spark.createDataFrame([], "id long")
        save(world, frame.repartition(partitions))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(saved, [3, 5]))
    assert world.ids() == list(range(400))
    assert len(world.table().snapshots()) == 1
    assert len(checkpoint(world).seals()) == 1


def test_a_save_that_fails_deletes_nothing(spark, world, marker):
    with pytest.raises(PySparkException, match="the function failed"):
        save(world, failing(orders(spark, world).repartition(3, "id"), marker, above=398, times=2))
    files, records = world.files_on_disk(), objects(world)
    assert files
    assert any("/staged/" in name for name in records)
    with pytest.raises(PySparkException, match="the function failed"):
        save(world, failing(orders(spark, world).repartition(3, "id"), marker, above=398, times=4))
    assert (files - world.files_on_disk(), records - objects(world)) == (set(), set())
    assert checkpoint(world).newest_seal() is None


def test_a_save_whose_commit_fails_is_sealed_and_the_next_one_lands_it(spark, world):
    frame = orders(spark, world)
    save(world, frame, commit="false")
    (lost, *_) = sorted(file for file in world.files_on_disk() if file.endswith(".parquet"))
    Path(lost).unlink()
    # Its files are gone: the next save takes its place, as a whole.
    save(world, frame.repartition(3))
    assert world.ids() == list(range(400))
    assert [seal.round for seal in checkpoint(world).seals()] == [1, 2]


def test_an_overwrite_replaces_all_rows(spark, world):
    save(world, orders(spark, world))
    save(world, orders(spark, world).where("id < 10"), how="overwrite", key="again")
    assert world.ids() == list(range(10))


def test_a_frame_without_rows_lands_nothing(spark, world):
    save(world, orders(spark, world).where("id < 0"))
    assert world.ids() == []


def test_partitions_are_overwritten_and_a_table_is_created(spark, world):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", LongType()))
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="day"))
    world.create_table("shop.days", schema, spec)
    days = spark.range(40).selectExpr("id", "id % 4 AS day")
    save(world, days, table="shop.days", key="days")
    save(world, days.where("day = 1 AND id < 9"), table="shop.days", key="one", mode="overwrite_partitions")
    assert world.ids("shop.days") == sorted([n for n in range(40) if n % 4 != 1] + [1, 5])
    save(world, days, table="shop.created", key="new", mode="create")
    assert world.ids("shop.created") == list(range(40))


def test_a_lance_dataset_is_written_too(spark, world):
    uri = str(world.root / "orders.lance")
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.float64())}), uri)
    catalog = dict.fromkeys((f"catalog.{name}" for name in world.catalog_properties), None)
    frame = orders(spark, world).select("id", "value")
    save(world, frame, uri=uri, table=None, commit=None, **catalog)
    landed(world, table=None, catalog=None, uri=uri)
    save(world, frame, uri=uri, table=None, **catalog)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(400))


def test_sql_inserts_and_each_insert_says_what_it_is(spark, world):
    orders(spark, world).createOrReplaceTempView("input")
    spark.sql("CREATE OR REPLACE TEMP VIEW few AS SELECT * FROM input WHERE id < 10")
    spark.sql("CREATE TABLE landing (id BIGINT, value DOUBLE, kind STRING, at TIMESTAMP_NTZ) USING checkpointed")
    try:
        for key, view in (("first", "few"), ("first", "few"), ("second", "input")):
            told = ", ".join(f"'{name}' = '{value}'" for name, value in options(world, key=key).items())
            spark.sql(f"INSERT INTO landing WITH ({told}) SELECT * FROM {view}")
        assert world.ids() == sorted([*range(10), *range(400)])
        few = options(world, key="third")
        spark.table("few").writeTo("landing").options(**few).append()
        assert len(world.ids()) == 420
        with pytest.raises(PySparkException, match="only the options that stand in INSERT INTO"):
            spark.sql("INSERT INTO landing SELECT * FROM few")
    finally:
        spark.sql("DROP TABLE landing")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"table": None}, "either option\\('table'"),
        ({"uri": "/data/orders.lance"}, "either option\\('table'"),
        ({"uri": "/data/orders.lance", "table": None}, r"catalog\.\* do not belong to a Lance dataset"),
        ({"storage.region": "eu"}, r"storage\.\* do not belong to an Iceberg table"),
        ({"key": None}, r"needs option\('key'"),
        ({"store": None}, r"needs option\('store'"),
        ({"store": "memory:///"}, "in one process only"),
        ({"store": "relative/path"}, "relative"),
        ({"tabel": "shop.orders"}, "does not know the option tabel"),
        ({"path": "/data"}, "does not know the option path"),
        ({"mode": "upsert"}, "takes more rounds (.|\\n)*checkpointed_write"),
        ({"mode": "add_columns"}, "takes more rounds (.|\\n)*checkpointed_write"),
        ({"upsert_keys": "id"}, "belongs to mode='upsert'"),
        ({"how": "overwrite", "mode": "append"}, "contradicts Spark's save mode"),
        ({"commit": "yes"}, "neither true nor false"),
        ({"mode": "overwrite_partitions"}, "needs a partitioned table"),
        ({"table": "shop.other"}, "shop.other"),
        ({"catalog.type": "sqll"}, "could not be opened"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(spark, world, changes, said):
    with pytest.raises(PySparkException, match=said):
        save(world, orders(spark, world), **changes)
    assert (world.files_on_disk(), objects(world)) == (set(), set())


def test_a_save_does_not_see_the_catalogs_of_the_session_and_says_what_does(spark, world):
    settings = {"spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog", "spark.sql.catalog.prod.type": "rest"}
    with spark_settings(spark, settings):
        without = dict.fromkeys(f"catalog.{name}" for name in world.catalog_properties)
        with pytest.raises(PySparkException, match=r"do not see the session(.|\n)*checkpointed_write goes by those"):
            save(world, orders(spark, world), table="prod.shop.orders", **without)
    assert (world.files_on_disk(), objects(world)) == (set(), set())


def test_rows_that_do_not_fit_are_refused_before_anything_is_computed(spark, world, marker):
    frame = failing(orders(spark, world), marker, above=0, times=9).selectExpr("kind AS id")
    with pytest.raises(PySparkException, match="SchemaMismatchError"):
        save(world, frame)
    assert (world.files_on_disk(), os.listdir(marker)) == (set(), [])


@pytest.mark.parametrize("changes", [{"table": "shop.other"}, {"mode": "overwrite"}])
def test_a_key_that_belongs_to_another_write_is_refused(spark, world, changes):
    world.create_table("shop.other", world.table().schema())
    frame = orders(spark, world)
    save(world, frame, commit="false")
    with pytest.raises(PySparkException, match="BindingMismatchError"):
        save(world, frame, **changes)
    with pytest.raises(PySparkException, match="BindingMismatchError"):
        save(world, frame.drop("kind"))
    assert state_of(checkpoint(world)) is State.SEALED


def test_a_key_of_a_checkpointed_write_is_not_that_of_a_save(spark, world):
    save(world, orders(spark, world))
    told = {"table": "shop.orders", "catalog": world.catalog_properties, "store": world.store.uri, "id_column": "id"}
    with pytest.raises(BindingMismatchError):
        checkpointed_write(orders(spark, world), key="orders", **told)


@pytest.mark.parametrize("changes", [{"table": "shop.other"}, {"mode": "overwrite"}, {"branch": "audit"}])
def test_a_commit_by_key_believes_no_store_that_says_otherwise(spark, world, changes):
    world.create_table("shop.other", world.table().schema())
    save(world, orders(spark, world), commit="false")
    with pytest.raises(BindingMismatchError, match="is not what commit was told"):
        landed(world, **changes)
    assert world.ids() == []


def test_a_key_that_nobody_has_saved_cannot_be_committed(world):
    with pytest.raises(CheckpointMissingError, match="no checkpoint under the key 'orders'"):
        landed(world)


def test_no_secret_is_put_into_the_store(spark, world):
    save(world, orders(spark, world), **{"catalog.s3.secret-access-key": "very-secret", "store.signing_secret": "more-secret" * 4})
    assert world.ids() == list(range(400))
    for name in objects(world):
        content = Path(name).read_bytes()
        assert b"very-secret" not in content
        assert b"more-secret" not in content
