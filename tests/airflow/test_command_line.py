"""``airflow tasks test`` from a terminal: a second call resumes the first."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from support.flights import EXAMPLES
from support.live_airflow import AIRFLOW, airflow_environment, create_database
from support.world import World

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG_FILE = """
    import time
    from datetime import datetime
    from pathlib import Path

    from airflow.sdk import DAG
    from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
    from airflow_ckpt_provider.sources import Files
    from beside import BROKEN, STORE


    def breaks_once(batch):
        if batch["id"][0].as_py() == 300 and not Path(BROKEN).exists():
            Path(BROKEN).touch()
            while not any(Path(STORE).rglob("staged/*")):
                time.sleep(0.05)
            raise ValueError("no luck today")
        return batch


    with DAG("terminal", schedule=None, start_date=datetime(2026, 1, 1)):
        CheckpointedIcebergWriteOperator(
            task_id="stage",
            table="shop.orders",
            source=Files("{input}/*.parquet", max_split_bytes=1),
            transform=breaks_once,
        )
"""


class Terminal(NamedTuple):
    """Where the DAG writes, and the ``airflow`` command."""

    world: World
    airflow: Callable[..., subprocess.CompletedProcess[str]]
    environment: dict[str, str]


@pytest.fixture
def terminal(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(files=4)
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "terminal.py").write_text(textwrap.dedent(DAG_FILE).format(input=world.input))
    (dags / "beside.py").write_text(f"BROKEN, STORE = {str(tmp_path / 'broken')!r}, {str(tmp_path / 'store')!r}\n")
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    environment = airflow_environment(
        tmp_path / "home",
        dags,
        AIRFLOW_CONN_ICEBERG_DEFAULT=json.dumps({"conn_type": "iceberg", "extra": catalog}),
        AIRFLOW_CONN_CHECKPOINT_DEFAULT=json.dumps({"conn_type": "checkpoint", "host": f"file://{tmp_path}/store"}),
        AIRFLOW_CONN_SPARK_DEFAULT=json.dumps({"conn_type": "spark", "host": "local[2]"}),
    )
    (tmp_path / "home").mkdir()
    create_database(environment)

    def airflow(*arguments):
        return subprocess.run([*AIRFLOW, *arguments], env=environment, capture_output=True, text=True, check=False)

    return Terminal(world, airflow, environment)


@pytest.fixture
def in_a_terminal(terminal):
    """Runs ``airflow`` in a terminal of its own, and presses Ctrl-C there once that is asked for."""
    environment = terminal.environment

    def run(arguments, stops):
        screen, terminal_of_it = pty.openpty()
        # Of util-linux: the terminal becomes its own, without a fork of this process, which may have used Lance.
        command = ["setsid", "--ctty", *AIRFLOW, *arguments]
        process = subprocess.Popen(
            command, env=environment, stdin=terminal_of_it, stdout=terminal_of_it, stderr=terminal_of_it, close_fds=True
        )
        os.close(terminal_of_it)
        said, pressed, end = b"", False, time.monotonic() + 120
        try:
            while time.monotonic() < end:
                if not pressed and stops(said.decode(errors="replace")):
                    os.write(screen, b"\x03")
                    pressed = True
                try:
                    said += os.read(screen, 65536) if select.select([screen], [], [], 0.1)[0] else b""
                except OSError:
                    break
        finally:
            os.close(screen)
            process.kill()
            process.wait()
        return re.sub(r"\x1b\[[0-9;]*m", "", said.decode(errors="replace")).replace("\r\n", "\n")

    return run


@pytest.mark.parametrize("when", ["while Spark starts", "while splits are staged"])
def test_ctrl_c_ends_in_one_line_that_says_what_stays_staged(terminal, in_a_terminal, when):
    world = terminal.world
    (world.root / "broken").touch()
    dag = world.root / "dags" / "terminal.py"
    waits = f"time.sleep(60 if sum(1 for _ in Path({str(world.root / 'store')!r}).rglob('staged/*')) > 1 else 0)\n    return batch"
    dag.write_text(dag.read_text().replace("return batch", waits))

    def staged():
        return len(list((world.root / "store").rglob("staged/*")))

    stops = {
        "while Spark starts": lambda said: "Starting a session" in said,
        "while splits are staged": lambda _: staged() >= 2,
    }[when]
    said = in_a_terminal(("tasks", "test", "terminal", "stage", "2026-01-01"), stops)
    behind = said[said.index("^C") :]
    stays = rf"stopped; {staged()} of 4 splits of the key '\S+' stay staged; the next try goes on with them"
    assert re.search(stays, behind), behind
    assert "Traceback" not in behind
    assert not re.search(r"py4j|ConnectionRefused|java\.|Error|WARN", behind), behind
    # One line, and those that Airflow says at the end of every task.
    assert sum("error" in line for line in behind.splitlines()) == 1, behind
    assert len(behind.splitlines()) < 10, behind


def tasks_test(airflow, *arguments):
    done = airflow("tasks", "test", "terminal", "stage", *arguments)
    return done.stdout + done.stderr


def assert_resumed(checkpoint, staged, output):
    """All splits are staged, and those of the first call are still its own."""
    assert checkpoint.sealed() is not None, output
    assert checkpoint.sealed().rows == 400
    writers = {one.split: one.writer.split(".")[0] for one in checkpoint.staged(sorted(checkpoint.staged_ids()))}
    old, *_, new = [attempt.id for attempt in checkpoint.attempts()]
    assert {split for split, writer in writers.items() if writer == old} == staged
    assert {split for split, writer in writers.items() if writer == new} == writers.keys() - staged


def test_the_second_call_with_a_date_resumes(terminal):
    world, airflow, _ = terminal
    first = tasks_test(airflow, "2026-01-01")
    assert "no luck today" in first
    # What failed is said once, with the user's own line, and nothing of what Spark and Java say above and below it.
    assert first.count("Traceback (most recent call last)") == 1
    assert re.search(r"ValueError: no luck today \(in split \w+: .*terminal.py, line \d+, in breaks_once\)", first)
    assert not re.search("org.apache.spark|py4j|Caused by", first)
    checkpoint = Checkpoint.latest(world.store, IdempotenceKey("terminal/stage/2026-01-01T00:00:00+00:00/-1"))
    assert checkpoint is not None, first
    staged = checkpoint.staged_ids()
    assert staged
    assert checkpoint.sealed() is None

    second = tasks_test(airflow, "2026-01-01")
    assert len(checkpoint.attempts()) == 2
    assert_resumed(checkpoint, staged, second)
    # It ends with what it hands on.
    handed_on = dict(re.findall(r"^  (\w+) +(\S.*?)\s*$", second[second.index("hands on") :], re.MULTILINE))
    assert handed_on["key"] == "terminal/stage/2026-01-01T00:00:00+00:00/-1 (generation 1)"
    assert (handed_on["state"], handed_on["table"]) == ("sealed", "shop.orders (branch main)")
    assert handed_on["splits"].startswith(f"4: {len(staged)} recovered, {4 - len(staged)} written by this attempt")
    assert handed_on["rows"].startswith("400 in 4 files (")


def test_calls_without_a_date_resume_and_a_corrected_function_goes_on_once_it_was_asked_for(terminal):
    world, airflow, _ = terminal
    key = "terminal/stage/adhoc/-1"
    assert "no luck today" in tasks_test(airflow)
    checkpoint = Checkpoint.latest(world.store, IdempotenceKey(key))
    staged = checkpoint.staged_ids()
    dag = world.root / "dags" / "terminal.py"
    dag.write_text(dag.read_text().replace('raise ValueError("no luck today")', "pass"))
    refused = tasks_test(airflow)
    assert f"airflow checkpoints continue {key} once" in refused
    assert checkpoint.sealed() is None

    asked = airflow("checkpoints", "continue", key)
    assert asked.returncode == 0
    assert asked.stdout.startswith(f"Generation 1 of the key '{key}' keeps its {len(staged)} staged splits, and its next")
    done = tasks_test(airflow)
    assert "with other code than this write began with" in done
    assert_resumed(checkpoint, staged, done)
    assert len(checkpoint.sealed().computed_by) == 2


def test_the_embeddings_example_runs_as_it_says(tmp_path):
    """Here without the kill; with it, beside a scheduler: ``dev.py matrix --only live``."""
    environment = airflow_environment(tmp_path / "home", EXAMPLES)
    (tmp_path / "home").mkdir()
    create_database(environment)
    command = ("dags", "test", "example_embeddings", "-c", '{"kill_first_try": false}')
    assert f"airflow {' '.join(command[:4])} '{command[4]}'" in (EXAMPLES / "example_embeddings.py").read_text().replace("\n", " ")
    done = subprocess.run([*AIRFLOW, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    code = (
        "import lance, sys; dataset = lance.dataset(sys.argv[1]); dataset.validate(); "
        "names = dataset.to_table(columns=['faa'])['faa'].to_pylist(); print(len(names), len(set(names)), dataset.version)"
    )
    # This process must not fork once it has used Lance.
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "home" / "checkpoints" / "airports.lance")],
        capture_output=True,
        text=True,
        check=True,
    )
    # Version 1 is the empty dataset.
    assert said.stdout.split() == ["1458", "1458", "2"]
