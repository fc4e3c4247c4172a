"""The columns of a dataset with the new ones among them, numbered as Lance numbers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.tables.lance.schema import in_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from lance import LanceDataset

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
    from lance.fragment import FragmentMetadata

    kept = (fragment.metadata for fragment in dataset.get_fragments())
    fragments = [FragmentMetadata(id=metadata.id, files=metadata.files, physical_rows=metadata.physical_rows) for metadata in kept]
    copy = in_memory(dataset.lance_schema, fragments)
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
