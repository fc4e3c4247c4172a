"""A PostgreSQL of the tests' own on loopback: started once for a run, a database for each test that asks for one.

Its data lives in a temporary folder, its port is one that the system chose, and it does without durability. It refuses to
run as root, so then it runs as another user, who owns that folder.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg2
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()


class Database(NamedTuple):
    """An empty database.

    :param uri: for SQLAlchemy.
    """

    name: str
    port: int

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://tests@127.0.0.1:{self.port}/{self.name}"

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Cut all connections, and let nobody in until the block ends."""
        _execute(self.port, f"alter database {self.name} allow_connections false")
        _execute(self.port, f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{self.name}'")
        try:
            yield
        finally:
            _execute(self.port, f"alter database {self.name} allow_connections true")


@pytest.fixture(scope="session")
def postgres_port() -> Iterator[int]:
    """Port of the running server."""
    # Not one of pytest's folders, which another user cannot enter; and short, because it holds a socket.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        user = _as_somebody(folder)
        data = folder / "data"
        initdb = [_binary("initdb"), "-D", str(data), "-U", "tests", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, env={"PATH": "/usr/bin:/bin"}, **user)
        port = _free_port()
        server = _start(folder, data, port, user)
        try:
            _await(server, port, folder / "log")
            yield port
        finally:
            # Fast shutdown: does not wait for clients.
            server.send_signal(signal.SIGINT)
            server.wait(30)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgres_database(postgres_port: int) -> Database:
    """A new empty database."""
    return new_database(postgres_port)


def new_database(port: int) -> Database:
    """An empty database of the server at ``port``."""
    database = Database(f"db{next(_numbers)}", port)
    _execute(port, f"create database {database.name}")
    return database


def _as_somebody(folder: Path) -> dict[str, Any]:
    """Arguments that start a process as somebody who may run PostgreSQL, to whom the folder is given."""
    if os.getuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}


def _binary(name: str) -> str:
    """Path of a program of PostgreSQL; Debian keeps them off the PATH."""
    found = shutil.which(name) or max(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), default=None)
    assert found, f"PostgreSQL's {name} is not installed; on Debian: apt-get install postgresql"
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start(folder: Path, data: Path, port: int, user: dict[str, Any]) -> subprocess.Popen[bytes]:
    settings = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": folder,
        "port": port,
        "fsync": "off",
        "full_page_writes": "off",
        "synchronous_commit": "off",
        "shared_buffers": "16MB",
        "max_connections": 300,
    }
    command = [_binary("postgres"), "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={"PATH": "/usr/bin:/bin"}, **user)


def _await(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            _execute(port, "select 1")
        except psycopg2.OperationalError:
            assert server.poll() is None, f"PostgreSQL did not start: {log.read_text()}"
            assert time.monotonic() < end, f"PostgreSQL did not answer in a minute: {log.read_text()}"
            time.sleep(0.05)
        else:
            return


def _execute(port: int, statement: str) -> None:
    connection = psycopg2.connect(host="127.0.0.1", port=port, user="tests", dbname="postgres")
    connection.autocommit = True
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(statement)
