"""A checkpointed write in a program of the user's own: what it asks for, what it refuses, and who may commit what it has staged."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.frames import Calls, wait_for_tasks
from support.world import World

from airflow_ckpt_provider.exceptions import BindingMismatchError, InvalidInputError, StageFailedError, TableMissingError
from airflow_ckpt_provider.spark import checkpointed_write, commit
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.spark.session_catalog import catalog_of_session
from airflow_ckpt_provider.transforms import Map

pytestmark = pytest.mark.spark

PROD = {
    "spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.prod.type": "rest",
    "spark.sql.catalog.prod.uri": "http://catalog.example:8181",
    "spark.sql.catalog.prod.warehouse": "lake",
    "spark.sql.catalog.prod.s3.endpoint": "http://storage.example",
    "spark.sql.catalog.prod.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    "spark.sql.catalog.prod.cache-enabled": "false",
}


@pytest.fixture(scope="module")
def spark():
    with spark_session(SparkTarget("local[2]", conf={"spark.sql.shuffle.partitions": "2"}), "programs") as session:
        yield session


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    found.create_table()
    found.put_files()
    return found


def write(world, frame, **changes):
    facts = {
        "table": "shop.orders",
        "catalog": world.catalog_properties,
        "store": world.store.uri,
        "key": "orders",
        "id_column": "id",
    }
    return checkpointed_write(frame, **({"buckets": 4} | facts | changes))


def landed(world, reference):
    return commit(reference, catalog=world.catalog_properties, store=world.store.uri)


def orders(spark, world):
    return spark.read.parquet(str(world.input))


def test_rows_are_staged_and_land_once_however_often_it_is_called(spark, world):
    staged = write(world, orders(spark, world))
    assert (staged["state"], staged["rows"], staged["splits"]) == ("sealed", 400, {"total": 4, "recovered": 0, "written": 4})
    assert staged["application"] == spark.sparkContext.applicationId
    assert world.ids() == []
    first, again = landed(world, staged), landed(world, staged)
    assert (first["state"], first["commit"]["landed_now"], again["commit"]["landed_now"]) == ("committed", True, False)
    assert world.ids() == list(range(400))
    assert write(world, orders(spark, world))["commit"] == again["commit"]
    assert len(world.table().snapshots()) == 1


def test_two_programs_with_one_key_at_once_land_the_rows_once(spark, world):
    with ThreadPoolExecutor(2) as pool:
        references = list(pool.map(lambda _: write(world, orders(spark, world)), range(2)))
        committed = list(pool.map(lambda reference: landed(world, reference), references))
    assert world.ids() == list(range(400))
    assert len({one["commit"]["snapshot_id"] for one in committed}) == 1
    assert len(world.table().snapshots()) == 1


def test_a_lance_dataset_is_written_too(spark, world):
    uri = str(world.root / "orders.lance")
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.float64())}), uri)
    frame = orders(spark, world).select("id", "value")
    staged = checkpointed_write(frame, uri=uri, store=world.store.uri, key="orders", id_column="id", buckets=4)
    committed = commit(staged, store=world.store.uri)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(400))
    assert "version" in committed["commit"]


def test_modes_and_transforms_are_those_of_the_operators(spark, world):
    landed(world, write(world, orders(spark, world)))
    newer = orders(spark, world).where("id < 10")
    doubled = Map(lambda value: {"value": value * 2}, output={"value": float}, keep=["id", "kind", "at"])
    landed(world, write(world, newer, key="again", mode="upsert", upsert_keys=["id"], transform=doubled))
    rows = world.table().scan().to_arrow().sort_by("id")
    assert rows["value"].to_pylist() == [n / 4 * 2 if n < 10 else n / 4 for n in range(400)]


def test_another_query_under_the_same_key_is_refused_and_both_ways_on_are_named(spark, world):
    write(world, orders(spark, world))
    other = orders(spark, world).where("id < 100")
    with pytest.raises(BindingMismatchError, match=r"source: was (.|\n)*call checkpointed_write with restart="):
        write(world, other)
    landed(world, write(world, other, on_change="restart"))
    assert world.ids() == list(range(100))


def test_the_same_query_in_another_process_is_the_same_query(spark, world):
    script = f"""
import sys
from pyspark.sql import SparkSession
from airflow_ckpt_provider.spark import checkpointed_write
from support.world import World
from pathlib import Path
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(3).count()
world = World(Path({str(world.root)!r}))
facts = {{"table": "shop.orders", "catalog": world.catalog_properties, "store": world.store.uri, "key": "orders"}}
print(checkpointed_write(spark.read.parquet(str(world.input)), id_column="id", buckets=4, **facts))
print([name for name in sys.modules if name.partition(".")[0] == "airflow"])
"""
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr[-2000:]
    # And no Airflow was imported.
    assert said.stdout.splitlines()[-1] == "[]"
    again = write(world, orders(spark, world))
    assert again["splits"] == {"total": 4, "recovered": 4, "written": 0}


def test_a_write_is_begun_anew_once_for_each_text_that_asks_for_it(spark, world):
    first = write(world, orders(spark, world))
    anew = write(world, orders(spark, world), restart="files were repaired")
    assert (first["generation"], anew["generation"]) == (1, 2)
    assert write(world, orders(spark, world), restart="files were repaired")["generation"] == 2


def test_progress_is_logged(spark, world, caplog):
    with caplog.at_level(logging.INFO, "airflow_ckpt_provider.spark.program"):
        write(world, orders(spark, world))
    said = caplog.text
    assert "4 splits planned: 0 are staged already, 4 to write." in said
    assert "4/4 buckets staged (0 recovered), 400 rows written" in said
    assert "Sealed: 4 splits (0 recovered, 4 written now), 400 rows" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"table": None}, "either table=, an Iceberg table, or uri="),
        ({"uri": "/data/orders.lance"}, "either table=, an Iceberg table, or uri="),
        ({"uri": "/data/orders.lance", "table": None}, "catalog= and branch= belong to an Iceberg table"),
        ({"storage_options": {"region": "eu"}}, "storage_options= belong to a Lance dataset"),
        ({"catalog": None}, "The session has no catalog 'shop'"),
        ({"catalog": {"type": "sqll"}}, "The Iceberg catalog 'default' could not be opened"),
        ({"mode": "upsert"}, "needs upsert_keys"),
        ({"mode": "merge"}, "the modes are"),
        ({"on_change": "ignore"}, "the values are 'fail', 'restart' and 'continue'"),
        ({"id_column": "nid"}, "has no column nid"),
        ({"id_column": []}, "one or several different column names"),
        ({"upsert_keys": ["id"]}, "upsert_keys belongs to mode='upsert'"),
        ({"store": "relative/path"}, "relative"),
        ({"store": "memory:///"}, "on this machine only"),
    ],
)
def test_what_cannot_work_is_refused(spark, world, changes, said):
    with pytest.raises(InvalidInputError, match=said):
        write(world, orders(spark, world), **changes)
    assert world.files_on_disk() == set()


def test_a_table_that_is_not_there_is_named(spark, world):
    with pytest.raises(TableMissingError, match=r"shop\.other"):
        write(world, orders(spark, world), table="shop.other")


def test_what_a_transform_has_done_of_a_bucket_is_saved_for_the_next_run(spark, world, tmp_path):
    calls = Calls(tmp_path / "calls")
    saving = {"buckets": 2, "save_every": 10, "transform_version": "1"}
    with pytest.raises(StageFailedError, match="not today"):
        write(world, orders(spark, world), transform=calls.map(300), **saving)
    wait_for_tasks(spark)
    first = calls.taken()
    landed(world, write(world, orders(spark, world), transform=calls.map(), **saving))
    again = calls.taken()
    assert first.keys() | again.keys() == {str(number) for number in range(400)}
    # Of each of two buckets less than what is saved at once is done again.
    assert (first & again).total() < 2 * 10
    assert world.ids() == list(range(400))


def test_a_commit_that_names_another_table_than_its_reference_is_refused(spark, world):
    world.create_table("shop.other")
    staged, opened = write(world, orders(spark, world)), {"catalog": world.catalog_properties, "store": world.store.uri}
    with pytest.raises(BindingMismatchError, match=r"its table is 'shop\.orders', not 'shop\.other'"):
        commit(staged, table="shop.other", **opened)
    with pytest.raises(InvalidInputError, match=r"either table=.*or uri="):
        commit(staged, table="shop.orders", uri="/somewhere.lance", **opened)
    assert commit(staged, table="shop.orders", **opened)["commit"]["landed_now"]


def test_a_key_alone_is_no_reference(world):
    with pytest.raises(InvalidInputError, match="what checkpointed_write has returned"):
        commit("orders", catalog=world.catalog_properties, store=world.store.uri)


# -- catalogs of the session --------------------------------------------------------------------------------------------------


@pytest.fixture
def conf(spark):
    def put(settings):
        for name, value in settings.items():
            spark.conf.set(name, value)
            names.append(name)

    names = []
    yield put
    for name in names:
        spark.conf.unset(name)


def test_a_catalog_of_the_session_is_told_to_pyiceberg(spark, conf):
    conf(PROD)
    assert catalog_of_session(spark, "prod") == {
        "name": "prod",
        "type": "rest",
        "uri": "http://catalog.example:8181",
        "warehouse": "lake",
        "s3.endpoint": "http://storage.example",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spark.sql.catalog.prod": "org.example.Catalog"}, "no catalog of Iceberg tables"),
        ({"spark.sql.catalog.prod.type": "hadoop"}, "of the type hadoop"),
        ({"spark.sql.catalog.prod.catalog-impl": "org.example.Impl"}, r"of the type org\.example\.Impl"),
        ({"spark.sql.catalog.prod.view-of-the-world": "flat"}, r"spark\.sql\.catalog\.prod\.view-of-the-world"),
    ],
)
def test_a_catalog_that_pyiceberg_cannot_open_is_refused_by_name(spark, conf, changes, said):
    conf(PROD | changes)
    with pytest.raises(InvalidInputError, match=said):
        catalog_of_session(spark, "prod")
