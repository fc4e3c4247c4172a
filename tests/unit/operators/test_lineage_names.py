"""Names of datasets by OpenLineage's conventions: the same for the same place, and never a credential in one."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.operators.lineage.names import dataset_name, folder_of, name_in_catalog
from airflow_ckpt_provider.tables.storage import Place


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://lake/in/a.parquet", ("s3://lake", "in/a.parquet")),
        ("s3a://lake/in/", ("s3://lake", "in")),
        ("s3://lake", ("s3://lake", "/")),
        ("gs://lake/orders.lance", ("gs://lake", "orders.lance")),
        ("az://container/orders", ("az://container", "orders")),
        ("abfs://container@account.dfs.core.windows.net/in", ("abfss://container@account.dfs.core.windows.net", "in")),
        ("hdfs://namenode:8020/warehouse/orders", ("hdfs://namenode:8020", "/warehouse/orders")),
        ("file:///data/in/", ("file", "/data/in")),
        ("/data/in/what?.parquet#1", ("file", "/data/in/what?.parquet#1")),
    ],
)
def test_a_dataset_is_named_by_the_place_of_its_files(uri, name):
    assert dataset_name(uri) == name


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:hidden@lake/in",
        "s3://hidden@lake/in",
        "s3://lake/in?X-Amz-Signature=hidden",
        "s3://lake/in#hidden",
        "https://lake?sig=hidden",
        "abfss://container:hidden@account.dfs.core.windows.net/in",
    ],
)
def test_no_user_no_password_and_no_query_is_part_of_a_name(uri):
    place = Place("s3://lake/t", "rest", uri.replace("s3://", "https://"), uri)
    names = [
        dataset_name(uri),
        name_in_catalog(place, "shop.orders"),
        name_in_catalog(place._replace(catalog="sql"), "shop.orders"),
    ]
    assert "hidden" not in repr(names)
    assert "AKIA" not in repr(names)


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("s3://lake/in/*.parquet", "s3://lake/in"),
        ("s3://lake/in/day=?/x[0-9].csv", "s3://lake/in"),
        ("s3://lake/*", "s3://lake"),
        ("file:///data/**/a.csv", "file:///data"),
        ("file:///data/a.csv", "file:///data/a.csv"),
    ],
)
def test_a_glob_is_the_folder_in_which_it_begins(uri, folder):
    assert folder_of(uri) == folder


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Place("s3://lake/t", "rest", "https://catalog:8181/api/", "lake"), ("https://catalog:8181/api", "shop.orders")),
        (Place("s3://lake/t", "hive", "thrift://one:9083,thrift://two:9083"), ("hive://one:9083", "shop.orders")),
        (Place("s3://lake/t", "sql", "postgresql://u:p@h/db", "s3://lake/warehouse/"), ("s3://lake/warehouse", "shop.orders")),
        (Place("file:///w/t", "sql", "sqlite:///c.db", "file:///w"), ("file:/w", "shop.orders")),
        (Place("s3://lake/t", "glue", "", "s3://lake/warehouse"), None),
        (Place("s3://lake/t"), None),
    ],
)
def test_a_table_has_the_name_in_its_catalog_as_an_alias(place, name):
    assert name_in_catalog(place, "shop.orders") == name
