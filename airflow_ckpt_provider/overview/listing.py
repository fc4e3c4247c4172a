"""The checkpoints in a store: one listing of its objects, and three small documents of the newest generation of each key."""

from __future__ import annotations

import fnmatch
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Header
from airflow_ckpt_provider.checkpoint.encoding import corrupt
from airflow_ckpt_provider.checkpoint.inventory import Inventory
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import CheckpointError, InvalidInputError, first_line
from airflow_ckpt_provider.overview.facts import Summary
from airflow_ckpt_provider.tables.format import mode_type

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.inventory import GenerationObjects
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore

_WILDCARDS = frozenset("*?[")


def listing(store: CheckpointStore, keys: str = "*") -> list[Summary]:
    """The newest generation of each key, the one that changed last first.

    :param keys: which keys, as a pattern of ``fnmatch`` with ``*``, ``?`` and ``[…]``; upper and lower case differ.
    :raises StoreError: if the store does not answer. What cannot be read of one checkpoint is its ``problem``.
    """
    one_key = "" if _WILDCARDS.intersection(keys) else IdempotenceKey(keys).hash
    newest = [generations[max(generations)] for generations in Inventory.of(store, one_key).generations.values()]
    summaries = store.each(lambda objects: summary(store, objects), newest)
    chosen = [found for found in summaries if fnmatch.fnmatchcase(found.key, keys) or found.key == keys]
    never = datetime.min.replace(tzinfo=UTC)
    return sorted(chosen, key=lambda found: found.changed_at or never, reverse=True)


def summary(store: CheckpointStore, objects: GenerationObjects) -> Summary:
    """One generation, by what lies there.

    :param objects: as they were listed.
    """
    folder, generation = objects.paths.root.rstrip("/"), objects.paths.generation
    try:
        checkpoint = _opened(store, objects)
    except CheckpointError as error:
        return Summary(
            key="", generation=generation, state=None, changed_at=objects.modified, folder=folder, problem=first_line(error)
        )
    header = checkpoint.header
    facts: dict[str, object] = {}
    problem, state = "", None
    try:
        state = state_of(checkpoint)
        facts = _progress(checkpoint, state)
    except CheckpointError as error:
        problem = first_line(error)
    return Summary(
        key=header.key,
        generation=generation,
        state=state,
        table=header.table.identifier,
        format=header.table.format,
        branch=header.table.branch,
        mode=header.mode,
        lands=lands(header),
        dag_id=header.origin.dag_id,
        task_id=header.origin.task_id,
        run_id=header.origin.run_id,
        map_index=header.origin.map_index,
        created_at=header.created_at,
        changed_at=objects.modified,
        attempts=objects.kinds["attempts"],
        staged=objects.kinds["staged"],
        folder=folder,
        problem=problem,
        **facts,  # type: ignore[arg-type]
    )


def lands(header: Header) -> bool:
    """Whether a commit is to land the write; a header of no known format or mode does not say otherwise."""
    try:
        return mode_type(header).lands
    except InvalidInputError:
        return True


def _opened(store: CheckpointStore, objects: GenerationObjects) -> Checkpoint:
    """The generation, whose key only its header tells."""
    header = store.read(objects.paths.header, Header)
    if header is None:
        raise corrupt(objects.paths.header, "is missing, though other objects of its generation are there")
    if IdempotenceKey(header.key).hash != objects.paths.key_hash or header.generation != objects.paths.generation:
        raise corrupt(objects.paths.header, f"belongs to the key {header.key!r}, generation {header.generation}")
    return Checkpoint(store, header)


def _progress(checkpoint: Checkpoint, state: State) -> dict[str, object]:
    """How much of a generation is done, as far as its state says that there is something to read."""
    facts: dict[str, object] = {}
    if state in {State.COMMITTED, State.UNDONE} and (commit := checkpoint.committed()) is not None:
        facts |= {"commit_id": commit.commit_id, "committed_at": commit.committed_at}
    seal = checkpoint.sealed()
    if seal is not None:
        sizes = {"splits": seal.splits, "rows": seal.rows, "bytes": seal.bytes, "files": seal.files}
        return facts | sizes | {"sealed_at": seal.sealed_at}
    plans = checkpoint.plans() if state in {State.PLANNED, State.STAGING} else []
    return facts | ({"splits": len(plans[-1].splits)} if plans else {})
