"""A folder of rows, as a table format; see ``tables.format``."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import StagedFile, TableBinding
from airflow_ckpt_provider.checkpoint.layout import author_of
from airflow_ckpt_provider.checkpoint.location import whole_uri
from airflow_ckpt_provider.exceptions import InvalidInputError, TableMissingError
from airflow_ckpt_provider.tables.format import MAIN, TableFormat, named_by, storage_options
from airflow_ckpt_provider.tables.mode import mode_of
from airflow_ckpt_provider.tables.parameters import told
from airflow_ckpt_provider.tables.staged.folder import DATA, RowsFolder, TableFacts
from airflow_ckpt_provider.tables.staged.state import MODES, RowsState
from airflow_ckpt_provider.tables.written_files import WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.written_files import Owner

NAME = "staged"


class RowsTable:
    """A folder of rows that is written to; see ``Table``, whose words the methods have.

    :param uri: of the folder.
    :param options: storage options, with credentials.
    """

    format = NAME
    branch = MAIN

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self.identifier = _folder_uri(uri)
        self.folder = RowsFolder(self.identifier, options or {})

    def make(self, schema: pa.Schema) -> TableFacts:
        """Make the folder, unless it is made already; its columns stay what they are."""
        return self.folder.put_table(TableFacts.of(uuid.uuid4().hex, schema))

    def validate(self, mode: str, parameters: JsonObject) -> None:
        """Refuse what cannot work before anything is read or recorded."""
        wanted = mode_of(MODES, mode, parameters)
        told(wanted.Parameters, parameters, mode)
        if not wanted.creates:
            self.binding()

    def binding(self) -> TableBinding:
        """Identity and columns."""
        return self._binding_of(self._facts())

    def creation(self, rows: pa.Schema, parameters: JsonObject) -> TableBinding:
        """Identity and columns of rows for the next task. Other folders are made by ``make``.

        :raises InvalidInputError: for columns that Parquet cannot hold.
        """
        del parameters
        _require_storable(rows)
        facts = TableFacts.of(uuid.uuid4().hex, rows)
        return msgspec.structs.replace(self._binding_of(facts), creation={"columns": facts.columns})

    def require_creation(self, binding: TableBinding, parameters: JsonObject | None) -> None:
        """Nothing: the columns of rows for the next task are those that came out of the transform, whatever they are."""

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Nothing: its columns never change, and rows that do not fit are refused."""
        del rows
        return []

    def state(self, binding: TableBinding | None = None) -> RowsState:
        """The folder as it is now."""
        pinned = None if binding is None else TableFacts.pinned(binding)
        facts = self._facts() if pinned is None else pinned
        if binding is not None and facts.uuid != binding.uuid:
            raise TableMissingError(
                f"The folder of rows {self.identifier} was removed and made anew since this checkpoint was begun. Rows staged for "
                "the old one are not committed to the new one. Run the stage under another idempotence key."
            )
        return RowsState(self.folder, facts)

    def written(self, binding: TableBinding) -> WrittenFiles:
        """List what attempts have written."""
        del binding
        return WrittenFiles(self._written())

    def orphans(self, write: StagedWrite, landed: SealedWrite | None, listed: WrittenFiles) -> list[StagedFile]:
        """Files of a generation that no commit lists."""
        live = {file.path for commit in self.folder.commits().values() for file in commit.files}
        live |= {file.path for record in landed.staged for file in record.files} if landed is not None else set()
        of_generation = listed.of((write.names.key_hash, write.names.generation))
        return [file for file in of_generation if file.path.rpartition("/")[2] in write.names and file.path not in live]

    def remove(self, binding: TableBinding, files: Sequence[StagedFile]) -> None:
        """Delete orphans."""
        del binding
        self.folder.delete(file.path for file in files)

    def _binding_of(self, facts: TableFacts) -> TableBinding:
        return TableBinding(
            format=NAME, identifier=self.identifier, uuid=facts.uuid, branch=self.branch, schema_id=0, spec_id=0,
            schema_fingerprint=facts.fingerprint,
        )  # fmt: skip

    def _facts(self) -> TableFacts:
        facts = self.folder.table()
        if facts is None:
            raise TableMissingError(f"There is no folder of rows at {self.identifier}. Make it first, or correct the URI.")
        return facts

    def _written(self) -> Iterator[tuple[Owner, StagedFile]]:
        for name, size in self.folder.listed(DATA):
            author = author_of(name)
            if author is not None:
                yield (author.key_hash, author.generation), StagedFile(self.folder.path(name), size)


def _require_storable(rows: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for field in rows:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"Rows for the next task are staged as Parquet, which cannot hold the column {field.name!r} of the type "
                f"{field.type}: {error}. Let the transform make another type of it, or leave the column out."
            ) from error


def _folder_uri(uri: str) -> str:
    """The name that checkpoints have for a folder."""
    return whole_uri(uri).rstrip("/")


FORMAT = TableFormat(
    name=NAME,
    commit_is="version",
    what_deletes="Something deletes files of the folder that no commit lists yet: stop it.",
    connection="store",
    modes=MODES,
    open=lambda identifier, _, opened: RowsTable(identifier, storage_options(opened)),
    named=named_by(_folder_uri),
    refusal=lambda _: None,
)
