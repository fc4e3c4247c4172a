"""Columns and filters: the same selection from every format, also by a column that is not selected."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyarrow import csv, orc, parquet
from support.reading import read_all

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources import Files

TABLE = pa.table({"id": range(100), "kind": [["a", "b", "c"][n % 3] for n in range(100)], "value": [n / 2 for n in range(100)]})
ROWS = TABLE.to_pylist()


@pytest.fixture(params=["parquet", "orc", "csv", "jsonl"])
def files(request, tmp_path):
    path = tmp_path / f"1.{request.param}"
    if request.param == "parquet":
        parquet.write_table(TABLE, path, row_group_size=10)
    elif request.param == "orc":
        orc.write_table(TABLE, path)
    elif request.param == "csv":
        csv.write_csv(TABLE, path)
    else:
        path.write_text("\n".join(map(json.dumps, ROWS)))
    return lambda **chosen: Files(str(path), format=request.param, **chosen)


def test_columns_are_read_in_the_order_asked_for(files):
    assert read_all(files(columns=["value", "id"])) == [{"value": row["value"], "id": row["id"]} for row in ROWS]


@pytest.mark.parametrize(
    ("rows", "keep"),
    [
        ([("id", "<", 10)], lambda r: r["id"] < 10),
        ([("id", ">=", 10), ("kind", "=", "a")], lambda r: r["id"] >= 10 and r["kind"] == "a"),
        (
            [[("id", "<", 10)], [("kind", "=", "b"), ("value", ">", 40)]],
            lambda r: r["id"] < 10 or (r["kind"] == "b" and r["value"] > 40),
        ),
        ([("kind", "in", ["a", "c"])], lambda r: r["kind"] in "ac"),
        ([("kind", "!=", "a")], lambda r: r["kind"] != "a"),
        ([("id", ">", 1000)], lambda _: False),
        ([], lambda _: True),
        (None, lambda _: True),
    ],
)
def test_a_filter_keeps_these_rows(files, rows, keep):
    assert read_all(files(filter=rows)) == [row for row in ROWS if keep(row)]


def test_a_filter_may_use_a_column_that_is_not_selected(files):
    assert read_all(files(columns=["id"], filter=[("kind", "=", "b")])) == [{"id": row["id"]} for row in ROWS if row["kind"] == "b"]


def test_a_column_that_no_file_has_is_named(files):
    with pytest.raises(InvalidInputError, match=r"1\..*nowhere"):
        read_all(files(columns=["id", "nowhere"]))


def test_a_filter_by_a_column_that_no_file_has_is_named(files):
    with pytest.raises(InvalidInputError, match=r"1\..*nowhere"):
        read_all(files(filter=[("nowhere", "=", 1)]))


def test_a_filter_by_a_value_of_another_type_is_an_error_and_not_an_empty_result(files):
    with pytest.raises(InvalidInputError, match=r"1\."):
        read_all(files(filter=[("id", ">", "ten")]))


@pytest.mark.parametrize("columns", [[], "id", ""])
def test_columns_that_are_no_list_of_names_are_refused_when_the_dag_is_parsed(columns):
    with pytest.raises(InvalidInputError, match="columns"):
        Files("/data", columns=columns)


def test_the_schema_is_that_of_the_columns_asked_for(tmp_path):
    parquet.write_table(TABLE, tmp_path / "1.parquet")
    source = Files(str(tmp_path), columns=["value", "id"])
    assert source.schema(source.plan({}), {}) == pa.schema([("value", pa.float64()), ("id", pa.int64())])
    missing = Files(str(tmp_path), columns=["nowhere"])
    with pytest.raises(InvalidInputError, match=r"1\.parquet has no column nowhere; it has id, kind, value"):
        missing.schema(missing.plan({}), {})


def test_formats_without_a_schema_have_none_and_so_has_nothing(tmp_path):
    csv.write_csv(TABLE, tmp_path / "1.csv")
    text = Files(f"{tmp_path}/*.csv", format="csv")
    nothing = Files(f"{tmp_path}/*.parquet")
    assert text.schema(text.plan({}), {}) is None
    assert nothing.schema(nothing.plan({}), {}) is None


def test_everything_that_changes_the_rows_is_described_and_the_split_size_is_not():
    def described(**changes):
        return Files(**({"uri": "/data/*.parquet"} | changes)).describe()

    assert described() == {"files": "file:///data/*.parquet", "format": "parquet"}
    assert described(max_split_bytes=7) == described()
    changed = [{"uri": "/other"}, {"format": "orc"}, {"columns": ["id"]}, {"filter": [("id", "<", 1)]}]
    assert all(described(**change) != described() for change in changed)
    assert json.loads(json.dumps(described(columns=["id"], filter=[("id", "<", 1)])))["filter"] == [["id", "<", 1]]


def test_what_a_user_may_template_is_named_for_airflow():
    assert Files.template_fields == ("uri", "columns", "filter")
    assert all(hasattr(Files("/data"), name) for name in Files.template_fields)
