"""A real scheduler, API server and triggerer: a task that is killed with SIGKILL, and one that a user stops."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.flights import EXAMPLES, outcome
from support.live_airflow import LiveAirflow
from support.world import World

EXAMPLE_DAGS = ("example_flights", "example_embeddings", "example_documents", "example_program")

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """All examples in one Airflow, triggered at once."""
    with LiveAirflow(tmp_path_factory.mktemp("examples") / "home", EXAMPLES) as airflow:
        yield airflow, {name: airflow.trigger(name) for name in EXAMPLE_DAGS}


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


def test_the_embeddings_example_is_killed_retried_and_answers_who_is_near(examples):
    airflow, runs = examples
    home, run = airflow.home, runs["example_embeddings"]
    assert airflow.wait_for(run, 300) == "success"
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
    assert airflow.wait_for(run, 350) == "success"
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


def test_the_program_example_is_committed_by_its_dag(examples):
    airflow, runs = examples
    run = runs["example_program"]
    assert airflow.wait_for(run, 350) == "success"
    staged, committed = run.returned("compute_delays"), run.returned("commit_delays")
    assert (staged["state"], staged["checkpoint_conn_id"]) == ("sealed", "")
    assert (committed["state"], committed["commit"]["landed_now"]) == ("committed", True)
    assert committed["rows"] == staged["rows"] > 1000


DAG_FILE = """
import time
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files


def slow(batch):
    time.sleep({pause})
    return batch


with DAG("slow", schedule=None, start_date=datetime(2026, 1, 1)):
    CheckpointedIcebergWriteOperator(
        task_id="stage",
        table="shop.orders",
        source=Files("{input}/*.parquet", max_split_bytes=1),
        transform=slow,
        idempotence_key="slow/{{{{ run_id }}}}",
    ) >> CheckpointCommitOperator(task_id="commit", checkpoint="slow/{{{{ run_id }}}}")
    # These begin before there is anything to wait for. Retries: under load the scheduler takes the end of one look of a
    # rescheduled sensor for the end of the next, and fails it.
    for name, how in {{"deferred": {{"deferrable": True}}, "rescheduled": {{"mode": "reschedule"}}}}.items():
        CheckpointSensor(task_id=name, checkpoint="slow/{{{{ run_id }}}}", poke_interval=5, timeout=200, retries=5,
            retry_delay=timedelta(seconds=1), **how)
"""


def live(tmp_path: Path, pause: float) -> tuple[World, LiveAirflow]:
    world = World(tmp_path)
    world.create_table()
    world.put_files(files=8)
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "slow.py").write_text(DAG_FILE.format(input=world.input, pause=pause))
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    environment = {
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"conn_type": "iceberg", "extra": catalog}),
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT": json.dumps({"conn_type": "checkpoint", "host": f"file://{tmp_path}/store"}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    return world, LiveAirflow(tmp_path / "home", dags, environment=environment)


def test_sensors_that_began_first_see_the_commit_and_a_stopped_stage_leaves_no_spark(tmp_path):
    world, airflow = live(tmp_path, pause=4.0)
    with airflow:
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
