"""The pieces of splits that are not staged yet, as the store has them; see the protocol in ``checkpoint``."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Piece
from airflow_ckpt_provider.checkpoint.encoding import corrupt
from airflow_ckpt_provider.checkpoint.layout import is_writer, piece_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore


def input_id(split: Split) -> str:
    """Whose rows a piece counts: the split's id, and a digest of what is read.

    Decision: a later round may read another version under the same id, as of a dataset from which rows were deleted. What is staged
    of the earlier one stays, but a row number of it means nothing in the later one.
    """
    read = msgspec.json.encode(split.read, order="deterministic")
    return f"{split.id}.{hashlib.sha256(read).hexdigest()[:16]}"


def pieces_of(store: CheckpointStore, paths: CheckpointPaths, splits: Iterable[Split]) -> dict[str, list[Piece]]:
    """The pieces of these splits as they are read now, in their order, of the splits that have any.

    :returns: by ``input_id``.
    :raises CorruptObjectError: if a piece is missing, or does not begin where the one before it ends.
    """
    wanted = {input_id(split): split for split in splits}
    numbers: dict[str, list[int]] = defaultdict(list)
    for name in store.names(paths.pieces_folder):
        place = piece_of(name)
        if place is not None and place[0] in wanted:
            numbers[place[0]].append(place[1])
    return {name: _read(store, paths, wanted[name], sorted(of_split)) for name, of_split in numbers.items()}


def rows_saved(store: CheckpointStore, paths: CheckpointPaths, splits: Iterable[Split], known: dict[str, tuple[int, int]]) -> int:
    """Rows of the input of these splits that are done, by their pieces.

    :param known: by ``input_id``, the number of the last piece that was seen and its end; brought up to date here.
    """
    wanted = {input_id(split) for split in splits}
    last: dict[str, int] = {}
    for place in map(piece_of, store.names(paths.pieces_folder)):
        if place is not None and place[0] in wanted:
            last[place[0]] = max(place[1], last.get(place[0], 0))
    new = [(name, number) for name, number in last.items() if known.get(name, (-1, 0))[0] < number]
    pieces = store.read_many([paths.piece(*place) for place in new], Piece)
    known |= {name: (piece.number, piece.end) for (name, _), piece in zip(new, pieces, strict=True)}
    return sum(known[name][1] for name in last)


def require_next(paths: CheckpointPaths, piece: Piece, split: Split, before: Sequence[Piece]) -> None:
    """Refuse a record that is not of the next piece of a split.

    :param before: the pieces before it.
    :raises CorruptObjectError: naming the object.
    """
    begin = before[-1].end if before else 0
    ended = bool(before) and before[-1].last
    named = piece.split == split.id and piece.number == len(before) and is_writer(piece.writer) and piece.rejects_its_own
    if not named or ended or piece.begin != begin or piece.end < begin:
        raise corrupt(
            paths.piece(input_id(split), len(before)),
            f"is about the rows {piece.begin:,} to {piece.end:,} of the split {piece.split!r}, as its piece {piece.number}, and "
            f"the piece before it ends at {begin:,}",
        )


def _read(store: CheckpointStore, paths: CheckpointPaths, split: Split, numbers: Sequence[int]) -> list[Piece]:
    missing = next((number for number, present in enumerate(numbers) if number != present), None)
    if missing is not None:
        raise corrupt(paths.piece(input_id(split), missing), "is gone, and there are later pieces of its split")
    name = input_id(split)
    pieces: list[Piece] = []
    for piece in store.read_many([paths.piece(name, number) for number in numbers], Piece):
        require_next(paths, piece, split, pieces)
        pieces.append(piece)
    return pieces
