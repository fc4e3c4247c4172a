"""A fake S3 on loopback: one moto server for the whole run, a bucket for each test that asks for one.

It speaks real HTTP, so that conditional puts, ETags and listings go through the same client as in production.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import TYPE_CHECKING, NamedTuple

import boto3
import pytest
from botocore.config import Config
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response

from support.moto_server import MotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from moto.s3.models import S3Backend

SECRET = "not-a-real-secret"  # what no document, repr or message may ever show

_numbers = itertools.count()


class Bucket(NamedTuple):
    """A bucket of the fake S3, and the obstore options to open it with."""

    name: str
    options: dict[str, str]

    def uri(self, path: str = "") -> str:
        return f"s3://{self.name}/{path}"

    def put(self, path: str, data: bytes) -> None:
        """Put an object, as somebody else than the code under test."""
        _client(self.options["endpoint"]).put_object(Bucket=self.name, Key=path, Body=data)

    def delete(self, path: str) -> None:
        _client(self.options["endpoint"]).delete_object(Bucket=self.name, Key=path)

    def contents(self, prefix: str) -> dict[str, bytes]:
        """All objects below ``prefix``, as anybody with a key would read them."""
        client = _client(self.options["endpoint"])
        found = client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return {item["Key"]: client.get_object(Bucket=self.name, Key=item["Key"])["Body"].read() for item in found}


class Kept(NamedTuple):
    """An object as it was."""

    data: bytes
    at: datetime


def kept(bucket: str, prefix: str) -> dict[str, Kept]:
    """All objects below ``prefix``, from the server's own memory: a request for each would take longer than what is tested."""
    found = _backend().buckets[bucket].keys.items()
    return {name: Kept(key.value, key.last_modified) for name, key in found if name.startswith(prefix)}


def put_back(bucket: str, prefix: str, objects: dict[str, Kept]) -> None:
    """Let there be exactly these objects below ``prefix``."""
    backend, there = _backend(), kept(bucket, prefix)
    for name in there.keys() - objects.keys():
        backend.delete_object(bucket, name)
    for name in [name for name in objects if there.get(name) != objects[name]]:
        backend.put_object(bucket, name, objects[name].data).last_modified = objects[name].at


def _backend() -> S3Backend:
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of the server; its port is free because the system chose it."""
    _put_atomically()
    with MotoServer() as server:
        yield server.url


def _put_atomically() -> None:
    """Let the server check a condition and put in one step, as S3 promises: moto's threads do it in two."""
    lock, put = threading.Lock(), S3Response.put_object

    def atomically(self: S3Response) -> object:
        with lock:
            return put(self)

    S3Response.put_object = atomically


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> Bucket:
    """A new empty bucket."""
    bucket = Bucket(
        f"bucket-{next(_numbers)}",
        {
            "endpoint": s3_endpoint,
            "allow_http": "true",
            "access_key_id": "test",
            "secret_access_key": SECRET,
            "region": "us-east-1",
        },
    )
    _client(s3_endpoint).create_bucket(Bucket=bucket.name)
    return bucket


@functools.cache
def _client(endpoint: str):
    config = Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=10)
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=config,
    )
