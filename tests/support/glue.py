"""A fake Glue with a fake S3 beside it: moto in a process of its own, which refuses what the real Glue refuses.

moto takes an update of a table whatever ``VersionId`` it names, and two creations at the same moment: eight racers make one
snapshot and all of them are told that theirs has landed. So the check is added here, in the server, under one lock.

It is another process because iceberg-rust holds the interpreter's lock while it waits for S3.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from support import aws_models

if TYPE_CHECKING:
    from collections.abc import Iterator

_ACCESS = {"region": "us-east-1", "access-key-id": "test", "secret-access-key": "not-a-real-secret"}

_numbers = itertools.count()


def serve(*, checked: bool) -> None:
    """Serve until standard input ends; the first line of standard output is the endpoint."""
    from support.moto_server import MotoServer

    if checked:
        refuse_stale_versions()
    with MotoServer() as server:
        print(server.url, flush=True)
        sys.stdin.read()


def refuse_stale_versions() -> None:
    """Add to moto's Glue what it lacks: a look at the version that an update was made from, and one change at a time."""
    from moto.glue.exceptions import GlueClientError
    from moto.glue.responses import GlueResponse

    lock = threading.Lock()
    create, update = GlueResponse.create_table, GlueResponse.update_table

    def create_table(self: Any) -> Any:
        with lock:
            return create(self)

    def update_table(self: Any) -> Any:
        with lock:
            asked = self.parameters.get("VersionId")
            name = self.parameters["TableInput"]["Name"]
            current = self.glue_backend.get_table(self.parameters["DatabaseName"], name).as_dict()["VersionId"]
            if asked is not None and asked != current:
                message = f"Update table failed due to concurrent modifications: version {asked} of {name} is not {current}."
                raise GlueClientError("ConcurrentModificationException", message)
            return update(self)

    GlueResponse.create_table, GlueResponse.update_table = create_table, update_table


@pytest.fixture(scope="session")
def glue_endpoint() -> Iterator[str]:
    """URL of a server of Glue and S3 that refuses stale versions."""
    aws_models.keep()
    yield from _server("checked")


@pytest.fixture(scope="session")
def plain_glue_endpoint() -> Iterator[str]:
    """URL of moto as it is."""
    yield from _server("plain")


def glue_catalog(endpoint: str) -> dict[str, str | int]:
    """Properties of a Glue catalog on an emptied server, with a bucket for its warehouse."""
    import boto3

    # All catalogs of a server would be one and the same.
    requests.post(f"{endpoint}/moto-api/reset", timeout=30).raise_for_status()
    # Another name each time, because file systems and readers remember what they saw.
    bucket = f"warehouse-{next(_numbers)}"
    names = {f"aws_{name.replace('-', '_')}": value for name, value in _ACCESS.items() if name != "region"}
    boto3.client("s3", endpoint_url=endpoint, region_name=_ACCESS["region"], **names).create_bucket(Bucket=bucket)
    access = {f"{service}.{name}": value for service in ("glue", "s3") for name, value in _ACCESS.items()}
    # Two tries: a catalog that does not answer is to be noticed within a test's patience.
    return {"type": "glue", "warehouse": f"s3://{bucket}/tables", "glue.max-retries": 2} | at_endpoint(endpoint) | access


def at_endpoint(endpoint: str) -> dict[str, str]:
    """The properties that say where the server is."""
    return {"glue.endpoint": endpoint, "s3.endpoint": endpoint}


def _server(kind: str) -> Iterator[str]:
    tests = Path(__file__).resolve().parents[1]
    process = subprocess.Popen(
        [sys.executable, __file__, kind],
        env=os.environ | {"PYTHONPATH": str(tests)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process.stdout.readline().strip()
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


if __name__ == "__main__":
    serve(checked=sys.argv[1] == "checked")
