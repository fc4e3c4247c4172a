"""The rounds of one attempt: each stages the splits that are missing, until the write is complete. Knows no engine."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from airflow_ckpt_provider.write.planning import Round
    from airflow_ckpt_provider.write.work import SplitWork


@dataclass(frozen=True)
class Progress:
    """How far a stage is.

    :param done: splits staged, with those recovered from earlier attempts.
    :param rows: rows staged by this attempt.
    :param input_bytes: input bytes of the splits that this attempt staged.
    :param seconds: time since the first task was submitted.
    :param saved: rows of the input of splits that are not staged yet, and that no attempt has to do again.
    :param skew: what to tell of a split that is far larger than the others, once all are staged.
    :param changed: splits of which rows were saved that did not count any more, because the input is another; once all are staged.
    """

    done: int
    total: int
    recovered: int
    rows: int
    input_bytes: int
    input_bytes_left: int
    seconds: float
    saved: int = 0
    skew: str = ""
    changed: int = 0

    @property
    def mb_per_s(self) -> float:
        """Input read, in MB per second."""
        return self.input_bytes / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows staged per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds until all splits are staged, None before the first one is."""
        return self.seconds * self.input_bytes_left / self.input_bytes if self.input_bytes else None

    def __str__(self) -> str:
        eta = "?" if self.eta_s is None else f"{self.eta_s:.0f} s"
        return (
            f"{self.done}/{self.total} splits staged ({self.recovered} recovered), {self.rows:,} rows written "
            f"({self.rows_per_s:,.0f} rows/s, {self.mb_per_s:.1f} MB/s){self._saved_rows}, ETA {eta}"
        )

    @property
    def _saved_rows(self) -> str:
        return f", {self.saved:,} input rows of splits under way are saved" if self.saved else ""


class Job(Protocol):
    """The missing splits of one round, on an engine."""

    def run(self, report: Callable[[Progress], None]) -> None:
        """Stage all of them. However this is left, nothing is left running (I12).

        :param report: told the progress every few seconds, and at the end.
        """
        ...

    def cancel(self) -> None:
        """Stop. Safe at any time, from another thread and in a signal handler too, and before ``run``."""
        ...


class Engine(Protocol):
    """What runs splits, such as a Spark session."""

    @property
    def name(self) -> str:
        """What attempts are recorded with, such as ``local[2]``."""
        ...

    def start(self) -> None:
        """Start it, if it is not running."""
        ...

    def job(self, attempt: WriteAttempt, missing: Round, work: SplitWork) -> Job:
        """A job that stages the missing splits of a round.

        :param work: what each task does.
        """
        ...

    def cancel(self) -> None:
        """Stop the start of the engine, or keep it from being started. One that runs stays as it is."""
        ...


class Rounds:
    """Stages what an attempt finds missing, round after round. Can be stopped from another thread or a signal handler.

    :param try_number: of the Airflow task, for the record of the attempt.
    """

    def __init__(self, engine: Engine, try_number: int) -> None:
        self._engine = engine
        self._try_number = try_number
        self._job: Job | None = None
        self._cancelled = threading.Event()

    def run(self, attempt: WriteAttempt, announce: Callable[[Round], None], report: Callable[[Progress], None]) -> None:
        """Stage until there is no further round.

        :param announce: told each round before it begins.
        :param report: told the progress every few seconds.
        """
        while (missing := attempt.next_round()) is not None:
            announce(missing)
            self._engine.start()
            self._job = self._engine.job(attempt, missing, attempt.begin(self._engine.name, self._try_number))
            try:
                if self._cancelled.is_set():
                    # It was asked to stop while the engine was starting, or between two rounds.
                    self._job.cancel()
                self._job.run(report)
            finally:
                self._job = None

    def cancel(self) -> None:
        """Stop the job, or keep it from starting (I12). What is staged stays staged."""
        self._cancelled.set()
        self._engine.cancel()
        if self._job is not None:
            self._job.cancel()
