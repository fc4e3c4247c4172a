"""Runs in processes of their own, as the tests see them: started, killed or suspended at an effect, continued, ended."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.crash.effects import names_in, stops_in

if TYPE_CHECKING:
    from support.world import World

_TESTS = Path(__file__).resolve().parents[2]


@dataclass
class Run:
    """One run: how it ended so far, which effects it had, and what it returned or raised."""

    pid: int
    ledger: Path
    outcome: Path
    suspended: bool
    signal: int = 0

    @property
    def effects(self) -> list[str]:
        return names_in(self.ledger)

    @property
    def stops(self) -> list[tuple[int, str]]:
        """Number and name of each effect at which to suspend such a run; see ``stops_in``."""
        return stops_in(self.ledger)

    @property
    def found(self) -> dict[str, Any]:
        return json.loads(self.outcome.read_text()) if self.outcome.exists() else {}

    @property
    def error(self) -> str | None:
        return self.found.get("error")

    @property
    def result(self) -> list[dict[str, Any]]:
        """What the work returned; its error, if it raised one, is the test's."""
        assert "result" in self.found, self.found.get("traceback", f"ended by signal {self.signal} after {self.effects[-1:]}")
        return self.found["result"]

    @property
    def imported(self) -> list[str]:
        """Modules that were not there when it was forked."""
        return self.found["imported"]

    def listing(self) -> str:
        """The numbered effects, for messages."""
        return "\n".join(f"{number:4d} {name}" for number, name in enumerate(self.effects, 1))


class Runs:
    """Starts runs by forking a process that has everything imported; those that nothing happens to are run by another, which has
    run others before.

    :param kinds: of the worlds: ``iceberg`` or ``lance``, and ``glue`` if some have that catalog.
    """

    def __init__(self, folder: Path, *kinds: str) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._suspended: set[int] = set()
        self._forking, self._lasting = (_Process(folder, kinds) for _ in range(2))

    def close(self) -> None:
        """End the processes, and what a failed test left suspended."""
        for pid in self._suspended:
            os.kill(pid, signal.SIGKILL)
        self._forking.close()
        self._lasting.close()

    def run(
        self, world: World, *writes: dict[str, Any], do: str = "write", fatal: int = 0, how: signal.Signals = signal.SIGKILL
    ) -> Run:
        """Run until the end, or until the effect number ``fatal``."""
        job = self._job(world, writes, do, fatal, how)
        run = _run(job, self._forking.ask({"run": job}) if fatal else self._lasting.ask({"here": job}))
        if run.suspended:
            self._suspended.add(run.pid)
        return run

    def forked(self, world: World, *writes: dict[str, Any], do: str = "write") -> Run:
        """Run until the end in a process that has run nothing before."""
        job = self._job(world, writes, do, 0, signal.SIGKILL)
        return _run(job, self._forking.ask({"run": job}))

    def together(self, *jobs: tuple[World, str, list[dict[str, Any]]]) -> list[Run]:
        """Run several at the same moment, each in a process of its own, to their ends."""
        asked = [self._job(world, writes, do, 0, signal.SIGKILL) for world, do, writes in jobs]
        return [_run(job, answer) for job, answer in zip(asked, self._forking.ask({"together": asked}), strict=True)]

    def resume(self, run: Run) -> None:
        """Let a suspended run go on to its end."""
        self.go_on(run)
        assert not run.suspended

    def go_on(self, run: Run) -> None:
        """Let a suspended run go on until it is suspended again, or to its end."""
        answer = self._forking.ask({"continue": run.pid})
        run.suspended, run.signal = answer["suspended"], answer.get("signal", 0)
        if not run.suspended:
            self._suspended.discard(run.pid)

    def _job(self, world: World, writes: Any, do: str, fatal: int, how: signal.Signals) -> dict[str, Any]:
        number = next(self._numbers)
        return {
            "root": str(world.root),
            "do": do,
            "writes": list(writes) or [{}],
            "fatal": fatal,
            "how": how.name,
            "ledger": str(self._folder / f"{number}.ledger"),
            "outcome": str(self._folder / f"{number}.json"),
        }


class _Process:
    """A process that is asked to run something."""

    def __init__(self, home: Path, kinds: tuple[str, ...]) -> None:
        path = f"{_TESTS}:{_TESTS.parent}"
        environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(home), "OPENBLAS_NUM_THREADS": "1"}
        environment["SSL_CERT_FILE"] = os.environ["SSL_CERT_FILE"]
        self._process = subprocess.Popen(
            [sys.executable, str(_TESTS / "protocol" / "crash" / "run_to.py"), *kinds],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> Any:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()


def _run(job: dict[str, Any], answer: dict[str, Any]) -> Run:
    return Run(answer["pid"], Path(job["ledger"]), Path(job["outcome"]), answer["suspended"], answer.get("signal", 0))
