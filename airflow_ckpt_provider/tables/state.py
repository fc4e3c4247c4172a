"""A table at one moment, whatever its format: what its history shows, and the one change that a commit makes of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from airflow_ckpt_provider.tables.summary import identity_of, keys_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, JsonObject
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.fit import Columns
    from airflow_ckpt_provider.tables.mode import Mode
    from airflow_ckpt_provider.tables.storage import StagedStorage
    from airflow_ckpt_provider.tables.summary import Trace


class Landed(NamedTuple):
    """A commit as the table's history shows it.

    :param commit_id: id of the snapshot, or number of the version; None if there was nothing to write.
    :param landed_now: False if it was there before.
    """

    commit_id: int | None
    committed_at: datetime
    landed_now: bool


class GroupCommit(NamedTuple):
    """Sealed writes that land together, once. They share table, mode and parameters."""

    group: Group
    writes: Sequence[SealedWrite]

    @property
    def headers(self) -> list[Header]:
        """Of the writes."""
        return [write.header for write in self.writes]

    @property
    def first(self) -> Header:
        """The header of the first of them, for what they share."""
        return self.writes[0].header

    @property
    def keys(self) -> str:
        """Its keys, for messages."""
        return keys_of(self.group)

    @property
    def computed_by(self) -> dict[str, int]:
        """How many splits each code has computed, of writes that were gone on with under other code."""
        return dict(sum((Counter(write.seal.computed_by) for write in self.writes), Counter[str]()))

    @property
    def identity(self) -> str:
        """Traces of all members; see ``tables.summary``."""
        return identity_of(self.headers)


class Change(Protocol):
    """What a commit makes of a table, ready to be swapped in."""

    def swap(self) -> Landed:
        """Make the change the table's latest state, in one compare-and-swap on the state that it was made from.

        :raises Exception: whatever the catalog raised; only the table's history knows what became of the commit then.
        :raises TerminalError: if it has landed, and not as it was to.
        """
        ...


class TableState(Protocol):
    """A table as it was loaded at one moment. Any member but ``horizon`` may raise ``StaleStateError`` if that is gone by now."""

    @property
    def horizon(self) -> int:
        """Where its history stands; see ``Group.horizon``."""
        ...

    @property
    def is_recognised(self) -> bool:
        """Whether this is certainly the table that was bound, and so the storage in which its writes were staged."""
        ...

    @property
    def columns(self) -> Columns:
        """What the rows of a write that is bound to this table have to fit."""
        ...

    @property
    def storage(self) -> StagedStorage:
        """The staged files of writes, beside the table."""
        ...

    def mode(self, header: Header) -> Mode:
        """The mode of a write, on this state.

        :raises InvalidInputError: if the format has no such mode.
        """
        ...

    def watermark(self, consumer: str) -> JsonObject | None:
        """How far the last commit of a task that reads its source increment by increment has read it.

        :param consumer: who reads what.
        :returns: None if there is none.
        """
        ...

    def find(self, group: Group, headers: Sequence[Header] = ()) -> Landed | None:
        """Look for the commit of ``group`` in the table's history (I1, I10).

        :param headers: of its members, or of some of them, whose commit it must be; none if they are not known.
        :returns: None if it certainly did not land on this state.
        :raises BindingMismatchError: if what landed under the group's name were not these.
        :raises HistoryExpiredError: if the history that could tell is gone.
        :raises RolledBackError: if it landed and was taken off the branch.
        """
        ...

    def require_unknown(self, headers: Sequence[Header], known: AbstractSet[Trace], *, since_bound: bool = False) -> None:
        """Refuse keys of which the table's history shows a commit by a checkpoint that their store does not hold (I1).

        :param headers: of what is to be written: a key and the table as it was when its generation was opened.
        :param known: traces of the generations in the store that may have landed without any harm.
        :param since_bound: whether the history before the generations was looked at when they were opened.
        :raises BindingMismatchError: naming the key and the commit.
        """
        ...

    def shows(self, landed: SealedWrite) -> bool:
        """Whether any file that a write has staged is in the table (I10)."""
        ...

    def require_unchanged(self, commit: GroupCommit) -> None:
        """Refuse to land on a state whose schema, or whose watermark of the source, is not what the writes were made for.

        :raises SchemaMismatchError: if the staged rows do not fit any more.
        :raises TableMovedError: if another task has read on.
        """
        ...

    def prepare(self, commit: GroupCommit) -> bool:
        """Write what has to be in the table before the commit lands.

        :returns: whether the table has another state now.
        """
        ...

    def change(self, commit: GroupCommit) -> Change:
        """What the commit makes of this state.

        :raises TableMovedError: if what is to be replaced was changed by another writer since it was planned.
        """
        ...
