"""Manifests: written by executors, remembered as JSON, referenced by the commit's manifest list.

A staged manifest leaves snapshot id and sequence numbers empty. Version 2 of the Iceberg table spec lets both be
inherited from the manifest list ("Sequence Number Inheritance"), which is what makes a manifest that was written before its
snapshot exists valid, and why version 1 tables are refused.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Part, fingerprint, part_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import TableVersion

    from airflow_ckpt_provider.checkpoint.documents import JsonObject


#: Iceberg's format version of everything that is written here.
FORMAT_VERSION = 2

#: Entry of the header of a manifest's Avro file; see ``StagedManifest.facts``.
FACTS_ENTRY = "airflow.checkpoint.facts"


class FieldSummary(Part, frozen=True, array_like=True):
    """Bounds of one partition field over a manifest; the bounds are Iceberg's bytes in base64."""

    contains_null: bool
    contains_nan: bool | None
    lower: str | None
    upper: str | None


class StagedManifest(Part, frozen=True, kw_only=True):
    """A manifest that no snapshot references yet, with what a manifest list and a summary need to know of it.

    :param files: number of data files; ``rows`` and ``bytes`` are theirs.
    :param partitions: paths of the partitions that the files belong to; empty for an unpartitioned table.
    """

    path: str
    length: int
    spec_id: int
    files: int
    rows: int
    bytes: int
    summaries: tuple[FieldSummary, ...]
    partitions: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """As stored in a staged record."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: JsonObject) -> StagedManifest:
        """As read from a staged record or seal."""
        return part_of(value, cls)

    @property
    def facts(self) -> str:
        """SHA-256 of what it says of its files, as the manifest itself has it under ``FACTS_ENTRY`` (I15).

        A manifest list and a summary repeat that: readers leave out a manifest whose counts or bounds say that it has nothing for
        them, so that rows would be gone if the checkpoint store could say something else.
        """
        facts = [self.spec_id, self.files, self.rows, self.bytes, self.summaries, self.partitions]
        return fingerprint(facts)


def write_manifest(
    io: FileIO, path: str, files: Sequence[DataFile], schema: Schema, spec: PartitionSpec, codec: str
) -> StagedManifest:
    """Write the manifest of one split; ``files`` must not be empty."""
    from pyiceberg.manifest import (
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        construct_partition_summaries,
        data_file_with_partition,
        manifest_entry_schema_with_data_file,
    )
    from pyiceberg.transforms import VoidTransform
    from pyiceberg.types import StructType

    staged = StagedManifest(
        path=path,
        length=0,
        spec_id=spec.spec_id,
        files=len(files),
        rows=sum(file.record_count for file in files),
        bytes=sum(file.file_size_in_bytes for file in files),
        summaries=tuple(
            FieldSummary(field.contains_null, field.contains_nan, _text(field.lower_bound), _text(field.upper_bound))
            for field in construct_partition_summaries(spec, schema, [file.partition for file in files])
        ),
        partitions=tuple(sorted({spec.partition_to_path(file.partition, schema) for file in files})) if spec.fields else (),
    )

    class Writer(ManifestWriterV2):
        def _with_partition(self, format_version: TableVersion) -> Schema:
            # The library requires a value where the column is required. That of a field that was dropped is null all the same.
            dropped = {field.field_id for field in self._spec.fields if isinstance(field.transform, VoidTransform)}
            fields = (
                field.model_copy(update={"required": field.required and field.field_id not in dropped})
                for field in self._spec.partition_type(self._schema).fields
            )
            partition = data_file_with_partition(StructType(*fields), format_version)
            return manifest_entry_schema_with_data_file(format_version, partition)

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, FACTS_ENTRY: staged.facts}

    with Writer(spec, schema, io.new_output(path), None, codec) as writer:  # type: ignore[arg-type]
        for file in files:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=None,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
            )
    return msgspec.structs.replace(staged, length=writer.to_manifest_file().manifest_length)


def to_manifest_file(staged: StagedManifest, snapshot_id: int) -> ManifestFile:
    """Entry of a manifest list: sequence numbers are assigned when it is written."""
    from pyiceberg.manifest import UNASSIGNED_SEQ, ManifestContent, ManifestFile, PartitionFieldSummary

    return ManifestFile.from_args(
        manifest_path=staged.path,
        manifest_length=staged.length,
        partition_spec_id=staged.spec_id,
        content=ManifestContent.DATA,
        sequence_number=UNASSIGNED_SEQ,
        min_sequence_number=UNASSIGNED_SEQ,
        added_snapshot_id=snapshot_id,
        added_files_count=staged.files,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=staged.rows,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[
            PartitionFieldSummary(field.contains_null, field.contains_nan, _bytes(field.lower), _bytes(field.upper))
            for field in staged.summaries
        ],
        key_metadata=None,
    )


def _text(bound: bytes | None) -> str | None:
    return None if bound is None else base64.b64encode(bound).decode()


def _bytes(bound: str | None) -> bytes | None:
    return None if bound is None else base64.b64decode(bound)
