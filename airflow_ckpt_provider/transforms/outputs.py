"""The columns that a row-wise function makes: their types as the user says them, and what it returned brought to them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

#: Types by name, or a dataclass or pydantic model with typed members.
Output: TypeAlias = "Mapping[str, Any] | type"


def names_in(output: Output, what: str) -> list[str]:
    """Names of the columns.

    :param what: the transform, for messages.
    :raises InvalidInputError: if this says no columns.
    """
    names = list(_types(output) or ())
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidInputError(
            f"{what}: output={output!r} says no columns. Pass a type for each, such as output={{'v': pa.int64()}}, or a dataclass "
            "or pydantic model with typed members."
        )
    return names


def schema_of(output: Output, what: str) -> pa.Schema:
    """The columns with their Arrow types.

    :raises InvalidInputError: for a type that stands for no Arrow type.
    """
    import pyarrow as pa

    return pa.schema([(name, _arrow(kind, f"{what}: column {name!r}")) for name, kind in (_types(output) or {}).items()])


def _types(output: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - whatever the user passes
    if isinstance(output, Mapping):
        return output
    if not isinstance(output, type):
        return None
    if dataclasses.is_dataclass(output):
        hints = typing.get_type_hints(output)
        return {member.name: hints[member.name] for member in dataclasses.fields(output)}
    members = getattr(output, "model_fields", None)
    return None if members is None else {name: member.annotation for name, member in members.items()}


def _arrow(kind: Any, where: str) -> pa.DataType:  # noqa: ANN401 - a type as the user says it
    import pyarrow as pa

    if isinstance(kind, pa.DataType):
        return kind
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType} and len(others := [one for one in members if one is not type(None)]) == 1:
        return _arrow(others[0], where)
    if origin is list and len(members) == 1:
        return pa.list_(_arrow(members[0], where))
    plain = {
        bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary(),
        dt.datetime: pa.timestamp("us"), dt.date: pa.date32(),
    }  # fmt: skip
    if isinstance(kind, type) and kind in plain:
        return plain[kind]
    raise InvalidInputError(f"{where} is of the type {kind!r}, which stands for no Arrow type. Say one, such as pa.int64().")


def as_row(result: Any, names: Sequence[str]) -> Sequence[Any]:  # noqa: ANN401 - whatever the function returns
    """What a function returned for a row, value by value.

    :raises ValueError: if it has other columns than it is to have.
    """
    if isinstance(result, Mapping):
        return _named(result, names)
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return _named({member.name: getattr(result, member.name) for member in dataclasses.fields(result)}, names)
    if hasattr(type(result), "model_fields"):
        return _named({name: getattr(result, name) for name in type(result).model_fields}, names)
    if isinstance(result, tuple):
        if len(result) != len(names):
            raise ValueError(f"it returned {len(result)} values, and the output has {len(names)} columns: {', '.join(names)}")
        return result
    if len(names) == 1:
        return (result,)
    raise ValueError(f"it returned a {type(result).__name__}, and the output has the columns {', '.join(names)}")


def _named(values: Mapping[Any, Any], names: Sequence[str]) -> list[Any]:
    missing, more = [name for name in names if name not in values], [name for name in values if name not in names]
    if missing or more:
        said = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(map(str, more))} beside the output"] * bool(more)
        raise ValueError(f"what it returned {' and '.join(said)}")
    return [values[name] for name in names]


def first_wrong(values: Sequence[Any], kind: pa.DataType) -> int | None:
    """The number of the first value that is not of a type; None if all are."""
    import pyarrow as pa

    for number, value in enumerate(values):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return number
    return None
