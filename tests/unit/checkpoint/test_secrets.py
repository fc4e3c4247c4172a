"""What is kept from logs and messages, and who can read a store on a local disk."""

from __future__ import annotations

import json
import os
import stat

import pytest
from support.samples import HEADER

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.secrets import is_secret, redacted, secrets_in, without_credentials
from airflow_ckpt_provider.checkpoint.store import CheckpointStore, StoreError
from airflow_ckpt_provider.exceptions import InvalidInputError

SECRET = "d0ntSh0wMe"


@pytest.mark.parametrize(
    "name",
    [
        "secret_access_key",
        "session_token",
        "account_key",
        "signing_secret",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.container.lake",
        "spark.ssl.keyPassword",
        "s3.secret-access-key",
        "credential",
        "adls.account-key",
    ],
)
def test_a_name_tells_a_secret(name):
    assert is_secret(name, SECRET)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", f"http://user:{SECRET}@minio:9000"),
        ("proxy_url", f"http://{SECRET}@proxy"),
        ("google_application_credentials", json.dumps({"type": "service_account", "private_key": SECRET})),
        ("uri", f"postgresql+psycopg2://user:{SECRET}@host/db"),
        ("connection", f"DefaultEndpointsProtocol=https;AccountKey={SECRET}"),
    ],
)
def test_a_value_tells_a_secret_whatever_it_is_called(name, value):
    assert is_secret(name, value)
    assert SECRET not in redacted(f"it failed with {value} and {value!r}", {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("region", "eu-central-1"),
        ("endpoint", "https://minio:9000"),
        ("google_application_credentials", "/etc/keys.json"),
        ("web_identity_token_file", "/var/run/token"),
        ("spark.executor.memory", "4g"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"),
        ("spark.sql.catalog.lake.uri", "https://catalog/api"),
    ],
)
def test_what_helps_to_find_an_error_is_shown(name, value):
    assert not is_secret(name, value)
    assert redacted(f"cannot use {value}", {name: value}) == f"cannot use {value}"


def test_secrets_are_found_at_any_depth():
    facts = {
        "extra": {"a": [f"http://user:{SECRET}1@x"], "b": {"password": f"{SECRET}2"}},
        "key": json.dumps({"private_key": f"{SECRET}3"}),
    }
    assert {f"{SECRET}1", f"{SECRET}2", f"{SECRET}3"} <= set(secrets_in(facts))


def test_a_url_keeps_its_host_and_loses_its_user():
    assert without_credentials(f"at s3://bucket and spark://user:{SECRET}@host:7077") == "at s3://bucket and spark://***@host:7077"


def test_an_endpoint_with_a_password_does_not_stand_in_the_error_of_a_store_that_cannot_be_reached():
    endpoint = f"http://user:{SECRET}@127.0.0.1:9"
    store = CheckpointStore.at("s3://bucket/x", endpoint=endpoint, allow_http="true", access_key_id="a", secret_access_key=SECRET)
    with pytest.raises((StoreError, InvalidInputError)) as caught:
        store.check()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("option", ["google_application_credentials", "proxy_url", "timeout", "region", "endpoint"])
def test_an_option_with_a_wrong_value_is_refused_without_repeating_a_secret(option):
    value = json.dumps({"type": "service_account", "private_key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}"})
    store = CheckpointStore.at("gs://bucket/x" if option.startswith("google") else "s3://bucket/x", **{option: value})
    with pytest.raises((StoreError, InvalidInputError)) as caught:
        store.check()
    assert SECRET not in str(caught.value)


# -- files ----------------------------------------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def everything_is_open():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("everything_is_open")
def test_a_local_store_is_made_for_its_own_user_only(tmp_path):
    Checkpoint.create(CheckpointStore.at(str(tmp_path / "deep" / "store")), HEADER)
    assert mode(tmp_path / "deep" / "store") == 0o700
    (header,) = tmp_path.rglob("header.json")
    assert mode(header) == 0o600


@pytest.mark.usefixtures("everything_is_open")
def test_a_folder_that_was_opened_for_a_group_stays_open_for_it(tmp_path):
    """Executors of another user need that."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o770)
    Checkpoint.create(CheckpointStore.at(str(tmp_path / "store")), HEADER)
    (header,) = tmp_path.rglob("header.json")
    assert (mode(tmp_path / "store"), mode(header)) == (0o770, 0o660)
