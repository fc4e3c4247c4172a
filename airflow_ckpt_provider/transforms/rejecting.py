"""Calls of functions that go on behind a row at which the function fails, and say which rows those were.

A row whose function fails leaves nothing: what a ``FlatMap`` has made of it before is dropped. So all that is made of one row is
held until the function has made it.
"""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import TransformError
from airflow_ckpt_provider.transforms.batch_calls import BatchCall
from airflow_ckpt_provider.transforms.failures import failed_rows, failure_of, is_of_a_row
from airflow_ckpt_provider.transforms.row_calls import LARGEST_STEP, RowCalls
from airflow_ckpt_provider.transforms.steps import Failure, Step

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence


class RejectingRowCalls(RowCalls):
    """The rows of one batch, on their way through a function that may fail at some of them."""

    def steps(self) -> Iterator[Step]:
        """What comes out, row after row, with the rows at which the function failed."""
        made: list[Sequence[Any]] = []
        sources: list[int] = []
        failures: dict[int, Failure] = {}
        done, start = 0, time.monotonic()
        for row, called in self._called():
            results = called if isinstance(called, Failure) else self._all_of(row, called)
            if isinstance(results, Failure):
                failures[row] = results
            else:
                made += results
                sources += [row] * len(results)
            done += 1
            if LARGEST_STEP.is_reached(done, len(made), time.monotonic() - start):
                yield self._step(made, sources, failures, done)
                made, sources, failures, done, start = [], [], {}, 0, time.monotonic()
        if done or not self._batch.num_rows:
            yield self._step(made, sources, failures, done)

    def _call(self, row: int) -> Any:  # noqa: ANN401 - whatever the function returns, or why it failed
        try:
            return super()._call(row)
        except TransformError as error:
            return self._failure(row, error)

    async def _one(self, row: int, calling: asyncio.Semaphore) -> Any:  # noqa: ANN401 - whatever the function returns, or why it failed
        try:
            return await super()._one(row, calling)
        except TransformError as error:
            return self._failure(row, error)

    def _all_of(self, row: int, results: Any) -> list[Sequence[Any]] | Failure:  # noqa: ANN401 - whatever the function returned
        """All that was made of a row, or why it was not."""
        try:
            return list(self._each(row, results))
        except TransformError as error:
            return self._failure(row, error)

    def _failure(self, row: int, error: TransformError) -> Failure:
        """Why the function failed at a row.

        :raises TransformError: if that is no row's fault.
        """
        if error.__cause__ is None or not is_of_a_row(error.__cause__):
            raise error
        return failure_of(error.__cause__, self._begin + row)

    def _step(self, made: list[Sequence[Any]], sources: list[int], failures: dict[int, Failure], done: int) -> Step:
        """What was made, without rows whose values are not of the types of the output."""
        try:
            batch = self._out(made, sources)
        except TransformError:
            unfit = self._unfit(made, sources)
            if not unfit:
                raise
            failures = failures | unfit
            left = [(values, row) for values, row in zip(made, sources, strict=True) if row not in unfit]
            batch = self._out([values for values, _ in left], [row for _, row in left])
        return Step(batch, done, failed_rows(self._batch, failures))

    def _unfit(self, made: list[Sequence[Any]], sources: list[int]) -> dict[int, Failure]:
        """The rows of the input of which a value was made that is not of the type of its column."""
        found: dict[int, Failure] = {}
        for row, of_row in groupby(zip(made, sources, strict=True), key=lambda pair: pair[1]):
            values = [one for one, _ in of_row]
            for number, field in enumerate(self._schema):
                try:
                    self._array([one[number] for one in values], field, [row] * len(values))
                except TransformError as error:
                    cause = error.__cause__
                    said = f"{type(cause).__name__}: its value of {field.name!r} is no {field.type}: {cause}"
                    found[row] = Failure(self._begin + row, said, "")
                    break
        return found


class RejectingBatchCall(BatchCall):
    """One batch, on its way through a function of batches. Where that fails, each half is tried, down to the rows that it fails at.

    So the function is called again with rows of a batch that failed: it must not count on seeing a row once.
    """

    def steps(self) -> Iterator[Step]:
        """What comes out, part after part, with the rows at which the function failed."""
        yield from self._steps_of(0, self._batch.num_rows)

    def _steps_of(self, first: int, rows: int) -> Iterator[Step]:
        try:
            made = self._made(self._batch.slice(first, rows))
        except Exception as error:
            if not is_of_a_row(error) or not rows:
                raise
            if rows == 1:
                failure = failure_of(error, self._begin + first)
                yield Step(None, 1, failed_rows(self._batch, {first: failure}))
                return
        else:
            for batch in made:
                yield Step(batch)
            yield Step(None, rows)
            return
        yield from self._steps_of(first, rows // 2)
        yield from self._steps_of(first + rows // 2, rows - rows // 2)
