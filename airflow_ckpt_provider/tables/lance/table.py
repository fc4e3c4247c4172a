"""A Lance dataset as this provider uses it: bound to its columns and to a version, written, committed once."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    NotSupportedYetError,
    RolledBackError,
    RowCountError,
)
from airflow_ckpt_provider.tables.fit import require_fit
from airflow_ckpt_provider.tables.lance.binding import MADE_BY, STORAGE_VERSION, NamedDataset, version_of
from airflow_ckpt_provider.tables.lance.commit import Commit, commit_once
from airflow_ckpt_provider.tables.lance.deletions import require_counted
from airflow_ckpt_provider.tables.lance.evolution import evolve
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.history import Search, find
from airflow_ckpt_provider.tables.lance.keys import require_unknown, require_unseen
from airflow_ckpt_provider.tables.lance.leftovers import delete, referenced, written_by
from airflow_ckpt_provider.tables.lance.looks import looks_again
from airflow_ckpt_provider.tables.lance.marks import mark_of, note, with_marks
from airflow_ckpt_provider.tables.lance.modes import mode_of
from airflow_ckpt_provider.tables.lance.operations import carrying
from airflow_ckpt_provider.tables.lance.own import require_own_files, require_own_records
from airflow_ckpt_provider.tables.lance.scan import DataFile, FileScan
from airflow_ckpt_provider.tables.lance.schema import (
    LEAVES_ONLY,
    created_as,
    file_fields,
)
from airflow_ckpt_provider.tables.lance.upsert.row_ids import ROW_IDS, ROW_IDS_SUFFIX
from airflow_ckpt_provider.tables.lance.upsert.sidecar import SIDECAR, Sidecar
from airflow_ckpt_provider.tables.lance.writer import WriterFacts
from airflow_ckpt_provider.tables.marks import marks_of, moves_mark, require_marks
from airflow_ckpt_provider.tables.missing import lacking
from airflow_ckpt_provider.tables.presence import Presence, gone_of
from airflow_ckpt_provider.tables.protocol import Base
from airflow_ckpt_provider.tables.sealed import own_files
from airflow_ckpt_provider.tables.summary import identity_of, key_trace, trace_of
from airflow_ckpt_provider.tables.together import adds_only, require_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, JsonObject, Plan, Staged, TableBinding
    from airflow_ckpt_provider.checkpoint.layout import OwnNames
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment
    from airflow_ckpt_provider.tables.lance.operations import Swap
    from airflow_ckpt_provider.tables.protocol import Landed, Sealed, StagedOf, Writer
    from airflow_ckpt_provider.tables.summary import Trace

_log = logging.getLogger(__name__)


class LanceTarget(NamedDataset):
    """A dataset that is written to; see ``Table``."""

    what_deletes = "Lance's clean-up of old versions deletes files that no version refers to once they are seven days old."

    # -- before anything is staged ----------------------------------------------------------------------------------------

    def validate(self, mode: str, parameters: JsonObject) -> None:
        """Refuse what cannot work before anything is read or recorded."""
        own = mode_of(mode, parameters)
        strange = sorted(parameters.keys() - own.takes)
        if strange:
            raise InvalidInputError(f"mode={mode!r} does not take {', '.join(strange)}.")
        version = parameters.get("storage_version", STORAGE_VERSION)
        if version not in LEAVES_ONLY:
            raise InvalidInputError(f"storage_version={version!r}: the versions are {', '.join(LEAVES_ONLY)}.")
        own.validate(None if mode == "create" else self.load())

    def evolve(self, rows: pa.Schema) -> list[str]:
        """Add the columns of ``rows`` that the dataset lacks; see ``Table.evolve``."""
        return evolve(self.load, self.identifier, rows)

    @looks_again
    def require_replaceable(self, landed: Sealed) -> None:
        """Check that what has landed is there as it was; see ``Table.require_replaceable``."""
        dataset = self.load_bound(landed.header.table)
        if dataset is not None:
            mode_of(landed.header.mode, landed.header.parameters).require_replaceable(self.files, dataset, landed)

    @looks_again
    def base(self, binding: TableBinding) -> Base:
        """The dataset as it is now; its history stands at its version."""
        dataset = self.load_bound(binding)
        return Base(0 if dataset is None else dataset.version, dataset)

    @looks_again
    def mark(self, reading: str, mode: str) -> JsonObject | None:
        """How far a task has read its source; see ``Table.mark``."""
        if mode == "create":
            raise NotSupportedYetError(
                "mode='create' with a source of since='last_commit' is not supported for Lance: there is no dataset yet in which "
                "it could be noted that the task has begun to read. Create the dataset first and use mode='append'."
            )
        return mark_of(self.load(), reading)

    @looks_again
    def check_fit(self, rows: pa.Schema, binding: TableBinding) -> None:
        """Refuse rows of this schema, listing every difference."""
        require_fit(rows, self._facts(binding).schema, self.identifier)

    def lacks(self, rows: pa.Schema, binding: TableBinding) -> list[str]:
        """Optional columns that these rows do not have; see ``Table.lacks``."""
        return lacking(rows, self._facts(binding).schema)

    def placing(self, header: Header) -> dict[str, str] | None:
        """None of a dataset's columns decides where a row goes; and a backfill writes no rows."""
        return {} if mode_of(header.mode, header.parameters).pins_columns else None

    def provisional(self, header: Header) -> bool:
        """Whether staged files depend on what the dataset holds."""
        return mode_of(header.mode, header.parameters).provisional

    def first(self, header: Header, plan: Plan, made: Callable[[], pa.Schema], replaced: Sealed | None) -> Plan:
        """The source's plan, with what the mode pins beside it; see ``Table.first``."""
        dataset = self.load_bound(header.table)
        return plan if dataset is None else mode_of(header.mode, header.parameters).first(dataset, plan, made, replaced)

    @looks_again
    def following(self, header: Header, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None) -> Plan | None:
        """The plan of the next round; see ``Table.following``."""
        mode = mode_of(header.mode, header.parameters)
        if not mode.provisional:
            return None
        dataset = self.load_bound(header.table)
        return None if dataset is None else mode.following(self.files, dataset, plans, staged, replaced)

    @looks_again
    def stands(self, header: Header, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None) -> bool:
        """Whether the own splits of the last plan still have to be done; see ``Table.stands``."""
        dataset = self.load_bound(header.table)
        mode = mode_of(header.mode, header.parameters)
        return dataset is None or mode.stands(self.files, dataset, plans, staged, replaced)

    @looks_again
    def writer(self, header: Header, plans: Sequence[Plan], staged: StagedOf) -> Writer:
        """Writer with the columns that the header pinned."""
        del staged
        mode = mode_of(header.mode, header.parameters)
        return mode.writer(self._facts(header.table, pinned=mode.pins_columns), plans)

    def gather(self, header: Header, manifests: Sequence[JsonObject], stem: Callable[[], str]) -> Sequence[JsonObject]:
        """One record of all fragments."""
        del header, stem
        found: dict[tuple[tuple[int, ...], str], list[StagedFragment]] = {}
        for own in map(StagedFragments.from_json, manifests):
            found.setdefault((own.fields, own.storage_version), []).extend(own.fragments)
        return [
            StagedFragments(fragments=tuple(fragments), fields=fields, storage_version=version).to_json()
            for (fields, version), fragments in sorted(found.items())
        ]

    def _facts(self, binding: TableBinding, *, pinned: bool = True) -> WriterFacts:
        return self._facts_of(self.load_bound(binding), binding, pinned=pinned)

    def _facts_of(self, dataset: LanceDataset | None, binding: TableBinding, *, pinned: bool = True) -> WriterFacts:
        import pyarrow as pa
        from lance.schema import LanceSchema

        if dataset is None and binding.creation is not None:
            schema, version = created_as(binding.creation)
            fields = file_fields(LanceSchema.from_pyarrow(schema))
            return WriterFacts(self.identifier, self.files, schema, tuple(fields), version)
        if dataset is None:
            raise self.missing(binding)
        schema, names = dataset.schema, None
        if pinned:
            self.require_columns(dataset, binding)
            # Columns that others have added since are in no file of this write, as in none that it staged before.
            names = [name for name, *_ in self.pinned_columns(binding)]
            schema = pa.schema([field for field in schema if field.name in names], schema.metadata)
        fields = file_fields(dataset.lance_schema, names)
        return WriterFacts(self.identifier, self.files, schema, tuple(fields), dataset.data_storage_version)

    # -- committing -------------------------------------------------------------------------------------------------------

    @looks_again
    def find(self, group: Group, headers: Sequence[Header]) -> Landed | None:
        """Look for the commit of ``group`` in the dataset's versions, which must be the commit of these."""
        dataset = self.load_bound(headers[0].table)
        return None if dataset is None else find(dataset, Search.of(group, identity_of(headers)))

    @looks_again
    def shows(self, landed: Sealed) -> bool:
        """Whether any file of a checkpoint is in the dataset now; see ``Table.shows``."""
        dataset = self.load_bound(landed.header.table)
        staged = mode_of(landed.header.mode, landed.header.parameters).landed(landed)
        return dataset is not None and not staged.isdisjoint(next(referenced(self.files, dataset)))

    @looks_again
    def require_unknown(self, headers: Sequence[Header], known: AbstractSet[Trace], base: Base | None = None) -> None:
        """Refuse keys that a checkpoint which is not known has committed; see ``Table.require_unknown``."""
        dataset = self.load_bound(headers[0].table) if base is None else base.table
        if dataset is None:
            return
        since = 0 if base is None else min(version_of(header.table) for header in headers)
        require_unknown(self.files, dataset, {key_trace(header.key): header.key for header in headers}, known, since)
        for header in headers if base is None else ():
            if trace_of(header) not in known:
                require_unseen(dataset, header)

    def landed_earlier(self, groups: Iterable[Group], headers: Sequence[Header], table: LanceDataset | None) -> str | None:
        """Id of the first of these groups whose rows are in the dataset; one that was rolled back has none there.

        :raises HistoryExpiredError: if the versions that could tell are gone (I10).
        """
        del headers
        if table is None:
            return None
        for group in groups:
            try:
                if find(table, Search.of(group)) is not None:
                    return group.id
            except RolledBackError:
                continue
        return None

    def require_together(self, headers: Sequence[Header]) -> None:
        """Refuse checkpoints that cannot land in one commit."""
        require_together(headers, self.identifier, mode_of)

    def adds_only(self, headers: Sequence[Header]) -> bool:
        """Whether commits of these would leave each other's rows where they are; see ``Table.adds_only``."""
        return adds_only(headers, mode_of)

    def changes_nothing(self, sealed: Sequence[Sealed]) -> bool:
        """Whether these add and remove nothing. A dataset is created even if it has no rows."""
        first = sealed[0].header
        if first.table.creation is not None or mode_of(first.mode, first.parameters).replaces:
            return False
        return not any(one.seal.rows or own_files(one.replaced) for one in sealed) and not moves_mark(sealed)

    def commit(
        self,
        group: Group,
        sealed: Sequence[Sealed],
        before_swap: Callable[[LanceDataset | None], None],
        base: Base | None = None,
    ) -> Landed:
        """Land all staged fragments of ``group`` in one version, once; see ``Table.commit``."""
        staged = [StagedFragments.from_json(manifest) for one in sealed for manifest in one.seal.manifests]
        rows, held = sum(one.seal.rows for one in sealed), sum(one.rows for one in staged)
        if rows != held:
            raise RowCountError(f"{rows} rows are sealed for {self.identifier}, but the staged fragments hold {held} (I2).")
        header = sealed[0].header
        mode, creation = mode_of(header.mode, header.parameters), header.table.creation

        def check(dataset: LanceDataset | None) -> None:
            for one in sealed:
                if dataset is not None and mode.pins_columns:
                    self.require_columns(dataset, one.header.table)
            if dataset is not None:
                require_marks(functools.partial(mark_of, dataset), sealed)
            if dataset is None or (creation is None and self.recognised(dataset, header.table) is None):
                # Whoever removed a dataset that stood here has removed its folder, and what was staged in it, just now or earlier.
                Presence(sealed, self).require()
            before_swap(dataset)

        def swap(dataset: LanceDataset | None) -> Swap:
            made = mode.swap(self.files, dataset, sealed, staged)
            return made if dataset is None or not marks_of(sealed) else carrying(dataset, made, with_marks(dataset, sealed))

        commit = Commit(
            group,
            identity_of([one.header for one in sealed]),
            swap,
            {MADE_BY: header.table.uuid} if creation is not None else {},
            stable_row_ids=bool(header.parameters.get("stable_row_ids")),
            note=lambda dataset: note(dataset, group, sealed),
        )
        load = functools.partial(self.load_bound, header.table)
        landed = commit_once(self.files, load, commit, check, None if base is None else (base.table,))
        if creation is not None and landed.landed_now and not rows:
            self._warn_of_version(created_as(creation)[1])
        return landed

    def _warn_of_version(self, wanted: str) -> None:
        """Lance takes the storage version of a new dataset from its files, and chooses one if there are none."""
        found = self.load().data_storage_version
        if found != wanted:
            _log.warning(
                "%s was created without rows, and so with the storage version %s instead of %s, which Lance takes from rows.",
                self.identifier, found, wanted,
            )  # fmt: skip

    @looks_again
    def leftovers(self, header: Header, names: OwnNames, landed: Sealed | None) -> list[StagedFile]:
        """Files of a generation that nothing refers to or needs; see ``Table.leftovers``."""
        dataset = self.load_bound(header.table)
        kept = set() if landed is None else mode_of(header.mode, header.parameters).landed(landed)
        found = {file.path: file for file in written_by(self.files, names) if file.path not in kept}
        for live in referenced(self.files, dataset) if dataset is not None and found else ():
            found = {path: file for path, file in found.items() if path not in live}
        return list(found.values())

    def remove(self, header: Header, files: Sequence[StagedFile]) -> None:
        """Delete leftovers; see ``Table.remove``."""
        del header
        delete(self.files, [file.path for file in files])

    def staged_files(self, sealed: Sequence[Sealed]) -> list[DataFile]:
        """The data files that a commit of these would add."""
        staged = [StagedFragments.from_json(manifest) for one in sealed for manifest in one.seal.manifests]
        return [DataFile(fragment.name, fragment.bytes) for one in staged for fragment in one.fragments]

    @looks_again
    def staged_scan(self, sealed: Sequence[Sealed], columns: Sequence[str] | None = None) -> FileScan:
        """What reads those files; see ``Table.staged_scan``."""
        header = sealed[0].header
        mode = mode_of(header.mode, header.parameters)
        schema = self._facts(header.table, pinned=mode.pins_columns).schema
        return FileScan(self.files, mode.staged_schema(schema, sealed), columns)

    def needed_to_commit(self, one: Sealed) -> list[StagedFile]:
        """Data and deletion files, sidecars and files with row ids; see ``Table.needed_to_commit``."""
        landed = mode_of(one.header.mode, one.header.parameters).landed(one)
        files = (file for record in one.staged for file in self.named_in(record))
        return [file for file in files if file.path in landed or file.path.endswith(ROW_IDS_SUFFIX)]

    def require_own_records(
        self, header: Header, names: OwnNames, plans: Sequence[Plan], staged: Sequence[Staged], replaced: Sealed | None
    ) -> None:
        """Refuse records that name files of others; see ``Table.require_own_records``."""
        require_own_records(self.identifier, header, names, plans, staged, replaced.names if replaced else None)

    def require_own_files(self, sealed: Sequence[Sealed], base: Base | None = None) -> None:
        """Refuse to land files of others; see ``Table.require_own_files``."""
        for one in sealed:
            mode = mode_of(one.header.mode, one.header.parameters)
            dataset = self.load_bound(one.header.table) if base is None else base.table
            facts = self._facts_of(dataset, one.header.table) if mode.pins_columns else None
            require_own_files(self.identifier, one, None if facts is None else facts.fields)
            if one.replaced is not None:
                self.require_own_records(
                    one.replaced.header, one.replaced.names, [one.replaced.plan], one.replaced.staged, one.replaced.replaced
                )

    def require_listed(self, sealed: Sequence[Sealed], base: Base | None = None) -> None:
        """Fragments are listed in the records themselves, and were looked at there; deletions are counted in their files."""
        del base
        scratch: list[Any] = [record.scratch for one in sealed for record in one.staged if record.scratch is not None]
        fragments = [one["fragment"] for one in scratch if "fragment" in one]
        require_counted(self.files, [(one["id"], one["deletion_file"]) for one in fragments])

    def staged_anew(self, header: Header, plans: Sequence[Plan], lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these splits are staged once more; see ``Table.staged_anew``."""
        return mode_of(header.mode, header.parameters).staged_anew(plans, lost)

    def named_in(self, record: Staged) -> list[StagedFile]:
        """Data and deletion files, the sidecar and the file with row ids; see ``Table.named_in``."""
        beside = [Sidecar.from_json(own) for name, own in (record.scratch or {}).items() if name in {SIDECAR, ROW_IDS}]
        return [*record.files, *(StagedFile(f"{self.files.uri}/{one.name}", one.bytes) for one in beside)]

    def lost(self, binding: TableBinding, files: Sequence[StagedFile], base: Base | None = None) -> list[StagedFile]:
        """Staged files that are gone or have another size (I5): Lance commits fragments whose files are gone."""
        del binding, base
        return gone_of(files, self.files.sizes([file.path for file in files]))
