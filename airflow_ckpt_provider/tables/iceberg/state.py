"""An Iceberg table as it was loaded at one moment: its history, the staged files in its storage, and what a commit makes of it."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Member
from airflow_ckpt_provider.exceptions import RowCountError, TableMovedError
from airflow_ckpt_provider.tables.fit import Columns
from airflow_ckpt_provider.tables.iceberg.commit import NewSnapshot
from airflow_ckpt_provider.tables.iceberg.conflict_checks import require_unread
from airflow_ckpt_provider.tables.iceberg.evolution import pinned_schema, require_evolved_safely, require_specs
from airflow_ckpt_provider.tables.iceberg.fit import write_schema
from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest
from airflow_ckpt_provider.tables.iceberg.modes import MODES
from airflow_ckpt_provider.tables.iceberg.modes.base import not_replaceable
from airflow_ckpt_provider.tables.iceberg.search import find, head_of, require_unknown
from airflow_ckpt_provider.tables.iceberg.storage import IcebergStorage
from airflow_ckpt_provider.tables.iceberg.surviving_files import has_surviving_files
from airflow_ckpt_provider.tables.iceberg.watermarks import watermark_of
from airflow_ckpt_provider.tables.mode import mode_of
from airflow_ckpt_provider.tables.summary import identity_of, key_trace
from airflow_ckpt_provider.tables.watermarks import require_watermarks, watermarks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, JsonObject, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.iceberg.commit import SnapshotChange
    from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode
    from airflow_ckpt_provider.tables.state import GroupCommit, Landed
    from airflow_ckpt_provider.tables.summary import Trace


class IcebergState:
    """A table at one moment; see ``TableState``.

    :param catalog: that holds the table.
    :param table: as it was loaded.
    :param branch: that commits land on.
    :param binding: which table it must be, and as it was bound; None if whichever has the name.
    """

    #: Its UUID is what was bound.
    is_recognised = True

    def __init__(self, catalog: Catalog, table: Table, branch: str, binding: TableBinding | None = None) -> None:
        self.catalog = catalog
        self.table = table
        self.branch = branch
        self._binding = binding

    @cached_property
    def columns(self) -> Columns:
        """The schema that was bound; see ``TableState.columns``."""
        import pyarrow as pa

        table = self.table
        schema = table.schema() if self._binding is None else pinned_schema(table, self._binding)
        want = write_schema(schema)
        named = pa.schema([w.with_name(o.name) for w, o in zip(want, schema.fields, strict=True)])
        return Columns(".".join(table.name()), want, named)

    @property
    def storage(self) -> IcebergStorage:
        """The staged files beside the table; see ``TableState.storage``."""
        return IcebergStorage(self.table)

    def mode(self, header: Header) -> IcebergMode:
        """The mode of a write, on this table; see ``TableState.mode``."""
        return mode_of(MODES, header.mode, header.parameters)(self.table, header.parameters)

    def watermark(self, consumer: str) -> JsonObject | None:
        """How far a task has read its source; see ``TableState.watermark``."""
        return watermark_of(self.table.metadata, consumer, self.branch)

    @property
    def horizon(self) -> int:
        """Its last sequence number."""
        return self.table.metadata.last_sequence_number  # type: ignore[union-attr]  # version 1 is refused on loading

    def find(self, group: Group, headers: Sequence[Header] = ()) -> Landed | None:
        """Look for the commit of ``group``; see ``TableState.find``."""
        undone = [Member(key=header.key, generation=header.undoes) for header in headers if header.undoes is not None]
        return find(self.table, self.branch, group, identity_of(headers) if headers else None, undone)

    def require_unknown(self, headers: Sequence[Header], known: AbstractSet[Trace], *, since_bound: bool = False) -> None:
        """Refuse keys that a checkpoint which is not known has committed; see ``TableState.require_unknown``."""
        # All of the history is in the metadata, so that there is nothing to save.
        del since_bound
        require_unknown(self.table, self.branch, {key_trace(header.key): header.key for header in headers}, known)

    def shows(self, landed: SealedWrite) -> bool:
        """Whether any file of a write is in the table; see ``TableState.shows``."""
        member = Member(key=landed.header.key, generation=landed.header.generation)
        return has_surviving_files(self.table, head_of(self.table.metadata, self.branch), [member])

    def require_unchanged(self, commit: GroupCommit) -> None:
        """Refuse a schema, specs or a watermark that the writes were not made for; see ``TableState.require_unchanged``."""
        table = self.table
        with _replacing(commit):
            require_specs(table, _manifests(commit))
            require_evolved_safely(table, commit.first.table)
            require_watermarks(self.watermark, commit.writes)

    def prepare(self, commit: GroupCommit) -> bool:
        """Nothing: all that a commit needs is in its snapshot."""
        del commit
        return False

    def change(self, commit: GroupCommit) -> SnapshotChange:
        """The snapshot that the commit makes on this base."""
        manifests = _manifests(commit)
        rows, staged = sum(write.seal.rows for write in commit.writes), sum(manifest.rows for manifest in manifests)
        if rows != staged:
            raise RowCountError(
                f"{rows} rows are sealed for {commit.first.table.identifier}, but the staged manifests hold {staged} (I2)."
            )
        with _replacing(commit):
            mode = self.mode(commit.first)
            removals = mode.removals(commit.writes)
            require_unread(self.table, commit.writes, removals)
            new = NewSnapshot(
                self.table,
                commit.group,
                self.branch,
                commit.identity,
                manifests,
                removals,
                watermarks_of(commit.writes),
                commit.computed_by,
                mode.restored(commit.writes),
            )
            return new.written(self.catalog)


def _manifests(commit: GroupCommit) -> list[StagedManifest]:
    return [StagedManifest.from_json(manifest) for write in commit.writes for manifest in write.seal.manifests]


@contextlib.contextmanager
def _replacing(commit: GroupCommit) -> Iterator[None]:
    """Say of a table that was changed that a generation cannot be replaced file by file, if one was to be."""
    try:
        yield
    except TableMovedError as error:
        replaced = [
            write.replaced.header
            for write in commit.writes
            if write.header.undoes is None and write.replaced and write.replaced_files
        ]
        if not replaced:
            raise
        raise not_replaceable(replaced[0], error) from error
