"""The rows of a Lance dataset that gets new columns: what ``mode="add_columns"`` reads."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Plan
from airflow_ckpt_provider.exceptions import EmptyInputError
from airflow_ckpt_provider.scan.lance import dataset_uri
from airflow_ckpt_provider.scan.lance_rows import PLACE, Rows, facts_of, read_rows, row_splits
from airflow_ckpt_provider.scan.row_lineage import PinnedRows, ranges_of
from airflow_ckpt_provider.sources.lance import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Split

#: Rows of a split, if nothing else is asked for.
ROWS_PER_SPLIT = 1 << 16

#: Rows that tell which columns a transform makes.
_SAMPLE_ROWS = 16


class DatasetRows:
    """Reads columns of a dataset, range by range, with the place of each row.

    Every attempt that finds ranges missing plans them on the dataset as it is then: rows that were deleted since are not read, and
    of fragments that were compacted what is staged is taken over, as far as it can be told where the rows went.

    :param columns: top-level columns to read, in this order.
    :param rows_per_split: rows of one split, deleted ones counted; no split has rows of two fragments.
    """

    conn_kind = "checkpoint"
    place_column = PLACE

    def __init__(self, uri: str, columns: Sequence[str], rows_per_split: int, conn_id: str | None = None) -> None:
        self.uri = uri
        self.columns = list(columns)
        self.rows_per_split = rows_per_split
        self.conn_id = conn_id

    def describe(self) -> JsonObject:
        """What decides which rows are read."""
        return {"lance": dataset_uri(self.uri), "columns": self.columns}

    def plan(self, options: Mapping[str, str]) -> Plan:
        """Ranges that cover the dataset as it is now."""
        dataset = self._place(options).open(None)
        pinned = PinnedRows(
            dataset=dataset_uri(self.uri), read=tuple(self.columns), rows_per_split=self.rows_per_split, **facts_of(dataset)
        )
        splits = row_splits(dataset, self.columns, self.rows_per_split)
        return Plan(created_at=now(), source=pinned.to_json(), splits=tuple(splits), base=dataset.version)

    def replan(
        self,
        rounds: Sequence[Plan],
        staged_ids: AbstractSet[str],
        attempt: str | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Plan | None:
        """The same on the dataset as it is now, if that is another version; see ``ReplanningSource``."""
        del attempt
        dataset, last = self._place(options).open(None), rounds[-1]
        if dataset.version == last.base:
            return None
        ranges = ranges_of(dataset, self.columns, self.rows_per_split, last, staged_ids.__contains__)
        source = ranges.pinned(last, dataset)
        return msgspec.structs.replace(last, created_at=now(), source=source, splits=ranges.splits, base=dataset.version)

    def restaged(self, plan: Plan, staged_ids: AbstractSet[str], number: int, attempt: str) -> Plan:
        """The plan as it is: a range is read again by itself."""
        del staged_ids, number, attempt
        return plan

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the version that these are read at is still there.

        :raises InputChangedError: if it was cleaned up.
        """
        if splits:
            first = Rows.from_json(splits[0].read)
            self._place(options).pinned(first.version, first.made_at)

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """None: what is written is what the transform makes of the rows, never the rows."""
        del plan, options
        return None

    def sample(self, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """A few rows, in one batch."""
        place = self._place(options)
        dataset = place.open(None)
        for split in row_splits(dataset, self.columns, self.rows_per_split):
            for batch in read_rows(dataset, Rows.from_json(split.read), self.columns):
                yield batch.slice(0, _SAMPLE_ROWS)
                return
        raise EmptyInputError(
            f"The dataset {place.uri} has no rows, so that nothing tells which columns the transform makes. Nothing was changed."
        )

    def reader(self, options: Mapping[str, str]) -> RowsReader:
        """What executors read with."""
        return RowsReader(self._place(options), self.columns)

    def _place(self, options: Mapping[str, str]) -> Place:
        return Place(dataset_uri(self.uri), options)


class RowsReader:
    """Reads splits of ``DatasetRows``. Picklable; holds credentials, so it never goes into the store."""

    def __init__(self, place: Place, columns: Sequence[str]) -> None:
        self._place = place
        self._columns = columns

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """Rows of the split in their order, each with its place.

        :raises InputChangedError: if the version is gone.
        """
        del expected
        rows = Rows.from_json(split.read)
        yield from read_rows(self._place.pinned(rows.version, rows.made_at), rows, self._columns)
