"""A decorated function as a stage: with a source, it is the transform; without one, it makes the DataFrame.

The function's first parameter is what the stage hands it, a batch or the session; the task is called with the others, so Airflow is
shown a signature without the first. The function itself stays as it is, because the write is bound to its code.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.sources import SparkDataFrame
from airflow_ckpt_provider.transforms.names import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.sources import Source
    from airflow_ckpt_provider.sources.dataframe import Recover
    from airflow_ckpt_provider.sources.protocol import StoredSource

#: Kinds of parameters that take no value by name.
_NAMELESS = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}

#: What of Airflow's context a write can be bound to.
_PLAIN = (str, int, float, dict, list, type(None))


class DecoratedStage(DecoratedOperator):
    """What the decorators of all table formats have in common; goes before the operator that it is combined with.

    :param python_callable: the function: with ``source`` from a ``pyarrow.RecordBatch``, and without from a ``SparkSession``, as
        its first argument; the arguments of the task follow
    :param op_args: the arguments that the task is called with, such as outputs of other tasks and templates; those that the
        function names like a member of Airflow's context, such as ``ds``, are taken from there (templated)
    :param op_kwargs: the same by their names (templated)
    :param source: what to read, and to hand to the function; None if the function makes the DataFrame (templated)
    :param id_column: of the DataFrame; see ``SparkDataFrame``, as all that follow
    """

    # Of the operator that this goes before.
    source: Any
    transform: Any

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        source: Source | StoredSource | str | None = None,
        id_column: Sequence[str] | str | None = None,
        buckets: int | None = None,
        bucket_rows: int | None = None,
        recover: Recover | None = None,
        assert_unique: bool = False,
        reproducible: bool = False,
        build_version: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - the operator's
    ) -> None:
        name = name_of(python_callable)
        frame: dict[str, Any] = {
            "id_column": id_column,
            "buckets": buckets,
            "bucket_rows": bucket_rows,
            "recover": recover,
            "assert_unique": assert_unique,
            "reproducible": reproducible,
            "build_version": build_version,
        }
        frame = {parameter: value for parameter, value in frame.items() if value is not None and value is not False}
        self._is_transform = source is not None or kwargs.get("mode") == "add_columns"
        if self._is_transform:
            if frame:
                raise InvalidInputError(
                    f"{', '.join(frame)} of {name} belong to a function that makes a DataFrame. With source, and with "
                    "mode='add_columns', the function is the transform: leave them out, or leave out source."
                )
            if kwargs.get("transform") is not None:
                raise InvalidInputError(f"The function {name} is the transform of its task, which takes no other: leave it out.")
            kwargs |= {"source": source, "transform": python_callable}
        else:
            kwargs["source"] = SparkDataFrame(python_callable, **frame)
        super().__init__(python_callable=_as_called(python_callable), op_args=op_args, op_kwargs=op_kwargs, **kwargs)
        self.python_callable = python_callable

    def execute(self, context: Context) -> Reference:
        """Give the function its arguments, and stage."""
        with airflow_errors():
            arguments = self._arguments(context)
            if not self._is_transform:
                self.source = self.source.with_parameters(arguments)
            elif arguments:
                self.transform = functools.partial(self.python_callable, **arguments)
        reference: Reference = super().execute(context)
        return reference

    def _arguments(self, context: Context) -> dict[str, Any]:
        """What the function is given behind its first argument.

        :raises InvalidInputError: if it asks for something that is another object in each try.
        """
        signature = _signature(self.python_callable)
        bound = signature.bind_partial(*self.op_args, **self.op_kwargs)
        arguments = dict(bound.arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(name, {})
            elif name not in arguments and name in KNOWN_CONTEXT_KEYS and name in context:
                value = context[name]  # type: ignore[literal-required]
                if not isinstance(value, _PLAIN):
                    raise InvalidInputError(
                        f"{name_of(self.python_callable)} asks for {name!r} of Airflow's context, which is no plain value, and so "
                        "nothing that a write can be bound to. Call it with what it needs of that, such as "
                        f'{name_of(self.python_callable)}(day="{{{{ ds }}}}").'
                    )
                arguments[name] = value
        return arguments


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """How the task is called: the function's signature without its first parameter.

    :raises InvalidInputError: if it has none, or one that takes no value by name.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        raise InvalidInputError(
            f"{name_of(function)} has no first parameter for what it is given: a pyarrow.RecordBatch, if there is a source, or the "
            "SparkSession. Write def f(batch) or def f(spark)."
        )
    others = parameters[1:]
    nameless = [parameter.name for parameter in others if parameter.kind in _NAMELESS]
    if nameless:
        raise InvalidInputError(
            f"{name_of(function)} takes {', '.join(nameless)} by position only, and a write is bound to arguments by their names. "
            "Give each a name."
        )
    return signature.replace(parameters=others)


def _as_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What Airflow looks at: a function with the signature that the task is called with."""

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> None:
        del args, kwargs

    called.__signature__ = _signature(function)  # type: ignore[attr-defined]
    return called
