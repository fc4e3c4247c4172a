"""Which table a name means: how it is loaded, what a checkpoint is bound to, and whether it is still what was bound (I6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import TableBinding
from airflow_ckpt_provider.checkpoint.location import refuse_credentials
from airflow_ckpt_provider.checkpoint.storage_problems import storage_problem
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    RetryableError,
    TableExistsError,
    TableMissingError,
    UnsupportedTableError,
    first_line,
)
from airflow_ckpt_provider.tables.iceberg.creation import new_table, pinned, require_as_told, unborn
from airflow_ckpt_provider.tables.iceberg.evolution import schema_fingerprint
from airflow_ckpt_provider.tables.iceberg.history import MAIN
from airflow_ckpt_provider.tables.iceberg.manifest import FORMAT_VERSION
from airflow_ckpt_provider.tables.iceberg.names import avro_codec, require_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

#: Of the format, as headers and references have it.
NAME = "iceberg"


class NamedTable:
    """A table in a catalog.

    :param catalog: an open pyiceberg catalog.
    :param identifier: ``namespace.table``.
    :param branch: branch that commits land on; one that does not exist begins where the main branch is.
    :raises InvalidInputError: if the identifier is none.
    """

    format = NAME

    def __init__(self, catalog: Catalog, identifier: str, branch: str = MAIN) -> None:
        if "." not in identifier or not all(identifier.split(".")):
            raise InvalidInputError(f"table={identifier!r} is not of the form 'namespace.table'.")
        self.catalog = catalog
        self.identifier = identifier
        self.branch = branch

    def load(self) -> Table:
        """The table as it is now.

        :raises TableMissingError: if it does not exist.
        :raises UnsupportedTableError: if it is not a version 2 table of Parquet files.
        """
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self.catalog.load_table(self.identifier)
        except NoSuchTableError as error:
            raise TableMissingError(
                f"The Iceberg table {self.identifier} does not exist in the catalog {self.catalog.name!r}. Create it first, "
                "set create_if_missing=True to have it created with the first rows, or check the name and the Iceberg connection."
            ) from error
        except Exception as error:
            raise RetryableError(
                f"The Iceberg table {self.identifier} could not be loaded from the catalog {self.catalog.name!r}: "
                f"{storage_problem(str(error)) or f'{type(error).__name__}: {first_line(error)}'}"
            ) from error
        self._require_writable(table)
        return table

    def _require_writable(self, table: Table) -> None:
        version = table.metadata.format_version
        if version != FORMAT_VERSION:
            raise UnsupportedTableError(
                f"The Iceberg table {self.identifier} has format version {version}; only version 2 can be written by staged "
                "manifests. "
                + ("Upgrade it: table.transaction().upgrade_table_version(2)." if version < FORMAT_VERSION else "Use a v2 table.")
            )
        file_format = table.metadata.properties.get("write.format.default", "parquet").lower()
        if file_format != "parquet":
            raise UnsupportedTableError(
                f"The Iceberg table {self.identifier} wants {file_format} files (write.format.default); only Parquet is written."
            )
        require_names(table.metadata, self.identifier)
        avro_codec(table.metadata.properties, self.identifier)
        refuse_credentials(table.metadata.location)
        if self.branch in table.metadata.refs and table.metadata.refs[self.branch].snapshot_ref_type != "branch":
            raise InvalidInputError(f"branch={self.branch!r} is a tag of the table {self.identifier}, which no commit moves.")
        if self.branch != MAIN and not table.metadata.refs:
            raise InvalidInputError(
                f"branch={self.branch!r}: the table {self.identifier} has no snapshot yet, and Iceberg lets a table begin on its "
                f"branch {MAIN!r} only. Commit something there first."
            )

    def binding(self) -> TableBinding:
        """Identity, schema and spec of the table as it is now."""
        return self._binding(self.load().metadata)

    def creation(self, rows: pa.Schema, parameters: JsonObject) -> TableBinding:
        """Identity, schema and spec of a table to be; see ``Table.creation``."""
        if self.load_if_any() is not None:
            raise self._exists()
        table = new_table(self.catalog, self.identifier, rows, parameters)
        self._require_writable(table)
        return msgspec.structs.replace(self._binding(table.metadata), creation=pinned(table.metadata))

    def require_creation(self, binding: TableBinding, parameters: JsonObject | None) -> None:
        """Check what a header says of a table to be; see ``Table.require_creation``."""
        if binding.creation is not None and self.load_if_any() is None:
            require_as_told(self.catalog, self.identifier, binding.creation, parameters)

    def load_if_any(self) -> Table | None:
        """The table as it is now; None if it does not exist."""
        try:
            return self.load()
        except TableMissingError:
            return None

    def _exists(self) -> TableExistsError:
        return TableExistsError(
            f"This write is to create the table {self.identifier}, and there is one of that name in the catalog "
            f"{self.catalog.name!r}, which it did not make. Nothing was changed. Use mode='append' or 'overwrite' to write into "
            "it, another table name, or drop it. With create_if_missing=True, clear the stage, which stages its rows for the table "
            "that is there."
        )

    def _binding(self, metadata: TableMetadata) -> TableBinding:
        return TableBinding(
            format=NAME,
            identifier=self.identifier,
            uuid=str(metadata.table_uuid),
            branch=self.branch,
            schema_id=metadata.current_schema_id,
            spec_id=metadata.default_spec_id,
            schema_fingerprint=schema_fingerprint(metadata.schema()),
        )

    def load_bound(self, binding: TableBinding) -> Table:
        """The table as it is now, if it is still the one that was bound (I6); the table to be, if it is to be created.

        :raises TableExistsError: if it is to be created and somebody else created one of its name.
        :raises TableMissingError: if another table has its name now.
        """
        if binding.creation is None:
            table = self.load()
        else:
            table = self.load_if_any() or unborn(self.catalog, self.identifier, binding.creation)
        if str(table.metadata.table_uuid) != binding.uuid:
            if binding.creation is not None:
                raise self._exists()
            raise TableMissingError(
                f"The Iceberg table {self.identifier} was dropped and created anew since this checkpoint was begun: it was "
                f"{binding.uuid} and is {table.metadata.table_uuid}. Rows staged for the old table are not committed to the new "
                "one. Run the stage under another idempotence key."
            )
        return table
