"""The fake Glue refuses what the real one refuses; without that, a race on it would prove nothing."""

from __future__ import annotations

import boto3
import pytest
from botocore.exceptions import ClientError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from support.glue import glue_catalog
from support.world import SCHEMA


def client_of(properties):
    return boto3.client(
        "glue",
        endpoint_url=properties["glue.endpoint"],
        region_name=properties["glue.region"],
        aws_access_key_id=properties["glue.access-key-id"],
        aws_secret_access_key=properties["glue.secret-access-key"],
    )


def catalog_with_a_table(endpoint):
    properties = glue_catalog(endpoint)
    catalog = load_catalog("iceberg_default", **properties)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", SCHEMA)
    return catalog, client_of(properties)


def update_twice_from_one_version(client):
    """Two writers load the same version, change it and store it."""
    table = client.get_table(DatabaseName="shop", Name="orders")["Table"]
    for writer in ("first", "second"):
        changed = {"Name": "orders", "Parameters": table["Parameters"] | {"writer": writer}}
        client.update_table(DatabaseName="shop", TableInput=changed, VersionId=table["VersionId"])


def writer_of(client):
    return client.get_table(DatabaseName="shop", Name="orders")["Table"]["Parameters"].get("writer")


def test_an_update_from_a_stale_version_is_refused_and_changes_nothing(glue_endpoint):
    _, client = catalog_with_a_table(glue_endpoint)
    with pytest.raises(ClientError) as refused:
        update_twice_from_one_version(client)
    assert refused.value.response["Error"]["Code"] == "ConcurrentModificationException"
    assert writer_of(client) == "first"


def test_moto_alone_takes_an_update_from_a_stale_version(plain_glue_endpoint):
    # Once this fails, the check in ``support.glue`` has become moto's own.
    _, client = catalog_with_a_table(plain_glue_endpoint)
    update_twice_from_one_version(client)
    assert writer_of(client) == "second"


def test_a_commit_whose_table_moves_before_its_update_is_a_conflict(glue_endpoint):
    catalog, client = catalog_with_a_table(glue_endpoint)
    update = catalog.glue.update_table

    def overtaken(**request):
        table = client.get_table(DatabaseName="shop", Name="orders")["Table"]
        client.update_table(DatabaseName="shop", TableInput={"Name": "orders", "Parameters": table["Parameters"]})
        return update(**request)

    catalog.glue.update_table = overtaken
    table = catalog.load_table("shop.orders")
    transaction = table.transaction().set_properties({"late": "yes"})
    with pytest.raises(CommitFailedException, match="concurrent update"):
        catalog.commit_table(table, transaction._requirements, transaction._updates)
    assert "late" not in catalog.load_table("shop.orders").properties
