"""An Iceberg table as this provider uses it: checked for what it must be, bound by UUID, written, committed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile, part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    SchemaMismatchError,
    TableMovedError,
)
from airflow_ckpt_provider.scan.iceberg import IcebergScan, ScanFile
from airflow_ckpt_provider.tables.fit import require_fit
from airflow_ckpt_provider.tables.iceberg.binding import NamedTable
from airflow_ckpt_provider.tables.iceberg.creation import CREATION
from airflow_ckpt_provider.tables.iceberg.evolution import (
    evolve,
    pinned_schema,
)
from airflow_ckpt_provider.tables.iceberg.fit import write_schema
from airflow_ckpt_provider.tables.iceberg.history import MAIN
from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest, merge, worth_merging
from airflow_ckpt_provider.tables.iceberg.marks import mark_of
from airflow_ckpt_provider.tables.iceberg.modes import mode_of
from airflow_ckpt_provider.tables.iceberg.orphans import name_of, referenced, written
from airflow_ckpt_provider.tables.iceberg.own import require_own_records
from airflow_ckpt_provider.tables.iceberg.refusals import refusal
from airflow_ckpt_provider.tables.iceberg.state import IcebergState, not_replaceable
from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts, delete_files
from airflow_ckpt_provider.tables.marks import moves_mark
from airflow_ckpt_provider.tables.missing import lacking
from airflow_ckpt_provider.tables.together import adds_only, require_together
from airflow_ckpt_provider.tables.written_files import WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Plan, Staged, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.protocol import Writer


class IcebergTarget(NamedTable):
    """A table that is written to; see ``Table``."""

    what_deletes = (
        "Something deletes files that no snapshot references yet, such as an orphan clean-up with too short a retention: stop it."
    )

    def validate(self, mode: str, parameters: JsonObject) -> None:
        """Refuse what cannot work before anything is read or recorded."""
        own = mode_of(mode, parameters)
        strange = sorted(parameters.keys() - own.takes - (CREATION if mode == "create" else frozenset()))
        if strange:
            raise InvalidInputError(f"mode={mode!r} does not take {', '.join(strange)}.")
        if mode != "create":
            own.validate(self.load())
        elif self.branch != MAIN:
            raise InvalidInputError(f"mode='create' begins a table on its branch {MAIN!r}, not on {self.branch!r}.")

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Let the table's schema grow so that ``rows`` fit; see ``Table.evolve``."""
        return evolve(self.load, self.identifier, rows)

    def require_replaceable(self, landed: SealedWrite) -> None:
        """Check that what has landed is there as it was; see ``Table.require_replaceable``."""
        try:
            mode_of(landed.header.mode, landed.header.parameters).require_replaceable(self.load_bound(landed.header.table), landed)
        except TableMovedError as error:
            raise not_replaceable(landed.header, error) from error

    def state(self, binding: TableBinding) -> IcebergState:
        """The table as it is now; see ``Table.state``."""
        return IcebergState(self.catalog, self.load_bound(binding), binding.branch)

    def refusal(self, error: Exception) -> str | None:
        """What helps with an answer of the catalog; see ``Table.refusal``."""
        return refusal(error)

    def mark(self, reading: str, mode: str) -> JsonObject | None:
        """How far a task has read its source; see ``Table.mark``."""
        return None if mode == "create" else mark_of(self.load().metadata, reading, self.branch)

    def check_fit(self, rows: pa.Schema, binding: TableBinding) -> None:
        """Refuse rows of this schema, listing every difference."""
        own = pinned_schema(self.lately_bound(binding), binding)
        want = write_schema(own)
        names = {w.name: o.name for w, o in zip(want, own.fields, strict=True)}
        require_fit(rows, want, self.identifier, names)

    def lacks(self, rows: pa.Schema, binding: TableBinding) -> list[str]:
        """Optional columns that these rows do not have; see ``Table.lacks``."""
        import pyarrow as pa

        own = pinned_schema(self.lately_bound(binding), binding)
        return lacking(rows, pa.schema([w.with_name(o.name) for w, o in zip(write_schema(own), own.fields, strict=True)]))

    def placing(self, header: Header) -> dict[str, str]:
        """Source columns of the partition spec that the header pinned, and of the sort order."""
        table = self.lately_bound(header.table)
        schema, spec = pinned_schema(table, header.table), table.specs().get(header.table.spec_id)
        sorting = {term.source_id: "sort column" for term in table.sort_order().fields}
        terms = sorting | {term.source_id: "partition column" for term in (spec.fields if spec is not None else ())}
        names = {field_id: schema.find_column_name(field_id) for field_id in terms}
        return {name: terms[field_id] for field_id, name in names.items() if name is not None}

    def provisional(self, header: Header) -> bool:
        """Whether staged files depend on files of the table."""
        return mode_of(header.mode, header.parameters).provisional

    def first(self, write: StagedWrite, plan: Plan, made: Callable[[], pa.Schema]) -> Plan:
        """The source's plan: the table pins everything in the header."""
        del write, made
        return plan

    def plan(self, write: StagedWrite) -> Plan:
        """What the write consists of now; see ``Table.plan``."""
        header = write.header
        mode = mode_of(header.mode, header.parameters)
        return mode.plan(self.load_bound(header.table), write) if mode.provisional else write.plan

    def writer(self, write: StagedWrite) -> Writer:
        """Writer with the schema and spec that the header pinned."""
        header = write.header
        table = self.load_bound(header.table)
        metadata = table.metadata
        spec = metadata.specs().get(header.table.spec_id)
        if spec is None:
            raise SchemaMismatchError(
                f"The partition spec {header.table.spec_id} that this checkpoint was begun with was removed from the metadata of "
                f"{self.identifier} since. Redo the write: {how_to_restart(header)}."
            )
        facts = WriterFacts(
            self.identifier,
            metadata.location,
            pinned_schema(table, header.table),
            spec,
            dict(metadata.properties),
            {name: str(value) for name, value in table.io.properties.items() if value is not None},
        )
        return mode_of(header.mode, header.parameters).writer(facts, table, write)

    def writes_manifests(self, manifests: Sequence[JsonObject]) -> bool:
        """Whether there are so many tiny manifests that they are merged; see ``Table.writes_manifests``."""
        return worth_merging([StagedManifest.from_json(manifest) for manifest in manifests])

    def merged_manifests(self, write: StagedWrite, manifests: Sequence[JsonObject], stem: str) -> Sequence[JsonObject]:
        """Merge tiny manifests; see ``Table.merged_manifests``."""
        if not self.writes_manifests(manifests):
            return manifests
        own = [StagedManifest.from_json(manifest) for manifest in manifests]
        table = self.load_bound(write.header.table)
        places = table.location_provider()
        merged = merge(table.io, own, lambda number: places.new_metadata_location(f"{stem}-{number:05d}.avro"))
        return [manifest.to_json() for manifest in merged]

    def require_together(self, headers: Sequence[Header]) -> None:
        """Refuse checkpoints that cannot land in one commit."""
        require_together(headers, self.identifier, mode_of)

    def adds_only(self, headers: Sequence[Header]) -> bool:
        """Whether commits of these would leave each other's rows where they are; see ``Table.adds_only``."""
        return adds_only(headers, mode_of)

    def changes_nothing(self, sealed: Sequence[SealedWrite]) -> bool:
        """Whether these add and remove nothing. A table is created even if it has no rows, and a mark is carried on."""
        first = sealed[0].header
        if first.table.creation is not None or mode_of(first.mode, first.parameters).replaces or moves_mark(sealed):
            return False
        return not any(one.seal.rows or one.replaced_files or any(record.replaces for record in one.staged) for one in sealed)

    def written(self, binding: TableBinding) -> WrittenFiles:
        """List what attempts have written below the table's location; see ``Table.written``."""
        return WrittenFiles(written(self.load_bound(binding)))

    def orphans(self, write: StagedWrite, landed: SealedWrite | None, listed: WrittenFiles) -> list[StagedFile]:
        """Files of a generation that nothing refers to or needs; see ``Table.orphans``."""
        table = self.load_bound(write.header.table)
        kept: set[str] = set()
        if landed is not None:
            kept |= {name_of(file.path) for record in landed.staged for file in record.files}
            kept |= {name_of(StagedManifest.from_json(manifest).path) for manifest in landed.seal.manifests}
        names = write.names
        own = listed.of((names.key_hash, names.generation))
        found = [file for file in own if name_of(file.path) in names and name_of(file.path) not in kept]
        live = referenced(table, {name_of(file.path) for file in found})
        return [file for file in found if name_of(file.path) not in live]

    def remove(self, header: Header, files: Sequence[StagedFile]) -> None:
        """Delete orphans; see ``Table.remove``."""
        delete_files(self.load_bound(header.table).io, [file.path for file in files])

    def staged_files(self, sealed: Sequence[SealedWrite]) -> list[ScanFile]:
        """The data files that a commit of these would add."""
        return [file for one in sealed for file in _scan_files(one)]

    def staged_scan(self, sealed: Sequence[SealedWrite], columns: Sequence[str] | None = None) -> IcebergScan:
        """What reads those files; see ``Table.staged_scan``."""
        # Each may have pinned a schema of its own; the newest has the columns of all.
        binding = max((one.header.table for one in sealed), key=lambda binding: binding.schema_id)
        table = self.load_bound(binding)
        pinned_schema(table, binding)
        return IcebergScan(table, binding.schema_id, columns)

    def named_in(self, record: Staged) -> list[StagedFile]:
        """Data files, their manifest, and the scratch file or sidecar; see ``Table.named_in``."""
        manifest = None if record.manifest is None else StagedManifest.from_json(record.manifest)
        listed = [] if manifest is None else [StagedFile(manifest.path, manifest.length)]
        kept = [] if record.scratch is None else [part_of([record.scratch.get("path"), record.scratch.get("bytes")], StagedFile)]
        return [*record.files, *listed, *kept]

    def require_own_records(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records that name files of others; see ``Table.require_own_records``."""
        header = write.header
        require_own_records(self.lately_bound(header.table).metadata, header, write.names, write.plans, records)

    def staged_anew(self, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these splits are staged once more; see ``Table.staged_anew``."""
        return mode_of(write.header.mode, write.header.parameters).staged_anew(write, lost)

    def needed_to_commit(self, one: SealedWrite) -> list[StagedFile]:
        """Data files, and the manifests that list them; see ``Table.needed_to_commit``."""
        manifests = [StagedManifest.from_json(manifest) for manifest in one.seal.manifests]
        listed = [StagedFile(manifest.path, manifest.length) for manifest in manifests]
        return [*(file for record in one.staged for file in record.files), *listed]


def _scan_files(one: SealedWrite) -> Iterator[ScanFile]:
    for record in one.staged:
        for file in record.files:
            # The record counts the rows of all its files; the share of each only sizes the batches.
            rows = max(1, record.rows * file.bytes // max(record.bytes, 1))
            yield ScanFile(path=file.path, bytes=file.bytes, rows=rows, spec_id=one.header.table.spec_id)
