"""The table's part of a stage: what runs on an executor, for one split at a time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Pinned, Split, Staged, StagedFile


class Written(NamedTuple):
    """What one split became; see ``Staged`` for what the members mean."""

    rows: int
    bytes: int
    files: tuple[StagedFile, ...]
    manifest: JsonObject | None
    replaces: tuple[str, ...] = ()
    counts: Mapping[str, int] = MappingProxyType({})
    intermediate: Pinned | None = None


class Writer(Protocol):
    """Does the table's part of a round's splits on an executor. Picklable; may hold credentials, so it is never stored."""

    @property
    def schema(self) -> pa.Schema:
        """The schema that rows are brought to."""
        ...

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write the rows of one split in bounded memory (I11). All its file names begin with ``stem`` (I4).

        :raises SchemaMismatchError: if the rows do not fit the table.
        :raises NullInRequiredColumnError: if a required column holds a null.
        """
        ...

    @property
    def folders(self) -> Collection[str]:
        """The folders below which all its files lie."""
        ...

    def holding(self, record: Staged) -> list[StagedFile]:
        """The files in which ``write`` has put the rows of a record."""
        ...

    def named_in(self, record: Staged) -> list[StagedFile]:
        """All files that ``write`` has written for a record: those, and what lists them."""
        ...

    def sizes(self, paths: Sequence[str]) -> Sequence[int | None]:
        """Sizes of files in bytes as they are now; None for those that are not there."""
        ...

    def read(self, record: Staged) -> Iterator[pa.RecordBatch]:
        """The rows of a record that ``write`` has written, in their order there."""
        ...

    def rewrite(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write rows that come from ``read``, in bounded memory; see ``write``."""
        ...

    def work(self, split: Split, stem: str) -> Written:
        """Do a table split, such as rewriting a file of the table; see ``Split.task``."""
        ...

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published. Nothing refers to them."""
        ...
