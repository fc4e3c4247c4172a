"""An Iceberg table as this provider uses it: checked for what it must be, bound by UUID, written, committed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.iceberg.binding import NamedTable
from airflow_ckpt_provider.tables.iceberg.evolution import evolve
from airflow_ckpt_provider.tables.iceberg.history import MAIN
from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest
from airflow_ckpt_provider.tables.iceberg.modes import MODES
from airflow_ckpt_provider.tables.iceberg.orphans import name_of, referenced, written
from airflow_ckpt_provider.tables.iceberg.state import IcebergState
from airflow_ckpt_provider.tables.iceberg.writer import delete_files
from airflow_ckpt_provider.tables.mode import mode_of
from airflow_ckpt_provider.tables.parameters import CREATE_IF_MISSING, told
from airflow_ckpt_provider.tables.written_files import WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, StagedFile, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite


class CatalogTable(NamedTable):
    """A table that is written to; see ``Table``."""

    def validate(self, mode: str, parameters: JsonObject) -> None:
        """Refuse what cannot work before anything is read or recorded."""
        kind = mode_of(MODES, mode, parameters)
        told(kind.Parameters, parameters, mode)
        begins = mode == "create"
        if not begins:
            table = self.load_if_any() if parameters.get(CREATE_IF_MISSING) else self.load()
            begins = table is None
            if table is not None:
                kind(table, parameters).validate()
        if begins and self.branch != MAIN:
            raise InvalidInputError(
                f"A table begins on its branch {MAIN!r}: create {self.identifier} without branch={self.branch!r}, "
                "then write to the branch."
            )

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Let the table's schema grow so that ``rows`` fit; see ``Table.evolve``."""
        return evolve(self.load, self.identifier, rows)

    def state(self, binding: TableBinding | None = None) -> IcebergState:
        """The table as it is now; see ``Table.state``."""
        return IcebergState(self.catalog, self.load() if binding is None else self.load_bound(binding), self.branch, binding)

    def written(self, binding: TableBinding) -> WrittenFiles:
        """List what attempts have written below the table's location; see ``Table.written``."""
        return WrittenFiles(written(self.load_bound(binding)))

    def orphans(self, write: StagedWrite, landed: SealedWrite | None, listed: WrittenFiles) -> list[StagedFile]:
        """Files of a generation that nothing refers to or needs; see ``Table.orphans``."""
        table = self.load_bound(write.header.table)
        kept: set[str] = set()
        if landed is not None:
            kept |= {name_of(file.path) for record in landed.staged for file in record.files}
            kept |= {name_of(StagedManifest.from_json(manifest).path) for manifest in landed.seal.manifests}
        names = write.names
        of_generation = listed.of((names.key_hash, names.generation))
        left = [file for file in of_generation if name_of(file.path) in names and name_of(file.path) not in kept]
        live = referenced(table, {name_of(file.path) for file in left})
        return [file for file in left if name_of(file.path) not in live]

    def remove(self, binding: TableBinding, files: Sequence[StagedFile]) -> None:
        """Delete orphans; see ``Table.remove``."""
        delete_files(self.load_bound(binding).io, [file.path for file in files])
