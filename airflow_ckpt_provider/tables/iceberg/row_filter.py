"""Overwriting the rows that match a filter: new rows have to match it, and boundary files hold on to the rows that do not.

A row matches if the filter is true for it. One for which it is unknown, because a column is null, does not match and is kept:
so what is kept is never read through the negated filter, which is unknown for that row as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.documents import part_of
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.scan.data_files import ScanFile
from airflow_ckpt_provider.tables.iceberg.values import bound_values, with_watermarks
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.scan.iceberg import IcebergScan
    from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts
    from airflow_ckpt_provider.tables.writer import Written


@dataclass(frozen=True)
class RowFilter:
    """An Iceberg row filter, as text such as ``day = :day and amount > 5``.

    :param values: of its parameters.
    """

    text: str
    values: Mapping[str, object] = field(default_factory=dict)

    def expression(self) -> BooleanExpression:
        """The filter, not bound to a schema.

        :raises InvalidInputError: if the text cannot be read.
        """
        from pyiceberg.expressions import parser
        from pyiceberg.expressions.visitors import rewrite_not

        try:
            return rewrite_not(bound_values(parser.parse(with_watermarks(self.text, self.values)), self.values))
        except InvalidInputError:
            raise
        except Exception as error:
            raise InvalidInputError(
                f"overwrite_filter={self.text!r} is no Iceberg filter: {error}. Write it like: day = '2026-01-01' and amount > 5."
            ) from error

    def bound(self, schema: Schema) -> BooleanExpression:
        """The filter on the columns of a schema.

        :raises InvalidInputError: if it names a column that is not there, or compares one with what it cannot be.
        """
        from pyiceberg.expressions.visitors import bind

        from airflow_ckpt_provider.scan.comparing import fitted

        expression = self.expression()
        try:
            return bind(schema, fitted(expression, schema), case_sensitive=True)
        except Exception as error:
            raise InvalidInputError(f"overwrite_filter={self.text!r} does not fit the table: {error}.") from error

    def others(self, schema: Schema) -> Any:  # noqa: ANN401 - pyarrow.compute.Expression
        """Arrow's form of: the filter is not true."""
        import pyarrow.compute as pc
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        matches = expression_to_pyarrow(self.bound(schema), schema)
        return ~pc.coalesce(matches, pc.scalar(False))  # noqa: FBT003 - a value


class KeepingWriter(IcebergWriter):
    """Writes rows that match the filter, and rewrites files without the rows that do.

    :param scan: reads the table's files with the schema that rows are written with.
    """

    def __init__(self, facts: WriterFacts, rows: RowFilter, scan: IcebergScan) -> None:
        super().__init__(facts)
        self._filter = rows
        self._scan = scan

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write new rows.

        :raises InvalidInputError: if one does not match the filter: the next overwrite would not replace it.
        """
        return self.write_chunks(self._matching(self.chunks(batches)), stem)

    def work(self, split: Split, stem: str) -> Written:
        """Rewrite a boundary file without the rows that match the filter."""
        file = part_of(split.read, ScanFile)
        not_matching = self._filter.others(self.facts.schema)
        kept = self.write_chunks(self.chunks(batch.filter(not_matching) for batch in self._scan.read(file)), stem)
        return kept._replace(replaces=(file.path,), counts={"kept": kept.rows})

    def _matching(self, chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
        not_matching = self._filter.others(self.facts.schema)
        for chunk in chunks:
            rows = chunk.filter(not_matching)
            if rows.num_rows:
                raise InvalidInputError(
                    f"{rows.num_rows} rows do not match overwrite_filter={self._filter.text!r}, for instance "
                    f"{rows.slice(0, 1).to_pylist()[0]}. The overwrite would add them without replacing what is there. "
                    "Filter them out in the source or the transform, or widen overwrite_filter."
                )
            yield chunk
