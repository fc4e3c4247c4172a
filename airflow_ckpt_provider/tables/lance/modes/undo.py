"""The mode ``undo``: what an earlier generation of the key has landed is taken out of the dataset. No stage has it.

Rows that were only added go with their fragments, whatever others have committed beside them. Whatever has removed or changed rows,
or has moved a watermark, is undone by taking the whole dataset back to the version before it: so only as long as the dataset shows
what the commit has made, because no version came after it, or those that did were undone themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.exceptions import InvalidInputError, TableMovedError, UndoRefusedError
from airflow_ckpt_provider.scan.lance import name_of
from airflow_ckpt_provider.tables.lance.files import names_of
from airflow_ckpt_provider.tables.lance.history import Search, find, operations_since
from airflow_ckpt_provider.tables.lance.lineage import is_in_lineage
from airflow_ckpt_provider.tables.lance.modes.base import LanceMode
from airflow_ckpt_provider.tables.lance.operations import adding, replaceable, taking_back
from airflow_ckpt_provider.tables.lance.watermarks import with_watermarks
from airflow_ckpt_provider.tables.mode import Grouping, TakesOut, UndoOutcome
from airflow_ckpt_provider.tables.parameters import ModeParameters
from airflow_ckpt_provider.tables.summary import identity_of
from airflow_ckpt_provider.tables.watermarks import watermarks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.operations import Swap

#: Modes whose commits only add rows.
_ADDING = frozenset({"append", "create"})


class UndoParameters(ModeParameters, frozen=True, kw_only=True):
    """What may stay: of a Lance dataset, nothing but what was added beside rows that were only added."""

    force: bool = False


class Undo(LanceMode, TakesOut):
    """What a commit has added goes, and what it has removed comes back."""

    Parameters = UndoParameters
    grouping = Grouping.ALONE
    removes_rows = True
    takes_increments = False
    pins_columns = False
    is_public = False
    sets_watermarks = True

    def validate(self) -> None:
        """Refuse it to a stage."""
        raise InvalidInputError("mode='undo' is no mode of a stage: see CheckpointUndoOperator.")

    def outcome(self, write: StagedWrite) -> UndoOutcome:
        """What the commit would do; see ``TakesOut.outcome``."""
        undone, version = self._landed(write)
        if not _only_adds(undone):
            before = self.existing.checkout_version(self._before(write, version)).count_rows()
            return UndoOutcome(None, None, None, max(0, before - self.existing.count_rows()) or None)
        self._require_whole(write, undone)
        return UndoOutcome(len(undone.added_files), undone.seal.rows, 0, 0)

    def swap(self, writes: Sequence[SealedWrite], staged: Sequence[StagedFragments]) -> Swap:
        """Take out fragments that were added, or take the dataset back to the version before the commit."""
        (write,) = writes
        undone, version = self._landed(write)
        if not _only_adds(undone):
            before = self.existing.checkout_version(self._before(write, version))
            return taking_back(before, with_watermarks(before, writes) if watermarks_of(writes) else before.lance_schema)
        self._require_whole(write, undone)
        return adding(self.existing, staged, names_of(undone.added_files))

    def _landed(self, write: StagedWrite) -> tuple[SealedWrite, int]:
        """The write to be undone, and the version that has landed it, as the dataset shows it."""
        undone = write.replaced
        group = None if undone is None else bound_group(undone.checkpoint)
        if undone is not None and group is not None:
            landed = find(self.existing, Search.of(group, identity_of([undone.header])))
            if landed is not None and landed.commit_id is not None:
                return undone, landed.commit_id
        raise UndoRefusedError(
            f"The dataset {write.header.table.identifier} shows no commit of the key {write.header.key!r} that could be undone. "
            "Nothing was changed."
        )

    def _require_whole(self, write: StagedWrite, undone: SealedWrite) -> None:
        """Refuse to take out fragments that others have taken, or of which they have deleted or updated rows."""
        try:
            replaceable(self.existing, names_of(undone.added_files))
        except TableMovedError as error:
            raise UndoRefusedError(
                f"What the key {write.header.key!r} has committed to {write.header.table.identifier} cannot be undone: {error}"
            ) from error

    def _before(self, write: StagedWrite, version: int) -> int:
        """The version before a commit, if nothing came after that.

        :raises UndoRefusedError: naming what came after it, or if the version before it is gone.
        """
        dataset, name = self.existing, write.header.table.identifier
        if not _shows(dataset, version):
            operations = operations_since(dataset, version)
            later = f" ({', '.join(operations)})" if operations else ""
            raise UndoRefusedError(
                f"Version {version} of {name}, which the key {write.header.key!r} has committed, has changed rows, and later "
                f"versions were built on it, up to {dataset.version}{later}. Lance can only take the whole dataset back to the "
                "version before it, and with it those. Nothing was changed. Undo those first, the latest of them before the others."
            )
        try:
            dataset.checkout_version(version - 1)
        except (OSError, ValueError) as error:
            raise UndoRefusedError(
                f"The version before {version} of {name} was cleaned up, so that what the key {write.header.key!r} has replaced is "
                "gone. Nothing was changed."
            ) from error
        if not is_in_lineage(version - 1, dataset):
            raise UndoRefusedError(
                f"Version {version} of {name}, which the key {write.header.key!r} has committed, was not made of the one before "
                "it. Nothing was changed."
            )
        before = dataset.checkout_version(version - 1)
        deleted = sum(fragment.metadata.deletion_file is not None for fragment in before.get_fragments())
        if deleted:
            raise UndoRefusedError(
                f"What version {version} of {name}, which the key {write.header.key!r} has committed, has replaced had rows "
                f"deleted in {deleted} fragments, and Lance lands no such fragments again. Nothing was changed. If the dataset is "
                f"to be what it was before, and nothing else: lance.dataset({name!r}, version={version - 1}).restore()."
            )
        return version - 1


def _only_adds(undone: SealedWrite) -> bool:
    """Whether a write has removed nothing."""
    return undone.header.mode in _ADDING and undone.header.replaces is None and not watermarks_of([undone])


def _shows(dataset: LanceDataset, version: int) -> bool:
    """Whether the dataset shows what a version of it shows, in the same files."""
    if dataset.version == version:
        return True
    try:
        then = dataset.checkout_version(version)
    except (OSError, ValueError):
        return False
    return then.lance_schema == dataset.lance_schema and _content(then) == _content(dataset)


def _content(dataset: LanceDataset) -> list[str]:
    """The files of a version, those with deletions included."""
    fragments = (fragment.metadata for fragment in dataset.get_fragments())
    return sorted(repr(([name_of(file) for file in metadata.files], metadata.deletion_file)) for metadata in fragments)
