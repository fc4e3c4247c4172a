"""What executors do in an upsert: stage the source, look for duplicates in it, match fragments, drop rows that do not land."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.restaged import first_id
from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.scan.lance import name_of, open_dataset
from airflow_ckpt_provider.tables.lance.deletions import deletions_of, write_deletions
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import Intermediate, KeysSize, Match
from airflow_ckpt_provider.tables.lance.upsert.filtering import FILTER, Filter, LandingRows
from airflow_ckpt_provider.tables.lance.upsert.replaced import REPLACED, inserted_rows
from airflow_ckpt_provider.tables.lance.upsert.sidecar import NO_ID, write_sidecar
from airflow_ckpt_provider.tables.lance.upsert.source import SourceKeys, keys_of
from airflow_ckpt_provider.tables.lance.writer import LanceWriter
from airflow_ckpt_provider.tables.staged_files import reading_staged
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.tables.keys.index import Positions
    from airflow_ckpt_provider.tables.lance.deletions import Deletions, Offsets
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar, Ids, Mask
    from airflow_ckpt_provider.tables.lance.upsert.source import StagedSource
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts

#: Tasks of table splits, besides ``FILTER``.
MATCH, UNIQUE = "match", "unique"

#: Rows of a fragment whose keys are searched at once.
_BATCH_ROWS = 65_536


class UpsertFacts(NamedTuple):
    """What the splits of an upsert need besides the dataset.

    :param version: the version that is matched; None while the source is staged.
    :param source: what is staged; None until it is.
    :param sidecars: of all fragments, once they are matched, if not all files of the source land as they are.
    :param replaced: the sidecars of the generation that this one replaces.
    """

    keys: tuple[str, ...]
    version: int | None
    source: StagedSource | None
    landing: LandingRows = LandingRows()
    sidecars: tuple[DatasetSidecar, ...] = ()
    replaced: tuple[DatasetSidecar, ...] = ()


class UpsertWriter(LanceWriter):
    """Does the splits of an upsert; see ``Writer``."""

    def __init__(self, facts: WriterFacts, upsert: UpsertFacts) -> None:
        super().__init__(facts)
        self._upsert = upsert

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Stage rows of the source, and how large their keys are. Files that may not land as they are have names that say so."""
        return self._counted(super().write, batches, stem)

    def rewrite(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """The same, of rows that were read from staged files; see ``as_read``."""
        return self._counted(super().rewrite, batches, stem)

    def _counted(self, write: Callable[[_Counted, str], Written], batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        counted = _Counted(batches, self._upsert.keys)
        written = write(counted, stem if self._upsert.landing.as_staged else f"{stem}-source")
        return written._replace(intermediate=KeysSize(key_bytes=counted.bytes)) if written.rows else written

    def work(self, split: Split, stem: str) -> Written:
        """Match a fragment, look for duplicates in a bucket, or drop those rows of a file of the source that do not land."""
        with reading_staged(self._read_by(split), self.facts.files.sizes, self.facts.table):
            return self._work(split, stem)

    def _read_by(self, split: Split) -> list[StagedFile]:
        """Staged files of this generation that a split reads."""
        files, upsert = self.facts.files, self._upsert
        sidecars = [StagedFile(f"{files.uri}/{sidecar.name}", sidecar.bytes) for sidecar in upsert.sidecars]
        if split.task != FILTER:
            source = upsert.source
            named = () if source is None else zip(source.files, source.sizes, strict=True)
            return [StagedFile(files.path(name), size) for name, size in named]
        staged = StagedFragments.from_json(split.read["fragments"])  # type: ignore[arg-type]
        return [*(StagedFile(files.path(fragment.name), fragment.bytes) for fragment in staged.fragments), *sidecars]

    def _work(self, split: Split, stem: str) -> Written:
        upsert = self._upsert
        if upsert.source is None or upsert.version is None:
            return super().work(split, stem)
        if split.task == FILTER:
            return Filter(LanceWriter(self.facts), upsert.sidecars, upsert.landing).work(split, stem)
        keys = SourceKeys(self.facts.files, upsert.source, upsert.keys)
        if split.task == UNIQUE:
            keys.require_unique(int(split.read["bucket"]))  # type: ignore[call-overload]
            return Written(0, 0, (), None)
        return self._match(split, upsert.version, keys, stem)

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published, but for one of the source that it took as it is."""
        files, source = self.facts.files, self._upsert.source
        taken = frozenset() if source is None else frozenset(map(files.path, source.files))
        super().remove(written._replace(files=tuple(file for file in written.files if file.path not in taken)))
        if isinstance(written.intermediate, Intermediate):
            files.delete([f"{files.uri}/{sidecar.name}" for sidecar in written.intermediate.sidecars])

    def _match(self, split: Split, version: int, keys: SourceKeys, stem: str) -> Written:
        """Which rows of a fragment have a key of the source, and which rows of the source those are.

        Rows that the generation which is replaced has inserted are deleted, whatever their keys.

        :returns: with a ``Match`` as ``intermediate``, if rows of the fragment are deleted or any of the source are found.
        """
        import numpy as np

        files, read, landing = self.facts.files, split.read, self._upsert.landing
        version, fragment = self._fragment(split, version)
        live = _live(fragment)
        inserted, hit = (np.zeros(fragment.physical_rows, dtype=np.bool_) for _ in range(2))
        if REPLACED in read:
            number: Any = read[REPLACED]
            inserted = live & inserted_rows(files, self._upsert.replaced, number, fragment.physical_rows)
        sources: list[Positions] = []
        rows: list[Positions] = []
        taken: list[Ids] = []
        for key_batch in keys.source.key_batches():
            loaded = keys.kept(key_batch)
            known = np.zeros(len(loaded.known), dtype=np.bool_)
            lowest = np.full(len(loaded.known) if landing.keeps_ids else 0, NO_ID, dtype=np.uint64)
            for offsets, columns, hashed, ids in _rows(fragment, self._upsert.keys, with_ids=landing.keeps_ids):
                searched = np.flatnonzero(key_batch.holds(hashed, keys.source.buckets) & ~inserted[offsets])
                positions = loaded.known.find([column.take(searched) for column in columns], hashed[searched])
                hit[offsets[searched[positions >= 0]]] = True
                known[positions[positions >= 0]] = True
                if ids is not None:
                    np.minimum.at(lowest, positions[positions >= 0], ids[searched[positions >= 0]])
            sources.append(loaded.source[known])
            rows.append(loaded.row[known])
            if landing.keeps_ids:
                taken.append(lowest[known])
        written: tuple[StagedFile, ...] = ()
        deletions: Deletions | None = None
        sidecar: DatasetSidecar | None = None
        dropped = inserted | hit if landing.update else inserted
        if dropped.any():
            deleted: Offsets = np.flatnonzero(dropped | ~live).astype(np.uint32)
            deletions, file = write_deletions(files, fragment.fragment_id, version, deleted, stem)
            written = (file,)
        if hit.any():
            kept = np.concatenate(taken) if landing.keeps_ids else None
            sidecar = write_sidecar(files, np.concatenate(sources), np.concatenate(rows), stem, kept)
        counts = {"updated": int(np.count_nonzero(hit))} if landing.update and hit.any() else {}
        match = None if deletions is None and sidecar is None else Match(deletions=deletions, sidecar=sidecar)
        return Written(0, sum(file.bytes for file in written), written, None, counts=counts, intermediate=match)

    def _fragment(self, split: Split, version: int) -> tuple[int, Any]:
        """The fragment that is to be matched, and the version that it is read in: the last one, if that which was pinned is gone.

        :raises TableMovedError: if it is another one by now.
        """
        files = self.facts.files
        dataset = open_dataset(files.uri, files.options, version) or open_dataset(files.uri, files.options)
        fragment = None if dataset is None else dataset.get_fragment(int(split.read["fragment"]))  # type: ignore[call-overload]
        keeps_ids = self._upsert.landing.keeps_ids
        if dataset is None or fragment is None or match_id(fragment.metadata, keeps_ids=keeps_ids) != first_id(split.id):
            raise TableMovedError(
                f"The fragment {split.read['fragment']} of {files.uri} was changed since version {version}, which was cleaned up. "
                "Nothing was committed, and what is staged stays staged: the next try matches what there is now."
            )
        return dataset.version, fragment


def match_id(fragment: Any, *, keeps_ids: bool) -> str:  # noqa: ANN401 - a FragmentMetadata
    """Id of the split that matches a fragment: it says which one that is, with which columns and deletions, and what is kept."""
    facts: list[object] = [fragment.id, sorted(map(name_of, fragment.files)), deletions_of(fragment)]
    if keeps_ids:
        facts.append("row_ids")
    return f"{MATCH}{hashlib.sha256(msgspec.json.encode(facts, order='deterministic')).hexdigest()[:16]}"


class _Counted:
    """Batches as they pass, and the bytes of their key columns."""

    def __init__(self, batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> None:
        self._batches = batches
        self._keys = keys
        self.bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            names = set(batch.schema.names)
            self.bytes += sum(batch.column(key).nbytes for key in self._keys if key in names)
            yield batch


def _live(fragment: Any) -> Mask:  # noqa: ANN401 - a LanceFragment
    """Which of the fragment's physical rows are not deleted."""
    import numpy as np

    live = np.zeros(fragment.physical_rows, dtype=np.bool_)
    for batch in fragment.scanner(columns=[], with_row_address=True).to_batches():
        live[_offsets(batch)] = True
    return live


def _offsets(batch: pa.RecordBatch) -> Positions:
    """Numbers of rows in their fragment, from their addresses."""
    import numpy as np

    addresses = batch.column("_rowaddr").to_numpy(zero_copy_only=False)
    return (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)  # type: ignore[no-any-return]


def _rows(fragment, keys: Sequence[str], *, with_ids: bool):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - a LanceFragment
    """Numbers of the live rows in the fragment, their keys in canonical form, and hashed, and their row ids, batch after batch."""
    scanner = fragment.scanner(columns=list(keys), with_row_id=with_ids, with_row_address=True, batch_size=_BATCH_ROWS)
    for batch in scanner.to_batches():
        columns, hashed = keys_of(batch, keys)
        ids = batch.column("_rowid").to_numpy(zero_copy_only=False) if with_ids else None
        yield _offsets(batch), columns, hashed, ids
