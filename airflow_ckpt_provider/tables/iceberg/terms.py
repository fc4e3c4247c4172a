"""The terms that partition and sort a new table, such as ``bucket(16, id)`` and ``ts desc``, as the operator takes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortField, SortOrder

#: First id of partition fields; Iceberg's own convention.
_FIRST_PARTITION_ID = 1000

_TERM = re.compile(r"^(?P<transform>\w+)\(\s*(?:(?P<width>\d+)\s*,\s*)?(?P<column>[^(),]+?)\s*\)$")
_SORT = re.compile(r"^(?P<term>.+?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?$", re.IGNORECASE)

#: Ending of a partition field's name, as Spark and Iceberg's Java library name them.
_ENDINGS = {"bucket": "_bucket", "truncate": "_trunc", "year": "_year", "month": "_month", "day": "_day", "hour": "_hour"}
_PLURALS = {"years": "year", "months": "month", "days": "day", "hours": "hour", "date": "day", "date_hour": "hour"}


def partition_spec(terms: Sequence[str], schema: Schema) -> PartitionSpec:
    """The partition spec of terms such as ``day(ts)``, ``bucket(16, id)`` and ``region``.

    :raises InvalidInputError: naming the term that is wrong.
    """
    from pyiceberg.partitioning import PartitionSpec

    return PartitionSpec(*_partition_fields(terms, schema), spec_id=0)


def _partition_fields(terms: Sequence[str], schema: Schema) -> Iterator[PartitionField]:
    from pyiceberg.partitioning import PartitionField

    names: set[str] = set()
    for number, term in enumerate(terms):
        source_id, transform, column = _term(term, schema, "partition_by")
        word = str(transform).partition("[")[0]
        name = column.replace(".", "_") + _ENDINGS.get(word, "")
        if name in names:
            raise InvalidInputError(f"partition_by={list(terms)!r} has {term!r} twice.")
        names.add(name)
        yield PartitionField(source_id, _FIRST_PARTITION_ID + number, transform, name)


def sort_order(terms: Sequence[str], schema: Schema) -> SortOrder:
    """The sort order of terms such as ``id``, ``ts desc`` and ``bucket(16, id) asc nulls last``.

    :raises InvalidInputError: naming the term that is wrong.
    """
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

    return SortOrder(*(_sort_field(term, schema) for term in terms)) if terms else UNSORTED_SORT_ORDER


def _sort_field(term: str, schema: Schema) -> SortField:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField

    match = _SORT.match(term.strip())
    if match is None:
        raise InvalidInputError(f"sort_by: {term!r} is not of the form 'column', 'column desc' or 'column desc nulls last'.")
    source_id, transform, _ = _term(match["term"], schema, "sort_by")
    direction = SortDirection.DESC if (match["direction"] or "").lower() == "desc" else SortDirection.ASC
    # SQL's order of nulls where none is given, which is Spark's too.
    nulls = (match["nulls"] or ("last" if direction is SortDirection.DESC else "first")).lower()
    order = NullOrder.NULLS_LAST if nulls == "last" else NullOrder.NULLS_FIRST
    return SortField(source_id, transform=transform, direction=direction, null_order=order)


def _term(term: str, schema: Schema, parameter: str) -> tuple[int, Any, str]:
    """Source id, transform and column of one term."""
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.transforms import IdentityTransform, parse_transform

    match = _TERM.match(term.strip())
    column = match["column"] if match else term.strip()
    try:
        field = schema.find_field(column)
    except ValueError as error:
        raise InvalidInputError(
            f"{parameter}: {term!r} names no column of the rows; they are {', '.join(f.name for f in schema.fields)}."
        ) from error
    if match is None or match["transform"] == "identity":
        transform: Any = IdentityTransform()
    else:
        word = _PLURALS.get(match["transform"], match["transform"])
        text = word + (f"[{match['width']}]" if match["width"] else "")
        try:
            transform = parse_transform(text)
            known = word in _ENDINGS and str(transform) == text and match["width"] != "0"
        except (ValueError, ValidationError):
            known = False
        if not known:
            raise InvalidInputError(
                f"{parameter}: {term!r} is no transform. They are year(c), month(c), day(c), hour(c), bucket(16, c), "
                "truncate(4, c) and a column by itself."
            )
    if not transform.can_transform(field.field_type):
        raise InvalidInputError(f"{parameter}: {term!r} cannot be made of the column {column!r}, which is {field.field_type}.")
    return field.field_id, transform, column
