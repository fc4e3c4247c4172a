"""The transform: a user's function from Arrow batches to Arrow batches, its name and its fingerprint.

The fingerprint covers the function's source text without comments and layout, its defaults, the values it closes over, the
arguments of a ``functools.partial``, and the fields of a dataclass. It does not follow the functions it calls, and it does
not see data it reads at run time: it catches "I changed the transform and pressed retry", not everything.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import textwrap
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_ckpt_provider.checkpoint.documents import fingerprint
from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    Batches: TypeAlias = pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None


class Transform:
    """A transform, ready to run.

    :param function: takes a ``pyarrow.RecordBatch`` and returns a batch, a table, an iterable of those, or None for no
        rows; or its name as ``"package.module:function"``
    :param beside: a column that the function does not see and that stands beside what it returns, which then must have a row for
        each row it was given
    :raises InvalidInputError: if it is neither, or cannot be imported
    """

    def __init__(self, function: Callable[[pa.RecordBatch], Batches] | str, beside: str | None = None) -> None:
        self.function: Callable[[pa.RecordBatch], Batches] = _load(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise InvalidInputError(f"transform={function!r} is neither a function nor a name like 'package.module:function'.")
        self.name = function if isinstance(function, str) else _name(self.function)
        self._beside = beside

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the code, for the header (I6)."""
        return fingerprint(_parts(self.function))

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run every batch through the function; empty batches go through too and may be dropped by it."""
        for batch in batches:
            if self._beside is None:
                yield from as_batches(self.function(batch), self.name)
            else:
                yield self._row_by_row(batch, self._beside)

    def _row_by_row(self, batch: pa.RecordBatch, beside: str) -> pa.RecordBatch:
        """What the function returns for a batch, as one batch, with the column that it does not see.

        :raises InvalidInputError: if it has more or fewer rows.
        """
        import pyarrow as pa

        made = list(as_batches(self.function(batch.drop_columns([beside])), self.name))
        rows = sum(one.num_rows for one in made)
        if rows != batch.num_rows:
            raise InvalidInputError(
                f"The transform {self.name} returned {rows} rows for {batch.num_rows}. It computes columns, so it must return one "
                "row for each row it is given, in the same order; a row without a value can hold null."
            )
        columns = pa.Table.from_batches(made).combine_chunks() if made else pa.table({})
        arrays = [column.combine_chunks() for column in columns.columns]
        fields = [*columns.schema, batch.schema.field(beside)]
        return pa.RecordBatch.from_arrays([*arrays, batch.column(beside)], schema=pa.schema(fields))


def as_batches(result: Batches, name: str) -> Iterator[pa.RecordBatch]:
    """What a transform returned, as batches.

    :raises InvalidInputError: if it is none of what a transform may return.
    """
    import pyarrow as pa

    if result is None:
        return
    if isinstance(result, pa.RecordBatch):
        yield result
    elif isinstance(result, pa.Table):
        yield from result.to_batches()
    elif hasattr(result, "__iter__") and not isinstance(result, str | bytes | dict):
        for item in result:
            yield from as_batches(item, name)
    else:
        raise InvalidInputError(
            f"The transform {name} returned a {type(result).__name__}; it must return a pyarrow RecordBatch or Table, an "
            "iterable of those, or None."
        )


def parse_name(name: str) -> tuple[str, str]:
    """Module and attribute of ``"package.module:function"``.

    :raises InvalidInputError: if it is not of that form.
    """
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise InvalidInputError(f"transform={name!r} is not of the form 'package.module:function'.")
    return module, attribute


def _load(name: str) -> Callable[[pa.RecordBatch], Batches]:
    module, attribute = parse_name(name)
    try:
        found: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"transform={name!r} cannot be imported: {error}. Put the module beside the DAG or install it on the worker."
        ) from error
    if not callable(found):
        raise InvalidInputError(f"transform={name!r} is not a function.")
    return found  # type: ignore[no-any-return]


def _name(function: Any) -> str:  # noqa: ANN401 - any callable
    if isinstance(function, functools.partial):
        return f"partial({_name(function.func)})"
    return getattr(function, "__qualname__", type(function).__qualname__)


def _parts(value: Any, within: tuple[int, ...] = ()) -> object:  # noqa: ANN401, PLR0911 - whatever a function may hold
    """What makes up a function, or a value that it holds, as JSON.

    :param within: ids of the functions and containers that ``value`` was found in: a function may hold itself.
    """
    if id(value) in within:
        return "itself"
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, bytes):
        return value.hex()
    held = functools.partial(_parts, within=(*within, id(value)))
    if isinstance(value, functools.partial):
        return [held(value.func), [held(v) for v in value.args], {k: held(v) for k, v in value.keywords.items()}]
    if inspect.ismethod(value):
        return [held(value.__func__), held(value.__self__)]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()]
        return [_text(value), [held(v) for v in cells], [held(v) for v in defaults]]
    if isinstance(value, list | tuple):
        return [held(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(fingerprint(held(v)) for v in value)
    if isinstance(value, dict):
        return {str(k): held(v) for k, v in value.items()}
    return _object_parts(value, held)


def _object_parts(value: Any, held: Callable[[Any], object]) -> object:  # noqa: ANN401 - any object or class
    """A class or an object: its name, the code that calling it runs, and the fields of a dataclass.

    Other attributes are left out: they may be handles and caches, which differ in every process.
    """
    kind = value if inspect.isclass(value) else type(value)
    parts: list[object] = [f"{kind.__module__.rpartition('.')[2]}.{kind.__qualname__}"]
    call = inspect.getattr_static(kind, "__call__", None)
    if inspect.isfunction(call):
        parts.append(_text(call))
    if dataclasses.is_dataclass(value) and not inspect.isclass(value):
        parts.append({field.name: held(getattr(value, field.name)) for field in dataclasses.fields(value)})
    return parts


def _filled(cell: Any) -> bool:  # noqa: ANN401 - types.CellType
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _text(function: Callable[..., object]) -> str:
    """Source of a function without comments and layout; its byte code where there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        return ast.unparse(ast.parse(source))
    except (OSError, SyntaxError):
        return function.__code__.co_code.hex()
