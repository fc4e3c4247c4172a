"""Functions that are given by name, as ``"package.module:function"``, and what functions are called in messages."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

from airflow_ckpt_provider.exceptions import InvalidInputError

#: What Airflow puts before the name of a DAG file, for the module that it makes of it.
_OF_A_DAG_FILE = re.compile(r"^unusual_prefix_[0-9a-f]+_")


def parse_name(name: str, what: str = "transform") -> tuple[str, str]:
    """Module and attribute of ``"package.module:function"``.

    :param what: the parameter, for messages.
    :raises InvalidInputError: if it is not of that form.
    """
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise InvalidInputError(f"{what}={name!r} is not of the form 'package.module:function'.")
    return module, attribute


def load(name: str, what: str = "transform") -> Any:  # noqa: ANN401 - any callable
    """The function of a name.

    :param what: the parameter, for messages.
    :raises InvalidInputError: if it cannot be imported, or is none.
    """
    module, attribute = parse_name(name, what)
    try:
        found: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"{what}={name!r} cannot be imported: {error}. Put the module beside the DAG or install it on the worker."
        ) from error
    if not callable(found):
        raise InvalidInputError(f"{what}={name!r} is not a function.")
    return found


def require_callable(what: str, **given: Any) -> None:  # noqa: ANN401 - whatever the user passes
    """Refuse what is neither a function nor the name of one; None is passed over.

    :param what: the transform, for messages.
    :param given: parameters, by their names.
    :raises InvalidInputError: naming the parameter.
    """
    for name, value in given.items():
        if isinstance(value, str):
            parse_name(value, name)
        elif value is not None and not callable(value):
            raise InvalidInputError(f"{what}: {name}={value!r} is neither a function nor the name of one.")


def name_of(function: Any) -> str:  # noqa: ANN401 - any callable
    """What to call a function."""
    if isinstance(function, str):
        return function
    if isinstance(function, functools.partial):
        return f"partial({name_of(function.func)})"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def whole_name_of(function: Any) -> str:  # noqa: ANN401 - any callable
    """The same with its module, such as ``package.module:function``: two modules may well have a function of one name."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, str):
        return function
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{_OF_A_DAG_FILE.sub('', module)}:{name_of(function)}"


def shown_name_of(transform: Any) -> str:  # noqa: ANN401 - any callable
    """What to call a transform where nothing but its name is seen, as under "Rendered Templates"."""
    return str(getattr(transform, "shown_name", None) or whole_name_of(transform))
