"""TPC-H ``lineitem`` as one Parquet file, generated once per scale, and the Iceberg schema it fits."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, NestedField, StringType

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

_MONEY = DecimalType(15, 2)
_COLUMNS: dict[str, IcebergType] = {
    "l_orderkey": LongType(),
    "l_partkey": LongType(),
    "l_suppkey": LongType(),
    "l_linenumber": IntegerType(),
    "l_quantity": _MONEY,
    "l_extendedprice": _MONEY,
    "l_discount": _MONEY,
    "l_tax": _MONEY,
    "l_returnflag": StringType(),
    "l_linestatus": StringType(),
    "l_shipdate": DateType(),
    "l_commitdate": DateType(),
    "l_receiptdate": DateType(),
    "l_shipinstruct": StringType(),
    "l_shipmode": StringType(),
    "l_comment": StringType(),
}

SCHEMA = Schema(*(NestedField(n, name, kind, required=True) for n, (name, kind) in enumerate(_COLUMNS.items(), 1)))


def lineitem(cache: Path, scale: float) -> Path:
    """Path of ``lineitem`` at ``scale`` (1 is six million rows), generated if it is not in ``cache``."""
    path = cache / f"lineitem-{scale:g}.parquet"
    if not path.exists():
        print(f"Generating TPC-H lineitem, scale {scale:g}, into {cache} ...", flush=True)
        folder = cache / f"generating-{scale:g}"
        tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        options = ["-s", f"{scale:g}", "--tables", "lineitem", "--output-dir", str(folder), "--overwrite", "--quiet"]
        subprocess.run([str(tool), "parquet", *options], check=True)
        (folder / "lineitem.parquet").rename(path)
        folder.rmdir()
    return path


def rows_of(path: Path) -> int:
    """Rows of a Parquet file, or of all Parquet files in a folder."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    return sum(pq.read_metadata(file).num_rows for file in files)
