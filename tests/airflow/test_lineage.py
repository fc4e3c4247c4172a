"""What others are told of a write: lineage by OpenLineage's own listener, metrics by StatsD, and links beside the task."""

from __future__ import annotations

import json
import logging
import socket
import sys
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import DAG
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.chains import for_next, read
from support.dags import returned, start, task_states
from support.lance_world import LanceWorld
from support.world import World

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.lineage.facts import Lineage
from airflow_ckpt_provider.operators.links import CheckpointLink, LinkedCheckpoint, SparkUiLink
from airflow_ckpt_provider.sources import Files, IcebergTable

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]

LOG = logging.getLogger(__name__)


@pytest.fixture
def transport(tmp_path, monkeypatch):
    """OpenLineage with somewhere to send events to: a file."""
    from airflow.listeners.listener import get_listener_manager
    from airflow.providers.openlineage import conf

    # Its plugin is loaded before, so that it registers nothing for the tests that follow.
    get_listener_manager()

    def forget():
        for function in vars(conf).values():
            getattr(function, "cache_clear", lambda: None)()

    file = tmp_path / "events.jsonl"
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps({"type": "file", "log_file_path": str(file), "append": True}))
    forget()
    yield file
    monkeypatch.undo()
    forget()


@pytest.fixture
def listener(transport):
    """OpenLineage's own listener of tasks, as its plugin registers it where it is not disabled."""
    from airflow.providers.openlineage.plugins.listener import OpenLineageListener
    from airflow.sdk.listener import get_listener_manager

    manager, made = get_listener_manager(), OpenLineageListener()
    manager.add_listener(made)
    yield transport
    manager.pm.unregister(made)


@pytest.fixture
def statsd(monkeypatch):
    """What arrives at a StatsD server, as name and tags: value."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(0.2)
    settings = {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(server.getsockname()[1])}
    for name, value in (settings | {"STATSD_INFLUXDB_ENABLED": "True"}).items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
    logger = get_stats_factory()()
    stats.initialize(factory=lambda: logger, export_legacy_names=False)

    def arrived():
        found = {}
        while True:
            try:
                name, _, value = server.recv(65536).decode().removeprefix("airflow.").rpartition(":")
            except TimeoutError:
                return found
            if name.startswith("checkpoints."):
                found[name] = value

    yield arrived
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
    logger.statsd.close()
    server.close()


def events(file, run, kind="COMPLETE"):
    """The newest event of each task of a run."""
    told = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        event["job"]["name"].removeprefix(f"{run.dag_id}."): event
        for event in told
        if event["eventType"] == kind and event["job"]["name"].startswith(f"{run.dag_id}.")
    }


def by_kind(world):
    """A table with a partition for each of the three kinds of rows."""
    return world.create_table("shop.by_kind", spec=PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind")))


def all_but_sealed(world, request):
    """Stage all splits, and die before they are sealed; the bytes of their files."""
    attempt = world.attempt(request, name="shop.by_kind")
    missing, work = attempt.next_round().missing, attempt.begin("none", 1)
    for split in missing:
        work.run(split, "0")
    return sum(record.bytes for record in attempt.checkpoint.staged([split.id for split in missing]))


def test_a_retry_tells_what_it_was_saved_what_has_landed_and_where_to_look(dag_world, run_dag, listener, statsd, tmp_path):
    dag_world.put_files(files=4)
    table, seen = by_kind(dag_world), []
    saved = all_but_sealed(dag_world, dag_world.request("told", mode="overwrite_partitions"))

    def look(context, result):
        del result
        seen.append(context["ti"].xcom_pull(task_ids="stage", key=CheckpointLink().xcom_key))

    def has_rows(staged):
        return staged.rows == 400

    with DAG("told", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator(
            task_id="stage", table="shop.by_kind", source=Files(f"{dag_world.input}/*.parquet", max_split_bytes=1),
            mode="overwrite_partitions", idempotence_key="told", post_execute=look,
        )  # fmt: skip
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, checks=[{"all": has_rows}])
    run = run_dag(dag, when=start())
    assert task_states(run) == {"stage": "success", "commit": "success"}
    sent, told = statsd(), events(listener, run)

    reference, landed = returned(run, "stage"), returned(run, "commit")
    require_metrics(sent, saved)
    require_lineage(told, reference, landed, str(dag_world.input), table.location(), tmp_path)

    # The page of the checkpoint is linked while the stage runs, and afterwards.
    (page,) = seen
    assert parse_qs(urlsplit(page).query) == {"key": ["told"], "conn_id": ["checkpoint_default"]}
    links = links_of(dag, run)
    assert links["stage"]["Spark UI"] == ""
    assert links["stage"]["Checkpoint"] == links["commit"]["Checkpoint"] == f"{page}&generation=1"

    # Cleared: nothing lands, and nothing is counted twice.
    again = run_dag(dag, when=start())
    told, sent = events(listener, again), statsd()
    assert returned(again, "commit")["commit"]["landed_now"] is False
    (output,) = told["commit"]["outputs"]
    assert not output.get("outputFacets")
    assert output["facets"]["version"]["datasetVersion"] == str(landed["commit"]["snapshot_id"])
    assert {name.partition(",")[0] for name in sent} == {"checkpoints.stage.reused"}


def require_metrics(sent, saved):
    """What four recovered splits and a commit are told as, with tags that have few values."""
    tags = "format=iceberg,mode=overwrite_partitions"
    assert {name.partition(",")[2] for name in sent} == {tags}
    sent = {name.partition(",")[0].removeprefix("checkpoints."): value for name, value in sent.items()}
    assert float(sent.pop("commit.staged_age").removesuffix("|ms")) > 0
    assert int(sent.pop("stage.seconds_saved").removesuffix("|c")) >= 0
    assert sent == {
        "stage.bytes_saved": f"{saved}|c",
        "stage.splits_recovered": "4|c",
        "stage.splits_written": "0|c",
        "commit.tries": "1|c",
        "commit.conflicts": "0|c",
        "commit.landed": "1|c",
    }


def require_lineage(told, reference, landed, source, location, root):
    """From the files to the table, whose rows are counted where they have landed."""
    read_by = told["stage"]["inputs"]
    assert [(dataset["namespace"], dataset["name"]) for dataset in read_by] == [("file", source)]
    (staged_for,), (output,) = told["stage"]["outputs"], told["commit"]["outputs"]
    place = ("file", location.removeprefix("file://"))
    assert (staged_for["namespace"], staged_for["name"]) == (output["namespace"], output["name"]) == place
    assert not staged_for.get("outputFacets")
    assert "version" not in staged_for["facets"]
    facets, counted = output["facets"], output["outputFacets"]
    assert facets["version"]["datasetVersion"] == str(landed["commit"]["snapshot_id"])
    assert [(field["name"], field["type"]) for field in facets["schema"]["fields"]][:2] == [("id", "int64"), ("value", "double")]
    assert [(one["namespace"], one["name"]) for one in facets["symlinks"]["identifiers"]] == [
        (f"file:{root}/warehouse", "shop.by_kind")
    ]
    statistics = {name: counted["outputStatistics"][name] for name in ("rowCount", "size", "fileCount")}
    assert statistics == {"rowCount": 400, "size": reference["bytes"], "fileCount": reference["files"]}
    replaced = counted["subset"]["outputCondition"]["partitions"]
    assert [one["dimensions"] for one in replaced] == [{"kind": f"kind-{n}"} for n in range(3)]
    (checked,) = told["commit"]["inputs"]
    (assertion,) = checked["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["name"], assertion["success"]) == ("all", True)


def links_of(dag, run):
    """The links of each task instance of a run, as the API server has them: of the serialized DAG."""
    from airflow.serialization.serialized_objects import DagSerialization

    with pytest.MonkeyPatch.context() as patch:
        # Parts of Airflow that show no links turn this off, in this process, too.
        patch.setattr(DagSerialization, "_load_operator_extra_links", True)
        tasks = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict
    return {
        instance.task_id: {
            name: tasks[instance.task_id].get_extra_links(instance, name) for name in tasks[instance.task_id].extra_links
        }
        for instance in run.get_task_instances()
    }


def test_links_lead_to_pages_that_there_are_and_an_operator_without_a_checkpoint_has_none():
    from airflow.sdk.types import TaskInstanceKey

    from airflow_ckpt_provider.ui.plugin import URL_PREFIX
    from airflow_ckpt_provider.ui.routes import router

    commit, instance = (
        CheckpointCommitOperator(task_id="commit", checkpoint="x"),
        TaskInstanceKey("d", "commit", "r+1", map_index=2),
    )
    assert [link.get_link(of, ti_key=instance) for link in (CheckpointLink(), SparkUiLink()) for of in (commit, None)] == [""] * 4
    commit.linked_checkpoints = [LinkedCheckpoint("a&b/ä", "store", 3)]
    links = [urlsplit(CheckpointLink().get_link(commit, ti_key=instance))]
    commit.linked_checkpoints *= 2
    links.append(urlsplit(CheckpointLink().get_link(commit, ti_key=instance)))

    routes = {f"{URL_PREFIX}{route.path}": {one.name for one in route.dependant.query_params} for route in router.routes}
    for link in links:
        assert set(parse_qs(link.query)) <= routes[link.path]
    assert parse_qs(links[0].query) == {"key": ["a&b/ä"], "conn_id": ["store"], "generation": ["3"]}
    assert parse_qs(links[1].query) == {"dag_id": ["d"], "run_id": ["r+1"], "task_id": ["commit"], "map_index": ["2"]}


def test_each_kind_of_source_and_table_is_told_by_its_place_and_version(dag_world, tmp_path, transport):
    from airflow_ckpt_provider.operators.lineage.facets import on_complete

    world, dataset = dag_world, LanceWorld(tmp_path)
    world.put_files(files=1)
    world.create_table("shop.copies")
    dataset.create_dataset(count=0)

    # Rows for the next task have landed once they are sealed, and are counted by whoever has sealed them.
    for counted in (True, False):
        attempt = for_next(world, "chain", None, splits=0 if counted else None)
        lineage = Lineage(LOG)
        lineage.reads(attempt)
        if counted:
            attempt = for_next(world, "chain", None)
        lineage.staged(attempt, attempt.checkpoint.sealed())
        (rows_for_next,) = on_complete(lineage).outputs
        assert bool(rows_for_next.outputFacets) is counted

    # They are what the next task reads, and what lands in a Lance dataset is a version of it.
    staged = dataset.stage(dataset.request("lance", source=read(world, attempt)))
    lineage = Lineage(LOG)
    lineage.reads(staged)
    assert [one[:2] for one in map(named, on_complete(lineage).inputs)] == [named(rows_for_next)[:2]]
    lineage.committed(dataset.as_table(), dataset.commit(staged))
    (output,) = on_complete(lineage).outputs
    assert named(output) == ("file", dataset.uri, str(dataset.dataset.version))
    assert output.outputFacets["outputStatistics"].rowCount == 100

    # A table that is read is told with the snapshot that is read, by the same place that it was written to.
    world.commit(world.stage())
    source = IcebergTable("shop.orders")
    copy = world.request("copy", source=source, options=world.catalog_properties)
    attempt = world.stage(copy, name="shop.copies")
    lineage = Lineage(LOG)
    lineage.reads(attempt)
    lineage.staged(attempt, attempt.checkpoint.sealed())
    (table,) = on_complete(lineage).inputs
    location = world.table().location().removeprefix("file://")
    assert named(table) == ("file", location, str(world.table().current_snapshot().snapshot_id))


def named(dataset):
    """Namespace, name and version."""
    version = (dataset.facets or {}).get("version")
    return dataset.namespace, dataset.name, None if version is None else version.datasetVersion


def test_a_failed_check_is_told_of_the_run_and_not_of_the_table(dag_world, run_dag, listener):
    dag_world.put_files(files=1)
    dag_world.stage(dag_world.request("failed"))
    with DAG("failed", schedule=None, start_date=start()) as dag:
        CheckpointCommitOperator(task_id="commit", checkpoint="failed", checks=[{"none": lambda staged: not staged.rows}])
    run = run_dag(dag)

    assert task_states(run) == {"commit": "failed"}
    event = events(listener, run, "FAIL")["commit"]
    ((name, status),) = [(test["name"], test["status"]) for test in event["run"]["facets"]["test"]["tests"]]
    assert (name, status) == ("none", "fail")
    assert event["inputs"] == event["outputs"] == []


def test_what_cannot_be_told_is_no_reason_to_fail(tmp_path, transport, caplog, monkeypatch):
    from airflow.providers.openlineage import conf

    world = World(tmp_path)
    world.put_files(files=1)
    world.create_table()
    attempt = world.stage()
    settled = world.commit(attempt)
    world.catalog.drop_table("shop.orders")
    lineage = Lineage(LOG)
    lineage.committed(world.as_table(), settled)
    assert lineage.outputs == []
    assert "OpenLineage is not told what has landed: The Iceberg table shop.orders does not exist" in caplog.text

    def broken():
        raise ValueError("OpenLineage transport `[]` is not a dict")

    monkeypatch.setattr(conf, "is_disabled", broken)
    assert Lineage(LOG).inputs == []
    assert "OpenLineage is not told anything: OpenLineage transport" in caplog.text

    # Without the provider there is nothing to say.
    caplog.clear()
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", None)
    lineage = Lineage(LOG)
    lineage.committed(world.as_table(), settled)
    assert (lineage.outputs, caplog.text) == ([], "")
