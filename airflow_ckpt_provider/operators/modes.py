"""What the stage is told about its mode: refused when the DAG is parsed where it cannot work, read again after templating."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError, NotSupportedYetError
from airflow_ckpt_provider.sources import Source
from airflow_ckpt_provider.sources.transform import parse_name
from airflow_ckpt_provider.tables.keys.parameters import CHOICES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

    #: Names of parameters, by mode.
    Taken = Mapping[str, tuple[str, ...]]

#: Parameters of each mode of an Iceberg table, as the operator names them.
ICEBERG: Taken = {
    "create": ("partition_by", "sort_by", "table_properties", "location"),
    "append": (),
    "overwrite": ("overwrite_filter", "overwrite_parameters"),
    "overwrite_partitions": (),
    "upsert": ("upsert_keys", "when_matched", "when_not_matched"),
}

#: The same of a Lance dataset.
LANCE: Taken = {
    "create": ("storage_version", "stable_row_ids"),
    "append": (),
    "overwrite": (),
    "upsert": ("upsert_keys", "when_matched", "when_not_matched"),
    "add_columns": ("read_columns", "rows_per_split"),
}


def parameters_in(taken: Taken) -> tuple[str, ...]:
    """All of them."""
    return tuple(name for names in taken.values() for name in names)


#: Of one split, whose values are one file.
_MAX_ROWS = 1 << 20


def parameters_of(operator: Any, taken: Taken) -> JsonObject:  # noqa: ANN401 - it has all parameters as attributes
    """What the user set, for the mode; called again once templates are rendered.

    :param taken: the modes there are.

    :raises InvalidInputError: for a mode that does not exist, or that does not take what it is given.
    """
    mode = operator.mode
    if "{{" in str(mode):
        return {}
    if mode not in taken:
        raise InvalidInputError(f"mode={mode!r}: the modes are {', '.join(taken)}.")
    given = {name: getattr(operator, name) for name in parameters_in(taken)}
    found = {name: _plain(name, value) for name, value in given.items() if value is not None}
    for name in found:
        if name not in taken[mode]:
            (takes,) = (other for other, names in taken.items() if name in names)
            raise InvalidInputError(f"{name} belongs to mode={takes!r}; this is mode={mode!r}.")
    if found.get("overwrite_parameters") is not None and not found.get("overwrite_filter"):
        raise InvalidInputError("overwrite_parameters are values of parameters of overwrite_filter, and there is none.")
    if mode == "add_columns" and not found.get("read_columns"):
        raise InvalidInputError("mode='add_columns' needs read_columns: the columns that the transform is given.")
    if mode == "upsert":
        if not found.get("upsert_keys"):
            raise InvalidInputError("mode='upsert' needs upsert_keys: the columns that identify a row.")
        if found.get("when_matched") == found.get("when_not_matched") == "ignore":
            raise InvalidInputError("when_matched='ignore' with when_not_matched='ignore' writes nothing at all.")
    return found


def _plain(name: str, value: object) -> object:
    """A parameter as JSON.

    :raises InvalidInputError: if it is not of its type, or a template rendered to nothing.
    """
    return _KINDS.get(name, _text)(name, value)


def _choice(name: str, value: object) -> object:
    if value not in CHOICES[name]:
        raise InvalidInputError(f"{name}={value!r}: the values are {' and '.join(map(repr, CHOICES[name]))}.")
    return value


def _names(name: str, value: object) -> object:
    items = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise InvalidInputError(f"{name}={value!r} is not a list of names.")
    return items


def _flag(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name}={value!r} is neither True nor False.")
    return value


def _rows(name: str, value: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_ROWS:
        raise InvalidInputError(f"{name}={value!r} is not a number from 1 to {_MAX_ROWS:,}.")
    return value


def _mapping(name: str, value: object) -> object:
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


def _text(name: str, value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"{name}={value!r} is not a text; a template may have rendered to nothing.")
    return value


#: What a parameter is, by its name; a text if it is not here. A list may be given as a single string for a list of one.
_KINDS: Mapping[str, Callable[[str, object], object]] = {
    "when_matched": _choice,
    "when_not_matched": _choice,
    "upsert_keys": _names,
    "partition_by": _names,
    "sort_by": _names,
    "read_columns": _names,
    "stable_row_ids": _flag,
    "rows_per_split": _rows,
    "table_properties": _mapping,
    "overwrite_parameters": _values,
}


def require_policies(on_change: str, on_rerun: str, if_empty: str, missing_columns: str | None) -> None:
    """Refuse policies that do not exist.

    :raises InvalidInputError: naming those that do.
    """
    if on_change == "continue":
        raise NotSupportedYetError("on_change='continue' is not supported yet. Use 'fail' or 'restart'.")
    if on_change not in {"fail", "restart"}:
        raise InvalidInputError(f"on_change={on_change!r}: the values are 'fail' and 'restart'.")
    if on_rerun not in {"reuse", "replace"}:
        raise InvalidInputError(f"on_rerun={on_rerun!r}: the values are 'reuse' and 'replace'.")
    if if_empty not in {"succeed", "skip", "fail"}:
        raise InvalidInputError(f"if_empty={if_empty!r}: the values are 'succeed', 'skip' and 'fail'.")
    if missing_columns not in {None, "null", "fail"}:
        raise InvalidInputError(f"missing_columns={missing_columns!r}: the values are None, 'null' and 'fail'.")


def require_transform(transform: object) -> None:
    """Refuse what is no transform.

    :raises InvalidInputError: saying what there may be.
    """
    if isinstance(transform, str):
        parse_name(transform)
    elif transform is not None and not callable(transform):
        raise InvalidInputError(f"transform={transform!r} is neither a function nor a name like 'package.module:function'.")


def require_version(transform: object, version: object) -> str | None:
    """What is said in place of the transform's fingerprint, if anything is.

    :raises InvalidInputError: if it is no text, or there is no transform.
    """
    if version is None or hasattr(version, "resolve"):
        # An XCom is known at run time only.
        return None
    if transform is None:
        raise InvalidInputError(f"transform_version={version!r} belongs to a transform, and there is none.")
    return str(_text("transform_version", version))


def require_usable(source: object, transform: object) -> None:
    """Refuse what is no source or no transform when the DAG is parsed. References to XComs are known at run time only.

    :raises InvalidInputError: saying what there may be.
    """
    require_transform(transform)
    if not isinstance(source, str | Source) and not hasattr(source, "resolve"):
        raise InvalidInputError(f"source={source!r} is neither a source, such as Files(...), nor a path or glob.")
