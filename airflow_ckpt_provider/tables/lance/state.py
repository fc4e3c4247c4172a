"""A Lance dataset as it was loaded at one version: its history, the staged files beside it, and what a commit makes of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.fit import Columns
from airflow_ckpt_provider.tables.lance.begun import remember, require_unremembered
from airflow_ckpt_provider.tables.lance.binding import MADE_BY, version_of
from airflow_ckpt_provider.tables.lance.commit import VersionChange
from airflow_ckpt_provider.tables.lance.facts import writer_facts
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.history import Search, find, may_bring_back
from airflow_ckpt_provider.tables.lance.keys import require_unknown, require_unseen
from airflow_ckpt_provider.tables.lance.lineage import all_exist
from airflow_ckpt_provider.tables.lance.looks import goes_stale
from airflow_ckpt_provider.tables.lance.modes import MODES
from airflow_ckpt_provider.tables.lance.operations import carrying
from airflow_ckpt_provider.tables.lance.orphans import referenced
from airflow_ckpt_provider.tables.lance.schema import created_as
from airflow_ckpt_provider.tables.lance.storage import LanceStorage
from airflow_ckpt_provider.tables.lance.watermarks import note, watermark_of, with_watermarks
from airflow_ckpt_provider.tables.mode import mode_of
from airflow_ckpt_provider.tables.summary import identity_of, key_trace, trace_of
from airflow_ckpt_provider.tables.watermarks import require_watermarks, watermarks_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, JsonObject, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.lance.binding import NamedDataset
    from airflow_ckpt_provider.tables.lance.modes.base import LanceMode
    from airflow_ckpt_provider.tables.state import GroupCommit, Landed
    from airflow_ckpt_provider.tables.summary import Trace


class LanceState:
    """A dataset at one version; see ``TableState``.

    :param named: where it is.
    :param dataset: as it was loaded; None if it does not exist yet.
    :param binding: which dataset it is; None if whichever has the name.
    """

    def __init__(self, named: NamedDataset, dataset: LanceDataset | None, binding: TableBinding | None = None) -> None:
        self.named = named
        self.dataset = dataset
        self._binding = binding

    @property
    def horizon(self) -> int:
        """Its version; 0 before there is one."""
        return 0 if self.dataset is None else self.dataset.version

    @property
    @goes_stale
    def is_recognised(self) -> bool:
        """Whether the version that was bound shows that it is the same; see ``TableState.is_recognised``.

        Whoever removed a dataset that stood here has removed its folder, and what was staged in it.
        """
        if self.dataset is None or self._binding is None:
            return False
        return self._binding.creation is not None or self.named.recognised(self.dataset, self._binding) is not None

    @property
    @goes_stale
    def columns(self) -> Columns:
        """The columns that were bound; see ``TableState.columns``."""
        if self._binding is None:
            raise ValueError("This state was loaded for no binding, so that no columns are pinned.")
        return Columns(self.named.identifier, writer_facts(self.named, self.dataset, self._binding).schema)

    @property
    def storage(self) -> LanceStorage:
        """The staged files beside the dataset; see ``TableState.storage``."""
        return LanceStorage(self.named, self.dataset)

    def mode(self, header: Header) -> LanceMode:
        """The mode of a write, on this version; see ``TableState.mode``."""
        return mode_of(MODES, header.mode, header.parameters)(self.named, self.dataset, header.parameters)

    @goes_stale
    def watermark(self, consumer: str) -> JsonObject | None:
        """How far a task has read its source; see ``TableState.watermark``."""
        return None if self.dataset is None else watermark_of(self.dataset, consumer)

    @goes_stale
    def find(self, group: Group, headers: Sequence[Header] = ()) -> Landed | None:
        """Look for the commit of ``group`` in the versions; see ``TableState.find``."""
        identity = identity_of(headers) if headers else None
        return None if self.dataset is None else find(self.dataset, Search.of(group, identity))

    @goes_stale
    def require_unknown(self, headers: Sequence[Header], known: AbstractSet[Trace], *, since_bound: bool = False) -> None:
        """Refuse keys that a checkpoint which is not known has committed; see ``TableState.require_unknown``."""
        dataset = self.dataset
        if dataset is None:
            return
        since = min(version_of(header.table) for header in headers) if since_bound else 0
        if since and may_bring_back(dataset, since):
            # What was seen when the generations were opened may not be what is there now.
            since = 0
        keys = {key_trace(header.key): header.key for header in headers}
        require_unknown(self.named.files, dataset, keys, known, since)
        if not since or not all_exist(dataset, since):
            require_unremembered(self.named.files, dataset, keys, known)
        for header in headers if not since_bound else ():
            if trace_of(header) not in known:
                require_unseen(dataset, header)

    @goes_stale
    def shows(self, landed: SealedWrite) -> bool:
        """Whether any file of a write is in the dataset; see ``TableState.shows``."""
        if self.dataset is None:
            return False
        names = landed.names
        return any(path.rpartition("/")[2] in names for path in next(referenced(self.named.files, self.dataset)))

    @goes_stale
    def require_unchanged(self, commit: GroupCommit) -> None:
        """Refuse columns or a watermark that the writes were not made for; see ``TableState.require_unchanged``."""
        if self.dataset is None:
            return
        if self.mode(commit.first).pins_columns:
            for header in commit.headers:
                self.named.require_columns(self.dataset, header.table)
        require_watermarks(self.watermark, commit.writes)

    def prepare(self, commit: GroupCommit) -> bool:
        """Remember the keys, and note a task that reads increments for the first time; see ``TableState.prepare``."""
        if self.dataset is None:
            # A dataset that is to be created is refused once it is there.
            return False
        remember(self.named.files, commit)
        return note(self.dataset, commit.group, commit.writes)

    @goes_stale
    def change(self, commit: GroupCommit) -> VersionChange:
        """The version that the commit makes of this one."""
        first, dataset = commit.first, self.dataset
        staged = [StagedFragments.from_json(manifest) for write in commit.writes for manifest in write.seal.manifests]
        rows, held = sum(write.seal.rows for write in commit.writes), sum(fragments.rows for fragments in staged)
        if rows != held:
            raise RowCountError(f"{rows} rows are sealed for {self.named.identifier}, but the staged fragments hold {held} (I2).")
        mode = self.mode(first)
        operation = mode.swap(commit.writes, staged)
        if dataset is not None and watermarks_of(commit.writes) and not mode.sets_watermarks:
            operation = carrying(dataset, operation, with_watermarks(dataset, commit.writes))
        return VersionChange(
            self.named.files,
            dataset,
            functools.partial(self.named.load_bound, first.table),
            commit,
            operation,
            {MADE_BY: first.table.uuid} if first.table.creation is not None else {},
            stable_row_ids=bool(first.parameters.get("stable_row_ids")),
            storage_version=None if first.table.creation is None else created_as(first.table.creation)[1],
        )
