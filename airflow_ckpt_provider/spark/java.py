"""Whether there is a Java that Spark can start, told before it tries. Spark itself ends in a page of its launcher's errors."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from airflow_ckpt_provider.exceptions import InvalidInputError

#: Spark 4 is compiled for it: https://spark.apache.org/docs/latest/#downloading
OLDEST = 17

_VERSION = re.compile(r'^JAVA_VERSION="?(?:1\.)?(\d+)', re.MULTILINE)


class Java(NamedTuple):
    """A Java that Spark would start.

    :param executable: path of the program.
    :param version: its major version; None if its home does not say.
    """

    executable: str
    version: int | None


def java() -> Java | None:
    """The Java that Spark's launcher takes: that of ``JAVA_HOME``, or the one on the path; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    executable = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if executable is None or not os.access(executable, os.X_OK):
        return None
    return Java(executable, _version(Path(os.path.realpath(executable)).parent.parent / "release"))


def require_java() -> Java:
    """The Java that Spark would start.

    :raises InvalidInputError: if there is none, or one that is too old.
    """
    found = java()
    home = os.environ.get("JAVA_HOME")
    place = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "JAVA_HOME is not set, and there is no java on the PATH"
    if found is None:
        raise InvalidInputError(
            f"Spark needs Java {OLDEST} or newer on this machine, and there is none: {place}. Install it (on Debian: "
            "apt-get install openjdk-17-jre-headless), or use a connection of type spark_connect, which needs no Java here."
        )
    if found.version is not None and found.version < OLDEST:
        raise InvalidInputError(
            f"Spark needs Java {OLDEST} or newer, and {found.executable} is Java {found.version}. Point JAVA_HOME to a newer one."
        )
    return found


def _version(release: Path) -> int | None:
    """The major version in the file that each Java has in its home."""
    try:
        match = _VERSION.search(release.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return int(match[1]) if match else None
