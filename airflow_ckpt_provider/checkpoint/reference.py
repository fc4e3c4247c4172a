"""The checkpoint reference: the small JSON object that stage, commit and sensor hand to each other through XCom.

A stable contract: members are added, never renamed or removed. It holds no secret, and stays below 4 KiB.

Airflow keeps it, and so it is believed; the store is not (I15). Which table and connections a checkpoint has, a reference says, and
a header in the store that says otherwise is an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NotRequired, TypedDict

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.restart import is_program
from airflow_ckpt_provider.exceptions import BindingMismatchError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.documents import Connections, Seal
    from airflow_ckpt_provider.checkpoint.state import State
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore


class SplitCounts(TypedDict):
    """Splits of the plan, those found staged when the attempt began, and those it wrote."""

    total: int
    recovered: int
    written: int


class Instances(TypedDict):
    """The mapped task whose instance returned the reference, and how many instances it had in that run."""

    dag_id: str
    task_id: str
    run_id: str
    total: int


class CommitFacts(TypedDict):
    """The commit as the table shows it.

    ``snapshot_id`` of an Iceberg table, or ``version`` of a Lance dataset; None if there was nothing to write. ``committed_at`` is
    ISO 8601 in UTC; ``landed_now`` is False if an earlier attempt's commit was found.
    """

    snapshot_id: NotRequired[int | None]
    version: NotRequired[int | None]
    committed_at: str
    landed_now: bool


class Reference(TypedDict):
    """What a stage returns. ``rows``, ``bytes`` and ``files`` are those sealed, in all attempts together.

    ``counts`` says what became of the rows in modes that distinguish: ``inserted``, ``updated``, ``unchanged``, ``kept``.
    ``instances`` is there if the stage is mapped. ``computed_by`` is there if the write was gone on with under other code: how many
    splits each code has computed, in part or all of it, by its digest.
    ``reuse`` is ``content`` for rows whose key stands for what was computed, see ``CheckpointedTransformOperator``.
    ``rejected`` is there if the transform failed at rows of the input that are left out: how many.
    ``application`` is there if the stage has run Spark: the id under which Spark's own page and history have it.
    ``table_conn_id`` is empty for a dataset that is opened with the credentials of the environment. ``header`` is the SHA-256 of
    what the stage has bound the checkpoint to, and ``sealed`` that of what it has sealed: the plan and the record of each split.
    """

    idempotence_key: str
    generation: int
    store: str
    checkpoint_conn_id: str
    table_conn_id: str
    spark_conn_id: str
    table: str
    table_uuid: str
    branch: str
    format: str
    mode: str
    header: str
    sealed: str
    state: str
    map_index: int
    instances: NotRequired[Instances]
    splits: SplitCounts
    rows: int
    bytes: int
    files: int
    counts: NotRequired[dict[str, int]]
    computed_by: NotRequired[dict[str, int]]
    reuse: NotRequired[str]
    rejected: NotRequired[int]
    application: NotRequired[str]
    commit: NotRequired[CommitFacts]


def reference(
    checkpoint: Checkpoint,
    seal: Seal,
    state: State,
    *,
    recovered: int,
    written: int,
    map_index: int | None = None,
    instances: Instances | None = None,
    connections: Connections | None = None,
) -> Reference:
    """Reference to a sealed checkpoint.

    :param connections: as the DAG, or an earlier reference, says; those of the header if None, where that was written just now.
    :param map_index: of the task that hands it on; that of the task that created the checkpoint if None.
    :param instances: the instances of that task, if it is mapped.
    """
    header = checkpoint.header
    connections = connections or header.connections
    made = Reference(
        idempotence_key=header.key,
        generation=header.generation,
        store=checkpoint.store.uri,
        checkpoint_conn_id=connections.checkpoint,
        table_conn_id=connections.table,
        spark_conn_id=connections.spark,
        table=header.table.identifier,
        table_uuid=header.table.uuid,
        branch=header.table.branch,
        format=header.table.format,
        mode=header.mode,
        header=header.digest,
        sealed=seal.digest,
        state=state.value,
        map_index=header.origin.map_index if map_index is None else map_index,
        splits=SplitCounts(total=seal.splits, recovered=recovered, written=written),
        rows=seal.rows,
        bytes=seal.bytes,
        files=seal.files,
    )
    if instances is not None:
        made["instances"] = instances
    if seal.counts:
        made["counts"] = dict(seal.counts)
    if "reuse" in header.parameters:
        made["reuse"] = str(header.parameters["reuse"])
    if seal.computed_by:
        made["computed_by"] = dict(seal.computed_by)
    if seal.rejected:
        made["rejected"] = seal.rejected_rows
    return made


def resolve(store: CheckpointStore, pointer: str | Reference) -> Checkpoint | None:
    """The checkpoint that a reference or a bare key points to; None if a bare key is not known yet.

    :raises CheckpointMissingError: if a reference points to nothing.
    :raises BindingMismatchError: if what is stored there is bound to something else than a reference says.
    """
    if isinstance(pointer, str):
        return Checkpoint.latest(store, IdempotenceKey(pointer))
    if pointer["store"].rstrip("/") != store.uri.rstrip("/"):
        raise InvalidInputError(
            f"The reference to the key {pointer['idempotence_key']!r} points to the store {pointer['store']}, but the "
            f"connection opens {store.uri}. The connection was changed, or is another one on this worker."
        )
    checkpoint = Checkpoint.at(store, IdempotenceKey(pointer["idempotence_key"]), pointer["generation"])
    _require_as_told(checkpoint, pointer)
    checkpoint.vouched = pointer["sealed"]
    return checkpoint


def require_same_table(checkpoint: Checkpoint, pointer: Reference) -> None:
    """Refuse a generation of a reference's key that the store binds to another table or connection (I15).

    :raises BindingMismatchError: naming both.
    """
    _require(checkpoint, _place(checkpoint, pointer))


def _require_as_told(checkpoint: Checkpoint, pointer: Reference) -> None:
    header = checkpoint.header
    said = [
        *_place(checkpoint, pointer),
        ("table uuid", pointer["table_uuid"], header.table.uuid),
        ("mode", pointer["mode"], header.mode),
        ("header", pointer["header"], header.digest),
    ]
    _require(checkpoint, said)


def _place(checkpoint: Checkpoint, pointer: Reference) -> list[tuple[str, str, str]]:
    header = checkpoint.header
    place = [
        ("table format", pointer["format"], header.table.format),
        ("table", pointer["table"], header.table.identifier),
        ("branch", pointer["branch"], header.table.branch),
    ]
    if not is_program(header.origin):
        # A program knows no connections; the DAG that takes up what it has staged says them.
        place.append(("connection of the table", pointer["table_conn_id"], header.connections.table))
    return place


def _require(checkpoint: Checkpoint, said: list[tuple[str, str, str]]) -> None:
    lines = [f"{what}: {told!r} by the reference, {stored!r} by the store" for what, told, stored in said if told != stored]
    if lines:
        raise BindingMismatchError(
            f"The header of generation {checkpoint.header.generation} of the key {checkpoint.key.value!r} in the store "
            f"{checkpoint.store.uri} is not what its stage has handed over:\n  " + "\n  ".join(lines) + "\nThe store was altered "
            "or restored from elsewhere, and is not believed. Nothing was changed. See who can write to it; then run the stage "
            "under another idempotence key."
        )


def pointers(value: object) -> tuple[list[str | Reference], bool]:
    """The keys and references in an operator's ``checkpoint`` parameter, and whether it was a list.

    :raises InvalidInputError: if it is neither a reference, nor a key, nor a list of those.
    """
    if isinstance(value, str | dict):
        return [_pointer(value)], False
    if value is None or not hasattr(value, "__iter__"):
        raise InvalidInputError(
            f"checkpoint={value!r} is neither a checkpoint reference, nor a list of them, nor an idempotence key. Pass "
            "stage.output; if it rendered to None, the stage did not run or did not succeed."
        )
    read = [_pointer(item) for item in value]
    if not read:
        raise InvalidInputError("checkpoint=[] names nothing to commit or to wait for: no mapped stage returned a reference.")
    return read, True


def key_of(pointer: str | Reference) -> str:
    """The idempotence key of a reference or a bare key."""
    return pointer if isinstance(pointer, str) else pointer["idempotence_key"]


def given_twice(given: Sequence[str | Reference]) -> str | None:
    """A key whose rows would be read twice, because it is among these more than once; None if there is none."""
    times = Counter(map(key_of, given))
    return next((key for key in times if times[key] > 1), None)


def require_whole(given: Sequence[str | Reference]) -> None:
    """Refuse a list that lacks an instance of a mapped stage: its rows would be left out in silence.

    Airflow leaves instances that failed or were skipped out of a mapped task's output.

    :raises InvalidInputError: naming the map indexes that are missing.
    """
    indexes: dict[tuple[str, ...], set[int]] = defaultdict(set)
    totals: dict[tuple[str, ...], int] = defaultdict(int)
    for pointer in given:
        if isinstance(pointer, str) or pointer.get("map_index", -1) < 0:
            continue
        instances = pointer.get("instances")
        task: tuple[str, ...] = ()
        if instances is not None:
            task = (instances["dag_id"], instances["run_id"], instances["task_id"])
        indexes[task].add(pointer["map_index"])
        totals[task] = max(totals[task], pointer["map_index"] + 1, 0 if instances is None else instances["total"])
    for stage, present in indexes.items():
        missing = sorted(set(range(totals[stage])) - present)
        if missing:
            name = f"The mapped stage {stage[-1]!r}" if stage else "The mapped stage"
            shown = ", ".join(map(str, missing[:10])) + (" and others" if len(missing) > 10 else "")
            raise InvalidInputError(
                f"{name} returned no reference for {len(missing)} of its {totals[stage]} instances, map index {shown}: they "
                "failed, were skipped, or have not run, and their rows would be left out. Let them succeed first; keep "
                "trigger_rule='all_success' on the task that takes them all. To take one alone, pass its idempotence key."
            )


#: Members without which a reference does not say what it points to.
_REQUIRED = frozenset(
    {
        "idempotence_key",
        "generation",
        "store",
        "checkpoint_conn_id",
        "table_conn_id",
        "spark_conn_id",
        "table",
        "table_uuid",
        "branch",
        "format",
        "mode",
        "header",
        "sealed",
    }
)


def _pointer(item: object) -> str | Reference:
    if isinstance(item, str):
        return IdempotenceKey(item).value
    if isinstance(item, dict) and item.keys() >= _REQUIRED:
        return item  # type: ignore[return-value]
    raise InvalidInputError(
        f"{item!r} is neither a checkpoint reference (a mapping with {', '.join(sorted(_REQUIRED))}) nor an idempotence key."
    )
