"""What executors write into a dataset with: its place, and the columns that a header has pinned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.lance.schema import created_as, file_fields
from airflow_ckpt_provider.tables.lance.writer import WriterFacts

if TYPE_CHECKING:
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import TableBinding
    from airflow_ckpt_provider.tables.lance.binding import NamedDataset


def writer_facts(named: NamedDataset, dataset: LanceDataset | None, binding: TableBinding, *, pinned: bool = True) -> WriterFacts:
    """What executors write into a dataset with.

    :param dataset: as it was loaded; None if it does not exist yet.
    :param pinned: whether rows have the columns that the binding pinned; those of the dataset as it is, if not.
    :raises SchemaMismatchError: if the pinned columns were changed since.
    """
    import pyarrow as pa
    from lance.schema import LanceSchema

    if dataset is None and binding.creation is not None:
        schema, version = created_as(binding.creation)
        fields = file_fields(LanceSchema.from_pyarrow(schema))
        return WriterFacts(named.identifier, named.files, schema, tuple(fields), version)
    if dataset is None:
        raise named.missing(binding)
    schema, names = dataset.schema, None
    if pinned:
        named.require_columns(dataset, binding)
        # Columns that others have added since are in no file of this write, as in none that it staged before.
        names = [name for name, *_ in named.pinned_columns(binding)]
        schema = pa.schema([field for field in schema if field.name in names], schema.metadata)
    fields = file_fields(dataset.lance_schema, names)
    return WriterFacts(named.identifier, named.files, schema, tuple(fields), dataset.data_storage_version)
