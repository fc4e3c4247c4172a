"""The rows of one batch on their way through a function: what it is called with, what comes out, and what is said if it fails."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import InvalidInputError, TransformError
from airflow_ckpt_provider.transforms.failures import place_of, said_by
from airflow_ckpt_provider.transforms.outputs import as_row, first_wrong, schema_of
from airflow_ckpt_provider.transforms.per_process import once
from airflow_ckpt_provider.transforms.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.transforms.function import Function, Spec


#: Rows that are begun behind one whose call waits, as a multiple of the calls that wait at the same time.
_AHEAD = 2


class _LargestStep(NamedTuple):
    """After how many rows of the input, rows that came out, and seconds what there is is given out."""

    rows: int
    made: int
    seconds: float

    def is_reached(self, rows: int, made: int, seconds: float) -> bool:
        """Whether one of them is reached."""
        return rows >= self.rows or made >= self.made or seconds >= self.seconds


LARGEST_STEP = _LargestStep(1024, 8192, 0.1)


class RowCalls:
    """The rows of one batch, on their way through a function."""

    def __init__(self, spec: Spec, function: Function, batch: pa.RecordBatch, begin: int) -> None:
        self._spec = spec
        self._function = function
        self._batch = batch
        self._begin = begin
        self._schema = schema_of(spec.output, spec.name)
        self._names = self._schema.names
        keep = spec.keep
        self._kept = list(batch.schema.names if keep is True else keep or ())
        self._require_columns()
        columns = batch.schema.names if function.takes_all else [name for name in function.columns if name in batch.schema.names]
        self._columns = {name: batch.column(name).to_pylist() for name in columns}

    def _require_columns(self) -> None:
        there = self._batch.schema.names
        wanted = [name for name in self._function.columns if name not in self._function.optional]
        missing = [name for name in [*wanted, *self._kept] if name not in there]
        twice = [name for name in self._kept if name in self._names]
        if missing or twice:
            what = f"needs the columns {', '.join(missing)}" if missing else f"keeps and makes the columns {', '.join(twice)}"
            raise InvalidInputError(f"{self._spec.name} {what}; the rows have {', '.join(there)}.")

    def steps(self) -> Iterator[Step]:
        """What comes out, row after row.

        :raises TransformError: at the first row at which the function fails.
        """
        made: list[Sequence[Any]] = []
        sources: list[int] = []
        done, start = 0, time.monotonic()
        for row, results in self._called():
            for result in self._each(row, results):
                made.append(result)
                sources.append(row)
                if len(made) >= LARGEST_STEP.made:
                    yield Step(self._out(made, sources))
                    made, sources = [], []
            done += 1
            if LARGEST_STEP.is_reached(done, 0, time.monotonic() - start):
                yield Step(self._out(made, sources) if made else None, done)
                made, sources, done, start = [], [], 0, time.monotonic()
        if done or made or not self._batch.num_rows:
            yield Step(self._out(made, sources), done)

    def _called(self) -> Iterator[tuple[int, Any]]:
        """Numbers of the rows, in their order, and what the function returned for them."""
        rows = range(self._batch.num_rows)
        return self._awaited(rows) if self._function.is_async else ((row, self._call(row)) for row in rows)

    def _awaited(self, rows: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """What an ``async`` function returned for rows, in their order.

        While the call for a row waits, calls for those behind it are made, so that one slow answer does not keep all others back.
        """
        # One for all batches: what a setup has opened, such as connections, belongs to the loop that used it first.
        loop = once(f"event loop of {threading.get_ident()}", asyncio.new_event_loop, lambda made: made.close())
        calling, waiting = asyncio.Semaphore(self._spec.concurrency), deque[tuple[int, asyncio.Task[Any]]]()
        try:
            for row in rows:
                waiting.append((row, loop.create_task(self._one(row, calling))))
                if len(waiting) > _AHEAD * self._spec.concurrency:
                    first, task = waiting.popleft()
                    yield first, loop.run_until_complete(task)
            while waiting:
                first, task = waiting.popleft()
                yield first, loop.run_until_complete(task)
        finally:
            for _, task in waiting:
                task.cancel()
            if waiting:
                loop.run_until_complete(asyncio.wait([task for _, task in waiting]))

    def _call(self, row: int) -> Any:  # noqa: ANN401 - whatever the function returns
        with self._naming(row):
            return self._function.call(**self._arguments(row))

    async def _one(self, row: int, calling: asyncio.Semaphore) -> Any:  # noqa: ANN401 - whatever the function returns
        async with calling:
            with self._naming(row):
                result = self._function.call(**self._arguments(row))
                return [item async for item in result] if inspect.isasyncgen(result) else await result

    def _each(self, row: int, results: Any) -> Iterator[Sequence[Any]]:  # noqa: ANN401 - whatever the function returned
        with self._naming(row):
            for result in self._results(results):
                yield as_row(result, self._names)

    def _results(self, results: Any) -> Iterable[Any]:  # noqa: ANN401 - whatever the function returned
        """The rows that a call has made."""
        if not self._spec.many:
            return (results,)
        return () if results is None else results

    def _arguments(self, row: int) -> dict[str, Any]:
        return self._function.fixed | {name: values[row] for name, values in self._columns.items()}

    def _out(self, made: Sequence[Sequence[Any]], sources: Sequence[int]) -> pa.RecordBatch:
        """Rows that were made, as a batch."""
        import pyarrow as pa

        arrays = [self._array([values[number] for values in made], field, sources) for number, field in enumerate(self._schema)]
        kept = [self._batch.column(name).take(pa.array(sources, pa.int64())) for name in self._kept]
        fields = [*(self._batch.schema.field(name) for name in self._kept), *self._schema]
        return pa.RecordBatch.from_arrays([*kept, *arrays], schema=pa.schema(fields))

    def _array(self, values: list[Any], field: pa.Field, sources: Sequence[int]) -> pa.Array:
        import pyarrow as pa

        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            wrong = first_wrong(values, field.type)
            if wrong is None:
                raise
            raise self._error(sources[wrong], f"its value of {field.name!r} is no {field.type}: {error}") from error

    @contextlib.contextmanager
    def _naming(self, row: int) -> Iterator[None]:
        """Say of errors of the function which row they come of."""
        try:
            yield
        except Exception as error:
            raise self._error(row, f"{said_by(error)}{place_of(error)}") from error

    def _error(self, row: int, said: str) -> TransformError:
        shown = [name for name in self._batch.schema.names if "id" in name.lower()] or self._batch.schema.names[:1]
        values = ", ".join(f"{name}={str(self._batch.column(name)[row].as_py())[:80]}" for name in shown[:3])
        return TransformError(f"{self._spec.name} failed at row {self._begin + row:,} of the split's input ({values}): {said}")
