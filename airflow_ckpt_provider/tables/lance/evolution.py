"""A dataset's columns over time: letting them grow before a write, and what others may make of them until it lands.

Growing is a commit of its own, made again by nobody: whoever comes second finds that the rows fit. It writes no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import SchemaMismatchError
from airflow_ckpt_provider.tables.evolution import evolved
from airflow_ckpt_provider.tables.fit import differences
from airflow_ckpt_provider.tables.lance.schema import RESERVED, facts_of, unwritable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from lance import LanceDataset


def evolve(load: Callable[[], LanceDataset], name: str, rows: pa.Schema) -> list[str]:
    """Add the columns that the dataset lacks, as optional ones. No type is promoted: that would write every row again.

    :param load: loads the dataset as it is now.
    :param name: its own, for messages.
    :returns: what was changed, one readable line each.
    :raises SchemaMismatchError: if that does not make the rows fit.
    """
    import pyarrow as pa
    from lance.commit import CommitConflictError

    def swap() -> list[str]:
        dataset = load()
        new = pa.schema([optional(field) for field in rows if field.name not in dataset.schema.names])
        if not len(new) and not differences(rows, dataset.schema):
            return []
        lines = differences(rows, pa.schema([*dataset.schema, *new])) or unaddable(new, dataset.data_storage_version)
        if lines:
            raise SchemaMismatchError(
                f"The rows do not fit the Lance dataset {name}, and no new columns make them fit:\n  "
                + "\n  ".join(lines)
                + "\nAdd columns under new names, or cast them in the transform."
            )
        dataset.add_columns(new)
        if not set(new.names) <= set(load().schema.names):
            # Made below the latest version; see ``lineage``. Or others have dropped it again.
            raise CommitConflictError(f"{', '.join(new.names)} were added and are not there")
        return [f"column {field.name!r} added as {field.type}" for field in new]

    # Whatever Lance says, conflicts included: what was loaded may be cleaned up by now.
    return evolved(swap, OSError, name)


def optional(field: pa.Field) -> pa.Field:
    """``field`` as one that may be null, as every column has to that rows of others are not in."""
    return field.with_nullable(True)  # noqa: FBT003 - pyarrow's own


def unaddable(columns: pa.Schema, storage_version: str) -> list[str]:
    """What keeps columns out of a dataset of a storage version, one line each: one without a type would take no value later."""
    import pyarrow as pa

    reserved = [field.name for field in columns if field.name in RESERVED]
    if reserved:
        return [
            f"column {name!r} has a reserved name: a dataset with it could not be read any more. Rename it" for name in reserved
        ]
    untyped = [field.name for field in columns if field.type == pa.null()]
    lines = [f"column {name!r} has no type, because it is null everywhere" for name in untyped]
    return lines or unwritable(columns, storage_version)


def changes(pinned: Sequence[Any], schema: Any) -> list[str]:  # noqa: ANN401 - a LanceSchema
    """What others made of the columns that rows staged before do not fit, one line each.

    Lance reads staged files by the numbers of their fields, and may give the number of a dropped column to a new one; so a column
    has to have the name, too, that it had. Columns that are new must be optional, because staged rows have nothing in them.

    :param pinned: what ``facts_of`` said of the columns then.
    """
    now = {name: (number, kind, nullable, children) for name, number, kind, nullable, children in facts_of(schema)}
    lines = []
    for name, number, kind, nullable, children in pinned:
        if name not in now:
            lines.append(f"column {name!r} was dropped or renamed")
            continue
        number_now, kind_now, nullable_now, children_now = now.pop(name)
        if kind_now != kind:
            lines.append(f"column {name!r} was {kind} and is {kind_now}")
        elif (number_now, children_now) != (number, children):
            lines.append(f"column {name!r} was made anew")
        elif nullable and not nullable_now:
            lines.append(f"column {name!r} is required now")
    return lines + [f"column {name!r} is new and required" for name, (*_, nullable, _) in now.items() if not nullable]
