"""One batch on its way through a function of batches that says what columns it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import OutputError
from airflow_ckpt_provider.transforms.batches import as_batches
from airflow_ckpt_provider.transforms.outputs import schema_of
from airflow_ckpt_provider.transforms.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from airflow_ckpt_provider.transforms.function import Function, Spec


class BatchCall:
    """A call with one batch."""

    def __init__(self, spec: Spec, function: Function, batch: pa.RecordBatch, begin: int) -> None:
        self._spec = spec
        self._begin = begin
        self._function = function
        self._batch = batch
        self._schema = schema_of(spec.output, spec.name)

    def steps(self) -> Iterator[Step]:
        """What comes out, and then that the batch is done."""
        for batch in self._made(self._batch):
            yield Step(batch)
        yield Step(None, self._batch.num_rows)

    def _made(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """What the function makes of rows."""
        made = [self._typed(batch) for batch in as_batches(self._function.call(rows, **self._function.fixed), self._spec.name)]
        return made if self._spec.many else [self._beside(made, rows)]

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with just the columns of the output, in their types.

        :raises OutputError: if it has others, or values that are of no such type.
        """
        import pyarrow as pa

        names = self._schema.names
        if sorted(batch.schema.names) != sorted(names):
            raise OutputError(
                f"{self._spec.name} returned the columns {', '.join(batch.schema.names)}; its output has {', '.join(names)}."
            )
        try:
            return batch.select(names).cast(self._schema)
        except (pa.ArrowException, ValueError) as error:
            raise OutputError(f"{self._spec.name} returned values that are not of the types of its output: {error}") from error

    def _beside(self, made: list[pa.RecordBatch], rows: pa.RecordBatch) -> pa.RecordBatch:
        """What came out of rows, beside what is kept of them."""
        import pyarrow as pa

        table = pa.Table.from_batches(made, self._schema).combine_chunks()
        keep = self._spec.keep
        kept = list(rows.schema.names if keep is True else keep or ())
        if table.num_rows != rows.num_rows:
            raise OutputError(
                f"{self._spec.name} returned {table.num_rows} rows for {rows.num_rows}. Map makes one row of each, in their "
                "order; use FlatMap for any number."
            )
        fields = [*(rows.schema.field(name) for name in kept), *self._schema]
        columns = [column.combine_chunks() if column.num_chunks else pa.array([], column.type) for column in table.columns]
        columns = [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns]
        return pa.RecordBatch.from_arrays([*(rows.column(name) for name in kept), *columns], schema=pa.schema(fields))
