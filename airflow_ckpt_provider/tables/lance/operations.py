"""What a commit asks of Lance: one operation on one version of the dataset.

Lance rebases a plain ``Append`` over whatever was committed meanwhile, also over the same append: whoever looks first and appends
then has both of two racers land. So no operation here is one that Lance could rebase over another of ours:

- rows are added by an ``Update`` that also carries one fragment of the dataset, the one with the lowest id, unchanged. Two of
  those conflict, and a foreign append passes. A dataset without fragments has none to carry: there it is a ``Merge``;
- an upsert, and the adding of columns, is a ``Merge`` of all fragments, which conflicts with whatever changes rows, a foreign
  append included. One that keeps row ids is an ``Update`` that does, too: see ``updating``;
- ``Overwrite`` is tried without retries, which makes it fail if there is a version after the one that it was built on. So is
  whatever also says how far a source was read.

That is no proof that the version is read by anybody: see ``lineage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.scan.lance import name_of
from airflow_ckpt_provider.tables.lance.fragments import data_file, metadata_of
from airflow_ckpt_provider.tables.lance.schema import file_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

    from airflow_ckpt_provider.tables.lance.deletions import Deletions
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments


#: Rebases over foreign commits that do not conflict.
REBASES = 20


class Swap(NamedTuple):
    """An operation on one version of the dataset.

    :param max_retries: how often Lance may rebase it over commits of others.
    :param holds: rows of the staged data files that the version which it makes has to have, by their names.
    :param fragments: ids of all fragments that this version may have; None if others may add some.
    """

    operation: Any
    max_retries: int
    holds: Mapping[str, int]
    fragments: frozenset[int] | None = None


def rows_of(staged: Sequence[StagedFragments]) -> dict[str, int]:
    """Rows of the staged data files, by their names; see ``Swap.holds``."""
    return {fragment.name: fragment.rows for manifest in staged for fragment in manifest.fragments}


def adding(dataset: LanceDataset, staged: Sequence[StagedFragments], removed: frozenset[str] = frozenset()) -> Swap:
    """Add fragments; see the module's text.

    :param removed: names of data files whose fragments are removed in the same version.
    :raises TableMovedError: if the dataset does not have all of those as they were written.
    """
    from lance import LanceOperation

    present = [fragment.metadata for fragment in dataset.get_fragments()]
    replaced = replaceable(dataset, removed)
    new = metadata_of(staged)
    if not present:
        return Swap(LanceOperation.Merge(new, dataset.lance_schema, preserves_nullability=True), REBASES, rows_of(staged))
    lowest = min(present, key=lambda metadata: metadata.id)
    removed_ids = [metadata.id for metadata in replaced]
    return Swap(
        LanceOperation.Update(
            removed_fragment_ids=removed_ids,
            updated_fragments=[] if lowest.id in removed_ids else [lowest],
            new_fragments=new,
        ),
        REBASES,
        rows_of(staged),
    )


def replaceable(dataset: LanceDataset, names: frozenset[str]) -> list[FragmentMetadata]:
    """The fragments of these data files.

    :raises TableMovedError: if the dataset does not have all of them as they were written.
    """
    if not names:
        return []
    present = (fragment.metadata for fragment in dataset.get_fragments())
    holding = [metadata for metadata in present if any(name_of(file) in names for file in metadata.files)]
    require_there(len(names) - len(holding), dataset)
    _require_whole(holding, dataset)
    return holding


def overwriting(schema: pa.Schema, staged: Sequence[StagedFragments]) -> Swap:
    """Take the place of everything, or come into being."""
    from lance import LanceOperation

    return Swap(LanceOperation.Overwrite(schema, metadata_of(staged)), 0, rows_of(staged))


def merging(dataset: LanceDataset, staged: Sequence[StagedFragments], deletions: Mapping[int, Deletions]) -> Swap:
    """Keep every fragment, some with more rows deleted, and add others. Conflicts with whatever changes rows meanwhile.

    :param deletions: by the ids of the fragments.
    """
    from lance import LanceOperation

    kept = [fragment.metadata for fragment in dataset.get_fragments()]
    for fragment in kept:
        if fragment.id in deletions:
            fragment.deletion_file = deletions[fragment.id].described()
    # Fragments without a row left are dropped by Lance.
    return Swap(
        LanceOperation.Merge(kept + metadata_of(staged), dataset.lance_schema, preserves_nullability=True),
        REBASES,
        rows_of(staged),
    )


def widening(
    dataset: LanceDataset,
    schema: Any,  # noqa: ANN401 - a LanceSchema
    columns: Sequence[str],
    files: Mapping[int, tuple[str, int]],
    instead: frozenset[int],
) -> Swap:
    """Give fragments files with more columns.

    :param schema: the dataset's, with the new columns.
    :param columns: names of those, in the order of the files.
    :param files: name and bytes of a file, by the fragment that it is for.
    :param instead: ids of fields whose place the new columns take.
    """
    from lance import LanceOperation

    fields = file_fields(schema, columns)
    fragments, holds = [], {}
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        kept = [file for file in metadata.files if not set(file.fields) <= instead]
        if metadata.id in files:
            name, size = files[metadata.id]
            kept.append(data_file(name, fields, dataset.data_storage_version, size))
            holds[name] = metadata.physical_rows
        metadata.files = kept
        fragments.append(metadata)
    return Swap(LanceOperation.Merge(fragments, schema, preserves_nullability=True), REBASES, holds)


def carrying(dataset: LanceDataset, swap: Swap, schema: Any) -> Swap:  # noqa: ANN401 - a LanceSchema
    """The same change, and with it another schema, which differs in its metadata: lands only on the very version it was made for.

    An ``Update`` cannot carry a schema, so it becomes the ``Merge`` of all fragments that it leaves, as it leaves them.
    """
    from lance import LanceOperation

    operation = swap.operation
    if isinstance(operation, LanceOperation.Overwrite):
        return swap._replace(operation=LanceOperation.Overwrite(schema, operation.fragments))
    if isinstance(operation, LanceOperation.Update):
        removed_ids = set(operation.removed_fragment_ids)
        updated = {metadata.id: metadata for metadata in operation.updated_fragments}
        present = (fragment.metadata for fragment in dataset.get_fragments())
        fragments = [updated.get(metadata.id, metadata) for metadata in present if metadata.id not in removed_ids] + list(
            operation.new_fragments
        )
    else:
        fragments = list(operation.fragments)
    return Swap(LanceOperation.Merge(fragments, schema, preserves_nullability=True), 0, swap.holds)


def taking_back(before: LanceDataset, schema: Any) -> Swap:  # noqa: ANN401 - a LanceSchema
    """Show what an earlier version shows, by its own fragments, if nothing came since the version that this is made from.

    Decision: not by Lance's ``Restore``, which nothing conflicts with: one that was prepared long ago takes out whatever has landed
    since. Indices of the earlier version do not come back.
    """
    from lance import LanceOperation

    return Swap(LanceOperation.Overwrite(schema, [fragment.metadata for fragment in before.get_fragments()]), 0, {})


def _require_whole(fragments: Sequence[FragmentMetadata], dataset: LanceDataset) -> None:
    """Refuse to replace files of which others deleted rows: an update does that, too, and its rows stand somewhere else now."""
    touched = sum(metadata.num_deletions > 0 for metadata in fragments)
    if touched:
        raise TableMovedError(
            f"Rows of {touched} files that are to be replaced in {dataset.uri} were deleted or updated by others since. To replace "
            "the files would double rows that were updated. Nothing was committed: write the rows under another idempotence key."
        )


def require_there(missing: int, dataset: LanceDataset) -> None:
    """Refuse to replace what is not there as it was written.

    :param missing: how many of the files that are to be replaced the dataset does not have.
    :raises TableMovedError: if any.
    """
    if missing:
        raise TableMovedError(
            f"{missing} of the files that are to be replaced are not in {dataset.uri} any more: compaction or another write has "
            "taken them. Nothing was committed. Another run does not bring them back: write the rows under another idempotence key."
        )
