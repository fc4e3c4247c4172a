"""Which staged values become one column file for each fragment: the splits that join them, and the files that they make."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from airflow_ckpt_provider.checkpoint.documents import READ, Split
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.scan.lance_rows import Rows, content_of, fields_of, live_fragments
from airflow_ckpt_provider.scan.row_lineage import moved_in
from airflow_ckpt_provider.tables.lance.columns.writer import JOIN, Join, brought_back
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import ColumnFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Plan, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
    from airflow_ckpt_provider.scan.row_lineage import MovedRows, Ranges
    from airflow_ckpt_provider.tables.lance.columns.writer import Run
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment

    #: A staged file, and which of its rows; all where they are if there is none.
    Part: TypeAlias = tuple[StagedFragment, tuple[Run, ...]]


def joins_of(dataset: LanceDataset, ranges: Ranges, write: StagedWrite, read_columns: Sequence[str]) -> Iterator[Split]:
    """Splits that join staged values into one file, for the fragments that need it."""
    fields = fields_of(dataset.lance_schema, read_columns)
    files = _files_of(write.records([split.id for split in ranges.splits]))
    reads = by_fragment(ranges.splits)
    for fragment in live_fragments(dataset):
        of = content_of(fragment, fields)
        read = reads.get(of, [])
        if of in ranges.moved:
            parts = _moved_parts(ranges.moved[of], read, files, dataset.uri)
        elif [files[split.id].rows for split in read if split.id in files] == [fragment.physical_rows]:
            # A value for every row, in one file: it is the fragment's as it is.
            continue
        else:
            parts = [(files[split.id], ()) for split in read if split.id in files]
        runs = tuple(own_runs for _, own_runs in parts)
        named = tuple((file.name, file.bytes) for file, _ in parts)
        yield _join(fragment.id, Join(of, fragment.physical_rows, named, runs if any(runs) else ()))


def column_files(plan: Plan, staged: Sequence[Staged]) -> dict[str, tuple[str, int]]:
    """Name and bytes of the column file for each fragment, by what it is of."""
    records = {record.split: record for record in staged}
    moved = {stretch.split for stretches in moved_in(plan).values() for stretch in stretches}
    read = [split for split in plan.splits if split.task == READ and split.id not in moved]
    files = _files_of(records[split.id] for split in read)
    by_content = {
        of: (files[reads[0].id].name, files[reads[0].id].bytes) for of, reads in by_fragment(read).items() if reads[0].id in files
    }
    for split in plan.splits:
        if split.task == JOIN:
            file = records[split.id].intermediate_as(ColumnFile)
            if file is None:
                raise CorruptObjectError(
                    f"The record of the split {split.id} in the checkpoint store does not say which file has the columns that it "
                    f"joined. The store was altered; nothing was changed. Redo the write: {how_to_restart()}."
                )
            by_content[Join.from_json(split.read).content] = (file.name, file.bytes)
    return by_content


def by_fragment(splits: Iterable[Split]) -> dict[str, list[Split]]:
    """Splits that read ranges, in the order of these, by what they are of."""
    reads: dict[str, list[Split]] = {}
    for split in sorted(splits, key=lambda split: Rows.from_json(split.read).start):
        reads.setdefault(Rows.from_json(split.read).content, []).append(split)
    return reads


def _join(fragment: int, join: Join) -> Split:
    facts = hashlib.sha256(msgspec.json.encode([join.content, join.parts])).hexdigest()[:16]
    size = sum(size for _, size in join.parts)
    return Split(id=f"{JOIN}_{fragment:06d}_{facts}", bytes=size, read=join.to_json(), task=JOIN)


def _files_of(records: Iterable[Staged]) -> dict[str, StagedFragment]:
    """The file that each split has staged; none of a range without a row left."""
    files = {}
    for record in records:
        if record.manifest is not None:
            (files[record.split],) = StagedFragments.from_json(record.manifest).fragments
    return files


def _moved_parts(
    stretches: Iterable[MovedRows], read: Iterable[Split], files: Mapping[str, StagedFragment], table: str
) -> list[Part]:
    """The files with values of a fragment that others compacted, in the order of its rows, and which rows of them.

    :param read: splits that have read its other rows.
    :raises TableMovedError: if there is no value of a row that was moved.
    """
    parts: list[tuple[int, Part]] = [
        (Rows.from_json(split.read).start, (files[split.id], ())) for split in read if split.id in files
    ]
    runs: dict[str, list[Run]] = {}
    at = 0
    for stretch in stretches:
        if stretch.split and stretch.split not in files:
            # All rows of that range were deleted when it was read.
            raise brought_back(table)
        if stretch.split:
            runs.setdefault(stretch.split, []).append((stretch.start, stretch.stop, at))
        at += stretch.rows
    parts += [(moved_runs[0][2], (files[split], tuple(moved_runs))) for split, moved_runs in runs.items()]
    return [part for _, part in sorted(parts, key=lambda placed: placed[0])]
