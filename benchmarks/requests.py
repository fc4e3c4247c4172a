"""(r) What each operation asks of the checkpoint store and of the storage of the input: requests by kind, bytes, table loads."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import commits, groups
from airflow_ckpt_provider.write.cleanup import Listings, clean
from airflow_ckpt_provider.write.sweep import Sweep
from benchmarks.report import Line
from benchmarks.stage import place
from benchmarks.synthetic import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from benchmarks.stage import Place

NOTE = (
    "(r) Requests as the object store's client is asked for them, for all stages or splits together, and how often the table's "
    "catalog loads it. A stage: from opening the checkpoint to its seal, its splits' tasks included, in one process without Spark. "
    "Its retry: by a new attempt, after the seal or after all but one split. The commit of all as one snapshot; one poke of a "
    "sensor of each after that; the clean-up of all keys in one task, and after that a "
    "sweep of the store, twice. The input lies beside the store: it is listed and looked at, "
    "and what is read of it is not counted, nor are the table's own files, which are local. S3 is a local server. KB: bytes of "
    "documents. Nothing is timed."
)

#: Mapped stages, or splits.
MANY = (1, 10, 100)

_KINDS = ("put", "get", "head", "list", "list_with_delimiter", "delete")


class Asked(Counter[str]):
    """Requests by kind; ``bytes put``, ``bytes got`` and ``loads`` beside them."""

    def __str__(self) -> str:
        kinds = [f"{self[kind]:,} {kind.replace('_with_delimiter', ' of folders')}" for kind in _KINDS if self[kind]]
        sizes = f"{self['bytes put'] / 1000:,.1f} KB put, {self['bytes got'] / 1000:,.1f} KB got"
        return f"{', '.join(kinds) or 'none'} ({sizes}, table loaded {self['loads']:,} x)"

    @property
    def requests(self) -> int:
        """All requests."""
        return sum(self[kind] for kind in _KINDS)


@contextlib.contextmanager
def asked() -> Iterator[Asked]:
    """Count what this process asks for in the block."""
    found, lock = Asked(), threading.Lock()

    def counting(kind: str, original: Any) -> Any:
        def ask(*args: Any, **settings: Any) -> Any:
            with lock:
                found[kind] += 1
                found["bytes put"] += len(args[2]) if kind == "put" else 0
            answer = original(*args, **settings)
            with lock:
                found["bytes got"] += answer.meta["size"] if kind == "get" else 0
            return answer

        return ask

    load = SqlCatalog.load_table

    def loading(*args: Any, **settings: Any) -> Any:
        found["loads"] += 1
        return load(*args, **settings)

    with contextlib.ExitStack() as patches:
        for kind in _KINDS:
            patches.enter_context(mock.patch.object(obstore, kind, counting(kind, getattr(obstore, kind))))
        patches.enter_context(mock.patch.object(SqlCatalog, "load_table", loading))
        yield found


def measure(cache: Path) -> list[Line]:
    """A line for each operation and number, with S3 beside a local store."""
    found = {}
    for where in ("local", "S3"):
        with place(cache) as here, _storage(here, where) as options:
            for many in MANY:
                found[where, f"{many} mapped stages of a split each", many] = _mapped(here, options, many)
                found[where, f"one stage of {many} splits", many] = _of_splits(here, options, many)
    lines = []
    for (where, what, many), operations in found.items():
        if where == "local":
            for name, mine in operations.items():
                other = found["S3", what, many][name]
                lines.append(Line(f"(r) {name}, {what}", f"local: {mine}", f"S3: {other}", mine.requests / many, None, unit="each"))
    return lines


def _mapped(here: Place, options: dict[str, str], many: int) -> dict[str, Asked]:
    """Many stages of one split, and one commit."""
    keys = [here.key() for _ in range(many)]
    table = _table(here)
    sources = [_source(here, options, key, 1) for key in keys]
    counts: dict[str, Asked] = {}
    with asked() as counts["stage"]:
        for key, source in zip(keys, sources, strict=True):
            _stage(_attempt(here, key, source, table, options))
    with asked() as counts["retry of a sealed stage"]:
        for key, source in zip(keys, sources, strict=True):
            _stage(_attempt(here, key, source, table, options))
    return counts | _committed(here, keys, table)


def _of_splits(here: Place, options: dict[str, str], many: int) -> dict[str, Asked]:
    """One stage of many splits, whose last one is staged by a retry."""
    key, table = here.key(), _table(here)
    source = _source(here, options, key, many)
    counts: dict[str, Asked] = {}
    with asked() as counts["stage, but for the last split"]:
        _stage(_attempt(here, key, source, table, options), left=1)
    with asked() as counts["retry that stages the last split"]:
        _stage(_attempt(here, key, source, table, options))
    return counts | _committed(here, [key], table)


def _committed(here: Place, keys: list[IdempotenceKey], table: str) -> dict[str, Asked]:
    counts: dict[str, Asked] = {}
    with asked() as counts["commit"]:
        groups.commit([Checkpoint.at(here.store, key, 1) for key in keys], here.as_table(table))
    with asked() as counts["poke of a sensor"]:
        for key in keys:
            checkpoint = Checkpoint.latest(here.store, key)
            recorded = checkpoint.committed() if checkpoint is not None else None
            if checkpoint is None or recorded is None:
                raise RuntimeError("It must be committed.")
            commits.verify(checkpoint, recorded, here.as_table(table))
    with asked() as counts["clean-up"]:
        listings = Listings()
        for key in keys:
            list(clean(Checkpoint.at(here.store, key, 1), lambda _: here.as_table(table), listings))
    for name in ("sweep", "sweep that finds nothing to remove"):
        with asked() as counts[name]:
            # As if all of it had been put long ago.
            swept = list(Sweep(here.store, lambda _: here.as_table(table), older_than=-timedelta(minutes=1)).run())
            if any(one.kept for one in swept):
                raise RuntimeError("Everything is done.")
    return counts


def _attempt(here: Place, key: IdempotenceKey, source: Files, table: str, options: dict[str, str]) -> WriteAttempt:
    return here.attempt(key, source, table, options=options)


def _stage(attempt: WriteAttempt, left: int = 0) -> None:
    """Stage the missing splits but for ``left`` of them, and seal if none is left."""
    while (found := attempt.next_round()) is not None:
        work = attempt.begin("benchmark", 1)
        for split in found.missing[: len(found.missing) - left]:
            work.run(split, "0")
        if left:
            return
    attempt.seal()


def _table(here: Place) -> str:
    name = f"requests_{here.key().hash}"
    here.create_table(name, SCHEMA)
    return name


def _source(here: Place, options: dict[str, str], key: IdempotenceKey, files: int) -> Files:
    """A folder of small input files beside the store."""
    uri = here.store.uri.rstrip("/").removesuffix("/store") + f"/in/{key.hash}"
    storage = CheckpointStore.at(uri, **options).location.open(create=True)
    for number in range(files):
        rows = {"part": pa.array([0], pa.int32()), "id": [number], "value": [number / 4], "name": [f"name {number}"]}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(rows), sink)
        obstore.put(storage, f"{number:05d}.parquet", sink.getvalue().to_pybytes())
    return Files(f"{uri}/*.parquet", max_split_bytes=1)


@contextlib.contextmanager
def _storage(here: Place, where: str) -> Iterator[dict[str, str]]:
    """Options of the storage, with the store of the place in it."""
    if where == "local":
        yield {}
        return
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint, region = f"http://{host}:{port}", "us-east-1"
        given = {"access_key_id": "any", "secret_access_key": "any", "region": region, "endpoint": endpoint, "allow_http": "true"}
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        boto3.client("s3", endpoint_url=endpoint, region_name=region, **keys).create_bucket(Bucket="benchmark")
        here.store = CheckpointStore.at("s3://benchmark/store", **given)
        yield given
    finally:
        server.stop()
