"""A DataFrame that a function makes of another source's rows: each attempt is given those that the first one has planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lance
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support import chains
from support.frames import staged
from support.lance_world import LanceWorld
from support.world import World, rows

from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError
from airflow_ckpt_provider.sources import Files, IcebergTable, LanceDataset, SparkDataFrame
from airflow_ckpt_provider.sources.frame_transform import FrameTransform, opened
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.spark.engine import planned_in
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.spark.stage import spark_settings
from airflow_ckpt_provider.transforms import Aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLE = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", DoubleType()), NestedField(3, "name", StringType()))

#: The rows of the input, of three kinds, of which two have a name.
ROWS = 400

NAMES = {"kind-0": "none", "kind-1": "one"}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]", conf={"spark.sql.shuffle.partitions": "2"}), "frame transforms") as spark:
        few = ", ".join(f"('{kind}', '{name}')" for kind, name in NAMES.items())
        spark.sql(f"CREATE TEMPORARY VIEW names AS SELECT * FROM VALUES {few} AS names(kind, name)")
        yield spark


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    found.create_table(schema=TABLE)
    found.put_files()
    return found


def named(df, factor=1.0):
    """A join with a small table that the session knows."""
    return df.join(df.sparkSession.table("names"), "kind").selectExpr("id", f"value * {factor}D AS value", "name")


def expected(ids=range(ROWS)):
    return [(n, n / 4, NAMES[f"kind-{n % 3}"]) for n in ids if n % 3 != 2]


def files(world):
    return Files(f"{world.input}/*.parquet", max_split_bytes=1)


def frame_of(read, options=(), dataframe=named, **changes):
    given = SparkDataFrame(**({"source": read, "dataframe": dataframe, "id_column": "id", "buckets": 4} | changes))
    return opened(given, read, dict(options))


def attempt_of(spark, world, source, **changes):
    read = source.options if isinstance(source, FrameTransform) else {}
    source = planned_in(source, lambda: spark)
    return world.attempt(world.request(source=source, options=read, sample=lambda: source.session_sample(spark), **changes))


def landed(world, name="shop.orders"):
    return sorted((row["id"], row["value"], row["name"]) for row in world.table(name).scan().to_arrow().to_pylist())


def as_iceberg(world):
    world.create_table("shop.read")
    world.table("shop.read").append(rows(0, ROWS).cast(world.table("shop.read").schema().as_arrow()))
    return IcebergTable("shop.read", max_split_bytes=1), world.catalog_properties


def as_lance(world):
    uri = str(world.root / "read.lance")
    for number in range(2):
        lance.write_dataset(rows(number * ROWS // 2, ROWS // 2), uri, mode="append" if number else "create")
    return LanceDataset(uri, max_split_bytes=1), {}


def as_files(world):
    return files(world), {}


def as_staged(world):
    return chains.read(world, chains.for_next(world, "parse", None)), {}


SOURCES = {"files": as_files, "iceberg": as_iceberg, "lance": as_lance, "staged": as_staged}


@pytest.mark.parametrize("how", [{}, {"id_column": None}], ids=["buckets", "partitions"])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_retry_computes_only_what_is_missing_of_the_rows_that_were_planned(spark, world, kind, how):
    read, options = SOURCES[kind](world)
    early = staged(spark, attempt_of(spark, world, frame_of(read, options, **how)), only=1)
    pq.write_table(rows(9000, 30), world.input / "late.parquet")
    if kind == "iceberg":
        world.table("shop.read").append(rows(9000, 30).cast(world.table("shop.read").schema().as_arrow()))
    if kind == "lance":
        lance.write_dataset(rows(9000, 30), read.uri, mode="append")
    again = attempt_of(spark, world, frame_of(read, options, **how))
    late = staged(spark, again)
    world.commit(again)
    assert not {*early} & {*late}
    assert len(early) == 1
    assert landed(world) == expected()
    assert len(world.table().snapshots()) == 1


def test_rows_land_in_a_lance_dataset(spark, tmp_path):
    world = LanceWorld(tmp_path)
    world.put_files(2)
    attempt = attempt_of(spark, world, frame_of(files(world)), mode="create")
    staged(spark, attempt)
    world.commit(attempt)
    found = world.dataset.to_table().to_pylist()
    assert sorted((row["id"], row["value"], row["name"]) for row in found) == expected(range(200))


@pytest.mark.parametrize("how", [{}, {"id_column": None}], ids=["buckets", "partitions"])
def test_input_that_was_changed_is_an_error_that_names_it(spark, world, how):
    staged(spark, attempt_of(spark, world, frame_of(files(world), **how)), only=1)
    pq.write_table(rows(100, 90), world.input / "1.parquet")
    with pytest.raises(InputChangedError, match=r"1\.parquet"):
        staged(spark, attempt_of(spark, world, frame_of(files(world), **how)))
    assert landed(world) == []


def test_input_that_is_changed_while_it_is_read_is_an_error_that_names_it(spark, world):
    """The function is called behind the look at the files, and before they are read."""

    def late(df):
        pq.write_table(rows(100, 90), world.input / "1.parquet")
        return named(df)

    with pytest.raises(InputChangedError, match=r"1\.parquet"):
        staged(spark, attempt_of(spark, world, frame_of(files(world), dataframe=late, build_version="1")))


def joined_with_itself(df):
    other = df.selectExpr("id + 1 AS id", "value AS before")
    return named(df.join(other, "id").selectExpr("id", "before AS value", "kind"))


@pytest.mark.parametrize("how", [{}, {"id_column": None}], ids=["buckets", "partitions"])
def test_a_function_may_read_the_rows_twice(spark, world, how):
    attempt = attempt_of(spark, world, frame_of(files(world), dataframe=joined_with_itself, **how))
    staged(spark, attempt)
    world.commit(attempt)
    assert landed(world) == [(n, (n - 1) / 4, NAMES[f"kind-{n % 3}"]) for n in range(1, ROWS) if n % 3 != 2]


def test_a_function_may_read_something_else(spark, world):
    def others(df):
        return df.sparkSession.range(5).selectExpr("id", "double(id) AS value", "'a' AS name")

    attempt = attempt_of(spark, world, frame_of(files(world), dataframe=others))
    staged(spark, attempt)
    world.commit(attempt)
    assert landed(world) == [(n, float(n), "a") for n in range(5)]


def never_called(df):
    raise ValueError(f"{df} was made of nothing")


def test_a_source_without_rows_is_not_transformed(spark, world):
    for number, how in enumerate(({}, {"id_column": None})):
        source = frame_of(Files(f"{world.input}/none-*.parquet"), dataframe=never_called, **how)
        attempt = attempt_of(pytest.fail, world, source, key=f"none-{number}")
        assert staged(pytest.fail, attempt) == []
        assert world.commit(attempt)[0].commit.commit_id is None


def test_an_error_that_no_retry_can_cure_is_one_though_only_spark_saw_it(spark, world):
    pq.write_table(rows(500, 10).set_column(1, "value", pa.array(["much"] * 10)), world.input / "9.parquet")
    for source in (frame_of(files(world)), frame_of(files(world), id_column=None)):
        with pytest.raises(InvalidInputError, match=r"^The rows have a value that Spark cannot hold.*9\.parquet.*'much'"):
            staged(spark, attempt_of(spark, world, source, key=source.recover))


def test_each_commit_takes_up_what_was_added_since_the_last(spark, world):
    _, options = as_iceberg(world)
    read = IcebergTable("shop.read", since="last_commit")
    for number in range(2):
        attempt = attempt_of(spark, world, frame_of(read, options), key=f"increment-{number}")
        staged(spark, attempt)
        world.commit(attempt)
        assert landed(world) == expected(range(ROWS + 30 * number))
        world.table("shop.read").append(rows(ROWS + 30 * number, 30).cast(world.table("shop.read").schema().as_arrow()))


@pytest.mark.parametrize("how", [{}, {"id_column": None}], ids=["with an id", "without"])
def test_the_rows_are_grouped(spark, world, how):
    def total(value):
        return {"value": sum(value), "id": len(value)}

    aggregate = Aggregate(total, by="name", output={"value": pa.float64(), "id": pa.int64()}, buckets=2)
    source = GroupedRows(planned_in(frame_of(files(world), **how), lambda: spark), {}, aggregate)
    staged(spark, attempt_of(spark, world, source, transform=aggregate), only=1)
    pq.write_table(rows(9000, 30), world.input / "late.parquet")
    again = GroupedRows(planned_in(frame_of(files(world), **how), lambda: spark), {}, aggregate)
    attempt = attempt_of(spark, world, again, transform=aggregate)
    staged(spark, attempt)
    world.commit(attempt)
    sums = {name: [value for _, value, other in expected() if other == name] for name in NAMES.values()}
    assert landed(world) == sorted((len(values), sum(values), name) for name, values in sums.items())


def test_values_come_as_they_are_in_the_files(spark, world):
    table = pa.table(
        {
            "id": pa.array([1, 2]),
            "at": pa.array([1, None], pa.timestamp("us")),
            "vector": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "a.b": pa.array([{"x": 1}, {"x": 2}]),
        }
    )
    pq.write_table(table, world.root / "values.parquet")
    attempt = attempt_of(spark, world, frame_of(Files(str(world.root / "values.parquet")), dataframe=lambda df: df))
    source, _ = attempt.source.reading(attempt.source.plan({}))
    found = source.frame(spark).toArrow()
    assert found["at"].type == pa.timestamp("us")
    assert found.to_pylist() == table.to_pylist()


def test_a_column_that_spark_cannot_hold_is_named(spark, world):
    pq.write_table(pa.table({"id": [1], "size": pa.array([2], pa.uint64())}), world.root / "sizes.parquet")
    attempt = attempt_of(spark, world, frame_of(Files(str(world.root / "sizes.parquet"))))
    with pytest.raises(
        InvalidInputError, match=r"have a column that Spark cannot hold, size, of the type uint64: .*asked for columns"
    ):
        staged(spark, attempt)


def test_rows_of_formats_without_types_have_those_of_the_first(spark, world):
    (world.input / "orders.csv").write_text("id,value,kind\n1,0.5,kind-0\n")
    (world.input / "others.csv").write_text("id,value,kind\n4,2,kind-1\n")
    read = Files(f"{world.input}/*.csv", format="csv", max_split_bytes=1)
    attempt = attempt_of(spark, world, frame_of(read))
    staged(spark, attempt)
    world.commit(attempt)
    assert landed(world) == [(1, 0.5, "none"), (4, 2.0, "one")]


def test_a_column_that_the_first_file_does_not_have_is_not_left_out(spark, world):
    pq.write_table(rows(500, 10).append_column("note", pa.array(["x"] * 10)), world.input / "9.parquet")
    with pytest.raises(
        InvalidInputError, match=r"have columns note: .*9\.parquet.*Ask the source for columns that all of them have"
    ):
        staged(spark, attempt_of(spark, world, frame_of(files(world))))
    columns = Files(f"{world.input}/*.parquet", columns=["id", "value", "kind"])
    attempt = attempt_of(spark, world, frame_of(columns), key="columns")
    staged(spark, attempt)
    world.commit(attempt)
    assert landed(world) == expected([*range(ROWS), *range(500, 510)])


@pytest.mark.parametrize(
    ("dataframe", "said"),
    [
        (
            lambda df: df.join(df.sparkSession.table("names"), "kind").selectExpr("id", "rand() AS value", "name"),
            "not reproducible",
        ),
        (lambda df: df.selectExpr("id", "value", "kind AS name", "kind AS name"), "more than one column named name"),
        (lambda df: df.selectExpr("value", "kind AS name"), "has no column id"),
        (lambda df: df.count(), "returned a int; it must return a Spark DataFrame"),
        (lambda df: df.selectExpr("nothing"), "could not be made: .*nothing"),
    ],
)
def test_what_the_function_may_not_return_is_refused_before_a_task_runs(spark, world, dataframe, said):
    with pytest.raises(Exception, match=said):
        staged(spark, attempt_of(spark, world, frame_of(files(world), dataframe=dataframe)))
    assert not any("staged" in path.parts for path in (world.root / "store").rglob("*.json"))


def test_what_no_partition_can_be_proved_of_is_refused(spark, world):
    source = frame_of(files(world), dataframe=lambda df: named(df).repartition(3), id_column=None)
    with pytest.raises(InvalidInputError, match=r"repartition\(n\) without columns deals rows"):
        attempt_of(spark, world, source)


def test_spark_takes_the_rows_for_as_large_as_their_files_and_does_not_send_all_of_them_to_each_task(spark, world):
    source = attempt_of(spark, world, frame_of(files(world), dataframe=joined_with_itself)).source
    bound, _ = source.reading(source.plan({}))
    size = sum(split.bytes for split in bound.planned.splits)
    for threshold, is_sent in ((100 * size, True), (size // 4, False)):
        with spark_settings(spark, {"spark.sql.autoBroadcastJoinThreshold": str(threshold)}):
            plan = bound.frame(spark)._jdf.queryExecution().optimizedPlan()
            other = next(node for node in leaves(plan) if node.getClass().getSimpleName() == "Range")
            assert size <= int(str(other.stats().sizeInBytes())) < size + 8 * len(bound.planned.splits)
            sent = bound.frame(spark)._jdf.queryExecution().executedPlan().toString()
            assert (sent.count("BroadcastExchange") == 2) is is_sent


def leaves(plan):
    found = plan.collectLeaves()
    return [found.apply(number) for number in range(found.size())]


def test_other_splits_under_the_same_plan_are_seen_in_the_proof(spark, world):
    """Nobody but the owner of the store can put them there; that the physical plan has them is what this shows."""
    whole = frame_of(files(world), id_column=None)
    attempt = attempt_of(spark, world, whole)
    staged(spark, attempt, only=1)
    plan = attempt.checkpoint.plan()
    source, dealt = attempt.source.reading(plan)
    swapped = {**plan.source, "splits": plan.source["splits"][::-1]}
    other, _ = attempt.source.reading(msgspec.structs.replace(plan, source=swapped))
    same, changed = (attempt.source.told_partitions(found) for found in (source, other))
    assert same.to_json() == dealt.source
    assert changed.partitions == same.partitions
    assert changed.query != same.query
