#!/usr/bin/env python3
"""The project's commands. Needs only Python 3.11 or newer with ``venv`` and ``pip``, and Java 17.

Each command first sets up ``.venv`` in this folder (once; again when ``requirements.lock`` changes). Nothing outside this folder
and the system's temporary folder is written; ``~/airflow`` is never touched.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "installed"

_started = time.monotonic()


def say(text: str) -> None:
    """Print where we are."""
    print(f"[{time.monotonic() - _started:5.0f} s] {text}", flush=True)


def run(*command: str | Path, **environment: str) -> None:
    """Run a command in this folder; stop with its exit code if it fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHONPATH"))}
    env |= {"PATH": f"{BIN}{os.pathsep}{env.get('PATH', '')}", "VIRTUAL_ENV": str(VENV)} | environment
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=env, check=False)
    if done.returncode:
        say(f"Failed: {' '.join(str(part) for part in command[:4])} ...")
        sys.exit(done.returncode)


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
    run(BIN / "uv", "pip", "sync", "--quiet", "--require-hashes", LOCK)
    run(BIN / "uv", "pip", "install", "--quiet", "--no-deps", "--editable", ROOT)
    STAMP.write_text(digest)
    say("Installed")


def demo() -> None:
    """Run the main job on real data: kill it, let Airflow retry it, look at the table."""
    setup()
    run(BIN / "python", "-m", "support.flights", PYTHONPATH=str(ROOT / "tests"))


def test(arguments: list[str]) -> None:
    """Run all tests, or those that the arguments select, as for pytest.

    By files, in the order of their names, in which the long ones are not last. On one process more than there are cores, up to
    four, because many tests wait for a process of their own.
    """
    setup()
    say("Running the tests")
    processes = str(min(4, (os.cpu_count() or 1) + 1))
    run(BIN / "python", "-m", "pytest", *(arguments or ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]))


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["setup", "demo", "test", "check", "bench", "lock"])
    chosen, arguments = parser.parse_known_args()
    if chosen.command in {"test", "bench"}:
        {"test": test, "bench": bench}[chosen.command](arguments)
    else:
        {"setup": setup, "demo": demo, "check": check, "lock": lock}[chosen.command]()


if __name__ == "__main__":
    main()
