"""A real scheduler, API server and triggerer: a task that is killed with SIGKILL, and one that a user stops."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import pytest
from support.browser import Browser
from support.flights import EXAMPLES, outcome
from support.live_airflow import LiveAirflow
from support.postgres import new_database
from support.world import World

#: Whether the environment asks for all: two of the examples, and a browser, add minutes on two cores.
ALL = bool(os.environ.get("LIVE_ALL"))

EXAMPLE_DAGS = ["example_approval", "example_flights", "example_documents"]
EXAMPLE_DAGS += ["example_embeddings", "example_program"] if ALL else []

only_in_the_matrix = pytest.mark.skipif(
    not ALL, reason="takes minutes on two cores beside the other examples: python3 dev.py matrix --only live"
)

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(700)]


class SlowWorld(World):
    """Where the DAG ``slow`` reads and writes, with a catalog that is not that of the examples."""

    @property
    def catalog_properties(self):
        return super().catalog_properties | {"name": "slow_catalog"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = SlowWorld(tmp_path_factory.mktemp("slow"))
    world.create_table()
    world.put_files(files=8)
    return world


@pytest.fixture(scope="module")
def airflow(world, postgres_port, tmp_path_factory):
    """One Airflow with all examples and the DAG ``slow``, which has connections of its own."""
    dags = tmp_path_factory.mktemp("live") / "dags"
    shutil.copytree(EXAMPLES, dags)
    (dags / "slow.py").write_text(SLOW_DAG.format(input=world.input))
    # The connection's id is the catalog's name.
    catalog = {key: value for key, value in world.catalog_properties.items() if key != "name"}
    environment = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": new_database(postgres_port).uri,
        # Nothing here needs it, and it would need another driver.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": "",
        "AIRFLOW_CONN_SLOW_CATALOG": json.dumps({"conn_type": "iceberg", "extra": catalog}),
        "AIRFLOW_CONN_SLOW_STORE": json.dumps({"conn_type": "checkpoint", "host": f"file://{world.root}/store"}),
        "AIRFLOW_CONN_SLOW_SPARK": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    with LiveAirflow(dags.parent / "home", dags, environment=environment) as started:
        yield started


@pytest.fixture(scope="module")
def examples(airflow):
    """All examples, triggered at once."""
    return airflow, {name: airflow.trigger(name) for name in EXAMPLE_DAGS}


@only_in_the_matrix
def test_the_page_follows_the_stage_that_is_killed_and_retried_in_its_tab(examples):
    airflow, runs = examples
    run = urllib.parse.quote(runs["example_flights"].run_id, safe="")
    page = "document.querySelector('iframe')?.contentDocument"
    with Browser() as browser:
        browser.open(f"{airflow.url}/api/v2/version")
        browser.sign_in(airflow.url, airflow.token_of(""))
        tab = f"/dags/example_flights/runs/{run}/tasks/stage_flights/plugin/task_checkpoint"
        # At first there is no checkpoint, and the tab waits for it.
        browser.open(airflow.url + tab, f"{page}?.querySelector('[data-wait], #checkpoint')")
        browser.wait(f"{page}?.querySelector('#grid path.written')?.getAttribute('d')", 500)
        browser.run(f"Object.assign({page}.defaultView, {{stays: true}}).stays")
        browser.wait(f"{page}?.querySelector('.saved') && {page}.querySelector('.pulse')", 500)
        browser.wait(f"{page}.querySelector('.badge.committed')", 500)
        assert browser.run(f"{page}.defaultView.stays")
        said = browser.text()
        assert browser.errors == []
    assert "336,776 rows landed in flights.departures" in said
    assert re.search(r"Saved by the retry\s+[4-9] splits", said)


def test_the_flights_example_is_killed_retried_and_lands_every_flight_once(examples):
    airflow, runs = examples
    found = outcome(airflow, runs["example_flights"])

    assert found.tries == ["failed", "success"]
    assert found.recovered >= 4
    assert found.recovered + found.written == found.splits == 12
    assert found.rows_in_table == 336_776
    assert found.snapshots == 1
    assert found.rows_written_again == 0
    assert found.attempts == 2


@only_in_the_matrix
def test_the_embeddings_example_is_killed_retried_and_answers_who_is_near(examples):
    airflow, runs = examples
    home, run = airflow.home, runs["example_embeddings"]
    assert airflow.wait_for(run, 500) == "success"
    assert run.tries("stage_airports") == ["failed", "success"]
    splits = run.returned("stage_airports")["splits"]
    version = run.returned("commit_airports")["commit"]["version"]
    nearest = run.returned("similar_airports")
    # This process must not fork once it has used Lance.
    code = (
        "import json, lance, sys; dataset = lance.dataset(sys.argv[1]); dataset.validate(); "
        "names = dataset.to_table(columns=['faa'])['faa'].to_pylist(); "
        "print(json.dumps([len(names), len(set(names)), dataset.version]))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(home / "checkpoints" / "airports.lance")], capture_output=True, text=True, check=True
    )
    assert splits["recovered"] >= 4
    # Besides those that read the input, one looks for keys that are there twice.
    assert splits["recovered"] + splits["written"] == splits["total"] == 13
    # Version 1 is the empty dataset.
    assert json.loads(said.stdout) == [1458, 1458, 2]
    assert version == 2
    assert nearest[0] == "Chicago Ohare Intl"
    assert len(nearest) == 5
    assert any("Chicago" in name for name in nearest[1:])


def test_the_documents_example_goes_on_with_a_corrected_function_and_frees_what_it_staged(examples):
    airflow, runs = examples
    home, run = airflow.home, runs["example_documents"]
    assert airflow.wait_for(run, 500) == "success"
    assert run.tries("vectors") == ["failed", "success"]
    pieces = run.returned("chunks")["rows"]
    vectors = run.returned("vectors")
    # Two codes have computed it, and what the first one has done was not done again.
    assert len(vectors["computed_by"]) == 2
    assert vectors["rows"] == pieces == run.returned("commit_vectors")["rows"]
    assert vectors["splits"]["recovered"] + vectors["splits"]["written"] == vectors["splits"]["total"] == 4
    assert run.returned("commit_words")["rows"] == run.returned("land_topics")
    assert not list(home.rglob("rows/data/*"))
    code = (
        "import lance, sys; dataset = lance.dataset(sys.argv[1]); dataset.validate(); "
        "rows = dataset.to_table(columns=['topic', 'number']).to_pylist(); "
        "print(len(rows), len({(row['topic'], row['number']) for row in rows}))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(home / "checkpoints" / "topics.lance")], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [str(pieces)] * 2


@only_in_the_matrix
def test_the_program_example_is_committed_by_its_dag(examples):
    airflow, runs = examples
    run = runs["example_program"]
    assert airflow.wait_for(run, 500) == "success"
    staged, committed = run.returned("compute_delays"), run.returned("commit_delays")
    assert (staged["state"], staged["checkpoint_conn_id"]) == ("sealed", "")
    assert (committed["state"], committed["commit"]["landed_now"]) == ("committed", True)
    assert committed["rows"] == staged["rows"] > 1000


def test_the_approval_example_commits_what_somebody_approves_of_and_nothing_before(examples):
    airflow, runs = examples
    run = runs["example_approval"]
    wait(lambda: run.task_state("orders.approval") == "awaiting_input", 350)
    assert (run.question("orders.approval")["subject"], run.task_state("orders.commit")) == ("Publish the orders?", None)
    assert "3600 rows in 4 files" in run.question("orders.approval")["body"]
    run.answer("orders.approval", "Approve")
    assert airflow.wait_for(run, 350) == "success"
    committed = run.returned("orders.commit")
    assert (committed["state"], committed["rows"]) == ("committed", 3600)
    assert run.returned("orders.clean_up")["files"] == 0


SLOW_DAG = """
import time
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files


def slow(batch):
    time.sleep(4)
    return batch


with DAG("slow", schedule=None, start_date=datetime(2026, 1, 1)):
    CheckpointedIcebergWriteOperator(
        task_id="stage",
        table="shop.orders",
        source=Files("{input}/*.parquet", max_split_bytes=1),
        transform=slow,
        idempotence_key="slow/{{{{ run_id }}}}",
        iceberg_conn_id="slow_catalog",
        spark_conn_id="slow_spark",
        checkpoint_conn_id="slow_store",
    ) >> CheckpointCommitOperator(
        task_id="commit", checkpoint="slow/{{{{ run_id }}}}", iceberg_conn_id="slow_catalog", checkpoint_conn_id="slow_store"
    )
    # These begin before there is anything to wait for. Retries: under load the scheduler takes the end of one look of a
    # rescheduled sensor for the end of the next, and fails it.
    for name, how in {{"deferred": {{"deferrable": True}}, "rescheduled": {{"mode": "reschedule"}}}}.items():
        CheckpointSensor(task_id=name, checkpoint="slow/{{{{ run_id }}}}", poke_interval=5, timeout=200, retries=5,
            retry_delay=timedelta(seconds=1), iceberg_conn_id="slow_catalog", checkpoint_conn_id="slow_store", **how)
"""


def test_sensors_that_began_first_see_the_commit_and_a_stopped_stage_leaves_no_spark(world, airflow):
    # A user marks the running stage as failed: its Spark must be gone, what it staged must not.
    stopped = airflow.trigger("slow")
    wait(lambda: staged(world) >= 2, 120)
    spark = spark_processes(world)
    assert spark
    stopped.set_task_state("stage", "failed")
    wait(lambda: not alive(spark), 60)
    before = staged(world)
    assert 2 <= before < 8
    assert world.files_on_disk()

    # It is said in one line, without what Spark says of a driver that is gone.
    wait(lambda: f"stopped; {before} of 8 splits of the key" in stopped.log("stage", 1), 30)
    log = stopped.log("stage", 1)
    assert not re.search("py4j|ConnectionRefused|Traceback", log), log

    # Cleared, it resumes; sensors of this run have been waiting all along.
    stopped.clear_task("stage")
    wait(lambda: stopped.state == "success", 200)
    assert stopped.returned("stage")["splits"]["recovered"] == before
    assert {task: stopped.task_state(task) for task in ("deferred", "rescheduled")} == {
        "deferred": "success",
        "rescheduled": "success",
    }
    assert world.ids() == list(range(800))
    assert len(world.table().snapshots()) == 1


def wait(done, timeout_s):
    end = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.5)


def staged(world):
    return len(list((world.root / "store").glob("*/g1/staged/*.json")))


def spark_processes(world):
    """JVMs and Python workers that Airflow started for this world, by their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment, command = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
            except (PermissionError, FileNotFoundError, ProcessLookupError):
                continue
            if str(world.root).encode() in environment and (b"org.apache.spark" in command or b"pyspark.daemon" in command):
                found.append(folder.name)
    return found


def alive(pids):
    """Those of them that run, and are not only waiting to be reaped."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            running.append(pid)
    return running
