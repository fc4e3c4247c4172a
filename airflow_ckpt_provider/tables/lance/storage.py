"""The staged files of writes in the folder of a Lance dataset; see ``StagedStorage``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.tables.lance.deletions import require_counted
from airflow_ckpt_provider.tables.lance.facts import writer_facts
from airflow_ckpt_provider.tables.lance.footers import require_rows
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import deletions_in, intermediate_of
from airflow_ckpt_provider.tables.lance.looks import goes_stale
from airflow_ckpt_provider.tables.lance.modes import MODES
from airflow_ckpt_provider.tables.lance.ownership import require_owned_files, require_owned_records
from airflow_ckpt_provider.tables.lance.scan import FileScan
from airflow_ckpt_provider.tables.lance.upsert.row_ids import ROW_IDS_SUFFIX
from airflow_ckpt_provider.tables.mode import mode_of
from airflow_ckpt_provider.tables.staged_files import lost_of
from airflow_ckpt_provider.tables.storage import DataFile, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.lance.binding import NamedDataset
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment
    from airflow_ckpt_provider.tables.lance.modes.base import LanceMode


class LanceStorage:
    """What is staged in the folder of a dataset.

    :param named: where the dataset is.
    :param dataset: as it was loaded; None if it does not exist yet.
    """

    def __init__(self, named: NamedDataset, dataset: LanceDataset | None) -> None:
        self.named = named
        self._dataset = dataset

    @property
    def place(self) -> Place:
        """The dataset's URI, which is all that names it."""
        return Place(self.named.identifier)

    def partitions(self, writes: Sequence[SealedWrite]) -> Sequence[str]:
        """None: a dataset has no partitions."""
        del writes
        return ()

    def named_in(self, record: Staged) -> list[StagedFile]:
        """Data and deletion files, the sidecar and the file with row ids; see ``StagedStorage.named_in``."""
        kept = intermediate_of(record)
        sidecars = () if kept is None else kept.sidecars
        return [*record.files, *(StagedFile(f"{self.named.files.uri}/{sidecar.name}", sidecar.bytes) for sidecar in sidecars)]

    def needed_to_commit(self, write: SealedWrite) -> list[StagedFile]:
        """Data and deletion files, sidecars and files with row ids; see ``StagedStorage.needed_to_commit``."""
        landed = self._mode(write.header).landed(write)
        files = (file for record in write.staged for file in self.named_in(record))
        return [file for file in files if file.path in landed or file.path.endswith(ROW_IDS_SUFFIX)]

    def lost(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """Staged files that are gone or have another size (I5): Lance commits fragments whose files are gone."""
        return lost_of(files, self.named.files.sizes([file.path for file in files]))

    def require_owned_records(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records that name files that the generation has not written; see ``StagedStorage.require_owned_records``."""
        replaced_names = write.replaced.names if write.replaced is not None else None
        require_owned_records(self.named.identifier, write.header, write.names, write.plans, records, replaced_names)

    def require_owned_files(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse to land files that the write has not staged; see ``StagedStorage.require_owned_files``."""
        uri = self.named.identifier
        for write in writes:
            header = write.header
            pins = self._mode(header).pins_columns
            require_owned_files(uri, write, writer_facts(self.named, self._dataset, header.table).fields if pins else None)
            replaced = write.replaced
            if replaced is not None:
                replaced_before = replaced.replaced.names if replaced.replaced is not None else None
                require_owned_records(uri, replaced.header, replaced.names, [replaced.plan], replaced.staged, replaced_before)

    def require_listed(self, writes: Sequence[SealedWrite]) -> None:
        """Fragments are listed in the records, and were looked at there; rows and deletions are counted in their files."""
        for write in writes:
            if not write.is_vouched_for:
                require_rows(self.named.files, write.seal.manifests, write.header)
        of_records = (deletions_in(record) for write in writes for record in write.staged)
        require_counted(self.named.files, [deletions for deletions in of_records if deletions is not None])

    def writes_manifests(self, manifests: Sequence[JsonObject]) -> bool:
        """No: fragments are listed in the seal; see ``StagedStorage.writes_manifests``."""
        del manifests
        return False

    def merged_manifests(self, write: StagedWrite, manifests: Sequence[JsonObject], stem: str) -> Sequence[JsonObject]:
        """One record of all fragments."""
        del stem
        if not write.is_vouched_for:
            require_rows(self.named.files, manifests, write.header)
        merged: dict[tuple[tuple[int, ...], str], list[StagedFragment]] = {}
        for manifest in map(StagedFragments.from_json, manifests):
            merged.setdefault((manifest.fields, manifest.storage_version), []).extend(manifest.fragments)
        return [
            StagedFragments(fragments=tuple(fragments), fields=fields, storage_version=version).to_json()
            for (fields, version), fragments in sorted(merged.items())
        ]

    def data_files(self, writes: Sequence[SealedWrite]) -> list[DataFile]:
        """The data files that a commit of these would add."""
        staged = [StagedFragments.from_json(manifest) for write in writes for manifest in write.seal.manifests]
        return [DataFile(path=fragment.name, bytes=fragment.bytes) for fragments in staged for fragment in fragments.fragments]

    @goes_stale
    def scan(self, writes: Sequence[SealedWrite], columns: Sequence[str] | None = None) -> FileScan:
        """What reads those files; see ``StagedStorage.scan``."""
        return FileScan(self.named.files, self._mode(writes[0].header).staged_schema(writes), columns)

    def _mode(self, header: Header) -> LanceMode:
        return mode_of(MODES, header.mode, header.parameters)(self.named, self._dataset, header.parameters)
