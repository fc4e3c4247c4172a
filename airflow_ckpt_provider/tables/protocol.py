"""What every table format can do. It meets sources only through batches and staged records."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import (
        Header,
        JsonObject,
        Plan,
        Split,
        Staged,
        StagedFile,
        TableBinding,
    )
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.written_files import WrittenFiles


class Written(NamedTuple):
    """What one split became; see ``Staged`` for what the members mean."""

    rows: int
    bytes: int
    files: tuple[StagedFile, ...]
    manifest: JsonObject | None
    replaces: tuple[str, ...] = ()
    counts: Mapping[str, int] = MappingProxyType({})
    scratch: JsonObject | None = None


class Writer(Protocol):
    """Does the table's part of a round's splits on an executor. Picklable; may hold credentials, so it is never stored."""

    @property
    def schema(self) -> pa.Schema:
        """The schema that rows are brought to."""
        ...

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write the rows of one split in bounded memory (I11). All its file names begin with ``stem`` (I4).

        :raises SchemaMismatchError: if the rows do not fit the table.
        :raises NullInRequiredColumnError: if a required column holds a null.
        """
        ...

    def work(self, split: Split, stem: str) -> Written:
        """Do a split that is the table's own, such as rewriting one of its files; see ``Split.task``."""
        ...

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published. Nothing refers to them."""
        ...


class StagedScan(Protocol):
    """Reads staged files, wherever. Picklable; may hold credentials, so it is never stored."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        ...

    def read(self, file: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - as the table lists its files
        """Rows of one of the files that the table lists."""
        ...


class Table(Protocol):
    """A table on the driver: what it is bound by, what a mode asks of it, and how staged files are committed."""

    #: Name, as messages give it.
    identifier: str

    #: Branch that commits land on.
    branch: str

    #: What an error says of whoever deletes staged files.
    what_deletes: str

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

    def require_creatable(self, binding: TableBinding) -> None:
        """Check that nobody else created the table that ``binding`` is to create.

        :raises TableExistsError: if somebody did.
        """
        ...

    def require_creation(self, binding: TableBinding, parameters: JsonObject | None) -> None:
        """Check that the table to be which a header describes is the one that the DAG does (I15).

        :param parameters: of the mode; None where the DAG does not say them, as to a commit that was given a key alone.
        :raises CorruptObjectError: naming each difference.
        """
        ...

    def require_replaceable(self, landed: SealedWrite) -> None:
        """Check that what a commit has added is in the table as it was added, before a replacement of it is staged.

        The commit of the replacement looks again.

        :raises TableMovedError: if others have taken or changed it.
        """
        ...

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Let the table's schema grow so that ``rows`` fit, in a commit of its own; nothing if they do.

        :returns: what was changed, one readable line each.
        """
        ...

    def state(self, binding: TableBinding) -> TableState:
        """The table as it is now.

        :param binding: which table it must be.
        :raises TableMissingError: if it is another one, or gone.
        :raises TableExistsError: if it was to be created, and another writer created one of its name.
        """
        ...

    def refusal(self, error: Exception) -> str | None:
        """What helps with an answer to a commit that no second try changes; None if another try may be answered otherwise."""
        ...

    def mark(self, reading: str, mode: str) -> JsonObject | None:
        """How far the last commit of a task that reads its source increment by increment has read it.

        :param reading: who reads what.
        :returns: None if there is none; also if the table is to be created.
        :raises NotSupportedYetError: if increments cannot be written in this mode.
        """
        ...

    def check_fit(self, rows: pa.Schema, binding: TableBinding) -> None:
        """Refuse rows of this schema before any is read.

        :raises SchemaMismatchError: listing every difference.
        """
        ...

    def lacks(self, rows: pa.Schema, binding: TableBinding) -> list[str]:
        """Optional columns of the table that rows of this schema do not have, at every depth, such as ``address.zip``."""
        ...

    def placing(self, header: Header) -> Mapping[str, str] | None:
        """What columns are that decide where a row goes, by their names, such as ``partition column``.

        :returns: None if the mode writes no whole rows, so that none can lack a column.
        """
        ...

    def provisional(self, header: Header) -> bool:
        """Whether the write depends on what the table holds, so that it is planned again if that changes."""
        ...

    def first(self, write: StagedWrite, plan: Plan, made: Callable[[], pa.Schema]) -> Plan:
        """The plan of the first round: the source's, with what the mode has to pin beside it.

        :param made: the columns of the rows that will be staged; asked only if it matters, because it may run the transform.
        """
        ...

    def plan(self, write: StagedWrite) -> Plan:
        """What the write consists of, as far as it is staged and on the table as it is now.

        Splits with the ids of the last pinned plan mean that it stands: what of it is missing can be staged, and once nothing is,
        the write is complete. Other splits are those of the next round; what they list of the last one stays staged.

        :returns: ``write.plan`` itself where that stands.
        :raises TableMovedError: if the write can never be complete on the table as it is now.
        """
        ...

    def writer(self, write: StagedWrite) -> Writer:
        """What executors write the last round with: the schema and spec that the header pinned."""
        ...

    def writes_manifests(self, manifests: Sequence[JsonObject]) -> bool:
        """Whether ``merged_manifests`` writes files, for which an attempt has to be recorded before (I4)."""
        ...

    def merged_manifests(self, write: StagedWrite, manifests: Sequence[JsonObject], stem: str) -> Sequence[JsonObject]:
        """Few manifests in the place of many tiny ones, as they are sealed.

        :param stem: start of the names of files that are written, if any are.
        """
        ...

    def require_together(self, headers: Sequence[Header]) -> None:
        """Refuse checkpoints that cannot land in one commit.

        :raises InvalidInputError: saying why.
        """
        ...

    def adds_only(self, headers: Sequence[Header]) -> bool:
        """Whether commits of these, one after the other, would leave each other's rows where they are."""
        ...

    def changes_nothing(self, sealed: Sequence[SealedWrite]) -> bool:
        """Whether these add nothing and remove nothing, so that there is nothing to commit."""
        ...

    def require_own_records(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records of splits, and plans made from them, that name files which this generation has not written (I15).

        :raises CorruptObjectError: naming one.
        """
        ...

    def named_in(self, record: Staged) -> list[StagedFile]:
        """All files that a published record names: those that may land, and those that later splits read."""
        ...

    def staged_anew(self, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which splits whose files are gone are staged once more, as far as it is known by now.

        :param lost: their ids; of splits of the last plan, or of the last one that lists the source's.
        :raises StagedFileMissingError: if that cannot be.
        """
        ...

    def needed_to_commit(self, one: SealedWrite) -> list[StagedFile]:
        """The files without which a commit of this would not be whole: those that land, what lists them, and what it reads; and
        those that a replacement of it would read.
        """
        ...

    def staged_files(self, sealed: Sequence[SealedWrite]) -> Sequence[Any]:
        """The data files that a commit of these would add, as structs with ``bytes``; all of one kind."""
        ...

    def staged_scan(self, sealed: Sequence[SealedWrite], columns: Sequence[str] | None = None) -> StagedScan:
        """What reads those files.

        :param columns: top-level columns, in this order; all if None.
        :raises ValueError: if there is no such column.
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

    def remove(self, header: Header, files: Sequence[StagedFile]) -> None:
        """Delete orphans. One that is gone already is passed over."""
        ...
