#!/usr/bin/env python3
"""The project's commands. Needs only Python 3.11 or newer with ``venv`` and ``pip``, and Java 17.

Each command first sets up ``.venv`` in this folder (once; again when ``requirements.lock`` changes). Nothing outside this folder
and the system's temporary folder is written (``test`` takes ``/dev/shm``, if there is memory); ``~/airflow`` is never touched.

- ``setup`` does only that, and ``demo`` runs the main job on real data.
- ``test`` runs all tests; ``test --fast`` those that need neither Spark nor Airflow, in about a minute; ``test tests/spark -k
  stop``, or whatever pytest takes, those that are selected.
- ``matrix`` runs the random tests for longer, and a few tests on the other versions of Python that are found on this machine, one
  after the other; ``matrix --only NAME`` runs one of them.
- ``check`` lints, ``bench`` measures, and ``lock`` renews ``requirements.lock``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "installed"
ARCHIVE = VENV / "spark.jsa"
#: Bytes of memory that have to be free, so that tests keep their files there.
MEMORY = 12 << 30

_started = time.monotonic()


def say(text: str) -> None:
    """Print where we are."""
    print(f"[{time.monotonic() - _started:5.0f} s] {text}", flush=True)


#: What ``test --fast`` runs: neither Spark nor Airflow, nothing that is killed, and no measuring of memory.
FAST = [
    "tests/test_main_job.py",
    "tests/unit/checkpoint",
    "tests/unit/transforms",
    "tests/unit/scan",
    "tests/unit/sources",
    "tests/contract/store",
    "-m",
    "not crash and not spark and not airflow",
    "-k",
    "not memory",
    "-n",
    "2",
    "--dist",
    "worksteal",
]

#: What ``matrix`` runs: the variables that make random tests longer, and their files.
MATRIX: dict[str, tuple[dict[str, str], list[str]]] = {
    "histories": ({"HISTORIES": "1500"}, ["tests/protocol/histories/test_histories.py"]),
    "foreign-hands": ({"FOREIGN_HISTORIES": "600"}, ["tests/protocol/histories/test_foreign_hands.py"]),
    "pieces": (
        {"PIECES_EXAMPLES": "300"},
        ["tests/protocol/histories/test_pieces.py", "tests/protocol/histories/test_buckets.py"],
    ),
    "rejected": ({"REJECTED_EXAMPLES": "300"}, ["tests/protocol/histories/test_rejected.py"]),
    "kills": ({"KILLS": "10"}, ["tests/spark/test_random_kills.py"]),
    "cluster-writes": ({"CLUSTER_WRITES": "1"}, ["tests/spark/test_cluster_writes.py"]),
    "spark-kills": ({"EFFECTS_WITH_SPARK": "1"}, ["tests/protocol/crash/test_spark.py"]),
    "upserts": ({"UPSERT_EXAMPLES": "300"}, ["tests/unit/tables/iceberg/test_upsert_model.py"]),
    "lance-moves": ({"ROUNDS": "400"}, ["tests/unit/tables/lance/test_moves.py"]),
    "lance-lineage": ({"ROUNDS": "1"}, ["tests/protocol/races/test_lance_lineage.py"]),
    "lance-races": ({"ROUNDS": "40"}, ["tests/protocol/races/test_lance.py"]),
    "lance-load": ({"ROUNDS": "20"}, ["tests/protocol/races/test_lance_mixed_load.py"]),
    "undo": ({"UNDO_EXAMPLES": "300"}, ["tests/protocol/histories/test_undo.py"]),
    "undo-crashes": ({"UNDO_ALL": "1"}, ["tests/protocol/crash/test_undo.py"]),
    "streams": ({"STREAM_KILLS": "50", "STREAM_BATCHES": "200"}, ["tests/spark/test_stream_kills.py"]),
    "live": ({"LIVE_ALL": "1"}, ["tests/airflow/test_live.py"]),
    "crashes": (
        {"CRASH_ALL": "1"},
        [
            "tests/protocol/crash/test_cleanup.py",
            "tests/protocol/crash/test_every_effect.py",
            "tests/protocol/crash/test_evolve.py",
            "tests/protocol/crash/test_lance.py",
            "tests/protocol/crash/test_points.py",
            "tests/protocol/crash/test_rejected.py",
            "tests/protocol/crash/test_sweep.py",
            "tests/protocol/crash/test_zombies.py",
        ],
    ),
}


#: Other versions of Python that ``matrix`` runs a few tests on, and these: the package as Airflow finds it, a stage that fails and
#: is retried, commands, the page.
PYTHONS = ("3.12", "3.13")
ON_OTHER_PYTHONS = [
    "tests/airflow/test_package.py",
    "tests/airflow/test_dag_runs.py::test_a_retry_recovers_what_the_first_try_staged_and_one_snapshot_lands",
    "tests/airflow/test_commands.py::test_show_says_what_was_saved_and_what_a_retry_would_do",
    "tests/airflow/test_commands.py::test_doctor_finds_everything_in_order_and_leaves_nothing_behind",
    "tests/airflow/test_page.py::test_airflow_lists_the_tabs_and_the_entry_in_the_navigation",
    "tests/airflow/test_page.py::test_the_tab_of_a_stage_that_was_killed_and_retried_says_what_the_retry_saved",
    "tests/airflow/test_page.py::test_the_list_has_only_what_the_user_may_see",
]


def run(*command: str | Path, **environment: str) -> None:
    """Run a command in this folder; stop with its exit code if it fails."""
    code = call(*command, **environment)
    if code:
        say(f"Failed: {' '.join(str(part) for part in command[:4])} ...")
        sys.exit(code)


def call(*command: str | Path, **environment: str) -> int:
    """Run a command in this folder; its exit code."""
    # Hundreds of processes would compile the same modules, if they may not keep what they compiled.
    left_out = ("AIRFLOW", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    env = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    env |= {"PATH": f"{BIN}{os.pathsep}{env.get('PATH', '')}", "VIRTUAL_ENV": str(VENV)} | environment
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=env, check=False).returncode


def require_tools() -> None:
    """Say what is missing before anything takes long."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on whatever Python there is
        sys.exit(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}.")
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ.get('PATH', '')}")
    if java is None:
        sys.exit(
            "Java 17 is needed for Spark, and there is no java on the PATH. On Debian: apt-get install openjdk-17-jre-headless"
        )


def setup() -> None:
    """Create ``.venv`` with exactly what the lock file says."""
    require_tools()
    digest = hashlib.sha256(LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == digest:
        return
    if not (BIN / "python").exists():
        say("Creating .venv")
        run(sys.executable, "-m", "venv", VENV)
    say("Installing the packages of requirements.lock (about 1.4 GB on disk; a minute or two)")
    run(BIN / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    ARCHIVE.unlink(missing_ok=True)
    run(BIN / "uv", "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", LOCK)
    run(BIN / "uv", "pip", "install", "--quiet", "--no-deps", "--editable", ROOT)
    STAMP.write_text(digest)
    say("Installed")


def demo() -> None:
    """Run the main job on real data: kill it, let Airflow retry it, look at the table."""
    setup()
    run(BIN / "python", "-m", "support.flights", PYTHONPATH=str(ROOT / "tests"))


def test(arguments: list[str]) -> None:
    """Run all tests, or those that the arguments select, as for pytest; with ``--fast``, those that take no Spark and no Airflow.

    On two processes more than there are cores, up to four, because many tests wait for a process of their own. They steal tests
    from each other, so that none is left with the long ones.
    """
    setup()
    if not ARCHIVE.exists() and "--fast" not in arguments:
        say("Archiving Spark's classes, so that each of many JVMs starts in a third of the time")
        run(BIN / "python", "-m", "support.jvm", PYTHONPATH=str(ROOT / "tests"))
    say("Running the tests")
    with temporary_folder(everything=not arguments) as folder:
        run(BIN / "python", "-m", "pytest", *selection(arguments), TMPDIR=folder)


@contextlib.contextmanager
def temporary_folder(*, everything: bool) -> Iterator[str]:
    """Where tests keep what they make: the usual place, or memory if all of them run and there is plenty of it.

    They make and remove a million small files, and wait for the disk at each commit of a catalog. All of it is some 4 GB; what is
    in memory is gone when they have ended. Select a test that has failed to look at what it leaves.
    """
    memory = Path("/dev/shm")
    if not everything or not os.access(memory, os.W_OK) or min(shutil.disk_usage(memory).free, memory_available()) < MEMORY:
        yield tempfile.gettempdir()
        return
    with tempfile.TemporaryDirectory(prefix="tests-", dir=memory, ignore_cleanup_errors=True) as folder:
        # PostgreSQL runs as a user of its own, and has to get through to its files.
        os.chmod(folder, 0o711)
        yield folder


def memory_available() -> int:
    """Bytes of memory that nothing uses."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def selection(arguments: list[str]) -> list[str]:
    """Arguments of pytest for those of ``test``."""
    processes = ["-n", str(min(4, (os.cpu_count() or 1) + 2)), "--dist", "worksteal"]
    if "--fast" in arguments:
        return [*FAST, *(one for one in arguments if one != "--fast")]
    return arguments or processes


def matrix(arguments: list[str]) -> None:
    """Run what is random for longer than ``test`` does: ``matrix``, or ``matrix --only NAME``."""
    names = chosen_of_matrix(arguments)
    setup()
    took: dict[str, tuple[float, bool]] = {}
    for name in names:
        start = time.monotonic()
        if name in MATRIX:
            variables, paths = MATRIX[name]
            say(f"{name}: {' '.join(f'{key}={value}' for key, value in variables.items())} {' '.join(paths)}")
            code = call(BIN / "python", "-m", "pytest", "-q", "--timeout=0", *paths, **variables)
        else:
            code = on_other_python(name.removeprefix("python-"))
        took[name] = (time.monotonic() - start, code == 0)
        say(f"{name}: {'passed' if code == 0 else 'FAILED'} after {took[name][0]:.0f} s")
    for name, (seconds, passed) in took.items():
        print(f"{name:16} {seconds:7.0f} s  {'passed' if passed else 'FAILED'}")
    if not all(passed for _, passed in took.values()):
        sys.exit(1)


def on_other_python(version: str) -> int:
    """Run a few tests on another Python, in an environment of its own with what the lock file says; the exit code.

    The interpreter is one that ``uv`` finds on this machine, or one of pyenv's. Nothing is downloaded for it.
    """
    found = subprocess.run(
        [BIN / "uv", "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
    ).stdout.strip() or max(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")), default="")
    if not found:
        say(f"There is no Python {version} on this machine, neither on the PATH nor of pyenv: nothing was run on it.")
        return 1
    say(f"Python {version} is {found}")
    with tempfile.TemporaryDirectory(prefix=f"python-{version}-") as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        for command in (
            ("venv", "--quiet", "--python", found, python.parent.parent),
            ("pip", "sync", "--quiet", "--require-hashes", "--python", python, LOCK),
            ("pip", "install", "--quiet", "--no-deps", "--python", python, "--editable", ROOT),
        ):
            if code := call(BIN / "uv", *command):
                return code
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        # From 3.13 on, Python says of each SQLite connection that a catalog or Airflow leaves to the garbage collector.
        unclosed = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
        command = (python, "-m", "pytest", "-q", *unclosed, *ON_OTHER_PYTHONS)
        return call(*command, PATH=path, VIRTUAL_ENV=str(python.parent.parent))


def chosen_of_matrix(arguments: list[str]) -> list[str]:
    """Names of the runs that the arguments ask for; ends with a message that lists them if there is no such run."""
    parser = argparse.ArgumentParser(prog="dev.py matrix")
    names = [*MATRIX, *(f"python-{version}" for version in PYTHONS)]
    parser.add_argument("--only", choices=names, action="append")
    return parser.parse_args(arguments).only or names


def check() -> None:
    """Lint, format, types and layers."""
    setup()
    for command in (("ruff", "check"), ("ruff", "format", "--check"), ("mypy",), ("lint-imports",)):
        say(" ".join(command))
        run(BIN / command[0], *command[1:])


def bench(arguments: list[str]) -> None:
    """Run the benchmarks and print their table."""
    setup()
    run(BIN / "python", "-m", "benchmarks", *arguments)


def lock() -> None:
    """Write ``requirements.lock`` anew from ``pyproject.toml``."""
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    run(BIN / "uv", "pip", "compile", *options, "--group", "dev", "pyproject.toml", "-o", LOCK)


def main() -> None:
    """Dispatch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["setup", "demo", "test", "matrix", "check", "bench", "lock"])
    chosen, arguments = parser.parse_known_args()
    if chosen.command in {"test", "matrix", "bench"}:
        {"test": test, "matrix": matrix, "bench": bench}[chosen.command](arguments)
    else:
        {"setup": setup, "demo": demo, "check": check, "lock": lock}[chosen.command]()


if __name__ == "__main__":
    main()
