"""What the modes of an Iceberg table have in common.

Decision: what a commit removes is found on the very base that it is swapped against, never remembered from the stage. So after
an ``overwrite`` the table holds exactly what was staged, whatever others committed meanwhile: it is as if they had come first.
Where staged files were computed from files of the table (boundary files of a filter, files of an upsert), those are compared
with what the base holds, file by file with their deletes; if they differ, nothing is committed and the stage looks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import SchemaMismatchError, TableMovedError
from airflow_ckpt_provider.tables.iceberg.conflict_checks import require_same_schema, require_there, require_whole
from airflow_ckpt_provider.tables.iceberg.evolution import pinned_schema
from airflow_ckpt_provider.tables.iceberg.modes.splits import head_id
from airflow_ckpt_provider.tables.iceberg.removals import RemoveFiles
from airflow_ckpt_provider.tables.iceberg.undo import Restored
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter, WriterFacts
from airflow_ckpt_provider.tables.mode import Mode
from airflow_ckpt_provider.tables.watermarks import moves_watermark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.iceberg.removals import Removal
    from airflow_ckpt_provider.tables.writer import Writer


class IcebergMode(Mode):
    """A mode, on a table as it was loaded; by itself it adds rows.

    :param table: as it was loaded, or as it is to be created.
    """

    #: Whether the commit removes rows even if it adds none.
    removes_rows: ClassVar[bool] = False

    #: Whether a row that stands in the table already is found by its key, and not added once more.
    matches_rows: ClassVar[bool] = False

    def __init__(self, table: Table, parameters: JsonObject) -> None:
        super().__init__(parameters)
        self.table = table

    def placing(self, header: Header) -> dict[str, str] | None:
        """Source columns of the partition spec that the header pinned, and of the sort order."""
        table, binding = self.table, header.table
        schema, spec = pinned_schema(table, binding), table.specs().get(binding.spec_id)
        sorting = {term.source_id: "sort column" for term in table.sort_order().fields}
        terms = sorting | {term.source_id: "partition column" for term in (spec.fields if spec is not None else ())}
        names = {field_id: schema.find_column_name(field_id) for field_id in terms}
        return {name: terms[field_id] for field_id, name in names.items() if name is not None}

    def writer(self, write: StagedWrite) -> Writer:
        """What writes rows with the schema and spec that the header pinned."""
        return IcebergWriter(self.facts(write))

    def facts(self, write: StagedWrite) -> WriterFacts:
        """What the header has pinned for whatever writes.

        :raises SchemaMismatchError: if the table does not have the partition spec any more.
        """
        header, table = write.header, self.table
        metadata, name = table.metadata, header.table.identifier
        spec = metadata.specs().get(header.table.spec_id)
        if spec is None:
            raise SchemaMismatchError(
                f"The partition spec {header.table.spec_id} that this checkpoint was begun with was removed from the metadata of "
                f"{name} since. Redo the write: {how_to_restart(header)}."
            )
        properties = {key: str(value) for key, value in table.io.properties.items() if value is not None}
        schema = pinned_schema(table, header.table)
        return WriterFacts(name, metadata.location, schema, spec, dict(metadata.properties), properties)

    def same_schema_head(self, header: Header) -> int | None:
        """Id of the snapshot that the write's branch shows; None if it shows none.

        :raises SchemaMismatchError: if the table has another schema than the write was planned with.
        """
        require_same_schema(self.table, header)
        return head_id(self.table, header.table.branch)

    def require_replaceable(self, landed: SealedWrite) -> None:
        """Check that a replacement of what has landed could be committed now; see ``Mode.require_replaceable``."""
        files = frozenset(landed.added_files)
        try:
            require_there(self.table, landed.header, files)
            if files and not self.matches_rows:
                require_whole(self.table, landed.header, files)
        except TableMovedError as error:
            raise not_replaceable(landed.header, error) from error

    def removals(self, writes: Sequence[SealedWrite]) -> list[Removal]:
        """What the commit removes from this base: of a generation that is replaced, its files.

        :raises TableMovedError: if staged files were computed from what the table does not hold any more.
        """
        replaced = frozenset(path for write in writes for path in write.replaced_files)
        if not replaced:
            return []
        if not self.matches_rows:
            require_whole(self.table, writes[0].header, replaced)
        return [RemoveFiles(replaced)]

    def restored(self, writes: Sequence[SealedWrite]) -> Restored:
        """Files of earlier snapshots that the commit puts back: none."""
        del writes
        return Restored()

    @classmethod
    def changes_nothing(cls, writes: Sequence[SealedWrite]) -> bool:
        """Whether these add and remove nothing. A table is created even if it has no rows, and a watermark is carried on."""
        if writes[0].header.table.creation is not None or cls.removes_rows or moves_watermark(writes):
            return False
        return not any(
            write.seal.rows or write.replaced_files or any(record.replaces for record in write.staged) for write in writes
        )


def replaces_all(writes: Sequence[SealedWrite]) -> bool:
    """Whether all of these take the place of committed generations: what those removed, and others added since, is not theirs."""
    return all(write.header.replaces is not None for write in writes)


def not_replaceable(landed: Header, error: TableMovedError) -> TableMovedError:
    """The error for a committed generation that cannot be replaced."""
    return TableMovedError(
        f"The key {landed.key!r} is to replace the files that its generation {landed.generation} committed to "
        f"{landed.table.identifier}, and that cannot be done file by file: {error} If others have taken or changed those files, "
        "another run of the stage does not bring them back: replace the rows under another idempotence key."
    )
