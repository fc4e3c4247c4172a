"""A Lance dataset as it was loaded at one version: its history, the staged files beside it, and what a commit makes of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow_ckpt_provider.exceptions import RowCountError, StaleStateError
from airflow_ckpt_provider.scan.lance import busy
from airflow_ckpt_provider.tables.lance.binding import MADE_BY, version_of
from airflow_ckpt_provider.tables.lance.commit import VersionChange
from airflow_ckpt_provider.tables.lance.deletions import require_counted
from airflow_ckpt_provider.tables.lance.footers import require_rows
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.history import Search, find
from airflow_ckpt_provider.tables.lance.keys import require_unknown, require_unseen
from airflow_ckpt_provider.tables.lance.marks import mark_of, note, with_marks
from airflow_ckpt_provider.tables.lance.modes import mode_of
from airflow_ckpt_provider.tables.lance.operations import carrying
from airflow_ckpt_provider.tables.lance.orphans import referenced
from airflow_ckpt_provider.tables.lance.own import require_own_files, require_own_records
from airflow_ckpt_provider.tables.lance.schema import created_as, file_fields
from airflow_ckpt_provider.tables.lance.writer import WriterFacts
from airflow_ckpt_provider.tables.marks import marks_of, require_marks
from airflow_ckpt_provider.tables.staged_files import gone_of
from airflow_ckpt_provider.tables.summary import identity_of, key_trace, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, StagedFile, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.lance.binding import NamedDataset
    from airflow_ckpt_provider.tables.state import GroupCommit, Landed
    from airflow_ckpt_provider.tables.summary import Trace

T = TypeVar("T")
P = ParamSpec("P")


def goes_stale(method: Callable[Concatenate[LanceState, P], T]) -> Callable[Concatenate[LanceState, P], T]:
    """Say of what Lance raises where a version was cleaned up that the state is gone, and not the dataset."""

    @functools.wraps(method)
    def looked(self: LanceState, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except (OSError, ValueError) as error:
            raise stale(self.named.identifier, error) from error

    return looked


def stale(uri: str, error: Exception) -> StaleStateError:
    """The error for a dataset whose versions went while they were looked at."""
    return StaleStateError(str(busy(uri, error)))


class LanceState:
    """A dataset at one version; see ``TableState``.

    :param named: where it is.
    :param dataset: as it was loaded; None if it does not exist yet.
    :param binding: which dataset it is.
    """

    def __init__(self, named: NamedDataset, dataset: LanceDataset | None, binding: TableBinding) -> None:
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
        if self.dataset is None:
            return False
        return self._binding.creation is not None or self.named.recognised(self.dataset, self._binding) is not None

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
        require_unknown(self.named.files, dataset, {key_trace(header.key): header.key for header in headers}, known, since)
        for header in headers if not since_bound else ():
            if trace_of(header) not in known:
                require_unseen(dataset, header)

    @goes_stale
    def shows(self, landed: SealedWrite) -> bool:
        """Whether any file of a write is in the dataset; see ``TableState.shows``."""
        staged = mode_of(landed.header.mode, landed.header.parameters).landed(landed)
        return self.dataset is not None and not staged.isdisjoint(next(referenced(self.named.files, self.dataset)))

    def require_own_files(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse to land files of others; see ``TableState.require_own_files``."""
        uri = self.named.identifier
        for write in writes:
            header = write.header
            pins = mode_of(header.mode, header.parameters).pins_columns
            require_own_files(uri, write, writer_facts(self.named, self.dataset, header.table).fields if pins else None)
            again = write.replaced
            if again is not None:
                earlier = again.replaced.names if again.replaced is not None else None
                require_own_records(uri, again.header, again.names, [again.plan], again.staged, earlier)

    def require_listed(self, writes: Sequence[SealedWrite]) -> None:
        """Fragments are listed in the records, and were looked at there; rows and deletions are counted in their files."""
        for write in writes:
            if not write.is_vouched_for:
                require_rows(self.named.files, write.seal.manifests, write.header)
        scratch: list[Any] = [record.scratch for write in writes for record in write.staged if record.scratch is not None]
        fragments = [one["fragment"] for one in scratch if "fragment" in one]
        require_counted(self.named.files, [(one["id"], one["deletion_file"]) for one in fragments])

    def lost(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """Staged files that are gone or have another size (I5): Lance commits fragments whose files are gone."""
        return gone_of(files, self.named.files.sizes([file.path for file in files]))

    @goes_stale
    def require_unchanged(self, commit: GroupCommit) -> None:
        """Refuse columns or a watermark that the writes were not made for; see ``TableState.require_unchanged``."""
        if self.dataset is None:
            return
        if mode_of(commit.first.mode, commit.first.parameters).pins_columns:
            for header in commit.headers:
                self.named.require_columns(self.dataset, header.table)
        require_marks(functools.partial(mark_of, self.dataset), commit.writes)

    def prepare(self, commit: GroupCommit) -> bool:
        """Note a task that reads increments for the first time; see ``TableState.prepare``."""
        return self.dataset is not None and note(self.dataset, commit.group, commit.writes)

    @goes_stale
    def change(self, commit: GroupCommit) -> VersionChange:
        """The version that the commit makes of this one."""
        first, files, dataset = commit.first, self.named.files, self.dataset
        staged = [StagedFragments.from_json(manifest) for write in commit.writes for manifest in write.seal.manifests]
        rows, held = sum(write.seal.rows for write in commit.writes), sum(one.rows for one in staged)
        if rows != held:
            raise RowCountError(f"{rows} rows are sealed for {self.named.identifier}, but the staged fragments hold {held} (I2).")
        operation = mode_of(first.mode, first.parameters).swap(files, dataset, commit.writes, staged)
        if dataset is not None and marks_of(commit.writes):
            operation = carrying(dataset, operation, with_marks(dataset, commit.writes))
        return VersionChange(
            files,
            dataset,
            functools.partial(self.named.load_bound, first.table),
            commit,
            operation,
            {MADE_BY: first.table.uuid} if first.table.creation is not None else {},
            stable_row_ids=bool(first.parameters.get("stable_row_ids")),
            storage_version=None if first.table.creation is None else created_as(first.table.creation)[1],
        )


def writer_facts(named: NamedDataset, dataset: LanceDataset | None, binding: TableBinding, *, pinned: bool = True) -> WriterFacts:
    """What executors write into a dataset with.

    :param dataset: as it was loaded; None if it does not exist yet.
    :param pinned: whether rows have the columns that the binding pinned; those of the dataset as it is, if not.
    :raises SchemaMismatchError: if the pinned columns were changed since.
    """
    import pyarrow as pa
    from lance.schema import LanceSchema

    if dataset is None and binding.creation is not None:
        schema, version = created_as(binding.creation)
        fields = file_fields(LanceSchema.from_pyarrow(schema))
        return WriterFacts(named.identifier, named.files, schema, tuple(fields), version)
    if dataset is None:
        raise named.missing(binding)
    schema, names = dataset.schema, None
    if pinned:
        named.require_columns(dataset, binding)
        # Columns that others have added since are in no file of this write, as in none that it staged before.
        names = [name for name, *_ in named.pinned_columns(binding)]
        schema = pa.schema([field for field in schema if field.name in names], schema.metadata)
    fields = file_fields(dataset.lance_schema, names)
    return WriterFacts(named.identifier, named.files, schema, tuple(fields), dataset.data_storage_version)
