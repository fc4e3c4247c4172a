"""The times in a table's metadata never go back, whatever the clocks of those who write to it say (I13).

Readers in Java, Go and Rust refuse a table whose log of snapshots or of metadata files is out of order by more than a minute.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import RetryableError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

#: How far back readers let the times in a table's metadata go, in milliseconds.
_TOLERATED_MS = 60_000


def timestamp_after(metadata: TableMetadata) -> int:
    """The time of a new snapshot, in milliseconds since 1970: now, or right after the last time in the metadata."""
    return max(_now_ms(), _last(metadata) + 1)


def require_clock(table: Table) -> None:
    """Refuse a change of the metadata that makes no snapshot, if the library would give it a time far before the last one.

    A REST catalog gives its own.

    :raises RetryableError: naming how far this machine's clock is behind.
    """
    from pyiceberg.catalog.rest import RestCatalog

    behind = _last(table.metadata) - _now_ms()
    if behind > _TOLERATED_MS and not isinstance(table.catalog, RestCatalog):
        raise RetryableError(
            f"The last change of the table {'.'.join(table.name())} has a time {behind // 1000} s ahead of this machine's clock. "
            "To change its columns now would write a time before that, and Java, Go and Rust readers refuse such a table. Nothing "
            "was changed. Correct the clock that is wrong, or change the columns elsewhere; a write of rows lets the table's time "
            "go on by itself."
        )


def _last(metadata: TableMetadata) -> int:
    snapshots = [snapshot.timestamp_ms for snapshot in metadata.snapshots]
    logged = [entry.timestamp_ms for log in (metadata.snapshot_log, metadata.metadata_log) for entry in log]
    return max(metadata.last_updated_ms, *snapshots, *logged, 0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
