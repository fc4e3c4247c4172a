"""What the pages are made of: facts of checkpoints, put into the words and figures that the templates show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import jinja2

from airflow_ckpt_provider.checkpoint.documents import UNDO
from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.hooks.configuration import commit_expected_within
from airflow_ckpt_provider.overview.actions import Action
from airflow_ckpt_provider.ui import words
from airflow_ckpt_provider.ui.grid import legend, letters
from airflow_ckpt_provider.ui.timeline import bars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.overview.facts import Details, Summary
    from airflow_ckpt_provider.ui.access import Viewer
    from airflow_ckpt_provider.ui.task_states import TaskState

#: The parts of a checkpoint's page that change while it runs, as their templates are named.
PARTS = ("head", "problems", "numbers", "next", "legend", "attempts", "commit", "about", "actions")

#: States in which nothing happens by itself any more.
FINAL = frozenset({State.COMMITTED, State.UNDONE, State.DISCARDED, State.FREED})

#: Milliseconds until a page asks again, while splits may be staged, and while a commit is waited for.
STAGING_PAUSE, PAUSE = 2_500, 5_000

_STAGING = frozenset({State.PLANNED, State.STAGING})
_UNFINISHED = frozenset({State.PLANNED, State.STAGING, State.SEALED})


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("airflow_ckpt_provider.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("count", "plural", "size", "duration", "age", "time", "query"):
        environment.globals[name] = getattr(words, name)
    environment.filters["safely"] = without_credentials
    environment.globals["overdue"] = overdue
    return environment


def render(template: str, **values: object) -> str:
    """A template of this package, with everything escaped that is put into it."""
    return _ENVIRONMENT.get_template(template).render(**values)


def overdue(summary: Summary) -> bool:
    """Whether a write has been sealed for long, and no commit has landed it."""
    return (
        summary.lands
        and summary.state is State.SEALED
        and summary.sealed_at is not None
        and datetime.now(UTC) - summary.sealed_at > commit_expected_within()
    )


class CheckpointPage(NamedTuple):
    """The page of one generation.

    :param details: what is there.
    :param viewer: who looks.
    :param conn_id: connection of the store.
    :param task: what Airflow says of the task instance that its newest attempt belongs to; None if it says nothing.
    :param pinned: the generation that the address names; None for the newest.
    """

    details: Details
    viewer: Viewer
    conn_id: str
    task: TaskState | None
    pinned: int | None = None

    def html(self) -> str:
        """The whole page."""
        return render("checkpoint.html", parts=PARTS, **self._values())

    def live(self) -> dict[str, object]:
        """What has changed of it, for the script that asks every few seconds."""
        values = self._values()
        return {
            "final": values["final"],
            "pause": values["pause"],
            "letters": values["letters"],
            "parts": {name: render(f"parts/{name}.html", **values) for name in PARTS},
        }

    def _values(self) -> Mapping[str, object]:
        details, summary = self.details, self.details.summary
        running = self.task is not None and self.task.is_running and summary.state in _STAGING
        return {
            "d": details,
            "s": summary,
            "conn_id": self.conn_id,
            "generation": self.pinned,
            "title": summary.key,
            "task": self.task,
            "running": running,
            "final": summary.state in FINAL,
            "pause": STAGING_PAUSE if summary.state in _STAGING else PAUSE,
            "headline": headline(summary),
            "letters": letters(details.splits),
            "legend": legend(details.splits),
            "staged": sum(split.attempt is not None for split in details.splits) if details.splits else summary.staged,
            "bars": bars(details.attempts, running=running),
            "actions": self._actions(),
        }

    def _actions(self) -> list[Action]:
        """What the viewer may do now: only to the newest generation."""
        details, summary = self.details, self.details.summary
        newest = summary.generation == max(details.generations)
        if not newest or not self.viewer.may_change(summary.dag_id):
            return []
        committed = summary.state is State.COMMITTED and summary.lands and summary.commit_id is not None
        if committed or _undo_begun(summary):
            return [Action.UNDO, Action.CLEAN] if committed else [Action.UNDO]
        if summary.lands and summary.state in {State.UNDONE, State.DISCARDED, State.COMMITTED}:
            return [Action.CLEAN]
        if summary.state not in _UNFINISHED:
            return []
        going_on = [Action.CONTINUE] if details.transform and summary.state is not State.SEALED else []
        return [*going_on, Action.RESTART, Action.DISCARD]


def headline(summary: Summary) -> str:
    """What has become of a write, as one sentence."""
    rows = words.plural(summary.rows or 0, "row")
    staged = words.count(summary.staged)
    total = "splits" if summary.splits is None else words.plural(summary.splits, "split")
    says = {
        State.PLANNED: "Nothing is staged yet.",
        State.STAGING: f"{staged} splits are staged." if summary.splits is None else f"{staged} of {total} are staged.",
        State.SEALED: f"All {total} are staged. {rows} "
        + (f"wait for their commit into {summary.table}." if summary.lands else "are there for the next task to read."),
        State.COMMITTED: _landed(summary, rows),
        State.UNDONE: f"Undone: what it had landed in {summary.table} was taken out again.",
        State.DISCARDED: "Given up. It is not committed any more.",
        State.FREED: f"All tasks that have read its {rows} are done, and the rows were removed.",
    }
    if summary.state is None:
        return "Its state cannot be told: something in the store cannot be read."
    return "An undo was begun and has not landed. Asked for again, it goes on." if _undo_begun(summary) else says[summary.state]


def _undo_begun(summary: Summary) -> bool:
    """Whether the generation is an undo that has not ended."""
    return summary.mode == UNDO and summary.state in _UNFINISHED


def _landed(summary: Summary, rows: str) -> str:
    if summary.commit_id is None:
        return "Committed: there was nothing to write."
    return f"{rows} landed in {summary.table}, in {'version' if summary.format == 'lance' else 'snapshot'} {summary.commit_id}."


_ENVIRONMENT = _environment()
