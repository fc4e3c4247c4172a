"""moto behind a server that keeps connections, and hands requests for S3 to it at once.

moto's own server takes a connection, a thread and two frameworks for each request: several times as long as moto takes to answer
it, and hundreds of thousands of requests are a good part of the suite's time. What is answered is moto's.
"""

from __future__ import annotations

import functools
import http.client
import io
import socketserver
import threading
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote_to_bytes

from moto.core import serialize
from moto.core.request import normalize_request
from moto.moto_server.werkzeug_app import BackendRequest, DomainDispatcherApplication, create_backend_app
from moto.s3.responses import S3Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: In the signature of each request for S3.
_FOR_S3 = "/s3/aws4_request"


class MotoServer(socketserver.ThreadingTCPServer):
    """A server on a free port of loopback; a thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.others = DomainDispatcherApplication(create_backend_app)
        # It looks into its own folder, twice, which of a hundred services is meant.
        self.others.get_backend_for_host = functools.cache(self.others.get_backend_for_host)

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.server_address)

    def __enter__(self) -> Self:
        # The time of each object in a list, from text to text.
        serialize.parse_to_aware_datetime = functools.lru_cache(1 << 14)(serialize.parse_to_aware_datetime)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def server_close(self) -> None:
        """Close the port, and wait for no client that keeps its connection."""
        self.socket.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that are killed in the middle of a request."""


class _Connection(socketserver.StreamRequestHandler):
    # Head and body of an answer are one packet.
    disable_nagle_algorithm = True
    server: MotoServer

    def handle(self) -> None:
        while (environ := self._request()) is not None:
            status, headers, body = self._answer(environ)
            head = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
            # To a HEAD, the length is that of what a GET would get.
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            length = lengths[0] if lengths and environ["REQUEST_METHOD"] == "HEAD" else len(body)
            head += [f"{name}: {value}" for name, value in headers if name.lower() not in {"content-length", "connection"}]
            if status not in {204, 304}:
                head.append(f"Content-Length: {length}")
            sent = b"" if environ["REQUEST_METHOD"] == "HEAD" else body
            self.wfile.write("\r\n".join([*head, "", ""]).encode("latin-1") + sent)

    def _request(self) -> dict[str, Any] | None:
        """The next request as WSGI has it; None if the client is gone."""
        try:
            line = self.rfile.readline().decode("latin-1").split()
        except ConnectionError:
            return None
        if len(line) != 3:
            return None
        path, _, query = line[1].partition("?")
        host, port = self.server.server_address
        environ: dict[str, Any] = {
            "REQUEST_METHOD": line[0],
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query,
            "REQUEST_URI": line[1],
            "RAW_URI": line[1],
            "SERVER_NAME": host,
            "SERVER_PORT": str(port),
            "SERVER_PROTOCOL": line[2],
            "REMOTE_ADDR": self.client_address[0],
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        while text := self.rfile.readline().decode("latin-1").rstrip("\r\n"):
            name, _, value = text.partition(":")
            name = name.upper().replace("-", "_")
            environ[name if name in {"CONTENT_LENGTH", "CONTENT_TYPE"} else f"HTTP_{name}"] = value.strip()
        if environ.get("HTTP_EXPECT", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        in_chunks = environ.pop("HTTP_TRANSFER_ENCODING", "").lower() == "chunked"
        body = self._chunks() if in_chunks else self.rfile.read(int(environ.get("CONTENT_LENGTH") or 0))
        return environ | {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}

    def _chunks(self) -> bytes:
        """A body whose length was not told before."""
        found = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(found)

    def _answer(self, environ: Mapping[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
        if _FOR_S3 in environ.get("HTTP_AUTHORIZATION", ""):
            request = normalize_request(BackendRequest(dict(environ)))
            bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
            dispatch = S3Response.key_dispatch if key else S3Response.ambiguous_dispatch if bucket else S3Response.bucket_dispatch
            status, headers, body = dispatch(request, request.raw_url, dict(request.headers))
            return status, [(name, str(value)) for name, value in headers.items()], _bytes(body)
        started: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Callable[[bytes], None]:
            started[:] = [int(status.split(maxsplit=1)[0]), headers]
            return lambda _: None

        body = b"".join(self.server.others(dict(environ), start_response))
        return started[0], started[1], body


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")
