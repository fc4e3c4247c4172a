"""Whether a Spark Connect server answers, in bounded time: PySpark's client tries for about ten minutes before it says anything."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError, StoppedError

if TYPE_CHECKING:
    import threading

#: Seconds that a server may take until it can be talked to.
PATIENCE_S = 30.0

_LOOK_EVERY_S = 0.25


def require_reachable(remote: str, conn_id: str, stopping: threading.Event) -> None:
    """Refuse to go on with a server that cannot be reached. Proxies, TLS and tokens count as they do for the session.

    :param remote: Spark Connect URL, with its token: never shown.
    :param conn_id: id of the connection, for the message; empty if there is none.
    :param stopping: set when the wait is to end.
    :raises InvalidInputError: if the URL is none.
    :raises RetryableError: if the server cannot be reached.
    """
    import grpc
    from pyspark.errors import PySparkValueError
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    named = f"the connection {conn_id!r}" if conn_id else "the Spark Connect URL"
    try:
        builder = DefaultChannelBuilder(remote)
        channel = builder.toChannel()
    except (PySparkValueError, ValueError):
        # What they say repeats parts of the URL, which may be its token.
        raise InvalidInputError(
            f"The Spark Connect URL of {named} cannot be read. Its host and port have to make sc://host:port, without a path."
        ) from None
    ready = grpc.channel_ready_future(channel)
    end = time.monotonic() + PATIENCE_S
    with contextlib.closing(channel):
        while not stopping.is_set() and time.monotonic() < end:
            with contextlib.suppress(grpc.FutureTimeoutError):
                ready.result(timeout=_LOOK_EVERY_S)
                return
        ready.cancel()
    if stopping.is_set():
        raise StoppedError("It was stopped while it waited for Spark Connect.")
    raise RetryableError(
        f"Spark Connect at {builder.endpoint} cannot be reached: it did not answer within {PATIENCE_S:.0f} s. Check host and port "
        f"of {named}, that the server runs, and use_ssl=true in the connection's extra if it takes TLS only. Nothing was written."
    )
