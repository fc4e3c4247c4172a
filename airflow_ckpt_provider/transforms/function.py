"""A user's function in a worker process, with what is set up for it there."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, NamedTuple

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.transforms.names import load
from airflow_ckpt_provider.transforms.per_process import once

#: The parameter of a function that is given what its ``setup`` returned.
STATE = "state"


class Spec(NamedTuple):
    """What a user says of a transform beside its function; see ``transforms.rows.Map``.

    :param name: what to call it.
    :param id: what is set up for it in a process is found by this.
    :param many: whether a row of the input may become any number of rows.
    """

    name: str
    id: str
    output: Any
    keep: bool | tuple[str, ...]
    batched: bool
    concurrency: int
    many: bool


class Function:
    """A function in a worker process, with what was set up for it."""

    def __init__(self, function: Any, setup: Any, spec: Spec) -> None:  # noqa: ANN401 - the user's
        function = load(function, "function") if isinstance(function, str) else function
        setup = load(setup, "setup") if isinstance(setup, str) else setup
        if isinstance(function, type):
            kind = function
            function = once(spec.id, lambda: _made(kind), _ended)
        self.call = function
        parameters = inspect.signature(function).parameters.values()
        self.takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        named = [
            parameter for parameter in parameters if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        ]
        self.fixed = {STATE: once(f"{spec.id}.setup", setup)} if setup is not None else {}
        self.optional = {parameter.name for parameter in named if parameter.default is not parameter.empty}
        #: Names of the columns that it takes; of a function of batches, they are what it takes them out of.
        self.columns = [] if spec.batched else [parameter.name for parameter in named if parameter.name not in self.fixed]
        if setup is not None and not self.takes_all and STATE not in {parameter.name for parameter in named}:
            raise InvalidInputError(
                f"{spec.name}: setup is given, and the function has no parameter {STATE!r} to take what it returns."
            )
        self.is_async = is_async(function)


def is_async(function: Any) -> bool:  # noqa: ANN401 - the user's
    """Whether a call is to be awaited: of an ``async`` function, a partial of one, or an object with an ``async __call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    inner = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004 - asked for its kind
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


def _made(kind: Any) -> Any:  # noqa: ANN401 - the user's class
    made = kind()
    if hasattr(made, "setup"):
        made.setup()
    return made


def _ended(made: Any) -> None:  # noqa: ANN401 - the user's
    if hasattr(made, "teardown"):
        with contextlib.suppress(Exception):
            made.teardown()
