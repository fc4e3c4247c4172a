"""From a reference or key to its checkpoint and table. Connection ids come from the DAG or the reference, never the store (I15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Connections
from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.layout import rows_folder
from airflow_ckpt_provider.checkpoint.reference import require_same_table, resolve
from airflow_ckpt_provider.checkpoint.restart import is_program
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import BindingMismatchError, InvalidInputError
from airflow_ckpt_provider.hooks.catalog import DEFAULT_CONN_ID
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook
from airflow_ckpt_provider.hooks.spark import DEFAULT_CONN_ID as DEFAULT_SPARK
from airflow_ckpt_provider.hooks.tables import open_table
from airflow_ckpt_provider.tables.format import format_of, mode_type
from airflow_ckpt_provider.write import commits

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.tables.table import Table


class TakesUp(Protocol):
    """An operator, sensor or trigger that takes up a checkpoint, by a reference or a bare key. They have these arguments alike."""

    checkpoint_conn_id: str | None
    iceberg_conn_id: str
    lance_conn_id: str | None
    table: str | None
    branch: str | None


class OwnConnections(NamedTuple):
    """What the DAG says to an operator that takes up a checkpoint.

    :param checkpoint: connection of the store; None for that of a reference, or the default one for a bare key.
    :param iceberg: connection of an Iceberg table whose checkpoint is given by a bare key, or was staged by a program.
    :param lance: the same of a Lance dataset; None for the environment's credentials.
    :param table: the one table that a checkpoint may have; any of these connections if None.
    :param branch: the one branch that a checkpoint may have; any of the table if None.
    """

    checkpoint: str | None = None
    iceberg: str = DEFAULT_CONN_ID
    lance: str | None = None
    table: str | None = None
    branch: str | None = None

    @classmethod
    def said_by(cls, task: TakesUp) -> OwnConnections:
        """What the DAG says to a task."""
        return cls(task.checkpoint_conn_id, task.iceberg_conn_id, task.lance_conn_id, task.table, task.branch)

    def store_of(self, pointer: str | Reference) -> str:
        """Id of the connection of a pointer's store.

        :raises InvalidInputError: if a reference has another one than the operator was given.
        """
        if isinstance(pointer, str) or not pointer["checkpoint_conn_id"]:
            # A program that has staged it knows no connections.
            return self.checkpoint or CheckpointHook.default_conn_name
        if self.checkpoint not in {None, pointer["checkpoint_conn_id"]}:
            raise InvalidInputError(
                f"The reference to the key {pointer['idempotence_key']!r} is of the checkpoint connection "
                f"{pointer['checkpoint_conn_id']!r}, and this task was given checkpoint_conn_id={self.checkpoint!r}. Leave "
                "checkpoint_conn_id out, or give it the connection of the stage."
            )
        return pointer["checkpoint_conn_id"]

    def of(self, checkpoint: Checkpoint, pointer: str | Reference) -> Connections:
        """All connections of a checkpoint; that of the table is empty where the environment's credentials open it.

        :raises BindingMismatchError: for a bare key of a table of another format than operators write.
        """
        store = self.store_of(pointer)
        if not isinstance(pointer, str) and pointer["checkpoint_conn_id"]:
            return Connections(table=pointer["table_conn_id"], spark=pointer["spark_conn_id"], checkpoint=store)
        if _is_for_next(checkpoint):
            return Connections(table=store, spark=DEFAULT_SPARK, checkpoint=store)
        given, kind = {"iceberg": self.iceberg, "lance": self.lance or ""}, checkpoint.header.table.format
        if kind not in given:
            raise BindingMismatchError(
                f"The checkpoint of the key {checkpoint.key.value!r} is of a table of the format {kind!r}, which no stage "
                "writes by itself: the store was altered. Nothing was changed. Pass the stage's output instead of its key."
            )
        return Connections(table=given[kind], spark=DEFAULT_SPARK, checkpoint=store)

    def require(self, checkpoint: Checkpoint, pointer: str | Reference) -> None:
        """Refuse a generation that the store binds to another connection or table than the DAG, or the reference, says (I15).

        :raises BindingMismatchError: naming both.
        """
        header = checkpoint.header
        if _is_for_next(checkpoint) and header.table.identifier != rows_folder(checkpoint.store.uri, checkpoint.key.hash):
            raise BindingMismatchError(
                f"The checkpoint of the key {checkpoint.key.value!r} says that its rows are staged in {header.table.identifier}, "
                f"and they belong below {checkpoint.store.uri}. The store was altered; nothing was changed."
            )
        if self.table is not None and header.table.identifier not in {
            self.table,
            format_of(header.table.format).named(self.table),
        }:
            raise BindingMismatchError(
                f"The checkpoint of the key {checkpoint.key.value!r} is bound to the table {header.table.identifier}, and this "
                f"task was given table={self.table!r}. Correct the key or the table; if both are right, the store was altered."
            )
        if self.branch not in {None, header.table.branch}:
            raise BindingMismatchError(
                f"The checkpoint of the key {checkpoint.key.value!r} is bound to the branch {header.table.branch!r} of "
                f"{header.table.identifier}, and this task was given branch={self.branch!r}. Correct the key or the branch; if "
                "both are right, the store was altered."
            )
        if not isinstance(pointer, str):
            require_same_table(checkpoint, pointer)
        elif not is_program(header.origin) and header.connections.table != (table := self.of(checkpoint, pointer).table):
            name = f"{header.table.format}_conn_id"
            raise BindingMismatchError(
                f"The checkpoint of the key {checkpoint.key.value!r} says that {header.table.identifier} was written through the "
                f"connection {header.connections.table!r}, and this task was given {name}={table!r}. A key "
                f"alone does not say which is right: pass {name} as the stage has it, or the stage's output instead of its key."
            )


def find_checkpoint(pointer: str | Reference, connections: OwnConnections) -> Checkpoint | None:
    """The checkpoint of a reference or bare key; None if a bare key is not known yet.

    :param connections: what the DAG says.
    :raises BindingMismatchError: if the store says otherwise than the DAG or the reference.
    """
    checkpoint = resolve(CheckpointHook(connections.store_of(pointer)).get_conn(), pointer)
    if checkpoint is not None:
        connections.require(checkpoint, pointer)
    return checkpoint


def said_of_unknown(pointer: str | Reference, connections: OwnConnections) -> str | None:
    """What to tell whoever waits for a key under which nothing was staged yet; None of one that is known."""
    if not isinstance(pointer, str) or find_checkpoint(pointer, connections) is not None:
        return None
    return (
        f"Nothing was staged under the key {pointer!r} yet in the store of the connection {connections.store_of(pointer)!r}. Its "
        "stage has not begun, or writes under another key or to another store: its log says which."
    )


def latest_of(pointer: str | Reference, connections: OwnConnections) -> Checkpoint | None:
    """The newest generation of a reference's key, or of a bare one; None if that is not known yet.

    :param connections: what the DAG says.
    """
    checkpoint = find_checkpoint(pointer, connections)
    return None if checkpoint is None else Checkpoint.latest(checkpoint.store, checkpoint.key)


def table_of(checkpoint: Checkpoint, pointer: str | Reference, connections: OwnConnections) -> Table:
    """The table of a pointer's checkpoint, or of another generation of its key.

    :param connections: what the DAG says.
    :raises BindingMismatchError: if the store says otherwise than the DAG or the reference.
    """
    connections.require(checkpoint, pointer)
    bound = checkpoint.header.table
    conn_id = connections.of(checkpoint, pointer).table
    table = open_table(bound.format, bound.identifier, bound.branch, conn_id)
    if isinstance(pointer, str) or pointer["generation"] != checkpoint.header.generation:
        # No reference vouches for this header.
        table.require_creation(bound, None)
    return table


def reached(pointer: str | Reference, until: State, connections: OwnConnections) -> bool:
    """Whether a checkpoint is sealed, or committed.

    A commit that landed and was not recorded counts: the table's history is asked if a commit was ever begun.

    :param connections: what the DAG says.
    :raises DiscardedError: if it was discarded, so that it never will be.
    :raises UndoneError: if its commit was undone. A bare key waits for the next one.
    :raises CorruptObjectError: if the store says that it is committed, and that was no commit of what is staged.
    :raises RolledBackError: if the table does not show its commit; see ``commits.verify``.
    """
    checkpoint = find_checkpoint(pointer, connections)
    if checkpoint is None:
        return False
    if until is State.COMMITTED and _is_for_next(checkpoint):
        raise InvalidInputError(
            f"The rows of the key {checkpoint.key.value!r} are staged for the next task to read, and no commit lands them: this "
            "task would wait in vain. Wait with until='sealed'."
        )
    if checkpoint.header.undoes is not None:
        # What the key had committed is taken out again, or about to be.
        return False
    recorded = checkpoint.committed()
    if recorded is not None:
        # Only once, before whatever waits goes on: the record alone proves nothing (I15).
        table = table_of(checkpoint, pointer, connections)
        commits.require_not_undone(checkpoint, table)
        commits.verify(checkpoint, recorded, table)
        return True
    state = state_of(checkpoint)
    if state is until:
        return True
    if bound_group(checkpoint) is not None:
        table = table_of(checkpoint, pointer, connections)
        if commits.landed(checkpoint, table) is not None:
            commits.require_not_undone(checkpoint, table)
            return True
    if state is State.DISCARDED and not isinstance(pointer, str):
        checkpoint.require_live()
    return False


def _is_for_next(checkpoint: Checkpoint) -> bool:
    """Whether the rows of a checkpoint are for another task to read; a header of no known format or mode does not say so."""
    try:
        return not mode_type(checkpoint.header).lands
    except InvalidInputError:
        return False
