"""Pipelines of slow functions, and the driver process of one, which a test kills at any of their calls; see ``main``.

Each call is noted before it does anything, in one file for each process, so that calls are counted whoever is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from airflow_ckpt_provider.checkpoint.layout import rows_folder
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import StageFailedError
from airflow_ckpt_provider.sources import Staged
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.spark.engine import SparkEngine
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.tables.staged.format import RowsTable
from airflow_ckpt_provider.transforms import Aggregate, FlatMap, Map
from airflow_ckpt_provider.write.attempt import WriteAttempt
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rounds import Rounds
from support.chains import output
from support.standalone import children
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", DoubleType()), NestedField(3, "kind", StringType()))

#: Rows of the input, in so many files of one split each; groups; seconds of a call; input rows between two pieces.
ROWS, FILES, GROUPS, CALL_S, SAVE_ROWS = 240, 4, 40, 0.005, 10

#: Buckets of groups, and calls of an async function that wait at the same time.
BUCKETS, CONCURRENCY = 10, 4

#: Tasks that run at a time.
TASKS = 2

#: How a driver ends that was told why by a function.
FUNCTION_FAILED = 3


class Calls:
    """The calls of all functions of a pipeline, by all processes, killed ones too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def note(self, stage: str, what: object) -> None:
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(f"{stage}/{what}\n")

    def all(self) -> list[str]:
        return [line for file in self.folder.iterdir() for line in file.read_text().splitlines()]

    def number(self) -> int:
        return sum(file.read_bytes().count(b"\n") for file in self.folder.iterdir())


# -- the functions: what they make of a row does not depend on ``broken``, the ids at which this version of them fails


def called(folder: str, stage: str, broken: list[int], what: int) -> None:
    Calls(Path(folder)).note(stage, what)
    if what in broken:
        raise ValueError(f"cannot do {what}")


def halve(folder: str, broken: list[int], id: int, value: float) -> dict[str, Any]:  # noqa: A002 - a column
    called(folder, "halve", broken, id)
    time.sleep(CALL_S)
    return {"value": value / 2}


async def ask(folder: str, broken: list[int], id: int, value: float) -> dict[str, Any]:  # noqa: A002 - a column
    called(folder, "halve", broken, id)
    await asyncio.sleep(CONCURRENCY * CALL_S)
    return {"value": value / 2}


def repeat(folder: str, broken: list[int], id: int, value: float, kind: str) -> Iterator[dict[str, Any]]:  # noqa: A002 - a column
    called(folder, "repeat", broken, id)
    for number in range(id % 4):
        time.sleep(CALL_S / 2)
        yield {"id": 10 * id + number, "value": value, "kind": kind}


def total(folder: str, broken: list[int], kind: str, id: list[int], value: list[float]) -> dict[str, Any]:  # noqa: A002 - a column
    called(folder, "total", broken, int(kind))
    time.sleep(4 * CALL_S)
    return {"id": min(id), "value": sum(value)}


def inputs() -> list[dict[str, Any]]:
    return [{"id": number, "value": number / 4, "kind": str(number % GROUPS)} for number in range(ROWS)]


def repeated(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"id": 10 * row["id"] + number} for row in rows for number in range(row["id"] % 4)]


def halved(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"value": row["value"] / 2} for row in rows]


class Kind(NamedTuple):
    """A pipeline.

    :param stages: names of the functions that its stages call.
    :param rows: what an uninterrupted run lands.
    :param calls: the calls that it makes.
    :param again: calls that each task may have begun and not saved when it is killed.
    """

    stages: list[str]
    rows: list[dict[str, Any]]
    calls: list[str]
    again: int


def _calls(stage: str, rows: Iterable[dict[str, Any]]) -> list[str]:
    return [f"{stage}/{row['id']}" for row in rows]


def _groups() -> list[dict[str, Any]]:
    found = [[row for row in inputs() if row["kind"] == str(group)] for group in range(GROUPS)]
    return [rows[0] | {"value": sum(row["value"] for row in rows)} for rows in found]


KINDS = {
    "map": Kind(["halve"], halved(inputs()), _calls("halve", inputs()), SAVE_ROWS),
    "flat_map": Kind(["repeat"], repeated(inputs()), _calls("repeat", inputs()), SAVE_ROWS),
    "async": Kind(["ask"], halved(inputs()), _calls("halve", inputs()), SAVE_ROWS + 3 * CONCURRENCY),
    # A bucket is what is computed again.
    "aggregate": Kind(["total"], _groups(), [f"total/{group}" for group in range(GROUPS)], GROUPS),
    "chain": Kind(
        ["repeat", "halve"],
        halved(repeated(inputs())),
        [*_calls("repeat", inputs()), *_calls("halve", repeated(inputs()))],
        SAVE_ROWS,
    ),
}


# -- a place, and the driver that works there ----------------------------------------------------------------------------------


class Task(NamedTuple):
    """What a driver is to do.

    :param store: URI and options of the store; None for a folder of the world.
    :param broken: ids at which the functions fail; another list is other code.
    :param die_at: the driver kills itself, and all that it started, once so many calls were made by all; None for never.
    """

    root: str
    kind: str
    master: str
    conf: dict[str, str]
    store: tuple[str, dict[str, str]] | None
    broken: list[int]
    die_at: int | None


def world_of(task: Task) -> World:
    world = World(Path(task.root))
    if task.store is not None:
        uri, options = task.store
        world.store = CheckpointStore.at(uri, **options)
    return world


def put_inputs(world: World) -> None:
    rows = inputs()
    for number in range(FILES):
        own = rows[number * ROWS // FILES : (number + 1) * ROWS // FILES]
        pq.write_table(pa.Table.from_pylist(own), world.input / f"{number}.parquet")


def run(task: Task) -> None:
    """All stages of the pipeline, and its commit."""
    world, staged = world_of(task), None
    with spark_session(SparkTarget(task.master, conf=task.conf), "kills"):
        for stage in KINDS[task.kind].stages:
            is_last = stage == KINDS[task.kind].stages[-1]
            staged = _attempt(world, task, stage, staged, is_last=is_last)
            if staged.commit is None:
                with SparkEngine(SparkTarget(task.master, conf=task.conf), "kills", lambda _: None) as engine:
                    Rounds(engine, 1).run(staged, lambda _: None, lambda _: None)
                staged.seal()
        assert staged is not None
        world.commit(staged)


def _attempt(world: World, task: Task, stage: str, read: WriteAttempt | None, *, is_last: bool) -> WriteAttempt:
    function = _function(stage, str(Path(task.root) / "calls"), task.broken)
    changes: dict[str, Any] = {"save_every": SaveEvery(rows=SAVE_ROWS, seconds=None), "on_change": "continue"}
    if read is not None:
        changes |= {"source": Staged(output(read)).opened(world.store), "options": task.store[1] if task.store else {}}
    if isinstance(function, Aggregate):
        changes["source"] = GroupedRows(world.request().source, {}, function)
    if is_last:
        return world.attempt(world.request(f"{task.kind}/{stage}", transform=function, **changes))
    request = world.request(f"{task.kind}/{stage}", transform=function, mode="for_next", **changes)
    target = RowsTable(rows_folder(world.store.uri, request.key.hash), task.store[1] if task.store else None)
    return WriteAttempt(world.store, target, request)


def _function(stage: str, folder: str, broken: list[int]) -> Map | FlatMap | Aggregate:
    if stage == "halve":
        return Map(partial(halve, folder, broken), output={"value": float}, keep=["id", "kind"])
    if stage == "ask":
        return Map(partial(ask, folder, broken), output={"value": float}, keep=["id", "kind"], concurrency=CONCURRENCY)
    if stage == "repeat":
        return FlatMap(partial(repeat, folder, broken), output={"id": int, "value": float, "kind": str})
    return Aggregate(partial(total, folder, broken), by="kind", output={"id": int, "value": float}, buckets=BUCKETS)


def kill(pid: int) -> None:
    """SIGKILL to a process and all that it started."""
    below = children(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in below:
        kill(child)


def _die_at(calls: Calls, number: int) -> None:
    while calls.number() < number:
        time.sleep(0.002)
    for child in children(os.getpid()):
        kill(child)
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: str) -> None:
    task = Task(**json.loads(Path(path).read_text()))
    if task.die_at is not None:
        threading.Thread(target=_die_at, args=(Calls(Path(task.root) / "calls"), task.die_at), daemon=True).start()
    try:
        run(task)
    except StageFailedError as error:
        print(error, file=sys.stderr)
        sys.exit(FUNCTION_FAILED)
