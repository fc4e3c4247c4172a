"""A table on the driver, whatever its format: what it is bound by, and the states of it that writes and commits are made on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, StagedFile, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.written_files import WrittenFiles


class Table(Protocol):
    """A table by its name."""

    #: Name of its format; see ``tables.format``.
    format: str

    #: Name, as messages give it.
    identifier: str

    #: Branch that commits land on.
    branch: str

    def validate(self, mode: str, parameters: JsonObject) -> None:
        """Refuse a mode, or parameters of it, that cannot work on this table.

        :raises InvalidInputError: saying what is wrong and what there is.
        """
        ...

    def binding(self) -> TableBinding:
        """Identity and pinned schema of the table as it is now."""
        ...

    def creation(self, rows: pa.Schema, parameters: JsonObject) -> TableBinding:
        """Identity and schema of a table that the commit is to create for rows of this schema.

        :raises TableExistsError: if there is a table of that name.
        """
        ...

    def require_creation(self, binding: TableBinding, parameters: JsonObject | None) -> None:
        """Check that the table to be which a header describes is the one that the DAG does (I15).

        :param parameters: of the mode; None where the DAG does not say them, as to a commit that was given a key alone.
        :raises CorruptObjectError: naming each difference.
        """
        ...

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Let the table's schema grow so that ``rows`` fit, in a commit of its own; nothing if they do.

        :returns: what was changed, one readable line each.
        """
        ...

    def state(self, binding: TableBinding | None = None) -> TableState:
        """The table as it is now.

        :param binding: which table it must be; whichever has the name, if None.
        :raises TableMissingError: if it is another one, or gone.
        :raises TableExistsError: if it was to be created, and another writer created one of its name.
        """
        ...

    def written(self, binding: TableBinding) -> WrittenFiles:
        """List what attempts of any key have written into the table's storage.

        :raises TableMissingError: if it is another table, or gone.
        """
        ...

    def orphans(self, write: StagedWrite, landed: SealedWrite | None, listed: WrittenFiles) -> list[StagedFile]:
        """Files in the table's storage that a generation has written, and that nothing refers to or needs (I4).

        No file that a snapshot or version of the table refers to is one, whatever the store says (I15).

        :param landed: the generation as it was committed, if it was; nothing that it landed, and nothing that its replacement
            would need, is an orphan.
        :param listed: a listing of before; what is referred to is asked now, so that it may be older.
        """
        ...

    def remove(self, binding: TableBinding, files: Sequence[StagedFile]) -> None:
        """Delete orphans. One that is gone already is passed over."""
        ...
