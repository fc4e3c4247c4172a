"""A folder of rows as it was read at one moment: its commits, the staged files in it, and the one object that a commit puts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import part_of
from airflow_ckpt_provider.exceptions import BindingMismatchError, NotSupportedYetError, RowCountError
from airflow_ckpt_provider.tables.fit import Columns
from airflow_ckpt_provider.tables.mode import Mode, mode_of
from airflow_ckpt_provider.tables.ownership import OwnershipCheck
from airflow_ckpt_provider.tables.parameters import ModeParameters, told
from airflow_ckpt_provider.tables.staged.folder import DATA, RowsCommit
from airflow_ckpt_provider.tables.staged.writer import RowsScan, RowsWriter
from airflow_ckpt_provider.tables.staged_files import lost_of
from airflow_ckpt_provider.tables.state import Landed
from airflow_ckpt_provider.tables.storage import DataFile, Place
from airflow_ckpt_provider.tables.summary import identity_of, key_trace, keys_of, not_ours, require_ours, traces_in
from airflow_ckpt_provider.tables.watermarks import moves_watermark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, JsonObject, Staged, StagedFile
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.staged.folder import RowsFolder, TableFacts
    from airflow_ckpt_provider.tables.state import GroupCommit
    from airflow_ckpt_provider.tables.summary import Trace


#: Name of the mode of rows that the next task reads.
FOR_NEXT = "for_next"


class Append(Mode):
    """Rows are added."""

    def __init__(self, folder: RowsFolder, facts: TableFacts, parameters: JsonObject) -> None:
        super().__init__(parameters)
        self._folder, self._facts = folder, facts

    def placing(self, header: Header) -> dict[str, str] | None:
        """No column decides where a row goes."""
        del header
        return {}

    def writer(self, write: StagedWrite) -> RowsWriter:
        """What writes the rows."""
        del write
        return RowsWriter(self._folder, self._facts.schema)

    def require_replaceable(self, landed: SealedWrite) -> None:
        """Refuse: nothing in a folder of rows is taken back."""
        raise NotSupportedYetError(
            f"on_rerun='replace' is not supported for {self._folder.uri}, to which rows are only added. Nothing was changed. Write "
            f"the rows of the key {landed.header.key!r} into another folder, or under another key."
        )

    @classmethod
    def changes_nothing(cls, writes: Sequence[SealedWrite]) -> bool:
        """Whether there is no row."""
        return not any(write.seal.rows for write in writes) and not moves_watermark(writes)


class ForNextParameters(ModeParameters, frozen=True, kw_only=True):
    """What the rows are for."""

    reuse: Annotated[Literal["run", "content"], Meta(description="which runs may take them up")] = "run"


class ForNext(Append):
    """Rows are staged for the next task to read. Nothing commits them: what the seal says of them is all that there is to say.

    The folder has no ``table.json``: its columns are those that the generation's header has pinned.
    """

    Parameters = ForNextParameters
    creates = True
    lands = False
    takes_increments = False

    @classmethod
    def stays_freed(cls, parameters: JsonObject) -> bool:
        """Whether they are for the tasks of one run, which are done."""
        return told(cls.Parameters, parameters).reuse == "run"


MODES: dict[str, type[Append]] = {"append": Append, FOR_NEXT: ForNext}


class RowsState:
    """A folder at one moment; see ``TableState``, whose words the methods have."""

    #: Its identity is what was bound.
    is_recognised = True

    def __init__(self, folder: RowsFolder, facts: TableFacts) -> None:
        self.folder = folder
        self.facts = facts

    @cached_property
    def _commits(self) -> dict[str, RowsCommit]:
        """As they are when they are first asked for; all questions to this state are answered by the same ones."""
        return self.folder.commits()

    @property
    def horizon(self) -> int:
        """0: no commit is ever removed, so that any state can disprove one."""
        return 0

    @property
    def columns(self) -> Columns:
        """Its columns."""
        return Columns(self.folder.uri, self.facts.schema)

    @property
    def storage(self) -> RowsStorage:
        """What is staged in it."""
        return RowsStorage(self.folder, self.facts)

    def mode(self, header: Header) -> Append:
        """The mode of a write."""
        return mode_of(MODES, header.mode, header.parameters)(self.folder, self.facts, header.parameters)

    def watermark(self, consumer: str) -> JsonObject | None:
        """Refuse: commits that have no order cannot say how far a source was read.

        :raises NotSupportedYetError: always.
        """
        del consumer
        raise NotSupportedYetError(f"A source of since='last_commit' cannot be written into {self.folder.uri}, a folder of rows.")

    def find(self, group: Group, headers: Sequence[Header] = ()) -> Landed | None:
        """The commit of a group, which its name tells."""
        commit = self._commits.get(group.id)
        if commit is None:
            return None
        require_ours(identity_of(headers) if headers else None, commit.identity, group.id, keys_of(group), self.folder.uri)
        return Landed(_number(group), commit.committed_at, landed_now=False)

    def require_unknown(self, headers: Sequence[Header], known: AbstractSet[Trace], *, since_bound: bool = False) -> None:
        """Refuse keys that a checkpoint which is not known has committed."""
        del since_bound
        keys = {key_trace(header.key): header.key for header in headers}
        for commit in self._commits.values():
            for trace in traces_in(commit.identity):
                if trace.key in keys and trace not in known:
                    raise not_ours(f"The key {keys[trace.key]!r}", f"a commit of {commit.committed_at}", self.folder.uri)

    def shows(self, landed: SealedWrite) -> bool:
        """Whether any file of a write is in a commit."""
        names = landed.names
        return any(file.path.rpartition("/")[2] in names for commit in self._commits.values() for file in commit.files)

    def require_unchanged(self, commit: GroupCommit) -> None:
        """Nothing changes a folder's columns."""
        for header in commit.headers:
            if header.table.schema_fingerprint != self.facts.fingerprint:
                raise BindingMismatchError(f"The columns of {self.folder.uri} are not those that {commit.keys} was begun with.")

    def prepare(self, commit: GroupCommit) -> bool:
        """Nothing: all that a commit needs is in its object."""
        del commit
        return False

    def change(self, commit: GroupCommit) -> RowsChange:
        """The object that the commit puts."""
        files = tuple(file for write in commit.writes for record in write.staged for file in record.files)
        rows, held = (
            sum(write.seal.rows for write in commit.writes),
            sum(record.rows for write in commit.writes for record in write.staged),
        )
        if rows != held:
            raise RowCountError(f"{rows} rows are sealed for {self.folder.uri}, but the records hold {held} (I2).")
        keys = tuple(header.key for header in commit.headers)
        return RowsChange(
            self.folder,
            commit.group,
            RowsCommit(identity=commit.identity, keys=keys, committed_at=now(), rows=rows, files=files),
        )


class RowsChange:
    """One object in ``commits/``; see ``Change``."""

    def __init__(self, folder: RowsFolder, group: Group, commit: RowsCommit) -> None:
        self._folder, self._group, self._commit = folder, group, commit

    def swap(self) -> Landed:
        """Put it, if it is not there: a commit has one name, whoever tries it."""
        landed_now = self._folder.put_commit(self._group.id, self._commit)
        commit = self._commit if landed_now else self._folder.commit(self._group.id) or self._commit
        return Landed(_number(self._group), commit.committed_at, landed_now)


class RowsStorage:
    """What is staged in a folder; see ``StagedStorage``, whose words the methods have."""

    def __init__(self, folder: RowsFolder, facts: TableFacts) -> None:
        self._folder, self._facts = folder, facts

    @property
    def place(self) -> Place:
        """The folder."""
        return Place(self._folder.uri)

    def partitions(self, writes: Sequence[SealedWrite]) -> Sequence[str]:
        """None: a folder has no partitions."""
        del writes
        return ()

    def named_in(self, record: Staged) -> list[StagedFile]:
        """Its file."""
        return list(record.files)

    def needed_to_commit(self, write: SealedWrite) -> list[StagedFile]:
        """All staged files."""
        return [file for record in write.staged for file in record.files]

    def lost(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """Files that are gone, or have another size."""
        return lost_of(files, self._folder.sizes([file.path for file in files]))

    def require_owned_records(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records that name files that the generation has not written."""
        ownership = OwnershipCheck([f"{self._folder.uri}/{DATA.rstrip('/')}"], write.names, write.header)
        for record in records:
            ownership.require(record, [file.path for file in record.files])

    def require_owned_files(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse to land files that the write has not staged."""
        for write in writes:
            self.require_owned_records(write, write.staged)

    def require_listed(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse records that count other rows than their files hold."""
        import pyarrow.parquet as pq

        for record in (record for write in writes for record in write.staged):
            held = sum(pq.read_metadata(self._folder.file(file.path, file.bytes)).num_rows for file in record.files)
            if held != record.rows:
                raise RowCountError(f"The split {record.split} has {record.rows} rows by its record, and {held} in its files (I2).")

    def writes_manifests(self, manifests: Sequence[JsonObject]) -> bool:
        """No: the commit lists the files."""
        del manifests
        return False

    def merged_manifests(self, write: StagedWrite, manifests: Sequence[JsonObject], stem: str) -> Sequence[JsonObject]:
        """As they are."""
        del write, stem
        return manifests

    def data_files(self, writes: Sequence[SealedWrite]) -> list[DataFile]:
        """The files that a commit of these would add."""
        listed = [(file, record) for write in writes for record in write.staged for file in record.files]
        return [DataFile(path=file.path, bytes=file.bytes, rows=max(1, record.rows)) for file, record in listed]

    def scan(self, writes: Sequence[SealedWrite], columns: Sequence[str] | None = None) -> RowsScan:
        """What reads those files."""
        del writes
        return RowsScan(self._folder, self._facts.schema, columns)


def _number(group: Group) -> int:
    """A number that stands for a commit, as a snapshot id does: of its group's id."""
    return part_of(int(group.id[:15], 16), int)
