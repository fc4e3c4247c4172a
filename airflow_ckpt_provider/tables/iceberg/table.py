"""An Iceberg table as this provider uses it: checked for what it must be, bound by UUID, written, committed once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.documents import TableBinding, fingerprint
from airflow_ckpt_provider.checkpoint.location import refuse_credentials
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    RetryableError,
    RolledBackError,
    RowCountError,
    SchemaMismatchError,
    StagedFileMissingError,
    TableMissingError,
    UnsupportedTableError,
)
from airflow_ckpt_provider.tables.iceberg.commit import Commit, commit_once, find
from airflow_ckpt_provider.tables.iceberg.fit import differences, require_fit, write_schema
from airflow_ckpt_provider.tables.iceberg.manifests import FORMAT_VERSION, StagedManifest
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Group, JsonObject, Seal, StagedFile
    from airflow_ckpt_provider.tables.protocol import Landed

#: Stored in the header and in references.
FORMAT = "iceberg"

#: Branch that commits land on.
MAIN = "main"


class IcebergTarget:
    """A table in a catalog.

    :param catalog: an open pyiceberg catalog.
    :param identifier: ``namespace.table``.
    :raises InvalidInputError: if the identifier is none.
    """

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        if "." not in identifier or not all(identifier.split(".")):
            raise InvalidInputError(f"table={identifier!r} is not of the form 'namespace.table'.")
        self.catalog = catalog
        self.identifier = identifier

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
                f"{type(error).__name__}: {error}"
            ) from error
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
        return table

    def binding(self) -> TableBinding:
        """Identity, schema and spec of the table as it is now."""
        metadata = self.load().metadata
        return TableBinding(
            format=FORMAT,
            identifier=self.identifier,
            uuid=str(metadata.table_uuid),
            branch=MAIN,
            schema_id=metadata.current_schema_id,
            spec_id=metadata.default_spec_id,
            schema_fingerprint=_schema_fingerprint(metadata.schema()),
        )

    def horizon(self) -> int:
        """The table's last sequence number."""
        return self.load().metadata.last_sequence_number  # type: ignore[union-attr]  # version 1 is refused on loading

    def check_fit(self, schema: pa.Schema) -> None:
        """Refuse rows of ``schema``, listing every difference."""
        own = self.load().metadata.schema()
        want = write_schema(own)
        names = {w.name: o.name for w, o in zip(want, own.fields, strict=True)}
        require_fit(schema, want, self.identifier, names)

    def writer(self, binding: TableBinding) -> IcebergWriter:
        """Writer with the schema and spec that ``binding`` pinned."""
        table = self.load_bound(binding)
        metadata = table.metadata
        spec = metadata.specs().get(binding.spec_id)
        if spec is None:
            raise SchemaMismatchError(
                f"The partition spec {binding.spec_id} that this checkpoint was begun with was removed from the metadata of "
                f'{self.identifier} since. Redo the write with the configuration {{"checkpoint": "restart"}}.'
            )
        return IcebergWriter(
            self.identifier,
            metadata.location,
            _pinned_schema(table, binding),
            spec,
            dict(metadata.properties),
            {name: str(value) for name, value in table.io.properties.items() if value is not None},
        )

    def load_bound(self, binding: TableBinding) -> Table:
        """The table as it is now, if it is still the one that was bound (I6).

        :raises TableMissingError: if another table has its name now.
        """
        table = self.load()
        if str(table.metadata.table_uuid) != binding.uuid:
            raise TableMissingError(
                f"The Iceberg table {self.identifier} was dropped and created anew since this checkpoint was begun: it was "
                f"{binding.uuid} and is {table.metadata.table_uuid}. Rows staged for the old table are not committed to the new "
                "one. Run the stage under another idempotence key."
            )
        return table

    def find(self, group: Group, binding: TableBinding, seals: Sequence[Seal] = ()) -> Landed | None:
        """Look for the commit of ``group`` in the table's history; with ``seals``, it must be the commit of those."""
        manifests = [StagedManifest.from_json(manifest) for seal in seals for manifest in seal.manifests]
        return find(self.load_bound(binding), Commit(group, binding.branch, manifests))

    def landed_earlier(self, groups: Iterable[Group], branch: str, table: Table) -> str | None:
        """Id of the first of these groups whose rows are in the table; one that was rolled back has none there.

        :raises HistoryExpiredError: if the history that could tell is gone (I10).
        """
        for group in groups:
            with contextlib.suppress(RolledBackError):
                if find(table, Commit(group, branch, ())) is not None:
                    return group.id
        return None

    def commit(self, group: Group, binding: TableBinding, seals: Sequence[Seal], before_swap: Callable[[Table], None]) -> Landed:
        """Land all staged manifests of ``group`` in one snapshot, once.

        :param before_swap: last checks of the caller on the very base that the swap is made on; raises to stop.
        """
        manifests = [StagedManifest.from_json(manifest) for seal in seals for manifest in seal.manifests]
        sealed, staged = sum(seal.rows for seal in seals), sum(manifest.rows for manifest in manifests)
        if sealed != staged:
            raise RowCountError(f"{sealed} rows are sealed for {self.identifier}, but the staged manifests hold {staged} (I2).")

        def check(table: Table) -> None:
            _require_specs(table, manifests)
            _require_evolved_safely(table, binding)
            before_swap(table)

        commit = Commit(group, binding.branch, manifests)
        return commit_once(self.catalog, lambda: self.load_bound(binding), commit, check)

    def require_files(self, files: Sequence[StagedFile], manifests: Sequence[JsonObject]) -> None:
        """Check that staged files and manifests exist in the size they had (I5).

        :raises StagedFileMissingError: naming what is gone.
        """
        own = [StagedManifest.from_json(manifest) for manifest in manifests]
        wanted = [(file.path, file.bytes) for file in files] + [(manifest.path, manifest.length) for manifest in own]
        sizes = _sizes(self.load().io, [path for path, _ in wanted])
        bad = [path for (path, size), found in zip(wanted, sizes, strict=True) if found != size]
        if bad:
            raise StagedFileMissingError(
                f"{len(bad)} of {len(wanted)} staged files of {self.identifier} are gone or damaged, for instance {bad[0]}. "
                "Nothing was committed. Something deletes files that no snapshot references yet, such as an orphan clean-up with "
                'too short a retention. Stop it, then redo the write with the configuration {"checkpoint": "restart"}.'
            )


def _sizes(io: Any, paths: list[str]) -> list[int | None]:  # noqa: ANN401 - any pyiceberg FileIO
    """Sizes of files, None for those that are not there; in one call for each file system where Arrow has one."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        inputs = [io.new_input(path) for path in paths]
        return [len(one) if one.exists() else None for one in inputs]
    sizes: list[int | None] = [None] * len(paths)
    places: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        scheme, _, rest = path.rpartition("://")
        places.setdefault(f"{scheme}://{rest.partition('/')[0]}", []).append(index)
    for indexes in places.values():
        # All paths of one place are parsed alike: what is cut off the first is cut off all, which saves most of the time.
        first = paths[indexes[0]]
        scheme, netloc, plain = io.parse_location(first)
        cut = len(first) - len(plain)
        same = first.endswith(plain)
        names = [paths[index][cut:] if same else io.parse_location(paths[index])[2] for index in indexes]
        for index, info in zip(indexes, io.fs_by_scheme(scheme, netloc).get_file_info(names), strict=True):
            sizes[index] = info.size if info.is_file else None
    return sizes


def _pinned_schema(table: Table, binding: TableBinding) -> Schema:
    schema = table.schemas().get(binding.schema_id)
    if schema is None or _schema_fingerprint(schema) != binding.schema_fingerprint:
        raise TableMissingError(
            f"The schema {binding.schema_id} that this checkpoint was begun with is no longer in the metadata of "
            f"{binding.identifier}. Redo the write with the configuration "
            '{"checkpoint": "restart"}.'
        )
    return schema


def _require_specs(table: Table, manifests: Sequence[StagedManifest]) -> None:
    """Refuse to commit manifests of a partition spec that the table does not know any more: no engine could read it then."""
    gone = {manifest.spec_id for manifest in manifests} - table.specs().keys()
    if gone:
        raise SchemaMismatchError(
            f"The partition spec {min(gone)} that the rows were staged with was removed from the metadata of "
            f'{".".join(table.name())} since. Redo the write with the configuration {{"checkpoint": "restart"}}.'
        )


def _require_evolved_safely(table: Table, binding: TableBinding) -> None:
    """Refuse to commit files whose rows do not fit the table's schema any more."""
    import pyarrow as pa

    if table.metadata.current_schema_id == binding.schema_id:
        return
    now = table.metadata.schema()
    pinned = _pinned_schema(table, binding)
    names = {field.field_id: field.name for field in now.fields}
    # Files carry field ids, so a renamed column still fits and a dropped one is not read.
    kept = [
        arrow.with_name(names[field.field_id])
        for arrow, field in zip(write_schema(pinned), pinned.fields, strict=True)
        if field.field_id in names
    ]
    own = {arrow.name: field.name for arrow, field in zip(write_schema(now), now.fields, strict=True)}
    lines = differences(pa.schema(kept), write_schema(now), own)
    if lines:
        raise SchemaMismatchError(
            f"The schema of {binding.identifier} changed since the rows were staged, so that they do not fit any more:\n  "
            + "\n  ".join(lines)
            + '\nRedo the write with the configuration {"checkpoint": "restart"}.'
        )


def _schema_fingerprint(schema: Schema) -> str:
    facts: JsonObject = msgspec.json.decode(schema.model_dump_json())
    return fingerprint({"fields": facts["fields"]})
