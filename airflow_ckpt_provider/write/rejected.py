"""Rows that earlier attempts have rejected: when they run again, and whether a write may be sealed without those that are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.checkpoint.rejected import left_out, require_named, run_again
from airflow_ckpt_provider.exceptions import CheckpointError, RowsToRetryError, TooManyErrorsError
from airflow_ckpt_provider.sources.rejected.file import ERROR, ROW, rows_in
from airflow_ckpt_provider.write.rejecting import SHOWN, first_of, listed, what_to_do

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Plan, RejectedFile, Seal, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
    from airflow_ckpt_provider.write.rejecting import OnError


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
            f"with {self._on_error}. {first_of(first_errors(self._write, files))} All other rows are staged and stay."
        )
        if self._on_error.policy == "retry":
            raise RowsToRetryError(
                f"{said} The next try runs those {rejected:,} again, and only those. If no try is left: {what_to_do(header)}"
            )
        raise TooManyErrorsError(f"{said} {what_to_do(header)}")

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
    for file in files[:SHOWN]:
        for batch in rows_in(write.checkpoint.store, write.checkpoint.paths, file, None):
            found += zip(batch[ROW][:SHOWN].to_pylist(), batch[ERROR][:SHOWN].to_pylist(), strict=True)
            break
    return found[:SHOWN]
