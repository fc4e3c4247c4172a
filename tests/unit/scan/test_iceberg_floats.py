"""Floats in filters: -0.0 is 0.0, NaN is NaN, a literal is a value of its column's type, for rows, partitions and bounds alike."""

from __future__ import annotations

import itertools
import math
import operator
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import parser
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, IntegerType, NestedField
from support.replacing import new_table
from support.upserting import add_rows

from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files
from airflow_ckpt_provider.tables.iceberg.manifest_rewrite import classify
from airflow_ckpt_provider.tables.iceberg.row_filter import RowFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyiceberg.table import Table

SCHEMA = Schema(
    NestedField(1, "n", IntegerType()),
    NestedField(2, "f", FloatType()),
    NestedField(3, "d", DoubleType()),
    NestedField(4, "i", IntegerType()),
)
ARROW = pa.schema([("n", pa.int32()), ("f", pa.float32()), ("d", pa.float64()), ("i", pa.int32())])

SPECS = {
    "unpartitioned": UNPARTITIONED_PARTITION_SPEC,
    "float": PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "f_p")),
    "double": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "d_p")),
}

#: Beyond all floats, and beyond all ints.
BEYOND = "4" + "0" * 38

values = st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, -0.1, 2.5, 9.0, 16777216.0, -3e38]))
integers = st.one_of(st.none(), st.sampled_from([-(2**31), -1, 0, 9, 2**31 - 1]))
literals = {
    "f": st.sampled_from(["0.0", "-0.0", "0", "0.1", "-0.1", "2.5", "9", "16777217", BEYOND, f"-{BEYOND}", "'inf'", "'-inf'"]),
    "i": st.sampled_from(["0", "-1", "9", "10", "2147483647", "2147483648", "-2147483649"]),
}
literals["d"] = literals["f"]

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def single(value: float) -> float:
    """The nearest float; infinity beyond all of them."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return value


class Condition(NamedTuple):
    """A filter as text, and whether it is true for a row, by Python's own comparisons."""

    text: str
    holds: Callable[[dict[str, Any]], bool]


def literal_of(name: str, text: str) -> float:
    number = float(text.strip("'"))
    return single(number) if name == "f" else number


@st.composite
def comparisons(draw: Any) -> Condition:
    name = draw(st.sampled_from(["f", "d", "i"]))
    kind = draw(
        st.sampled_from([*COMPARISONS, "in", "not in", "is null", "is not null", *(["is nan", "is not nan"] * (name != "i"))])
    )
    if kind.startswith("is"):
        asked: Callable[[Any], bool] = (
            (lambda v: v is None) if kind.endswith("null") else (lambda v: v is not None and math.isnan(v))
        )
        wanted = "not" not in kind
        unknown = kind == "is not nan"
        return Condition(f"{name} {kind}", lambda row: asked(row[name]) == wanted and not (unknown and row[name] is None))
    if kind.endswith("in"):
        texts = draw(st.lists(literals[name], min_size=1, max_size=3))
        if len({("'" in text, "." in text) for text in texts}) > 1:
            texts = ["'" + text.strip("'") + "'" for text in texts]  # they have to be of one kind
        among = [literal_of(name, text) for text in texts]
        return Condition(
            f"{name} {kind} ({', '.join(texts)})",
            lambda row: row[name] is not None and any(row[name] == one for one in among) == (kind == "in"),
        )
    text = draw(literals[name])
    number = literal_of(name, text)
    return Condition(f"{name} {kind} {text}", lambda row: row[name] is not None and COMPARISONS[kind](row[name], number))


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: Condition(f"({a.text}) and ({b.text})", lambda row: a.holds(row) and b.holds(row)), inner, inner),
        st.builds(lambda a, b: Condition(f"({a.text}) or ({b.text})", lambda row: a.holds(row) or b.holds(row)), inner, inner),
    ),
    max_leaves=3,
)
files = st.lists(st.lists(st.tuples(values, values, integers), min_size=1, max_size=4), min_size=1, max_size=3)


def numbered(given_files: Iterable[list[tuple[Any, Any, Any]]]) -> list[list[dict[str, Any]]]:
    """The rows of each file, with a number of their own."""
    number = itertools.count()
    return [
        [{"n": next(number), "f": None if f is None else single(f), "d": d, "i": i} for f, d, i in rows] for rows in given_files
    ]


def table_with(folder: Path, rows: Iterable[list[dict[str, Any]]], spec: str) -> Table:
    """A table of these rows, each list of them written at once."""
    table = new_table(folder, SCHEMA, SPECS[spec])
    add_rows(table, *([pa.RecordBatch.from_pylist(some, schema=ARROW)] for some in rows))
    return table.refresh()


@pytest.mark.parametrize("spec", sorted(SPECS))
@pytest.mark.parametrize("value", [0.1, -0.1, 1 / 3])
def test_a_file_is_found_by_a_double_that_is_no_float_of_32_bits(tmp_path, value, spec):
    table = table_with(tmp_path, numbered([[(None, value, None)]]), spec)
    for text in (f"d = {value!r}", f"d in ({value!r}, 7.5)", f"d <= {value!r}", f"d >= {value!r}"):
        (scanned,) = scan_files(table, table.current_snapshot().snapshot_id, parser.parse(text))
        assert scanned.file.rows == 1


@settings(max_examples=40, deadline=None)
@given(given_files=files, condition=conditions, spec=st.sampled_from(sorted(SPECS)))
def test_a_filter_keeps_removes_and_reads_the_rows_that_python_says(tmp_path_factory, given_files, condition, spec):
    rows = numbered(given_files)
    table = table_with(tmp_path_factory.mktemp("any"), rows, spec)
    matching = {row["n"] for some in rows for row in some if condition.holds(row)}
    row_filter, head = RowFilter(condition.text), table.current_snapshot().snapshot_id

    everything = pa.Table.from_pylist([row for some in rows for row in some], schema=ARROW)
    assert set(everything.filter(row_filter.others(SCHEMA))["n"].to_pylist()).isdisjoint(matching)
    assert everything.filter(row_filter.others(SCHEMA)).num_rows == everything.num_rows - len(matching)

    found = classify(table, head, row_filter.expression())
    whole, partial = {file.file_path for file in found.whole}, {file.file_path for file in found.partial}
    scan = IcebergScan(table)
    for scanned in scan_files(table, head):
        held = {row["n"] for batch in scan.read(scanned.file) for row in batch.to_pylist()}
        path = scanned.file.path
        assert path not in whole or held <= matching
        assert path in whole | partial or not held & matching

    text = parser.parse(condition.text)
    scan = IcebergScan(table, row_filter=text)
    read = [n for scanned in scan_files(table, head, text) for batch in scan.read(scanned.file) for n in batch["n"].to_pylist()]
    assert sorted(read) == sorted(matching)
