"""Every error this provider raises on purpose, split by what helps: retry it, never retry it, or find out first.

A message says what happened, to which key or table, and what to do next. The core raises these types; the operators
map them to Airflow's once (``RetryableError`` and ``OutcomeUnknownError`` fail the try and let Airflow retry,
``TerminalError`` fails the task at once). This module imports nothing of this package, so that every layer can use it.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Control and bidirectional characters, line separators and lone surrogates: a text that holds them does not say what it shows.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(name: str) -> str:
    """A name that somebody else has chosen, such as that of a file, for a message: in one line, and as it is read."""
    return UNSAFE.sub(_escape, name)


def _escape(character: re.Match[str]) -> str:
    return character.group().encode("unicode_escape", "surrogatepass").decode()


class CheckpointError(Exception):
    """Base of all errors of this provider."""

    def __str__(self) -> str:
        # Whatever a message repeats, it cannot pass for something else in a log. Lines are the message's own.
        return "\n".join(map(escaped, super().__str__().split("\n")))


class RetryableError(CheckpointError):
    """A retry may help: what is staged stays staged, and the next attempt starts from there."""


class TransformError(RetryableError):
    """The user's function failed at a row of the input. What was saved before stays, and the next attempt goes on behind it."""


class StaleStateError(RetryableError):
    """Another writer has cleaned up the state of a table that a task had loaded. The task looks at the table as it is now."""


class TerminalError(CheckpointError):
    """A retry of the same thing cannot help: somebody has to change something first. Nothing staged is lost."""


class OutcomeUnknownError(CheckpointError):
    """A commit may or may not have landed. The next attempt looks into the table's history before it does anything."""


class InvalidInputError(TerminalError):
    """A parameter, URI, connection or key that cannot work. Raised before Spark starts."""


class OutputError(InvalidInputError):
    """What a transform returned is not what it may return, or not what it says that it makes."""


class TooManyErrorsError(TerminalError):
    """The transform failed at more rows than the write may leave out. What came right stays staged."""


class RowsToRetryError(RetryableError):
    """The transform failed at rows that the next attempt runs again, and only those. What came right stays staged."""


class EmptyInputError(InvalidInputError):
    """There is nothing to read, and the write was told that there has to be, or cannot be without it."""


class NotSupportedYetError(InvalidInputError):
    """A documented feature that this version does not have. Raised when the DAG is parsed, where that is possible."""


class BindingMismatchError(TerminalError):
    """The key is already bound to another table, source, mode or transform (invariant I6)."""


class InputChangedError(TerminalError):
    """An input file that the plan pinned was changed, replaced or removed since (invariant I6)."""


class SchemaMismatchError(TerminalError):
    """The rows do not fit the table's schema. The message lists every difference."""


class NullInRequiredColumnError(TerminalError):
    """A required column holds a null. The message names the column and the row."""


class DuplicateKeyError(TerminalError):
    """Rows of an upsert have the same key, so that it is undefined which of them is meant. The message gives examples."""


class UnsupportedTableError(TerminalError):
    """The table is of a kind that cannot be written exactly once from here, such as a v1 or v3 Iceberg table."""


class TableMissingError(TerminalError):
    """The table does not exist, or is not the one (by UUID) that the checkpoint is bound to."""


class TableExistsError(TerminalError):
    """A table was to be created, and somebody else has created one of that name."""


class TableMovedError(TerminalError):
    """What was to be replaced was changed by somebody else since it was planned. The stage has to look at it again."""


class CheckFailedError(TerminalError):
    """A check of the staged rows failed before the commit. The table is untouched and everything stays staged."""


class CorruptObjectError(TerminalError):
    """An object in the checkpoint store is truncated, damaged or of another kind than its name says (invariant I7)."""


class SignatureError(TerminalError):
    """An object in the checkpoint store is not signed with a key of the connection, or this connection has no key for it."""


class NewerFormatError(TerminalError):
    """An object in the checkpoint store was written by a newer version of this provider (invariant I7)."""


class CheckpointMissingError(TerminalError):
    """There is no checkpoint under this key in this store."""


class RecordsRemovedError(TerminalError):
    """The records of a committed write were cleaned up. That it was committed stands; what needs the records cannot be done."""


class CleanupIncompleteError(RetryableError):
    """A clean-up has done what it could, and left what it could not read or ask for. The message names that."""


class CommitUnderWayError(RetryableError):
    """The store says that a checkpoint lands together with others, which the task was not told to commit, and it has not landed."""


class NotSealedError(RetryableError):
    """The checkpoint is not complete yet, so it cannot be committed."""


class DiscardedError(TerminalError):
    """The checkpoint, or this generation of it, was discarded and must not be committed any more."""


class StagedFileMissingError(TerminalError):
    """A staged file is not there, or has another size: the commit would reference what does not exist (invariant I5)."""


class RowCountError(TerminalError):
    """Rows sealed, rows in the staged manifests and rows in the commit disagree (invariant I2)."""


class HistoryExpiredError(TerminalError):
    """The history that could prove or disprove an earlier commit of the key is gone (invariant I10)."""


class RolledBackError(TerminalError):
    """The key's snapshot was committed once and later rolled back: committing it again is a human decision."""


class PySparkVersionError(TerminalError):
    """``pyspark`` and ``pyspark-client`` are installed at different versions and overwrite each other's files."""


class StageFailedError(RetryableError):
    """Spark tasks failed. The splits they did publish stay staged; a retry writes only the others."""


class StoppedError(StageFailedError):
    """Somebody has stopped the task: with Ctrl-C, or by marking it in Airflow. What is staged stays."""


class NativePanicError(RetryableError):
    """Native code of a library, such as Lance's, gave up in the middle of its work."""


class CommitRefusedError(TerminalError):
    """The catalog answered that this commit is not allowed."""


class StoreUnusableError(TerminalError):
    """The checkpoint store does not do what every checkpoint relies on, such as put-if-absent."""


class UndoneError(TerminalError):
    """What is asked for was committed, and taken out of the table again by an undo."""


class UndoRefusedError(TerminalError):
    """A commit cannot be undone: it has not landed, or later commits have built on it. Nothing was changed."""


class RestartRefusedError(TerminalError):
    """A restart was asked for, but an earlier generation of the key has landed, so that its rows would be there twice."""


def no_room(rows: str, error: OSError, *, kept: str, instead: str) -> StageFailedError:
    """The error of a task that cannot write to its temporary folder.

    :param rows: which rows are there, and why.
    :param kept: what is not lost.
    :param instead: what else helps than room.
    """
    return StageFailedError(
        f"{rows} in the temporary folder {tempfile.gettempdir()} and it cannot be written to: {error}. {kept}. Make room, set "
        f"TMPDIR to a folder with more (spark.executorEnv.TMPDIR for Spark's executors), or {instead}."
    )


def terminal_error(name: str, message: str) -> TerminalError:
    """The terminal error that was called ``name`` in another process: an executor, or the triggerer."""
    kind = globals().get(name)
    return kind(message) if isinstance(kind, type) and issubclass(kind, TerminalError) else TerminalError(message)


@contextlib.contextmanager
def panics_as_errors(doing: str) -> Iterator[None]:
    """Make an error like any other of a panic of a library that is written in Rust.

    Such a panic is no ``Exception``: nothing that looks after errors would see it, and it would end a triggerer's thread or a task
    in silence. Its class belongs to each library, so that it is known by its name.

    :param doing: what was being done, for the message.
    :raises NativePanicError: with what the library says.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise NativePanicError(
            f"Native code of a library panicked {doing}: {first_line(error)}. Nothing that was staged is lost; a retry goes on "
            "from there. If it happens again, report it to the library with the traceback in this log."
        ) from error


def first_line(error: BaseException) -> str:
    """What an error says first: drivers append statements and links to it."""
    return str(error).strip().partition("\n")[0]
