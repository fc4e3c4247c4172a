"""A check in SQL only looks at rows, whatever its template renders to; and the values of its parameters are values."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark.test_checks import look, no_spark
from support.standalone import connect_server
from support.world import World

from airflow_ckpt_provider.exceptions import CheckFailedError, InvalidInputError
from airflow_ckpt_provider.spark.checks.check import parse_checks
from airflow_ckpt_provider.spark.checks.functions import FUNCTIONS
from airflow_ckpt_provider.spark.checks.sql import require_harmless
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]", conf={"spark.sql.shuffle.partitions": "2"}), "checks") as spark:
        yield spark


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files()
    return world


#: What a template may not render to, and what is said of it. ``{out}`` is a folder, ``{file}`` a file of Parquet.
HARMFUL = {
    "a class of Java": ("SELECT reflect('java.lang.System', 'getenv', 'HOME')", "the function reflect"),
    "in quotes": ("SELECT `reflect`('java.lang.System', 'getenv', 'HOME')", "the function reflect"),
    "in other quotes": ("SELECT \"reflect\"('java.lang.System', 'getenv', 'HOME')", "the function reflect"),
    "in capitals": ("SELECT Java_Method('java.lang.System', 'getenv', 'HOME')", "the function java_method"),
    "with white space": (
        "SELECT try_reflect /* why */ -- not\n ('java.lang.System', 'getenv', 'HOME')",
        "the function try_reflect",
    ),
    "of the catalog of functions": ("SELECT builtin.reflect('java.lang.System', 'getenv', 'HOME')", "functions of a database"),
    "of the system's catalog": (
        "SELECT system.`builtin`.`reflect`('java.lang.System', 'getenv', 'HOME')",
        "functions of a database",
    ),
    "deep inside": ("SELECT 1 WHERE EXISTS (SELECT x FROM (VALUES (reflect('a', 'b'))) AS t(x))", "the function reflect"),
    "behind a text that ends": ("SELECT 'it''s', 'a\\'', reflect('a', 'b')", "the function reflect"),
    "in a comment of a comment": ("SELECT 1 /* /* */ */ , reflect('a', 'b')", "is not read"),
    "behind a comment that goes on": ("SELECT 1 -- \\\n, reflect('a', 'b')", "is not read"),
    "in a raw text": ("SELECT r'\\', reflect('a', 'b') -- '", "raw texts"),
    "by a name that is a value": ("SELECT * FROM IDENTIFIER('parquet.`{file}`')", "the function identifier"),
    "a setting": ("SELECT '${spark.hadoop.fs.s3a.secret.key}'", "a setting or a variable of the environment"),
    "the environment": ("SELECT '${env:HOME}'", "a setting or a variable of the environment"),
    "a file": ("SELECT count(*) FROM parquet.`{file}`", "a check does not read files"),
    "a file in lower case": ("select count(*) from staged join `text`.`/etc/passwd`", "a check does not read files"),
    "a file beside it": ("SELECT count(*) FROM parquet.data", "a check does not read files"),
    "the name of a file": ("SELECT input_file_name() FROM staged", "the function input_file_name"),
    "an xml that names a file": (
        "SELECT xpath_string('<!DOCTYPE a SYSTEM \"/etc/passwd\"><a/>', 'a')",
        "the function xpath_string",
    ),
    "a folder": ("INSERT OVERWRITE DIRECTORY '{out}' USING json SELECT 1", "one query"),
    "a folder behind FROM": ("FROM staged INSERT OVERWRITE DIRECTORY '{out}' USING json SELECT *", "INSERT is not allowed"),
    "a folder behind WITH": ("WITH a AS (SELECT 1) INSERT OVERWRITE DIRECTORY '{out}' USING json SELECT * FROM a", "INSERT is not"),
    "a table": ("CREATE TABLE made USING parquet LOCATION '{out}' AS SELECT 1", "one query"),
    "a setting that is set": ("SET spark.sql.ansi.enabled = false", "one query"),
    "a jar": ("ADD JAR '{out}'", "one query"),
    "a script": ("BEGIN SELECT 1; END", "one query"),
    "a text that is run": ("EXECUTE IMMEDIATE 'SELECT 1'", "one query"),
    "a program": ("SELECT TRANSFORM(id) USING 'cat' FROM staged", "runs a program"),
    "several statements": ("SELECT true; DROP VIEW staged", "several statements"),
    "who it is": ("SELECT current_user", "CURRENT_USER is not allowed"),
    "a text that does not end": ("SELECT 'a", "is not read"),
}


@pytest.mark.parametrize("what", HARMFUL)
def test_what_does_anything_but_look_at_rows_is_refused_before_spark_starts(world, what):
    sql, said = HARMFUL[what]
    out, file = world.root / "out", world.input / "0.parquet"
    with pytest.raises(InvalidInputError) as refused:
        look(world, sql.replace("{out}", str(out)).replace("{file}", str(file)), session=no_spark)
    assert said in str(refused.value)
    assert not out.exists()


def test_what_the_words_do_not_show_spark_itself_refuses(spark, world, tmp_path):
    (tmp_path / "data").mkdir()
    for sql in ("SELECT count(*) FROM `org.apache.spark.sql.parquet`.`data`", "SELECT count(*) FROM staged, text.`data`"):
        with pytest.raises(InvalidInputError, match="TABLE_OR_VIEW_NOT_FOUND"):
            look(world, sql, session=lambda: spark)
    assert spark.conf.get("spark.sql.runSQLOnFiles") == "true"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) = 400 AND count(DISTINCT kind) = 3 FROM staged AS s(id, value, kind, at)",
        "SELECT count(*) FILTER (WHERE kind IN ('kind-0', 'it''s (not) a call')) > 0 FROM `staged` /* a check */",
        "WITH t (a, b) AS (SELECT id, lag(id) OVER (ORDER BY id) FROM staged) SELECT max(a - b) = 1 FROM t;",
        "SELECT cast(sum(value) AS decimal(20, 2)) > 0, to_json(named_struct('a', 1)), transform(array(1), x -> x + 1) FROM staged",
        "FROM staged SELECT max(at) <= current_timestamp() AND trim(BOTH 'x' FROM 'xax') = 'a' AND extract(YEAR FROM min(at)) > 1",
        "SELECT (SELECT count(*) FROM range(400)) = count(*) FROM staged WHERE id >= 0 AND NOT kind LIKE '%$%' ESCAPE '/'",
    ],
)
def test_a_query_over_the_rows_is_run_as_it_is(spark, world, sql):
    (outcome,) = look(world, sql, session=lambda: spark)
    assert outcome.passed


def test_every_function_that_is_allowed_is_one_of_spark(spark):
    there = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert there >= FUNCTIONS
    not_pure = {
        name
        for name in FUNCTIONS
        if any(word in name for word in ("reflect", "java", "file", "user", "xpath", "rand", "uuid", "avro", "protobuf", "xml"))
    }
    assert not_pure == set()


def test_a_value_that_a_check_shows_is_shown_as_it_is_read(spark, world):
    with pytest.raises(CheckFailedError) as failed:
        look(
            world,
            "SELECT false, concat('a', chr(27), chr(10), decode(X'E280AE', 'UTF-8')) AS x FROM range(1)",
            session=lambda: spark,
        )
    assert "x = a\\x1b \\u202e" in str(failed.value)


# -- parameters -------------------------------------------------------------------------------------------------------


def test_values_are_bound_and_are_no_part_of_the_text(spark, world):
    checks = [
        ("SELECT count(*) = 134 FROM staged WHERE kind = :kind", {"kind": "kind-0"}),
        ["SELECT count(*) = 0 FROM staged WHERE kind = :kind", {"kind": "x' OR reflect('a', 'b') IS NULL OR '' = '"}],
        {"small": ("SELECT max(value) < :most AND min(at) < :day FROM staged", {"most": Decimal(100), "day": dt.date(2026, 1, 1)})},
        ("SELECT count(*) = :n AND :flag FROM staged", {"n": 400, "flag": True}),
    ]
    outcomes = look(world, *checks, session=lambda: spark)
    assert [outcome.passed for outcome in outcomes] == [True] * 4
    with pytest.raises(CheckFailedError, match=r"WHERE kind = :kind with kind = 'kind-9'\)?, FAILED"):
        look(world, ("SELECT count(*) > 0 FROM staged WHERE kind = :kind", {"kind": "kind-9"}), session=lambda: spark)
    with pytest.raises(InvalidInputError, match="UNBOUND_SQL_PARAMETER"):
        look(world, ("SELECT count(*) > 0 FROM staged WHERE kind = :kind", {"kid": "kind-9"}), session=lambda: spark)


def test_values_are_bound_over_connect_and_what_harms_is_refused_there_too(world, tmp_path):
    world.stage()
    with (
        connect_server(tmp_path / "server", Path(sys.executable)) as url,
        spark_session(SparkTarget("", remote=url), "checks") as remote,
    ):
        check = ("SELECT count(*) = 134 FROM staged WHERE kind = :kind", {"kind": "kind-0"})
        (outcome,) = look(world, check, session=lambda: remote)
        assert outcome.passed
        with pytest.raises(InvalidInputError, match="TABLE_OR_VIEW_NOT_FOUND"):
            look(world, "SELECT count(*) FROM `org.apache.spark.sql.parquet`.`data`", session=lambda: remote)
    for sql, said in HARMFUL.values():
        with pytest.raises(InvalidInputError, match=said.replace("$", r"\$").split("…")[0]):
            require_harmless(sql)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (("SELECT true", {"a b": 1}), "has the parameter 'a b'"),
        (("SELECT true", {1: 1}), "has the parameter 1"),
        (("SELECT true", {"a": [1]}), "has a list for the parameter 'a'"),
        (("shop.checks:few", {"a": 1}), "they belong to SQL"),
        (("", {"a": 1}), "is an empty text"),
    ],
)
def test_parameters_that_cannot_be_bound_are_refused_when_the_dag_is_parsed(check, said):
    with pytest.raises(InvalidInputError, match=said):
        parse_checks([check])
    with pytest.raises(InvalidInputError, match=said):
        parse_checks([{"named": check}])
