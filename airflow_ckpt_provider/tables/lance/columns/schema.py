"""The columns of a dataset with the new ones among them, numbered as Lance numbers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from lance import LanceDataset

#: A dataset that exists for a moment in this process.
_NOWHERE = "memory://columns"

#: Columns of the copy that take the numbers which must not be given again.
_UNUSED = "airflow_ckpt_unused_"


def widened(dataset: LanceDataset, columns: pa.Schema, instead: Sequence[str] = ()) -> Any:  # noqa: ANN401 - a LanceSchema
    """The schema of a dataset with columns added, whose field ids no file of the dataset uses.

    Lance gives no way to number a field by hand, so it is asked to add columns without values to a dataset in memory that has the
    same fields and fragments, deletions aside.

    :param columns: to be added.
    :param instead: columns to be dropped.
    """
    import pyarrow as pa
    from lance import LanceDataset, LanceOperation
    from lance.dataset import Transaction
    from lance.fragment import FragmentMetadata

    # From a dataset without fields, because a merge cannot give a number to another field.
    empty = LanceDataset.commit(_NOWHERE, Transaction(read_version=0, operation=LanceOperation.Overwrite(pa.schema([]), [])))
    there = (fragment.metadata for fragment in dataset.get_fragments())
    fragments = [FragmentMetadata(id=one.id, files=one.files, physical_rows=one.physical_rows) for one in there]
    merge = LanceOperation.Merge(fragments, dataset.lance_schema, preserves_nullability=True)
    copy = LanceDataset.commit(empty, Transaction(read_version=empty.version, operation=merge))
    if instead:
        copy.drop_columns(list(instead))
    # The dataset remembers the highest number that it ever gave; the copy only knows of those that it sees.
    unused = pa.schema([(f"{_UNUSED}{number}", pa.bool_()) for number in range(dataset.max_field_id - copy.max_field_id)])
    if len(unused):
        copy.add_columns(unused)
    copy.add_columns(columns)
    if len(unused):
        copy.drop_columns(unused.names)
    return copy.lance_schema
