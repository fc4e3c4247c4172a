"""Transforms that are functions of one row: ``Map`` makes a row of each, ``FlatMap`` any number.

Both give out what they have made by and by, with how many rows of the input are done, so that a task that dies goes on at the next
row. Nothing of Arrow is imported before they run: DAG files that use them are parsed without.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.transforms.batch_calls import BatchCall
from airflow_ckpt_provider.transforms.function import Function, Spec
from airflow_ckpt_provider.transforms.names import load, name_of, require_callable, whole_name_of
from airflow_ckpt_provider.transforms.outputs import names_in, schema_of
from airflow_ckpt_provider.transforms.rejecting import RejectingBatchCall, RejectingRowCalls
from airflow_ckpt_provider.transforms.row_calls import RowCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.transforms.outputs import Output
    from airflow_ckpt_provider.transforms.steps import Step


class Map:
    """A function that makes one row of each.

    Its parameters name the columns that it takes; ``**columns`` takes all. It returns a dict, a tuple, a dataclass or a pydantic
    model with the columns of ``output``, or the value itself where that is one column::

        Map(lambda id, text: {"words": len(text.split())}, output={"words": pa.int64()}, keep=["id"])

    A class is made once in each worker process; its ``setup()``, if it has one, is called then, its ``__call__`` for each row, and
    its ``teardown()`` when the process ends by itself. The workers of Spark do not: they are stopped, with all that they hold.

    :param function: the function, a class, or its name as ``"package.module:function"``; an ``async`` one is called for several
        rows at a time, and the rows keep their order
    :param output: the columns that it makes: Arrow or Python types by name, or a dataclass or pydantic model
    :param keep: columns of the input that stay beside them: all with ``True``, or a list of names
    :param batched: the function takes a ``pyarrow.RecordBatch`` with all columns, of so many rows that it takes about a second, and
        returns a batch or table with those of ``output``; with ``Map``, a row for each row of the input, in their order
    :param setup: called once in each worker process; the function takes what it returns as its parameter ``state``
    :param concurrency: calls of an ``async`` function that wait at the same time
    :raises InvalidInputError: if these do not fit together
    """

    #: Whether a row of the input may become any number of rows.
    _many = False

    def __init__(
        self,
        function: Callable[..., Any] | str,
        *,
        output: Output,
        keep: bool | Sequence[str] = False,
        batched: bool = False,
        setup: Callable[[], Any] | str | None = None,
        concurrency: int = 16,
    ) -> None:
        require_callable(type(self).__name__, function=function, setup=setup)
        self._function = function
        self._setup = setup
        self.name = f"{type(self).__name__}({name_of(function)})"
        kept = keep if isinstance(keep, bool) else tuple(keep)
        self._spec = Spec(self.name, uuid.uuid4().hex, output, kept, batched, concurrency, self._many)
        twice = set(names_in(output, self.name)) & set(() if isinstance(kept, bool) else kept)
        if twice:
            raise InvalidInputError(f"{self.name}: the columns {', '.join(sorted(twice))} are both in keep and in output.")
        if isinstance(keep, str) or concurrency < 1:
            raise InvalidInputError(f"{self.name}: keep={keep!r} is to be True or a list of columns, and concurrency at least 1.")
        if batched and self._many and keep is not False:
            raise InvalidInputError(f"{self.name}: keep is not for functions of batches that may make any number of rows of each.")

    @property
    def shown_name(self) -> str:
        """Its name, with the module of its function."""
        return f"{type(self).__name__}({whole_name_of(self._function)})"

    @property
    def kind(self) -> str:
        """What kind of transform it is, and the types of what it makes."""
        columns = ", ".join(f"{field.name} {field.type}" for field in schema_of(self._spec.output, self.name))
        keep = self._spec.keep
        kept = "all columns" if keep is True else ", ".join(keep or ())
        how = f"{type(self).__name__} of batches" if self._spec.batched else type(self).__name__
        return f"{how} to ({columns})" + (f" beside {kept}" if kept else "")

    def made_of(self, rows: pa.Schema | None) -> pa.Schema | None:
        """The columns that come out, without calling the function; None if that depends on columns that are not known.

        :param rows: the columns that go in; None if they are not known.
        """
        import pyarrow as pa

        keep, made = self._spec.keep, schema_of(self._spec.output, self.name)
        if not keep:
            return made
        kept = keep if isinstance(keep, tuple) else tuple(rows.names if rows is not None else ())
        if rows is None or not set(kept) <= set(rows.names):
            return None
        return pa.schema([*map(rows.field, kept), *made])

    @property
    def parts(self) -> list[Any]:
        """The functions that its fingerprint covers, beside its kind."""
        given = [self._function] if self._setup is None else [self._function, self._setup]
        return [load(part) if isinstance(part, str) else part for part in given]

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What becomes of a batch of the input."""
        for step in self.steps([batch]):
            if step.batch is not None:
                yield step.batch

    @property
    def one_each(self) -> bool:
        """Whether it makes one row of each, and no other number."""
        return not self._many

    def steps(self, batches: Iterable[pa.RecordBatch], begin: int = 0, *, rejecting: bool = False) -> Iterator[Step]:
        """What becomes of batches of the input, by and by.

        :param begin: number of the first row of the input, for messages.
        :param rejecting: whether to go on behind rows at which the function fails, and to hand out those.
        :raises TransformError: if the function fails, naming the row.
        """
        function = Function(self._function, self._setup, self._spec)
        if rejecting:
            calls: type[BatchCall | RowCalls] = RejectingBatchCall if self._spec.batched else RejectingRowCalls
        else:
            calls = BatchCall if self._spec.batched else RowCalls
        for batch in batches:
            yield from calls(self._spec, function, batch, begin).steps()
            begin += batch.num_rows


class FlatMap(Map):
    """A function that makes any number of rows of each: it yields them, or returns a list of them. See ``Map``.

    All rows of one row of the input are there, or none. What is kept of the input is repeated beside each.
    """

    _many = True
