"""Assets: a commit emits an event when something lands and none when nothing does, and mistyped URIs are refused."""

from __future__ import annotations

import subprocess
import sys

import lance
import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.dags import returned, start, task_states
from support.world import rows

from airflow_ckpt_provider.hooks.asset_uris import asset_uri
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import groups

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]

TABLE = "iceberg://iceberg_default/shop.orders"


def stage(world, task_id="stage", **changes):
    facts = {"task_id": task_id, "table": "shop.orders", "source": Files(f"{world.input}/*.parquet")}
    return CheckpointedIcebergWriteOperator(**(facts | changes))


def events(uri):
    """Events of an asset, oldest first: what each says, and which run it is of."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent).join(AssetEvent.asset).where(AssetModel.uri == uri).order_by(AssetEvent.id)
        return [(event.extra, event.source_run_id) for event in session.scalars(query)]


@pytest.fixture(autouse=True)
def no_events(airflow_database):
    """A database without events: tests share it."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(AssetEvent))


def test_a_commit_tells_an_asset_what_has_landed_and_a_cleared_one_tells_it_nothing(dag_world, run_dag):
    dag_world.put_files(files=2)
    with DAG("told_once", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world)
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=[Asset(TABLE)])
    first = run_dag(dag, when=start())

    committed = returned(first, "commit")
    ((extra, run_id),) = events(TABLE)
    assert run_id == first.run_id
    assert extra == {
        "snapshot_id": committed["commit"]["snapshot_id"],
        "committed_at": committed["commit"]["committed_at"],
        "table": "shop.orders",
        "branch": "main",
        "mode": "append",
        "rows": 200,
        "files": committed["files"],
        "idempotence_key": committed["idempotence_key"],
    }
    again = run_dag(dag, when=start())
    assert again.run_id == first.run_id
    assert returned(again, "commit")["commit"]["landed_now"] is False
    assert len(events(TABLE)) == 1


def test_a_dag_on_the_asset_is_due_once_for_each_commit(dag_world, run_dag):
    from airflow.models.asset import AssetDagRunQueue
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete, func, select, update

    dag_world.put_files(files=1)

    def due():
        with create_session() as session:
            count = session.scalar(
                select(func.count()).select_from(AssetDagRunQueue).where(AssetDagRunQueue.target_dag_id == "reads")
            )
            session.execute(delete(AssetDagRunQueue))
        return count

    with DAG("reads", schedule=[Asset(TABLE)], start_date=start()) as reader:
        CheckpointCommitOperator(task_id="nothing", checkpoint="x")
    with DAG("writes", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, idempotence_key="writes/{{ dag_run.conf['n'] }}")
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=[Asset(TABLE)])
    run_dag.register(reader)
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == "reads").values(is_paused=False))
    assert [bool(due()) if run_dag(dag, n=n) else None for n in ("1", "1", "2")] == [True, False, True]


def test_an_alias_gets_the_tables_own_asset(dag_world, run_dag):
    dag_world.put_files(files=1)
    table = dag_world.table()
    table.append(rows(1000, 1).cast(table.schema().as_arrow()))
    with DAG("alias", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, branch="audit")
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=[AssetAlias("orders")])
    for _ in range(2):
        run = run_dag(dag, when=start())

    assert task_states(run) == {"stage": "success", "commit": "success"}
    ((extra, _),) = events(f"{TABLE}?branch=audit")
    assert (extra["rows"], extra["branch"]) == (100, "audit")
    assert events(TABLE) == []


def test_a_lance_commit_tells_its_version(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=1)
    uri = str(tmp_path / "orders.lance")
    lance.write_dataset(rows(0, 1).schema.empty_table(), uri)
    with DAG("lance_asset", schedule=None, start_date=start()) as dag:
        staged = CheckpointedLanceWriteOperator(task_id="stage", uri=uri, source=Files(f"{dag_world.input}/*.parquet"))
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=[AssetAlias("vectors")])
    run = run_dag(dag)

    reference = returned(run, "commit")
    ((extra, _),) = events(asset_uri(reference))
    assert asset_uri(reference) == f"lance://file{uri}"
    assert extra["version"] == reference["commit"]["version"] == 2


def test_mapped_stages_that_land_together_are_one_event(dag_world, run_dag):
    dag_world.put_files(files=2)
    with DAG("mapped_asset", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.orders").expand(
            source=[f"{dag_world.input}/{n}.parquet" for n in range(2)]
        )
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=[Asset(TABLE), AssetAlias("orders")])
    run_dag(dag)

    # The alias adds the same asset: Airflow keeps an event of each outlet.
    assert [extra["rows"] for extra, _ in events(TABLE)] == [200, 200]
    assert all(len(extra["idempotence_keys"]) == 2 for extra, _ in events(TABLE))


def test_a_commit_without_rows_tells_nothing(dag_world, run_dag):
    with DAG("nothing_asset", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world)
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=[Asset(TABLE), AssetAlias("orders")])
    run = run_dag(dag)

    assert task_states(run) == {"stage": "success", "commit": "success"}
    assert events(TABLE) == []


@pytest.mark.parametrize("outlet", [Asset(TABLE), AssetAlias("orders")], ids=["asset", "alias"])
def test_a_commit_that_died_before_airflow_heard_of_it_is_told_by_its_retry(dag_world, run_dag, monkeypatch, outlet):
    dag_world.put_files(files=1)
    commit = groups.commit

    def lands_and_dies(*arguments):
        commit(*arguments)
        monkeypatch.setattr(groups, "commit", commit)
        raise OSError("the worker is gone")

    with DAG("dies", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world)
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=[outlet], retries=1, retry_delay=0)
    monkeypatch.setattr(groups, "commit", lands_and_dies)
    run = run_dag(dag, when=start())

    assert task_states(run) == {"stage": "success", "commit": "success"}
    reference = returned(run, "commit")
    assert reference["commit"]["landed_now"] is False
    ((extra, _),) = events(TABLE)
    assert extra["snapshot_id"] == reference["commit"]["snapshot_id"]
    run_dag(dag, when=start())
    assert len(events(TABLE)) == 1


def test_a_commit_of_before_the_asset_was_declared_is_not_told_when_it_is_cleared(dag_world, run_dag):
    dag_world.put_files(files=1)

    def dag(outlets):
        with DAG("declared_later", schedule=None, start_date=start()) as dag:
            staged = stage(dag_world)
            CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, outlets=outlets)
        return dag

    run_dag(dag([]), when=start())
    for _ in range(2):
        run = run_dag(dag([Asset(TABLE)]), when=start())
        assert returned(run, "commit")["commit"]["landed_now"] is False
    assert events(TABLE) == []


def test_airflow_knows_the_uris_of_both_formats():
    assert {"iceberg", "lance"} <= set(ProvidersManagerTaskRuntime().asset_uri_handlers)
    assert Asset("iceberg://lake/shop.orders/").uri == "iceberg://lake/shop.orders"
    assert Asset("iceberg://lake/shop.orders?branch=main").uri == "iceberg://lake/shop.orders"
    assert Asset("iceberg://lake/a.b.orders?branch=audit").uri == "iceberg://lake/a.b.orders?branch=audit"
    assert Asset("LANCE://S3A/lake/vectors.lance/").uri == "lance://s3/lake/vectors.lance"


@pytest.mark.parametrize(
    ("uri", "form"),
    [
        ("iceberg://lake", "<namespace>.<table>"),
        ("iceberg://lake/orders", "<namespace>.<table>"),
        ("iceberg://lake/shop/orders", "<namespace>.<table>"),
        ("iceberg:///shop.orders", "<connection id>"),
        ("iceberg://lake/shop.orders?tag=v1", "branch"),
        ("iceberg://lake:8181/shop.orders", "<connection id>"),
        ("lance://s3", "lance://s3/lake/vectors.lance"),
        ("lance:///data/vectors.lance", "<scheme>"),
        ("lance://s3/lake/v.lance?version=2", "<path>"),
    ],
)
def test_a_uri_that_names_no_table_is_refused_where_the_asset_is_declared(uri, form):
    with pytest.raises(ValueError, match="It has the form") as raised:
        Asset(uri)
    assert form in str(raised.value)


def test_airflow_asks_about_uris_without_loading_spark_or_a_table_format():
    code = (
        "import sys\n"
        "import airflow_ckpt_provider.hooks.asset_uris\n"
        "heavy = {'airflow', 'pyspark', 'pyiceberg', 'pyarrow', 'lance', 'obstore'}\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_partition_that_was_written_to_has_an_event_if_that_is_asked_for(dag_world, run_dag, caplog):
    spec = PartitionSpec(PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="kind"))
    dag_world.create_table("shop.by_kind", spec=spec)
    dag_world.put_files(files=2)
    uri = "iceberg://iceberg_default/shop.by_kind"
    for key, table in (("kinds", "shop.by_kind"), ("whole", "shop.orders")):
        mode = "overwrite_partitions" if key == "kinds" else "append"
        dag_world.stage(dag_world.request(key, mode=mode), name=table)
        with DAG(f"told_of_{key}", schedule=None, start_date=start()) as dag:
            asset = Asset(uri if key == "kinds" else TABLE)
            CheckpointCommitOperator(
                task_id="commit", checkpoint=key, table=table, mode=mode, outlets=[asset], partition_events=True
            )
        run_dag(dag, when=start())
        run_dag(dag, when=start())
    kinds = set(dag_world.table("shop.by_kind").scan().to_arrow()["kind"].to_pylist())
    assert len(kinds) > 1
    assert sorted(partition_keys(uri)) == sorted(f"kind={kind}" for kind in kinds)
    # Of a table without partitions there is one of all, and the log says so.
    assert partition_keys(TABLE) == [None]
    assert [line.message for line in caplog.records].count(
        "Nothing that has landed is in a partition, so that there is one event of all of it."
    ) == 1


def partition_keys(uri):
    """Partition keys of the events of an asset."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(AssetEvent.partition_key).join(AssetEvent.asset).where(AssetModel.uri == uri)))
