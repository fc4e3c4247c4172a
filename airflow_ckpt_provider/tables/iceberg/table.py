"""An Iceberg table as this provider uses it: checked for what it must be, bound by UUID, written, committed once."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Member, StagedFile, part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    RolledBackError,
    RowCountError,
    SchemaMismatchError,
    TableMovedError,
)
from airflow_ckpt_provider.scan.iceberg import IcebergScan, ScanFile
from airflow_ckpt_provider.scan.sizes import file_sizes
from airflow_ckpt_provider.tables.fit import require_fit
from airflow_ckpt_provider.tables.iceberg.binding import NamedTable
from airflow_ckpt_provider.tables.iceberg.commit import Commit, commit_once, find, head_of, require_unknown
from airflow_ckpt_provider.tables.iceberg.creation import CREATION
from airflow_ckpt_provider.tables.iceberg.evolution import (
    evolve,
    pinned_schema,
    require_evolved_safely,
    require_specs,
)
from airflow_ckpt_provider.tables.iceberg.fit import write_schema
from airflow_ckpt_provider.tables.iceberg.guards import require_unread
from airflow_ckpt_provider.tables.iceberg.history import MAIN
from airflow_ckpt_provider.tables.iceberg.landing import head_id
from airflow_ckpt_provider.tables.iceberg.leftovers import name_of, referenced, written_by
from airflow_ckpt_provider.tables.iceberg.manifests import StagedManifest
from airflow_ckpt_provider.tables.iceberg.marks import mark_of
from airflow_ckpt_provider.tables.iceberg.merging import merge, worth_merging
from airflow_ckpt_provider.tables.iceberg.modes import mode_of
from airflow_ckpt_provider.tables.iceberg.own import require_listed, require_own_files, require_own_records
from airflow_ckpt_provider.tables.iceberg.remains import remain
from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts, delete_files
from airflow_ckpt_provider.tables.marks import marks_of, moves_mark, require_marks
from airflow_ckpt_provider.tables.missing import lacking
from airflow_ckpt_provider.tables.presence import gone_of
from airflow_ckpt_provider.tables.protocol import Base
from airflow_ckpt_provider.tables.sealed import own_files
from airflow_ckpt_provider.tables.summary import identity_of, key_trace
from airflow_ckpt_provider.tables.together import adds_only, require_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, JsonObject, Plan, Staged, TableBinding
    from airflow_ckpt_provider.checkpoint.layout import OwnNames
    from airflow_ckpt_provider.tables.iceberg.cover import Removal
    from airflow_ckpt_provider.tables.protocol import Landed, Sealed, StagedOf, Writer
    from airflow_ckpt_provider.tables.summary import Trace


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

    def require_replaceable(self, landed: Sealed) -> None:
        """Check that what has landed is there as it was; see ``Table.require_replaceable``."""
        try:
            mode_of(landed.header.mode, landed.header.parameters).require_replaceable(self.load_bound(landed.header.table), landed)
        except TableMovedError as error:
            raise _not_replaceable(landed.header, error) from error

    def base(self, binding: TableBinding) -> Base:
        """The table as it is now; its history stands at its last sequence number."""
        table = self.load_bound(binding)
        return Base(table.metadata.last_sequence_number, table)  # type: ignore[union-attr]  # version 1 is refused on loading

    def mark(self, reading: str, mode: str) -> JsonObject | None:
        """How far a task has read its source; see ``Table.mark``."""
        return None if mode == "create" else mark_of(self.load().metadata, reading, self.branch)

    def check_fit(self, rows: pa.Schema, binding: TableBinding) -> None:
        """Refuse rows of this schema, listing every difference."""
        own = pinned_schema(self.load_bound(binding), binding)
        want = write_schema(own)
        names = {w.name: o.name for w, o in zip(want, own.fields, strict=True)}
        require_fit(rows, want, self.identifier, names)

    def lacks(self, rows: pa.Schema, binding: TableBinding) -> list[str]:
        """Optional columns that these rows do not have; see ``Table.lacks``."""
        import pyarrow as pa

        own = pinned_schema(self.load_bound(binding), binding)
        return lacking(rows, pa.schema([w.with_name(o.name) for w, o in zip(write_schema(own), own.fields, strict=True)]))

    def placing(self, header: Header) -> dict[str, str]:
        """Source columns of the partition spec that the header pinned, and of the sort order."""
        table = self.load_bound(header.table)
        schema, spec = pinned_schema(table, header.table), table.specs().get(header.table.spec_id)
        sorting = {term.source_id: "sort column" for term in table.sort_order().fields}
        terms = sorting | {term.source_id: "partition column" for term in (spec.fields if spec is not None else ())}
        names = {field_id: schema.find_column_name(field_id) for field_id in terms}
        return {name: terms[field_id] for field_id, name in names.items() if name is not None}

    def provisional(self, header: Header) -> bool:
        """Whether staged files depend on files of the table."""
        return mode_of(header.mode, header.parameters).provisional

    def first(self, header: Header, plan: Plan, made: Callable[[], pa.Schema], replaced: Sealed | None) -> Plan:
        """The source's plan: the table pins everything in the header."""
        del header, made, replaced
        return plan

    def following(self, header: Header, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None) -> Plan | None:
        """The plan of the next round; see ``Table.following``."""
        mode = mode_of(header.mode, header.parameters)
        if not mode.provisional:
            return None
        table = self.load_bound(header.table)
        return mode.following(table, header, head_id(table, header.table.branch), plans, staged, replaced)

    def stands(self, header: Header, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None) -> bool:
        """Whether the own splits of the last plan still have to be done; see ``Table.stands``."""
        table = self.load_bound(header.table)
        head = head_id(table, header.table.branch)
        return mode_of(header.mode, header.parameters).stands(table, header, head, plans, staged, replaced)

    def writer(self, header: Header, plans: Sequence[Plan], staged: StagedOf) -> Writer:
        """Writer with the schema and spec that the header pinned."""
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
        return mode_of(header.mode, header.parameters).writer(facts, table, plans, staged)

    def gather(self, header: Header, manifests: Sequence[JsonObject], stem: Callable[[], str]) -> Sequence[JsonObject]:
        """Merge tiny manifests; see ``Table.gather``."""
        own = [StagedManifest.from_json(manifest) for manifest in manifests]
        if not worth_merging(own):
            return manifests
        table = self.load_bound(header.table)
        start = stem()
        places = table.location_provider()
        merged = merge(table.io, own, lambda number: places.new_metadata_location(f"{start}-{number:05d}.avro"))
        return [manifest.to_json() for manifest in merged]

    def find(self, group: Group, headers: Sequence[Header]) -> Landed | None:
        """Look for the commit of ``group`` in the table's history, which must be the commit of these."""
        binding = headers[0].table
        return find(self.load_bound(binding), Commit(group, binding.branch, identity_of(headers)))

    def shows(self, landed: Sealed) -> bool:
        """Whether any file of a checkpoint is in the table now; see ``Table.shows``."""
        table, header = self.load_bound(landed.header.table), landed.header
        member = Member(key=header.key, generation=header.generation)
        return remain(table, head_of(table.metadata, header.table.branch), [member])

    def require_unknown(self, headers: Sequence[Header], known: AbstractSet[Trace], base: Base | None = None) -> None:
        """Refuse keys that a checkpoint which is not known has committed; see ``Table.require_unknown``."""
        table = self.load_bound(headers[0].table) if base is None else base.table
        require_unknown(table, headers[0].table.branch, {key_trace(header.key): header.key for header in headers}, known)

    def landed_earlier(self, groups: Iterable[Group], headers: Sequence[Header], table: Table) -> str | None:
        """Id of the first of these groups whose rows are in the table; one that was rolled back has none there.

        :raises HistoryExpiredError: if the history that could tell is gone (I10).
        """
        for group in groups:
            with contextlib.suppress(RolledBackError):
                if find(table, Commit(group, headers[0].table.branch, None)) is not None:
                    return group.id
        return None

    def require_together(self, headers: Sequence[Header]) -> None:
        """Refuse checkpoints that cannot land in one commit."""
        require_together(headers, self.identifier, mode_of)

    def adds_only(self, headers: Sequence[Header]) -> bool:
        """Whether commits of these would leave each other's rows where they are; see ``Table.adds_only``."""
        return adds_only(headers, mode_of)

    def changes_nothing(self, sealed: Sequence[Sealed]) -> bool:
        """Whether these add and remove nothing. A table is created even if it has no rows, and a mark is carried on."""
        first = sealed[0].header
        if first.table.creation is not None or mode_of(first.mode, first.parameters).replaces or moves_mark(sealed):
            return False
        return not any(one.seal.rows or own_files(one.replaced) or any(record.replaces for record in one.staged) for one in sealed)

    def commit(
        self, group: Group, sealed: Sequence[Sealed], before_swap: Callable[[Table], None], base: Base | None = None
    ) -> Landed:
        """Land all staged manifests of ``group`` in one snapshot, once.

        :param before_swap: last checks of the caller on the very base that the swap is made on; raises to stop.
        :param base: what the first swap is made on, if it was loaded.
        """
        manifests = [StagedManifest.from_json(manifest) for one in sealed for manifest in one.seal.manifests]
        rows, staged = sum(one.seal.rows for one in sealed), sum(manifest.rows for manifest in manifests)
        if rows != staged:
            raise RowCountError(f"{rows} rows are sealed for {self.identifier}, but the staged manifests hold {staged} (I2).")
        header = sealed[0].header
        mode = mode_of(header.mode, header.parameters)

        def check(table: Table) -> None:
            require_specs(table, manifests)
            require_evolved_safely(table, header.table)
            require_marks(lambda reading: mark_of(table.metadata, reading, header.table.branch), sealed)
            before_swap(table)

        def removals(table: Table) -> Sequence[Removal]:
            found = mode.removals(table, sealed)
            require_unread(table, sealed, found)
            return found

        commit = Commit(
            group, header.table.branch, identity_of([one.header for one in sealed]), manifests,
            removals, marks_of(sealed),
        )  # fmt: skip
        try:
            load = functools.partial(self.load_bound, header.table)
            return commit_once(self.catalog, load, self.identifier, commit, check, base.table if base else None)
        except TableMovedError as error:
            again = [one.replaced.header for one in sealed if one.replaced is not None and own_files(one.replaced)]
            if not again:
                raise
            raise _not_replaceable(again[0], error) from error

    def leftovers(self, header: Header, names: OwnNames, landed: Sealed | None) -> list[StagedFile]:
        """Files of a generation that nothing refers to or needs; see ``Table.leftovers``."""
        table = self.load_bound(header.table)
        kept: set[str] = set()
        if landed is not None:
            kept |= {name_of(file.path) for record in landed.staged for file in record.files}
            kept |= {name_of(StagedManifest.from_json(manifest).path) for manifest in landed.seal.manifests}
        found = [file for file in written_by(table, names) if name_of(file.path) not in kept]
        live = referenced(table, {name_of(file.path) for file in found})
        return [file for file in found if name_of(file.path) not in live]

    def remove(self, header: Header, files: Sequence[StagedFile]) -> None:
        """Delete leftovers; see ``Table.remove``."""
        delete_files(self.load_bound(header.table).io, [file.path for file in files])

    def staged_files(self, sealed: Sequence[Sealed]) -> list[ScanFile]:
        """The data files that a commit of these would add."""
        return [file for one in sealed for file in _scan_files(one)]

    def staged_scan(self, sealed: Sequence[Sealed], columns: Sequence[str] | None = None) -> IcebergScan:
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

    def require_own_records(
        self, header: Header, names: OwnNames, plans: Sequence[Plan], staged: Sequence[Staged], replaced: Sealed | None
    ) -> None:
        """Refuse records that name files of others; see ``Table.require_own_records``."""
        del replaced
        require_own_records(self.load_bound(header.table).metadata, header, names, plans, staged)

    def require_own_files(self, sealed: Sequence[Sealed], base: Base | None = None) -> None:
        """Refuse to land files of others; see ``Table.require_own_files``."""
        table = base.table if base else self.load_bound(sealed[0].header.table)
        for one in sealed:
            require_own_files(table.metadata, one)
            if one.replaced is not None:
                again = one.replaced
                require_own_records(table.metadata, again.header, again.names, [again.plan], again.staged)

    def require_listed(self, sealed: Sequence[Sealed], base: Base | None = None) -> None:
        """Refuse manifests that list other files than were staged; see ``Table.require_listed``."""
        table = base.table if base else self.load_bound(sealed[0].header.table)
        for one in sealed:
            require_listed(table.metadata, table.io, one)

    def staged_anew(self, header: Header, plans: Sequence[Plan], lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these splits are staged once more; see ``Table.staged_anew``."""
        return mode_of(header.mode, header.parameters).staged_anew(plans, lost)

    def needed_to_commit(self, one: Sealed) -> list[StagedFile]:
        """Data files, and the manifests that list them; see ``Table.needed_to_commit``."""
        manifests = [StagedManifest.from_json(manifest) for manifest in one.seal.manifests]
        listed = [StagedFile(manifest.path, manifest.length) for manifest in manifests]
        return [*(file for record in one.staged for file in record.files), *listed]

    def lost(self, binding: TableBinding, files: Sequence[StagedFile], base: Base | None = None) -> list[StagedFile]:
        """Staged files that are gone or have another size (I5); see ``Table.lost``."""
        table = base.table if base else self.load_bound(binding)
        return gone_of(files, file_sizes(table.io, [file.path for file in files]))


def _not_replaceable(landed: Header, error: TableMovedError) -> TableMovedError:
    return TableMovedError(
        f"The key {landed.key!r} is to replace the files that its generation {landed.generation} committed to "
        f"{landed.table.identifier}, and that cannot be done file by file: {error} If others have taken or changed those files, "
        "another run of the stage does not bring them back: replace the rows under another idempotence key."
    )


def _scan_files(one: Sealed) -> Iterator[ScanFile]:
    for record in one.staged:
        for file in record.files:
            # The record counts the rows of all its files; the share of each only sizes the batches.
            rows = max(1, record.rows * file.bytes // max(record.bytes, 1))
            yield ScanFile(path=file.path, bytes=file.bytes, rows=rows, spec_id=one.header.table.spec_id)
