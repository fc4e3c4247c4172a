"""Which writes can land in one commit, and which have to, by their tables and modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.mode import Grouping
from airflow_ckpt_provider.write.commits import landed
from airflow_ckpt_provider.write.membership import destination_of, group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Header
    from airflow_ckpt_provider.tables.table import Table


def require_together(headers: Sequence[Header], table: str) -> None:
    """Refuse checkpoints that cannot land in one commit.

    :param table: name, for messages.
    :raises InvalidInputError: saying why.
    """
    first = headers[0]
    if not mode_type(first).lands:
        raise InvalidInputError(
            f"The rows of the key {first.key!r} are staged for the next task to read, and no commit lands them. Pass this "
            "operator the output of the stage that writes them into a table."
        )
    modes = sorted({header.mode for header in headers})
    if len(modes) > 1 or any(header.parameters != first.parameters for header in headers):
        raise InvalidInputError(
            f"One commit lands in one way, but these checkpoints of {table} have the modes {', '.join(modes)}, or other "
            "parameters of them. Use one commit task for each."
        )
    if len({header.key for header in headers if header.table.creation is not None}) > 1:
        raise InvalidInputError(
            f"{len(headers)} checkpoints cannot create one table, {table}: each has its own schema and identity. Create it with "
            "one stage that is not mapped, and let the mapped ones append."
        )
    if len(headers) > 1 and mode_type(first).grouping is Grouping.ALONE:
        raise InvalidInputError(
            f"{len(headers)} checkpoints of {table} with the mode {first.mode!r} cannot land in one commit: each may change the "
            "same files of the table. Use one stage and one commit task for each, one after the other."
        )
    _require_consumers_apart(headers, table)


def _require_consumers_apart(headers: Sequence[Header], table: str) -> None:
    """Refuse two checkpoints in which one task reads one source increment by increment: the table keeps one watermark for both."""
    seen: dict[tuple[object, ...], str] = {}
    for header in headers:
        if header.source.get("since") is None or header.replaces is not None:
            continue
        source = {name: value for name, value in header.source.items() if name not in {"row_filter", "columns"}}
        consumer = (header.origin.dag_id, header.origin.task_id, repr(sorted(source.items())))
        other = seen.setdefault(consumer, header.key)
        if other != header.key:
            raise InvalidInputError(
                f"The keys {other!r} and {header.key!r} both read the increments of one source for the task "
                f"{header.origin.task_id!r}, which has one place in {table} to read on from: rows would be left out or be there "
                "twice. Nothing was committed. Map a task over sources, not over filters of one, or give each a task of its own."
            )


def adds_only(headers: Sequence[Header]) -> bool:
    """Whether commits of these, one after the other, would leave each other's rows where they are."""
    return all(mode_type(header).grouping is Grouping.FREE for header in headers)


def require_one_table(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse checkpoints of several stores, connections, tables or branches."""
    destinations = {destination_of(checkpoint) for checkpoint in checkpoints}
    if len(destinations) != 1:
        raise InvalidInputError(
            "One commit lands in one table, but these checkpoints belong to several stores, connections, tables or branches: "
            + "; ".join(sorted(f"{identifier} in store {store}" for store, _, _, identifier, _, _ in destinations))
            + ". Use one commit task for each."
        )


def require_one_snapshot(checkpoints: Sequence[Checkpoint], table: Table) -> None:
    """Refuse to land one after the other what has to land together: the later snapshot would remove the rows of the earlier."""
    if len(checkpoints) == 1 or adds_only([checkpoint.header for checkpoint in checkpoints]):
        return
    bound = {checkpoint.member: group_of(checkpoint) for checkpoint in checkpoints}
    if len({group.id if group else None for group in bound.values()}) == 1:
        return
    # What replaces an earlier generation removes the files of that and no others.
    new = [checkpoint for checkpoint in checkpoints if checkpoint.header.replaces is None and landed(checkpoint, table) is None]
    for checkpoint in new:
        checkpoint.require_live()
    if new:
        begun = next(member.key for member, group in bound.items() if group)
        raise InvalidInputError(
            f"The checkpoints of this commit replace rows of {new[0].header.table.identifier} and have to land in one commit, "
            f"but a commit of the key {begun!r} was begun without {new[0].key.value!r}: the later of the two would remove the rows "
            "of the earlier. Nothing was changed. Run the stages of all under other idempotence keys, and commit them together."
        )
