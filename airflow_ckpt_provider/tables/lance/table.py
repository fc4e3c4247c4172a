"""A Lance dataset as this provider uses it: bound to its columns and to a version, written, committed once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    NotSupportedYetError,
)
from airflow_ckpt_provider.tables.fit import require_fit
from airflow_ckpt_provider.tables.lance.binding import STORAGE_VERSION, NamedDataset
from airflow_ckpt_provider.tables.lance.evolution import evolve
from airflow_ckpt_provider.tables.lance.footers import require_rows
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.looks import looks_again
from airflow_ckpt_provider.tables.lance.marks import mark_of
from airflow_ckpt_provider.tables.lance.modes import mode_of
from airflow_ckpt_provider.tables.lance.orphans import delete, of_generation, referenced, written
from airflow_ckpt_provider.tables.lance.own import require_own_records
from airflow_ckpt_provider.tables.lance.scan import DataFile, FileScan
from airflow_ckpt_provider.tables.lance.schema import (
    LEAVES_ONLY,
)
from airflow_ckpt_provider.tables.lance.state import LanceState, stale, writer_facts
from airflow_ckpt_provider.tables.lance.upsert.row_ids import ROW_IDS, ROW_IDS_SUFFIX
from airflow_ckpt_provider.tables.lance.upsert.sidecar import SIDECAR, Sidecar
from airflow_ckpt_provider.tables.marks import moves_mark
from airflow_ckpt_provider.tables.missing import lacking
from airflow_ckpt_provider.tables.together import adds_only, require_together
from airflow_ckpt_provider.tables.written_files import WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Plan, Staged, TableBinding
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts
    from airflow_ckpt_provider.tables.protocol import Writer

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
    def require_replaceable(self, landed: SealedWrite) -> None:
        """Check that what has landed is there as it was; see ``Table.require_replaceable``."""
        dataset = self.load_bound(landed.header.table)
        if dataset is not None:
            mode_of(landed.header.mode, landed.header.parameters).require_replaceable(self.files, dataset, landed)

    def state(self, binding: TableBinding) -> LanceState:
        """The dataset as it is now; see ``Table.state``."""
        try:
            return LanceState(self, self.load_bound(binding), binding)
        except (OSError, ValueError) as error:
            raise stale(self.identifier, error) from error

    def refusal(self, error: Exception) -> str | None:
        """None: there is no catalog that refuses; see ``Table.refusal``."""
        del error
        return None

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

    def first(self, write: StagedWrite, plan: Plan, made: Callable[[], pa.Schema]) -> Plan:
        """The source's plan, with what the mode pins beside it; see ``Table.first``."""
        header = write.header
        dataset = self.load_bound(header.table)
        return plan if dataset is None else mode_of(header.mode, header.parameters).first(dataset, write, plan, made)

    @looks_again
    def plan(self, write: StagedWrite) -> Plan:
        """What the write consists of now; see ``Table.plan``."""
        header = write.header
        mode = mode_of(header.mode, header.parameters)
        dataset = self.load_bound(header.table) if mode.provisional else None
        return write.plan if dataset is None else mode.plan(self.files, dataset, write)

    @looks_again
    def writer(self, write: StagedWrite) -> Writer:
        """Writer with the columns that the header pinned."""
        header = write.header
        mode = mode_of(header.mode, header.parameters)
        return mode.writer(self._facts(header.table, pinned=mode.pins_columns), write)

    def writes_manifests(self, manifests: Sequence[JsonObject]) -> bool:
        """No: fragments are listed in the seal; see ``Table.writes_manifests``."""
        del manifests
        return False

    def merged_manifests(self, write: StagedWrite, manifests: Sequence[JsonObject], stem: str) -> Sequence[JsonObject]:
        """One record of all fragments."""
        del stem
        if not write.is_vouched_for:
            require_rows(self.files, manifests, write.header)
        found: dict[tuple[tuple[int, ...], str], list[StagedFragment]] = {}
        for own in map(StagedFragments.from_json, manifests):
            found.setdefault((own.fields, own.storage_version), []).extend(own.fragments)
        return [
            StagedFragments(fragments=tuple(fragments), fields=fields, storage_version=version).to_json()
            for (fields, version), fragments in sorted(found.items())
        ]

    def _facts(self, binding: TableBinding, *, pinned: bool = True) -> WriterFacts:
        return writer_facts(self, self.load_bound(binding), binding, pinned=pinned)

    # -- committing -------------------------------------------------------------------------------------------------------

    def require_together(self, headers: Sequence[Header]) -> None:
        """Refuse checkpoints that cannot land in one commit."""
        require_together(headers, self.identifier, mode_of)

    def adds_only(self, headers: Sequence[Header]) -> bool:
        """Whether commits of these would leave each other's rows where they are; see ``Table.adds_only``."""
        return adds_only(headers, mode_of)

    def changes_nothing(self, sealed: Sequence[SealedWrite]) -> bool:
        """Whether these add and remove nothing. A dataset is created even if it has no rows."""
        first = sealed[0].header
        if first.table.creation is not None or mode_of(first.mode, first.parameters).replaces:
            return False
        return not any(one.seal.rows or one.replaced_files for one in sealed) and not moves_mark(sealed)

    def written(self, binding: TableBinding) -> WrittenFiles:
        """List what attempts have written into the dataset's folder; see ``Table.written``."""
        del binding
        return WrittenFiles(written(self.files))

    @looks_again
    def orphans(self, write: StagedWrite, landed: SealedWrite | None, listed: WrittenFiles) -> list[StagedFile]:
        """Files of a generation that nothing refers to or needs; see ``Table.orphans``."""
        header = write.header
        dataset = self.load_bound(header.table)
        kept = set() if landed is None else mode_of(header.mode, header.parameters).landed(landed)
        found = {file.path: file for file in of_generation(listed, write.names) if file.path not in kept}
        for live in referenced(self.files, dataset) if dataset is not None and found else ():
            found = {path: file for path, file in found.items() if path not in live}
        return list(found.values())

    def remove(self, header: Header, files: Sequence[StagedFile]) -> None:
        """Delete orphans; see ``Table.remove``."""
        del header
        delete(self.files, [file.path for file in files])

    def staged_files(self, sealed: Sequence[SealedWrite]) -> list[DataFile]:
        """The data files that a commit of these would add."""
        staged = [StagedFragments.from_json(manifest) for one in sealed for manifest in one.seal.manifests]
        return [DataFile(fragment.name, fragment.bytes) for one in staged for fragment in one.fragments]

    @looks_again
    def staged_scan(self, sealed: Sequence[SealedWrite], columns: Sequence[str] | None = None) -> FileScan:
        """What reads those files; see ``Table.staged_scan``."""
        header = sealed[0].header
        mode = mode_of(header.mode, header.parameters)
        schema = self._facts(header.table, pinned=mode.pins_columns).schema
        return FileScan(self.files, mode.staged_schema(schema, sealed), columns)

    def needed_to_commit(self, one: SealedWrite) -> list[StagedFile]:
        """Data and deletion files, sidecars and files with row ids; see ``Table.needed_to_commit``."""
        landed = mode_of(one.header.mode, one.header.parameters).landed(one)
        files = (file for record in one.staged for file in self.named_in(record))
        return [file for file in files if file.path in landed or file.path.endswith(ROW_IDS_SUFFIX)]

    def require_own_records(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records that name files of others; see ``Table.require_own_records``."""
        earlier = write.replaced.names if write.replaced is not None else None
        require_own_records(self.identifier, write.header, write.names, write.plans, records, earlier)

    def staged_anew(self, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these splits are staged once more; see ``Table.staged_anew``."""
        return mode_of(write.header.mode, write.header.parameters).staged_anew(write, lost)

    def named_in(self, record: Staged) -> list[StagedFile]:
        """Data and deletion files, the sidecar and the file with row ids; see ``Table.named_in``."""
        beside = [Sidecar.from_json(own) for name, own in (record.scratch or {}).items() if name in {SIDECAR, ROW_IDS}]
        return [*record.files, *(StagedFile(f"{self.files.uri}/{one.name}", one.bytes) for one in beside)]
