"""One Lance commit, exactly once: load, look, build on that very version, swap, and on any error look again.

Lance rebases a plain ``Append`` over whatever was committed meanwhile, also over the same append: whoever looks first and appends
then has both of two racers land. So no commit here is one that Lance could rebase over another of ours:

- rows are added by an ``Update`` that also carries one fragment of the dataset, the one with the lowest id, unchanged. Two of
  those conflict, and a foreign append passes. A dataset without fragments has none to carry: there it is a ``Merge``;
- an upsert, and the adding of columns, is a ``Merge`` of all fragments, which conflicts with whatever changes rows, a foreign
  append included. One that keeps row ids is an ``Update`` that does, too: see ``updating``;
- ``Overwrite`` is tried without retries, which makes it fail unless the version it was built on is still the last. So is
  whatever also says how far a source was read.

Why it is exactly once: a commit succeeds only if no other commit of ours came after the version that was searched; an error,
whatever it says, is followed by a new load and a new search.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import RowCountError, TableMovedError
from airflow_ckpt_provider.scan.lance import made_at
from airflow_ckpt_provider.tables.lance.deletions import described
from airflow_ckpt_provider.tables.lance.fragments import data_file, metadata_of
from airflow_ckpt_provider.tables.lance.history import Search, find
from airflow_ckpt_provider.tables.lance.schema import file_fields
from airflow_ckpt_provider.tables.once import keys_of, land
from airflow_ckpt_provider.tables.protocol import Landed
from airflow_ckpt_provider.tables.summary import summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

    from airflow_ckpt_provider.checkpoint.documents import Group, JsonObject
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments


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


#: Rebases over foreign commits that do not conflict.
REBASES = 20


class Commit(NamedTuple):
    """What is to be committed.

    :param identity: digest of the headers of all members.
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

    def swap(number: int) -> Landed | Exception:
        outcome = _try(files, base[0] if base is not None and number == 1 else load(), commit, before_swap)
        while outcome is None:
            outcome = _try(files, load(), commit, before_swap)
        return outcome

    def look() -> Landed | None:
        dataset = load()
        return None if dataset is None else find(dataset, commit.search)

    return land(swap, look, f"{commit.keys} to {files.uri}")


def _try(
    files: DatasetFiles, dataset: LanceDataset | None, commit: Commit, before_swap: Callable[[LanceDataset | None], None]
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
        read_version=0 if dataset is None else dataset.version, operation=swap.operation, transaction_properties=properties
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
    return _verified(made, commit, swap)


def _verified(dataset: LanceDataset, commit: Commit, swap: Swap) -> Landed:
    """The commit as the version it made shows it (I2)."""
    there, holds = [fragment.metadata for fragment in dataset.get_fragments()], swap.holds
    found = {file.path: one.physical_rows for one in there for file in one.files if file.path in holds}
    if found != holds:
        raise RowCountError(
            f"Version {dataset.version} of {dataset.uri} holds {sum(found.values())} rows in the staged files; "
            f"{sum(holds.values())} were sealed for {commit.keys}. The version has landed: compare the dataset with its source "
            "before anything else writes to it."
        )
    strange = set() if swap.fragments is None else {one.id for one in there} - swap.fragments
    if strange:
        raise RowCountError(
            f"{commit.keys} landed in version {dataset.version} of {dataset.uri}, and {len(strange)} fragments that others added "
            f"meanwhile were not looked at ({', '.join(map(str, sorted(strange)[:5]))}). Rows of theirs may have keys that were "
            "inserted: look for keys that are there twice before anything else writes to the dataset."
        )
    return Landed(dataset.version, made_at(dataset), landed_now=True)


def rows_of(staged: Sequence[StagedFragments]) -> dict[str, int]:
    """Rows of the staged data files, by their names; see ``Swap.holds``."""
    return {fragment.name: fragment.rows for one in staged for fragment in one.fragments}


def adding(dataset: LanceDataset, staged: Sequence[StagedFragments], removed: frozenset[str] = frozenset()) -> Swap:
    """Add fragments; see the module's text.

    :param removed: names of data files whose fragments are removed in the same version.
    :raises TableMovedError: if the dataset does not have all of those as they were written.
    """
    from lance import LanceOperation

    there = [fragment.metadata for fragment in dataset.get_fragments()]
    gone = replaceable(dataset, removed)
    new = metadata_of(staged)
    if not there:
        return Swap(LanceOperation.Merge(new, dataset.lance_schema, preserves_nullability=True), REBASES, rows_of(staged))
    lowest = min(there, key=lambda one: one.id)
    removed_ids = [one.id for one in gone]
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
    there = (fragment.metadata for fragment in dataset.get_fragments() if names)
    found = [one for one in there if any(file.path in names for file in one.files)]
    require_there(len(names) - len(found), dataset)
    _require_whole(found, dataset)
    return found


def overwriting(schema: pa.Schema, staged: Sequence[StagedFragments]) -> Swap:
    """Take the place of everything, or come into being."""
    from lance import LanceOperation

    return Swap(LanceOperation.Overwrite(schema, metadata_of(staged)), 0, rows_of(staged))


def merging(dataset: LanceDataset, staged: Sequence[StagedFragments], matched: Mapping[int, JsonObject]) -> Swap:
    """Keep every fragment, some with more rows deleted, and add others. Conflicts with whatever changes rows meanwhile.

    :param matched: descriptions of fragments with their deletions, by id.
    """
    from lance import LanceOperation

    there = (fragment.metadata for fragment in dataset.get_fragments())
    kept = [described(matched[one.id]) if one.id in matched else one for one in there]
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
        one = fragment.metadata
        kept = [file for file in one.files if not set(file.fields) <= instead]
        if one.id in files:
            name, size = files[one.id]
            kept.append(data_file(name, fields, dataset.data_storage_version, size))
            holds[name] = one.physical_rows
        one.files = kept
        fragments.append(one)
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
        gone = set(operation.removed_fragment_ids)
        updated = {one.id: one for one in operation.updated_fragments}
        there = (fragment.metadata for fragment in dataset.get_fragments())
        fragments = [updated.get(one.id, one) for one in there if one.id not in gone] + list(operation.new_fragments)
    else:
        fragments = list(operation.fragments)
    return Swap(LanceOperation.Merge(fragments, schema, preserves_nullability=True), 0, swap.holds)


def _require_whole(fragments: Sequence[FragmentMetadata], dataset: LanceDataset) -> None:
    """Refuse to replace files of which others deleted rows: an update does that, too, and its rows stand somewhere else now."""
    touched = sum(one.num_deletions > 0 for one in fragments)
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
