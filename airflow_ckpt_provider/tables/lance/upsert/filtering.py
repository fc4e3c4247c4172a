"""Which of the source's rows land, where not all do: each of its files is taken as it is, written again without some, or left out.

Decision: a staged file has no number yet that a deletion file could be named by, so the rows that do not land cannot be marked as
deleted as those of the dataset are. Only files of which some rows land and others do not are written again.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Split, StagedFile
from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.scan import DataFile, FileScan
from airflow_ckpt_provider.tables.lance.upsert.sidecar import matched_rows
from airflow_ckpt_provider.tables.protocol import Written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Staged
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import Mask, Sidecar
    from airflow_ckpt_provider.tables.lance.writer import LanceWriter

#: Task of the splits that decide which rows of a file of the source land.
FILTER = "filter"


def filters_of(records: Sequence[Staged], sidecars: Mapping[str, Sidecar]) -> dict[str, Split]:
    """A split for each file of the source, numbered as in ``Source.files``.

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
    found = []
    for number, one in enumerate(_one_by_one(records)):
        split_id = f"{FILTER}{_digest([common, *near.get(number, ())])}x{number:06d}"
        read = {"source": number, "fragments": one.to_json()}
        found.append(Split(id=split_id, bytes=one.fragments[0].bytes, read=read, task=FILTER))
    return {split.id: split for split in found}


class Filter:
    """Does those splits on an executor.

    :param writer: writes the rows that land.
    :param sidecars: of all fragments in which a key of the source was found.
    :param matched: whether the rows that land are those with a key that the dataset has, or the others.
    """

    def __init__(self, writer: LanceWriter, sidecars: Sequence[Sidecar], *, matched: bool) -> None:
        self._writer = writer
        self._sidecars = sidecars
        self._matched = matched

    def work(self, split: Split, stem: str) -> Written:
        """One file of the source.

        :returns: with the rows that land, and the file that holds them.
        """
        staged = StagedFragments.from_json(split.read["fragments"])  # type: ignore[arg-type]
        (own,) = staged.fragments
        files = self._writer.facts.files
        found = matched_rows(files, self._sidecars, int(split.read["source"]), own.rows)  # type: ignore[call-overload]
        lands = found if self._matched else ~found
        rows = int(lands.sum())
        counts = {
            name: count for name, count in (("inserted", 0 if self._matched else rows), ("ignored", own.rows - rows)) if count
        }
        path = files.path(own.name)
        # Rows that took the place of others are not the key's to remove if this generation is replaced; see ``replaced_files``.
        replaces = (path,) if self._matched and rows else ()
        if not rows:
            return Written(0, 0, (), None, counts=counts)
        if rows == own.rows:
            return Written(rows, own.bytes, (StagedFile(path, own.bytes),), staged.to_json(), replaces, counts)
        written = self._writer.write(self._landing(files, own, lands), stem)
        if written.rows != rows:
            raise RowCountError(f"{rows} rows of {path} are to land, but {written.rows} were written (I2).")
        return written._replace(replaces=replaces, counts=counts)

    def _landing(self, files: DatasetFiles, own: StagedFragment, lands: Mask) -> Iterator[pa.RecordBatch]:
        """The rows that land."""
        import pyarrow as pa

        for numbers, batches in FileScan(files, self._writer.schema).ranges(DataFile(own.name, own.bytes)):
            mask = lands[numbers.start : numbers.stop]
            if mask.any():
                yield from pa.Table.from_batches(batches).filter(pa.array(mask)).to_batches()


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]


def _one_by_one(records: Sequence[Staged]) -> Iterator[StagedFragments]:
    """The files of the source, each described for itself."""
    for record in records:
        if record.manifest is not None:
            staged = StagedFragments.from_json(record.manifest)
            for fragment in staged.fragments:
                yield StagedFragments(fragments=(fragment,), fields=staged.fields, storage_version=staged.storage_version)
