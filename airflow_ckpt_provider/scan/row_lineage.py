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

#: Pieces that a plan holds of one fragment, some 50 bytes each before they are compressed; where scattered deletes have made more
#: of it, its rows count as not read.
_MOST_PIECES = 200_000


class MovedRows(NamedTuple):
    """Rows of a fragment that follow each other, and where they stood when they were read.

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
    :param moved: pieces of the fragments that were compacted, by what these hold; see ``content_of``.
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
    :param moved: pieces of the fragments that hold rows from elsewhere, by what they are.
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
        known |= {of: pieces for of, pieces in followed.items() if of in new}
    moved = {of: known[of] for of in live if of in known}
    splits: dict[str, Split] = {}
    for of, fragment in live.items():
        runs = list(_unread(moved[of])) if of in moved else [(0, fragment.physical_rows)]
        for split in as_named(range_splits(dataset, fragment, fields, runs, rows_per_split), plan).values():
            # What is not staged is read as it is now: without rows that are deleted, at a version that is there.
            splits[split.id] = before[split.id] if split.id in before and is_staged(split.id) else split
        splits |= {piece.split: before[piece.split] for piece in moved.get(of, ()) if piece.split}
    return Ranges(tuple(splits.values()), moved)


def moved_in(plan: Plan) -> dict[str, list[MovedRows]]:
    """What a plan says of fragments that were compacted."""
    return plan.source_as(PinnedRows).moved


def _followed(
    dataset: LanceDataset, plan: Plan, fields: frozenset[int], known: Mapping[str, list[MovedRows]], before: Mapping[str, Split],
    is_staged: Callable[[str], bool],
) -> dict[str, list[MovedRows]]:  # fmt: skip
    """The pieces of the fragments that came since a plan, as far as they can be told."""
    base = plan.base or 0
    read: dict[str, list[Rows]] = {}
    ids = {Rows.from_json(split.read): split.id for split in before.values()}
    for rows in sorted(ids, key=lambda rows: rows.start):
        read.setdefault(rows.content, []).append(rows)
    try:
        planned = live_fragments(dataset.checkout_version(base))
    except (OSError, ValueError):
        return {}
    pieces: dict[int, Sequence[MovedRows]] = {}
    for fragment in planned:
        of = content_of(fragment, fields)
        staged = [MovedRows(ids[rows] if is_staged(ids[rows]) else "", rows.start, rows.stop) for rows in read.get(of, ())]
        pieces[fragment.id] = _filled(known[of], staged) if of in known else staged
    now = follow(dataset, base, pieces, fields)
    return {content_of(fragment, fields): list(now[fragment.id]) for fragment in live_fragments(dataset) if fragment.id in now}


def _filled(pieces: Sequence[MovedRows], staged: Iterable[MovedRows]) -> list[MovedRows]:
    """The pieces of a fragment; those that no split had read are cut where splits have read them since."""
    read_since = {piece.start: piece for piece in staged if piece.split}
    filled: list[MovedRows] = []
    at = 0
    for piece in pieces:
        end = at + piece.rows
        while not piece.split and at < end:
            read = read_since.get(at)
            stop = read.stop if read is not None else min([start for start in read_since if at < start < end], default=end)
            _add(filled, read if read is not None else MovedRows("", at, stop))
            at = stop
        if piece.split:
            _add(filled, piece)
        at = end
    return filled


def _unread(pieces: Sequence[MovedRows]) -> Iterator[tuple[int, int]]:
    """Places of the rows that no split has read."""
    at = 0
    for piece in pieces:
        if not piece.split:
            yield at, at + piece.rows
        at += piece.rows


def kept(pieces: Sequence[MovedRows], runs: Iterable[tuple[int, int]]) -> list[MovedRows]:
    """Of the rows that the pieces are, one after the other, those with these numbers.

    :param runs: from a number up to another, in their order.
    """
    cut: list[MovedRows] = []
    at = first = 0
    for start, stop in runs:
        while at < len(pieces) and first < stop:
            piece = pieces[at]
            low, high = max(start, first), min(stop, first + piece.rows)
            if low < high:
                _add(cut, MovedRows(piece.split, piece.start + low - first, piece.start + high - first))
            if first + piece.rows > stop:
                break
            first += piece.rows
            at += 1
    return cut


def dealt(pieces: Sequence[MovedRows], sizes: Iterable[int]) -> Iterator[list[MovedRows]]:
    """The pieces, so many rows at a time."""
    done = 0
    for size in sizes:
        yield kept(pieces, [(done, done + size)])
        done += size


def _add(pieces: list[MovedRows], piece: MovedRows) -> None:
    if pieces and pieces[-1].split == piece.split and (not piece.split or pieces[-1].stop == piece.start):
        # Of rows that no split has read it does not matter where they stood.
        pieces[-1] = pieces[-1]._replace(stop=pieces[-1].stop + piece.rows)
    else:
        pieces.append(piece)


def follow(
    dataset: LanceDataset, base: int, pieces: Mapping[int, Sequence[MovedRows]], fields: frozenset[int]
) -> dict[int, Sequence[MovedRows]]:
    """The pieces of the fragments that the dataset has now, by their ids; without those that cannot be told.

    :param base: the version that ``pieces`` are of.
    :param fields: ids of the columns that were read.
    """
    followed = dict(pieces)
    try:
        for version in range(base + 1, dataset.version + 1):
            _step(dataset, version, followed, fields)
    except (OSError, ValueError) as error:
        _log.info(
            "What others did to %s between its versions %s and %s cannot be told: %s", dataset.uri, base, dataset.version, error
        )
        return {}
    return followed


def _step(dataset: LanceDataset, version: int, pieces: dict[int, Sequence[MovedRows]], fields: frozenset[int]) -> None:
    """Bring the pieces of fragments from the version before to this one."""
    transaction = transaction_of(dataset, version)
    operation: Any = None if transaction is None else transaction.operation
    name = type(operation).__name__
    if name in MOVES_NO_ROW:
        return
    before, after = (_fragments(dataset, number) for number in (version - 1, version))
    if name == "Rewrite":
        for group in operation.groups:
            _move(dataset.checkout_version(version - 1), group, pieces)
        return
    for number in list(pieces):
        if number not in after or number not in before or content_of(before[number], fields) != content_of(after[number], fields):
            del pieces[number]


def _move(before: LanceDataset, group: Any, of_fragments: dict[int, Sequence[MovedRows]]) -> None:  # noqa: ANN401 - a RewriteGroup
    """What was in the old fragments of a compaction is in the new ones."""
    moved: list[MovedRows] = []
    for old in group.old_fragments:
        pieces = of_fragments.pop(old.id, None) or [MovedRows("", 0, old.physical_rows)]
        for piece in kept(pieces, _live(before.get_fragment(old.id), old.physical_rows)):
            _add(moved, piece)
    if sum(piece.rows for piece in moved) != sum(new.physical_rows for new in group.new_fragments):
        return
    for new, pieces in zip(group.new_fragments, dealt(moved, [new.physical_rows for new in group.new_fragments]), strict=True):
        if len(pieces) > _MOST_PIECES:
            _log.warning(
                "Fragment %s of %s is of %s pieces that were computed apart. What was computed of it is computed anew.",
                new.id, before.uri, f"{len(pieces):,}",
            )  # fmt: skip
        elif any(piece.split for piece in pieces):
            of_fragments[new.id] = pieces


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
