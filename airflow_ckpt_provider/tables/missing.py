"""Columns of a table that the rows of a write lack: null in all of them, if that is allowed.

A file of another shape than usual, or a transform that forgets a column, would otherwise be null in silence; where the column says
which partition a row belongs to, in which order rows stand, or which row is meant, that is hardly ever what is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from airflow_ckpt_provider.exceptions import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

#: What becomes of columns that the rows lack. None: those that place a row are refused, others are null, with a warning.
WhenMissing = Literal["null", "fail"] | None


@dataclass(frozen=True)
class MissingColumns:
    """Which columns the rows of one write may lack. Picklable.

    :param table: name, for messages.
    :param when: see ``WhenMissing``; ``"fail"`` refuses any, ``"null"`` only keys.
    :param keys: columns that identify a row of an upsert; never null by absence.
    :param placing: what columns are that decide where a row goes, by their names, such as ``"partition column"``.
    """

    table: str
    when: WhenMissing = None
    keys: tuple[str, ...] = ()
    placing: Mapping[str, str] = field(default_factory=dict)

    def require(self, missing: Iterable[str], where: str = "The rows") -> None:
        """Refuse rows without columns that have to be there.

        :param missing: the columns that they lack.
        :param where: which rows, for the message.
        :raises SchemaMismatchError: naming each column, and what it is.
        """
        lines = [line for name in sorted(set(missing)) for line in self._refusals(name)]
        if lines:
            way = " Where null is meant, set missing_columns='null'." if not any("upsert key" in line for line in lines) else ""
            raise SchemaMismatchError(
                f"{where} lack columns of the table {self.table}, which would be null in all of them:\n  "
                + "\n  ".join(lines)
                + f"\nAdd them in the source or the transform.{way}"
            )

    def seen(self, batches: Iterable[pa.RecordBatch], want: pa.Schema, missing: set[str]) -> Iterator[pa.RecordBatch]:
        """``batches`` as they pass, looked at.

        :param want: the table's columns.
        :param missing: the names of columns that they lack are added here.
        :raises SchemaMismatchError: for rows without columns that have to be there.
        """
        known: pa.Schema | None = None
        for batch in batches:
            if batch.num_rows and (known is None or not batch.schema.equals(known)):
                known = batch.schema
                absent = lacking(known, want)
                self.require(absent, "Rows of a split")
                missing.update(absent)
            yield batch

    def _refusals(self, name: str) -> list[str]:
        """Why a column may not be missing, one line for each reason."""
        # A struct that is missing takes its members along.
        keys = [key for key in self.keys if key == name or key.startswith(f"{name}.")]
        if keys:
            return [f"column {key!r}, an upsert key" for key in keys]
        if self.when == "null":
            return []
        placing = [
            f"column {column!r}, a {what}"
            for column, what in self.placing.items()
            if column == name or column.startswith(f"{name}.")
        ]
        return placing or ([f"column {name!r}"] if self.when == "fail" else [])


def lacking(have: pa.Schema, want: pa.Schema) -> list[str]:
    """Optional columns of ``want`` that rows of ``have`` do not have, at every depth, such as ``address.zip``.

    Required ones are errors of another kind, whatever is allowed.
    """
    names = set(have.names)
    absent = [column.name for column in want if column.nullable and column.name not in names]
    return absent + [
        path
        for column in want
        if have.names.count(column.name) == 1
        for path in _lacking_inside(have.field(column.name).type, column.type, column.name)
    ]


def _lacking_inside(have: pa.DataType, want: pa.DataType, path: str) -> Iterator[str]:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(have) and types.is_struct(want):
        for member in want:
            index = have.get_field_index(member.name)
            if index >= 0:
                yield from _lacking_inside(have.field(index).type, member.type, f"{path}.{member.name}")
            elif member.nullable:
                yield f"{path}.{member.name}"
    elif types.is_map(have) and types.is_map(want):
        yield from _lacking_inside(have.key_type, want.key_type, f"{path}.key")
        yield from _lacking_inside(have.item_type, want.item_type, f"{path}.value")
    elif types.is_nested(have) and types.is_nested(want) and have.num_fields == want.num_fields == 1:
        yield from _lacking_inside(have.field(0).type, want.field(0).type, f"{path}.element")
