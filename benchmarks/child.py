"""One side of a comparison in a process of its own, so that its memory, and its failure, are nobody else's."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Memory, high_water_mib, memory_of, tree

#: Seconds between two looks at the memory of a child.
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a child ended.

    :param result: what its function returned; None if it did not return.
    :param problem: why it did not, in a few words.
    :param peak: the highest figures of the child and all that it started, looked at five times a second.
    :param own_mib: the highest resident size of the child itself, as the kernel remembers it.
    :param late: True if its time was up.
    """

    result: dict[str, Any] | None
    problem: str
    peak: Memory
    own_mib: float
    late: bool = False

    def __getitem__(self, name: str) -> Any:
        if self.result is None:
            raise RuntimeError(f"A measured process failed: {self.problem}")
        return self.result[name]


def run(
    function: str,
    *,
    python: str | Path = sys.executable,
    limit_s: float | None = None,
    address_space: int | None = None,
    environment: dict[str, str] | None = None,
    **arguments: Any,
) -> Outcome:
    """Call a function in a new process.

    :param function: ``module:name`` below this package; it takes and returns what JSON can say.
    :param python: the interpreter; another environment's has to have what the function needs.
    :param limit_s: the process is killed after so many seconds.
    :param address_space: bytes of virtual memory that the process may have, as by ``ulimit -v``.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, open(os.path.join(folder, "err"), "w+b") as errors:
        answer = Path(folder) / "answer.json"
        task = json.dumps({"function": function, "arguments": arguments, "answer": str(answer), "address_space": address_space})
        child = subprocess.Popen(
            [str(python), "-m", "benchmarks.child", task],
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"PYTHONPATH": ""} | (environment or {}),
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
        try:
            peak, late = _watch(child, limit_s)
        finally:
            _end(child)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if not answer.exists():
            problem = f"not finished after {limit_s:.0f} s" if late else _reason(child.returncode, said)
            return Outcome(None, problem, peak, 0.0, late)
        found = json.loads(answer.read_text())
        return Outcome(found["result"], "", peak, found["own_mib"])


def _watch(child: subprocess.Popen[bytes], limit_s: float | None) -> tuple[Memory, bool]:
    """Highest memory until the child has ended or its time is up, and whether that was so."""
    peak = Memory()
    start = time.monotonic()
    while child.poll() is None:
        peak = peak.or_more(memory_of(child.pid))
        if limit_s is not None and time.monotonic() - start > limit_s:
            return peak, True
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK_EVERY_S)
    return peak, False


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave nothing running that the child has started."""
    if child.poll() is None:
        for pid in tree(child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    child.wait()


def _reason(code: int, said: str) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else f"exit status {code}"


def _main() -> None:
    task = json.loads(sys.argv[1])
    if task["address_space"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (task["address_space"], task["address_space"]))
    module, _, name = task["function"].partition(":")
    result = getattr(importlib.import_module(f"benchmarks.{module}"), name)(**task["arguments"])
    Path(task["answer"]).write_text(json.dumps({"result": result, "own_mib": high_water_mib()}))


if __name__ == "__main__":
    _main()
