"""Environments of other tools, which are not installed beside this project: each is made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def python_with(cache: Path, name: str) -> Path:
    """The interpreter of an environment that has what ``<name>.txt`` in this folder lists.

    :param cache: folder in which it is kept.
    """
    wanted = (Path(__file__).parent / f"{name}.txt").read_text()
    home = cache / f"{name}-venv"
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"    installing {name} into {home} ...", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        uv = str(Path(sysconfig.get_path("scripts")) / "uv")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(home)], check=True)
        requirements = str(Path(__file__).parent / f"{name}.txt")
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), "-r", requirements], check=True)
        stamp.write_text(wanted)
    return home / "bin" / "python"
