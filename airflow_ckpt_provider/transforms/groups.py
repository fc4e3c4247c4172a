"""A transform that is a function of a group of rows: ``Aggregate``.

Spark brings the rows of a group together, and sorts them, so that they come one after the other; see ``spark.frame.grouped``.
"""

from __future__ import annotations

import inspect
import uuid
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError, OutputError, TransformError
from airflow_ckpt_provider.transforms.batches import as_batches
from airflow_ckpt_provider.transforms.failures import place_of, said_by
from airflow_ckpt_provider.transforms.function import Function, Spec, is_async
from airflow_ckpt_provider.transforms.names import load, name_of, require_callable, whole_name_of
from airflow_ckpt_provider.transforms.outputs import as_row, names_in, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.transforms.outputs import Output

#: Groups of one input, at most. Each bucket is a Spark task and a staged record.
_MOST_BUCKETS = 100_000

#: Rows that came out, after which they are given out.
_MADE = 8192


class Aggregate:
    """A function that makes a row, or any number of rows, of each group of rows with equal values of some columns.

    Its parameters name the columns that it takes: a column of ``by`` is the group's value, any other a list of the values of
    its rows. It returns a row, as the function of a ``Map`` does, or yields any number::

        Aggregate(lambda amount: {"total": sum(amount), "orders": len(amount)}, by=["shop"], output={"total": float, "orders": int})

    The columns of ``by`` come first in what comes out, the output after them. Rows of a group have no order, unless ``order_by``
    gives them one. Null is a value like others, NaN equals NaN, and -0.0 equals 0.0. A group has to fit into a worker's memory.

    The groups are dealt into buckets by a hash of ``by``. A bucket is what a retry computes again: those that are staged stay.

    :param function: the function, a class, or its name as ``"package.module:function"``
    :param by: the columns whose values make a group
    :param output: the columns that it makes: Arrow or Python types by name, or a dataclass or pydantic model
    :param order_by: columns by which the rows of a group are sorted
    :param buckets: into how many splits the groups are dealt
    :param batched: the function takes the group as a ``pyarrow.Table`` with all columns, and returns a batch or table
    :param setup: called once in each worker process; the function takes what it returns as its parameter ``state``
    :raises InvalidInputError: if these do not fit together
    """

    def __init__(
        self,
        function: Callable[..., Any] | str,
        *,
        by: Sequence[str] | str,
        output: Output,
        order_by: Sequence[str] | str = (),
        buckets: int = 64,
        batched: bool = False,
        setup: Callable[[], Any] | str | None = None,
    ) -> None:
        require_callable("Aggregate", function=function, setup=setup)
        self._function, self._setup = function, setup
        self.name = f"Aggregate({name_of(function)})"
        if not isinstance(function, str):
            self._require_no_async()
        self.by = _columns(by)
        self.order_by = _columns(order_by)
        if not self.by or len({*self.by, *self.order_by}) < len(self.by) + len(self.order_by):
            raise InvalidInputError(f"{self.name}: by={by!r} has to name a column, and order_by={order_by!r} other ones.")
        if not 0 < buckets <= _MOST_BUCKETS:
            raise InvalidInputError(f"{self.name}: buckets={buckets} has to be between 1 and {_MOST_BUCKETS:,}.")
        self.buckets = buckets
        self._spec = Spec(self.name, uuid.uuid4().hex, output, keep=False, batched=batched, concurrency=1, many=True)
        twice = set(names_in(output, self.name)) & set(self.by)
        if twice:
            raise InvalidInputError(f"{self.name}: the columns {', '.join(sorted(twice))} are both in by and in output.")

    @property
    def shown_name(self) -> str:
        """Its name, with the module of its function."""
        return f"{type(self).__name__}({whole_name_of(self._function)})"

    @property
    def kind(self) -> str:
        """What kind of transform it is, and the types of what it makes."""
        columns = ", ".join(f"{field.name} {field.type}" for field in schema_of(self._spec.output, self.name))
        how = "Aggregate of tables" if self._spec.batched else "Aggregate"
        order = f" in the order of {', '.join(self.order_by)}" if self.order_by else ""
        return f"{how} by ({', '.join(self.by)}){order} in {self.buckets} buckets to ({columns})"

    @property
    def parts(self) -> list[Any]:
        """The functions that its fingerprint covers, beside its kind."""
        given = [self._function] if self._setup is None else [self._function, self._setup]
        return [load(part) if isinstance(part, str) else part for part in given]

    def made_of(self, rows: pa.Schema | None) -> pa.Schema | None:
        """The columns that come out, without calling the function; None if the types of ``by`` are not known.

        :param rows: the columns that go in; None if they are not known.
        :raises InvalidInputError: if it takes others.
        """
        import pyarrow as pa

        if rows is None:
            return None
        self.columns_of(rows.names)
        return pa.schema([*map(rows.field, self.by), *schema_of(self._spec.output, self.name)])

    def columns_of(self, names: Sequence[str]) -> list[str]:
        """The columns that it takes, of those that there are.

        :param names: of the columns of the input.
        :raises InvalidInputError: if it takes others.
        """
        self._require_no_async()
        parameters = inspect.signature(self._callable()).parameters.values()
        if self._spec.batched or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            wanted = list(names)
        else:
            named = [
                parameter
                for parameter in parameters
                if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY} and parameter.name != "self"
            ]
            fixed = {"state"} if self._setup is not None else set()
            wanted = [
                parameter.name
                for parameter in named
                if parameter.name not in fixed and (parameter.default is parameter.empty or parameter.name in names)
            ]
        wanted = list(dict.fromkeys([*self.by, *self.order_by, *wanted]))
        missing = [name for name in wanted if name not in names]
        if missing:
            raise InvalidInputError(f"{self.name} needs the columns {', '.join(missing)}; the rows have {', '.join(names)}.")
        return wanted

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What comes out of rows of which those of a group come one after the other.

        :raises TransformError: if the function fails, naming the group.
        """
        import pyarrow as pa

        function = Function(self._function, self._setup, self._spec)
        made: list[pa.RecordBatch] = []
        rows = 0
        for group in self._groups(batches):
            of_group = self._of_group(function, group)
            made += of_group
            rows += sum(batch.num_rows for batch in of_group)
            if rows >= _MADE:
                yield from pa.Table.from_batches(made).combine_chunks().to_batches()
                made, rows = [], 0
        if made:
            yield from pa.Table.from_batches(made).combine_chunks().to_batches()

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What comes out of rows, those of each group one after the other."""
        yield from self.over([batch])

    def _callable(self) -> Any:  # noqa: ANN401 - the user's
        function = load(self._function, "function") if isinstance(self._function, str) else self._function
        return function.__call__ if isinstance(function, type) else function

    def _require_no_async(self) -> None:
        if is_async(self._callable()):
            raise InvalidInputError(
                f"{self.name}: the function is async, and groups are made one after the other. Call asyncio.run inside a plain one."
            )

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The groups, one after the other."""
        import pyarrow as pa

        pending: list[pa.RecordBatch] = []
        for batch in batches:
            begin = 0
            if pending and batch.num_rows:
                ends = pa.Table.from_batches([pending[-1].slice(pending[-1].num_rows - 1), batch.slice(0, 1)]).combine_chunks()
                if _beginnings(ends.to_batches()[0], self.by):
                    yield pa.Table.from_batches(pending)
                    pending = []
            for end in (*_beginnings(batch, self.by), batch.num_rows):
                if end > begin:
                    pending.append(batch.slice(begin, end - begin))
                if end < batch.num_rows:
                    yield pa.Table.from_batches(pending)
                    pending = []
                begin = end
        if pending:
            yield pa.Table.from_batches(pending)

    def _of_group(self, function: Function, group: pa.Table) -> list[pa.RecordBatch]:
        """What the function makes of a group, beside the values that make it one."""
        import pyarrow as pa

        try:
            rows = self._made(function, group)
        except (TransformError, InvalidInputError):
            raise
        except Exception as error:
            raise self._error(group, f"{said_by(error)}{place_of(error)}") from error
        first = group.slice(0, 1)
        fields = [*(group.schema.field(name) for name in self.by), *rows.schema]
        beside = [pa.repeat(first.column(name)[0], rows.num_rows) for name in self.by]
        return [pa.RecordBatch.from_arrays([*beside, *rows.columns], schema=pa.schema(fields))] if rows.num_rows else []

    def _made(self, function: Function, group: pa.Table) -> pa.RecordBatch:
        import pyarrow as pa

        schema = schema_of(self._spec.output, self.name)
        if self._spec.batched:
            result = function.call(group, **function.fixed)
            batches = list(as_batches(result, self.name))
            wrong = next((batch.schema.names for batch in batches if sorted(batch.schema.names) != sorted(schema.names)), None)
            if wrong is not None:
                raise OutputError(f"{self.name} returned the columns {', '.join(wrong)}; its output has {', '.join(schema.names)}.")
            table = pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
            return _one_batch(table)
        names = [name for name in (group.schema.names if function.takes_all else function.columns) if name in group.schema.names]
        values = {name: group.column(name)[0].as_py() if name in self.by else group.column(name).to_pylist() for name in names}
        result = function.call(**(function.fixed | values))
        rows = [as_row(row, schema.names) for row in (result if inspect.isgenerator(result) else [result])]
        columns = [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(schema)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _error(self, group: pa.Table, said: str) -> TransformError:
        values = ", ".join(f"{name}={str(group.column(name)[0].as_py())[:80]}" for name in self.by)
        return TransformError(f"{self.name} failed at the group of {group.num_rows:,} rows with {values}: {said}")


def _columns(names: Sequence[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _beginnings(batch: pa.RecordBatch, by: Sequence[str]) -> list[int]:
    """Numbers of the rows that are of another group than the row before them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if batch.num_rows < 2:
        return []
    no = pa.scalar(value=False)
    other: Any = pa.repeat(no, batch.num_rows - 1)
    for name in by:
        column = batch.column(name)
        before, after = column.slice(0, batch.num_rows - 1), column.slice(1)
        same = pc.fill_null(pc.equal(before, after), no)
        both_null = pc.and_(pc.is_null(before), pc.is_null(after))
        same = pc.or_(same, both_null)
        if pa.types.is_floating(column.type):
            same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), no))
        other = pc.or_(other, pc.invert(same))
    return [number + 1 for number in pc.indices_nonzero(other).to_pylist()]


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    import pyarrow as pa

    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
