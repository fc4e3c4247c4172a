"""Facts for OpenLineage, gathered while a task runs, if anybody listens.

Decision: OpenLineage's listener asks a task what it has done in a child that it forks once the task is done. There the store and
Lance do not answer any more: their threads stay behind in the parent. So everything is gathered before, and what is asked then
reads nothing. That costs a stage or commit one more load of its table, and one of an Iceberg table that it reads: only where the
provider of OpenLineage is installed and has somewhere to send events to.

A task never fails because of this: what cannot be gathered is not told, and the log says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import rows_folder
from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.exceptions import first_line
from airflow_ckpt_provider.hooks.sources import source_options
from airflow_ckpt_provider.operators.lineage.names import dataset_name, folder_of, name_in_catalog
from airflow_ckpt_provider.sources.frame_transform import FrameTransform
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.storage import Place
from airflow_ckpt_provider.write.looks import look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Seal
    from airflow_ckpt_provider.operators.lineage.names import DatasetName
    from airflow_ckpt_provider.sources import Source
    from airflow_ckpt_provider.spark.checks.run import Outcome
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from airflow_ckpt_provider.write.groups import Settled
    from airflow_ckpt_provider.write.stage_log import Log

#: Partitions of a commit that are told; of more, none are, because some of them would be taken for all.
_PARTITIONS = 1000

#: The mode whose commit replaces whole partitions.
_BY_PARTITION = "overwrite_partitions"


class Written(NamedTuple):
    """What has landed."""

    rows: int
    bytes: int
    files: int


class DatasetFacts(NamedTuple):
    """What is told of a dataset.

    :param alias: its name in a catalog.
    :param table_format: empty for files.
    :param version: snapshot or version that was read, or that has landed.
    :param columns: None if nothing is to be told of them.
    :param written: what this very task has landed; None if it was nothing.
    :param partitions: those that were replaced, as ``day=2026-01-01/region=eu``.
    """

    name: DatasetName
    alias: DatasetName | None = None
    table_format: str = ""
    version: str = ""
    columns: pa.Schema | None = None
    written: Written | None = None
    partitions: Sequence[str] = ()


class CheckFacts(NamedTuple):
    """What a check of the staged rows has found.

    :param kind: ``sql`` or ``function``.
    """

    name: str
    kind: str
    passed: bool


class Lineage:
    """What one execution of a task has read, landed and checked.

    :param log: of the task.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._is_asked = True
        self._gather("anything", self._ask)
        self.inputs: list[DatasetFacts] = []
        self.outputs: list[DatasetFacts] = []
        self.checks: list[CheckFacts] = []
        self._was_sealed = False

    def reads(self, attempt: WriteAttempt) -> None:
        """Gather what a stage reads, before it is read."""
        self._gather("what is read", lambda: self._reads(attempt))

    def staged(self, attempt: WriteAttempt, seal: Seal) -> None:
        """Gather which version was read, and which table the rows are staged for. Rows for the next task have landed by that."""
        self._gather("which version was read", lambda: self._pinned(attempt))
        self._gather("the table", lambda: self.outputs.append(_staged_for(attempt, None if self._was_sealed else seal)))

    def committed(self, table: Table, settled: Sequence[Settled]) -> None:
        """Gather what has landed."""
        members = [member for member in settled if member.commit.commit_id is not None]
        if members:
            self._gather("what has landed", lambda: self.outputs.append(_landed(table, members)))

    def checked(self, outcome: Outcome) -> None:
        """Note what a check has found; nothing of one that could not say."""
        if outcome.passed is None:
            return
        test, kind = outcome.check.test, "sql" if isinstance(outcome.check.test, str) else "function"
        text = " ".join(test.split()) if isinstance(test, str) else str(getattr(test, "__name__", kind))
        self.checks.append(CheckFacts(outcome.check.name or text, kind, outcome.passed))

    def _ask(self) -> None:
        # A configuration that cannot be read is one of nobody.
        self._is_asked = False
        self._is_asked = _is_asked()

    def _reads(self, attempt: WriteAttempt) -> None:
        self.inputs.extend(_inputs(_inner(attempt.source), attempt.checkpoint.store.uri))
        self._was_sealed = attempt.checkpoint.newest_seal() is not None

    def _pinned(self, attempt: WriteAttempt) -> None:
        plan = attempt.checkpoint.plan()
        version = None if plan is None else _version_read(attempt.source, plan)
        if version is not None and len(self.inputs) == 1:
            self.inputs = [self.inputs[0]._replace(version=version)]

    def _gather(self, what: str, gather: Callable[[], None]) -> None:
        if not self._is_asked:
            return
        try:
            gather()
        except Exception as error:  # noqa: BLE001 - whatever it is, the rows are staged, or have landed, all the same
            self._log.warning("OpenLineage is not told %s: %s", what, without_credentials(first_line(error)))


def _is_asked() -> bool:
    """Whether OpenLineage's provider is installed, and has somewhere to send events to."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()


def _inner(source: Source) -> Any:  # noqa: ANN401 - a source of any kind
    """What is read in the end, of a source that makes something else of another one."""
    while isinstance(source, FrameTransform | GroupedRows):
        source = source.read
    return source


def _inputs(source: Any, store_uri: str) -> Iterator[DatasetFacts]:  # noqa: ANN401 - a source of any kind
    """The datasets that a source reads, as far as they have names: those of files, tables and rows of an earlier stage."""
    said: dict[str, Any] = source.describe()
    for name in ("files", "lance"):
        if name in said:
            yield DatasetFacts(dataset_name(folder_of(said[name])), table_format="lance" if name == "lance" else "")
    for read in said.get("staged", ()):
        yield DatasetFacts(dataset_name(rows_folder(store_uri, IdempotenceKey(read["key"]).hash)))
    if "iceberg" in said:
        from airflow_ckpt_provider.sources.iceberg.pinning import open_table

        table = open_table(said["iceberg"], source_options(source))
        place = Place.in_catalog(table.metadata.location, table.catalog.properties)
        yield DatasetFacts(dataset_name(place.uri), name_in_catalog(place, said["iceberg"]), "iceberg")


def _version_read(source: Source, plan: Plan) -> str | None:
    """The snapshot or version that a plan has pinned of a table; None of anything else."""
    while isinstance(source, FrameTransform | GroupedRows):
        plan, source = source.plan_read(plan), source.read
    pinned = next((plan.source[name] for name in ("snapshot_id", "version") if name in plan.source), None)
    return None if pinned is None else str(pinned)


def _staged_for(attempt: WriteAttempt, seal: Seal | None) -> DatasetFacts:
    """What a stage has staged rows for.

    :param seal: None if an earlier attempt has sealed it.
    """
    header = attempt.checkpoint.header
    facts = look_at(attempt.table, header.table, lambda state: _table_facts(state, header))
    if seal is None or mode_type(header).lands:
        return facts
    return facts._replace(written=Written(seal.rows, seal.bytes, seal.files))


def _landed(table: Table, members: Sequence[Settled]) -> DatasetFacts:
    """The table, with what this very task has landed in it."""
    newest = max(members, key=lambda member: member.commit.committed_at)
    landed = [member for member in members if member.landed_now]
    writes = [SealedWrite(member.checkpoint, member.seal) for member in landed]
    facts = look_at(table, newest.checkpoint.header.table, lambda state: _with_rows(state, newest.checkpoint.header, writes))
    facts = facts._replace(version=str(newest.commit.commit_id))
    if not landed:
        return facts._replace(columns=None)
    seals = [member.seal for member in landed]
    written = Written(sum(seal.rows for seal in seals), sum(seal.bytes for seal in seals), sum(seal.files for seal in seals))
    return facts._replace(written=written)


def _with_rows(state: TableState, header: Header, writes: Sequence[SealedWrite]) -> DatasetFacts:
    facts = _table_facts(state, header)
    if not writes:
        return facts
    added = [field for field in state.storage.scan(writes).schema if field.name not in state.columns.schema.names]
    for field in added:
        facts = facts._replace(columns=facts.columns.append(field))  # type: ignore[union-attr]
    partitions = state.storage.partitions(writes) if header.mode == _BY_PARTITION else ()
    return facts._replace(partitions=partitions if len(partitions) <= _PARTITIONS else ())


def _table_facts(state: TableState, header: Header) -> DatasetFacts:
    place = state.storage.place
    return DatasetFacts(
        dataset_name(place.uri), name_in_catalog(place, header.table.identifier), header.table.format, columns=state.columns.schema
    )
