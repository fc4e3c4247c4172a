"""One Lance commit: a version built on exactly the one that was searched, and the swap of it; see ``write.commit_loop``.

No operation is one that Lance could rebase over another of ours; see ``operations``. Why it lands once: a commit succeeds only if
no other commit of ours came after the version that was searched; and one that Lance accepted below the latest version counts as
none; see ``lineage``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.exceptions import HistoryExpiredError, RetryableError, RowCountError
from airflow_ckpt_provider.scan.lance import made_at, name_of
from airflow_ckpt_provider.tables.lance.keys import transaction_id
from airflow_ckpt_provider.tables.lance.lineage import latest_version, leads_to
from airflow_ckpt_provider.tables.state import Landed
from airflow_ckpt_provider.tables.summary import summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lance import LanceDataset

    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.operations import Swap
    from airflow_ckpt_provider.tables.state import GroupCommit


_log = logging.getLogger(__name__)


class VersionChange(NamedTuple):
    """A version to be; see ``Change``.

    :param dataset: the version that it is made from; None for a dataset that does not exist yet.
    :param load: loads the dataset as it is now, and checks that it is still the same one.
    :param operation: what makes the version.
    :param properties: more of what the transaction says of itself.
    :param stable_row_ids: whether rows of a dataset that comes into being keep their ids when they are moved.
    :param storage_version: of the files of a dataset that comes into being; None for any other.
    """

    files: DatasetFiles
    dataset: LanceDataset | None
    load: Callable[[], LanceDataset | None]
    commit: GroupCommit
    operation: Swap
    properties: Mapping[str, str]
    stable_row_ids: bool
    storage_version: str | None

    def swap(self) -> Landed:
        """Commit the operation, and look whether what it made is in the lineage of the latest version."""
        from lance import LanceDataset
        from lance.dataset import Transaction

        files, dataset = self.files, self.dataset
        # Its own id each time: Lance takes a transaction of the same id for the same, whatever is in it.
        transaction = Transaction(
            read_version=0 if dataset is None else dataset.version,
            operation=self.operation.operation,
            uuid=transaction_id(self.commit.identity),
            transaction_properties={
                **self.properties,
                **summary_of(self.commit.group, self.commit.identity, self.commit.computed_by),
            },
        )
        made = LanceDataset.commit(
            files.address if dataset is None else dataset,
            transaction,
            max_retries=self.operation.max_retries,
            storage_options=files.storage_options,
            enable_stable_row_ids=True if dataset is None and self.stable_row_ids else None,
        )
        self._require_in_lineage(made)
        landed = self._verified(made)
        if dataset is None and self.storage_version != made.data_storage_version:
            # Lance takes the storage version of a new dataset from its files, and chooses one if there are none.
            _log.warning(
                "%s was created without rows, and so with the storage version %s instead of %s, which Lance takes from rows.",
                files.uri, made.data_storage_version, self.storage_version,
            )  # fmt: skip
        return landed

    def _require_in_lineage(self, made: LanceDataset) -> None:
        """Check that the version is in the lineage of the latest one.

        :raises RetryableError: if it is not, so that the commit has to be tried again.
        :raises HistoryExpiredError: if that cannot be told.
        """
        if latest_version(made) == made.version:
            return
        latest = self.load()
        if latest is None or latest.version < made.version:
            raise RetryableError(f"{made.uri} was listed while its versions changed.")
        told = True if latest.version == made.version else leads_to(made, latest, self.operation.holds.keys())
        if told is None:
            raise HistoryExpiredError(
                f"It cannot be told whether {self.commit.keys} is in {made.uri}: Lance made it version {made.version}, and until "
                f"that was looked at, others made versions up to {latest.version} and cleaned up those in between. Look for the "
                "rows in the dataset; if they are there, mark the task as success, if not, run the write under another "
                "idempotence key."
            )
        if not told:
            raise RetryableError(
                f"Lance made version {made.version} of {made.uri} when there was version {latest.version}: others had made "
                "versions and cleaned up the oldest of them in between. Nobody reads what was made"
            )

    def _verified(self, made: LanceDataset) -> Landed:
        """The commit as the version it made shows it (I2)."""
        holds, held, ids = self.operation.holds, dict[str, int](), set[int]()
        # One at a time, and each path asked for once: of ten thousand fragments, to hold them all takes longer than the commit.
        for fragment in made.get_fragments():
            metadata = fragment.metadata
            ids.add(metadata.id)
            held |= {path: metadata.physical_rows for file in metadata.files if (path := name_of(file)) in holds}
        if held != holds:
            raise RowCountError(
                f"Version {made.version} of {made.uri} holds {sum(held.values())} rows in the staged files; "
                f"{sum(holds.values())} were sealed for {self.commit.keys}. The version has landed: compare the dataset with its "
                "source before anything else writes to it."
            )
        unseen = set() if self.operation.fragments is None else ids - self.operation.fragments
        if unseen:
            raise RowCountError(
                f"{self.commit.keys} landed in version {made.version} of {made.uri}, and {len(unseen)} fragments that others "
                f"added meanwhile were not looked at ({', '.join(map(str, sorted(unseen)[:5]))}). Rows of theirs may have keys "
                "that were inserted: look for keys that are there twice before anything else writes to the dataset."
            )
        return Landed(made.version, made_at(made), landed_now=True)
