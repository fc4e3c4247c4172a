"""Whatever the table, the keys, the rows and the policies: an upsert does to a table what it does to a dictionary of lists."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import tempfile
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
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
from support.replacing import delete_positions, new_table
from support.upserting import add_rows, live_files, rows_of, upsert

from airflow_ckpt_provider.exceptions import DuplicateKeyError
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files
from airflow_ckpt_provider.tables.iceberg.fit import write_schema
from airflow_ckpt_provider.tables.iceberg.upsert import matched_rows, merge
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import GroupSize
from airflow_ckpt_provider.tables.keys import key_batches

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAN = math.nan

#: Values of each type, few enough that source and table meet, with the ones that are easily got wrong.
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "int": (IntegerType(), [-(2**31), -1, 0, 1, 2, 2**31 - 1]),
    "long": (LongType(), [-(2**63), -1, 0, 1, 7, 2**63 - 1]),
    "string": (StringType(), ["", "a", "A", "ü", "b" * 40, "b" * 40 + "c", "\U0010ffff" * 20]),
    "bool": (BooleanType(), [True, False]),
    "float": (FloatType(), [NAN, -0.0, 0.0, 0.5, math.inf, -math.inf]),
    "double": (DoubleType(), [NAN, -0.0, 0.0, 0.1, -1e300, math.inf]),
    "decimal9": (DecimalType(9, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("1.25"), Decimal("9999999.99")]),
    "decimal38": (DecimalType(38, 10), [Decimal("-1.25"), Decimal(0), Decimal("12345678901234567890.0123456789")]),
    "date": (DateType(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 1)]),
    "time": (TimeType(), [dt.time(0, 0), dt.time(12, 30, 15, 123456)]),
    "timestamp": (TimestampType(), [dt.datetime(1969, 12, 31, 23), dt.datetime(2026, 1, 1, 12, 30, 15, 123456)]),  # noqa: DTZ001
    "timestamptz": (TimestamptzType(), [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)]),
    "uuid": (UUIDType(), [uuid.UUID(int=0), uuid.UUID(int=1), uuid.UUID(int=2**128 - 1)]),
    "fixed": (FixedType(3), [b"abc", b"\x00\x00\x00", b"\xff\xff\xff"]),
    "binary": (BinaryType(), [b"", b"\x00", b"\xff" * 30, b"abc"]),
}

NESTED = {
    "struct": (
        StructType(NestedField(101, "x", DoubleType()), NestedField(102, "y", StringType())),
        [{"x": NAN, "y": "a"}, {"x": None, "y": "a"}, {"x": 1.0, "y": None}],
    ),
    "list": (ListType(103, DoubleType(), element_required=False), [[], [NAN], [None], [1.0, 2.0], [1.0]]),
    "lists": (
        ListType(104, ListType(105, LongType(), element_required=False), element_required=False),
        [[], [None], [[]], [[1], []], [[], [1]]],
    ),
    "map": (
        MapType(106, StringType(), 107, LongType(), value_required=False),
        [[], [("a", 1)], [("a", None)], [("a", 1), ("b", 2)]],
    ),
}


class Case(NamedTuple):
    """One upsert: a table of files with deleted positions, a source of splits, and what to do."""

    columns: list[str]
    keys: list[str]
    partition: str | None
    target: list[list[dict[str, Any]]]
    deleted: list[set[int]]
    source: list[list[dict[str, Any]]]
    update: bool
    insert: bool
    buckets: int


def plain(value: Any) -> Any:
    """A value that is equal to another if an upsert takes them for the same."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, plain(item)) for name, item in value.items()))
    return value


def key_of(row: dict[str, Any], keys: list[str]) -> Any:
    return tuple(plain(row[key]) for key in keys)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = sorted(VALUES)
    keys = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    others = [name for name in [*names, *NESTED] if name not in keys]
    values = draw(st.lists(st.sampled_from(others), min_size=1, max_size=3, unique=True))
    columns = draw(st.permutations([*keys, *values]))
    known = VALUES | NESTED
    row = st.fixed_dictionaries({name: st.none() | st.sampled_from(known[name][1]) for name in columns})
    target = draw(st.lists(st.lists(row, min_size=1, max_size=8), max_size=3))
    deleted = [draw(st.sets(st.integers(0, len(rows) - 1), max_size=3)) for rows in target]
    # Rows that are in the table already: some of them do not change.
    there = [row for rows in target for row in rows]
    source_row = row | st.sampled_from(there) if there else row
    rows = draw(st.lists(source_row, max_size=12, unique_by=lambda row: key_of(row, keys)))
    cuts = draw(st.integers(1, 3))
    partitions = [f"{kind}:{name}" for name in columns for kind in _TRANSFORMS if _can(kind, name)]
    return Case(
        columns=columns,
        keys=keys,
        partition=draw(st.none() | st.sampled_from(partitions)) if partitions else None,
        target=target,
        deleted=deleted,
        source=[rows[start::cuts] for start in range(cuts)],
        update=draw(st.booleans()),
        insert=draw(st.booleans()),
        buckets=draw(st.sampled_from([1, 1, 3])),
    )


_TRANSFORMS = {
    "identity": (IdentityTransform(), {"int", "long", "string", "date", "decimal9", "timestamp", "bool"}),
    "bucket": (BucketTransform(3), {"int", "long", "string", "decimal38", "uuid", "binary"}),
    "truncate": (TruncateTransform(2), {"string", "int"}),
    "day": (DayTransform(), {"date", "timestamp", "timestamptz"}),
}


def _can(kind: str, name: str) -> bool:
    return name in _TRANSFORMS[kind][1]


def schema_of(columns: list[str]) -> Schema:
    known = VALUES | NESTED
    return Schema(*(NestedField(number, name, known[name][0]) for number, name in enumerate(columns, 1)))


def spec_of(case: Case) -> PartitionSpec:
    if case.partition is None:
        return PartitionSpec()
    kind, name = case.partition.split(":")
    return PartitionSpec(PartitionField(case.columns.index(name) + 1, 1000, _TRANSFORMS[kind][0], "part"))


def arrow_rows(schema: Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as a source reads them."""
    columns = []
    for field in write_schema(schema):
        values = [row[field.name] for row in rows]
        if isinstance(field.type, pa.BaseExtensionType):
            storage = pa.array([None if value is None else value.bytes for value in values], field.type.storage_type)
            columns.append(pa.ExtensionArray.from_storage(field.type, storage))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in schema.fields])


def build(root: Path, case: Case) -> tuple[Table, list[dict[str, Any]]]:
    """The table of a case, and its live rows."""
    schema = schema_of(case.columns)
    table = new_table(root, schema, spec_of(case))
    add_rows(table, *([arrow_rows(schema, rows)] for rows in case.target))
    scan = IcebergScan(table)
    live = []
    for number, file in enumerate(scanned.file for scanned in list(scan_files(table, _head(table)))):
        rows = rows_of(scan, file)
        deleted = [position for position in case.deleted[number % len(case.deleted)] if position < len(rows)]
        if deleted:
            delete_positions(table, file.path, deleted)
        live += [row for position, row in enumerate(rows) if position not in deleted]
    return table, live


def _head(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    return snapshot.snapshot_id if snapshot else None


def expected(case: Case, live: list[dict[str, Any]]) -> tuple[list[Any], dict[str, int]]:
    """Rows afterwards and counts, by a dictionary."""
    source = {key_of(row, case.keys): row for rows in case.source for row in rows}
    after, counts = [], Counter()
    for row in live:
        new = source.get(key_of(row, case.keys))
        if new is None:
            after.append(row)
        elif not case.update:
            counts["ignored"] += 1
            after.append(row)
        else:
            counts["unchanged" if plain(row) == plain(new) else "updated"] += 1
            after.append(new)
    there = {key_of(row, case.keys) for row in live}
    if case.insert:
        new = [row for key, row in source.items() if key not in there]
        counts["inserted"] += len(new)
        after += new
    return sorted((plain(row) for row in after), key=repr), {name: count for name, count in counts.items() if count}


@pytest.mark.timeout(400)
@settings(max_examples=int(os.environ.get("UPSERT_EXAMPLES", "60")), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), tight=st.booleans(), size=st.sampled_from([GroupSize(), GroupSize(1, 1)]))
def test_an_upsert_does_what_a_dictionary_does(tmp_path_factory, case, tight, size):
    with contextlib.ExitStack() as stack:
        if tight:
            # As with millions of rows: keys batch by batch, rows spilled, and few at a time.
            for module, name, value in (
                (key_batches, "PORTION_BYTES", 64),
                (matched_rows, "HELD_BYTES", 16),
                (merge, "_BYTES", 64),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp())))
        table, live = build(root, case)
        schema = table.schema()
        splits = [[arrow_rows(schema, rows)] for rows in case.source]
        before = {file.path: rows_of(IcebergScan(table), file) for file in (scanned.file for scanned in live_files(table))}
        done = upsert(table, case.keys, splits, update=case.update, insert=case.insert, buckets=case.buckets, size=size)
        rows, counts = expected(case, live)
        assert sorted((plain(row) for row in done.rows), key=repr) == rows
        assert done.counts == counts
        # A file is rewritten if a row of it changes, and only then.
        source = {key_of(row, case.keys): plain(row) for rows in case.source for row in rows}
        changed = {
            path
            for path, rows in before.items()
            if any(plain(row) != source.get(key_of(row, case.keys), plain(row)) for row in rows)
        }
        assert done.replaced == (changed if case.update else set())


@pytest.mark.timeout(400)
@settings(max_examples=int(os.environ.get("UPSERT_EXAMPLES", "40")), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), data=st.data())
def test_a_key_that_is_there_twice_is_refused(tmp_path_factory, case, data):
    rows = [row for split in case.source for row in split]
    if not rows:
        return
    again = data.draw(st.sampled_from(rows))
    value = next(name for name in case.columns if name not in case.keys)
    again = again | {value: None}
    splits = [*case.source, [again]] if data.draw(st.booleans()) else [[*rows, again]]
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as root:
        table = new_table(Path(root), schema_of(case.columns), spec_of(case))
        with pytest.raises(DuplicateKeyError, match="2 rows"):
            upsert(table, case.keys, [[arrow_rows(table.schema(), split)] for split in splits], buckets=case.buckets)
