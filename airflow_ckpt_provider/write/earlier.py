"""Earlier generations of a key in the table's own history: what has landed of them, whatever the store says by now (I1, I15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import BindingMismatchError, RestartRefusedError
from airflow_ckpt_provider.tables.summary import trace_of

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Header
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.protocol import Base, Table
    from airflow_ckpt_provider.tables.summary import Trace


def earlier_traces(store: CheckpointStore, header: Header) -> set[Trace]:
    """Traces of the generations of the same key before this one."""
    key = IdempotenceKey(header.key)
    return {trace_of(Checkpoint.at(store, key, generation).header) for generation in range(1, header.generation)}


def require_not_landed(store: CheckpointStore, header: Header, table: Table, base: Base | None = None) -> None:
    """Refuse a generation if the table shows an earlier one of its key that it does not replace, whatever the store says of that.

    :param base: see ``Table.require_unknown``.
    :raises RestartRefusedError: if it does.
    """
    earlier = earlier_traces(store, header)
    replaced: set[Trace] = set()
    number = header.replaces
    while number is not None:
        # Only an earlier one is ever replaced, so that this ends.
        one = Checkpoint.at(store, IdempotenceKey(header.key), number).header
        replaced.add(trace_of(one))
        number = one.replaces
    if not earlier - replaced:
        return
    try:
        table.require_unknown([header], {trace_of(header), *replaced}, base)
    except BindingMismatchError as error:
        raise RestartRefusedError(
            f"An earlier generation of the key {header.key!r} has landed in {header.table.identifier}, though the checkpoint store "
            f"does not say so any more. Generation {header.generation} would double its rows; nothing was changed. Keep the "
            "earlier rows and mark the task as success, or remove them before you run the write under another key."
        ) from error
