"""Finding a commit in a dataset's versions (I1, I10).

The commit's name stands in the properties of the transaction that made a version. Versions are searched from the one on that the
commit was begun at; where one of them was cleaned up, Lance's own ``get_transactions`` stops in silence, which would read as "not
committed", and ``delta`` raises. A version that carries the name counts only if it is in the lineage of the latest one: see
``lineage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import HistoryExpiredError, RolledBackError, TableMissingError
from airflow_ckpt_provider.scan.lance import MOVES_NO_ROW, made_at, transaction_of
from airflow_ckpt_provider.tables.lance.lineage import all_exist, is_in_lineage, latest_version
from airflow_ckpt_provider.tables.lance.looks import ListedMeanwhileError
from airflow_ckpt_provider.tables.state import Landed
from airflow_ckpt_provider.tables.summary import GROUP, IDENTITY, keys_of, require_ours

if TYPE_CHECKING:
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Group


#: So many versions are read one by one to see what made them.
_FEW = 100


class Search(NamedTuple):
    """What is looked for.

    :param group_id: the commit group.
    :param horizon: the version of the dataset when the commit was begun.
    :param identity: of members that it must be the commit of, if they are known; see ``tables.summary``.
    :param keys: for messages.
    """

    group_id: str
    horizon: int
    identity: str | None
    keys: str

    @classmethod
    def of(cls, group: Group, identity: str | None = None) -> Search:
        """The search for a group's commit."""
        return cls(group.id, group.horizon, identity, keys_of(group))


def find(dataset: LanceDataset, search: Search) -> Landed | None:
    """Look for a group in the versions after its horizon.

    :returns: the commit, or None if it certainly is not among the versions of this dataset.
    :raises HistoryExpiredError: if a version that could be the commit was cleaned up (I10).
    :raises RolledBackError: if it landed, and the dataset was restored to a version before it.
    """
    begin, end = search.horizon, dataset.version
    if end < begin <= latest_version(dataset):
        raise ListedMeanwhileError(f"Version {begin} of {dataset.uri} is there, and {end} was listed as the latest.")
    if end < begin:
        raise TableMissingError(
            f"The Lance dataset {dataset.uri} is at version {end}, and a commit of {search.keys} was begun when it was at version "
            f"{begin}: it was removed and made anew since. Rows staged for the old dataset are not committed to the new one. Run "
            "the stage under another idempotence key."
        )
    if not any(_is_it(transaction, search.group_id) for transaction in _transactions(dataset, begin, end, search)):
        return None
    return _landed(dataset, begin, end, search)


def _transactions(dataset: LanceDataset, begin: int, end: int, search: Search) -> list[Any]:
    """The transactions that made the versions after ``begin``.

    :raises HistoryExpiredError: if one of them is gone.
    """
    transactions: list[Any] = []
    try:
        if begin == 0 and end > 0:
            # ``delta`` compares two versions, and there is none before the first.
            transactions.append(transaction_of(dataset, 1))
            begin = 1
        if end > begin:
            transactions += _between(dataset, begin, end)
    except (OSError, ValueError) as error:
        raise HistoryExpiredError(
            f"It cannot be told whether {search.keys} was committed to {dataset.uri}: a commit was begun when it was at version "
            f"{search.horizon}, and versions since then were cleaned up ({error}). Nothing was changed. Look for the rows in "
            "the dataset; if they are there, mark the task as success, if not, run the write under another idempotence key."
        ) from error
    return transactions


def _between(dataset: LanceDataset, begin: int, end: int) -> list[Any]:
    """The transactions that made the versions after ``begin`` up to ``end``."""
    try:
        return dataset.delta(begin_version=begin, end_version=end).list_transactions()
    except TypeError:
        # One that Lance cannot hand over takes the others with it.
        return [transaction_of(dataset, version) for version in range(begin + 1, end + 1)]


def operations_since(dataset: LanceDataset, version: int) -> list[str] | None:
    """What made the versions after one; None if that cannot be told of all."""
    numbers = range(version + 1, dataset.version + 1)
    try:
        made = [transaction_of(dataset, number) for number in numbers]
    except (OSError, ValueError):
        return None
    if not all_exist(dataset, version) and not all(is_in_lineage(number, dataset) for number in numbers):
        # One of these was made below the latest, and what made the one that had its number is gone.
        return None
    return None if None in made else [type(transaction.operation).__name__ for transaction in made]


def may_bring_back(dataset: LanceDataset, version: int) -> bool:
    """Whether the dataset may show a commit that it did not show at a version: its owner may have restored an earlier one since."""
    operations = operations_since(dataset, version) if dataset.version - version <= _FEW else None
    return operations is None or "Restore" in operations


def rows_stayed(dataset: LanceDataset, version: int) -> bool:
    """Whether every row that the dataset had at a version is where it was, or deleted; False also if that cannot be told."""
    operations = operations_since(dataset, version)
    return operations is not None and MOVES_NO_ROW.issuperset(operations)


def _landed(dataset: LanceDataset, begin: int, end: int, search: Search) -> Landed | None:
    """Which version is the commit, and whether the dataset still shows it; None if it is in no version that leads to the latest."""
    from lance import LanceOperation

    landed: int | None = None
    below, shows = False, dict[int, bool]()
    for version in range(begin + 1, end + 1):
        transaction = transaction_of(dataset, version)
        operation = transaction.operation if transaction is not None else None
        # A version below the latest one has not made the one after it.
        before = operation.version if isinstance(operation, LanceOperation.Restore) else None if below else version - 1
        shows[version] = before is not None and shows.get(before, False)
        below = False
        if _is_it(transaction, search.group_id):
            identity = transaction.transaction_properties.get(IDENTITY)
            require_ours(search.identity, identity, f"version {version}", search.keys, dataset.uri)
            shows[version] = True
            if _leads_on(dataset, version, search):
                landed = version if landed is None else landed
            else:
                below = True
    if landed is None and True in shows.values():
        return None
    if landed is None:
        raise HistoryExpiredError(f"A version of {dataset.uri} was cleaned up while it was searched for {search.keys}. Try again.")
    if not shows[end]:
        raise RolledBackError(
            f"The commit {search.group_id} of {search.keys} is version {landed} of {dataset.uri}, which was then restored to a "
            "version before it. It is not committed again. To redo the write, run it under another idempotence key."
        )
    return Landed(landed, made_at(dataset.checkout_version(landed)), landed_now=False)


def _leads_on(dataset: LanceDataset, version: int, search: Search) -> bool:
    """Whether a version is in the lineage of the latest one.

    :raises HistoryExpiredError: if that cannot be told.
    """
    told = is_in_lineage(version, dataset)
    if told is None:
        raise HistoryExpiredError(
            f"It cannot be told whether {search.keys} is in {dataset.uri}: a commit of it made version {version}, when others made "
            "versions and cleaned up the oldest of them. Nothing was changed. Look for the rows in the dataset; if they are there, "
            "mark the task as success, if not, run the write under another idempotence key."
        )
    return told


def _is_it(transaction: Any, group_id: str) -> bool:  # noqa: ANN401 - a lance.Transaction, or None for a version without one
    return transaction is not None and (transaction.transaction_properties or {}).get(GROUP) == group_id
