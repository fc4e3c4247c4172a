"""Processes that are kept alive and use Lance at the same moment: each is told its work, waits at a gate, and answers.

They are started anew and not forked: a process that has used Lance must not be. Work comes as JSON lines on standard input and
answers go as JSON lines to standard output. Decision: there are two gates. At the one all start to commit at the same moment, and
the operating system decides who gets how far. At the other each has looked into the versions, found nothing and is about to swap:
there every round is a race, on however few cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import CommitUnderWayError, HistoryExpiredError, TableMovedError
from airflow_ckpt_provider.write import groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.lance_world import LanceWorld

_TESTS = Path(__file__).resolve().parents[1]

#: Where racers wait: before they begin, or before their first swap.
START, SWAP = "start", "swap"


class Racers:
    """So many processes."""

    def __init__(self, number: int) -> None:
        self._gate, self._open = os.pipe()
        environment = {"PYTHONPATH": f"{_TESTS}:{_TESTS.parent}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        environment["SSL_CERT_FILE"] = os.environ["SSL_CERT_FILE"]
        environment |= {"AWS_EC2_METADATA_DISABLED": "true", "LANCE_CPU_THREADS": "1", "LANCE_IO_THREADS": "4"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(self._gate)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[self._gate],
            )
            for _ in range(number)
        ]

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            assert process.wait(60) == 0
            process.stdout.close()
        os.close(self._gate)
        os.close(self._open)

    def race(self, world: LanceWorld, jobs: Sequence[dict[str, Any]], gate: str = START) -> list[Any]:
        """Do all jobs at the same moment; what each returned.

        :param jobs: ``do`` names a function below; the rest are its arguments.
        """
        racers = self._processes[: len(jobs)]
        assert len(racers) == len(jobs)
        for process, job in zip(racers, jobs, strict=True):
            self._tell(process, {"root": str(world.root), "gate": gate, **job})
        # Those that end before the gate, because they failed, would not open it.
        said = [self._hear(process) for process in racers]
        os.write(self._open, b"g" * sum("waits" in one for one in said))
        answers = [self._hear(process) if "waits" in one else one for process, one in zip(racers, said, strict=True)]
        errors = [one["error"] for one in answers if "error" in one]
        assert not errors, "\n".join(errors)
        return [one["result"] for one in answers]

    @staticmethod
    def _tell(process: subprocess.Popen[str], job: dict[str, Any]) -> None:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()

    @staticmethod
    def _hear(process: subprocess.Popen[str]) -> Any:
        line = process.stdout.readline()
        assert line, f"a racer ended with {process.poll()}"
        return json.loads(line)


def land(world: LanceWorld, wait: Callable[[], None], gate: str, keys: list[list[Any]]) -> list[list[Any]]:
    """Commit checkpoints, by key and generation, as a commit task does; version and ``landed_now`` of each."""
    checkpoints = [Checkpoint.at(world.store, IdempotenceKey(key), generation) for key, generation in keys]
    target = world.as_table()
    if gate == START:
        wait()
        for _ in range(100):
            with contextlib.suppress(CommitUnderWayError):
                return _settled(groups.commit(checkpoints, target))
            # Another process lands one of them together with others. Airflow tries again, too.
            time.sleep(0.05)
    with _before_the_first_swap(wait):
        return _settled(groups.commit(checkpoints, target))


def land_unless_moved(world: LanceWorld, wait: Callable[[], None], gate: str, keys: list[list[Any]]) -> list[list[Any]]:
    """The same, where others may have committed what makes it wrong; nothing then."""
    try:
        return land(world, wait, gate, keys)
    except TableMovedError:
        return []


def append(world: LanceWorld, wait: Callable[[], None], gate: str, start: int, times: int) -> list[int]:
    """What another writer does, who knows nothing of checkpoints; the ids of the rows that Lance said were written."""
    from support.lance_world import rows

    wait()
    done = []
    for number in range(start, start + 2 * times, 2):
        if _tried(lambda number=number: _append(world, rows(number, 2))):
            done += [number, number + 1]
        time.sleep(0.005)
    return done


def upsert(world: LanceWorld, wait: Callable[[], None], gate: str, start: int, times: int) -> list[list[Any]]:
    """Lance's own upsert, over and over: the first row and two of the newest are replaced, two are added.

    :param start: its first id; it has ``2 * times + 3`` ids.
    :returns: id and ``kind`` of each row, as Lance last said that it was written.
    """
    import pyarrow as pa

    from support.lance_world import rows

    wait()
    done: dict[int, str] = {}
    for number in range(times):
        kind = f"upsert-{number}"
        table = pa.concat_tables([rows(start, 1), rows(start + 1 + 2 * number, 4)])
        table = table.set_column(table.schema.get_field_index("kind"), "kind", pa.array([kind] * len(table)))
        if _tried(lambda table=table: _upsert(world, table)):
            done |= dict.fromkeys(table["id"].to_pylist(), kind)
        time.sleep(0.005)
    return [[number, kind] for number, kind in done.items()]


def delete(world: LanceWorld, wait: Callable[[], None], gate: str, ids: list[int]) -> list[int]:
    """Delete rows one by one; the ids that Lance said were deleted."""
    wait()
    return [number for number in ids if _tried(lambda number=number: world.dataset.delete(f"id = {number}"))]


def compact(world: LanceWorld, wait: Callable[[], None], gate: str, times: int) -> int:
    """Rewrite small fragments into large ones, over and over, until it succeeded at least once; how often it did."""
    wait()
    done = tries = 0
    while tries < times or (not done and tries < 20 * times):
        done += _tried(lambda: world.dataset.optimize.compact_files(num_threads=1))
        tries += 1
        time.sleep(0.005)
    return done


def write_many(
    world: LanceWorld, wait: Callable[[], None], gate: str, mode: str, first: int, times: int, end: str
) -> dict[str, Any]:
    """Write a row under a key of its own, over and over; then ``tidy`` ends.

    :param first: id of the first row.
    :returns: ids of the rows whose commit was green, those of which it said that it could not be told, and those that were green
        and not there.
    """
    import pyarrow.parquet as pq

    from airflow_ckpt_provider.sources import Files
    from support.lance_world import rows

    said: dict[str, Any] = {"green": [], "not told": [], "lost": []}
    wait()
    try:
        for number in range(first, first + times):
            folder = world.input / str(number)
            folder.mkdir()
            pq.write_table(rows(number, 1), folder / "0.parquet")
            request = world.request(f"key-{number}", mode=mode, source=Files(f"{folder}/*.parquet"))
            try:
                groups.commit([world.stage(request).checkpoint], world.as_table())
            except HistoryExpiredError:
                said["not told"].append(number)
                continue
            said["green"].append(number)
            if number not in _ids(world):
                said["lost"].append(number)
    finally:
        Path(end).touch()
    return said


def tidy(world: LanceWorld, wait: Callable[[], None], gate: str, end: str) -> int:
    """Compact and remove all versions but the last, over and over, until there is a file ``end``; how often it was done."""
    from datetime import timedelta

    wait()
    done = 0
    while not Path(end).exists():
        _tried(lambda: world.dataset.optimize.compact_files(num_threads=1))
        done += _tried(lambda: world.dataset.cleanup_old_versions(older_than=timedelta(0)))
    return done


def _ids(world: LanceWorld) -> list[int]:
    """All ids that are there; read again if a clean-up took away what was being read."""
    for _ in range(50):
        try:
            return world.ids()
        except (OSError, ValueError):
            time.sleep(0.005)
    return world.ids()


def _append(world: LanceWorld, table: Any) -> None:
    import lance

    lance.write_dataset(table, world.uri, mode="append", storage_options=world.options or None)


def _upsert(world: LanceWorld, table: Any) -> None:
    world.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)


def _tried(work: Callable[[], Any]) -> bool:
    """Lance gives up on a conflict after some tries of its own; that is the other writer's affair."""
    try:
        work()
    except OSError:
        return False
    return True


def _settled(found: list[groups.Settled]) -> list[list[Any]]:
    return [[one.commit.commit_id, one.landed_now] for one in found]


class _before_the_first_swap:  # noqa: N801 - it reads as what it is
    """Waits when Lance is first asked to commit: everything before that is done."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def __enter__(self) -> None:
        import lance

        self._commit = commit = lance.LanceDataset.commit
        waiting = [self._wait]

        def gated(*args: Any, **kwargs: Any) -> Any:
            # In memory, Lance is only asked what it would make of a schema.
            if waiting and not str(getattr(args[0], "uri", args[0])).startswith("memory://"):
                waiting.pop()()
            return commit(*args, **kwargs)

        lance.LanceDataset.commit = staticmethod(gated)

    def __exit__(self, *args: object) -> None:
        import lance

        lance.LanceDataset.commit = staticmethod(self._commit)


_WORK = {
    "land": land,
    "land_unless_moved": land_unless_moved,
    "append": append,
    "upsert": upsert,
    "delete": delete,
    "compact": compact,
    "write_many": write_many,
    "tidy": tidy,
}


def _main(gate: int) -> None:
    import lance  # noqa: F401 - before the first race, not in it

    from support.lance_world import LanceWorld

    def wait() -> None:
        print(json.dumps({"waits": True}), flush=True)
        os.read(gate, 1)

    for line in sys.stdin:
        job = json.loads(line)
        work, world = _WORK[job.pop("do")], LanceWorld(Path(job.pop("root")))
        try:
            answer = {"result": work(world, wait, **job)}
        except Exception:  # noqa: BLE001 - the test that asked decides what it means
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
