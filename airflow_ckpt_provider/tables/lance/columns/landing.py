"""Whether the rows of a dataset have values in the new columns, and whose columns of the same names are replaced."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.documents import READ, StagedFile
from airflow_ckpt_provider.checkpoint.restart import run_again
from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.scan.lance_rows import PLACE, Rows, live_places
from airflow_ckpt_provider.scan.row_lineage import PinnedRows, moved_in
from airflow_ckpt_provider.tables.lance.columns.joining import by_fragment
from airflow_ckpt_provider.tables.lance.columns.pinned import columns_of
from airflow_ckpt_provider.tables.lance.columns.writer import brought_back
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.history import operations_since, rows_stayed
from airflow_ckpt_provider.tables.lance.scan import FileScan
from airflow_ckpt_provider.tables.staged_files import reading_staged
from airflow_ckpt_provider.tables.storage import DataFile
from airflow_ckpt_provider.tables.summary import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, Split, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.scan.lance_rows import Places
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles

_log = logging.getLogger(__name__)

#: Metadata of a column that was added: a digest of the checkpoint's header, which no other store has.
_MADE_BY = b"airflow.checkpoint.made"


def require_covered(
    write: SealedWrite, dataset: LanceDataset, live: Mapping[str, Any], made: Mapping[str, tuple[str, int]]
) -> None:
    """Rows that were added since have no values, and those that were deleted need none; anything else has to be looked at."""
    removed, new = made.keys() - live.keys(), live.keys() - made.keys()
    rows = write.plan.source_as(PinnedRows).rows
    left = sum(fragment.num_rows for of, fragment in live.items() if of in made)
    # A row that was updated is deleted in one fragment and stands in another, where it would lose its value.
    touched = removed or (new and left < rows)
    # Rows that were added to columns which are replaced have values of others in them.
    if (new and write.header.replaces is not None) or (touched and not rows_stayed(dataset, write.plan.base or 0)):
        raise TableMovedError(
            f"{write.header.table.identifier} was changed since the columns of the key {write.header.key!r} were computed: "
            f"{len(removed)} fragments were rewritten or removed, and {len(new)} are new. Nothing was committed, and what is "
            f"staged stays staged. {run_again(write.header)}: it computes what the change affects, and "
            "nothing else, before the commit runs again."
        )
    if new:
        _log.warning(
            "%s rows were added to %s after the columns of the key %s were computed. They have no values in them.",
            f"{sum(live[of].num_rows for of in new):,}", write.header.table.identifier, write.header.key,
        )  # fmt: skip


def require_valued(write: SealedWrite, dataset: LanceDataset, live: Mapping[str, Any], files: DatasetFiles) -> None:
    """Refuse fragments with rows that were deleted when the columns were computed, and are back: they would have no values.

    Only a dataset that is restored to an earlier version brings rows back. Where it was, or that cannot be told because versions
    were cleaned up, the places of the rows tell: as many may have gone as have come back.

    :param live: fragments of the dataset, by what they hold.
    :raises TableMovedError: if there is such a row.
    """
    records = {record.split: record for record in write.staged}
    splits = [split for split in write.plan.splits if split.task == READ]
    reads, moved = by_fragment(splits), moved_in(write.plan)
    # Of a stretch that was moved, every row has a value: the join has looked.
    valued = {
        of: sum(records[split.id].rows for split in reads.get(of, ()))
        + sum(stretch.rows for stretch in moved.get(of, ()) if stretch.split)
        for of in live
        if of in reads or of in moved
    }
    missing = any(live[of].num_rows > rows for of, rows in valued.items())
    if not missing and any(rows < live[of].physical_rows for of, rows in valued.items()):
        first = min(Rows.from_json(split.read).version for split in splits)
        operations = operations_since(dataset, first)
        if operations is None or "Restore" in operations:
            missing = any(
                _has_unvalued(dataset.get_fragment(fragment.id), reads[of], records, files, write.header.table.identifier)
                for of, fragment in live.items()
                if of in reads
            )
    if missing:
        raise brought_back(write.header.table.identifier)


def _has_unvalued(
    fragment: Any,  # noqa: ANN401 - a LanceFragment
    reads: Sequence[Split],
    records: Mapping[str, Staged],
    files: DatasetFiles,
    table: str,
) -> bool:
    """Whether a row of a fragment has no value, though the range was read that it is in.

    :param reads: splits that read its ranges.
    """
    import numpy as np

    ranges = ((Rows.from_json(split.read), records[split.id]) for split in reads)
    gaps = [(rows, record) for rows, record in ranges if record.rows < rows.stop - rows.start]
    live = live_places(fragment) if gaps else np.empty(0, np.uint32)
    for rows, record in gaps:
        there = live[(live >= rows.start) & (live < rows.stop)]
        if not np.isin(there, _valued_places(record, files, table)).all():
            return True
    return False


def _valued_places(record: Staged, files: DatasetFiles, table: str) -> Places:
    """The places of the rows that a split has staged values of."""
    import numpy as np
    import pyarrow as pa

    scan = FileScan(files, pa.schema([pa.field(PLACE, pa.uint32())]))
    staged = StagedFragments.from_json(record.manifest).fragments if record.manifest is not None else ()
    with reading_staged([StagedFile(files.path(file.name), file.bytes) for file in staged], files.sizes, table):
        read = [batch.column(0) for file in staged for batch in scan.read(DataFile(path=file.name, bytes=file.bytes))]
        return np.concatenate([np.empty(0, np.uint32), *(places.to_numpy(zero_copy_only=False) for places in read)])


def warn_of_indexes(dataset: LanceDataset, replaced: Sequence[str]) -> None:
    """Say which indexes go with the values that are replaced."""
    for index in dataset.describe_indices() if replaced else ():
        if set(index.field_names) & set(replaced):
            _log.warning(
                "The index %s of %s is over values that are replaced, and goes with them. Create it anew.", index.name, dataset.uri
            )


def own_columns(dataset: LanceDataset, replaced: SealedWrite | None) -> frozenset[str]:
    """Columns of the dataset that the generation which is replaced has added, and not somebody else since under the same name."""
    if replaced is None:
        return frozenset()
    made = identity_of([replaced.header]).encode()
    return frozenset(
        name
        for name in columns_of(replaced.plan).names
        if name in dataset.schema.names and (dataset.schema.field(name).metadata or {}).get(_MADE_BY) == made
    )


def signed(columns: pa.Schema, header: Header) -> pa.Schema:
    """The columns, each saying which checkpoint has made it: names and files do not tell, after others have worked on them."""
    import pyarrow as pa

    made = {_MADE_BY: identity_of([header]).encode()}
    return pa.schema([field.with_metadata({**(field.metadata or {}), **made}) for field in columns])
