"""What a stage says while it runs: the same words in a task's log and in that of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from airflow_ckpt_provider.checkpoint.rejected import files_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.write.outcome import commit_word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.checkpoint.documents import Commit, Header, Seal
    from airflow_ckpt_provider.tables.missing import WhenMissing
    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from airflow_ckpt_provider.write.planning import Round
    from airflow_ckpt_provider.write.rounds import Progress


class Log(Protocol):
    """A logger, of the standard library or of Airflow."""

    def info(self, event: str, /, *args: Any) -> Any: ...  # noqa: ANN401 - whatever is shown
    def warning(self, event: str, /, *args: Any) -> Any: ...  # noqa: ANN401 - as above


class StageLog:
    """The log of one stage.

    :param log: where it goes.
    :param missing_columns: what the user said of columns that the rows lack, which are named if that is nothing.
    """

    def __init__(self, log: Log, missing_columns: WhenMissing) -> None:
        self._log = log
        self._missing_columns = missing_columns
        self._named: frozenset[str] = frozenset()

    def opened(self, attempt: WriteAttempt) -> None:
        """Say what the attempt works on."""
        checkpoint = attempt.checkpoint
        self._log.info(
            "Idempotence key %s, generation %d, table %s, store %s: %s.",
            checkpoint.key, checkpoint.header.generation, checkpoint.header.table.identifier, checkpoint.store.uri, attempt.state,
        )  # fmt: skip
        if attempt.looked_again:
            self._log.info("Nothing of the generation before it has landed, and %s.", attempt.looked_again)
        if checkpoint.header.replaces is not None:
            self._log.info(
                "Its commit replaces what generation %d of the key has committed.", checkpoint.header.replaces,
            )  # fmt: skip
        if attempt.has_other_code and attempt.commit is None:
            self._log.info("Going on with other code than this write began with. What is staged stays as it is.")
        for line in attempt.evolved:
            self._log.info("The schema of %s was evolved: %s.", checkpoint.header.table.identifier, line)

    def reused(self, attempt: WriteAttempt, commit: Commit) -> None:
        """Say that the key is committed already."""
        self._log.info(
            "The key is committed already as %s %s, at %s. Nothing is written; no Spark is started.",
            commit_word(attempt.checkpoint), commit.commit_id, commit.committed_at.isoformat(),
        )  # fmt: skip

    def uncommitted(self, attempt: WriteAttempt) -> None:
        """Warn of what there is to read now and is not in the committed write. What is committed stays, whatever is found."""
        news = self._news(attempt)
        if news:
            self._log.warning(
                "The committed write does not have all that there is to read now: %s. To have it, set on_rerun='replace' on this "
                "stage and clear it and its commit, which writes everything anew in place of what was committed; or write what is "
                "new under another idempotence_key.", news,
            )  # fmt: skip

    def unplanned(self, attempt: WriteAttempt) -> None:
        """Warn of files that a plan from the store does not read: they came later, or the plan was altered. The plan stands."""
        news = self._news(attempt)
        if news:
            self._log.warning(
                "The write keeps the plan that an earlier attempt has made, and does not read all that there is to read now: %s. "
                "If that came later, write it under another idempotence_key, or %s. If not, see who can write to the checkpoint "
                "store.", news, how_to_restart(attempt.checkpoint.header),
            )  # fmt: skip

    def _news(self, attempt: WriteAttempt) -> str | None:
        """What there is to read now and was not planned; None, and a warning, if that cannot be told."""
        try:
            return attempt.news()
        except Exception as error:  # noqa: BLE001 - what is written stands, be the source as it may
            self._log.warning("What there is to read now could not be compared with what was planned: %s", error)
            return None

    def announce(self, begun: Round, attempt: WriteAttempt) -> None:
        """Say what a round has to stage."""
        self.missing(attempt)
        total, missing = len(begun.plan.splits), len(begun.missing)
        which = f"Round {begun.number}: " if begun.number > 1 else ""
        self._log.info("%s%d splits planned: %d are staged already, %d to write.", which, total, total - missing, missing)
        rejected = sum(file.rows for split in begun.missing for file in files_of(split))
        if rejected:
            self._log.info("%s rows of the input at which the transform failed before run again.", f"{rejected:,}")
        splits, rows = attempt.saved
        if splits:
            self._log.info("Of %d of those to write, %s rows of the input are done. They go on behind them.", splits, f"{rows:,}")

    def report(self, progress: Progress) -> None:
        """Say how far it is."""
        self._log.info("%s", progress)
        if progress.skew:
            self._log.warning("%s", progress.skew)
        if progress.changed:
            self._log.warning(
                "The ids of %d splits are others than when an earlier attempt saved rows of them: nothing that was saved of these "
                "counts, and all of their rows were computed. A DataFrame keeps what is saved if each attempt computes it of the "
                "same input.", progress.changed,
            )  # fmt: skip

    def ran(self, attempt: WriteAttempt, *, started: bool) -> None:
        """Say what the rounds took, once all is staged.

        :param started: whether anything had to be computed.
        """
        for cost in attempt.check_costs:
            if cost.is_long:
                self._log.info("Looking at %s files staged before took %.1f s.", f"{cost.files:,}", cost.seconds)
        if attempt.lost:
            self._log.warning("Files of %d splits that were staged before were gone: those were staged again.", attempt.lost)
        if not started:
            self._log.info("Everything is staged. No Spark is started.")

    def missing(self, attempt: WriteAttempt) -> None:
        """Name the columns that are null because the rows lack them, each once."""
        new = attempt.missing - self._named
        self._named |= new
        if new and self._missing_columns is None:
            self._log.warning(
                "The rows do not have these columns of %s, which are null in them: %s. To refuse such rows, set "
                "missing_columns='fail' on this stage; if null is meant, missing_columns='null'.",
                attempt.checkpoint.header.table.identifier, ", ".join(sorted(new)),
            )  # fmt: skip

    def rejected(self, attempt: WriteAttempt, seal: Seal) -> None:
        """Say how many rows are left out, and why the first of them are."""
        if seal.rejected:
            self._log.warning(
                "The transform failed at %s rows of the input, which are left out: %s. They are kept beside the write: "
                "Rejected(<output of this stage>) is a source that reads them.",
                f"{seal.rejected_rows:,}", attempt.rejections.said_of(seal),
            )  # fmt: skip

    def sealed(self, attempt: WriteAttempt, seal: Seal) -> None:
        """Say what is sealed."""
        header = attempt.checkpoint.header
        lands, recovered = mode_type(header).lands, attempt.recovered(seal)
        if not seal.splits and lands:
            self._log.warning("The source has nothing to read. With mode=%r the commit %s.", header.mode, _without_rows(header))
        elif not seal.splits:
            self._log.warning("The source has nothing to read, and so has the next task.")
        self._log.info(
            "Sealed: %d splits (%d recovered, %d written now), %s rows in %d files%s. Ready to be %s.",
            seal.splits, recovered, seal.splits - recovered, f"{seal.rows:,}", seal.files, _counted(seal.counts),
            "committed" if lands else "read by the next task",
        )  # fmt: skip


def _without_rows(header: Header) -> str:
    """What a commit without rows does."""
    if header.table.creation is not None:
        return "makes a table without rows"
    if header.mode == "overwrite":
        return "removes what it was to replace, and adds nothing"
    return "changes nothing, unless it replaces an earlier one"


def _counted(counts: Mapping[str, int]) -> str:
    """What became of the rows, where a mode distinguishes: ``; inserted 5, unchanged 3``."""
    return "; " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) if counts else ""
