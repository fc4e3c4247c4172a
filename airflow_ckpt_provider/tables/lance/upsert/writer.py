"""What executors do in an upsert: stage the source, look for duplicates in it, match fragments, drop rows that do not land."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.tables.lance.deletions import write_deletions
from airflow_ckpt_provider.tables.lance.upsert.earlier import EARLIER, inserted_rows
from airflow_ckpt_provider.tables.lance.upsert.filtering import FILTER, Filter
from airflow_ckpt_provider.tables.lance.upsert.sidecar import Sidecar, write_sidecar
from airflow_ckpt_provider.tables.lance.upsert.source import SourceKeys, keys_of
from airflow_ckpt_provider.tables.lance.writer import LanceWriter
from airflow_ckpt_provider.tables.protocol import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Split, StagedFile
    from airflow_ckpt_provider.tables.keys.index import Positions
    from airflow_ckpt_provider.tables.lance.deletions import Offsets
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import Mask
    from airflow_ckpt_provider.tables.lance.upsert.source import Source
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts

#: Tasks of the table's own splits, besides ``FILTER``.
MATCH, UNIQUE = "match", "unique"

#: Rows of a fragment whose keys are searched at once.
_BATCH_ROWS = 65_536


class UpsertFacts(NamedTuple):
    """What the splits of an upsert need besides the dataset.

    :param version: the version that is matched; None while the source is staged.
    :param source: what is staged; None until it is.
    :param update: whether rows of the source land whose key the dataset has.
    :param insert: whether the others do.
    :param sidecars: of all fragments, once they are matched, if not all rows of the source land.
    :param earlier: the sidecars of the generation that this one replaces.
    """

    keys: tuple[str, ...]
    version: int | None
    source: Source | None
    update: bool = True
    insert: bool = True
    sidecars: tuple[Sidecar, ...] = ()
    earlier: tuple[Sidecar, ...] = ()

    @property
    def all_land(self) -> bool:
        """Whether all rows of the source land."""
        return self.update and self.insert


class UpsertWriter(LanceWriter):
    """Does the splits of an upsert; see ``Writer``."""

    def __init__(self, facts: WriterFacts, upsert: UpsertFacts) -> None:
        super().__init__(facts)
        self._upsert = upsert

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Stage rows of the source, and how large their keys are. Files that may not land as they are have names that say so."""
        counted = _Counted(batches, self._upsert.keys)
        written = super().write(counted, stem if self._upsert.all_land else f"{stem}-source")
        return written._replace(scratch={"key_bytes": counted.bytes}) if written.rows else written

    def work(self, split: Split, stem: str) -> Written:
        """Match a fragment, look for duplicates in a bucket, or drop those rows of a file of the source that do not land."""
        upsert = self._upsert
        if upsert.source is None or upsert.version is None:
            return super().work(split, stem)
        if split.task == FILTER:
            return Filter(LanceWriter(self.facts), upsert.sidecars, matched=upsert.update).work(split, stem)
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
        if written.scratch is not None and "sidecar" in written.scratch:
            files.delete([f"{files.uri}/{Sidecar.from_json(written.scratch['sidecar']).name}"])

    def _match(self, split: Split, version: int, keys: SourceKeys, stem: str) -> Written:
        """Which rows of a fragment have a key of the source, and which rows of the source those are.

        Rows that the generation which is replaced has inserted are deleted, whatever their keys.

        :returns: with the fragment's description, if rows of it are deleted, and the sidecar's, if any are found, as ``scratch``.
        """
        import numpy as np

        files, read = self.facts.files, split.read
        version, fragment = self._fragment(split, version)
        live = _live(fragment)
        inserted, hit = (np.zeros(fragment.physical_rows, dtype=np.bool_) for _ in range(2))
        if EARLIER in read:
            number: Any = read[EARLIER]
            inserted = live & inserted_rows(files, self._upsert.earlier, number, fragment.physical_rows)
        sources: list[Positions] = []
        rows: list[Positions] = []
        for portion in keys.source.portions():
            loaded = keys.kept(portion)
            known = np.zeros(len(loaded.known), dtype=np.bool_)
            for offsets, columns, hashed in _rows(fragment, self._upsert.keys):
                own = np.flatnonzero(portion.holds(hashed, keys.source.buckets) & ~inserted[offsets])
                found = loaded.known.find([column.take(own) for column in columns], hashed[own])
                hit[offsets[own[found >= 0]]] = True
                known[found[found >= 0]] = True
            sources.append(loaded.source[known])
            rows.append(loaded.row[known])
        written: tuple[StagedFile, ...] = ()
        scratch: JsonObject = {}
        gone = inserted | hit if self._upsert.update else inserted
        if gone.any():
            deleted: Offsets = np.flatnonzero(gone | ~live).astype(np.uint32)
            scratch["fragment"], file = write_deletions(files, fragment.metadata, version, deleted, stem)
            written = (file,)
        if hit.any():
            scratch["sidecar"] = write_sidecar(files, np.concatenate(sources), np.concatenate(rows), stem).to_json()
        counts = {"updated": int(np.count_nonzero(hit))} if self._upsert.update and hit.any() else {}
        return Written(0, sum(file.bytes for file in written), written, None, counts=counts, scratch=scratch or None)

    def _fragment(self, split: Split, version: int) -> tuple[int, Any]:
        """The fragment that is to be matched, and the version that it is read in: the last one, if that which was pinned is gone.

        :raises TableMovedError: if it is another one by now.
        """
        import lance

        files = self.facts.files
        try:
            dataset = lance.dataset(files.address, version=version, storage_options=files.storage_options)
        except ValueError:
            dataset = lance.dataset(files.address, storage_options=files.storage_options)
        fragment = dataset.get_fragment(int(split.read["fragment"]))  # type: ignore[call-overload]
        if fragment is None or match_id(fragment.metadata) != split.id:
            raise TableMovedError(
                f"The fragment {split.read['fragment']} of {files.uri} was changed since version {version}, which was cleaned up. "
                "Nothing was committed, and what is staged stays staged: the next try matches what there is now."
            )
        return dataset.version, fragment


def match_id(fragment: Any) -> str:  # noqa: ANN401 - a FragmentMetadata
    """Id of the split that matches a fragment: it says which one that is, with which columns and deletions."""
    described = fragment.to_json()
    facts = [described["id"], sorted(file["path"] for file in described["files"]), described["deletion_file"]]
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


def _rows(fragment, keys: Sequence[str]):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - a LanceFragment
    """Numbers of the live rows in the fragment, their keys in canonical form, and hashed, batch after batch."""
    for batch in fragment.scanner(columns=list(keys), with_row_address=True, batch_size=_BATCH_ROWS).to_batches():
        columns, hashed = keys_of(batch, keys)
        yield _offsets(batch), columns, hashed
