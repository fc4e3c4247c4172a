"""The pieces of splits that are not staged yet, as the store has them; see the protocol in ``checkpoint``."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Piece
from airflow_ckpt_provider.checkpoint.encoding import corrupt
from airflow_ckpt_provider.checkpoint.layout import is_writer, piece_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore


def pieces_of(store: CheckpointStore, paths: CheckpointPaths, split_ids: Collection[str]) -> dict[str, list[Piece]]:
    """The pieces of these splits, in their order, of the splits that have any.

    :raises CorruptObjectError: if a piece is missing, or does not begin where the one before it ends.
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for name in store.names(paths.pieces_folder):
        found = piece_of(name)
        if found is not None and found[0] in split_ids:
            numbers[found[0]].append(found[1])
    return {split_id: _read(store, paths, split_id, sorted(own)) for split_id, own in numbers.items()}


def rows_saved(
    store: CheckpointStore, paths: CheckpointPaths, split_ids: Collection[str], known: dict[str, tuple[int, int]]
) -> int:
    """Rows of the input of these splits that are done, by their pieces.

    :param known: of each split, the number of the last piece that was seen and its end; brought up to date here.
    """
    last: dict[str, int] = {}
    for found in map(piece_of, store.names(paths.pieces_folder)):
        if found is not None and found[0] in split_ids:
            last[found[0]] = max(found[1], last.get(found[0], 0))
    new = [(split_id, number) for split_id, number in last.items() if known.get(split_id, (-1, 0))[0] < number]
    for piece in store.read_many([paths.piece(*own) for own in new], Piece):
        known[piece.split] = (piece.number, piece.end)
    return sum(known[split_id][1] for split_id in last)


def require_next(paths: CheckpointPaths, piece: Piece, split_id: str, before: Sequence[Piece]) -> None:
    """Refuse a record that is not of the next piece of a split.

    :param before: the pieces before it.
    :raises CorruptObjectError: naming the object.
    """
    begin = before[-1].end if before else 0
    ended = bool(before) and before[-1].last
    named = piece.split == split_id and piece.number == len(before) and is_writer(piece.writer)
    if not named or ended or piece.begin != begin or piece.end < begin:
        raise corrupt(
            paths.piece(split_id, len(before)),
            f"is about the rows {piece.begin:,} to {piece.end:,} of the split {piece.split!r}, as its piece {piece.number}, and "
            f"the piece before it ends at {begin:,}",
        )


def _read(store: CheckpointStore, paths: CheckpointPaths, split_id: str, numbers: Sequence[int]) -> list[Piece]:
    missing = next((number for number, found in enumerate(numbers) if number != found), None)
    if missing is not None:
        raise corrupt(paths.piece(split_id, missing), "is gone, and there are later pieces of its split")
    pieces: list[Piece] = []
    for piece in store.read_many([paths.piece(split_id, number) for number in numbers], Piece):
        require_next(paths, piece, split_id, pieces)
        pieces.append(piece)
    return pieces
