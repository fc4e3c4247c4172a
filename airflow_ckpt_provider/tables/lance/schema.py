"""The columns of a dataset as its files have to have them: field ids, their order in a file, and what must not change meanwhile."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, cast

import msgspec

from airflow_ckpt_provider.checkpoint.documents import part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, first_line
from airflow_ckpt_provider.scan.lance_rows import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

#: Storage versions in which only leaves have columns of their own in a file.
LEAVES_ONLY = ("2.1", "2.2", "2.3")

#: Of datasets that are created, where nothing else is asked for.
STORAGE_VERSION = "2.2"

#: Top-level names that Lance gives to what it knows of a row: a dataset with a column of such a name cannot be read. And the one
#: that rows which are given new columns carry their place in.
RESERVED = frozenset({"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version", PLACE})

#: The storage version that holds blobs of the first kind, and the Arrow extension of blobs of the second.
BLOBS_IN_PAGES, BLOB = "2.1", "lance.blob.v2"

#: The Arrow extension of JSON, and what a column of it says of itself in a data file.
_JSON, _JSON_AS_READ = "arrow.json", {b"ARROW:extension:name": b"lance.json", b"ARROW:extension:metadata": b""}

#: What a struct says of itself to be packed, as it is written now and as it was.
_PACKED = ("lance-encoding:packed", "packed")

#: A dataset that exists for a moment in this process.
_NOWHERE = "memory://columns"


def fingerprint(schema: Any) -> str:  # noqa: ANN401 - a LanceSchema
    """SHA-256 over names, ids, types and nullability of all fields, at every depth.

    Lance trusts the field ids that a fragment names: rows staged before the columns changed would be read as other columns.
    """
    return hashlib.sha256(msgspec.json.encode(facts_of(schema))).hexdigest()


def facts_of(schema: Any) -> list[Any]:  # noqa: ANN401 - a LanceSchema
    """Name, id, type, nullability and members of each column, as a checkpoint is bound to them."""
    return [_facts(field) for field in schema.fields()]


def read_facts(value: object, where: str) -> list[Any]:
    """What ``facts_of`` gave, from a document.

    :param where: the member of the document, for messages.
    """
    for _, _, _, _, children in part_of(value, list[tuple[str, int, str, bool, list[object]]], where):
        read_facts(children, where)
    return list(cast("list[Any]", value))


def _facts(field: Any) -> list[Any]:  # noqa: ANN401 - a LanceField
    arrow = field.to_arrow()
    return [field.name(), field.id(), str(arrow.type), arrow.nullable, [_facts(child) for child in field.children()]]


def file_fields(schema: Any, columns: Sequence[str] | None = None) -> list[int]:  # noqa: ANN401 - a LanceSchema
    """Ids of the fields that have a column in a data file, in the order of the columns.

    :param columns: top-level columns that the file has; all if None.
    """
    wanted = [field for field in schema.fields() if columns is None or field.name() in columns]
    return [leaf for field in wanted for leaf in _leaves(field)]


def _leaves(field: Any) -> Iterator[int]:  # noqa: ANN401 - a LanceField
    children = field.children()
    if not children or _is_packed(field):
        yield field.id()
        return
    for child in children:
        yield from _leaves(child)


def _is_packed(field: Any) -> bool:  # noqa: ANN401 - a LanceField
    """Whether a struct is one column, with all members of a row side by side."""
    said = (field.metadata or {}).items()
    return any(name in _PACKED and value.lower() in {"true", "1"} for name, value in said)


def in_memory(schema: Any, fragments: Sequence[FragmentMetadata] = ()) -> LanceDataset:  # noqa: ANN401 - a LanceSchema
    """A dataset in memory with the same fields, to ask Lance what it would make of a change of them."""
    import pyarrow as pa
    from lance import LanceDataset, LanceOperation
    from lance.dataset import Transaction

    # From a dataset without fields, because a merge cannot give a number to another field.
    empty = LanceDataset.commit(_NOWHERE, Transaction(read_version=0, operation=LanceOperation.Overwrite(pa.schema([]), [])))
    merge = LanceOperation.Merge(list(fragments), schema, preserves_nullability=True)
    return LanceDataset.commit(empty, Transaction(read_version=empty.version, operation=merge))


def as_read(schema: pa.Schema) -> pa.Schema:
    """Columns as the rows of a data file have them: Lance keeps JSON in a form of its own, and its file reader gives that."""
    import pyarrow as pa

    return pa.schema([_as_read(field) for field in schema], schema.metadata)


def _as_read(field: pa.Field) -> pa.Field:
    import pyarrow as pa

    kind = field.type
    if getattr(kind, "extension_name", "") == _JSON:
        return field.with_type(pa.large_binary()).with_metadata({**(field.metadata or {}), **_JSON_AS_READ})
    if pa.types.is_struct(kind):
        kind = pa.struct([_as_read(member) for member in kind])
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_as_read(kind.value_field), kind.list_size)
    elif pa.types.is_list(kind):
        kind = pa.list_(_as_read(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_as_read(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_as_read(kind.key_field), _as_read(kind.item_field), kind.keys_sorted)
    return field.with_type(kind)


def unwritable(schema: pa.Schema, storage_version: str) -> list[str]:
    """What keeps rows of this schema out of files of a storage version, one line for each column.

    Blobs of the second kind are prepared, and put into files of their own, by ``write_fragments``, and only there: written with
    the file writer they cannot be read. Those of the first kind are pages of a file like others, in the version that has them,
    if they are columns of their own.
    """
    lines = [
        f"column {path!r} is a blob, which is not supported in files of the storage version {storage_version}"
        for field in schema
        if not (_is_first_blob(field) and storage_version == BLOBS_IN_PAGES)
        for path in _blobs(field, field.name)
    ]
    if lines:
        return lines
    return [f"column {field.name!r} is {field.type}: {said}" for field in schema if (said := _refusal(field, storage_version))]


def _is_first_blob(field: pa.Field) -> bool:
    return bool((field.metadata or {}).get(b"lance-encoding:blob") == b"true")


def _blobs(field: pa.Field, path: str) -> Iterator[str]:
    """Paths of the blobs at and below a field."""
    stored = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    if _is_first_blob(field) or BLOB in {getattr(field.type, "extension_name", ""), stored}:
        yield path
    for index in range(field.type.num_fields):
        member = field.type.field(index)
        yield from _blobs(member, f"{path}.{member.name}")


def _refusal(field: pa.Field, storage_version: str) -> str | None:
    """What Lance's file writer says to a column, if it does not take it; or that it puts it into other columns than expected.

    A commit says which columns of a file are which fields. Were it wrong, the values would be lost, or the file unreadable.
    """
    import pyarrow as pa
    from lance.file import LanceFileSession
    from lance.schema import LanceSchema

    schema = pa.schema([field])
    try:
        session = LanceFileSession("memory://trial")
        session.open_writer("trial.lance", schema=schema, version=storage_version).close()
        taken = len(session.open_reader("trial.lance").metadata().columns)
    except Exception as error:  # noqa: BLE001 - Lance raises whatever it likes
        return str(error).partition(", /")[0]
    expected = len(file_fields(LanceSchema.from_pyarrow(schema)))
    return None if taken == expected else f"it takes {taken} columns of a file, where {expected} are known"


def schema_to_json(schema: pa.Schema) -> str:
    """An Arrow schema as the store can hold it: Arrow's own form in base64."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def creation_of(schema: pa.Schema, storage_version: str) -> JsonObject:
    """What a header says of a dataset that is to be created.

    Rows that are read from a dataset come with what that one says of itself: it is not true of the new one.
    """
    said = {name: value for name, value in (schema.metadata or {}).items() if not name.startswith(b"airflow.checkpoint.")}
    return {"schema": schema_to_json(schema.with_metadata(said)), "storage_version": storage_version}


def created_as(creation: JsonObject) -> tuple[pa.Schema, str]:
    """Schema and storage version of a dataset that is to be created, from its header."""
    where = "of what the header says of the dataset that is to be created"
    text = part_of(creation.get("schema"), str, f"schema {where}")
    try:
        schema = schema_from_json(text)
    except (OSError, ValueError) as error:
        raise CorruptObjectError(
            f"The member schema {where} cannot be read ({first_line(error)}). The checkpoint store was altered; nothing was "
            f"changed. Redo the write: {how_to_restart()}."
        ) from error
    return schema, part_of(creation.get("storage_version"), str, f"storage_version {where}")


def schema_from_json(text: str) -> pa.Schema:
    """What ``schema_to_json`` made."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
