"""The transform: a user's function from Arrow batches to Arrow batches, and its name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.transforms.batches import as_batches
from airflow_ckpt_provider.transforms.fingerprint import fingerprint_of
from airflow_ckpt_provider.transforms.groups import Aggregate
from airflow_ckpt_provider.transforms.names import load, name_of, whole_name_of
from airflow_ckpt_provider.transforms.rows import Map
from airflow_ckpt_provider.transforms.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from airflow_ckpt_provider.transforms.batches import Batches


#: Rows of the first batch: a ``Map`` may well take a second for each; a function of batches is made for many.
_FEW, _MANY = 16, 1024


def not_of_rows(name: str) -> InvalidInputError:
    """The error where rows are to be rejected, and nobody can tell at which of them a function fails.

    :param name: of the transform.
    """
    return InvalidInputError(
        f"on_error is 'skip' or 'retry', and the transform {name} is no Map or FlatMap, so that nobody can tell at which rows it "
        "fails. Make it one (see airflow_ckpt_provider.transforms; batched=True for functions of batches), or leave out on_error."
    )


def steps_of(
    transform: Transform | None, batches: Iterable[pa.RecordBatch], begin: int = 0, *, rejecting: bool = False
) -> Iterator[Step]:
    """What becomes of batches of the input: they themselves, without a transform. See ``Transform.steps``."""
    if transform is None:
        return (Step(batch, batch.num_rows) for batch in batches)
    return transform.steps(batches, begin, rejecting=rejecting)


class Transform:
    """A transform, ready to run.

    :param function: takes a ``pyarrow.RecordBatch`` and returns a batch, a table, an iterable of those, or None for no
        rows; or its name as ``"package.module:function"``
    :param beside: a column that the function does not see and that stands beside what it returns, which then must have a row for
        each row it was given
    :raises InvalidInputError: if it is neither, or cannot be imported
    """

    def __init__(self, function: Callable[[pa.RecordBatch], Batches] | str, beside: str | None = None) -> None:
        self.function: Callable[[pa.RecordBatch], Batches] = load(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise InvalidInputError(f"transform={function!r} is neither a function nor a name like 'package.module:function'.")
        #: The transform, if it is one that says itself what it makes.
        self._typed = self.function if isinstance(self.function, Map | Aggregate) else None
        self.name = name_of(function) if self._typed is None else self._typed.name
        self._beside = beside

    @property
    def aggregate(self) -> Aggregate | None:
        """The transform, if it is one of groups."""
        return self.function if isinstance(self.function, Aggregate) else None

    @property
    def kind(self) -> str:
        """What kind of transform it is, with the types of what it returns as far as it says."""
        return "a function from batches to batches" if self._typed is None else self._typed.kind

    @property
    def whole_names(self) -> list[str]:
        """Names of the functions that its fingerprint covers, with their modules."""
        return list(map(whole_name_of, [self.function] if self._typed is None else self._typed.parts))

    @property
    def first_rows(self) -> int:
        """Rows of the first batch that it is given; how many it gets after that depends on how long it takes."""
        return _FEW if isinstance(self.function, Map) else _MANY

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the code and what it uses, for the header (I6). Made anew each time it is asked for.

        :raises InvalidInputError: if it uses something that has no stable form.
        """
        if self._typed is None:
            return fingerprint_of(self.function, self.name, "transform_version")
        parts = [fingerprint_of(part, name_of(part), "transform_version") for part in self._typed.parts]
        return hashlib.sha256("\0".join([self.kind, *parts]).encode()).hexdigest()

    def made_of(self, rows: pa.Schema | None) -> pa.Schema | None:
        """The columns that come out, where that can be told without calling the function; else None.

        :param rows: the columns that go in; None if they are not known.
        """
        return self._typed.made_of(rows) if self._typed is not None and self._beside is None else None

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run every batch through the function; empty batches go through too and may be dropped by it."""
        for batch in batches:
            if self._beside is None:
                yield from as_batches(self.function(batch), self.name)
            else:
                yield self._row_by_row(batch, self._beside)

    @property
    def of_rows(self) -> bool:
        """Whether it can tell at which rows it fails."""
        return isinstance(self.function, Map) and self._beside is None

    @property
    def one_each(self) -> bool:
        """Whether it is known to make one row of each."""
        return isinstance(self.function, Map) and self.function.one_each

    def steps(self, batches: Iterable[pa.RecordBatch], begin: int = 0, *, rejecting: bool = False) -> Iterator[Step]:
        """The same, with how many rows of the input are done by it.

        :param begin: number of the first row of the input, for messages.
        :param rejecting: whether to go on behind rows at which it fails, and to hand out those.
        """
        if isinstance(self.function, Map) and self._beside is None:
            yield from self.function.steps(batches, begin, rejecting=rejecting)
            return
        if rejecting:
            raise not_of_rows(self.name)
        if self.aggregate is not None:
            # A group may go on in the next batch: nothing of it is done before it has ended.
            counted = _Counted(batches)
            for made in self.aggregate.over(counted):
                yield Step(made)
            yield Step(None, counted.rows)
            return
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


class _Counted:
    """Batches, and how many rows they have had so far."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch
