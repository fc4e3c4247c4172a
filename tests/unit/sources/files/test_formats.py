"""Every format gives the same rows, from a folder and from S3, plain and compressed; and a bad file is named."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
import zstandard
from pyarrow import csv, orc, parquet
from support.reading import read_all

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources import Files

ROWS = [
    {"id": n, "name": f'name, "{n}" ü', "value": None if n % 5 == 0 else n / 8, "at": datetime(2026, 1, 1, n % 24, tzinfo=UTC)}
    for n in range(300)
]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)


def encoded(format_name):
    sink = io.BytesIO()
    if format_name == "parquet":
        parquet.write_table(TABLE, sink, row_group_size=100)
    elif format_name == "orc":
        orc.write_table(TABLE, sink)
    elif format_name == "csv":
        csv.write_csv(TABLE, sink)
    else:
        lines = [json.dumps(row | {"at": row["at"].isoformat()}) for row in ROWS]
        sink.write("\n".join(lines).encode())
    return sink.getvalue()


@pytest.mark.parametrize("format_name", ["parquet", "orc", "csv", "jsonl"])
@pytest.mark.parametrize("place", ["local", "s3"])
def test_every_format_gives_the_same_rows(request, tmp_path, format_name, place):
    if place == "local":
        (tmp_path / f"1.{format_name}").write_bytes(encoded(format_name))
        uri, options = str(tmp_path), {}
    else:
        bucket = request.getfixturevalue("s3_bucket")
        bucket.put(f"in/1.{format_name}", encoded(format_name))
        uri, options = bucket.uri("in/"), bucket.options
    assert read_all(Files(uri, format=format_name), options, SCHEMA) == ROWS


@pytest.mark.parametrize("format_name", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("gz", gzip.compress), ("bz2", bz2.compress), ("zst", lambda d: zstandard.ZstdCompressor().compress(d))],
)
def test_text_is_decompressed_by_its_suffix(tmp_path, s3_bucket, format_name, suffix, compress):
    data = compress(encoded(format_name))
    (tmp_path / f"1.{format_name}.{suffix}").write_bytes(data)
    s3_bucket.put(f"1.{format_name}.{suffix}", data)
    assert read_all(Files(f"{tmp_path}/*", format=format_name), {}, SCHEMA) == ROWS
    assert read_all(Files(s3_bucket.uri("*"), format=format_name), s3_bucket.options, SCHEMA) == ROWS


@pytest.mark.parametrize("format_name", ["csv", "jsonl"])
def test_text_without_a_table_to_follow_gets_the_types_that_it_looks_like(tmp_path, format_name):
    (tmp_path / "1").write_bytes(encoded(format_name))
    rows = read_all(Files(str(tmp_path / "1"), format=format_name))
    assert [(row["id"], row["value"]) for row in rows] == [(row["id"], row["value"]) for row in ROWS]


def test_text_follows_the_types_of_the_table(tmp_path):
    (tmp_path / "1.csv").write_text("code,amount\n007,1.10\n")
    (tmp_path / "1.jsonl").write_text('{"code": "007", "amount": 2}\n')
    expected = pa.schema([("code", pa.string()), ("amount", pa.float64())])
    assert read_all(Files(f"{tmp_path}/*.csv", format="csv"), {}, expected) == [{"code": "007", "amount": 1.1}]
    assert read_all(Files(f"{tmp_path}/*.jsonl", format="jsonl"), {}, expected) == [{"code": "007", "amount": 2.0}]


def test_a_line_break_inside_a_quoted_value_is_part_of_the_value(tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_ckpt_provider.sources.files.formats._BLOCK_BYTES", 1000)
    rows = [{"id": n, "text": "line\n" * (n % 40)} for n in range(500)]
    csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "1.csv")
    assert read_all(Files(str(tmp_path / "1.csv"), format="csv", max_split_bytes=4)) == rows


def test_an_empty_value_is_null_among_numbers_and_the_empty_string_among_strings(tmp_path):
    (tmp_path / "1.csv").write_text("n,text\n,\n1,NA\n")
    expected = pa.schema([("n", pa.int64()), ("text", pa.string())])
    assert read_all(Files(str(tmp_path), format="csv"), {}, expected) == [{"n": None, "text": ""}, {"n": 1, "text": "NA"}]


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n\n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("format_name", ["csv", "jsonl"])
def test_a_file_with_nothing_in_it_has_no_rows(tmp_path, format_name, suffix, content):
    (tmp_path / f"1.{format_name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    assert read_all(Files(str(tmp_path), format=format_name), {}, SCHEMA) == []


def test_a_csv_of_nothing_but_its_header_has_no_rows(tmp_path):
    (tmp_path / "1.csv").write_text("id,name\n")
    assert read_all(Files(str(tmp_path), format="csv"), {}, SCHEMA) == []


@pytest.mark.parametrize("max_split_bytes", [1, 1 << 20])
def test_a_parquet_file_without_rows_has_no_rows(tmp_path, max_split_bytes):
    parquet.write_table(TABLE.slice(0, 0), tmp_path / "1.parquet")
    assert read_all(Files(str(tmp_path), max_split_bytes=max_split_bytes)) == []


@pytest.mark.parametrize(
    ("format_name", "content"),
    [
        ("parquet", b"PAR1 is not enough"),
        ("parquet", b""),
        ("orc", b"ORC is not enough"),
        ("csv", b"id,name\n1,a\n2,b,c\n"),
        ("csv", b"id,name\n1,a\nnot-a-number,b\n"),
        ("jsonl", b'{"id": 1}\n{"id": \n'),
        ("jsonl", b'{"id": "not-a-number"}\n'),
    ],
)
@pytest.mark.parametrize("place", ["local", "s3"])
def test_a_file_that_cannot_be_read_is_named(request, tmp_path, place, format_name, content):
    if place == "local":
        (tmp_path / "bad-file").write_bytes(content)
        uri, options = str(tmp_path / "bad-file"), {}
    else:
        bucket = request.getfixturevalue("s3_bucket")
        bucket.put("in/bad-file", content)
        uri, options = bucket.uri("in/bad-file"), bucket.options
    with pytest.raises(InvalidInputError, match=f"{uri} cannot be read as {format_name}"):
        read_all(Files(uri, format=format_name), options, SCHEMA)


@pytest.mark.parametrize("format_name", ["xml", "json", "", "PARQUET"])
def test_an_unknown_format_is_refused_with_the_ones_there_are(format_name):
    with pytest.raises(InvalidInputError, match="csv, jsonl, orc, parquet"):
        Files("/data", format=format_name)
