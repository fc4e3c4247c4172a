"""What a task does with rows at which the transform fails: how many it may come upon, where it keeps them, and how they run again.

See ``checkpoint.rejected`` for what is stored of them, ``write.work`` for the tasks, and ``write.rejected`` for what an attempt
does with what they have rejected.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_ckpt_provider.checkpoint.rejected import files_of
from airflow_ckpt_provider.checkpoint.restart import how_to_continue
from airflow_ckpt_provider.exceptions import TooManyErrorsError
from airflow_ckpt_provider.sources.rejected.file import ROW, SPLIT, RejectedRows, rows_in
from airflow_ckpt_provider.sources.transform import not_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, Split
    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.transforms.steps import FailedRows, Failure

WhenFailing = Literal["fail", "skip", "retry"]

#: Errors that a message shows, and characters of each.
SHOWN, _LONGEST = 3, 300

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
        self._first += failed.failures[: SHOWN - len(self._first)]
        if self._places is not None or self._on_error.goes_on(self._rejected, self._rows):
            return
        first = first_of([(failure.row, failure.error) for failure in self._first])
        raise TooManyErrorsError(
            f"The transform {self._header.transform} failed at {self._rejected:,} of the first {self._rows:,} rows that were done "
            f"of the split {self._split}, with {self._on_error}. {first} What was saved before stays. {what_to_do(self._header)}"
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

    def places(self, split: Split) -> list[str]:
        """The splits whose rows they are."""
        return [f"rows of split {file.split} that run again" for file in files_of(split)]


def listed(errors: Sequence[tuple[int, str]]) -> str:
    """Errors in one line, as a log shows them."""
    return "; ".join(f"row {row:,}: {_short(error)}" for row, error in errors)


def first_of(errors: Sequence[tuple[int, str]]) -> str:
    """The same as a sentence of a message."""
    return f"The first errors: {listed(errors)}."


def _short(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def what_to_do(header: Header) -> str:
    """How to go on with a write that has rejected more rows than it may leave out."""
    return (
        "Correct the function, or what it asks for, and clear the stage: rows that were rejected run again, and only those. "
        f"{how_to_continue(header)}"
    )
