"""The source ``IcebergTable``: an Iceberg table at a snapshot that is pinned when the write is planned.

A split is a few data files with the deletes that apply to them. A retry reads exactly those, however the table moved on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Increment, Plan, Split
from airflow_ckpt_provider.checkpoint.location import refuse_credentials
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError
from airflow_ckpt_provider.scan.data_files import PinnedSnapshot
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files
from airflow_ckpt_provider.sources.iceberg.increments import appended_files, only_rewritten, require_same_table, watermark_of
from airflow_ckpt_provider.sources.iceberg.pinning import Pin, open_table, parse_filter, parse_time, pin
from airflow_ckpt_provider.sources.iceberg.planned import require_listed, require_planned_table, require_unchanged
from airflow_ckpt_provider.sources.iceberg.reader import IcebergReader, IcebergSplit
from airflow_ckpt_provider.sources.packing import DEFAULT_SPLIT_BYTES, pack, require_each_once, strange_plan
from airflow_ckpt_provider.sources.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.scan.iceberg import Scanned

#: Parameters that choose the snapshot; at most one is given.
_WHEN = ("snapshot_id", "as_of", "branch")


class IcebergTable:
    """An Iceberg table to read. Not more than one of ``snapshot_id``, ``as_of`` and ``branch`` is given.

    With ``since="last_commit"`` only rows are read that were appended since this task's previous committed checkpoint; the first
    run reads everything. How far it has read is carried by the commit itself, so that each row is processed once, whatever
    crashes. It is a reading of appends: compactions are skipped, an overwrite or delete in between is an error, and a position
    delete that later removes an appended row is not applied to it.

    :param name: ``namespace.table`` in the catalog (templated)
    :param snapshot_id: snapshot to read (templated)
    :param as_of: read main as it was at this time: ISO 8601 text or a datetime, in UTC if it has no time zone (templated)
    :param row_filter: rows to keep, as an Iceberg expression such as ``"day = '{{ ds }}' and amount > 5"``; files that cannot
        hold such rows are never opened (templated)
    :param columns: columns to read, in this order; all if None (templated)
    :param branch: branch or tag to read; main if None (templated)
    :param since: ``"last_commit"``, or None to read the whole snapshot
    :param conn_id: Airflow connection of type ``iceberg``
    :param max_split_bytes: bytes of data files of one split, about; a file is never cut
    :raises InvalidInputError: when the DAG is parsed, for parameters that contradict each other
    """

    template_fields = ("name", "snapshot_id", "as_of", "row_filter", "columns", "branch")

    #: The operator opens an Iceberg catalog's connection for this source.
    conn_kind = "iceberg"

    def __init__(
        self,
        name: str,
        snapshot_id: int | str | None = None,
        as_of: str | datetime | None = None,
        row_filter: str | None = None,
        columns: Sequence[str] | None = None,
        branch: str | None = None,
        since: Literal["last_commit"] | None = None,
        conn_id: str | None = "iceberg_default",
        max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    ) -> None:
        if isinstance(columns, str) or (columns is not None and not columns):
            raise InvalidInputError(
                f"IcebergTable(columns={columns!r}): must be a list of at least one column name, or None for all."
            )
        if max_split_bytes <= 0:
            raise InvalidInputError(f"IcebergTable(max_split_bytes={max_split_bytes}): must be positive.")
        if since not in {None, "last_commit"}:
            raise InvalidInputError(f"IcebergTable(since={since!r}): the only value is 'last_commit'.")
        if since is not None and (snapshot_id is not None or as_of is not None):
            raise InvalidInputError(
                "IcebergTable(since='last_commit') reads up to the head of a branch: leave snapshot_id and as_of out."
            )
        self.name = name
        self.snapshot_id = snapshot_id
        self.as_of = as_of
        self.row_filter = row_filter
        self.columns = None if columns is None else list(columns)
        self.branch = branch
        self.since = since
        self.incremental = since is not None
        self.conn_id = conn_id
        self.max_split_bytes = max_split_bytes
        self._made: dict[str, Split] = {}
        self._require_one_snapshot()

    def serialize(self) -> JsonObject:
        """What Airflow shows of it."""
        return shown(
            "IcebergTable",
            self.name,
            snapshot_id=self.snapshot_id,
            as_of=None if self.as_of is None else str(self.as_of),
            branch=self.branch,
            since=self.since,
            row_filter=self.row_filter,
            columns=self.columns,
            conn_id=self.conn_id,
        )

    def __repr__(self) -> str:
        facts = [f"{name}={value!r}" for name, value in self.describe().items() if name != "iceberg"]
        return f"IcebergTable({', '.join([repr(self.name), *facts])})"

    @property
    def followed(self) -> str:
        """What an incremental reading follows: a branch of a table."""
        return f"{self.name}@{self.branch or 'main'}"

    def describe(self) -> JsonObject:
        """What decides which rows are read."""
        facts: JsonObject = {"iceberg": self.name}
        for name in (*_WHEN, "row_filter", "columns", "since"):
            value = getattr(self, name)
            if value is not None:
                facts[name] = str(value) if name == "as_of" else value
        return facts | ({"follows": self.followed} if self.incremental else {})

    # -- planning -------------------------------------------------------------------------------------------------------

    def plan(self, options: Mapping[str, str]) -> Plan:
        """Pin the snapshot and cut its files into splits.

        :raises InvalidInputError: for a snapshot, column or filter that cannot be, before Spark starts.
        """
        if self.incremental:
            raise InvalidInputError(f"{self!r} is planned from the watermark of the last commit: see plan_since.")
        table, chosen, row_filter = self._open(options)
        return self._plan(table, chosen, scan_files(table, chosen.snapshot_id, row_filter, chosen.schema_id))

    def plan_since(self, options: Mapping[str, str], watermark: JsonObject | None) -> Plan:
        """Pin the head of the branch and cut the files that were appended since ``watermark`` into splits.

        :param watermark: ``increment.end`` of the plan of the last commit; None if there is none, to read everything.
        :returns: a plan whose ``increment`` says from where to where it reads; without splits if nothing was appended.
        :raises InputChangedError: if what was appended cannot be told.
        """
        table, chosen, row_filter = self._open(options)
        if watermark is not None:
            require_same_table(table, watermark)
        begin = None if watermark is None else watermark["snapshot_id"]
        files = (
            appended_files(table, begin, chosen, row_filter)
            if isinstance(begin, int)
            else scan_files(table, chosen.snapshot_id, row_filter, chosen.schema_id)
        )
        plan = self._plan(table, chosen, files)
        reach = Increment(begin=watermark, end=watermark_of(table, chosen.snapshot_id))
        return msgspec.structs.replace(plan, increment=reach)

    def _open(self, options: Mapping[str, str]) -> tuple[Table, Pin, BooleanExpression | None]:
        """The table, what is read of it, and the filter: all of them checked."""
        from pyiceberg.table.refs import SnapshotRefType

        self._require_rendered()
        row_filter = parse_filter(self.row_filter, self.name)
        table = open_table(self.name, options)
        refuse_credentials(table.metadata.location)
        as_of = None if self.as_of is None else parse_time(self.as_of)
        chosen = pin(table, None if self.snapshot_id is None else int(self.snapshot_id), as_of, self.branch)
        ref = table.metadata.refs.get(self.branch or "")
        if self.incremental and ref is not None and ref.snapshot_ref_type == SnapshotRefType.TAG:
            raise InvalidInputError(f"{self!r}: {self.branch!r} is a tag, which nothing is appended to. Name a branch.")
        self._scan(table, chosen.schema_id, row_filter)
        return table, chosen, row_filter

    def _scan(self, table: Table, schema_id: int, row_filter: BooleanExpression | None) -> IcebergScan:
        import pyarrow as pa

        try:
            scan = IcebergScan(table, schema_id, self.columns, row_filter)
            scan.check()
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise InvalidInputError(f"{self!r} does not fit the table's schema: {str(error).rstrip('.')}.") from error
        return scan

    def _plan(self, table: Table, chosen: Pin, scanned: Iterable[Scanned]) -> Plan:
        files = [planned.file for planned in scanned]
        uuid = str(table.metadata.table_uuid)
        splits = pack(((file, file.bytes) for file in files), self.max_split_bytes, f"The table {self.name}")
        pinned = PinnedSnapshot(
            table=self.name,
            table_uuid=uuid,
            snapshot_id=chosen.snapshot_id,
            schema_id=chosen.schema_id,
            files=len(files),
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            filter=self.row_filter,
        )
        made = Plan(
            created_at=now(),
            source=pinned.to_json(),
            splits=tuple(
                Split(
                    id=f"{number:06d}",
                    bytes=split_bytes,
                    read=IcebergSplit(uuid, chosen.snapshot_id, chosen.schema_id, tuple(of_split)).to_json(),
                )
                for number, (of_split, split_bytes) in enumerate(splits)
            ),
        )
        self._made = {split.id: split for split in made.splits}
        return made

    # -- reading --------------------------------------------------------------------------------------------------------

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the table is still the one that was planned, and that the files of these splits are there.

        The snapshot itself may be gone: its files may live on in others.

        :raises InputChangedError: naming what is gone.
        """
        if not splits:
            return
        table = open_table(self.name, options)
        reads = [IcebergSplit.from_json(split.read) for split in splits]
        require_planned_table(table, reads[0].table_uuid)
        if any(self._made.get(split.id) != split for split in splits):
            # Not of a plan that this very source has made.
            snapshot_id = None if self.snapshot_id is None else int(self.snapshot_id)
            require_listed(table, self.name, reads, snapshot_id, incremental=self.incremental)
        require_unchanged(table, self.name, reads)

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse files that are read twice, or not at all though they are known to be meant; see ``AccountingSource``."""
        reads = [IcebergSplit.from_json(split.read) for split in plan.splits if split.task == READ]
        listed = None if self.row_filter is not None else self._listed(plan, options)
        require_each_once((file.path for read in reads for file in read.files), self.name, listed)

    def _listed(self, plan: Plan, options: Mapping[str, str]) -> set[str] | None:
        """What a plan has to list, by the table as it is; None where that does not tell any more."""
        table = open_table(self.name, options)
        pinned = plan.source_as(PinnedSnapshot)
        snapshot_id = pinned.snapshot_id
        if snapshot_id is None or table.metadata.snapshot_by_id(snapshot_id) is None:
            return None
        if not self.incremental:
            return {scanned.file.path for scanned in scan_files(table, snapshot_id)}
        increment = plan.increment
        if increment is None or increment.end != watermark_of(table, snapshot_id):
            raise strange_plan(f"does not read {self.name} up to where it says")
        begin = (increment.begin or {}).get("snapshot_id")
        try:
            chosen = Pin(snapshot_id, pinned.schema_id)
            files = appended_files(table, begin, chosen, None) if isinstance(begin, int) else scan_files(table, snapshot_id)
            return {scanned.file.path for scanned in files}
        except InputChangedError:
            return None

    def news(self, plan: Plan, options: Mapping[str, str]) -> str | None:
        """Another snapshot than the planned one; see ``ListableSource.news``. Increments are left to later runs."""
        if self.incremental:
            return None
        table, chosen, _ = self._open(options)
        pinned = plan.source_as(PinnedSnapshot)
        read = pinned.snapshot_id
        if pinned.table_uuid == str(table.metadata.table_uuid) and only_rewritten(table, chosen.snapshot_id, read):
            return None
        return f"{self.name} is at snapshot {chosen.snapshot_id} now, and snapshot {read} was read"

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema:
        """Schema of the rows, under the pinned schema of the table."""
        table = open_table(self.name, options)
        return self._scan(table, plan.source_as(PinnedSnapshot).schema_id, parse_filter(self.row_filter, self.name)).schema

    def reader(self, options: Mapping[str, str]) -> IcebergReader:
        """What executors read with."""
        self._require_rendered()
        return IcebergReader(open_table(self.name, options), self.columns, parse_filter(self.row_filter, self.name))

    # -- checks ---------------------------------------------------------------------------------------------------------

    def _require_rendered(self) -> None:
        """Refuse what templates have rendered to nothing: it would silently read something else."""
        for name in ("name", *_WHEN, "row_filter"):
            value = getattr(self, name)
            if isinstance(value, str) and value.strip() in {"", "None"}:
                raise InvalidInputError(
                    f"IcebergTable({name}={value!r}): the template rendered to nothing. Leave the parameter out, or make its "
                    "template give a value."
                )
        if "." not in self.name or not all(self.name.split(".")):
            raise InvalidInputError(f"IcebergTable({self.name!r}): the name is not of the form 'namespace.table'.")
        if self.snapshot_id is not None and not str(self.snapshot_id).strip().isdecimal():
            raise InvalidInputError(f"IcebergTable(snapshot_id={self.snapshot_id!r}): is not the id of a snapshot, a whole number.")
        self._require_one_snapshot()

    def _require_one_snapshot(self) -> None:
        given = [name for name in _WHEN if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInputError(f"IcebergTable({self.name!r}): only one of {', '.join(given)} can be given.")
        columns = self.columns or []
        if len(set(columns)) != len(columns):
            raise InvalidInputError(f"IcebergTable(columns={columns!r}): a column is named twice.")
