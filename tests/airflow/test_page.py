"""The page in Airflow's UI over HTTP: who may see what, what it says, what an action does, and what a store cannot do to it."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.pages import HOSTILE, LARGE, SECRET, USERS, stage_some
from support.world import ORIGIN, World

import airflow_ckpt_provider
from airflow_ckpt_provider.checkpoint import sealing
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State, state_of

ROOT = Path(airflow_ckpt_provider.__file__).parents[1]

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

#: Every address of the application, and what it needs to answer for the key ``orders/staging``.
ADDRESSES = {
    "": {},
    "run": {"dag_id": "shop", "run_id": "manual__1"},
    "task": {"dag_id": "shop", "run_id": "manual__1", "task_id": "stage"},
    "checkpoint": {"key": "orders/staging"},
    "live.json": {"key": "orders/staging"},
    "checkpoint.json": {"key": "orders/staging"},
    "action": {"key": "orders/staging", "action": "restart"},
    "static/page.js": {},
    "static/theme.js": {},
    "static/page.css": {},
    "static/icon.svg": {},
}
KEYED = [path for path, values in ADDRESSES.items() if "key" in values]


def seen(reply):
    """What a person reads of a page."""
    without = re.sub(r"<(script|style)\b.*?</\1>", " ", reply.text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", without).replace("&#39;", "'").replace("&gt;", ">").replace("&lt;", "<").split())


def latest(pages, key):
    checkpoint = Checkpoint.latest(pages.world.store, IdempotenceKey(key))
    assert checkpoint is not None
    return checkpoint


def audited(pages, key):
    """What Airflow's audit log has of decisions about a key."""
    rows = pages.rows("select event, owner, dag_id, task_id, extra from log where event like 'checkpoint_%' order by id")
    return [row[:4] for row in rows if json.loads(row[4])["idempotence_key"] == key]


# -- what it costs those who do not look


def test_the_plugin_that_every_task_process_imports_loads_nothing_that_the_pages_need():
    code = (
        "import sys, json, airflow.plugins_manager; before = set(sys.modules); import airflow_ckpt_provider.ui.plugin; "
        "print(json.dumps([sorted(set(sys.modules) - before), sorted(sys.modules)]))"
    )
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True).stdout
    added, everything = json.loads(said.splitlines()[-1])
    assert {name.removeprefix("airflow_ckpt_provider") for name in added} <= {"", ".ui", ".ui.plugin"}
    assert {name.partition(".")[0] for name in everything}.isdisjoint(
        {"pyiceberg", "pyspark", "lance", "pyarrow", "obstore", "fastapi"}
    )


def test_the_wheel_has_the_templates_the_scripts_and_the_styles(tmp_path):
    # What builds wheels was fetched when this package was installed.
    build = [Path(sys.executable).parent / "uv", "build", "--wheel", "--offline", "--quiet", "-o", tmp_path, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        packed = set(opened.namelist())
        entry_points = next(opened.read(name).decode() for name in packed if name.endswith("entry_points.txt"))
    there = {
        str(path.relative_to(ROOT))
        for folder in ("templates", "static")
        for path in ROOT.glob(f"airflow_ckpt_provider/ui/{folder}/**/*.*")
    }
    assert len(there) > 15
    assert there <= packed
    assert "checkpoints = airflow_ckpt_provider.ui.plugin:CheckpointsPlugin" in entry_points


def test_nothing_that_a_page_loads_comes_from_elsewhere():
    for path in ROOT.glob("airflow_ckpt_provider/ui/**/*.*"):
        if path.suffix in {".html", ".css", ".js"}:
            found = set(re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]+[^\s\"']*", path.read_text()))
            assert found <= {"http://www.w3.org/2000/svg"}, path


# -- who gets in


def test_airflow_lists_the_tabs_and_the_entry_in_the_navigation(pages):
    plugins = pages.airflow._call("GET", "/api/v2/plugins")["plugins"]
    (ours,) = [plugin for plugin in plugins if plugin["name"] == "checkpoints"]
    assert {(view["destination"], view["url_route"]) for view in ours["external_views"]} == {
        ("nav", "checkpoints"),
        ("dag_run", "run_checkpoints"),
        ("task_instance", "task_checkpoint"),
    }


def test_every_address_is_among_those_that_are_tried():
    source = (ROOT / "airflow_ckpt_provider" / "ui" / "routes.py").read_text()
    paths = {path.removesuffix("{name}") for path in re.findall(r'@router\.\w+\("/([^"]*)"', source)}
    assert paths == {path if "/" not in path else "static/" for path in ADDRESSES}


@pytest.mark.parametrize("path", ADDRESSES)
def test_nobody_gets_anything_without_having_signed_in(pages, path):
    reply = pages.get(path, **ADDRESSES[path])
    assert reply.status == 401
    assert "orders" not in reply.text.replace("key=orders", "")
    assert pages.get(path, user="viewer", **ADDRESSES[path]).status == (200 if path != "action" else 403)


def test_nobody_decides_anything_without_having_signed_in(pages):
    reply = pages.post("action", action="discard", key="orders/staging", generation=1)
    assert reply.status == 401
    assert state_of(latest(pages, "orders/staging")) is State.STAGING


@pytest.mark.parametrize("user", ["viewer", "editor"])
@pytest.mark.parametrize("path", KEYED)
def test_a_checkpoint_of_a_dag_that_the_user_may_not_see_is_refused_whatever_the_address_claims(pages, path, user):
    values = ADDRESSES[path] | {"key": "secret/one"}
    for claimed in ({}, {"dag_id": "shop"}, {"dag_id": "shop", "run_id": "manual__1", "task_id": "stage"}):
        reply = pages.get(path, user=user, **values, **claimed)
        assert reply.status == 403
        assert SECRET not in reply.text
    assert pages.get(path, user="operator", **values).status == 200


@pytest.mark.parametrize("path", KEYED)
def test_a_checkpoint_of_a_program_is_for_those_who_may_see_the_connection(pages, path):
    values = ADDRESSES[path] | {"key": "program/one"}
    assert [pages.get(path, user=user, **values).status for user in USERS] == [200, 200, 403, 403]


def test_the_tabs_of_a_dag_that_the_user_may_not_see_are_refused(pages):
    for path in ("run", "task"):
        values = ADDRESSES[path] | {"dag_id": SECRET}
        assert pages.get(path, user="viewer", **values).status == 403
        assert pages.get(path, user="admin", **values).status == 200


def test_the_list_has_only_what_the_user_may_see(pages):
    for user, sees in (("admin", True), ("operator", True), ("editor", False), ("viewer", False)):
        text = seen(pages.get("", user=user))
        assert "orders/staging" in text
        assert "orders/committed" in text
        torn = f"{IdempotenceKey('orders/torn').hash}/g1"
        assert [word in text for word in ("secret/one", SECRET, "program/one", torn)] == [sees] * 4, user


def test_the_facts_say_no_secret_of_a_dag_that_another_attempt_belongs_to(pages):
    world = pages.world
    stage_some(world.attempt(world.request("shared")), 1)
    foreign = ORIGIN.__class__(dag_id=SECRET, task_id="stage", run_id="their-run", map_index=-1)
    stage_some(world.attempt(world.request("shared", origin=foreign)), 1)
    assert "of another Dag" in seen(pages.get("checkpoint", user="viewer", key="shared"))
    for path in ("checkpoint", "live.json", "checkpoint.json"):
        assert "their-run" not in pages.get(path, user="viewer", key="shared").text, path
        assert "their-run" in pages.get(path, user="admin", key="shared").text, path


# -- what may be opened


@pytest.mark.parametrize("path", ["", *KEYED])
def test_only_connections_of_stores_are_opened_and_others_look_as_if_they_were_missing(pages, path):
    replies = [pages.get(path, user="admin", **ADDRESSES[path], conn_id=name) for name in ("some_database", "no_such_one")]
    texts = [reply.text.replace("no_such_one", "some_database") for reply in replies]
    assert texts[0] == texts[1]
    assert "of the type checkpoint" in texts[0]
    assert "postgres" not in texts[0]


def test_a_connection_in_airflows_database_is_a_store_too(pages, tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files()
    world.stage(world.request("kept elsewhere"), splits=2)
    body = {"connection_id": "second_store", "conn_type": "checkpoint", "host": f"file://{tmp_path}/store"}
    pages.airflow._call("POST", "/api/v2/connections", body)
    assert "2 of 4 splits are staged." in seen(pages.get("checkpoint", user="viewer", key="kept elsewhere", conn_id="second_store"))
    # Only those who may see connections are told which there are.
    assert "second_store" in pages.get("", user="operator").text
    assert "second_store" not in pages.get("", user="viewer").text


def test_a_store_that_the_server_cannot_reach_says_why(pages):
    page = pages.get("", user="admin", conn_id="closed_store")
    script = pages.get("live.json", user="admin", key="orders", conn_id="closed_store")
    assert [page.status, script.status] == [200, 502]
    assert "Could not list" in json.loads(script.text)["detail"]
    for reply in (page, script):
        assert "Access Denied" in reply.text
        assert "s3://bucket/prefix" in reply.text
        assert "closed-store-password" not in reply.text
        assert "Traceback" not in reply.text


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"key": "no such key"}, 404),
        ({"key": "orders/staging", "generation": "7"}, 404),
        ({"key": "orders/staging", "generation": "99999999999999999999"}, 404),
        ({"key": "orders/staging", "generation": "-1"}, 404),
        ({"key": " "}, 400),
        ({"key": "x" * 600}, 400),
        ({"key": "a\x00b\u202e"}, 400),
        ({}, 422),
        ({"key": "orders/staging", "generation": "one"}, 422),
    ],
)
def test_what_is_not_there_is_said_to_be_missing(pages, values, status):
    for path in ("checkpoint", "live.json"):
        reply = pages.get(path, user="viewer", **values)
        assert reply.status == status
        assert "Traceback" not in reply.text


# -- what it says


def test_the_tab_of_a_stage_that_was_killed_and_retried_says_what_the_retry_saved(pages):
    values = {"dag_id": "shop", "run_id": pages.run_id, "map_index": "{MAP_INDEX}"}
    text = seen(pages.get("task", user="viewer", task_id="stage", **values))
    assert "1,200 rows landed in shop.orders, in snapshot" in text
    assert "Saved by the retry 5 splits, 500 rows" in text
    assert "5 recovered" in text
    assert "7 written" in text
    assert "A retry verifies the commit and writes nothing." in text
    assert "try 1" in text
    assert "try 2" in text
    # The commit has taken up the same checkpoint, and the run has no other.
    assert "1,200 rows landed in shop.orders" in seen(pages.get("task", user="viewer", task_id="commit", **values))
    assert "1,200 rows landed in shop.orders" in seen(pages.get("run", user="viewer", dag_id="shop", run_id=pages.run_id))


def test_a_run_whose_xcoms_are_gone_is_found_by_the_origin_of_its_checkpoints(pages):
    text = seen(pages.get("run", user="viewer", dag_id="shop", run_id="manual__1"))
    for key in ("orders/staging", "orders/sealed", "orders/committed", "orders/discarded"):
        assert key in text
    assert "secret/one" not in text


def test_a_task_instance_without_a_checkpoint_says_so_and_waits(pages):
    reply = pages.get("task", user="viewer", dag_id="shop", run_id=pages.run_id, task_id="nothing")
    assert reply.status == 200
    assert "has no checkpoint yet" in seen(reply)


def test_a_run_with_many_keys_shows_some_and_leads_to_the_others_and_hides_those_of_other_dags(pages):
    with sqlite3.connect(pages.database, timeout=30) as connection:
        statement = (
            "insert into xcom (dag_run_id, dag_id, run_id, task_id, map_index, key, value, timestamp) "
            "values (999, 'shop', 'many', 'stage', ?, 'idempotence_key', ?, '2026-01-01 00:00:00')"
        )
        keys = ["orders/sealed", "secret/one", *(f"no such key {number}" for number in range(63))]
        connection.executemany(statement, [(number, json.dumps(key)) for number, key in enumerate(keys)])
    text = seen(pages.get("run", user="viewer", dag_id="shop", run_id="many"))
    assert "1,200 rows" not in text
    assert "orders/sealed" in text
    assert "secret/one" not in text
    assert "1 checkpoint of Dags or programs that you have no access to is left out." in text
    assert "5 more keys of this run are not shown here." in text
    assert "secret/one" in seen(pages.get("run", user="admin", dag_id="shop", run_id="many"))
    # One instance of a mapped task has its own.
    assert "wait for their commit" in seen(
        pages.get("task", user="viewer", dag_id="shop", run_id="many", task_id="stage", map_index=0)
    )


def test_each_state_has_its_sentence(pages):
    said = {key: seen(pages.get("checkpoint", user="viewer", key=f"orders/{key}")) for key in ("staging", "sealed", "discarded")}
    assert "8 of 12 splits are staged." in said["staging"]
    assert "A retry keeps 8 of 12 splits and writes 4." in said["staging"]
    assert "All 12 splits are staged. 1,200 rows wait for their commit into shop.orders." in said["sealed"]
    assert "Given up. It is not committed any more." in said["discarded"]
    assert "<b>not wanted</b> any more" in said["discarded"]


def test_the_script_is_told_what_has_changed_and_when_to_stop(pages):
    staging, done = (
        json.loads(pages.get("live.json", user="viewer", key=key).text) for key in ("orders/staging", "orders/committed")
    )
    assert staging["letters"] == "r" * 5 + "w" * 3 + "m" * 4
    assert [staging["final"], done["final"]] == [False, True]
    facts = json.loads(pages.get("checkpoint.json", user="viewer", key="orders/staging").text)
    assert [split["state"] for split in facts["splits"]] == ["recovered"] * 5 + ["written"] * 3 + ["missing"] * 4
    assert facts["kept"]["rows"] == 500


def test_ten_thousand_splits_are_asked_for_in_a_few_kilobytes(pages):
    reply = pages.get("live.json", user="viewer", key=LARGE, conn_id="large_store")
    letters = json.loads(reply.text)["letters"]
    assert (len(letters), letters.count("m")) == (10_000, 3_500)
    assert len(reply.text) < 25_000


def test_a_list_is_searched_and_filtered(pages):
    def keys(**values):
        return set(re.findall(r"[?&;]key=([^\"&]+)", pages.get("", user="admin", **values).text))

    assert keys(q="ORDERS/STAG") == {"orders%2Fstaging"}
    assert keys(q=SECRET) == {"secret%2Fone"}
    assert keys(state="discarded") == {"orders%2Fdiscarded"}
    assert {"orders%2Fstaging", "orders%2Fsealed"} <= keys(q="shop.orders")
    assert keys(q="no such thing") == set()
    assert keys(page=2) == set()


def test_a_write_that_waits_for_its_commit_for_hours_is_marked(pages, monkeypatch):
    from datetime import timedelta

    monkeypatch.setattr(sealing, "now", lambda: now() - timedelta(hours=5))
    stage_some(pages.world.attempt(pages.world.request("orders/forgotten")))
    text = seen(pages.get("", user="viewer"))
    assert "1 write is sealed for over an hour, and no commit has landed it." in text
    assert "sealed 5 h ago, not committed" in text
    only = seen(pages.get("", user="viewer", state="uncommitted"))
    assert "orders/forgotten" in only
    assert "orders/sealed" not in only
    assert "sealed 5 h ago, not committed" in seen(pages.get("checkpoint", user="viewer", key="orders/forgotten"))


# -- what a store may hold


@pytest.mark.parametrize("path", ["", "run", "checkpoint", "live.json", "action"])
def test_markup_in_keys_runs_and_reasons_is_shown_and_not_taken_for_markup(pages, path):
    values = {"run": {"dag_id": "shop", "run_id": HOSTILE}, "": {"q": HOSTILE}}.get(path, ADDRESSES[path] | {"key": HOSTILE})
    reply = pages.get(path, user="admin", **values)
    assert reply.status == 200
    html = "".join(json.loads(reply.text)["parts"].values()) if path == "live.json" else reply.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script>alert" not in html
    assert "<img" not in html
    assert "{{ 7 * 7 }}" in html


@pytest.mark.parametrize(
    "values", [{"key": HOSTILE}, {"key": "orders", "conn_id": HOSTILE}, {"key": "orders", "generation": HOSTILE}]
)
def test_markup_in_an_address_is_not_given_back_as_markup(pages, values):
    for path in ("checkpoint", "", "live.json", "action"):
        reply = pages.get(path, user="viewer", **values)
        html = reply.text if "json" not in reply.headers["content-type"] else ""
        assert "<script>alert" not in html
        assert "<img" not in html


@pytest.mark.parametrize("path", ADDRESSES)
def test_every_answer_forbids_foreign_scripts_and_frames(pages, path):
    for user in ("", "admin"):
        reply = pages.get(path, user=user, **ADDRESSES[path])
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", [path for path in ADDRESSES if not path.endswith(("json", "js", "css", "svg"))])
def test_pages_hold_no_script_and_no_style_of_their_own(pages, path):
    html = pages.get(path, user="admin", **ADDRESSES[path]).text
    found = Elements()
    found.feed(html)
    assert "main" in found.names
    assert "style" not in found.names
    assert not re.search(r"<script(?![^>]*\ssrc=)", html)
    assert [name for name in found.attributes if name.startswith("on") or name == "style"] == []


# -- what may be done


@pytest.fixture
def staged(pages, request):
    """A key of the test's own, of which two splits are staged."""
    key = f"decided/{request.node.name}"
    stage_some(pages.world.attempt(pages.world.request(key, transform=unchanged)), 2)
    return key


class Elements(HTMLParser):
    """Which elements and attributes a page has, as a browser reads it."""

    def __init__(self):
        super().__init__()
        self.names, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)


def unchanged(batch):
    return batch


def test_those_who_may_not_edit_the_dag_are_offered_nothing_and_refused(pages, staged):
    assert 'href="action?' not in pages.get("checkpoint", user="viewer", key=staged).text
    assert pages.get("action", user="viewer", key=staged, action="discard").status == 403
    reply = pages.post("action", user="viewer", key=staged, action="discard", generation=1)
    assert (reply.status, "You may see this checkpoint and not change it" in seen(reply)) == (403, True)
    assert state_of(latest(pages, staged)) is State.STAGING
    assert audited(pages, staged) == []


def test_a_program_is_decided_about_by_those_who_may_edit_the_connection(pages):
    assert pages.post("action", user="editor", key="program/one", action="discard", generation=1).status == 403
    assert pages.get("action", user="operator", key="program/one", action="discard").status == 200


def test_a_restart_says_what_it_will_do_and_does_it_once_it_is_confirmed(pages, staged):
    page = pages.get("checkpoint", user="editor", key=staged).text
    assert re.findall(r'href="action\?action=(\w+)', page) == ["continue", "restart", "discard"]
    asked = pages.get("action", user="editor", key=staged, action="restart")
    assert "is given up with its 2 staged splits, none of which has landed in shop.orders." in seen(asked)
    # Asking has changed nothing.
    assert state_of(latest(pages, staged)) is State.STAGING
    assert audited(pages, staged) == []
    done = pages.post("action", user="editor", key=staged, action="restart", generation=1)
    assert done.status == 200
    assert "Clear the task 'stage' now." in seen(done)
    assert state_of(latest(pages, staged)) is State.DISCARDED
    assert audited(pages, staged) == [("checkpoint_restart", "editor", "shop", "stage")]
    assert latest(pages, staged).discarded().reason == "restart was asked for by editor"
    # Nothing is left to decide but to clean up, and a second press of the button says so.
    page = pages.get("checkpoint", user="editor", key=staged).text
    assert re.findall(r'href="action\?action=(\w+)', page) == ["clean"]
    again = pages.post("action", user="editor", key=staged, action="restart", generation=1)
    assert (again.status, "Nothing was changed" in seen(again)) == (409, True)
    assert len(audited(pages, staged)) == 1
    # What is left of it is removed, and not by asking what that would be.
    asked = [seen(pages.get("action", user="editor", key=staged, action="clean")) for _ in range(2)]
    cleaned = seen(pages.post("action", user="editor", key=staged, action="clean", generation=1))
    (files,) = {re.search(r"refers to (?:would be|were) removed: (\d+) \(", said)[1] for said in (*asked, cleaned)}
    assert int(files) > 0
    assert "would be removed: 0 (0 bytes)" in seen(pages.get("action", user="editor", key=staged, action="clean"))
    assert ("checkpoint_clean", "editor", "shop", "stage") in audited(pages, staged)
    # The next attempt writes everything anew.
    attempt = stage_some(pages.world.attempt(pages.world.request(staged, transform=unchanged)))
    assert (attempt.checkpoint.header.generation, state_of(attempt.checkpoint)) == (2, State.SEALED)


def test_going_on_with_other_code_is_asked_for_once(pages, staged):
    assert "keeps its 2 staged splits" in seen(pages.get("action", user="editor", key=staged, action="continue"))
    done = pages.post("action", user="editor", key=staged, action="continue", generation=1)
    assert done.status == 200
    changed = pages.world.request(staged, transform=lambda batch: batch.slice(0))
    attempt = stage_some(pages.world.attempt(changed))
    assert (attempt.checkpoint.header.generation, state_of(attempt.checkpoint)) == (1, State.SEALED)
    assert audited(pages, staged) == [("checkpoint_continue", "editor", "shop", "stage")]


def test_what_has_landed_is_taken_out_again_by_an_undo(pages):
    key = "decided/undone"
    pages.world.commit(stage_some(pages.world.attempt(pages.world.request(key))))
    before = len(pages.world.ids())
    assert re.findall(r'href="action\?action=(\w+)', pages.get("checkpoint", user="editor", key=key).text) == ["undo", "clean"]
    assert "1,200 rows in 12 files go, and nothing comes back." in seen(pages.get("action", user="editor", key=key, action="undo"))
    assert len(pages.world.ids()) == before
    done = pages.post("action", user="editor", key=key, action="undo", generation=1)
    assert (done.status, "has taken out of shop.orders" in seen(done)) == (200, True)
    assert len(pages.world.ids()) == before - 1_200
    page = pages.get("checkpoint", user="editor", key=key)
    assert "Undone: what it had landed in shop.orders was taken out again." in seen(page)
    assert re.findall(r'href="action\?action=(\w+)', page.text) == ["clean"]
    assert "1,200 rows landed in shop.orders" in seen(pages.get("checkpoint", user="editor", key=key, generation=1))
    assert audited(pages, key) == [("checkpoint_undo", "editor", "shop", "stage")]


def test_what_was_opened_since_the_question_is_not_given_up_by_the_answer(pages, staged):
    pages.post("action", user="editor", key=staged, action="restart", generation=1)
    stage_some(pages.world.attempt(pages.world.request(staged, transform=unchanged)), 1)
    reply = pages.post("action", user="editor", key=staged, action="discard", generation=1)
    assert (reply.status, "was opened meanwhile" in seen(reply)) == (409, True)
    assert state_of(latest(pages, staged)) is State.STAGING


@pytest.mark.parametrize("origin", [None, "https://evil.example", "null", "http://127.0.0.1:1", "http://["])
def test_a_form_that_another_page_sends_is_refused(pages, staged, origin):
    reply = pages.post("action", user="admin", origin=origin, key=staged, action="discard", generation=1)
    assert (reply.status, "was not sent by a page of this Airflow" in seen(reply)) == (403, True)
    assert state_of(latest(pages, staged)) is State.STAGING


def test_a_form_is_no_longer_than_it_has_to_be(pages, staged):
    assert pages.post("action", user="admin", key=staged, action="discard", generation=1, more="x" * 100_000).status == 413


def test_what_is_committed_is_not_given_up(pages):
    reply = pages.post("action", user="admin", key="orders/committed", action="discard", generation=1)
    assert (reply.status, "it is committed to shop.orders" in seen(reply)) == (409, True)
    assert "This cannot be done" in seen(pages.get("action", user="admin", key="orders/committed", action="restart"))
    assert pages.get("action", user="admin", key="orders/committed", action="drop").status == 400


def test_a_table_is_opened_through_no_connection_that_the_user_may_not_see(pages, staged):
    def reply(user, name):
        return pages.get("action", user=user, key=staged, action="discard", table_conn_id=name)

    assert reply("editor", "some_database").status == 403
    # Who may see it is told what is wrong with it, and the store is not asked which one is right.
    text = seen(reply("operator", "some_database"))
    assert "This cannot be done" in text
    assert "Connection of the table" in text
    assert reply("editor", "iceberg_default").status == 200
