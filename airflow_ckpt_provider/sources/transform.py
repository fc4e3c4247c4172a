"""The transform: a user's function from Arrow batches to Arrow batches, and its name."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.transforms.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    Batches: TypeAlias = pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None


class Step(NamedTuple):
    """What came out of an input by and by.

    :param batch: rows; None for none.
    :param done: rows of the input of which all has come out with it, beside those that were done before.
    """

    batch: pa.RecordBatch | None
    done: int = 0


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
    def kind(self) -> str:
        """What kind of transform it is, with the types of what it returns as far as it says."""
        return "a function from batches to batches"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the code and what it uses, for the header (I6). Made anew each time it is asked for.

        :raises InvalidInputError: if it uses something that has no stable form.
        """
        return fingerprint_of(self.function, self.name, "transform_version")

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run every batch through the function; empty batches go through too and may be dropped by it."""
        for batch in batches:
            if self._beside is None:
                yield from as_batches(self.function(batch), self.name)
            else:
                yield self._row_by_row(batch, self._beside)

    def steps(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Step]:
        """The same, with how many rows of the input are done by it."""
        for batch in batches:
            for made in self.apply([batch]):
                yield Step(made)
            yield Step(None, batch.num_rows)

    def _row_by_row(self, batch: pa.RecordBatch, beside: str) -> pa.RecordBatch:
        """What the function returns for a batch, as one batch, with the column that it does not see.

        :raises InvalidInputError: if it has more or fewer rows.
        """
        import pyarrow as pa

        made = list(as_batches(self.function(batch.drop_columns([beside])), self.name))
        rows = sum(part.num_rows for part in made)
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
        function: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"transform={name!r} cannot be imported: {error}. Put the module beside the DAG or install it on the worker."
        ) from error
    if not callable(function):
        raise InvalidInputError(f"transform={name!r} is not a function.")
    return function  # type: ignore[no-any-return]


def _name(function: Any) -> str:  # noqa: ANN401 - any callable
    if isinstance(function, functools.partial):
        return f"partial({_name(function.func)})"
    return getattr(function, "__qualname__", type(function).__qualname__)
