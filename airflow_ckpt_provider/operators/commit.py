"""The commit: lands sealed checkpoints in one snapshot, once. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.checkpoint.checkpoint import State
from airflow_ckpt_provider.checkpoint.reference import CommitFacts, pointers, reference
from airflow_ckpt_provider.exceptions import CheckpointMissingError, InvalidInputError
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.lookup import find_checkpoint, iceberg_target
from airflow_ckpt_provider.tables import groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.reference import Reference


class CheckpointCommitOperator(BaseOperator):
    """Commit what a stage sealed: one atomic snapshot, however often this runs.

    :param checkpoint: a checkpoint reference, such as ``stage.output``; a list of them, such as the output of a mapped stage,
        for one snapshot of all; or an idempotence key (templated)
    :param checkpoint_conn_id: where to look up a bare key; a reference knows it itself
    :returns: the reference with ``state`` ``committed`` and the member ``commit``; a list of them for a list, in its order
    """

    template_fields: Sequence[str] = ("checkpoint",)

    def __init__(self, *, checkpoint: Any, checkpoint_conn_id: str = "checkpoint_default", **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.checkpoint_conn_id = checkpoint_conn_id

    def execute(self, context: Context) -> Reference | list[Reference]:
        """Commit, and return what was committed."""
        with airflow_errors():
            return self._execute(context)

    def _execute(self, context: Context) -> Reference | list[Reference]:
        del context
        found, is_list = pointers(self.checkpoint)
        _require_gapless(found)
        checkpoints = []
        for pointer in found:
            checkpoint = find_checkpoint(pointer, self.checkpoint_conn_id)
            if checkpoint is None:
                raise CheckpointMissingError(
                    f"There is no checkpoint under the key {pointer!r} in the store of the connection "
                    f"{self.checkpoint_conn_id!r}. Run its stage first, or correct the key."
                )
            checkpoints.append(checkpoint)
        header = checkpoints[0].header
        table = iceberg_target(checkpoints[0])
        self.log.info("Committing %d checkpoint(s) to %s, key %s.", len(checkpoints), header.table.identifier, header.key)
        settled = groups.commit(checkpoints, table)
        for snapshot_id in dict.fromkeys(one.commit.snapshot_id for one in settled):
            members = [one for one in settled if one.commit.snapshot_id == snapshot_id]
            self._log_outcome(snapshot_id, members)
        references = [_committed(one, pointer) for one, pointer in zip(settled, found, strict=True)]
        return references if is_list else references[0]

    def _log_outcome(self, snapshot_id: int | None, members: list[groups.Settled]) -> None:
        rows, files = sum(one.seal.rows for one in members), sum(one.seal.files for one in members)
        if snapshot_id is None:
            self.log.info("There was nothing to write, so there is no snapshot.")
        elif any(one.landed_now for one in members):
            self.log.info("Snapshot %d has landed: %s rows in %d files.", snapshot_id, f"{rows:,}", files)
        else:
            self.log.info("Snapshot %d had landed before: %s rows. Nothing is repeated.", snapshot_id, f"{rows:,}")


def _committed(one: groups.Settled, pointer: str | Reference) -> Reference:
    map_index = None if isinstance(pointer, str) else pointer.get("map_index")
    found = reference(one.checkpoint, one.seal, State.COMMITTED, recovered=one.seal.splits, written=0, map_index=map_index)
    found["commit"] = CommitFacts(
        snapshot_id=one.commit.snapshot_id, committed_at=one.commit.committed_at.isoformat(), landed_now=one.landed_now
    )
    return found


def _require_gapless(found: Sequence[str | Reference]) -> None:
    """Refuse the output of a mapped stage in which an instance is missing: its rows would be left out in silence.

    Airflow leaves instances that failed or were skipped out of a mapped task's output.
    """
    indexes = sorted(
        pointer["map_index"] for pointer in found if not isinstance(pointer, str) and pointer.get("map_index", -1) >= 0
    )
    missing = sorted(set(range(indexes[-1] + 1)) - set(indexes)) if indexes else []
    if missing:
        raise InvalidInputError(
            f"The mapped stage returned no reference for map index {', '.join(map(str, missing[:10]))}: it failed or was skipped. "
            "Let it succeed first; keep trigger_rule='all_success' on the commit."
        )
