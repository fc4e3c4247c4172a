"""DataFrames that are recovered by Spark's own partitions: only the missing ones run, and what cannot be proved is refused."""

from __future__ import annotations

import os
from collections import Counter

import msgspec
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support.frames import staged
from support.world import World, rows

from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    CorruptObjectError,
    InputChangedError,
    InvalidInputError,
    StageFailedError,
)
from airflow_ckpt_provider.sources import Files, SparkDataFrame
from airflow_ckpt_provider.sources.frame_plans import Partitions
from airflow_ckpt_provider.spark import checkpointed_write, commit
from airflow_ckpt_provider.spark.engine import planned_in
from airflow_ckpt_provider.spark.frame.partitions import partitions_of
from airflow_ckpt_provider.spark.session import SparkTarget, quiet, spark_session
from airflow_ckpt_provider.spark.stage import spark_settings

pytestmark = pytest.mark.spark

TABLE = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", DoubleType()), NestedField(3, "kind", StringType()))

#: Settings under which the same DataFrame would be cut and dealt otherwise.
OTHERWISE = {
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.openCostInBytes": "1",
    "spark.sql.files.maxPartitionBytes": "1000",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "true",
}


@pytest.fixture(scope="module")
def spark():
    conf = {"spark.sql.shuffle.partitions": "6", "spark.sql.files.openCostInBytes": "100", "spark.sql.files.minPartitionNum": "5"}
    with spark_session(SparkTarget("local[2]", conf=conf), "partitions") as spark:
        yield spark


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    found.create_table(schema=TABLE)
    found.put_files()
    return found


def read(spark, path):
    return spark.read.parquet(path).drop("at")


def joined(spark, path):
    few = spark.sql("SELECT * FROM VALUES ('kind-1', 1.0D), ('kind-2', 2.0D) AS few(kind, factor)")
    return read(spark, path).join(few, "kind").selectExpr("id", "value * factor AS value", "kind")


def joined_by_shuffle(spark, path):
    counted = read(spark, path).groupBy("id").count()
    return read(spark, path).hint("merge").join(counted, "id").selectExpr("id", "value + count AS value", "kind")


def summed(spark, path):
    return read(spark, path).groupBy("kind", "id").agg({"value": "sum"}).selectExpr("id", "`sum(value)` AS value", "kind")


def ranked(spark, path):
    return read(spark, path).selectExpr("id", "double(row_number() OVER (PARTITION BY kind ORDER BY id)) AS value", "kind")


def above_average(spark, path):
    read(spark, path).createOrReplaceTempView("orders")
    return spark.sql("SELECT * FROM orders WHERE value > (SELECT avg(value) FROM orders)")


def doubled_in_python(spark, path):
    def double(batches):
        import pyarrow.compute as pc

        for batch in batches:
            yield batch.set_column(1, "value", pc.multiply(batch["value"], 2.0))

    quiet()
    return read(spark, path).mapInArrow(double, "id long, value double, kind string")


PROVED = {
    "scan": read,
    "filter": lambda spark, path: read(spark, path).where("id % 3 = 0"),
    "union": lambda spark, path: read(spark, path).union(read(spark, path).selectExpr("id + 1000", "value", "kind")),
    "explode": lambda spark, path: read(spark, path).selectExpr("id", "explode(array(value, -value)) AS value", "kind"),
    "repartition by a column": lambda spark, path: read(spark, path).repartition(7, "id"),
    "broadcast join": joined,
    "join by shuffle": joined_by_shuffle,
    "sums of floats": summed,
    "distinct": lambda spark, path: read(spark, path).distinct(),
    "window": ranked,
    "scalar subquery": above_average,
    "in subquery": lambda spark, path: read(spark, path).join(read(spark, path).where("id < 50").select("id"), "id", "leftsemi"),
    "first rows of an order": lambda spark, path: read(spark, path).orderBy("id").limit(50),
    "range": lambda spark, path: spark.range(0, 100, 1, 5).selectExpr("id", "double(id) AS value", f"'{path[0]}' AS kind"),
    "python": doubled_in_python,
}


def counted_by_sums(spark, path):
    return summed(spark, path).groupBy("value").count().selectExpr("count AS id", "value", "'a' AS kind")


def dealt_by_rank(spark, path):
    numbered = ranked(spark, path).selectExpr("id", "value AS number", "kind").repartition(3, "number")
    return numbered.toDF("id", "value", "kind")


def dealt_by_a_reused_shuffle(spark, path):
    """The second side of the join is that of the first, whose rows came through a shuffle."""
    sums = read(spark, path).groupBy("kind").agg({"value": "sum", "id": "max"}).toDF("kind", "largest", "total")
    twice = sums.hint("merge").join(sums.toDF("kind", "larger", "again"), "kind").repartition(3, "again")
    return twice.selectExpr("greatest(largest, larger) AS id", "total + again AS value", "kind")


def outer_join_of_unequal_columns(spark, path):
    read(spark, path).createOrReplaceTempView("orders")
    few = "(SELECT id AS small FROM orders WHERE id < 5)"
    return spark.sql(f"SELECT /*+ BROADCAST(few) */ id, value, kind FROM orders FULL JOIN {few} few ON orders.id < few.small")


def made_here(spark, path):
    del path
    return spark.createDataFrame([(1, 1.0, "a")], "id long, value double, kind string")


def cached(spark, path):
    return read(spark, path).where("id > -1").cache()


REFUSED = {
    "an order over all rows": lambda spark, path: read(spark, path).orderBy("id"),
    "repartition.n. without columns": lambda spark, path: read(spark, path).repartition(3),
    "coalesce gathers partitions": lambda spark, path: read(spark, path).coalesce(1),
    "rows that the program itself has made": made_here,
    "rows are dealt by `?value": counted_by_sums,
    "rows are dealt by `?number": dealt_by_rank,
    "rows are dealt by `?again": dealt_by_a_reused_shuffle,
    "a FullOuter join without equal columns": outer_join_of_unequal_columns,
    "a cached DataFrame": cached,
}


def source_of(function, world, **changes):
    return SparkDataFrame(function, parameters={"path": str(world.input)}, **({"build_version": "1"} | changes))


def attempt_of(spark, world, source, **changes):
    return world.attempt(world.request(source=planned_in(source, lambda: spark), **changes))


def landed(world):
    found = world.table().scan().to_arrow().to_pylist()
    return Counter((row["id"], row["value"], row["kind"]) for row in found)


@pytest.mark.parametrize("kind", PROVED)
def test_a_retry_runs_only_the_missing_partitions_whatever_the_settings_are_then(spark, world, kind):
    function = PROVED[kind]
    expected = Counter((row.id, row.value, row.kind) for row in function(spark, str(world.input)).collect())
    first = attempt_of(spark, world, source_of(function, world))
    early = staged(spark, first, only=2)
    with spark_settings(spark, OTHERWISE):
        again = attempt_of(spark, world, source_of(function, world))
        late = staged(spark, again)
    world.commit(again)
    total = again.checkpoint.plan().source_as(Partitions).partitions
    assert len(early) == min(2, total)
    assert sorted(early + late) == [f"{number:06d}" for number in range(total)]
    assert landed(world) == expected
    assert total == 1 or kind == "first rows of an order" or len({*expected}) > 40


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_proved_is_refused_before_anything_is_put(spark, world, why):
    with pytest.raises(InvalidInputError, match=f"cannot be recovered by Spark's partitions:\n(.|\n)*{why}(.|\n)*id_column="):
        attempt_of(spark, world, source_of(REFUSED[why], world)).next_round()
    spark.catalog.clearCache()
    assert [path for path in (world.root / "store").rglob("*") if path.is_file()] == []


def test_what_is_not_reproducible_is_refused_too(spark, world):
    frame = source_of(lambda spark, path: read(spark, path).selectExpr("id", "rand() AS value", "kind"), world)
    with pytest.raises(InvalidInputError, match="rand"):
        attempt_of(spark, world, frame)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: pq.write_table(rows(900, 5), folder / "9.parquet"), "its input is other than it was"),
        (lambda folder: os.utime(folder / "1.parquet", (1, 1)), "its input is other than it was"),
        (lambda folder: (folder / "3.parquet").unlink(), "its input is other than it was"),
        (lambda folder: (folder / "3.parquet").rename(folder / "0a.parquet"), "its input is other than it was"),
    ],
)
def test_input_that_is_other_than_it_was_is_refused(spark, world, change, said):
    staged(spark, attempt_of(spark, world, source_of(read, world)), only=2)
    change(world.input)
    with pytest.raises(InputChangedError, match=said):
        staged(spark, attempt_of(spark, world, source_of(read, world)))
    anew = attempt_of(spark, world, source_of(read, world), restart_token="again")
    staged(spark, anew)
    world.commit(anew)
    assert sum(landed(world).values()) == spark.read.parquet(str(world.input)).count()


def test_another_plan_for_the_same_key_is_refused(spark, world):
    """As after a new version of the program that was not said to be one."""
    thirds = []

    def orders(spark, path):
        return read(spark, path).where("id % 3 = 0") if thirds else read(spark, path)

    staged(spark, attempt_of(spark, world, source_of(orders, world)), only=2)
    thirds.append(True)
    with pytest.raises(InputChangedError, match="Spark computes it by another plan"):
        staged(spark, attempt_of(spark, world, source_of(orders, world)))
    with pytest.raises(BindingMismatchError, match="build_version"):
        attempt_of(spark, world, source_of(orders, world, build_version="2"))


def test_partitions_without_rows_are_staged(spark, world):
    attempt = attempt_of(spark, world, source_of(lambda spark, path: read(spark, path).where("id < 0"), world))
    assert len(staged(spark, attempt)) > 1
    world.commit(attempt)
    assert landed(world) == Counter()


def test_a_program_needs_no_id(spark, world):
    catalog = world.catalog_properties
    frame = read(spark, str(world.input))
    reference = checkpointed_write(frame, table="shop.orders", key="orders", store=world.store.uri, catalog=catalog)
    commit(reference, catalog=catalog, store=world.store.uri)
    assert world.ids() == list(range(400))


def test_a_query_and_a_table_of_the_session_are_dataframes(spark, world):
    read(spark, str(world.input)).createOrReplaceTempView("orders")
    query = SparkDataFrame(sql="SELECT * FROM orders WHERE id < :most", parameters={"most": 7})
    staged(spark, attempt := attempt_of(spark, world, query))
    world.commit(attempt)
    staged(spark, attempt := attempt_of(spark, world, SparkDataFrame(table="orders"), key="all of it"))
    world.commit(attempt)
    assert landed(world) == Counter((n, n / 4, f"kind-{n % 3}") for n in [*range(7), *range(400)])
    with pytest.raises(BindingMismatchError, match=r"SELECT \* FROM orders WHERE id < :most.*\"most\":8"):
        attempt_of(spark, world, SparkDataFrame(sql=query.sql, parameters={"most": 8}))


def test_a_query_that_spark_does_not_understand_is_named(spark, world):
    with pytest.raises(StageFailedError, match=r"The DataFrame of sql='SELECT nothing' could not be made: .*nothing"):
        attempt_of(spark, world, SparkDataFrame(sql="SELECT nothing"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "takes one of a function, a query and the name of a table"),
        ({"sql": "SELECT 1", "table": "orders"}, "takes one of a function, a query and the name of a table"),
        ({"build": read, "sql": "SELECT 1"}, "takes one of a function, a query and the name of a table"),
        ({"sql": "SELECT 1", "build_version": "1"}, "stands for the code of build"),
        ({"table": "orders", "parameters": {"day": 1}}, "takes no parameters"),
    ],
)
def test_what_is_no_dataframe_is_refused_when_the_dag_is_parsed(changes, said):
    with pytest.raises(InvalidInputError, match=said):
        SparkDataFrame(**changes)


def test_a_transform_has_the_rows_of_a_partition(spark, world):
    def doubled(batch):
        import pyarrow.compute as pc

        return batch.set_column(1, "value", pc.multiply(batch["value"], 2.0))

    attempt = attempt_of(spark, world, source_of(read, world), transform=doubled)
    staged(spark, attempt)
    world.commit(attempt)
    assert landed(world) == Counter((n, n / 2, f"kind-{n % 3}") for n in range(400))


def test_ids_have_no_meaning_where_partitions_are_recovered():
    for changes in ({"id_column": "id"}, {"assert_unique": True}):
        with pytest.raises(InvalidInputError, match="takes the partitions as Spark makes them"):
            SparkDataFrame(read, recover="partitions", **changes)


def test_a_plan_with_a_partition_twice_is_refused(spark, world):
    source = source_of(read, world).planned_by(lambda told: partitions_of(spark, told), lambda _: None)
    plan = source.plan({})
    forged = msgspec.structs.replace(plan, splits=plan.splits[:1] * 2 + plan.splits[2:])
    with pytest.raises(CorruptObjectError, match="partition 0"):
        source.require_once(forged, {})


def test_files_need_no_session_to_be_planned(world):
    source = Files(f"{world.input}/*.parquet")
    assert planned_in(source, lambda: pytest.fail("a session was started")) is source
