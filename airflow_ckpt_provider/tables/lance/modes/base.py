"""What the modes of a Lance dataset have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_ckpt_provider.exceptions import InvalidInputError, TableMovedError, UnsupportedTableError
from airflow_ckpt_provider.tables.lance.facts import writer_facts
from airflow_ckpt_provider.tables.lance.files import names_of
from airflow_ckpt_provider.tables.lance.looks import goes_stale
from airflow_ckpt_provider.tables.lance.operations import adding, overwriting, replaceable
from airflow_ckpt_provider.tables.lance.schema import created_as, unwritable
from airflow_ckpt_provider.tables.lance.writer import LanceWriter
from airflow_ckpt_provider.tables.mode import Mode
from airflow_ckpt_provider.tables.watermarks import moves_watermark

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.lance.binding import NamedDataset
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.operations import Swap
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts
    from airflow_ckpt_provider.tables.writer import Writer


class LanceMode(Mode):
    """A mode, on a dataset as it was loaded; by itself it adds rows.

    :param named: where the dataset is.
    :param dataset: as it was loaded; None if it does not exist yet.
    """

    #: Whether even a commit without rows changes the dataset.
    removes_rows: ClassVar[bool] = False

    #: Whether what it asks of Lance sets the watermarks by itself.
    sets_watermarks: ClassVar[bool] = False

    #: Whether nobody may change any column of the dataset from the first attempt to the commit.
    pins_columns: ClassVar[bool] = True

    def __init__(self, named: NamedDataset, dataset: LanceDataset | None, parameters: JsonObject) -> None:
        super().__init__(parameters)
        self.named = named
        self.dataset = dataset

    @property
    def existing(self) -> LanceDataset:
        """The dataset.

        :raises TableMovedError: if there is none.
        """
        if self.dataset is None:
            raise TableMovedError(f"The Lance dataset {self.named.identifier} is gone.")
        return self.dataset

    def validate(self) -> None:
        """Refuse a dataset with columns that cannot be written.

        :raises UnsupportedTableError: naming them.
        """
        dataset = self.dataset
        if dataset is None:
            # What it can hold was looked at when it was described.
            return
        lines = unwritable(dataset.schema, dataset.data_storage_version)
        if lines:
            raise UnsupportedTableError(
                f"The Lance dataset {dataset.uri} has columns that cannot be written from here:\n  " + "\n  ".join(lines)
            )

    def placing(self, header: Header) -> dict[str, str] | None:
        """None of a dataset's columns decides where a row goes."""
        del header
        return {}

    @goes_stale
    def writer(self, write: StagedWrite) -> Writer:
        """What writes rows with the columns that the header pinned."""
        return LanceWriter(self.facts(write.header))

    def facts(self, header: Header) -> WriterFacts:
        """What the header has pinned for whatever writes."""
        return writer_facts(self.named, self.dataset, header.table, pinned=self.pins_columns)

    @goes_stale
    def require_replaceable(self, landed: SealedWrite) -> None:
        """Check that a replacement of what has landed could be committed now; see ``Mode.require_replaceable``."""
        if self.dataset is not None:
            replaceable(self.dataset, names_of(landed.added_files))

    def landed(self, write: SealedWrite) -> set[str]:
        """URIs of the files that a committed checkpoint has landed, or that its replacement would need."""
        return {file.path for record in write.staged for file in record.files}

    def staged_schema(self, writes: Sequence[SealedWrite]) -> pa.Schema:
        """Columns of the rows that are staged."""
        return self.facts(writes[0].header).schema

    def swap(self, writes: Sequence[SealedWrite], staged: Sequence[StagedFragments]) -> Swap:
        """The operation on this version of the dataset.

        :raises TableMovedError: if what is to be replaced is not there any more.
        """
        if self.dataset is None:
            return overwriting(_schema_to_be(writes[0].header), staged)
        return adding(self.dataset, staged, names_of([path for write in writes for path in write.replaced_files]))

    @classmethod
    def changes_nothing(cls, writes: Sequence[SealedWrite]) -> bool:
        """Whether these add and remove nothing. A dataset is created even if it has no rows."""
        if writes[0].header.table.creation is not None or cls.removes_rows:
            return False
        return not any(write.seal.rows or write.replaced_files for write in writes) and not moves_watermark(writes)


def _schema_to_be(header: Header) -> pa.Schema:
    if header.table.creation is None:
        raise InvalidInputError(f"The Lance dataset {header.table.identifier} is gone.")
    return created_as(header.table.creation)[0]
