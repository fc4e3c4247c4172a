"""Replacing rows that keep their ids, in a dataset with stable row ids.

Decision: a ``Merge`` takes no new fragments with row ids, so this is an ``Update``. Lance looks up in the old fragments when a row
with one of these ids was made, gives ids to the rows that have none, and says of all of them that they were updated now.

An ``Update`` passes over commits of others that a ``Merge`` would conflict with: rows that are added, one of which may have a key
that is inserted here. So it is made to conflict with whatever changes rows:

- every fragment is named as updated, with its deletions or as it is: whoever changes, removes or moves one conflicts, and so do
  two commits of ours;
- the new fragments have the very ids that a commit of somebody else would give to those it adds, and no id is there twice;
- those ids are named as updated, too, and so are many that follow, because a compaction reserves some before it moves anything. If
  fragments that were added under them are removed or moved before this commit is tried, that conflicts; as long as they are there,
  Lance refuses to give them the description that they have here, which has no row ids.

Whether it kept out what it has to is looked at once more in the version that it made: see ``Swap.fragments``.

The ids of updated rows stand in the manifest, as with Lance's own updates: four bytes or so for each row, and as many again in the
version that updates them, whose manifest has the transaction, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import UnsupportedTableError
from airflow_ckpt_provider.scan.lance import name_of
from airflow_ckpt_provider.tables.lance.fragments import metadata_of
from airflow_ckpt_provider.tables.lance.operations import REBASES, Swap, merging, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

    from airflow_ckpt_provider.tables.lance.deletions import Deletions
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments

#: Ids of fragments that others may have reserved meanwhile, and one more for each fragment that a compaction could move.
_RESERVED = 1024

#: Field of the highest id that a fragment was ever given, in Lance's manifests: ``max_fragment_id`` in its ``table.proto``.
_MAX_FRAGMENT_ID = 11


def updating(
    dataset: LanceDataset, staged: Sequence[StagedFragments], deletions: Mapping[int, Deletions], row_ids: Mapping[str, pa.Array]
) -> Swap:
    """Keep every fragment, some with more rows deleted, and add others; see the module's text.

    :param deletions: by the ids of the fragments.
    :param row_ids: ids of the rows of staged data files, by name; rows of those that are not there are new.
    """
    from lance import LanceOperation
    from lance.fragment import FragmentMetadata, RowIdSequence

    present = [fragment.metadata for fragment in dataset.get_fragments()]
    if not present:
        # No row is updated, and there is no fragment that two commits of ours could conflict on.
        return merging(dataset, staged, {})
    for metadata in present:
        if metadata.id in deletions:
            metadata.deletion_file = deletions[metadata.id].described()
    new, begin = metadata_of(staged), _next_fragment_id(dataset, present)
    for number, metadata in enumerate(new, begin):
        metadata.id = number
        ids = row_ids.get(name_of(metadata.files[0]))
        if ids is not None:
            metadata.row_id_meta = RowIdSequence(ids).to_inline_metadata()
    not_there = [FragmentMetadata(id=begin + n, files=[], physical_rows=0) for n in range(len(new) + len(present) + _RESERVED)]
    left = [metadata for metadata in present if metadata.num_rows]
    return Swap(
        LanceOperation.Update(
            removed_fragment_ids=[metadata.id for metadata in present if not metadata.num_rows],
            updated_fragments=left + not_there,
            new_fragments=new,
        ),
        REBASES,
        rows_of(staged),
        frozenset(metadata.id for metadata in left + new),
    )


def _next_fragment_id(dataset: LanceDataset, present: Sequence[FragmentMetadata]) -> int:
    """The id that the next commit, whosever it is, gives to the first fragment that it adds.

    Decision: Lance's Python package does not tell the highest id, which may be that of a fragment that is gone. It is read from
    the manifest, whose format is public, as the package pickles it with a dataset.

    :raises UnsupportedTableError: if it cannot be read from there: without it rows that others add would not be seen.
    """
    highest = max(metadata.id for metadata in present)
    try:
        said = _number(dataset._ds.serialized_manifest(), _MAX_FRAGMENT_ID)  # noqa: SLF001 - there is no other way to it
    except (AttributeError, IndexError, ValueError) as error:
        raise UnsupportedTableError(f"The manifest of {dataset.uri} cannot be read ({error!r}).") from error
    if said is None:
        # As Lance does it for manifests of old.
        return highest + 1
    if said < highest:
        raise UnsupportedTableError(f"The manifest of {dataset.uri} cannot be read: it says {said} of fragments up to {highest}.")
    return said + 1


def _number(message: bytes, wanted: int) -> int | None:
    """A number at the top level of a Protobuf message; None if it is not there.

    :raises ValueError: if this is no such message.
    """
    at, number = 0, None
    while at < len(message):
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            number = value if field == wanted else number
        elif kind == 2:
            size, at = _varint(message, at)
            at += size
        elif kind in {1, 5}:
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"there is a field of the kind {kind}")
    if at != len(message):
        raise ValueError("it is cut off")
    return number


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of one byte or more, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
