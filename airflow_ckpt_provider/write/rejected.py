"""Rows at which the transform fails: how many a write may leave out, and when those that an earlier attempt has rejected run again.

See ``checkpoint.rejected`` for what is stored of them, and ``write.work`` for the tasks that reject them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.checkpoint.rejected import files_of, left_out, require_named, run_again
from airflow_ckpt_provider.checkpoint.restart import how_to_continue
from airflow_ckpt_provider.exceptions import CheckpointError, RowsToRetryError, TooManyErrorsError
from airflow_ckpt_provider.sources.rejected.file import ERROR, ROW, SPLIT, RejectedRows, rows_in
from airflow_ckpt_provider.sources.transform import not_of_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, RejectedFile, Seal, Split, Staged
    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.transforms.steps import FailedRows, Failure

WhenFailing = Literal["fail", "skip", "retry"]

#: Errors that a message shows, and characters of each.
_SHOWN, _LONGEST = 3, 300

#: Rows of a split that have to be done before a share of them says anything.
_ENOUGH = 100


@dataclass(frozen=True)
class OnError:
    """What becomes of rows at which the transform fails. No part of what binds: a later attempt may have another.

    :param policy: ``fail`` the task at the first of them; or reject them, and ``skip`` them, or fail the task at its end so that a
        ``retry`` runs them again.
    :param max_errors: rows that may be left out: a number, or a share of the rows of the input; None for any number where they are
        skipped, and for none where they are retried.
    """

    policy: WhenFailing = "fail"
    max_errors: float | None = None

    @property
    def rejects(self) -> bool:
        """Whether a task goes on behind a row at which the transform fails."""
        return self.policy != "fail"

    def require_usable(self, transform: Transform | None) -> None:
        """Refuse to reject rows where nobody can tell which they are.

        :raises InvalidInputError: naming the transform.
        """
        if self.rejects and not (transform is not None and transform.of_rows):
            raise not_of_rows("None" if transform is None else transform.name)

    def allows(self, rejected: int, rows: int) -> bool:
        """Whether so many of these rows of the input may be left out."""
        if not rejected or (self.policy == "skip" and self.max_errors is None):
            return True
        if self.policy == "fail" or self.max_errors is None:
            return False
        return rejected <= (self.max_errors if isinstance(self.max_errors, int) else self.max_errors * rows)

    def goes_on(self, rejected: int, rows: int) -> bool:
        """Whether a task that has done so many rows of its split may go on, or the write is known not to be sealed like that."""
        if self.policy == "retry" or (isinstance(self.max_errors, float) and rows < _ENOUGH):
            return True
        return self.allows(rejected, rows)

    def __str__(self) -> str:
        return f"on_error={self.policy!r}" + ("" if self.max_errors is None else f" and max_errors={self.max_errors}")


class Rejecting:
    """The rejected rows of one split, as a task comes upon them.

    :param places: where its rows stood, if it is made of rejected ones, of which many may fail again.
    """

    def __init__(
        self,
        store: CheckpointStore,
        paths: CheckpointPaths,
        on_error: OnError,
        header: Header,
        split_id: str,
        places: Places | None = None,
    ) -> None:
        self._store = store
        self._paths = paths
        self._on_error = on_error
        self._header = header
        self._split = split_id
        self._places = places
        self._first: list[Failure] = []
        self._rejected = 0
        self._rows = 0

    def kept_by(self, writer: str) -> RejectedRows:
        """What keeps those that come from now on."""
        return RejectedRows(self._store, self._paths, self._split, writer, None if self._places is None else self._places.of)

    def done(self, rows: int, failed: FailedRows | None) -> None:
        """Count rows of the input.

        :param failed: those of them at which the transform has failed.
        :raises TooManyErrorsError: if the write cannot be sealed with so many.
        """
        self._rows += rows
        if failed is None:
            return
        self._rejected += failed.rows.num_rows
        self._first += failed.failures[: _SHOWN - len(self._first)]
        if self._places is not None or self._on_error.goes_on(self._rejected, self._rows):
            return
        first = _listed([(failure.row, failure.error) for failure in self._first])
        raise TooManyErrorsError(
            f"The transform {self._header.transform} failed at {self._rejected:,} of the first {self._rows:,} rows that were done "
            f"of the split {self._split}, with {self._on_error}. {first} What was saved before stays. {_what_to_do(self._header)}"
        )


class Places:
    """Where rows that run again stood in the input when they were rejected for the first time, as they pass."""

    def __init__(self) -> None:
        # What a batch has become is asked for before the next but one is read.
        self._passing: deque[tuple[int, pa.RecordBatch]] = deque(maxlen=2)

    def passing(self, batches: Iterable[pa.RecordBatch], begin: int) -> Iterator[pa.RecordBatch]:
        """The rows without their places, which are kept.

        :param begin: number of the first of them among those that run again.
        """
        for batch in batches:
            self._passing.append((begin, batch.select([SPLIT, ROW])))
            begin += batch.num_rows
            yield batch.drop_columns([SPLIT, ROW])

    def of(self, number: int) -> tuple[str, int]:
        """The split and the row of its input of a row that is passing.

        :param number: of the row among those that run again.
        """
        begin, places = next(one for one in self._passing if one[0] <= number < one[0] + one[1].num_rows)
        return places[SPLIT][number - begin].as_py(), places[ROW][number - begin].as_py()


class AgainReader:
    """Reads the rejected rows of other splits, with their places, on an executor."""

    def __init__(self, store: CheckpointStore, paths: CheckpointPaths) -> None:
        self._store = store
        self._paths = paths

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The rows, as they came in when the transform failed at them."""
        del expected
        for file in files_of(split):
            yield from rows_in(self._store, self._paths, file, (SPLIT, ROW))


class Rejections:
    """What earlier attempts, and this one, have rejected of a write that is not sealed; asked once all of its input is staged.

    :param write: the write.
    :param attempt: id of this attempt.
    """

    def __init__(self, write: StagedWrite, on_error: OnError, attempt: str) -> None:
        self._write = write
        self._on_error = on_error
        self._attempt = attempt
        self._ran = False

    def left_out(self) -> list[RejectedFile]:
        """The rows that the write leaves out as it is staged now.

        :raises CorruptObjectError: if a plan reads rejected rows that no record names, or twice.
        """
        plan, records = self._write.source_plan, self._records()
        require_named(plan, records, self._write.header)
        return left_out(plan, records)

    def to_run_again(self) -> list[RejectedFile]:
        """Those of them that an earlier attempt has rejected and this one has not run yet."""
        if self._ran:
            return []
        return [file for file in self.left_out() if not file.writer.startswith(f"{self._attempt}.")]

    def round(self, files: Sequence[RejectedFile]) -> Plan:
        """The plan of a round in which these run again."""
        return run_again(self._write.plan, files, len(self._write.plans) + 1)

    def ran(self) -> None:
        """This attempt has opened a round in which what earlier ones have rejected runs again: once is enough."""
        self._ran = True

    def are_few(self) -> bool:
        """Whether the write may be sealed without those that are left out."""
        return self._on_error.allows(sum(file.rows for file in self.left_out()), self._input_rows())

    def require_few(self) -> None:
        """Refuse to go on with more rows left out than the write may leave out.

        :raises RowsToRetryError: if the next attempt is to run them again.
        :raises TooManyErrorsError: if somebody has to do something first.
        """
        if self.are_few():
            return
        files = self.left_out()
        rejected, rows = sum(file.rows for file in files), self._input_rows()
        header = self._write.header
        said = (
            f"The transform {header.transform} failed at {rejected:,} of {rows:,} rows of the input of the key {header.key!r}, "
            f"with {self._on_error}. {_listed(first_errors(self._write, files))} All other rows are staged and stay."
        )
        if self._on_error.policy == "retry":
            raise RowsToRetryError(
                f"{said} The next try runs those {rejected:,} again, and only those. If no try is left: {_what_to_do(header)}"
            )
        raise TooManyErrorsError(f"{said} {_what_to_do(header)}")

    def said_of(self, seal: Seal) -> str:
        """The first errors of what a seal leaves out, in one line."""
        try:
            return listed(first_errors(self._write, seal.rejected))
        except CheckpointError as error:
            # What is sealed stands without them.
            return f"their errors cannot be shown ({error})"

    def _records(self) -> Collection[Staged]:
        return self._write.records([split.id for split in self._write.source_splits])

    def _input_rows(self) -> int:
        read = {split.id for split in self._write.source_splits if split.task == READ}
        return sum(record.input_rows or 0 for record in self._records() if record.split in read)


def first_errors(write: StagedWrite, files: Sequence[RejectedFile]) -> list[tuple[int, str]]:
    """The first errors of rejected rows, each with the number of its row in the input of its split."""
    found: list[tuple[int, str]] = []
    for file in files[:_SHOWN]:
        for batch in rows_in(write.checkpoint.store, write.checkpoint.paths, file, None):
            found += zip(batch[ROW][:_SHOWN].to_pylist(), batch[ERROR][:_SHOWN].to_pylist(), strict=True)
            break
    return found[:_SHOWN]


def listed(errors: Sequence[tuple[int, str]]) -> str:
    """Errors in one line, as a log shows them."""
    return "; ".join(f"row {row:,}: {_short(error)}" for row, error in errors)


def _listed(errors: Sequence[tuple[int, str]]) -> str:
    return f"The first errors: {listed(errors)}."


def _short(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _what_to_do(header: Header) -> str:
    return (
        "Correct the function, or what it asks for, and clear the stage: rows that were rejected run again, and only those. "
        f"{how_to_continue(header)}"
    )
