"""Which data files of a table can hold a key of the source: those are matched, and those make a planned upsert stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.iceberg.upsert.bounds import Overlap
from airflow_ckpt_provider.tables.iceberg.upsert.keys import key_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.table import Table

    from airflow_ckpt_provider.scan.iceberg import Scanned
    from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile


def plan_matches(
    table: Table, snapshot_id: int | None, keys: Sequence[str], sources: Iterable[SourceFile], schema_id: int
) -> Iterator[Scanned]:
    """Live data files of a snapshot that can hold a key of the source, judged by their entries in the manifests.

    :param snapshot_id: None for a table without one.
    :param sources: all staged source files.
    :param schema_id: schema that those were written with.
    """
    from airflow_ckpt_provider.scan.iceberg import scan_files

    columns = key_columns(table.schemas()[schema_id], keys, ".".join(table.name()))
    overlap = Overlap(columns, (source.bounds for source in sources))
    specs = table.specs()
    for scanned in scan_files(table, snapshot_id, schema_id=schema_id):
        if overlap(scanned.data_file, specs[scanned.data_file.spec_id]):
            yield scanned
