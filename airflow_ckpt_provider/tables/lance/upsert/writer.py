"""What executors do in an upsert: stage the source, look for duplicates in it, and find what it replaces in a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.tables.lance.deletions import write_deletions
from airflow_ckpt_provider.tables.lance.upsert.source import SourceKeys, keys_of
from airflow_ckpt_provider.tables.lance.writer import LanceWriter
from airflow_ckpt_provider.tables.protocol import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.tables.lance.deletions import Offsets
    from airflow_ckpt_provider.tables.lance.upsert.source import Source
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts

#: Tasks of the table's own splits.
MATCH, UNIQUE = "match", "unique"

#: Rows of a fragment whose keys are searched at once.
_BATCH_ROWS = 65_536


class UpsertFacts(NamedTuple):
    """What the splits of an upsert need besides the dataset.

    :param version: the version that is matched; None while the source is staged.
    :param source: what is staged; None until it is.
    """

    keys: tuple[str, ...]
    version: int | None
    source: Source | None


class UpsertWriter(LanceWriter):
    """Does the splits of an upsert; see ``Writer``."""

    def __init__(self, facts: WriterFacts, upsert: UpsertFacts) -> None:
        super().__init__(facts)
        self._upsert = upsert

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Stage rows of the source, and how large their keys are."""
        counted = _Counted(batches, self._upsert.keys)
        written = super().write(counted, stem)
        return written._replace(scratch={"key_bytes": counted.bytes}) if written.rows else written

    def work(self, split: Split, stem: str) -> Written:
        """Match a fragment, or look for duplicates in a bucket."""
        if self._upsert.source is None or self._upsert.version is None:
            return super().work(split, stem)
        keys = SourceKeys(self.facts.files, self._upsert.source, self._upsert.keys)
        if split.task == UNIQUE:
            keys.require_unique(int(split.read["bucket"]))  # type: ignore[call-overload]
            return Written(0, 0, (), None)
        return self._match(int(split.read["fragment"]), self._upsert.version, keys, stem)  # type: ignore[call-overload]

    def _match(self, fragment_id: int, version: int, keys: SourceKeys, stem: str) -> Written:
        """Which rows of a fragment have a key of the source.

        :returns: with the fragment's description as ``scratch``, if any has.
        """
        import lance
        import numpy as np

        files = self.facts.files
        dataset = lance.dataset(files.address, version=version, storage_options=files.storage_options)
        fragment = dataset.get_fragment(fragment_id)
        if fragment is None:
            raise TableMovedError(f"Version {version} of {files.uri} has no fragment {fragment_id}.")
        live, hit = (np.zeros(fragment.physical_rows, dtype=np.bool_) for _ in range(2))
        for portion in keys.source.portions():
            loaded = keys.kept(portion)
            for offsets, columns, hashed in _rows(fragment, self._upsert.keys):
                live[offsets] = True
                own = np.flatnonzero(portion.holds(hashed, keys.source.buckets))
                found = loaded.known.find([column.take(own) for column in columns], hashed[own])
                hit[offsets[own[found >= 0]]] = True
        matched = int(np.count_nonzero(hit))
        if not matched:
            return Written(0, 0, (), None)
        deleted: Offsets = np.flatnonzero(hit | ~live).astype(np.uint32)
        described, file = write_deletions(files, fragment.metadata, version, deleted, stem)
        return Written(0, file.bytes, (file,), None, counts={"updated": matched}, scratch={"fragment": described})


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


def _rows(fragment, keys: Sequence[str]):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - a LanceFragment
    """Numbers of the live rows in the fragment, their keys in canonical form, and hashed, batch after batch."""
    import numpy as np

    for batch in fragment.scanner(columns=list(keys), with_row_address=True, batch_size=_BATCH_ROWS).to_batches():
        addresses = batch.column("_rowaddr").to_numpy(zero_copy_only=False)
        columns, hashed = keys_of(batch, keys)
        yield (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64), columns, hashed
