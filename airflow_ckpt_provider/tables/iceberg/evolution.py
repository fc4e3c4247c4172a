"""A table's schema over time: the one that a checkpoint pinned, what the table's owner made of it since, and letting it grow.

Every attempt writes with the schema that the header pinned. Growing is a commit of its own before that, made again by nobody:
whoever comes second finds that the rows fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import fingerprint
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import SchemaMismatchError, TableMissingError
from airflow_ckpt_provider.tables.evolution import evolved
from airflow_ckpt_provider.tables.fit import differences
from airflow_ckpt_provider.tables.iceberg.clock import require_clock
from airflow_ckpt_provider.tables.iceberg.creation import creatable
from airflow_ckpt_provider.tables.iceberg.fit import write_schema
from airflow_ckpt_provider.tables.iceberg.names import require_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.update.schema import UpdateSchema

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, TableBinding
    from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest


def evolve(load: Callable[[], Table], name: str, rows: pa.Schema) -> list[str]:
    """Add the columns that the table lacks, as optional ones, and promote types that are too narrow.

    :param load: loads the table as it is now.
    :param name: its own, for messages.
    :returns: what was changed, one readable line each.
    :raises SchemaMismatchError: if that does not make the rows fit.
    :raises RetryableError: if this machine's clock is far behind the table's time.
    """
    from pyiceberg.exceptions import CommitFailedException

    def swap() -> list[str]:
        table = load()
        before = table.schema()
        if not _misfits(rows, before):
            return []
        update = _update_for(table, name, rows)
        require_clock(table)
        update.commit()
        return _changes(before, load().schema())

    return evolved(swap, CommitFailedException, name)


def _update_for(table: Table, name: str, rows: pa.Schema) -> UpdateSchema:
    import pyarrow as pa
    from pyiceberg.exceptions import ValidationError

    columns = write_schema(table.schema())
    update = table.update_schema()
    try:
        # Only what does not fit: for the rest, the union would loosen what is required.
        wanted = [_beside(field, columns) for field in rows if _misfits(pa.schema([field]), table.schema(), alone=True)]
        update.union_by_name(pa.schema(wanted))
        schema = update._apply()  # noqa: SLF001 - to look before anything is committed
        require_columns(schema, name)
        lines = _misfits(rows, schema)
    except (TypeError, ValueError, ValidationError) as error:
        lines = [*_misfits(rows, table.schema()), str(error)]
    if lines:
        raise SchemaMismatchError(
            f"The rows do not fit the table {name}, and no safe evolution of its schema makes them fit:\n  "
            + "\n  ".join(lines)
            + "\nAdd columns under new names, or cast them in the transform."
        )
    return update


def _beside(field: pa.Field, columns: pa.Schema) -> pa.Field:
    """``field`` as optional as the table's column of that name, at every depth; new ones are optional."""
    import pyarrow as pa

    index = columns.get_field_index(field.name)
    column = columns.field(index) if index >= 0 else None
    return pa.field(field.name, _loose(creatable(field.type), column.type if column else None), column is None or column.nullable)


def _loose(kind: pa.DataType, stored: pa.DataType | None) -> pa.DataType:
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return kind
    members = {member.name: member for member in stored} if stored is not None and pa.types.is_struct(stored) else {}

    def beside(member: pa.Field) -> pa.Field:
        other = members.get(member.name)
        return pa.field(member.name, _loose(member.type, other.type if other else None), other is None or other.nullable)

    return pa.struct([beside(member) for member in kind])


def _misfits(rows: pa.Schema, schema: Schema, *, alone: bool = False) -> list[str]:
    """What keeps ``rows`` out of a table of ``schema``; ``alone`` if only their own columns matter."""
    import pyarrow as pa

    want = write_schema(schema)
    names = {arrow.name: field.name for arrow, field in zip(want, schema.fields, strict=True)}
    if alone:
        want = pa.schema([field for field in want if names[field.name] in rows.names])
    return differences(rows, want, names)


def _changes(before: Schema, after: Schema) -> list[str]:
    """What became of the columns, one readable line each."""
    old = {before.find_column_name(field_id): before.find_type(field_id) for field_id in before.field_ids}
    new = {after.find_column_name(field_id): after.find_type(field_id) for field_id in after.field_ids}
    lines = [f"column {name!r} added as {kind}" for name, kind in new.items() if name not in old]
    return lines + [
        f"column {name!r} promoted from {old[name]} to {kind}"
        for name, kind in new.items()
        if name in old and kind.is_primitive and old[name] != kind
    ]


def pinned_schema(table: Table, binding: TableBinding) -> Schema:
    """The schema that a checkpoint was begun with.

    :raises TableMissingError: if it is not in the table's metadata any more.
    """
    schema = table.schemas().get(binding.schema_id)
    if schema is None or schema_fingerprint(schema) != binding.schema_fingerprint:
        raise TableMissingError(
            f"The schema {binding.schema_id} that this checkpoint was begun with is no longer in the metadata of "
            f"{binding.identifier}. Redo the write: {how_to_restart()}."
        )
    return schema


def require_specs(table: Table, manifests: Sequence[StagedManifest]) -> None:
    """Refuse to commit manifests of a partition spec that the table does not know any more: no engine could read it then."""
    dropped = {manifest.spec_id for manifest in manifests} - table.specs().keys()
    if dropped:
        raise SchemaMismatchError(
            f"The partition spec {min(dropped)} that the rows were staged with was removed from the metadata of "
            f"{'.'.join(table.name())} since. Redo the write: {how_to_restart()}."
        )


def require_evolved_safely(table: Table, binding: TableBinding) -> None:
    """Refuse to commit files whose rows do not fit the table's schema any more."""
    import pyarrow as pa

    if table.metadata.current_schema_id == binding.schema_id:
        return
    now = table.metadata.schema()
    pinned = pinned_schema(table, binding)
    names = {field.field_id: field.name for field in now.fields}
    # Files carry field ids, so a renamed column still fits and a dropped one is not read.
    kept = [
        arrow.with_name(names[field.field_id])
        for arrow, field in zip(write_schema(pinned), pinned.fields, strict=True)
        if field.field_id in names
    ]
    owned_names = {arrow.name: field.name for arrow, field in zip(write_schema(now), now.fields, strict=True)}
    lines = differences(pa.schema(kept), write_schema(now), owned_names)
    if lines:
        raise SchemaMismatchError(
            f"The schema of {binding.identifier} changed since the rows were staged, so that they do not fit any more:\n  "
            + "\n  ".join(lines)
            + f"\nRedo the write: {how_to_restart()}."
        )


def schema_fingerprint(schema: Schema) -> str:
    """SHA-256 of what makes up a schema."""
    facts: JsonObject = msgspec.json.decode(schema.model_dump_json())
    return fingerprint({"fields": facts["fields"]})
