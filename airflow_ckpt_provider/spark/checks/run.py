"""Running all checks, and saying what they found. Nothing is committed here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import (
    CheckFailedError,
    CheckpointError,
    InvalidInputError,
    RetryableError,
    StagedFileMissingError,
    StoppedError,
    TerminalError,
    panics_as_errors,
)
from airflow_ckpt_provider.spark.checks.frame import StagedFrame
from airflow_ckpt_provider.spark.checks.rows import StagedRows
from airflow_ckpt_provider.spark.error_summary import error_summary
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.staged_files import StagedFileCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.spark.checks.check import Check
    from airflow_ckpt_provider.tables.table import Table

#: Keys that a message shows.
_KEYS = 5


class Outcome(NamedTuple):
    """What one check found.

    :param number: from 1 on.
    :param passed: None if it could not say.
    :param detail: the values, or the error.
    """

    number: int
    check: Check
    passed: bool | None
    detail: str
    seconds: float
    problem: Exception | None = None

    def __str__(self) -> str:
        said = "could not be run" if self.passed is None else "passed" if self.passed else "FAILED"
        return f"Check {self.number}, {self.check.label}, {said}" + (f": {self.detail}" if self.detail else "")


class CheckRun:
    """The checks of one commit.

    :param writes: the checkpoints that are about to land, at least one.
    :param open_session: opens a Spark session; called once, and only if a check needs one.
    """

    def __init__(
        self, checks: Sequence[Check], table: Table, writes: Sequence[SealedWrite], open_session: Callable[[], SparkSession]
    ) -> None:
        self._checks = checks
        self._table = table
        self._writes = writes
        storage = look_at(table, writes[0].header.table, lambda state: state.storage)
        scan = look_at(table, writes[0].header.table, lambda state: state.storage.scan(writes))
        self._frame = StagedFrame(scan, storage.data_files(writes), open_session)
        self._staged = StagedRows(table, writes, self._frame)

    def run(self, report: Callable[[Outcome], None]) -> None:
        """Run all checks, one after the other, whatever the ones before it found.

        :param report: called after each.
        :raises CheckFailedError: if one of them failed, with all that did.
        :raises TerminalError: if none failed and one of them can never be run as it is.
        :raises RetryableError: if none failed and one of them broke, or they were stopped.
        """
        outcomes: list[Outcome] = []
        with self._frame:
            for number, check in enumerate(self._checks, 1):
                outcomes.append(self._run(number, check))
                report(outcomes[-1])
        self._conclude(outcomes)

    def cancel(self) -> None:
        """Stop the check that is running, with its Spark jobs (I12). Safe at any time, in a signal handler too."""
        self._frame.cancel()

    def _run(self, number: int, check: Check) -> Outcome:
        passed, detail = None, ""
        problem: Exception | None = None
        started = time.monotonic()
        if not self._frame.stopped:
            try:
                with panics_as_errors(f"in check {number}"):
                    passed, detail = check.run(self._staged)
            except Exception as error:  # noqa: BLE001 - a check is the user's code; see _conclude
                problem = error
        if self._frame.stopped:
            raise StoppedError(f"The checks of {self._what()} were stopped. The table is untouched and all is staged.") from problem
        if problem is not None:
            problem = self._explained(problem)
            detail = _said(problem)
        return Outcome(number, check, passed, detail, time.monotonic() - started, problem)

    def _explained(self, problem: Exception) -> Exception:
        """``problem``, or what is behind it."""
        from pyspark.errors import AnalysisException

        if isinstance(problem, AnalysisException):
            wrong = InvalidInputError(error_summary(problem))
            wrong.__cause__ = problem
            return wrong
        if not isinstance(problem, TerminalError):
            try:
                check = StagedFileCheck(self._writes, self._table)
                look_at(self._table, self._writes[0].header.table, check.require)
            except StagedFileMissingError as missing:
                return missing
        return problem

    def _conclude(self, outcomes: Sequence[Outcome]) -> None:
        failed = [outcome for outcome in outcomes if outcome.passed is False]
        broken = [outcome.problem for outcome in outcomes if outcome.problem is not None]
        lines = "".join(f"\n  {outcome}" for outcome in outcomes if not outcome.passed)
        if failed:
            raise CheckFailedError(
                f"{len(failed)} of {len(outcomes)} checks failed for {self._what()}:{lines}\n"
                "The table is untouched and everything stays staged. If a check is wrong, correct it and clear this task: nothing "
                "is written again. If the rows are wrong, correct the source or the transform, and redo stage and commit: "
                f"{how_to_restart(self._writes[0].header)}."
            )
        if broken:
            terminal = next((problem for problem in broken if isinstance(problem, TerminalError)), None)
            kind = RetryableError if terminal is None else type(terminal)
            raise kind(
                f"{len(broken)} of {len(outcomes)} checks could not be run for {self._what()}:{lines}\n"
                "The table is untouched and everything stays staged; once the check is corrected, clear this task."
            ) from (terminal or broken[0])

    def _what(self) -> str:
        keys = self._staged.keys
        shown = ", ".join(map(repr, keys[:_KEYS])) + (f" and {len(keys) - _KEYS} more" if len(keys) > _KEYS else "")
        return f"the {self._staged.rows:,} staged rows of {self._staged.table}, key{'s' if len(keys) > 1 else ''} {shown}"


def _said(problem: Exception) -> str:
    if isinstance(problem, CheckpointError):
        return str(problem)
    kind = type(problem)
    return error_summary(problem) if kind.__module__.startswith(("pyspark", "py4j")) else f"{kind.__name__}: {problem}"
