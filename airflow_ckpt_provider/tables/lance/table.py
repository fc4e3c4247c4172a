"""A Lance dataset as this provider uses it: bound to its columns and to a version, written, committed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.lance.binding import NamedDataset
from airflow_ckpt_provider.tables.lance.evolution import evolve
from airflow_ckpt_provider.tables.lance.looks import looks_again, stale
from airflow_ckpt_provider.tables.lance.modes import MODES
from airflow_ckpt_provider.tables.lance.orphans import delete, of_generation, referenced, written
from airflow_ckpt_provider.tables.lance.state import LanceState
from airflow_ckpt_provider.tables.mode import mode_of
from airflow_ckpt_provider.tables.parameters import CREATE_IF_MISSING, told
from airflow_ckpt_provider.tables.written_files import WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, StagedFile, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite


class DatasetTable(NamedDataset):
    """A dataset that is written to; see ``Table``."""

    def validate(self, mode: str, parameters: JsonObject) -> None:
        """Refuse what cannot work before anything is read or recorded."""
        kind = mode_of(MODES, mode, parameters)
        told(kind.Parameters, parameters, mode)
        if mode != "create":
            dataset = self.load_if_any() if parameters.get(CREATE_IF_MISSING) else self.load()
            kind(self, dataset, parameters).validate()

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Add the columns of ``rows`` that the dataset lacks; see ``Table.evolve``."""
        return evolve(self.load, self.identifier, rows)

    def state(self, binding: TableBinding | None = None) -> LanceState:
        """The dataset as it is now; see ``Table.state``."""
        try:
            return LanceState(self, self.load() if binding is None else self.load_bound(binding), binding)
        except (OSError, ValueError) as error:
            raise stale(self.identifier, error) from error

    def written(self, binding: TableBinding) -> WrittenFiles:
        """List what attempts have written into the dataset's folder; see ``Table.written``."""
        del binding
        return WrittenFiles(written(self.files))

    @looks_again
    def orphans(self, write: StagedWrite, landed: SealedWrite | None, listed: WrittenFiles) -> list[StagedFile]:
        """Files of a generation that nothing refers to or needs; see ``Table.orphans``."""
        header = write.header
        dataset = self.load_bound(header.table)
        mode = mode_of(MODES, header.mode, header.parameters)(self, dataset, header.parameters)
        kept = set() if landed is None else mode.landed(landed)
        left = {file.path: file for file in of_generation(listed, write.names) if file.path not in kept}
        for live in referenced(self.files, dataset) if dataset is not None and left else ():
            left = {path: file for path, file in left.items() if path not in live}
        return list(left.values())

    def remove(self, binding: TableBinding, files: Sequence[StagedFile]) -> None:
        """Delete orphans; see ``Table.remove``."""
        del binding
        delete(self.files, [file.path for file in files])
