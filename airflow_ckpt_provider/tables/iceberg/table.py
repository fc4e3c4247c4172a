"""An Iceberg table as this provider uses it: checked for what it must be, bound by UUID, written, committed once."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import StagedFile, TableBinding
from airflow_ckpt_provider.checkpoint.location import refuse_credentials
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    RetryableError,
    RolledBackError,
    RowCountError,
    SchemaMismatchError,
    TableExistsError,
    TableMissingError,
    TableMovedError,
    UnsupportedTableError,
    first_line,
)
from airflow_ckpt_provider.scan.iceberg import IcebergScan, ScanFile
from airflow_ckpt_provider.scan.sizes import file_sizes
from airflow_ckpt_provider.tables.fit import require_fit
from airflow_ckpt_provider.tables.iceberg.commit import Commit, commit_once, find
from airflow_ckpt_provider.tables.iceberg.creation import CREATION, new_table, pinned, unborn
from airflow_ckpt_provider.tables.iceberg.evolution import (
    evolve,
    pinned_schema,
    require_evolved_safely,
    require_specs,
    schema_fingerprint,
)
from airflow_ckpt_provider.tables.iceberg.fit import write_schema
from airflow_ckpt_provider.tables.iceberg.history import MAIN
from airflow_ckpt_provider.tables.iceberg.landing import head_id, require_unread
from airflow_ckpt_provider.tables.iceberg.manifests import FORMAT_VERSION, StagedManifest
from airflow_ckpt_provider.tables.iceberg.marks import mark_of, marks_of, moves_mark, require_marks
from airflow_ckpt_provider.tables.iceberg.merging import merge, worth_merging
from airflow_ckpt_provider.tables.iceberg.modes import mode_of
from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts
from airflow_ckpt_provider.tables.presence import require_found
from airflow_ckpt_provider.tables.protocol import Base
from airflow_ckpt_provider.tables.sealed import own_files
from airflow_ckpt_provider.tables.summary import identity_of
from airflow_ckpt_provider.tables.together import adds_only, require_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, JsonObject, Plan
    from airflow_ckpt_provider.tables.iceberg.cover import Removal
    from airflow_ckpt_provider.tables.protocol import Landed, Sealed, StagedOf, Writer

#: Stored in the header and in references.
FORMAT = "iceberg"

#: What an error says of staged files that are gone.
_WHAT_DELETES = (
    "Something deletes files that no snapshot references yet, such as an orphan clean-up with too short a retention. Stop it, then"
)


class IcebergTarget:
    """A table in a catalog.

    :param catalog: an open pyiceberg catalog.
    :param identifier: ``namespace.table``.
    :param branch: branch that commits land on; one that does not exist begins where the main branch is.
    :raises InvalidInputError: if the identifier is none.
    """

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
                f"The Iceberg table {self.identifier} does not exist in the catalog {self.catalog.name!r}. Create it first, or "
                "check the name and the Iceberg connection."
            ) from error
        except Exception as error:
            raise RetryableError(
                f"The Iceberg table {self.identifier} could not be loaded from the catalog {self.catalog.name!r}: "
                f"{type(error).__name__}: {first_line(error)}"
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
        refuse_credentials(table.metadata.location)
        if self.branch in table.metadata.refs and table.metadata.refs[self.branch].snapshot_ref_type != "branch":
            raise InvalidInputError(f"branch={self.branch!r} is a tag of the table {self.identifier}, which no commit moves.")
        if self.branch != MAIN and not table.metadata.refs:
            raise InvalidInputError(
                f"branch={self.branch!r}: the table {self.identifier} has no snapshot yet, and Iceberg lets a table begin on its "
                f"branch {MAIN!r} only. Commit something there first."
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

    def binding(self) -> TableBinding:
        """Identity, schema and spec of the table as it is now."""
        return self._binding(self.load().metadata)

    def creation(self, rows: pa.Schema, parameters: JsonObject) -> TableBinding:
        """Identity, schema and spec of a table to be; see ``Table.creation``."""
        if self._load_if_any() is not None:
            raise self._exists()
        table = new_table(self.catalog, self.identifier, rows, parameters)
        self._require_writable(table)
        return msgspec.structs.replace(self._binding(table.metadata), creation=pinned(table.metadata))

    def require_creatable(self, binding: TableBinding) -> None:
        """Check that nobody else created the table; see ``Table.require_creatable``."""
        table = self._load_if_any()
        if table is not None and str(table.metadata.table_uuid) != binding.uuid:
            raise self._exists()

    def _load_if_any(self) -> Table | None:
        try:
            return self.load()
        except TableMissingError:
            return None

    def _exists(self) -> TableExistsError:
        return TableExistsError(
            f"mode='create' makes the table {self.identifier}, and there is one of that name in the catalog {self.catalog.name!r}, "
            "which this write did not make. Nothing was changed. Use mode='append' or 'overwrite' to write into it, another "
            "table name, or drop it."
        )

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Let the table's schema grow so that ``rows`` fit; see ``Table.evolve``."""
        return evolve(self.load, rows)

    def _binding(self, metadata: TableMetadata) -> TableBinding:
        return TableBinding(
            format=FORMAT,
            identifier=self.identifier,
            uuid=str(metadata.table_uuid),
            branch=self.branch,
            schema_id=metadata.current_schema_id,
            spec_id=metadata.default_spec_id,
            schema_fingerprint=schema_fingerprint(metadata.schema()),
        )

    def base(self, binding: TableBinding) -> Base:
        """The table as it is now; its history stands at its last sequence number."""
        table = self.load_bound(binding)
        return Base(table.metadata.last_sequence_number, table)  # type: ignore[union-attr]  # version 1 is refused on loading

    def mark(self, stream: str) -> JsonObject | None:
        """How far the stream's last commit has read its source; see ``Table.mark``."""
        return mark_of(self.load().metadata, stream, self.branch)

    def check_fit(self, rows: pa.Schema, binding: TableBinding) -> None:
        """Refuse rows of this schema, listing every difference."""
        own = pinned_schema(self.load_bound(binding), binding)
        want = write_schema(own)
        names = {w.name: o.name for w, o in zip(want, own.fields, strict=True)}
        require_fit(rows, want, self.identifier, names)

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

    def writer(self, header: Header, plans: Sequence[Plan], staged: StagedOf) -> Writer:
        """Writer with the schema and spec that the header pinned."""
        table = self.load_bound(header.table)
        metadata = table.metadata
        spec = metadata.specs().get(header.table.spec_id)
        if spec is None:
            raise SchemaMismatchError(
                f"The partition spec {header.table.spec_id} that this checkpoint was begun with was removed from the metadata of "
                f'{self.identifier} since. Redo the write with the configuration {{"checkpoint": "restart"}}.'
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

    def load_bound(self, binding: TableBinding) -> Table:
        """The table as it is now, if it is still the one that was bound (I6); the table to be, if it is to be created.

        :raises TableExistsError: if it is to be created and somebody else created one of its name.
        :raises TableMissingError: if another table has its name now.
        """
        if binding.creation is None:
            table = self.load()
        else:
            table = self._load_if_any() or unborn(self.catalog, self.identifier, binding.creation)
        if str(table.metadata.table_uuid) != binding.uuid:
            if binding.creation is not None:
                raise self._exists()
            raise TableMissingError(
                f"The Iceberg table {self.identifier} was dropped and created anew since this checkpoint was begun: it was "
                f"{binding.uuid} and is {table.metadata.table_uuid}. Rows staged for the old table are not committed to the new "
                "one. Run the stage under another idempotence key."
            )
        return table

    def find(self, group: Group, headers: Sequence[Header]) -> Landed | None:
        """Look for the commit of ``group`` in the table's history; with the headers of all, it must be the commit of those."""
        binding = headers[0].table
        identity = identity_of(headers) if len(headers) == len(group.members) else None
        return find(self.load_bound(binding), Commit(group, binding.branch, identity))

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
            require_marks(table.metadata, sealed)
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
            again = [one.header for one in sealed if own_files(one.replaced)]
            if not again:
                raise
            raise TableMovedError(
                f"The key {again[0].key!r} is to replace the files that its generation {again[0].replaces} committed to "
                f"{self.identifier}, and that cannot be done file by file: {error} If compaction or another write has taken "
                "those files, another run of the stage does not bring them back: replace the rows under another idempotence key."
            ) from error

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

    def records(self, manifests: Sequence[JsonObject]) -> list[StagedFile]:
        """The manifests, as files."""
        own = [StagedManifest.from_json(manifest) for manifest in manifests]
        return [StagedFile(manifest.path, manifest.length) for manifest in own]

    def require_files(self, binding: TableBinding, files: Sequence[StagedFile], base: Base | None = None) -> None:
        """Check that staged files exist in the size they had (I5); see ``Table.require_files``."""
        table = base.table if base else self.load_bound(binding)
        sizes = file_sizes(table.io, [file.path for file in files])
        require_found(files, sizes, self.identifier, _WHAT_DELETES)


def _scan_files(one: Sealed) -> Iterator[ScanFile]:
    for record in one.staged:
        for file in record.files:
            # The record counts the rows of all its files; the share of each only sizes the batches.
            rows = max(1, record.rows * file.bytes // max(record.bytes, 1))
            yield ScanFile(path=file.path, bytes=file.bytes, rows=rows, spec_id=one.header.table.spec_id)
