"""``airflow checkpoints …`` as a person or a script calls it: through Airflow's own parser."""

from __future__ import annotations

import io
import json
import os
import sys
import time

import msgspec
import pytest
from airflow.cli.cli_parser import get_parser
from airflow.utils import yaml
from contract.table.both import only_even
from support.aging import grow_old, landed
from support.foreign import compact
from support.world import ORIGIN

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.checkpoint.trying_out import try_out
from airflow_ckpt_provider.exceptions import StoreUnusableError
from airflow_ckpt_provider.spark.java import java

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while connections are read.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture
def world(dag_world):
    dag_world.put_files(4, 10)
    return dag_world


class Called:
    """What a command printed, and how it ended."""

    def __init__(self, out, err, code):
        self.out, self.err, self.code = out, err, code

    @property
    def document(self):
        return json.loads(self.out)


@pytest.fixture
def checkpoints(capsys, monkeypatch):
    """Calls a command, whose standard input is no terminal unless something is typed."""

    def call(*arguments, typed=None):
        terminal = io.StringIO(f"{typed}\n")
        terminal.isatty = lambda: typed is not None
        monkeypatch.setattr(sys, "stdin", terminal)
        capsys.readouterr()
        args = get_parser().parse_args(["checkpoints", *arguments])
        code = 0
        try:
            args.func(args)
        except SystemExit as end:
            code = end.code
        return Called(*capsys.readouterr(), code)

    return call


def newest(world, key="orders"):
    return Checkpoint.latest(world.store, IdempotenceKey(key))


# -- looking ---------------------------------------------------------------------------------------------------------------


def test_list_is_a_table_for_a_person_and_a_document_for_a_script(world, checkpoints):
    world.stage(world.request("orders/2"), splits=1)
    landed(world)
    table = [line.split() for line in checkpoints("list").out.splitlines()]
    assert table[0] == ["KEY", "STATE", "STAGED", "SPLITS", "ROWS", "ATTEMPTS", "CHANGED", "AT", "TABLE"]
    assert [line[:4] for line in table[1:]] == [["orders/1", "committed", "4", "4"], ["orders/2", "staging", "1", "4"]]
    rows = checkpoints("list", "--output", "json").document
    assert [(row["key"], row["state"], row["rows"]) for row in rows] == [
        ("orders/1", "committed", 40),
        ("orders/2", "staging", None),
    ]
    assert yaml.safe_load(checkpoints("list", "-o", "yaml").out) == rows
    assert checkpoints("list", "-o", "plain").out.split()[0] == "orders/1"


def test_list_is_narrowed_by_keys_and_by_states_and_may_be_empty(world, checkpoints):
    landed(world)
    world.stage(world.request("orders/2"), splits=1)
    world.stage(world.request("returns"), splits=1)
    listed = checkpoints("list", "--keys", "orders/*", "--state", "staging", "-o", "json").document
    assert [row["key"] for row in listed] == ["orders/2"]
    assert checkpoints("list", "--keys", "nobody", "-o", "json").document == []


def test_what_a_store_holds_cannot_move_the_cursor_of_a_terminal(world, checkpoints):
    # No operator writes such a name, but whoever can write to the store can.
    origin = msgspec.structs.replace(ORIGIN, task_id="stage\x1b[2J\x1b]0;title\x07")
    world.stage(world.request(origin=origin), splits=1)
    out = checkpoints("show", "orders").out
    assert "\x1b" not in out
    assert "stage\\x1b[2J" in out


def test_show_says_what_was_saved_and_what_a_retry_would_do(world, checkpoints):
    world.stage(splits=3)
    time.sleep(0.02)
    world.stage()
    out = checkpoints("show", "orders").out
    assert "splits:      4: 3 recovered, 1 written" in out
    assert "the newest attempt did not write 3 splits again, 30 rows" in out
    assert "run the commit" in out
    document = checkpoints("show", "orders", "-o", "json").document
    assert document["summary"]["state"] == "sealed"
    assert [split["state"] for split in document["splits"]] == ["recovered"] * 3 + ["written"]


def test_a_key_that_is_not_there_ends_with_1_and_a_line(world, checkpoints):
    for arguments in (("show", "nobody"), ("restart", "nobody", "--yes"), ("continue", "nobody")):
        called = checkpoints(*arguments)
        assert (called.code, called.out) == (1, "")
        assert called.err.startswith("There is no checkpoint under the key 'nobody'")
        assert called.err.count("\n") == 1


# -- acting ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["restart", "discard"])
def test_what_gives_up_rows_says_how_many_and_asks(world, checkpoints, action):
    world.stage(splits=3)
    asked = checkpoints(action, "orders")
    assert (asked.code, asked.out) == (1, "")
    assert "3 staged splits" in asked.err
    assert "--yes" in asked.err
    refused = checkpoints(action, "orders", typed="n")
    assert refused.code == 1
    assert "Nothing was changed." in refused.err
    assert newest(world).discarded() is None
    done = checkpoints(action, "orders", typed="y")
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert newest(world).discarded() is not None


def test_a_script_is_not_asked(world, checkpoints):
    world.stage(splits=3)
    assert "Clear the task 'stage' now." in checkpoints("restart", "orders", "--yes").out
    assert world.ids() == []
    world.commit(world.stage())
    assert world.ids() == [*range(40)]
    refused = checkpoints("discard", "orders", "--yes")
    assert refused.code == 1
    assert "is committed to shop.orders" in refused.err
    assert newest(world).discarded() is None


def test_a_continuation_is_not_asked_about_because_nothing_is_lost(world, checkpoints):
    world.stage(world.request(transform=only_even), splits=1)
    done = checkpoints("continue", "orders")
    assert done.code == 0
    assert done.out.startswith("Generation 1 of the key 'orders' keeps its 1 staged splits")


def test_a_table_of_another_connection_is_not_touched(world, checkpoints, monkeypatch):
    world.stage(splits=1)
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", os.environ["AIRFLOW_CONN_ICEBERG_DEFAULT"])
    called = checkpoints("discard", "orders", "--yes", "--iceberg-conn-id", "other")
    assert called.code == 1
    assert "written through the connection 'iceberg_default'" in called.err
    assert newest(world).discarded() is None


def test_undo_says_in_numbers_what_it_will_do_and_does_it_once(world, checkpoints):
    landed(world)
    asked = checkpoints("undo", "orders/1")
    assert (asked.code, asked.out) == (1, "")
    assert "40 rows in 4 files go, and nothing comes back" in asked.err
    assert world.ids() == [*range(40)]
    done = checkpoints("undo", "orders/1", "--yes")
    assert done.code == 0
    assert "has taken out of shop.orders what generation 1 of the key 'orders/1' had committed" in done.out
    assert world.ids() == []
    assert checkpoints("list", "--state", "undone", "-o", "json").document[0]["key"] == "orders/1"
    assert "opens generation 3" in checkpoints("show", "orders/1").out
    assert "Nothing is repeated" in checkpoints("undo", "orders/1", "--yes").out
    assert len(world.table().snapshots()) == 2


def test_undo_is_refused_with_names_where_others_have_built_on_it(world, checkpoints):
    landed(world)
    (snapshot,) = world.table().snapshots()
    compact(world.table())
    refused = checkpoints("undo", "orders/1", "--yes")
    assert refused.code == 1
    assert f"Snapshot {snapshot.snapshot_id} of shop.orders cannot be undone" in refused.err
    assert "Later commits: snapshot" in refused.err
    assert world.ids() == [*range(40)]


# -- cleaning --------------------------------------------------------------------------------------------------------------


def test_clean_prints_what_was_removed(world, checkpoints):
    landed(world)
    world.stage(world.request("orders/2"), splits=1)
    grow_old(world)
    table = checkpoints("clean", "--older-than", "14d", "--dry-run").out.splitlines()
    assert [line.split()[:5] for line in table[:3]] == [
        ["KEY", "GENERATION", "STATE", "OBJECTS", "FILES"],
        ["orders/1", "1", "committed", "7", "0"],
        ["orders/2", "1", "staging", "0", "0"],
    ]
    assert table[3].startswith("Would remove 7 objects of 1 generations from file:///")
    result = checkpoints("clean", "--older-than", "14d", "--keys", "orders/*", "--output", "json").document
    assert result["totals"]["objects"] == 7
    assert not result["dry_run"]


def test_clean_ends_with_1_if_something_is_wrong(world, checkpoints):
    damaged = landed(world)
    (world.root / "store" / damaged.paths.header).unlink()
    grow_old(world)
    called = checkpoints("clean", "--older-than", "14d")
    assert called.code == 1
    assert f"{damaged.paths.key_hash}/g1" in called.out
    assert "has done all but 1 of its generations" in called.err
    assert "header.json" in called.err
    wrong = checkpoints("clean", "--older-than", "soon")
    assert wrong.code == 1
    assert "older_than='soon'" in wrong.err


# -- doctor ----------------------------------------------------------------------------------------------------------------


def test_doctor_finds_everything_in_order_and_leaves_nothing_behind(world, checkpoints):
    landed(world)
    before = sorted((world.root / "store").rglob("*"))
    called = checkpoints("doctor", "-o", "json")
    findings = {finding["check"]: finding for finding in called.document}
    assert all(finding["ok"] for finding in findings.values()), findings
    assert called.code == 0
    assert "writes each object once" in findings["checkpoint connection checkpoint_default"]["detail"]
    assert "shop" in findings["iceberg connection iceberg_default"]["detail"]
    assert "Java 17" in findings["spark connection spark_default"]["detail"]
    assert sorted((world.root / "store").rglob("*")) == before


def test_doctor_says_of_each_thing_what_is_wrong_and_ends_with_1(world, checkpoints, monkeypatch, tmp_path):
    (tmp_path / "occupied").write_text("a file")
    secret = {"login": "key", "password": "do-not-tell"}
    store = {"conn_type": "checkpoint", "host": f"file://{tmp_path}/occupied/store"}
    catalog = {"conn_type": "iceberg", "host": "http://127.0.0.1:1", **secret}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(catalog))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    called = checkpoints("doctor")
    assert called.code == 1
    lines = called.out.splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    assert len(failed) == 3, called.out
    assert "which has no bin/java" in failed[2]
    assert "Traceback" not in called.out + called.err
    assert "do-not-tell" not in called.out + called.err


def test_a_store_that_lets_two_writers_be_the_first_is_unusable(world):
    class Forgetful(CheckpointStore):
        """A storage that takes no notice of If-None-Match, as some that call themselves S3."""

        def put_if_absent(self, name, data):
            (world.root / "store" / name).write_bytes(data)
            return True

    store = world.store
    with pytest.raises(StoreUnusableError, match=r"8 of 8 writers .* were told that they were the first"):
        try_out(Forgetful(store.location))
    assert list((world.root / "store").iterdir()) == []


def test_the_java_that_spark_would_start_is_known_without_starting_it(monkeypatch, tmp_path):
    assert java().version >= 17
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java().version is None
    (tmp_path / "release").write_text('IMPLEMENTOR="Somebody"\nJAVA_VERSION="1.8.0_412"\n')
    assert java().version == 8
