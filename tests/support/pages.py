"""An API server with pages of checkpoints of every kind, for tests over HTTP and in a browser.

The server, its users and a finished Dag run are those of a real Airflow; the writes are those of a ``World``, which takes no Spark.
"""

from __future__ import annotations

import http.server
import json
import os
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from airflow_ckpt_provider.checkpoint.documents import Origin, Split
from airflow_ckpt_provider.checkpoint.encoding import to_json
from support.live_airflow import AIRFLOW, LiveAirflow
from support.world import ORIGIN, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_ckpt_provider.write.attempt import WriteAttempt

#: A Dag that ``support.auth_manager`` shows to nobody below an operator.
SECRET = "secret_shop"

#: Roles of the users, by their names, which are their passwords.
USERS = {"admin": "admin", "operator": "op", "editor": "user", "viewer": "viewer"}

#: A key that is taken for markup and script by whoever does not escape it.
HOSTILE = """<script>alert(1)</script>"><img src=x onerror="document.title='hacked'">' {{ 7 * 7 }}"""

#: A key of ten thousand splits, in the store of ``large_store``.
LARGE = "orders/large"

#: A Dag whose stage is killed on its first try; its second try goes on, and the commit lands it.
DAG = """
from datetime import datetime, timedelta

from airflow.sdk import DAG, task
from support.pages import commit_all, stage_part

with DAG("shop", schedule=None, start_date=datetime(2026, 1, 1)):

    @task(retries=1, retry_delay=timedelta(0))
    def stage(ti=None):
        return stage_part("{root}", ti, None if ti.try_number > 1 else 5)

    @task
    def commit(reference):
        return commit_all("{root}", reference)

    commit(stage())
"""


class Reply(NamedTuple):
    """An answer of the server."""

    status: int
    text: str
    headers: dict[str, str]


class PageServer:
    """A running API server, and the world behind its ``checkpoint_default``."""

    def __init__(self, airflow: LiveAirflow, world: World, run_id: str) -> None:
        self.url = airflow.url
        self.world = world
        self.run_id = run_id
        self.airflow = airflow
        self.tokens = {name: airflow.token_of(name) for name in USERS}
        self.database = airflow.home / "airflow.db"

    def get(self, path: str, user: str = "", **values: object) -> Reply:
        """Ask for a page, as a browser does that carries a user's cookie; as nobody without one."""
        query = f"?{urllib.parse.urlencode(values)}" if values else ""
        return self._answer(urllib.request.Request(f"{self.url}/checkpoints/{path}{query}"), user)

    def post(self, path: str, user: str = "", origin: str | None = "", **fields: object) -> Reply:
        """Send a form from a page of this server, or from one of another ``origin``, or None."""
        request = urllib.request.Request(f"{self.url}/checkpoints/{path}", data=urllib.parse.urlencode(fields).encode())
        if origin is not None:
            request.add_header("Origin", origin or self.url)
        return self._answer(request, user)

    def _answer(self, request: urllib.request.Request, user: str) -> Reply:
        if user:
            request.add_header("Cookie", f"_token={self.tokens[user]}")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return Reply(reply.status, reply.read().decode(), dict(reply.headers.items()))
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.read().decode(), dict(error.headers.items()))

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """What a statement finds in Airflow's database."""
        with sqlite3.connect(self.database, timeout=30) as connection:
            return connection.execute(statement, values).fetchall()


def stage_part(root: str, ti: Any, splits: int | None) -> dict[str, Any]:
    """What a stage does in one try: push its key, and stage; with ``splits``, it fails after that many."""
    world = World(Path(root))
    key = f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"
    ti.xcom_push(key="idempotence_key", value=key)
    origin = Origin(dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
    stage_some(world.attempt(world.request(key, origin=origin)), splits, try_number=ti.try_number)
    if splits is not None:
        raise RuntimeError("killed")
    return {"idempotence_key": key, "checkpoint_conn_id": "checkpoint_default", "table_conn_id": "iceberg_default"}


def commit_all(root: str, reference: dict[str, Any]) -> dict[str, Any]:
    """What a commit does."""
    world = World(Path(root))
    world.commit(world.attempt(world.request(reference["idempotence_key"])))
    return reference


def stage_some(attempt: WriteAttempt, splits: int | None = None, *, try_number: int = 1) -> WriteAttempt:
    """One attempt, as Spark's would be: with ``splits``, it stops after that many."""
    left = splits
    time.sleep(0.05)
    while (found := attempt.next_round()) is not None:
        work = attempt.begin("spark 4.2.0", try_number)
        for split in sorted(found.missing, key=lambda split: split.id):
            if left == 0:
                return attempt
            work.run(split, "0")
            left = None if left is None else left - 1
    attempt.seal()
    return attempt


class Closed(http.server.BaseHTTPRequestHandler):
    """Object storage that lets nobody in."""

    def do_GET(self) -> None:
        body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def put_large(root: Path) -> None:
    """A store with one checkpoint of ten thousand splits."""
    world = World(root)
    world.create_table()
    world.put_files(files=1)
    put_many(world, LARGE, 10_000, 6_500)


def put_many(world: World, key: str, count: int, staged: int) -> None:
    """A checkpoint of ``count`` splits, of which ``staged`` are published, without their files."""
    attempt = stage_some(world.attempt(world.request(key)), 1)
    checkpoint = attempt.checkpoint
    plan = checkpoint.plans()[0]
    (record,) = checkpoint.staged(sorted(checkpoint.staged_ids()))
    splits = tuple(Split(id=f"s{number:06}", bytes=1_000_000 + number, read=plan.splits[0].read) for number in range(count))
    folder = world.root / "store"
    (folder / checkpoint.paths.plan()).write_bytes(
        to_json(checkpoint.paths.plan(), msgspec.structs.replace(plan, splits=splits), None)
    )
    (folder / checkpoint.paths.staged(record.split)).unlink()
    second = world.attempt(world.request(key))
    for number, split in enumerate(splits[:staged]):
        if number == staged // 2:
            second.begin("spark 4.2.0", 2)
        checkpoint.publish(msgspec.structs.replace(record, split=split.id))


def put_kinds(world: World) -> None:
    """One checkpoint of each kind."""
    shop = ORIGIN
    stage_some(world.attempt(world.request("orders/staging")), 5)
    stage_some(world.attempt(world.request("orders/staging")), 3, try_number=2)
    stage_some(world.attempt(world.request("orders/sealed")))
    world.commit(stage_some(world.attempt(world.request("orders/committed"))))
    given_up = stage_some(world.attempt(world.request("orders/discarded")), 2)
    given_up.checkpoint.discard("<b>not wanted</b> any more")
    stage_some(world.attempt(world.request(HOSTILE, origin=msgspec.structs.replace(shop, run_id=HOSTILE))), 1)
    stage_some(world.attempt(world.request("secret/one", origin=msgspec.structs.replace(shop, dag_id=SECRET))), 1)
    stage_some(world.attempt(world.request("program/one", origin=Origin(dag_id="", task_id="prog", run_id="", map_index=-1))), 1)
    torn = stage_some(world.attempt(world.request("orders/torn")), 1)
    (world.root / "store" / torn.checkpoint.paths.header).write_text("{")


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A server with checkpoints of every kind, and a Dag run that was killed, retried and committed."""
    root = tmp_path_factory.mktemp("pages")
    world = World(root / "world")
    world.create_table()
    world.put_files(files=12)
    dags = root / "dags"
    dags.mkdir()
    (dags / "shop.py").write_text(DAG.format(root=world.root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    closed = f"http://127.0.0.1:{server.server_port}"
    catalog = {key: value for key, value in world.catalog_properties.items() if key != "name"}
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "AIRFLOW__CORE__AUTH_MANAGER": "support.auth_manager.PickyAuthManager",
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"conn_type": "iceberg", "extra": catalog}),
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT": json.dumps({"conn_type": "checkpoint", "host": f"file://{world.root}/store"}),
        "AIRFLOW_CONN_LARGE_STORE": json.dumps({"conn_type": "checkpoint", "host": f"file://{root}/large/store"}),
        "AIRFLOW_CONN_CLOSED_STORE": json.dumps(
            {
                "conn_type": "checkpoint",
                "host": "s3://bucket/prefix",
                "login": "AKIAEXAMPLE",
                "password": "closed-store-password",
                "extra": {"endpoint": closed, "allow_http": True, "region": "eu-central-1"},
            }
        ),
        "AIRFLOW_CONN_SOME_DATABASE": json.dumps({"conn_type": "postgres", "host": "db", "password": "hidden"}),
    }
    airflow = LiveAirflow(root / "home", dags, environment=environment, components=("api-server",), users=USERS)
    put_large(root / "large")
    airflow.prepare()
    command = [*AIRFLOW, "dags", "test", "shop"]
    tested = subprocess.Popen(command, env=airflow.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=root)
    with airflow:
        said, _ = tested.communicate(timeout=120)
        assert tested.returncode == 0, said.decode()
        put_kinds(world)
        with sqlite3.connect(airflow.home / "airflow.db") as connection:
            ((run_id,),) = connection.execute("select run_id from dag_run where dag_id = 'shop'").fetchall()
        yield PageServer(airflow, world, run_id)
    server.shutdown()
    server.server_close()


def main() -> None:
    """Serve the pages until they are not wanted any more, for whoever works on them: ``python -m support.pages FOLDER``."""
    import signal
    import sys

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    class Factory:
        def mktemp(self, name: str) -> Path:
            folder = Path(sys.argv[1]) / name
            folder.mkdir(parents=True)
            return folder

    for server in pages.__wrapped__(Factory()):  # type: ignore[attr-defined]
        print(server.url, server.run_id, os.getpid(), flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
