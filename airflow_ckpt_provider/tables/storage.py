"""The staged files of writes in a table's storage: which there are, whether they are whole, and what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from airflow_ckpt_provider.checkpoint.documents import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Staged, StagedFile
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite


class DataFile(Part, frozen=True, kw_only=True, omit_defaults=True):
    """One staged data file.

    :param path: as the table's format names it.
    :param rows: as far as it is known without opening it; at least 1, and only to size batches by.
    :param spec_id: the partition spec that it was written with, where there are any.
    """

    path: str
    bytes: int
    rows: int = 1
    spec_id: int = 0


class Place(NamedTuple):
    """Where a table is, for whoever tells others of it. May hold credentials, as a user has given them: not to be shown as it is.

    :param uri: of the folder, or the prefix, that its files lie in.
    :param catalog: kind of the catalog that names the table, such as ``rest``; empty without one.
    :param catalog_uri: where the catalog answers; empty if it has no such address.
    :param warehouse: of the catalog; empty if it says none.
    """

    uri: str
    catalog: str = ""
    catalog_uri: str = ""
    warehouse: str = ""

    @classmethod
    def in_catalog(cls, uri: str, properties: Mapping[str, object]) -> Place:
        """Where a table is that a catalog names.

        :param properties: that the catalog was opened with.
        """
        return cls(uri, *(str(properties.get(name) or "") for name in ("type", "uri", "warehouse")))


class StagedScan(Protocol):
    """Reads staged data files, wherever. Picklable; may hold credentials, so it is never stored."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        ...

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Rows of one of the files that ``StagedStorage.data_files`` lists."""
        ...


class StagedStorage(Protocol):
    """The storage of a table, as the staged files of writes lie in it."""

    @property
    def place(self) -> Place:
        """Where that is."""
        ...

    def partitions(self, writes: Sequence[SealedWrite]) -> Sequence[str]:
        """The partitions of the table that the staged files of these lie in, each once, as ``day=2026-01-01/region=eu``.

        :returns: nothing for a table without partitions.
        """
        ...

    def named_in(self, record: Staged) -> list[StagedFile]:
        """All files that a published record names: those that may land, and those that later splits read."""
        ...

    def needed_to_commit(self, write: SealedWrite) -> list[StagedFile]:
        """The files without which a commit of this would not be whole: those that land, what lists them, and what it reads; and
        those that a replacement of it would read.
        """
        ...

    def lost(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """The lost ones of these staged files: those that are not there, or have another size (I5)."""
        ...

    def require_owned_records(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records of splits, and plans made from them, that name files which this generation has not written (I15).

        :raises CorruptObjectError: naming one.
        """
        ...

    def require_owned_files(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse to land, or to look at, what names files that its generation has not written for this table (I4, I15).

        What is replaced is looked at, too.

        :raises CorruptObjectError: naming one.
        """
        ...

    def require_listed(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse to land manifests that do not list exactly the files which the records name (I4, I15).

        :raises CorruptObjectError: naming a file.
        """
        ...

    def writes_manifests(self, manifests: Sequence[JsonObject]) -> bool:
        """Whether ``merged_manifests`` writes files, for which an attempt has to be recorded before (I4)."""
        ...

    def merged_manifests(self, write: StagedWrite, manifests: Sequence[JsonObject], stem: str) -> Sequence[JsonObject]:
        """Few manifests in the place of many tiny ones, as they are sealed.

        :param stem: start of the names of files that are written, if any are.
        """
        ...

    def data_files(self, writes: Sequence[SealedWrite]) -> Sequence[DataFile]:
        """The data files that a commit of these would add."""
        ...

    def scan(self, writes: Sequence[SealedWrite], columns: Sequence[str] | None = None) -> StagedScan:
        """What reads those files.

        :param columns: top-level columns, in this order; all if None.
        :raises ValueError: if there is no such column.
        """
        ...
