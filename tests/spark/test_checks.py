"""Checks of staged rows: what they see, what they may say, and that nothing is committed, read or started beside them."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from support.standalone import connect_server
from support.world import World, rows

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.exceptions import (
    CheckFailedError,
    DiscardedError,
    InvalidInputError,
    NotSealedError,
    RetryableError,
    StagedFileMissingError,
)
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.spark.checks.check import parse_checks
from airflow_ckpt_provider.spark.checks.run import CheckRun
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.write import groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite

pytestmark = pytest.mark.spark

SOON_S = 15.0  # "within seconds", on a machine that does other things

#: A query that ends when it is stopped.
ENDLESS = "SELECT count(*) > 0 FROM staged a CROSS JOIN range(1000000000000) b WHERE a.id + b.id % 7 = -1"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # A zone that is not UTC, so that a time that is shifted shows.
    conf = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    with spark_session(SparkTarget("local[2]", conf=conf), "checks") as spark:
        yield spark


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


def about_to_land(attempts, target) -> list[SealedWrite]:
    """What the commit of these attempts shows an audit. Nothing lands."""
    shown: list[SealedWrite] = []

    def stop(sealed: Sequence[SealedWrite]) -> None:
        shown.extend(sealed)
        raise CheckFailedError("a test")

    with contextlib.suppress(CheckFailedError):
        groups.commit([attempt.checkpoint for attempt in attempts], target, stop)
    return shown


def check_run(world: World, *checks, session=no_spark, attempts=(), name="shop.orders") -> CheckRun:
    """A run of checks over attempts, or else over the four files of the world, staged."""
    target = world.as_table(name)
    sealed = about_to_land(attempts or [world.stage(name=name)], target)
    return CheckRun(parse_checks(list(checks)), target, sealed, session)


def look(world: World, *checks, **facts) -> list:
    """All outcomes of checks of which none fails."""
    outcomes: list = []
    check_run(world, *checks, **facts).run(outcomes.append)
    return outcomes


def data_files(world: World) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (world.root / "warehouse").rglob("*.parquet")}


def ids_of(staged) -> list[int]:
    return sorted(n for batch in staged.batches(["id"]) for n in batch["id"].to_pylist())


# -- SQL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) = 400 FROM staged",
        "SELECT count(*) FROM staged WHERE kind = 'kind-1'",
        "SELECT -0.5",
        "SELECT max(value) AS most FROM staged",
        "-- sorted\nSELECT max(id) = 399 AND min(id) = 0, 'as planned' AS why FROM staged",
        "WITH doubled AS (SELECT id FROM staged GROUP BY id HAVING count(*) > 1) SELECT count(*) = 0 FROM doubled",
    ],
)
def test_sql_passes_whose_first_column_is_true_or_not_zero(spark, world, sql):
    (outcome,) = look(world, sql, session=lambda: spark)
    assert outcome.passed


@pytest.mark.parametrize("verdict", ["max(value) < 10", "0", "count(*) - 400", "cast(0 AS decimal(9, 2))", "0.0D"])
def test_sql_that_is_false_or_zero_fails_and_its_other_columns_are_shown(spark, world, verdict):
    sql = f"SELECT {verdict} AS ok, max(value) AS most, min(kind) FROM staged"
    with pytest.raises(CheckFailedError) as failed:
        look(world, {"small": sql}, session=lambda: spark)
    message = str(failed.value)
    assert "1 of 1 checks failed for the 400 staged rows of shop.orders, key 'orders'" in message
    assert f"Check 1, 'small' ({sql}), FAILED" in message
    assert "most = 99.75, min(kind) = kind-0" in message


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT true FROM staged WHERE id < 0", "it returned no row"),
        ("SELECT true FROM staged", "it returned several rows"),
        ("SELECT max(id) > 0, count(*) AS n FROM staged WHERE id < 0", "is null, as an aggregate over no rows is.*n = 0"),
        ("SELECT 'true'", "neither a boolean nor a number"),
        ("SELECT double('NaN')", "is nan, which is neither"),
        ("SELECT current_date()", "neither a boolean nor a number"),
        ("SELECT min(amount) > 0 FROM staged", "UNRESOLVED_COLUMN.*`amount`.*`value`"),
        ("SELECT count(* FROM staged", "PARSE_SYNTAX_ERROR"),
        ("SELECT count(*) = 0 FROM elsewhere", "TABLE_OR_VIEW_NOT_FOUND"),
    ],
)
def test_sql_that_cannot_say_is_an_error_that_says_why(spark, world, sql, said):
    with pytest.raises(InvalidInputError, match=f"(?s)1 of 1 checks could not be run.*{said}"):
        look(world, sql, session=lambda: spark)


def test_an_error_while_a_query_runs_may_be_retried_and_is_told(spark, world):
    with pytest.raises(RetryableError, match=r"(?s)Check 1.*could not be run.*DIVIDE_BY_ZERO"):
        look(world, "SELECT sum(1 / (id - 399)) > 0 FROM staged", session=lambda: spark)


def test_all_checks_run_and_all_that_fail_are_reported_together(spark, world):
    def told(staged):
        return f"{staged.rows} rows"

    def broken(staged):
        return staged.batches(["id"])[0]

    outcomes: list = []
    run = check_run(
        world, "SELECT false", {"fine": "SELECT true"}, told, broken, "SELECT nothing", {"zero": "SELECT 0"}, session=lambda: spark
    )
    with pytest.raises(CheckFailedError) as failed:
        run.run(outcomes.append)
    assert [outcome.passed for outcome in outcomes] == [False, True, False, None, None, False]
    lines = str(failed.value).splitlines()[1:-1]
    assert [line.split(",")[0].strip() for line in lines] == [f"Check {number}" for number in (1, 3, 4, 5, 6)]
    assert "told, FAILED: 400 rows" in lines[1]
    assert "could not be run: TypeError" in lines[2]
    assert "UNRESOLVED_COLUMN" in lines[3]


def test_a_failed_check_leaves_table_and_files_and_the_commit_needs_nothing_written(spark, world):
    attempt = world.stage()
    before = data_files(world)
    with pytest.raises(CheckFailedError):
        look(world, "SELECT count(*) = 0 FROM staged", session=lambda: spark, attempts=[attempt])
    assert world.table().snapshots() == []
    assert bound_group(attempt.checkpoint) is None
    assert data_files(world) == before
    look(world, "SELECT count(*) = 400 FROM staged", session=lambda: spark, attempts=[attempt])
    world.commit(attempt)
    assert data_files(world) == before
    assert world.ids() == list(range(400))


def test_a_session_that_was_there_before_is_left_as_it_was(spark, world):
    parallelism = spark.conf.get("spark.sql.leafNodeDefaultParallelism", None)
    look(world, "SELECT count(*) = 400 FROM staged", session=lambda: spark)
    assert not spark.catalog.tableExists("staged")
    assert len(spark.sparkContext.getJobTags()) == 0
    assert spark.conf.get("spark.sql.leafNodeDefaultParallelism", None) == parallelism
    with pytest.raises(CheckFailedError):
        look(world, "SELECT false FROM staged LIMIT 1", session=lambda: spark)
    assert not spark.catalog.tableExists("staged")


# -- functions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, True, pa.scalar(True), pc.all(pa.array([True]))])
def test_a_function_passes_that_returns_nothing_or_true(world, answer):
    (outcome,) = look(world, lambda _: answer)
    assert outcome.passed


@pytest.mark.parametrize(
    ("answer", "said"),
    [(False, "false"), (pa.scalar(False), "false"), ("41 rows without a price", "41 rows without a price"), ("", "an empty text")],
)
def test_a_function_fails_that_returns_false_or_a_text(world, answer, said):
    with pytest.raises(CheckFailedError, match=f"FAILED: {said}"):
        look(world, lambda _: answer)


@pytest.mark.parametrize("answer", [0, 1, [], pa.scalar(None, pa.bool_()), {"ok": True}])
def test_an_answer_that_is_neither_is_an_error(world, answer):
    with pytest.raises(InvalidInputError, match="a check returns True or None"):
        look(world, lambda _: answer)


def test_an_assertion_fails_a_check_with_its_message_or_else_its_text(world):
    def with_message(staged):
        assert staged.rows < 10, f"too many: {staged.rows}"

    def without(staged):
        raise AssertionError

    with pytest.raises(CheckFailedError) as failed:
        look(world, with_message, without)
    assert "with_message, FAILED: too many: 400" in str(failed.value)
    assert "without, FAILED: raise AssertionError (" in str(failed.value)


def test_another_exception_is_told_with_the_name_of_the_check_and_kept_as_the_cause(world):
    def lost(staged):
        raise KeyError("price")

    with pytest.raises(RetryableError, match=r"'prices' \(.*lost\), could not be run: KeyError: 'price'") as broken:
        look(world, {"prices": lost})
    assert isinstance(broken.value.__cause__, KeyError)


def test_a_function_by_name_is_imported_when_it_runs(world, tmp_path, monkeypatch):
    (tmp_path / "shop_checks.py").write_text("def few(staged):\n    return f'{staged.rows} rows of {staged.table}'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckFailedError, match=r"Check 1, shop_checks:few, FAILED: 400 rows of shop\.orders"):
        look(world, "shop_checks:few")
    for wrong in ("shop_checks:many", "no_such_module:few"):
        with pytest.raises(InvalidInputError, match=f"{wrong} cannot be imported"):
            look(world, wrong)


def test_arrow_batches_are_the_staged_rows_and_start_no_spark(world):
    def exact(staged):
        assert staged.keys == ("orders",)
        assert staged.table == "shop.orders"
        assert staged.rows == 400
        assert staged.schema.names == ["id", "value", "kind", "at"]
        found = pa.Table.from_batches(staged.batches(), staged.schema).sort_by("id")
        assert found.to_pylist() == rows(0, 400).to_pylist()
        assert [batch.schema.names for batch in staged.batches(["kind", "id"])] == [["kind", "id"]] * 4
        assert ids_of(staged) == list(range(400))

    (outcome,) = look(world, exact)
    assert outcome.passed


def test_arrow_checks_run_where_there_is_no_java(world, tmp_path):
    world.stage()
    script = tmp_path / "no_java.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_checks
        from support.world import World
        from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
        found = test_checks.look(World(Path({str(world.root)!r})), lambda staged: test_checks.ids_of(staged) == list(range(400)))
        print([outcome.passed for outcome in found])
        """)
    )
    environment = os.environ | {"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "[True]", done.stderr


def test_a_dataframe_is_the_staged_rows_and_nothing_is_read_before_an_action(spark, world):
    attempt = world.stage()

    def exact(staged):
        found = sorted(staged.dataframe.collect(), key=lambda row: row["id"])
        assert [row.asDict() for row in found] == rows(0, 400).to_pylist()
        assert staged.dataframe.sparkSession.sql("SELECT count(*) FROM staged").first()[0] == 400

    look(world, exact, session=lambda: spark, attempts=[attempt])
    for path in data_files(world):
        Path(path).unlink()
    look(world, lambda staged: staged.dataframe.columns == ["id", "value", "kind", "at"], session=lambda: spark, attempts=[attempt])
    for reads in (lambda staged: staged.dataframe.count() == 400, lambda staged: len(list(staged.batches())) == 4):
        with pytest.raises(StagedFileMissingError, match="4 of 8 staged files"):
            look(world, reads, session=lambda: spark, attempts=[attempt])


# -- what is seen -----------------------------------------------------------------------------------------------------

EVERYTHING = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "price", DecimalType(20, 3)),
    NestedField(3, "at", TimestampType()),
    NestedField(4, "seen", TimestamptzType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "opens", TimeType()),
    NestedField(7, "code", UUIDType()),
    NestedField(8, "hash", FixedType(4)),
    NestedField(9, "raw", BinaryType()),
    NestedField(
        10,
        "lines",
        ListType(11, StructType(NestedField(12, "code", UUIDType()), NestedField(13, "n", IntegerType())), element_required=False),
    ),
    NestedField(14, "by", MapType(15, StringType(), 16, ListType(17, FixedType(4), element_required=False), value_required=False)),
    NestedField(18, "place", StructType(NestedField(19, "at", TimestamptzType()), NestedField(20, "open", TimeType()))),
)
CODE, MOMENT = uuid.UUID(int=7 << 100), dt.datetime(2026, 3, 8, 7, 30, 0, 123456)  # noqa: DTZ001 - a column without a zone
FULL = {
    "id": 1, "price": Decimal("12345.678"), "at": MOMENT, "seen": MOMENT.replace(tzinfo=dt.UTC), "day": dt.date(2026, 3, 8),
    "opens": dt.time(8, 30), "code": CODE.bytes, "hash": b"\x00\x01\x02\xff", "raw": b"\xff",
    "lines": [{"code": CODE.bytes, "n": 1}, None, {"code": None, "n": None}],
    "by": [("a", [b"abcd", None]), ("b", None)], "place": {"at": MOMENT.replace(tzinfo=dt.UTC), "open": dt.time(0, 0, 0, 5)},
}  # fmt: skip
HOLLOW = dict.fromkeys(FULL) | {"id": 2}
EMPTIES = HOLLOW | {"id": 3, "lines": [], "by": [], "place": {"at": None, "open": None}}


def put_everything(world: World) -> None:
    world.create_table("shop.all", EVERYTHING)
    struct = pa.struct([("code", pa.binary(16)), ("n", pa.int32())])
    utc = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False), ("price", pa.decimal128(20, 3)), ("at", pa.timestamp("us")), ("seen", utc),
            ("day", pa.date32()), ("opens", pa.time64("us")), ("code", pa.binary(16)), ("hash", pa.binary(4)), ("raw", pa.binary()),
            ("lines", pa.list_(struct)), ("by", pa.map_(pa.string(), pa.list_(pa.binary(4)))),
            ("place", pa.struct([("at", utc), ("open", pa.time64("us"))])),
        ]
    )  # fmt: skip
    pq.write_table(pa.Table.from_pylist([HOLLOW, FULL, EMPTIES, HOLLOW | {"id": 4}], schema), world.input / "all.parquet")


def test_spark_sees_every_type_as_documented(spark, world):
    put_everything(World(world.root))
    attempt = world.stage(world.request(source=Files(f"{world.input}/all.parquet")), name="shop.all")

    def exact(staged):
        seen = staged.dataframe
        assert dict(seen.dtypes) == {
            "id": "bigint", "price": "decimal(20,3)", "at": "timestamp_ntz", "seen": "timestamp", "day": "date", "opens": "string",
            "code": "string", "hash": "binary", "raw": "binary", "lines": "array<struct<code:string,n:int>>",
            "by": "map<string,array<binary>>", "place": "struct<at:timestamp,open:string>",
        }  # fmt: skip
        assert all(field.nullable for field in seen.schema)
        found = {row["id"]: row.asDict(recursive=True) for row in seen.collect()}
        full = found[1]
        # Moments come to Python in the zone of this machine.
        full["seen"], full["place"]["at"] = full["seen"].astimezone(dt.UTC), full["place"]["at"].astimezone(dt.UTC)
        assert full == FULL | {
            "opens": "08:30:00.000000", "code": str(CODE), "lines": [{"code": str(CODE), "n": 1}, None, {"code": None, "n": None}],
            "by": {"a": [b"abcd", None], "b": None}, "place": FULL["place"] | {"open": "00:00:00.000005"},
        }  # fmt: skip
        assert found[2] == HOLLOW
        assert found[3] == EMPTIES | {"by": {}}
        assert found[4] == HOLLOW | {"id": 4}

    look(
        world, exact, "SELECT count(*) = 1 FROM staged WHERE seen = timestamp'2026-03-08 07:30:00.123456 UTC'",
        "SELECT count(*) = 1 FROM staged WHERE at = timestamp_ntz'2026-03-08 07:30:00.123456'",
        f"SELECT count(*) = 1 FROM staged WHERE get(lines, 0).code = '{CODE}' AND price = 12345.678BD",
        session=lambda: spark, attempts=[attempt], name="shop.all",
    )  # fmt: skip


def test_a_check_that_nothing_is_null_looks_although_the_column_is_required(spark, world):
    look(world, "SELECT count(*) = 0 FROM staged WHERE id IS NULL", session=lambda: spark)
    plan = {}

    def keep(staged):
        plan["text"] = staged.dataframe.where("id IS NULL")._jdf.queryExecution().optimizedPlan().toString()

    look(world, keep, session=lambda: spark)
    assert "MapInArrow" in plan["text"]


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(3)])
def test_a_partitioned_table_shows_its_partition_columns(spark, tmp_path, transform):
    world = World(tmp_path / "world")
    world.create_table(spec=PartitionSpec(PartitionField(3, 1000, transform, "kind_part")))
    world.put_files()
    sql = "SELECT count(*) = 400 AND count(DISTINCT kind) = 3, count(kind) FROM staged"
    look(world, sql, lambda staged: ids_of(staged) == list(range(400)), session=lambda: spark)


def test_a_table_to_be_is_checked_before_it_exists(spark, world):
    world.catalog.drop_table("shop.orders")
    attempt = world.stage(world.request(mode="create", parameters={"partition_by": ["bucket(2, id)"]}))
    look(
        world, "SELECT count(*) = 400 AND max(value) = 99.75 FROM staged", lambda staged: ids_of(staged) == list(range(400)),
        session=lambda: spark, attempts=[attempt],
    )  # fmt: skip
    assert not world.catalog.table_exists("shop.orders")
    world.commit(attempt)
    assert world.ids() == list(range(400))


@pytest.mark.parametrize("mode", ["append", "create"])
def test_nothing_staged_is_a_view_without_rows(spark, world, mode):
    if mode == "create":
        world.catalog.drop_table("shop.orders")
    attempt = world.stage(world.request(mode=mode, transform=lambda batch: batch.slice(0, 0)))
    look(
        world, "SELECT count(*) = 0 FROM staged", lambda staged: staged.rows == 0 and list(staged.batches()) == [],
        lambda staged: staged.dataframe.columns == ["id", "value", "kind", "at"], session=lambda: spark, attempts=[attempt],
    )  # fmt: skip


def test_an_overwrite_is_checked_for_what_it_adds_and_not_for_what_it_replaces(spark, world):
    world.commit(world.stage())
    pq.write_table(rows(1000, 50), world.input / "new.parquet")
    attempt = world.stage(world.request("again", mode="overwrite", source=Files(f"{world.input}/new.parquet")))
    look(world, "SELECT count(*) = 50 AND min(id) = 1000 FROM staged", session=lambda: spark, attempts=[attempt])


def test_the_schema_is_the_one_that_was_staged_with(spark, world):
    attempt = world.stage()
    with world.table().update_schema() as update:
        update.rename_column("value", "worth")
        update.add_column("later", StringType())
    seen = ["id", "value", "kind", "at"]
    look(
        world, lambda staged: staged.schema.names == seen and staged.dataframe.columns == seen,
        "SELECT max(value) = 99.75 FROM staged", session=lambda: spark, attempts=[attempt],
    )  # fmt: skip


def test_checkpoints_that_pinned_different_schemas_are_seen_under_the_newest(spark, world):
    first = world.stage(world.request("first"))
    with world.table().update_schema() as update:
        update.rename_column("value", "worth")
        update.add_column("later", DoubleType())
    pq.write_table(rows(400, 10).rename_columns(["id", "worth", "kind", "at"]), world.input / "more.parquet")
    second = world.stage(world.request("second", source=Files(f"{world.input}/more.parquet")))
    look(
        world, "SELECT count(*) = 410 AND count(worth) = 410 AND count(later) = 0 FROM staged",
        lambda staged: staged.keys == ("first", "second") and ids_of(staged) == list(range(410)),
        session=lambda: spark, attempts=[first, second],
    )  # fmt: skip


def test_many_small_files_share_tasks_and_all_are_read(spark, world):
    world.put_files(files=40, rows_each=3)
    found = {}

    def count(staged):
        found["tasks"] = staged.dataframe.rdd.getNumPartitions()
        return staged.dataframe.count() == 120

    look(world, count, session=lambda: spark)
    assert found["tasks"] == 2


# -- which checkpoints ------------------------------------------------------------------------------------------------


def one_file(world, number):
    return world.stage(world.request(f"file-{number}", source=Files(f"{world.input}/{number}.parquet")))


def test_only_checkpoints_that_have_not_landed_are_checked(world):
    landed, unrecorded, fresh = (one_file(world, number) for number in range(3))
    world.commit(landed)
    world.commit(unrecorded)
    (world.root / "store" / unrecorded.checkpoint.paths.commit).unlink()
    attempts = [landed, unrecorded, fresh, fresh]
    look(world, lambda staged: staged.keys == ("file-2",) and ids_of(staged) == list(range(200, 300)), attempts=attempts)
    world.commit(fresh)
    assert about_to_land(attempts, world.as_table()) == []


def test_what_cannot_be_committed_is_not_checked(world):
    unsealed = world.stage(splits=2)
    with pytest.raises(NotSealedError, match="'orders' is not sealed"):
        about_to_land([unsealed], world.as_table())
    discarded = one_file(world, 1)
    discarded.checkpoint.discard("a test")
    with pytest.raises(DiscardedError):
        about_to_land([discarded], world.as_table())
    world.create_table("shop.others")
    other = world.stage(world.request("other"), name="shop.others")
    with pytest.raises(InvalidInputError, match="One commit lands in one table"):
        about_to_land([one_file(world, 2), other], world.as_table())


# -- stop -------------------------------------------------------------------------------------------------------------


def require_quiet(spark: SparkSession) -> None:
    end = time.monotonic() + SOON_S
    while spark.sparkContext.statusTracker().getActiveJobsIds() and time.monotonic() < end:
        time.sleep(0.05)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


def running(spark: SparkSession) -> None:
    end = time.monotonic() + SOON_S
    while not spark.sparkContext.statusTracker().getActiveJobsIds() and time.monotonic() < end:
        time.sleep(0.02)


@pytest.mark.parametrize("check", [ENDLESS, lambda staged: bool(staged.dataframe.sparkSession.sql(ENDLESS).collect())])
def test_a_signal_stops_the_spark_job_of_a_check_and_no_other_check_runs(spark, world, check):
    run = check_run(world, check, lambda _: "must not run", session=lambda: spark)
    outcomes: list = []
    before = signal.signal(signal.SIGUSR1, lambda *_: run.cancel())

    def kill():
        running(spark)
        os.kill(os.getpid(), signal.SIGUSR1)

    killer = threading.Thread(target=kill)
    killer.start()
    started = time.monotonic()
    try:
        with pytest.raises(RetryableError, match="key 'orders' were stopped"):
            run.run(outcomes.append)
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - started < SOON_S
    assert outcomes == []
    require_quiet(spark)
    assert not any(thread.name == "checkpoint-stop" for thread in threading.enumerate())
    # The session works on.
    assert look(world, "SELECT count(*) = 400 FROM staged", session=lambda: spark)


def test_a_check_that_swallows_the_stop_does_not_pass(spark, world):
    def stubborn(staged):
        run.cancel()
        try:
            return staged.dataframe.count() == 0
        except RetryableError:
            return True

    run = check_run(world, stubborn, session=lambda: spark)
    with pytest.raises(RetryableError, match="were stopped"):
        run.run(lambda _: None)


def test_arrow_batches_end_when_the_checks_are_stopped(world):
    seen = []

    def reads(staged):
        for batch in staged.batches():
            seen.append(batch.num_rows)
            run.cancel()

    run = check_run(world, reads)
    with pytest.raises(RetryableError, match="were stopped"):
        run.run(lambda _: None)
    assert seen == [100]


def test_checks_that_are_stopped_before_they_begin_start_no_spark(world):
    run = check_run(world, "SELECT true")
    run.cancel()
    with pytest.raises(RetryableError, match="were stopped"):
        run.run(lambda _: None)


def test_a_stop_while_the_session_starts_runs_nothing(spark, world):
    def session():
        run.cancel()
        return spark

    run = check_run(world, "SELECT true", session=session)
    with pytest.raises(RetryableError, match="were stopped"):
        run.run(lambda _: None)


# -- elsewhere --------------------------------------------------------------------------------------------------------


def test_checks_on_a_connect_server_whose_python_lacks_the_package(world, tmp_path, bare_python):
    put_everything(world)
    every = world.stage(world.request("all", source=Files(f"{world.input}/all.parquet")), name="shop.all")
    (world.input / "all.parquet").unlink()
    attempt = world.stage()
    with connect_server(tmp_path / "server", bare_python) as url, spark_session(SparkTarget("", remote=url), "checks") as remote:
        facts = {"session": lambda: remote, "attempts": [attempt]}
        look(
            world,
            "SELECT count(*) = 400 AND max(value) = 99.75 FROM staged",
            lambda staged: staged.dataframe.count() == 400,
            **facts,
        )
        look(world, f"SELECT count_if(code = '{CODE}') = 1 FROM staged", session=lambda: remote, attempts=[every], name="shop.all")
        with pytest.raises(CheckFailedError, match=r"most = 99\.75"):
            look(world, "SELECT max(value) < 10, max(value) AS most FROM staged", **facts)
        with pytest.raises(InvalidInputError, match="UNRESOLVED_COLUMN"):
            look(world, "SELECT min(amount) > 0 FROM staged", **facts)
        run = check_run(world, ENDLESS, **facts)
        before = signal.signal(signal.SIGUSR1, lambda *_: run.cancel())
        killer = threading.Timer(3, os.kill, (os.getpid(), signal.SIGUSR1))
        killer.start()
        started = time.monotonic()
        try:
            with pytest.raises(RetryableError, match="were stopped"):
                run.run(lambda _: None)
        finally:
            killer.join()
            signal.signal(signal.SIGUSR1, before)
        assert 2 < time.monotonic() - started < SOON_S


@pytest.mark.cluster
def test_checks_on_a_cluster_whose_executors_lack_the_package(world, cluster, bare_python):
    conf = {
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.pyspark.python": str(bare_python),
    }
    attempt = world.stage()
    with spark_session(SparkTarget(cluster.url, conf=conf), "checks") as session:
        look(world, "SELECT count(*) = 400 AND max(value) = 99.75 FROM staged", session=lambda: session, attempts=[attempt])


# -- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ("SELECT true", "is not a list"),
        ({"one": "SELECT true"}, "is not a list"),
        (lambda _: True, "is not a list"),
        ([""], "Check 1 is an empty text"),
        (["SELECT true", "  \n"], "Check 2 is an empty text"),
        ([7], "Check 1 is 7"),
        ([None], "Check 1 is None"),
        ([["SELECT true"]], r"Check 1 is \['SELECT true'\]"),
        ([("name", "SELECT true")], "Check 1 is"),
        (["shop.checks.few"], "'package.module:function'"),
        ([{}], "Check 1 is an empty mapping"),
        ([{"": "SELECT true"}], "has the name ''"),
        ([{"few": ""}], "Check 1, 'few', is an empty text"),
        ([{"few": 7}], "Check 1, 'few', is 7"),
        ([lambda: True], "with one argument"),
        ([lambda _, __: True], "with one argument"),
    ],
)
def test_what_is_no_list_of_checks_is_refused(checks, said):
    with pytest.raises(InvalidInputError, match=said):
        parse_checks(checks)


def test_every_way_to_write_a_check():
    class Thresholds:
        def __call__(self, staged, least=0):
            return staged.rows > least

    given = ["SELECT true", {"a": "SELECT 1", "b": len}, "shop.checks:few", Thresholds(), "{{ params.check }} "]
    assert [check.name for check in parse_checks(given)] == [None, "a", "b", None, None, None]
    assert parse_checks(None) == parse_checks([]) == []
