"""Which asset events a commit emits: one for each outlet when something lands, and none when nothing does.

Airflow itself records an event for each asset of a task's ``outlets`` whenever the task succeeds, so that a cleared commit, which
finds its snapshot in the table, would start all DAGs that are scheduled on the asset once more.

Decision: a task may be killed between the commit and Airflow's note of its success, which is when events are recorded. So a task
notes in its state store that it is about to commit, and a later try that finds the commit landed before looks whether the asset
has an event of it, and emits the event if not. Airflow keeps that note for some weeks, and is asked for the newest events only: no
clocks are compared.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetRef

from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.hooks.asset_uris import asset_uri
from airflow_ckpt_provider.write.looks import look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from airflow.sdk import BaseOperator, Context
    from pydantic import JsonValue

    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.groups import Settled

    PartitionsOf: TypeAlias = Callable[[Sequence[Reference]], Sequence[str]]

_log = logging.getLogger(__name__)

#: Key of the note in the state store of a task instance.
_NOTE = "asset_events_due"

#: Events of an asset among which that of a commit is looked for.
_NEWEST = 1000

#: Characters of a partition key that Airflow keeps.
_LONGEST_KEY = 250

#: Keys of a commit that an event names.
_KEYS = 20

#: Names of a commit in references and in what an event says.
_COMMIT_IDS = ("snapshot_id", "version")


class AssetEvents:
    """The asset events of one try of a commit, which begins with this.

    :param task: as it is run.
    """

    def __init__(self, task: BaseOperator, context: Context) -> None:
        self._task = task
        self._context = context
        self._is_asked = any(isinstance(outlet, Asset | AssetRef | AssetAlias) for outlet in task.outlets)
        #: Whether an earlier try may have landed what this one finds, and Airflow was not told.
        self._was_begun = self._is_asked and bool(context["task_state_store"].get(_NOTE))
        if self._is_asked and not self._was_begun:
            context["task_state_store"].set(_NOTE, value=True)

    def emit(self, references: Sequence[Reference], partitions_of: PartitionsOf | None = None) -> list[str]:
        """Say with each outlet what has landed; take those outlets away of which nothing is to be told.

        An asset gets one event of all that has landed, an alias one for each commit, of the table's own asset.

        :param references: of what was committed, as the task returns them.
        :param partitions_of: which partitions commits have written to, for an asset to get an event for each; None for one of all.
        :returns: names of the assets that get an event.
        """
        if not self._is_asked:
            return []
        kept, told = [], []
        for outlet in self._task.outlets:
            if not isinstance(outlet, Asset | AssetRef | AssetAlias):
                kept.append(outlet)
                continue
            event = self._context["outlet_events"][outlet]
            if isinstance(outlet, AssetAlias):
                kept.append(outlet)
                asset = Asset(asset_uri(references[0]))
                news = self._news(asset, references)
                for commit in news:
                    event.add(asset, extra=_extra(commit))
                told += [asset.name] if news else []
            elif news := self._news(outlet, references):
                kept.append(outlet)
                landed = [reference for commit in news for reference in commit]
                event.extra = _extra(landed)
                if partitions_of is not None:
                    event.add_partitions(_partition_keys(partitions_of(landed)))
                told.append(_name(outlet))
        # On success, Airflow takes the outlets of the task that was run.
        self._task.outlets = kept
        if not (self._was_begun or told):
            # Another task has landed it, and tells of it.
            self._context["task_state_store"].delete(_NOTE)
        return told

    def _news(self, asset: Asset | AssetRef, references: Sequence[Reference]) -> list[list[Reference]]:
        """References by their commits, of which an asset is to be told."""
        commits = _commits(references)
        untold = self._was_begun and not all(commit[0]["commit"]["landed_now"] for commit in commits)
        known = _told(asset) if untold else set()
        return [
            commit
            for commit in commits
            if commit[0]["commit"]["landed_now"] or (self._was_begun and _commit_id(commit[0]) not in known)
        ]


def partitions_of(table: Table, members: Sequence[Settled]) -> Sequence[str]:
    """Partitions that commits have written to, as ``day=2026-01-01/region=eu``; none of a table that has none.

    Those of a write whose records a sweep has removed since are not known any more.
    """
    writes = [SealedWrite(member.checkpoint, member.seal) for member in members]
    writes = [write for write in writes if not write.is_compact]
    if not writes:
        return ()
    return look_at(table, writes[0].header.table, lambda state: state.storage.partitions(writes))


def _partition_keys(partitions: Sequence[str]) -> list[str]:
    """Those of which Airflow can be told."""
    keys = [key for key in partitions if key.strip() and len(key) <= _LONGEST_KEY]
    if not keys:
        _log.warning("Nothing that has landed is in a partition, so that there is one event of all of it.")
    elif len(keys) < len(partitions):
        left_out = len(partitions) - len(keys)
        _log.warning("%d partitions have names of more than %d characters, and get no event.", left_out, _LONGEST_KEY)
    return keys


def _name(asset: Asset | AssetRef) -> str:
    return str(getattr(asset, "name", None) or getattr(asset, "uri", ""))


def _commits(references: Sequence[Reference]) -> list[list[Reference]]:
    """References by their commits; those that had nothing to write are left out."""
    commits: dict[int, list[Reference]] = {}
    for reference in references:
        commit_id = _commit_id(reference)
        if commit_id is not None:
            commits.setdefault(commit_id, []).append(reference)
    return list(commits.values())


def _commit_id(reference: Reference) -> int | None:
    facts: Any = reference["commit"]
    return next((facts[name] for name in _COMMIT_IDS if name in facts), None)


def _extra(references: Sequence[Reference]) -> dict[str, JsonValue]:
    """What an event says: sums of all references, and the newest of their commits."""
    newest = max(references, key=lambda reference: reference["commit"]["committed_at"])
    commit: Any = newest["commit"]
    keys: list[Any] = [reference["idempotence_key"] for reference in references[:_KEYS]]
    return {
        **{name: commit[name] for name in _COMMIT_IDS if name in commit},
        "committed_at": commit["committed_at"],
        "table": newest["table"],
        "branch": newest["branch"],
        "mode": newest["mode"],
        "rows": sum(reference["rows"] for reference in references),
        "files": sum(reference["files"] for reference in references),
        "idempotence_key": keys[0],
        **({"idempotence_keys": keys} if len(references) > 1 else {}),
    }


def _told(asset: Asset | AssetRef) -> set[object]:
    """Ids of the commits that the newest events of an asset name."""
    from airflow.sdk.execution_time.context import InletEventsAccessors

    events = InletEventsAccessors([asset])[asset].ascending(ascending=False).limit(_NEWEST)
    return {(event.extra or {}).get(name) for event in events for name in _COMMIT_IDS}
