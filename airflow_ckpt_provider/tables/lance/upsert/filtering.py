"""Which of the source's rows land, where not all do: each of its files is taken as it is, written again without some, or left out.

Decision: a staged file has no number yet that a deletion file could be named by, so the rows that do not land cannot be marked as
deleted as those of the dataset are. Only files of which some rows land and others do not are written again.

Where updated rows keep their row ids, each of the source's files is split into those and the others in the same way: rows of one
data file have ids that are kept, or get new ones. Those that are kept are put in order within what is read at once. Lance notes
which rows of a fragment were made in which version as runs of rows, and a later update of each row goes through these: of a
million rows in no order that takes a minute. Versions go up with the ids, so that a file in order has few of them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.documents import Split, StagedFile
from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.scan import FileScan
from airflow_ckpt_provider.tables.lance.upsert.row_ids import write_row_ids
from airflow_ckpt_provider.tables.lance.upsert.sidecar import NO_ID, kept_ids, matched_rows
from airflow_ckpt_provider.tables.storage import DataFile
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Staged
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment
    from airflow_ckpt_provider.tables.lance.intermediate import RowIds
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar, Ids, Mask
    from airflow_ckpt_provider.tables.lance.writer import LanceWriter

#: Task of the splits that decide which rows of a file of the source land.
FILTER = "filter"

#: How often a file may go back to a lower row id, and lands as it is nevertheless if all its rows keep theirs.
_BACK = 1024


class LandingRows(NamedTuple):
    """Which rows of the source land.

    :param update: whether those do whose key the dataset has.
    :param insert: whether the others do.
    :param keeps_ids: whether the former keep their row ids.
    """

    update: bool = True
    insert: bool = True
    keeps_ids: bool = False

    @property
    def as_staged(self) -> bool:
        """Whether the source's files land as they are, whatever is found."""
        return self.update and self.insert and not self.keeps_ids

    @property
    def halves(self) -> tuple[bool, ...]:
        """Which splits a file of the source has: one for the rows that were found (True), one for the others, or both."""
        return tuple(matched for matched, lands in ((True, self.update), (False, self.insert)) if lands)


def filters_of(records: Sequence[Staged], sidecars: Mapping[str, DatasetSidecar], landing: LandingRows) -> dict[str, Split]:
    """A split, or two, for each file of the source, numbered as in ``StagedSource.files``.

    Its id says which sidecars it depends on: matching a fragment again that has none of its keys leaves it as it is.

    :param records: the published records of the source's splits.
    :param sidecars: by the match splits that wrote them.
    """
    near: dict[int, list[str]] = {}
    to_all: list[str] = []
    for match, sidecar in sorted(sidecars.items()):
        if not sidecar.sources:
            to_all.append(match)
        for source in sidecar.sources:
            near.setdefault(source, []).append(match)
    common = _digest(to_all)
    splits = []
    for number, staged in enumerate(_one_by_one(records)):
        digest, read = _digest([common, *near.get(number, ())]), {"source": number, "fragments": staged.to_json()}
        for matched in landing.halves:
            letter = "x" if not landing.keeps_ids else "m" if matched else "n"
            of_split: JsonObject = read | {"matched": matched} if landing.keeps_ids else read
            splits.append(
                Split(id=f"{FILTER}{digest}{letter}{number:06d}", bytes=staged.fragments[0].bytes, read=of_split, task=FILTER)
            )
    return {split.id: split for split in splits}


class Filter:
    """Does those splits on an executor.

    :param writer: writes the rows that land.
    :param sidecars: of all fragments in which a key of the source was found.
    """

    def __init__(self, writer: LanceWriter, sidecars: Sequence[DatasetSidecar], landing: LandingRows) -> None:
        self._writer = writer
        self._sidecars = sidecars
        self._land = landing

    def work(self, split: Split, stem: str) -> Written:
        """One file of the source.

        :returns: with the rows that land, and the file that holds them; their row ids, if they keep any, as ``intermediate``.
        """
        staged = StagedFragments.from_json(split.read["fragments"])  # type: ignore[arg-type]
        (fragment,) = staged.fragments
        files, number = self._writer.facts.files, int(split.read["source"])  # type: ignore[call-overload]
        matched, keeps_ids = bool(split.read.get("matched", self._land.update)), "matched" in split.read
        if keeps_ids:
            ids = kept_ids(files, self._sidecars, number, fragment.rows)
            is_matched: Mask = ids != NO_ID
        else:
            is_matched = matched_rows(files, self._sidecars, number, fragment.rows)
        lands = is_matched if matched else ~is_matched
        rows = int(lands.sum())
        counts = self._counts(rows, fragment.rows - rows)
        if not rows:
            return Written(0, 0, (), None, counts=counts)
        row_ids: RowIds | None = None
        if keeps_ids and matched:
            written, landed = self._ordered(staged, lands, ids, stem)
            row_ids = write_row_ids(files, landed, stem)
        elif rows == fragment.rows:
            written = _as_staged(files, staged)
        else:
            written = self._written(fragment, rows, self._landing(fragment, lands), stem)
        # Rows that took the place of others are not the key's to remove if this generation is replaced; see ``added_files``.
        return written._replace(replaces=(files.path(fragment.name),) if matched else (), counts=counts, intermediate=row_ids)

    def _counts(self, landing: int, others: int) -> dict[str, int]:
        if self._land.update and self._land.insert:
            # Every row lands somewhere. How many are updated, the fragments say that they were in.
            return {}
        counts = {"inserted": 0 if self._land.update else landing, "ignored": others}
        return {name: count for name, count in counts.items() if count}

    def _ordered(self, staged: StagedFragments, lands: Mask, ids: Ids, stem: str) -> tuple[Written, Ids]:
        """A file with those of the rows that keep their ids, as it is or in some order, and the ids in the order that it has."""
        import numpy as np

        (fragment,) = staged.fragments
        if lands.all() and int((ids[1:] < ids[:-1]).sum()) <= _BACK:
            return _as_staged(self._writer.facts.files, staged), ids
        landed: list[Ids] = []
        written = self._written(fragment, int(lands.sum()), self._in_order(fragment, lands, ids, landed), stem)
        return written, np.concatenate(landed)

    def _written(self, fragment: StagedFragment, rows: int, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        written = self._writer.rewrite(batches, stem)
        if written.rows != rows:
            path = self._writer.facts.files.path(fragment.name)
            raise RowCountError(f"{rows} rows of {path} are to land, but {written.rows} were written (I2).")
        return written

    def _landing(self, fragment: StagedFragment, lands: Mask) -> Iterator[pa.RecordBatch]:
        """The rows that land."""
        import pyarrow as pa

        for numbers, batches in self._ranges(fragment):
            mask = lands[numbers.start : numbers.stop]
            if mask.any():
                yield from pa.Table.from_batches(batches).filter(pa.array(mask)).to_batches()

    def _in_order(self, fragment: StagedFragment, lands: Mask, ids: Ids, landed: list[Ids]) -> Iterator[pa.RecordBatch]:
        """The rows that land, those that are read at once in the order of their ids.

        :param landed: takes the ids.
        """
        import numpy as np
        import pyarrow as pa

        for numbers, batches in self._ranges(fragment):
            rows = np.flatnonzero(lands[numbers.start : numbers.stop])
            if len(rows):
                kept = ids[numbers.start : numbers.stop][rows]
                order = np.argsort(kept)
                landed.append(kept[order])
                yield from pa.Table.from_batches(batches).take(pa.array(rows[order])).to_batches()

    def _ranges(self, fragment: StagedFragment) -> Iterator[tuple[range, Iterator[pa.RecordBatch]]]:
        return FileScan(self._writer.facts.files, self._writer.schema).ranges(DataFile(path=fragment.name, bytes=fragment.bytes))


def _as_staged(files: DatasetFiles, staged: StagedFragments) -> Written:
    (fragment,) = staged.fragments
    return Written(fragment.rows, fragment.bytes, (StagedFile(files.path(fragment.name), fragment.bytes),), staged.to_json())


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]


def _one_by_one(records: Sequence[Staged]) -> Iterator[StagedFragments]:
    """The files of the source, each described for itself."""
    for record in records:
        if record.manifest is not None:
            staged = StagedFragments.from_json(record.manifest)
            for fragment in staged.fragments:
                yield StagedFragments(fragments=(fragment,), fields=staged.fields, storage_version=staged.storage_version)
