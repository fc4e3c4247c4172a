"""Where rows went when others compacted a dataset, so that what was computed of them is not computed again.

A compaction says which fragments it read and which it wrote: the live rows of the old ones stand in the new ones, in their order.
Followed from version to version, each row of a new fragment is a row of a range that a split has read before, or one that no
split has read. Rows that cannot be followed, because a version was cleaned up, count as not read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.documents import READ, Pinned
from airflow_ckpt_provider.checkpoint.restaged import as_named
from airflow_ckpt_provider.scan.lance import MOVES_NO_ROW, transaction_of
from airflow_ckpt_provider.scan.lance_rows import Rows, content_of, facts_of, fields_of, live_fragments, live_places, range_splits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Plan, Split

_log = logging.getLogger(__name__)

#: Stretches that a plan holds of a fragment, some 50 bytes each before they are compressed; where scattered deletes have made more
#: of it, its rows count as not read.
_MOST_STRETCHES = 200_000


class MovedRows(NamedTuple):
    """A stretch: rows of a fragment that follow each other, and where they stood when they were read.

    :param split: the split that has read them; empty if none has.
    :param start: their places then, up to ``stop``.
    """

    split: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


class PinnedRows(Pinned, frozen=True, kw_only=True, omit_defaults=True, tag="lance_rows"):
    """The rows of a dataset that a plan reads, at a version.

    :param read: top-level columns.
    :param rows: live ones.
    :param moved: stretches of the fragments that were compacted, by what these hold; see ``content_of``.
    """

    dataset: str
    read: tuple[str, ...]
    rows_per_split: Count
    version: Count
    fragments: Count
    rows: Count
    moved: dict[str, list[MovedRows]] = {}  # noqa: RUF012 - msgspec copies it


class Ranges(NamedTuple):
    """What a plan reads.

    :param splits: that cover all rows of the dataset, here or where they stood before.
    :param moved: stretches of the fragments that hold rows from elsewhere, by what they are.
    """

    splits: tuple[Split, ...]
    moved: dict[str, list[MovedRows]]

    def pinned(self, plan: Plan, dataset: LanceDataset) -> JsonObject:
        """What the plan that comes after this one pins."""
        return msgspec.structs.replace(plan.source_as(PinnedRows), moved=self.moved, **facts_of(dataset)).to_json()


def ranges_of(
    dataset: LanceDataset, columns: Sequence[str], rows_per_split: int, plan: Plan, is_staged: Callable[[str], bool]
) -> Ranges:
    """What is to be read on the dataset as it is now, after a plan: what is staged is not read again, wherever it stands now.

    :param columns: top-level columns that are read.
    """
    fields = fields_of(dataset.lance_schema, columns)
    before = {split.id: split for split in plan.splits if split.task == READ}
    known = moved_in(plan)
    of_plan = {Rows.from_json(split.read).content for split in before.values()}
    live = {content_of(fragment, fields): fragment for fragment in live_fragments(dataset)}
    new = live.keys() - of_plan - known.keys()
    if new and plan.base is not None:
        followed = _followed(dataset, plan, fields, known, before, is_staged)
        known |= {of: stretches for of, stretches in followed.items() if of in new}
    moved = {of: known[of] for of in live if of in known}
    splits: dict[str, Split] = {}
    for of, fragment in live.items():
        runs = list(_unread(moved[of])) if of in moved else [(0, fragment.physical_rows)]
        for split in as_named(range_splits(dataset, fragment, fields, runs, rows_per_split), plan).values():
            # What is not staged is read as it is now: without rows that are deleted, at a version that is there.
            splits[split.id] = before[split.id] if split.id in before and is_staged(split.id) else split
        splits |= {stretch.split: before[stretch.split] for stretch in moved.get(of, ()) if stretch.split}
    return Ranges(tuple(splits.values()), moved)


def moved_in(plan: Plan) -> dict[str, list[MovedRows]]:
    """What a plan says of fragments that were compacted."""
    return plan.source_as(PinnedRows).moved


def _followed(
    dataset: LanceDataset, plan: Plan, fields: frozenset[int], known: Mapping[str, list[MovedRows]], before: Mapping[str, Split],
    is_staged: Callable[[str], bool],
) -> dict[str, list[MovedRows]]:  # fmt: skip
    """The stretches of the fragments that came since a plan, as far as they can be told."""
    base = plan.base or 0
    read: dict[str, list[Rows]] = {}
    ids = {Rows.from_json(split.read): split.id for split in before.values()}
    for rows in sorted(ids, key=lambda rows: rows.start):
        read.setdefault(rows.content, []).append(rows)
    try:
        planned = live_fragments(dataset.checkout_version(base))
    except (OSError, ValueError):
        return {}
    stretches: dict[int, Sequence[MovedRows]] = {}
    for fragment in planned:
        of = content_of(fragment, fields)
        staged = [MovedRows(ids[rows] if is_staged(ids[rows]) else "", rows.start, rows.stop) for rows in read.get(of, ())]
        stretches[fragment.id] = _filled(known[of], staged) if of in known else staged
    now = follow(dataset, base, stretches, fields)
    return {content_of(fragment, fields): list(now[fragment.id]) for fragment in live_fragments(dataset) if fragment.id in now}


def _filled(stretches: Sequence[MovedRows], staged: Iterable[MovedRows]) -> list[MovedRows]:
    """The stretches of a fragment; those that no split had read are cut where splits have read them since."""
    read_since = {stretch.start: stretch for stretch in staged if stretch.split}
    filled: list[MovedRows] = []
    at = 0
    for stretch in stretches:
        end = at + stretch.rows
        while not stretch.split and at < end:
            read = read_since.get(at)
            stop = read.stop if read is not None else min([start for start in read_since if at < start < end], default=end)
            _add(filled, read if read is not None else MovedRows("", at, stop))
            at = stop
        if stretch.split:
            _add(filled, stretch)
        at = end
    return filled


def _unread(stretches: Sequence[MovedRows]) -> Iterator[tuple[int, int]]:
    """Places of the rows that no split has read."""
    at = 0
    for stretch in stretches:
        if not stretch.split:
            yield at, at + stretch.rows
        at += stretch.rows


def kept(stretches: Sequence[MovedRows], runs: Iterable[tuple[int, int]]) -> list[MovedRows]:
    """Of the rows that the stretches are, one after the other, those with these numbers.

    :param runs: from a number up to another, in their order.
    """
    cut: list[MovedRows] = []
    at = first = 0
    for start, stop in runs:
        while at < len(stretches) and first < stop:
            stretch = stretches[at]
            low, high = max(start, first), min(stop, first + stretch.rows)
            if low < high:
                _add(cut, MovedRows(stretch.split, stretch.start + low - first, stretch.start + high - first))
            if first + stretch.rows > stop:
                break
            first += stretch.rows
            at += 1
    return cut


def dealt(stretches: Sequence[MovedRows], sizes: Iterable[int]) -> Iterator[list[MovedRows]]:
    """The stretches, so many rows at a time."""
    done = 0
    for size in sizes:
        yield kept(stretches, [(done, done + size)])
        done += size


def _add(stretches: list[MovedRows], stretch: MovedRows) -> None:
    if stretches and stretches[-1].split == stretch.split and (not stretch.split or stretches[-1].stop == stretch.start):
        # Of rows that no split has read it does not matter where they stood.
        stretches[-1] = stretches[-1]._replace(stop=stretches[-1].stop + stretch.rows)
    else:
        stretches.append(stretch)


def follow(
    dataset: LanceDataset, base: int, stretches: Mapping[int, Sequence[MovedRows]], fields: frozenset[int]
) -> dict[int, Sequence[MovedRows]]:
    """The stretches of the fragments that the dataset has now, by their ids; without those that cannot be told.

    :param base: the version that ``stretches`` are of.
    :param fields: ids of the columns that were read.
    """
    followed = dict(stretches)
    try:
        for version in range(base + 1, dataset.version + 1):
            _step(dataset, version, followed, fields)
    except (OSError, ValueError) as error:
        _log.info(
            "What others did to %s between its versions %s and %s cannot be told: %s", dataset.uri, base, dataset.version, error
        )
        return {}
    return followed


def _step(dataset: LanceDataset, version: int, stretches: dict[int, Sequence[MovedRows]], fields: frozenset[int]) -> None:
    """Bring the stretches of fragments from the version before to this one."""
    transaction = transaction_of(dataset, version)
    operation: Any = None if transaction is None else transaction.operation
    name = type(operation).__name__
    if name in MOVES_NO_ROW:
        return
    before, after = (_fragments(dataset, number) for number in (version - 1, version))
    if name == "Rewrite":
        for group in operation.groups:
            _move(dataset.checkout_version(version - 1), group, stretches)
        return
    for number in list(stretches):
        if number not in after or number not in before or content_of(before[number], fields) != content_of(after[number], fields):
            del stretches[number]


def _move(before: LanceDataset, group: Any, of_fragments: dict[int, Sequence[MovedRows]]) -> None:  # noqa: ANN401 - a RewriteGroup
    """What was in the old fragments of a compaction is in the new ones."""
    moved: list[MovedRows] = []
    for old in group.old_fragments:
        stretches = of_fragments.pop(old.id, None) or [MovedRows("", 0, old.physical_rows)]
        for stretch in kept(stretches, _live(before.get_fragment(old.id), old.physical_rows)):
            _add(moved, stretch)
    if sum(stretch.rows for stretch in moved) != sum(new.physical_rows for new in group.new_fragments):
        return
    for new, stretches in zip(group.new_fragments, dealt(moved, [new.physical_rows for new in group.new_fragments]), strict=True):
        if len(stretches) > _MOST_STRETCHES:
            _log.warning(
                "Fragment %s of %s is of %s stretches that were computed apart. What was computed of it is computed anew.",
                new.id, before.uri, f"{len(stretches):,}",
            )  # fmt: skip
        elif any(stretch.split for stretch in stretches):
            of_fragments[new.id] = stretches


def _live(fragment: Any, rows: int) -> list[tuple[int, int]]:  # noqa: ANN401 - a LanceFragment
    """Places of the rows that are not deleted, as runs."""
    import numpy as np

    if fragment.num_deletions == 0:
        return [(0, rows)]
    places = live_places(fragment).astype(np.int64)
    if not len(places):
        return []
    ends = np.flatnonzero(np.diff(places) != 1)
    starts = places[np.concatenate([[0], ends + 1])]
    stops = places[np.concatenate([ends, [len(places) - 1]])] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _fragments(dataset: LanceDataset, version: int) -> dict[int, Any]:
    return {fragment.id: fragment for fragment in live_fragments(dataset.checkout_version(version))}
