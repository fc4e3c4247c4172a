"""How far a generation is: never stored, and told by which objects exist."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Commit, Seal, Tombstone

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.encoding import Document


class State(StrEnum):
    """How far a generation is, derived from what exists in the store."""

    PLANNED = "planned"
    STAGING = "staging"
    SEALED = "sealed"
    COMMITTED = "committed"
    UNDONE = "undone"
    DISCARDED = "discarded"
    FREED = "freed"


def state_of(checkpoint: Checkpoint) -> State:
    """How far this generation is, by what exists in the store.

    A commit that landed and was not recorded yet still reads as sealed here: see ``bound_group`` and the table's history.
    """
    for name, kind, state in (
        (checkpoint.paths.commit, Commit, State.COMMITTED),
        (checkpoint.paths.discard, Tombstone, State.DISCARDED),
        (checkpoint.paths.seal(), Seal, State.SEALED),
    ):
        if _is_proved(checkpoint, name, kind):
            if state is State.COMMITTED and checkpoint.header.undoes is not None:
                return State.UNDONE
            discarded = checkpoint.discarded() if state is State.DISCARDED else None
            return State.FREED if discarded is not None and discarded.freed else state
    return State.STAGING if checkpoint.store.exists(checkpoint.paths.plan()) and checkpoint.staged_ids() else State.PLANNED


def _is_proved(checkpoint: Checkpoint, name: str, kind: type[Document]) -> bool:
    """Whether an object exists; in a signed store, only one that is proved counts."""
    if checkpoint.store.signer is None:
        return checkpoint.store.exists(name)
    return checkpoint.store.read(name, kind) is not None
