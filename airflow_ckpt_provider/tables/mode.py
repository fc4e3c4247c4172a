"""How the rows of a write land in a table: a mode says what the write consists of, who writes it, and what it needs.

A mode is one class in ``modes/`` of its format, and one line of the registry there. What its commit makes of the table is its
format's own: see ``TableState.change``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar, cast

from airflow_ckpt_provider.checkpoint.restaged import restaged
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.parameters import ModeParameters, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Plan
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.writer import Writer


class Grouping(enum.Enum):
    """How several writes of a mode may land."""

    #: In one commit or in several: none takes rows of another away.
    FREE = "free"

    #: In one commit only: a later one would remove the rows of an earlier one.
    ONE_COMMIT = "one commit"

    #: Each by itself, because each may rewrite the same files of the table.
    ALONE = "alone"


class Traits:
    """What is known of a mode without a table."""

    #: How several writes of it may land.
    grouping: ClassVar[Grouping] = Grouping.FREE

    #: Whether staged files depend on what the table holds, so that the write is planned again if that changes.
    provisional: ClassVar[bool] = False

    #: Whether a source can be read increment by increment with it.
    takes_increments: ClassVar[bool] = True

    #: Whether it makes the table that it writes to, of the columns of its rows.
    creates: ClassVar[bool] = False

    #: Whether a stage may have it. Others are what the provider itself does.
    is_public: ClassVar[bool] = True

    #: Whether a commit lands it. If not, the rows are for another task to read as soon as they are sealed.
    lands: ClassVar[bool] = True


class Mode(Traits, ABC):
    """One mode, on one state of a table.

    :param parameters: what it is told, as a header has it.
    :raises InvalidInputError: if they are not what the mode takes.
    """

    #: What the mode takes. Operators read, check and template their arguments by it.
    Parameters: ClassVar[type[ModeParameters]] = ModeParameters

    def __init__(self, parameters: JsonObject) -> None:
        self.parameters = told(type(self).Parameters, parameters)

    def validate(self) -> None:
        """Refuse what cannot work on this table, before anything is read or recorded.

        :raises InvalidInputError: saying what is wrong and what there is.
        """

    @abstractmethod
    def placing(self, header: Header) -> Mapping[str, str] | None:
        """What columns are that decide where a row goes, by their names, such as ``partition column``.

        :returns: None if the mode writes no whole rows, so that none can lack a column.
        """

    def first(self, write: StagedWrite, plan: Plan, made: Callable[[], pa.Schema]) -> Plan:
        """The plan of the first round: the source's, with what the mode has to pin beside it.

        :param made: the columns of the rows that will be staged; asked only if it matters, because it may run the transform.
        """
        del write, made
        return plan

    def plan(self, write: StagedWrite) -> Plan:
        """What the write consists of, as far as it is staged and on this state of the table.

        Splits with the ids of the last pinned plan mean that it stands: what of it is missing can be staged, and once nothing is,
        the write is complete. Other splits are those of the next round; what they list of the last one stays staged.

        :returns: ``write.plan`` itself where that stands.
        :raises TableMovedError: if the write can never be complete on this state.
        """
        return write.plan

    @classmethod
    def stays_freed(cls, parameters: JsonObject) -> bool:
        """Whether rows of this mode that were freed stay so when their stage is cleared; see ``Tombstone.freed``."""
        del parameters
        return False

    @classmethod
    def restaged(cls, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which splits whose files are lost are staged again, as far as it is known by now.

        :param lost: their ids; of splits of the last plan, or of the last one that lists the source's.
        :raises StagedFileMissingError: if that cannot be.
        """
        return restaged(write.plan, lost, len(write.plans) + 1)

    @abstractmethod
    def writer(self, write: StagedWrite) -> Writer:
        """What executors write the last round with: the schema and spec that the header pinned."""

    @abstractmethod
    def require_replaceable(self, landed: SealedWrite) -> None:
        """Check that what a commit has added is in the table as it was added, before a replacement of it is staged.

        The commit of the replacement looks again.

        :raises TableMovedError: if other writers have taken or changed it.
        """

    @classmethod
    @abstractmethod
    def changes_nothing(cls, writes: Sequence[SealedWrite]) -> bool:
        """Whether a commit of these would add nothing and remove nothing, so that there is nothing to commit."""


class UndoOutcome(NamedTuple):
    """What an undo does to the table.

    :param files: that go; None where only the format's own history knows, and ``rows`` in them.
    :param files_back: that come back, and ``rows_back`` in them.
    """

    files: int | None
    rows: int | None
    files_back: int | None
    rows_back: int | None


class TakesOut(ABC):
    """What the mode of an undo is, too."""

    @abstractmethod
    def outcome(self, write: StagedWrite) -> UndoOutcome:
        """What the commit of this write would do to the table as it is.

        :param write: an undo, or what is to be one.
        :raises UndoRefusedError: if it cannot be made.
        """


class OneOfTwo(ABC):
    """What a mode is, too, of which its parameters make another: an overwrite with a filter is another than one of all rows."""

    @classmethod
    @abstractmethod
    def asked_by(cls, parameters: JsonObject) -> type[Mode]:
        """The mode that these parameters ask for."""


AnyMode = TypeVar("AnyMode", bound=Mode)


def public(modes: Mapping[str, type[AnyMode]]) -> dict[str, type[AnyMode]]:
    """Those that a stage may have."""
    return {name: mode for name, mode in modes.items() if mode.is_public}


def mode_of(modes: Mapping[str, type[AnyMode]], name: str, parameters: JsonObject) -> type[AnyMode]:
    """The mode that does what a name and parameters ask.

    :param modes: of a table format, by their names.
    :raises InvalidInputError: if there is none of that name.
    """
    if name not in modes:
        raise InvalidInputError(f"mode={name!r}: the modes are {', '.join(public(modes))}.")
    mode = modes[name]
    return cast("type[AnyMode]", mode.asked_by(parameters)) if issubclass(mode, OneOfTwo) else mode
