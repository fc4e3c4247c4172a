"""What a mode is told, as a typed struct: an operator's arguments are read, refused and templated by it, and a header is read back.

A parameter is a member of ``ModeParameters`` of its mode, with a description. What its type is, a user's value has to be: see
``plain``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import inspect

from airflow_ckpt_provider.checkpoint.known_types import known
from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

P = TypeVar("P", bound="ModeParameters")

#: The parameter of modes that lets a table that does not exist come into being with the first rows. What it is to be then, the
#: parameters of the mode ``create`` say.
CREATE_IF_MISSING = "create_if_missing"


class ModeParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what modes are told; by itself, nothing."""

    def problem(self) -> str | None:
        """Why these, each of them right by itself, cannot be together; None if they can."""
        return None


@cache
def fields_of(kind: type[ModeParameters]) -> dict[str, inspect.Field]:
    """Its parameters, by their names."""
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{kind!r} is no struct.")
    return {field.name: field for field in info.fields}


def names_in(kinds: Iterable[type[ModeParameters]]) -> tuple[str, ...]:
    """Names of all parameters of these modes, each once."""
    return tuple(dict.fromkeys(name for kind in kinds for name in fields_of(kind)))


def description_of(field: inspect.Field) -> str:
    """What a parameter is, for messages."""
    kind = field.type
    return str((kind.extra_json_schema or {}).get("description", "")) if isinstance(kind, inspect.Metadata) else ""


def told(kind: type[P], parameters: JsonObject, mode: str = "") -> P:
    """What a mode is told.

    :param parameters: as a header has them: only what the user set.
    :param mode: its name, for messages.
    :raises InvalidInputError: for one that it does not take, that is not of its type, or that is missing.
    """
    this = f"mode={mode!r}" if mode else "The mode"
    fields = fields_of(kind)
    unknown = sorted(parameters.keys() - fields.keys())
    if unknown:
        raise InvalidInputError(f"{this} does not take {', '.join(unknown)}.")
    missing = [(name, field) for name, field in fields.items() if field.required and not parameters.get(name)]
    for name, field in missing:
        raise InvalidInputError(f"{this} needs {name}: {description_of(field)}.")
    parameters_told = msgspec.convert({name: plain(fields[name], value) for name, value in parameters.items()}, known(kind))
    problem = parameters_told.problem()
    if problem is not None:
        raise InvalidInputError(problem)
    return parameters_told


def given(modes: Mapping[str, type[ModeParameters]], mode: str, values: Mapping[str, object]) -> JsonObject:
    """What the user set of the parameters of a mode, as a header stores it.

    :param modes: what each mode takes.
    :param values: of all parameters of all modes; None for what was not set.
    :raises InvalidInputError: for a mode that does not exist, or that does not take what it is given.
    """
    if mode not in modes:
        raise InvalidInputError(f"mode={mode!r}: the modes are {', '.join(modes)}.")
    fields = {name: field for kind in modes.values() for name, field in fields_of(kind).items()}
    chosen = {name: plain(fields[name], value) for name, value in values.items() if value is not None}
    for name in chosen:
        if name not in fields_of(modes[mode]):
            takes = [repr(other) for other, kind in modes.items() if name in fields_of(kind)]
            where = f"mode={takes[0]}" if len(takes) == 1 else f"the modes {', '.join(takes[:-1])} and {takes[-1]}"
            raise InvalidInputError(f"{name} belongs to {where}; this is mode={mode!r}.{_instead(name, mode)}")
    told(modes[mode], chosen, mode)
    return chosen


def _instead(name: str, mode: str) -> str:
    """What to do where a mode does not make the table that it finds missing; empty for other parameters."""
    if name != CREATE_IF_MISSING or mode == "create":
        return ""
    return " Let the first write be mode='create', or another one that takes it, and begin with this mode on what it has made."


def of_creation(created: ModeParameters, parameters: Iterable[str], *, is_asked: bool) -> str | None:
    """Why what a table is to be cannot be told to a mode that may create it; None if it can.

    :param created: what the mode is told.
    :param parameters: names of those of the mode ``create``.
    :param is_asked: whether a table that is missing is to be created.
    """
    told_more = [name for name in parameters if getattr(created, name) is not None]
    if is_asked or not told_more:
        return None
    return f"{', '.join(told_more)} belongs to mode='create', or to create_if_missing=True."


def plain(field: inspect.Field, value: object) -> object:
    """A parameter's value as JSON.

    :raises InvalidInputError: if it is not of the parameter's type, or a template rendered to nothing.
    """
    name, kind = field.name, _bare(field.type)
    if isinstance(kind, inspect.LiteralType):
        # msgspec sorts them; what is done if nothing is said comes first.
        return _choice(name, value, sorted(kind.values, key=lambda choice: choice != field.default))
    if isinstance(kind, inspect.ListType):
        return _names(name, value)
    if isinstance(kind, inspect.BoolType):
        return _flag(name, value)
    if isinstance(kind, inspect.IntType):
        return _number(name, value, kind)
    if isinstance(kind, inspect.DictType):
        return _texts(name, value) if isinstance(kind.value_type, inspect.StrType) else _values(name, value)
    return text(name, value)


def _bare(kind: inspect.Type) -> inspect.Type:
    """A type without its description, and without that it may be missing."""
    if isinstance(kind, inspect.Metadata):
        return _bare(kind.type)
    if isinstance(kind, inspect.UnionType):
        (kind,) = _present(kind)
        return _bare(kind)
    return kind


def _present(kind: inspect.UnionType) -> Iterator[inspect.Type]:
    return (member for member in kind.types if not isinstance(member, inspect.NoneType))


def _choice(name: str, value: object, values: Sequence[object]) -> object:
    if value not in values:
        raise InvalidInputError(f"{name}={value!r}: the values are {' and '.join(map(repr, values))}.")
    return value


def _names(name: str, value: object) -> object:
    """A list, or a single string for a list of one."""
    items = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise InvalidInputError(f"{name}={value!r} is not a list of names.")
    return items


def _flag(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name}={value!r} is neither True nor False.")
    return value


def _number(name: str, value: object, kind: inspect.IntType) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or not (kind.ge or 0) <= value <= (kind.le or value):
        raise InvalidInputError(f"{name}={value!r} is not a number from {kind.ge} to {kind.le:,}.")
    return value


def _texts(name: str, value: object) -> object:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{name}={value!r} is not a mapping.")
    return {str(key): str(item) for key, item in value.items()}


def _values(name: str, value: object) -> object:
    """Values of parameters; templates render to texts, which are compared as what their column is."""
    if not isinstance(value, dict) or not all(isinstance(key, str) and key.isidentifier() for key in value):
        raise InvalidInputError(f"{name}={value!r} is not a mapping from names of parameters to values.")
    for key, item in value.items():
        if not isinstance(item, str | int | float):
            raise InvalidInputError(
                f"{name}: the value of {key!r} is {item!r}, which is neither a text, nor a number, nor a boolean."
            )
    return dict(value)


def text(name: str, value: object) -> str:
    """A text that says something.

    :raises InvalidInputError: if it is none.
    """
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"{name}={value!r} is not a text; a template may have rendered to nothing.")
    return value
