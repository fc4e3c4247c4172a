"""A process that has everything imported and forks one child for each run, so that a crash point costs a fork and not a start.

Requests come as JSON lines on standard input and answers go as JSON lines to standard output. The parent never opens a
store, a file or a catalog: the threads of Arrow, obstore and Lance do not survive a fork. To import those starts none.

Only a run that is killed has to be a child of its own. One that is suspended at an effect goes on later and ends, and its child
runs the next: a fork copies each page that the child then writes to, which takes longer than most runs. And what nothing happens
to is run by a process that never forks.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.crash.effects import Effects, install
from protocol.crash.imports import import_everything
from protocol.crash.reads import Reads
from support import chains
from support.foreign import options_of
from support.world import World, rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import CommitUnderWayError
from airflow_ckpt_provider.sources import Files, IcebergTable
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.transforms import Map
from airflow_ckpt_provider.write import cleanup, groups, undoing
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rejecting import OnError
from airflow_ckpt_provider.write.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.write.request import WriteRequest


def marked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that shows in the rows that it ran."""
    import pyarrow as pa

    index = batch.schema.get_field_index("kind")
    return batch.set_column(index, "kind", pa.array(["marked"] * batch.num_rows))


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that changes nothing."""
    return batch


def wider(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that adds a column."""
    import pyarrow as pa

    return batch.append_column("extra", pa.array(["new"] * batch.num_rows))


class FailingAt:
    """A function of a row that changes nothing, and fails at some rows.

    :param ids: of these.
    """

    def __init__(self, ids: list[int]) -> None:
        self._ids = set(ids)

    def __call__(self, id: int, kind: str) -> str:  # noqa: A002 - the column
        if id in self._ids:
            raise ValueError(f"{id} is bad")
        return kind

    def as_transform(self) -> Map:
        return Map(self, output={"kind": str}, keep=["id", "value", "at"])


#: What a JSON request may say of a write besides its key and input.
_SETTINGS = ("mode", "parameters", "on_rerun", "on_change", "restart_token", "evolve_schema")


def request_of(world: World, facts: dict[str, Any]) -> WriteRequest:
    """The write that a JSON request describes; ``input`` is a glob in the world's input folder."""
    changes = {name: facts[name] for name in _SETTINGS if name in facts}
    if "save_every" in facts:
        changes["save_every"], changes["transform"] = SaveEvery(rows=facts["save_every"], seconds=None), same
    if "fails_at" in facts:
        changes |= {"transform": FailingAt(facts["fails_at"]).as_transform(), "transform_version": "1"}
        changes["on_error"] = OnError(facts["on_error"])
    if facts.get("marked"):
        changes["transform"] = marked
    if facts.get("wider"):
        changes["transform"] = wider
    source: Source = Files(f"{world.input}/{facts.get('input', '*.parquet')}", max_split_bytes=1)
    if facts.get("growing"):
        source, changes["options"] = IcebergTable("shop.orders", since="last_commit", max_split_bytes=1), options_of(growing(world))
    return world.request(facts.get("key", "orders"), source=source, **changes)


def growing(world: World) -> World:
    """Where the Iceberg table is that a world's writes read increment by increment."""
    return World(world.root / "growing")


def write(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stage all writes, then commit them together: a whole DAG run."""
    attempts = [world.stage(request_of(world, facts)) for facts in writes]
    return _settled(groups.commit([attempt.checkpoint for attempt in attempts], world.as_table()))


def stage(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"state": world.stage(request_of(world, facts)).state} for facts in writes]


def land(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Commit what was staged before, by key and generation, as a commit task does."""
    found = [Checkpoint.at(world.store, IdempotenceKey(facts["key"]), facts.get("generation", 1)) for facts in writes]
    return _settled(groups.commit(found, world.as_table()))


def insist(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with retries, as Airflow has them: others may be about to land one of them together with others."""
    for _ in range(100):
        with contextlib.suppress(CommitUnderWayError):
            return land(world, writes)
        time.sleep(0.05)
    return land(world, writes)


def clean(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove what was left behind, as a clean-up task does."""
    done: list[cleanup.Cleaned] = []
    for facts in writes:
        latest = Checkpoint.latest(world.store, IdempotenceKey(facts.get("key", "orders")))
        if latest is not None:
            done += cleanup.clean(latest, lambda _: world.as_table(), discard_unfinished=bool(facts.get("discard_unfinished")))
    return _cleaned(done)


def undo(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take what keys have landed out of the table again."""
    done = []
    for facts in writes:
        latest = Checkpoint.latest(world.store, IdempotenceKey(facts.get("key", "orders")))
        assert latest is not None
        done.append(undoing.undo(latest, world.as_table(), "ada"))
    return [{"snapshot_id": one.commit.commit_id, "landed_now": one.landed_now} for one in done]


def _cleaned(done: Iterable[cleanup.Cleaned]) -> list[dict[str, Any]]:
    return [{"generation": one.generation, "state": one.state, "files": one.files, "left": one.left} for one in done]


def sweep(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove what writes that are done have left, as a clean-up task over the whole store does."""
    (facts,) = writes

    def table_of(checkpoint: Checkpoint) -> Any:
        return world.as_table() if mode_type(checkpoint.header).lands else chains.rows_of(checkpoint)

    swept = Sweep(world.store, table_of, older_than=timedelta(days=14), **facts)
    return [{"key": one.key, "generation": one.generation, "kept": one.kept, "is_error": one.is_error} for one in swept.run()]


def columns(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add columns to a Lance dataset: a whole DAG run."""
    from support.columns import add_columns

    return _settled([add_columns(world, rows_per_split=4) for _ in writes])


def append(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What another writer does, who knows nothing of checkpoints: pyiceberg's own append."""
    schema = world.table().schema().as_arrow()
    for facts in writes:
        world.table().append(rows(facts["start"], facts["count"]).cast(schema))
    return []


def chain(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stage rows for a next task, and write those: a whole DAG run of two stages."""
    (facts,) = writes
    first = chains.for_next(world, "parse", same, save_every=SaveEvery(rows=facts["save_every"], seconds=None))
    source = chains.read(world, first)
    second = world.stage(world.request("orders", source=source, transform=same))
    return _settled(groups.commit([second.checkpoint], world.as_table()))


def free(world: World, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove what was staged for a next task, as the clean-up of that does."""
    del writes
    latest = Checkpoint.latest(world.store, IdempotenceKey("parse"))
    assert latest is not None
    return _cleaned(cleanup.clean(latest, chains.rows_of))


_WORK: dict[str, Callable[[World, list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "write": write,
    "stage": stage,
    "land": land,
    "insist": insist,
    "append": append,
    "columns": columns,
    "clean": clean,
    "chain": chain,
    "free": free,
    "sweep": sweep,
    "undo": undo,
}


#: Modules that were there before the first run. A child that names them all writes into hundreds of pages, and copies them.
_THERE: set[str] = set()


def _settled(found: list[groups.Settled]) -> list[dict[str, Any]]:
    return [{"key": one.checkpoint.key.value, "snapshot_id": one.commit.commit_id, "landed_now": one.landed_now} for one in found]


def _world(root: Path) -> World:
    """The world of the format that this process was started for."""
    if "lance" not in sys.argv[1:]:
        return World(root)
    from support.lance_world import LanceWorld

    return LanceWorld(root)


def _child(job: dict[str, Any], gate: int | None) -> None:
    """Run one job; never returns to the parent's loop."""
    if gate is not None:
        os.read(gate, 1)
    install(_effects(job))
    _done(job)
    os._exit(0)


def _effects(job: dict[str, Any], reads: Reads | None = None) -> Effects:
    return Effects(Path(job["ledger"]), job["fatal"], signal.Signals[job["how"]], reads=reads)


def _done(job: dict[str, Any]) -> None:
    """Do the work and leave its outcome in a file."""
    outcome: dict[str, Any]
    try:
        outcome = {"result": _WORK[job["do"]](_world(Path(job["root"])), job["writes"])}
    except Exception as error:  # noqa: BLE001 - the test that asked decides what it means
        outcome = {"error": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
    outcome["imported"] = sorted(itertools.takewhile(lambda name: name not in _THERE, reversed(sys.modules)))
    Path(job["outcome"]).write_text(json.dumps(outcome))


class _Here:
    """Runs jobs in this process, one after the other; the effects of each are counted in its own ledger."""

    def __init__(self) -> None:
        self._effects: Effects | None = None
        self._reads = Reads()

    def done(self, job: dict[str, Any]) -> dict[str, Any]:
        first, self._effects = self._effects is None, _effects(job, self._reads)
        if first:
            install(self, self._reads)
        self._reads.forget()
        _done(job)
        return {"pid": os.getpid(), "suspended": False, "signal": 0}

    def happen(self, name: str) -> None:
        assert self._effects is not None
        self._effects.happen(name)

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        assert self._effects is not None
        return self._effects.around(name, call)


def _fork(job: dict[str, Any], gate: tuple[int, int] | None = None) -> int:
    pid = os.fork()
    if pid == 0:
        if gate is not None:
            os.close(gate[1])
        _child(job, gate[0] if gate else None)
    return pid


def _wait(pid: int) -> dict[str, Any]:
    """Until the process has ended or is suspended."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"pid": pid, "suspended": True}
    return {"pid": pid, "suspended": False, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}


class _Suspendable:
    """Children that run one job after the other, and suspend themselves when one is done, as they are when an effect is fatal.

    Which of both it is tells the outcome, which is written before.
    """

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}
        self._outcomes: dict[int, Path] = {}
        self._idle: list[int] = []

    def begin(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run the job until an effect suspends it, or to its end."""
        pid = self._idle.pop() if self._idle else self._forked()
        self._outcomes[pid] = Path(job["outcome"])
        os.write(self._pipes[pid], json.dumps(job).encode() + b"\n")
        return self.go_on(pid)

    def go_on(self, pid: int) -> dict[str, Any]:
        """Let a suspended job go on until an effect suspends it again, or to its end."""
        os.kill(pid, signal.SIGCONT)
        answer = _wait(pid)
        if answer["suspended"] and self._outcomes[pid].exists():
            self._idle.append(pid)
            return {"pid": pid, "suspended": False, "signal": 0}
        return answer

    def close(self) -> None:
        """End those that wait for a job."""
        for pid in self._idle:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _forked(self) -> int:
        jobs, pipe = os.pipe()
        pid = os.fork()
        if pid == 0:
            here = _Here()
            with os.fdopen(jobs) as lines:
                for line in lines:
                    here.done(json.loads(line))
                    os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.close(jobs)
        self._pipes[pid] = pipe
        return pid


def _together(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run jobs at the same time: all of them wait at a pipe that is closed when all are there."""
    gate = os.pipe()
    pids = [_fork(job, gate) for job in jobs]
    os.close(gate[0])
    os.close(gate[1])
    return [_wait(pid) for pid in pids]


def main() -> None:
    import_everything(lance="lance" in sys.argv[1:], glue="glue" in sys.argv[1:])
    _THERE.update(sys.modules)
    gc.freeze()
    here, suspendable = _Here(), _Suspendable()
    for line in sys.stdin:
        request = json.loads(line)
        if "together" in request:
            answer: Any = _together(request["together"])
        elif "continue" in request:
            answer = suspendable.go_on(request["continue"])
        elif "here" in request:
            answer = here.done(request["here"])
        elif request["run"]["how"] == "SIGSTOP":
            answer = suspendable.begin(request["run"])
        else:
            answer = _wait(_fork(request["run"]))
        print(json.dumps(answer), flush=True)
    suspendable.close()


if __name__ == "__main__":
    main()
