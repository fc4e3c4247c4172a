"""Whether a version is in the lineage that leads to the latest one, or stands below it and was never part of the dataset (I14).

Lance gives a commit the next number that no version has *now*. Where other writers make versions and clean up the oldest of them
between the look of a commit and the commit, that number is free again, and the commit succeeds below the latest version: nobody
will ever read it. It may happen to any operation, one that is tried without retries included.

No version names the one it was built on. It is told from what both hold: what was built on a version holds what that one held,
but for the changes that its own transaction names. Where a transaction replaces everything, an overwrite or a restore of another
writer, it does not matter which of the two came first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.scan.lance import name_of, transaction_of
from airflow_ckpt_provider.tables.lance.deletions import deletions_of
from airflow_ckpt_provider.tables.summary import GENERATION, GROUP
from airflow_ckpt_provider.tables.watermarks import WATERMARK_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

#: Operations that leave nothing of what was there, or bring back what was there before.
_REPLACE_ALL = frozenset({"Overwrite", "Restore"})

#: Operations whose fragments are all new.
_ADD_ALL = frozenset({"Overwrite", "Append"})

#: Operations that may change which files the fragments have, without saying which.
_REWRITE_FILES = frozenset({"DataOverlay", "DataReplacement", "Project"})

#: Operations that may change the columns, and those that may change what the schema says of itself.
_CHANGE_COLUMNS = frozenset({"Merge", "Project"})
_CHANGE_METADATA = frozenset({"Merge", "Project", "UpdateConfig"})


class _Change(NamedTuple):
    """What a transaction says that it changes.

    :param operation: its name. What pylance does not hand over is called ``BaseOperation``; none of that touches a fragment.
    :param named: files of the fragments that it names as those it changes, moves or adds.
    :param taken: files of the fragments that it changes or moves, by id: the version that it was built on has them.
    :param removed: ids of fragments that it removes, of which it does not name the files.
    :param any_removed: whether it may have removed more than it names.
    """

    operation: str
    named: AbstractSet[str]
    taken: Mapping[int, AbstractSet[str]]
    removed: AbstractSet[int]
    any_removed: bool


def latest_version(dataset: LanceDataset) -> int:
    """Number of the latest version now."""
    # Twice: a list that is made while versions come and go may show one that is gone and not the one that came.
    return max(dataset.latest_version, dataset.latest_version)


def is_in_lineage(number: int, latest: LanceDataset) -> bool | None:
    """Whether a version is in the lineage of the latest one, or is that itself.

    :returns: None if that cannot be told.
    """
    if number >= latest.version:
        return True
    try:
        version = latest.checkout_version(number)
        transaction = transaction_of(latest, number)
    except (OSError, ValueError):
        return None
    operation = None if transaction is None else transaction.operation
    added = getattr(operation, "fragments" if type(operation).__name__ in _ADD_ALL else "new_fragments", ())
    return leads_to(version, latest, _named(added))


def leads_to(version: LanceDataset, latest: LanceDataset, names: AbstractSet[str]) -> bool | None:
    """Whether a version, which may have been cleaned up since, is in the lineage of a later one.

    :param names: names of data files that it brought along.
    :returns: None if that cannot be told.
    """
    told = _by_the_next(version, latest, names)
    if told is None and (_is_shown_later(version, latest, names) or all_exist(latest, version.version - 1)):
        return True
    return told


def _by_the_next(version: LanceDataset, latest: LanceDataset, names: AbstractSet[str]) -> bool | None:
    made = _made(version.version + 1, latest)
    if made is None:
        return None
    after, change = made
    if _is_shown(names, after, change):
        return True
    return _could_follow(version, after, change)


def _is_shown_later(version: LanceDataset, latest: LanceDataset, names: AbstractSet[str]) -> bool:
    """Whether a later version has files that this one brought along, or says what became of them."""
    numbers = range(latest.version, version.version + 1, -1) if names else ()
    return any(_is_shown(names, *made) for number in numbers if (made := _made(number, latest)) is not None)


def _is_shown(names: AbstractSet[str], later: LanceDataset, change: _Change) -> bool:
    return not names.isdisjoint(change.named) or any(
        not names.isdisjoint(_files(fragment)) for fragment in _fragments(later).values()
    )


def _made(number: int, latest: LanceDataset) -> tuple[LanceDataset, _Change] | None:
    """A version and what made it; None if it was cleaned up."""
    try:
        version = latest if latest.version == number else latest.checkout_version(number)
        transaction = transaction_of(latest, number)
    except (OSError, ValueError):
        return None
    return None if transaction is None else (version, _change(transaction))


def _could_follow(version: LanceDataset, after: LanceDataset, change: _Change) -> bool | None:
    """Whether a change of a version makes the one after it; None if that one could as well have been made of another."""
    if change.operation in _REPLACE_ALL:
        return True
    if not _columns_follow(version, after, change.operation):
        return False
    before, now = _fragments(version), _fragments(after)
    if not change.removed <= before.keys() or not all(
        number in before and not files.isdisjoint(_files(before[number])) for number, files in change.taken.items()
    ):
        return False
    told: list[bool | None] = [_follows(number, fragment, now.get(number), change) for number, fragment in before.items()]
    if False in told or not all(_is_accounted_for(fragment, before.get(number), change) for number, fragment in now.items()):
        return False
    return None if None in told else True


def _follows(number: int, fragment: FragmentMetadata, now: FragmentMetadata | None, change: _Change) -> bool | None:
    """Whether it can be that this became of a fragment; None if another one of its number could have been meant."""
    files = _files(fragment)
    if not files.isdisjoint(change.named):
        return True
    if now is None or files.isdisjoint(_files(now)):
        unsaid = number in change.removed or (now is not None and change.operation in _REWRITE_FILES)
        return None if unsaid else change.any_removed or not fragment.num_rows
    if not files <= _files(now):
        return None if change.operation in _REWRITE_FILES else False
    return deletions_of(fragment) == deletions_of(now)


def _is_accounted_for(now: FragmentMetadata, before: FragmentMetadata | None, change: _Change) -> bool:
    """Whether a fragment was there before, or is named by the change."""
    files = _files(now)
    return (
        not files.isdisjoint(change.named)
        or (before is not None and not files.isdisjoint(_files(before)))
        or (before is not None and change.operation in _REWRITE_FILES)
    )


def _columns_follow(version: LanceDataset, after: LanceDataset, operation: str) -> bool:
    """Whether the columns, and how far growing sources were read, can have become those of the version after it."""
    if operation not in _CHANGE_COLUMNS and _columns(version) != _columns(after):
        return False
    if operation == "Merge" and not set(version.schema.names) <= set(after.schema.names):
        return False
    return operation in _CHANGE_METADATA or _marks(version) == _marks(after)


def all_exist(latest: LanceDataset, number: int) -> bool:
    """Whether a version and all after it are there as they were made: a clean-up takes the oldest first, unless one is tagged."""
    if number == 0:
        # Before it there was no dataset.
        return True
    try:
        tagged = {tag["version"] for tag in latest.tags.list().values()}
        latest.checkout_version(number)
    except (OSError, ValueError):
        return False
    return number not in tagged


def _change(transaction: Any) -> _Change:  # noqa: ANN401 - a lance.Transaction
    operation, properties = transaction.operation, transaction.transaction_properties or {}
    name, groups = type(operation).__name__, getattr(operation, "groups", ())
    added = [*getattr(operation, "fragments", ()), *getattr(operation, "new_fragments", ())]
    added += [fragment for group in groups for fragment in getattr(group, "new_fragments", ())]
    taken = [*getattr(operation, "updated_fragments", ())]
    taken += [fragment for group in groups for fragment in getattr(group, "old_fragments", ())]
    removed = {*getattr(operation, "removed_fragment_ids", ()), *getattr(operation, "deleted_fragment_ids", ())}
    # A merge of ours leaves out what it replaces; one of others keeps every fragment.
    replaces = name == "Merge" and GROUP in properties and properties.get(GENERATION) != "1"
    of = {fragment.id: files for fragment in taken if (files := _files(fragment))}
    return _Change(name, _named([*added, *taken]), of, removed, replaces)


def _fragments(version: LanceDataset) -> dict[int, FragmentMetadata]:
    return {metadata.id: metadata for metadata in (fragment.metadata for fragment in version.get_fragments())}


def _named(fragments: Iterable[FragmentMetadata]) -> set[str]:
    return set().union(*map(_files, fragments))


def _files(fragment: FragmentMetadata) -> frozenset[str]:
    return frozenset(map(name_of, fragment.files))


def _columns(version: LanceDataset) -> list[tuple[str, int]]:
    return [(field.name(), field.id()) for field in version.lance_schema.fields()]


def _marks(version: LanceDataset) -> dict[str, str]:
    return {name: text for name, text in version.schema_metadata.items() if name.startswith(WATERMARK_PREFIX)}
