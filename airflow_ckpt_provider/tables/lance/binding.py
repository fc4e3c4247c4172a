"""Which dataset a URI names: how it is loaded, what a checkpoint is bound to, and whether it is still what was bound (I6)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.bounds import Count
from airflow_ckpt_provider.checkpoint.documents import TableBinding, part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    SchemaMismatchError,
    TableExistsError,
    TableMissingError,
    UnsupportedTableError,
)
from airflow_ckpt_provider.scan.lance import dataset_uri, made_at, open_dataset
from airflow_ckpt_provider.tables.format import MAIN
from airflow_ckpt_provider.tables.lance.evolution import changes, unaddable
from airflow_ckpt_provider.tables.lance.files import DatasetFiles
from airflow_ckpt_provider.tables.lance.lineage import is_in_lineage, latest_version
from airflow_ckpt_provider.tables.lance.looks import ListedMeanwhileError, looks_again
from airflow_ckpt_provider.tables.lance.schema import (
    LEAVES_ONLY,
    STORAGE_VERSION,
    created_as,
    creation_of,
    facts_of,
    fingerprint,
    read_facts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

#: Of the format, as headers and references have it.
NAME = "lance"

#: Property of the transaction that makes a dataset: which binding it was made by.
MADE_BY = "airflow.checkpoint.dataset"


class NamedDataset:
    """A dataset at a URI.

    :param uri: local path or object storage, such as ``s3://bucket/vectors.lance``.
    :param options: storage options, with credentials.
    :raises InvalidInputError: if the URI is none, or carries credentials.
    """

    format = NAME
    branch = MAIN

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self.identifier = dataset_uri(uri)
        self.files = DatasetFiles(self.identifier, options or {})

    def load(self) -> LanceDataset:
        """The dataset as it is now.

        :raises TableMissingError: if it does not exist.
        :raises UnsupportedTableError: if its files are of a format that cannot be written from here.
        """
        dataset = open_dataset(self.identifier, self.files.options)
        if dataset is None:
            raise TableMissingError(
                f"There is no Lance dataset at {self.identifier}. Write it with mode='create' first, set "
                "create_if_missing=True to have it created with the first rows, or check the URI and the connection."
            )
        version = dataset.data_storage_version
        if version not in LEAVES_ONLY:
            raise UnsupportedTableError(
                f"The Lance dataset {self.identifier} has files of the storage version {version}; written are "
                f"{', '.join(LEAVES_ONLY)}. Copy it into a dataset of one of those."
            )
        return dataset

    def load_if_any(self) -> LanceDataset | None:
        """The dataset as it is now; None if it does not exist."""
        try:
            return self.load()
        except TableMissingError:
            return None

    @looks_again
    def binding(self) -> TableBinding:
        """Columns and version of the dataset as it is now."""
        dataset = self.load()
        return TableBinding(
            format=NAME,
            identifier=self.identifier,
            uuid="",
            branch=MAIN,
            schema_id=0,
            spec_id=0,
            schema_fingerprint=fingerprint(dataset.lance_schema),
            base={
                "version": dataset.version,
                "committed_at": made_at(dataset).isoformat(),
                "columns": facts_of(dataset.lance_schema),
            },
        )

    def creation(self, rows: pa.Schema, parameters: JsonObject) -> TableBinding:
        """Columns of a dataset to be; see ``Table.creation``."""
        from lance.schema import LanceSchema

        if self.load_if_any() is not None:
            raise self._exists()
        version = str(parameters.get("storage_version") or STORAGE_VERSION)
        lines = unaddable(rows, version)
        if lines:
            raise SchemaMismatchError(
                f"The rows cannot be in a Lance dataset, {self.identifier}, of the storage version {version}:\n  "
                + "\n  ".join(lines)
                + "\nChange the transform, or the storage_version."
            )
        return TableBinding(
            format=NAME,
            identifier=self.identifier,
            uuid=uuid.uuid4().hex,
            branch=MAIN,
            schema_id=0,
            spec_id=0,
            schema_fingerprint=fingerprint(LanceSchema.from_pyarrow(rows)),
            creation=creation_of(rows, version),
        )

    def require_creation(self, binding: TableBinding, parameters: JsonObject | None) -> None:
        """Check what a header says of a dataset to be; see ``Table.require_creation``."""
        if binding.creation is None:
            return
        _, version = created_as(binding.creation)
        told = version if parameters is None else str(parameters.get("storage_version") or STORAGE_VERSION)
        if version not in LEAVES_ONLY or version != told:
            raise CorruptObjectError(
                f"The checkpoint store says that the Lance dataset {self.identifier} is to be created with files of the storage "
                f"version {version!r}, and the DAG says {told!r}. The store was altered; nothing was changed. Redo the write under "
                "another idempotence key."
            )

    def _exists(self) -> TableExistsError:
        return TableExistsError(
            f"This write is to create the Lance dataset {self.identifier}, and there is one, which it did not make. Nothing was "
            "changed. Use mode='append' or 'overwrite' to write into it, another URI, or remove it. With create_if_missing=True, "
            "clear the stage, which stages its rows for the dataset that is there."
        )

    def load_bound(self, binding: TableBinding) -> LanceDataset | None:
        """The dataset as it is now, if it is still the one that was bound (I6); None if it is to be created.

        :raises TableExistsError: if it is to be created and somebody else created one.
        :raises TableMissingError: if it was removed, or made anew, since.
        """
        dataset = self.load_if_any()
        if binding.creation is not None:
            if dataset is not None and not self._made_by(dataset, binding):
                raise self._exists()
            return dataset
        if dataset is None or self.recognised(dataset, binding) is False:
            raise self.missing(binding)
        return dataset

    def _made_by(self, dataset: LanceDataset, binding: TableBinding) -> bool:
        """Whether the first version is of the binding's own making; True if that was cleaned up, and the search has to tell."""
        try:
            first = dataset.read_transaction(1)
        except OSError:
            return True
        made = first is not None and (first.transaction_properties or {}).get(MADE_BY) == binding.uuid
        return made and is_in_lineage(1, dataset) is not False

    def recognised(self, dataset: LanceDataset, binding: TableBinding) -> bool | None:
        """Whether this is the dataset that was bound; None if the version that could tell was cleaned up."""
        bound: Any = binding.base or {}
        version = version_of(binding)
        if dataset.version < version <= latest_version(dataset):
            raise ListedMeanwhileError(f"Version {dataset.version} of {dataset.uri} was listed as the latest.")
        if dataset.version < version:
            return False
        try:
            then = dataset if dataset.version == version else dataset.checkout_version(version)
        except (OSError, ValueError):
            return None
        if made_at(then).isoformat() == str(bound.get("committed_at")):
            return True
        # The number may have been given again, below the latest version, once the version that was bound was cleaned up.
        return False if is_in_lineage(then.version, dataset) else None

    def missing(self, binding: TableBinding) -> TableMissingError:
        bound: Any = binding.base or {}
        return TableMissingError(
            f"The Lance dataset {self.identifier} that this checkpoint was begun with, at version {bound.get('version')} of "
            f"{bound.get('committed_at')}, is gone, or was made anew since. Rows staged for it are not committed to another one. "
            "Run the stage under another idempotence key."
        )

    def require_columns(self, dataset: LanceDataset, binding: TableBinding) -> None:
        """Check that staged rows still fit; columns that are new must not bother them.

        :raises SchemaMismatchError: listing every difference.
        """
        if fingerprint(dataset.lance_schema) == binding.schema_fingerprint:
            return
        lines = changes(self.pinned_columns(binding), dataset.lance_schema)
        if lines:
            raise SchemaMismatchError(
                f"The columns of the Lance dataset {self.identifier} were changed since this checkpoint was begun, so that the "
                "staged rows do not fit any more:\n  "
                + "\n  ".join(lines)
                + f"\nNothing was committed. Redo the write: {how_to_restart()}."
            )

    def pinned_columns(self, binding: TableBinding) -> list[Any]:
        """The columns that a checkpoint was begun with; see ``facts_of``."""
        from lance.schema import LanceSchema

        if binding.creation is not None:
            return facts_of(LanceSchema.from_pyarrow(created_as(binding.creation)[0]))
        return read_facts((binding.base or {}).get("columns"), "table.base.columns of the header")


def version_of(binding: TableBinding) -> int:
    """The version of the dataset that a checkpoint was begun at; 0 if it is to create it."""
    if not binding.base:
        return 0
    return part_of(binding.base.get("version"), Count, "table.base.version of the header")
