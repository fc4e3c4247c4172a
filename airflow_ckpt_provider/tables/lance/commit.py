"""One Lance commit, exactly once: load, look, build on that very version, swap, and on any error look again.

No operation is one that Lance could rebase over another of ours; see ``operations``.

Why it is exactly once: a commit succeeds only if no other commit of ours came after the version that was searched; an error,
whatever it says, is followed by a new load and a new search. So is a commit that Lance accepted below the latest version; see
``line``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.exceptions import HistoryExpiredError, RetryableError, RowCountError
from airflow_ckpt_provider.scan.lance import made_at
from airflow_ckpt_provider.tables.lance.history import Search, find
from airflow_ckpt_provider.tables.lance.keys import transaction_id
from airflow_ckpt_provider.tables.lance.line import latest_version, leads_to
from airflow_ckpt_provider.tables.lance.looks import looking
from airflow_ckpt_provider.tables.once import keys_of, land
from airflow_ckpt_provider.tables.protocol import Landed
from airflow_ckpt_provider.tables.summary import summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Group
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.operations import Swap


class Commit(NamedTuple):
    """What is to be committed.

    :param identity: of all members; see ``tables.summary``.
    :param swap: makes the operation on a version of the dataset; None stands for one that does not exist yet.
    :param properties: more of what the transaction says of itself.
    :param stable_row_ids: whether rows of a dataset that comes into being keep their ids when they are moved.
    :param note: writes into the dataset what has to be there before; whether there is a newer version now.
    """

    group: Group
    identity: str
    swap: Callable[[LanceDataset | None], Swap]
    properties: Mapping[str, str] = MappingProxyType({})
    stable_row_ids: bool = False
    note: Callable[[LanceDataset], bool] = lambda _: False

    @property
    def keys(self) -> str:
        """Its keys, for messages."""
        return keys_of(self.group)

    @property
    def search(self) -> Search:
        """What is looked for in the versions of the dataset."""
        return Search.of(self.group, self.identity)


def commit_once(
    files: DatasetFiles,
    load: Callable[[], LanceDataset | None],
    commit: Commit,
    before_swap: Callable[[LanceDataset | None], None],
    base: tuple[LanceDataset | None] | None = None,
) -> Landed:
    """Land ``commit`` in one version, or find that it has landed.

    :param load: loads the dataset as it is now, and checks that it is still the same one; None if it is to be created.
    :param before_swap: last checks on the version that the commit is built on; raises to stop.
    :param base: the dataset as it was loaded a moment ago, for the first try.
    """
    first = [] if base is None else [*base]

    def swap(_: int) -> Landed | Exception:
        outcome = None
        while outcome is None:
            # What a try looks at before it swaps may be cleaned up meanwhile.
            outcome = looking(files.uri, lambda: _try(files, first.pop() if first else load(), load, commit, before_swap))
        return outcome

    def look() -> Landed | None:
        dataset = load()
        return None if dataset is None else find(dataset, commit.search)

    return land(swap, lambda: looking(files.uri, look), f"{commit.keys} to {files.uri}")


def _try(
    files: DatasetFiles,
    dataset: LanceDataset | None,
    load: Callable[[], LanceDataset | None],
    commit: Commit,
    before_swap: Callable[[LanceDataset | None], None],
) -> Landed | Exception | None:
    """Find the commit in these versions or swap it in; what Lance raised if it did not say yes.

    :returns: None if something was noted in the dataset beforehand: whatever else was committed meanwhile, it has to be looked at.
    """
    from lance import LanceDataset
    from lance.dataset import Transaction

    landed = None if dataset is None else find(dataset, commit.search)
    if landed is not None:
        return landed
    before_swap(dataset)
    try:
        if dataset is not None and commit.note(dataset):
            return None
    except Exception as error:  # noqa: BLE001 - as below
        return error
    swap = commit.swap(dataset)
    properties = {**commit.properties, **summary_of(commit.group, commit.identity)}
    # Its own id each time: Lance takes a transaction of the same id for the same, whatever is in it.
    transaction = Transaction(
        read_version=0 if dataset is None else dataset.version,
        operation=swap.operation,
        uuid=transaction_id(commit.identity),
        transaction_properties=properties,
    )
    try:
        made = LanceDataset.commit(
            files.address if dataset is None else dataset,
            transaction,
            max_retries=swap.max_retries,
            storage_options=files.storage_options,
            enable_stable_row_ids=True if dataset is None and commit.stable_row_ids else None,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, only the dataset's versions know the outcome
        return error
    below = _below(made, load, commit, swap)
    return _verified(made, commit, swap) if below is None else below


def _below(made: LanceDataset, load: Callable[[], LanceDataset | None], commit: Commit, swap: Swap) -> Exception | None:
    """Why the commit has to be tried again, if the version that it made is not in the line of the latest one.

    :raises HistoryExpiredError: if that cannot be told.
    """
    try:
        if latest_version(made) == made.version:
            return None
        latest = load()
    except (OSError, ValueError, RetryableError) as error:
        # What it made is looked for by the next try.
        return error
    if latest is None or latest.version < made.version:
        return RetryableError(f"{made.uri} was listed while its versions changed.")
    told = True if latest.version == made.version else leads_to(made, latest, swap.holds.keys())
    if told is None:
        raise HistoryExpiredError(
            f"It cannot be told whether {commit.keys} is in {made.uri}: Lance made it version {made.version}, and until that was "
            f"looked at, others made versions up to {latest.version} and cleaned up those in between. Look for the rows in the "
            "dataset; if they are there, mark the task as success, if not, run the write under another idempotence key."
        )
    if told:
        return None
    return RetryableError(
        f"Lance made version {made.version} of {made.uri} when there was version {latest.version}: others had made versions and "
        "cleaned up the oldest of them in between. Nobody reads what was made"
    )


def _verified(dataset: LanceDataset, commit: Commit, swap: Swap) -> Landed:
    """The commit as the version it made shows it (I2)."""
    holds, found, ids = swap.holds, dict[str, int](), set[int]()
    # One at a time, and each path asked for once: of ten thousand fragments, to hold them all takes longer than the commit.
    for fragment in dataset.get_fragments():
        one = fragment.metadata
        ids.add(one.id)
        found |= {path: one.physical_rows for file in one.files if (path := str(file.path)) in holds}
    if found != holds:
        raise RowCountError(
            f"Version {dataset.version} of {dataset.uri} holds {sum(found.values())} rows in the staged files; "
            f"{sum(holds.values())} were sealed for {commit.keys}. The version has landed: compare the dataset with its source "
            "before anything else writes to it."
        )
    strange = set() if swap.fragments is None else ids - swap.fragments
    if strange:
        raise RowCountError(
            f"{commit.keys} landed in version {dataset.version} of {dataset.uri}, and {len(strange)} fragments that others added "
            f"meanwhile were not looked at ({', '.join(map(str, sorted(strange)[:5]))}). Rows of theirs may have keys that were "
            "inserted: look for keys that are there twice before anything else writes to the dataset."
        )
    return Landed(dataset.version, made_at(dataset), landed_now=True)
