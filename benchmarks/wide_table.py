"""A table of ten mixed columns with a key that no order of the rows helps to find, and the rows of an upsert into it.

The numbers are digests of row numbers, so that every run has the same rows.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from benchmarks.stage import PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "version", IntegerType()),
    NestedField(3, "amount", DecimalType(12, 2)),
    NestedField(4, "price", DoubleType()),
    NestedField(5, "quantity", IntegerType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "at", TimestampType()),
    NestedField(8, "active", BooleanType()),
    NestedField(9, "city", StringType()),
    NestedField(10, "note", StringType()),
)

#: Data files of the table, and files of the source.
FILES, SOURCE_FILES = 16, 8


@dataclass(frozen=True)
class Upsert:
    """A table and the source of an upsert, on disk.

    :param rows: of the table.
    :param changed: source rows with a key of the table, spread over all of its files; as many again are new.
    :param metadata: where the table's metadata is: registered under another name, it is another table of the same files.
    :param source: folder of the source's Parquet files.
    """

    rows: int
    changed: int
    metadata: str
    source: Path
    folder: Path
    files: frozenset[Path]

    def clean(self) -> None:
        """Remove what upserts have added to the folder."""
        for path in _files(self.folder) - self.files:
            path.unlink()

    def tables(self) -> Iterator[pa.Table]:
        """The table's rows, in the pieces they were written in."""
        return _pieces(self.rows)


def upsert(cache: Path, rows: int) -> Upsert:
    """The table of so many rows, and a source of a tenth: half of it changed rows, half new ones. Made once."""
    folder = cache / f"upsert-{rows}"
    changed = rows // 20
    done = folder / "metadata-location"
    if not done.exists():
        print(f"    generating a table of {rows:,} rows ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "source").mkdir(parents=True)
        catalog = load_catalog("people", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
        catalog.create_namespace("bench")
        table = catalog.create_table("bench.people", SCHEMA, properties=PROPERTIES)
        for piece in _pieces(rows):
            table.append(piece)
        step = rows // changed
        numbers = np.concatenate([np.arange(changed) * step, np.arange(rows, rows + changed)])
        # Changed and new rows mixed, as they come from a system that does not sort them.
        numbers = numbers[np.argsort(_digest(numbers, 7))]
        for number, part in enumerate(np.array_split(numbers, SOURCE_FILES)):
            pq.write_table(_rows(part, np.where(part < rows, 1, 2)), folder / "source" / f"{number}.parquet")
        done.write_text(table.metadata_location)
    known = folder / "files"
    if not known.exists():
        known.write_text("\n".join(map(str, _files(folder) | {known})))
    files = frozenset(map(Path, known.read_text().splitlines()))
    return Upsert(rows, changed, done.read_text(), folder / "source", folder, files)


def _files(folder: Path) -> frozenset[Path]:
    return frozenset(path for path in folder.rglob("*") if path.is_file())


def _pieces(rows: int) -> Iterator[pa.Table]:
    for part in np.array_split(np.arange(rows), FILES):
        yield _rows(part, np.zeros(len(part), dtype=np.int64))


def _digest(numbers: np.ndarray, salt: int) -> np.ndarray:
    """Numbers without visible order; different ones stay different."""
    mixed = (numbers.astype(np.uint64) + np.uint64(salt << 40)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(1)).astype(np.int64)


def _rows(numbers: np.ndarray, version: np.ndarray) -> pa.Table:
    # Odd multiples modulo a power of two are all different: keys are unique.
    ids = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) & np.uint64((1 << 62) - 1)
    noise = _digest(numbers + version * 1_000_000_007, 1)
    cities = pa.array([f"city of {number:04d}" for number in range(1000)])
    columns = {
        "id": pa.array(ids.astype(np.int64)),
        "version": pa.array(version.astype(np.int32)),
        "amount": pa.array(noise % 1_000_000_000).cast(pa.decimal128(21, 0)).cast(pa.decimal128(12, 2), safe=False),
        "price": pa.array((noise % 1_000_003) / 7.0),
        "quantity": pa.array((noise % 101).astype(np.int32)),
        "day": pa.array((noise % 3650 + 15_000).astype(np.int32)).cast(pa.date32()),
        "at": pa.array(noise % 100_000_000_000_000 + 1_500_000_000_000_000).cast(pa.timestamp("us")),
        "active": pa.array(noise % 3 == 0),
        "city": cities.take(pa.array(noise % 1000)),
        "note": pc.binary_join_element_wise("order", _text(noise % 10_000_019), "of", _text(noise % 9973), " "),
    }
    return pa.table(columns)


def _text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers).cast(pa.string())
