"""The undo: one more commit takes out what a key has landed, and puts back what that has replaced. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.checkpoint.reference import pointers
from airflow_ckpt_provider.exceptions import CheckpointMissingError, UndoRefusedError
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.lookup import OwnConnections, latest_of, table_of
from airflow_ckpt_provider.write.outcome import commit_facts, commit_word
from airflow_ckpt_provider.write.undoing import undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.reference import CommitFacts, Reference


class UndoneKey(TypedDict):
    """What was undone of a key: ``generation`` has landed, and ``commit`` has taken it out of the table again."""

    idempotence_key: str
    generation: int
    table: str
    format: str
    commit: CommitFacts


class CheckpointUndoOperator(BaseOperator):
    """Take out of the table what a key has landed, and put back what that has replaced: one commit, however often this runs.

    It is refused, with names, and nothing is changed, where something was built on the commit: files of it that others have
    compacted, deleted from or replaced; and if it has itself replaced rows, any change of the table since. Undo later writes first.
    What is to come back must still be there: snapshots and files that were expired, or versions that were cleaned up, are gone.

    Afterwards the commit of the stage is refused and no sensor takes it for committed. The stage, cleared, writes everything anew.
    How far a source was read increment by increment goes back in the same commit. A table that the write has created stays, empty.

    :param checkpoint: a checkpoint reference, such as ``stage.output``; a list of them, which are undone one after the other, the
        last one first; or an idempotence key (templated)
    :param force: of an Iceberg write that has replaced rows: let rows that others have added since stand beside those that come
        back
    :param checkpoint_conn_id: connection of the checkpoint store; None for that of the reference, or ``checkpoint_default`` for a
        bare key. A reference of another one is refused
    :param iceberg_conn_id: connection of the table, where the checkpoint is a bare key of an Iceberg write; a reference has its own
    :param lance_conn_id: the same of a Lance write; None for the credentials of the environment
    :param table: the table, ``namespace.table`` or the dataset's URI; a checkpoint of another one is refused (templated)
    :param branch: the branch that the stage writes to; a checkpoint of another one is refused (templated)
    :returns: what was undone, see ``UndoneKey``; a list of them for a list
    """

    template_fields: Sequence[str] = ("checkpoint", "table", "branch")

    def __init__(
        self,
        *,
        checkpoint: Any,  # noqa: ANN401 - a reference, a list of them, a key, or an XCom that is one of those
        force: bool = False,
        checkpoint_conn_id: str | None = None,
        iceberg_conn_id: str = "iceberg_default",
        lance_conn_id: str | None = None,
        table: str | None = None,
        branch: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.force = force
        self.checkpoint_conn_id = checkpoint_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.lance_conn_id = lance_conn_id
        self.table = table
        self.branch = branch

    def execute(self, context: Context) -> UndoneKey | list[UndoneKey]:
        """Undo, and return what was undone."""
        with airflow_errors():
            given, is_list = pointers(self.checkpoint)
            asked_by = f"{context['ti'].dag_id} {context['ti'].task_id}"
            undone = [self._undo(pointer, asked_by) for pointer in reversed(given)][::-1]
            return undone if is_list else undone[0]

    def _undo(self, pointer: str | Reference, asked_by: str) -> UndoneKey:
        connections = OwnConnections.said_by(self)
        latest = latest_of(pointer, connections)
        if latest is None:
            raise CheckpointMissingError(
                f"There is no checkpoint under the key {pointer!r} in the store of the connection "
                f"{connections.store_of(pointer)!r}. Correct the key; if its stage never ran, there is nothing to undo."
            )
        header = latest.header
        generation = header.generation if header.undoes is None else header.undoes
        if not isinstance(pointer, str) and pointer["generation"] != generation:
            raise UndoRefusedError(
                f"The reference is to generation {pointer['generation']} of the key {header.key!r}, and generation {generation} "
                "took its place since. Nothing was changed. To undo that one, pass its own reference, or the key."
            )
        self.log.info("Undoing generation %d of the key %s in %s.", generation, header.key, header.table.identifier)
        done = undo(latest, table_of(latest, pointer, connections), asked_by, force=self.force)
        word = commit_word(latest).capitalize()
        if done.landed_now:
            self.log.info("%s %s has taken it out of %s.", word, done.commit.commit_id, header.table.identifier)
        else:
            self.log.info("%s %s had taken it out before. Nothing is repeated.", word, done.commit.commit_id)
        return UndoneKey(
            idempotence_key=header.key,
            generation=generation,
            table=header.table.identifier,
            format=header.table.format,
            commit=commit_facts(latest, done.commit, landed_now=done.landed_now),
        )
