"""The Arrow schema that Iceberg data files are written with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.scan.projection import plain_field

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

FIELD_ID = b"PARQUET:field_id"


def write_schema(schema: Schema) -> pa.Schema:
    """Arrow schema that files of ``schema`` are written with: field ids, and the plain layout of strings and lists."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import sanitize_column_names

    return pa.schema([plain_field(field) for field in schema_to_pyarrow(sanitize_column_names(schema))])
