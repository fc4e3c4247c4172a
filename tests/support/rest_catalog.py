"""A small Iceberg REST server over loopback, whose commits go wrong on demand in every way that HTTP allows.

It keeps its tables in a SQL catalog, speaks only the part of the protocol that pyiceberg uses, and answers errors as the
protocol says. A fault is told before or after the commit is applied, which is all the difference that a client cannot see.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, StagedTable
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: What can happen to a commit, as ``<what the client gets> <when>``.
BEFORE = ("500 before", "502 before", "503 before", "504 before", "409 before", "429 before", "drop before", "garbage before")
AFTER = ("500 after", "502 after", "503 after", "504 after", "409 after", "drop after", "garbage after", "slow after")
#: No answer to this commit, nor to anything after it, until the test makes the server ``reachable`` again.
AWAY = "away after"
#: The commit is not allowed.
REFUSED = tuple(f"{status} before" for status in (400, 401, 403, 404, 405, 413, 415, 422, 501))
#: The commit is applied, or not, and never answered.
SILENT = ("silence after", "silence before")
#: The client is told 504, and the commit is applied right after somebody's next one, or when the test says so.
ZOMBIE = "zombie"

_ERRORS: dict[type[Exception], tuple[int, str]] = {
    NoSuchNamespaceError: (404, "NoSuchNamespaceException"),
    NoSuchTableError: (404, "NoSuchTableException"),
    NamespaceAlreadyExistsError: (409, "AlreadyExistsException"),
    TableAlreadyExistsError: (409, "AlreadyExistsException"),
    NamespaceNotEmptyError: (409, "NamespaceNotEmptyException"),
    CommitFailedException: (409, "CommitFailedException"),
    ValidationError: (400, "ValidationException"),
}

_SLOW_S = 0.3


@dataclass(frozen=True)
class Answer:
    """Status and body of an answer; no status closes the connection without one."""

    status: int | None
    body: bytes = b""

    @classmethod
    def of(cls, document: Any) -> Answer:
        return cls(200, document if isinstance(document, bytes) else json.dumps(document).encode())

    @classmethod
    def error(cls, status: int, kind: str, message: str) -> Answer:
        return cls(status, json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode())


@dataclass
class RestServer:
    """The server, and what the test wants of it.

    :param uri: where it listens.
    :param faults: each commit takes the next one; see ``BEFORE``, ``AFTER`` and ``ZOMBIE``.
    :param commits: fault and status of the applied commit, "-" if it was not applied, for each request to commit.
    :param zombies: statuses of the late commits that were applied, which nobody was told.
    """

    catalog: SqlCatalog
    uri: str = ""
    faults: deque[str] = field(default_factory=deque)
    commits: list[str] = field(default_factory=list)
    zombies: list[int | None] = field(default_factory=list)
    reachable: bool = True
    closing: threading.Event = field(default_factory=threading.Event)
    _held: list[Callable[[], Answer]] = field(default_factory=list)

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Close every connection without an answer until the block ends."""
        self.reachable = False
        try:
            yield
        finally:
            self.reachable = True

    def release_zombies(self) -> None:
        """Apply the commits whose senders were told of a time-out."""
        while self._held:
            self.zombies.append(self._held.pop(0)().status)

    def answer(self, method: str, path: list[str], body: bytes) -> Answer:
        """The answer to one request: the path is ``config``, or ``namespaces``, a namespace, ``tables`` and a table."""
        if path == ["config"]:
            return Answer.of({"defaults": {}, "overrides": {}})
        # Who only asks whether something exists gets no body, but the same status.
        route = getattr(self, f"_{method.replace('HEAD', 'GET').lower()}_{len(path)}", None)
        if route is None or path[0::2] not in (["namespaces"], ["namespaces", "tables"]):
            return Answer.error(404, "NotFoundException", f"{method} {path}")
        return route(*path[1::2], *([body] if method == "POST" else []))

    def _get_1(self) -> Answer:
        return Answer.of({"namespaces": self.catalog.list_namespaces()})

    def _post_1(self, body: bytes) -> Answer:
        asked = json.loads(body)
        self.catalog.create_namespace(tuple(asked["namespace"]), asked.get("properties") or {})
        return Answer.of(asked)

    def _get_2(self, namespace: str) -> Answer:
        return Answer.of({"namespace": [namespace], "properties": self.catalog.load_namespace_properties(namespace)})

    def _delete_2(self, namespace: str) -> Answer:
        self.catalog.drop_namespace(namespace)
        return Answer(204)

    def _get_3(self, namespace: str) -> Answer:
        found = self.catalog.list_tables(namespace)
        return Answer.of({"identifiers": [{"namespace": one[:-1], "name": one[-1]} for one in found]})

    def _post_3(self, namespace: str, body: bytes) -> Answer:
        # What a client does not care for it leaves out.
        asked = {"location": None, "partition-spec": None, "write-order": None} | json.loads(body)
        return self._create(namespace, CreateTableRequest.model_validate(asked))

    def _get_4(self, namespace: str, table: str) -> Answer:
        return _loaded(self.catalog.load_table((namespace, table)))

    def _post_4(self, namespace: str, table: str, body: bytes) -> Answer:
        return self._commit((namespace, table), CommitTableRequest.model_validate_json(body))

    def _delete_4(self, namespace: str, table: str) -> Answer:
        self.catalog.drop_table((namespace, table))
        return Answer(204)

    def _create(self, namespace: str, asked: CreateTableRequest) -> Answer:
        identifier = (namespace, asked.name)
        facts: dict[str, Any] = {
            "schema": asked.table_schema,
            "location": asked.location,
            "partition_spec": asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            "sort_order": asked.write_order or UNSORTED_SORT_ORDER,
            "properties": asked.properties,
        }
        if not asked.stage_create:
            return _loaded(self.catalog.create_table(identifier, **facts))
        if not self.catalog.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {namespace}")
        if self.catalog.table_exists(identifier):
            raise TableAlreadyExistsError(f"Table already exists: {identifier}")
        # Nothing is stored: the table begins with the commit that asserts its creation.
        return Answer.of({"metadata": _json(self.catalog._create_staged_table(identifier, **facts).metadata)})

    def _commit(self, identifier: tuple[str, str], asked: CommitTableRequest) -> Answer:
        fault = self.faults.popleft() if self.faults else ""

        def apply() -> Answer:
            return _guarded(lambda: self._apply(identifier, asked))

        if fault == ZOMBIE:
            self._held.append(apply)
            self.commits.append(f"{fault} -")
            return Answer.error(504, "GatewayTimeoutException", "the catalog took too long")
        what, _, when = fault.partition(" ")
        applied = None if when == "before" else apply()
        self.commits.append(f"{fault} {applied.status if applied else '-'}".strip())
        if applied is not None and applied.status == 200:
            self.release_zombies()
        if what == "slow":
            time.sleep(_SLOW_S)
        if what == "silence":
            self.closing.wait()
        self.reachable = what != "away"
        return _garbled(what) if what and what != "slow" else applied

    def _apply(self, identifier: tuple[str, str], asked: CommitTableRequest) -> Answer:
        # The table that a SQL catalog takes is a name only: it checks the requirements on its own.
        name = StagedTable(identifier, None, "", None, self.catalog)
        done = self.catalog.commit_table(name, asked.requirements, asked.updates)
        return Answer.of({"metadata": _json(done.metadata), "metadata-location": done.metadata_location})


def _garbled(what: str) -> Answer:
    """What a client is told in place of the truth."""
    match what:
        case "drop" | "away" | "silence":
            return Answer(None)
        case "garbage":
            return Answer(200, b"<html>welcome to the proxy</html>")
        case "409":
            return Answer.error(409, "CommitFailedException", "the table was updated by another process")
        case "503" | "504" | "413" | "405":
            # A proxy's own pages are no JSON.
            return Answer(int(what), b"<html>upstream is away, or was not asked</html>")
        case _:
            return Answer.error(int(what), "InternalServerError", "something went wrong")


def _loaded(table: Any) -> Answer:
    return Answer.of({"metadata": _json(table.metadata), "metadata-location": table.metadata_location})


def _json(metadata: Any) -> Any:
    return json.loads(metadata.model_dump_json())


def _guarded(work: Callable[[], Answer]) -> Answer:
    """Errors as the protocol says them."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - a server answers whatever happens
        for kind, (status, name) in _ERRORS.items():
            if isinstance(error, kind):
                return Answer.error(status, name, str(error))
        return Answer.error(500, type(error).__name__, str(error))


def _handler(server: RestServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are two packets, of which the second would wait 40 ms for the first one's receipt.
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            # /v1/namespaces/shop/tables/orders; a part may hold an encoded slash.
            path = [unquote(part) for part in urlsplit(self.path).path.split("/")[2:] if part]
            answer = _guarded(lambda: server.answer(self.command, path, body)) if server.reachable else Answer(None)
            if answer.status is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - names that the base class calls

        def log_message(self, *args: Any) -> None:
            """Tests say themselves what they find."""

    return Handler


class _Http(ThreadingHTTPServer):
    #: Eight racers connect at the same moment.
    request_queue_size = 64
    daemon_threads = True


def serve(folder: Path) -> Iterator[RestServer]:
    """A running server with its tables below ``folder``, where a ``World`` has them too; stopped afterwards."""
    (folder / "warehouse").mkdir(parents=True, exist_ok=True)
    server = RestServer(SqlCatalog("rest", uri=f"sqlite:///{folder}/rest.db", warehouse=f"file://{folder}/warehouse"))
    http = _Http(("127.0.0.1", 0), _handler(server))
    server.uri = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.closing.set()
    http.shutdown()
    http.server_close()
    thread.join()
    server.catalog.close()


@pytest.fixture
def rest_server(tmp_path: Path) -> Iterator[RestServer]:
    """A running server without tables."""
    yield from serve(tmp_path)
