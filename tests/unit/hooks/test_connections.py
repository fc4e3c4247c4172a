"""Connections: what they open, what they default to, and how each wrong one is refused."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime

import obstore
import pytest
from airflow.sdk.log import redact
from support.s3 import SECRET

from airflow_ckpt_provider.checkpoint.documents import Tombstone
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import CheckpointError, InvalidInputError, RetryableError
from airflow_ckpt_provider.get_provider_info import get_provider_info
from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook, embedded_home, storage_options
from airflow_ckpt_provider.hooks.spark import spark_target
from airflow_ckpt_provider.spark.session import SparkTarget
from airflow_ckpt_provider.spark.visibility import require_shared_store

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while connections are read.
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("airflow_database"),
]


@pytest.fixture
def connect(monkeypatch):
    def connect(conn_id, **facts):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(facts))

    return connect


def test_without_connections_everything_is_below_airflow_home():
    assert CheckpointHook().get_conn().uri == f"file://{embedded_home()}/store"
    assert iceberg_catalog().properties["warehouse"] == f"file://{embedded_home()}/warehouse"
    assert spark_target("spark_default", {}).master == "local[*]"


def test_fields_of_the_form_that_are_left_empty_say_nothing(connect):
    (form,) = get_provider_info()["connection-types"]
    empty = dict.fromkeys(form["conn-fields"])
    connect("empty", conn_type="checkpoint", host="s3://bucket/prefix", extra=empty | {"region": "", "endpoint": ""})
    assert storage_options("empty") == {}
    connect(
        "filled", conn_type="checkpoint", host="s3://bucket/prefix", extra=empty | {"region": "eu-central-1", "allow_http": True}
    )
    assert storage_options("filled") == {"region": "eu-central-1", "allow_http": "true"}


def test_a_connection_may_come_from_a_secrets_backend(tmp_path):
    secrets = {"vaulted": {"conn_type": "checkpoint", "host": f"file://{tmp_path}/store"}}
    (tmp_path / "connections.json").write_text(json.dumps(secrets))
    backend = {
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(tmp_path / "connections.json")}),
    }
    code = "from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook; print(CheckpointHook('vaulted').test_connection())"
    said = subprocess.run([sys.executable, "-c", code], env=os.environ | backend, capture_output=True, text=True, check=True).stdout
    assert said.strip().splitlines()[-1].startswith(f"(True, 'The checkpoint store file://{tmp_path}/store ")


@pytest.mark.parametrize(
    "opened", [lambda: CheckpointHook("typo"), lambda: iceberg_catalog("typo"), lambda: spark_target("typo", {})]
)
def test_a_connection_that_was_named_and_does_not_exist_is_an_error(opened):
    with pytest.raises(InvalidInputError, match="typo"):
        getattr(opened(), "get_conn", lambda: None)()


@pytest.mark.parametrize(
    "opened",
    [lambda: CheckpointHook("wrong").get_conn(), lambda: iceberg_catalog("wrong"), lambda: spark_target("wrong", {})],
    ids=["checkpoint", "iceberg", "spark"],
)
def test_a_connection_of_another_type_is_refused_and_both_types_are_named(connect, opened):
    connect("wrong", conn_type="postgres", host="somewhere")
    with pytest.raises(InvalidInputError, match=r"'wrong' is of type 'postgres'; the type (checkpoint|iceberg|spark)"):
        opened()


@pytest.mark.parametrize("extra", [{}, {"type": "rest"}, {"credential": "id:secret"}], ids=str)
def test_a_catalog_that_takes_connections_and_never_answers_is_given_up(connect, extra):
    with socket.create_server(("127.0.0.1", 0)) as server:
        timeouts = {"rest.client.connection-timeout-ms": 300, "rest.client.socket-timeout-ms": 300}
        host = f"http://127.0.0.1:{server.getsockname()[1]}"
        connect("silent", conn_type="iceberg", host=host, extra=extra | timeouts)
        began = time.monotonic()
        with pytest.raises(RetryableError, match=r"'silent' could not be opened.*[Tt]imed? ?out"):
            iceberg_catalog("silent")
        assert time.monotonic() - began < 10


def test_a_time_out_of_a_catalog_that_is_none_is_refused(connect):
    connect("wrong", conn_type="iceberg", host="http://127.0.0.1:9", extra={"rest.client.socket-timeout-ms": "soon"})
    with pytest.raises(InvalidInputError, match=r"rest\.client\.socket-timeout-ms='soon'"):
        iceberg_catalog("wrong")


def test_a_name_of_a_catalog_that_is_not_its_connections_is_refused(connect):
    connect("lake", conn_type="iceberg", extra={"type": "sql", "uri": "sqlite:///:memory:", "name": "prod"})
    with pytest.raises(InvalidInputError, match=r"'lake' has a 'name'.*give the connection the catalog's name as its id"):
        iceberg_catalog("lake")


@pytest.mark.parametrize(
    ("extra", "said"),
    [({"type": "no-such-type"}, "no-such-type"), ({"type": "hive", "uri": "thrift://127.0.0.1:9"}, "NotInstalledError")],
    ids=["no such type", "not installed"],
)
def test_a_catalog_that_cannot_be_opened_by_any_retry_is_refused(connect, extra, said):
    connect("wrong", conn_type="iceberg", extra=extra)
    with pytest.raises(InvalidInputError, match=f"'wrong' could not be opened.*{said}"):
        iceberg_catalog("wrong")


def test_a_store_connection_opens_s3_with_its_credentials_and_shows_none(connect, s3_bucket):
    options = s3_bucket.options
    connect(
        "lake",
        conn_type="checkpoint",
        host=s3_bucket.uri("checkpoints"),
        login=options["access_key_id"],
        password=options["secret_access_key"],
        extra={"endpoint": options["endpoint"], "region": options["region"], "allow_http": True},
    )
    hook = CheckpointHook("lake")
    assert hook.test_connection()[0], hook.test_connection()
    store = hook.get_conn()
    assert isinstance(store, CheckpointStore)
    assert SECRET not in repr(store)
    assert storage_options("lake")["secret_access_key"] == options["secret_access_key"]


def test_a_store_that_cannot_be_reached_says_so(connect):
    connect(
        "lake",
        conn_type="checkpoint",
        host="s3://nowhere/x",
        extra={"endpoint": "http://127.0.0.1:9", "allow_http": True, "timeout": "1s"},
    )
    good, message = CheckpointHook("lake").test_connection()
    assert not good
    assert "s3://nowhere/x" in message


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"host": "s3://bucket/x", "extra": {"aws_iam_roles": "x"}}, "aws_iam_roles"),
        ({"host": "s3://bucket/x", "extra": {"endpoint": "http://minio:9000"}}, '"allow_http": true'),
        ({"host": ""}, "host"),
        ({"host": "s3://key:secret@bucket/x"}, "credential"),
        ({"host": "relative/folder"}, "relative"),
        ({"host": "ftp://host/x"}, "ftp"),
    ],
    ids=["unknown extra", "endpoint without encryption", "no host", "credential in the URI", "relative path", "unknown scheme"],
)
def test_a_store_connection_that_cannot_work_is_refused(connect, facts, named):
    connect("lake", conn_type="checkpoint", **facts)
    with pytest.raises(InvalidInputError, match=named) as caught:
        CheckpointHook("lake").get_conn()
    assert "secret@" not in str(caught.value)


def test_a_spark_connection_gives_master_queue_and_settings(connect):
    connect("cluster", conn_type="spark", host="spark://master", port=7077, extra={"queue": "q", "spark.executor.memory": "3g"})
    target = spark_target("cluster", {"spark.executor.cores": "2"})
    assert target.master == "spark://master:7077"
    assert dict(target.conf) == {"spark.executor.memory": "3g", "spark.yarn.queue": "q", "spark.executor.cores": "2"}


def test_cluster_deploy_mode_is_refused(connect):
    connect("cluster", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster"})
    with pytest.raises(InvalidInputError, match="deploy-mode"):
        spark_target("cluster", {})


def test_a_connect_url_with_its_token_is_not_shown(connect):
    connect("remote", conn_type="spark_connect", host="sc://host", port=15002, password=SECRET)
    target = spark_target("remote", {})
    assert SECRET in target.remote
    assert SECRET not in repr(target)
    assert SECRET not in target.name


@pytest.mark.parametrize("master", ["spark://10.0.0.7:7077", "yarn", "k8s://https://host"])
def test_a_local_store_is_refused_for_a_master_elsewhere(tmp_path, master):
    with pytest.raises(InvalidInputError, match="this machine only"):
        require_shared_store(CheckpointStore.at(str(tmp_path)), SparkTarget(master=master))
    require_shared_store(CheckpointStore.at("s3://bucket/x"), SparkTarget(master=master))
    require_shared_store(CheckpointStore.at(str(tmp_path)), SparkTarget(master="spark://127.0.0.1:7077"))


KEY = "5e" * 16


def test_a_signing_secret_signs_the_store_and_is_no_option_of_the_storage(connect):
    connect(
        "lake",
        conn_type="checkpoint",
        host="memory:///signed",
        extra={"signing_secret": KEY, "previous_signing_secrets": ["a5" * 16]},
    )
    store = CheckpointHook("lake").get_conn()
    assert store.create(f"{'ab' * 10}/g1/discard.json", Tombstone(discarded_at=datetime.now(UTC), reason="a test"))
    (name,) = store.names("")
    assert b"hmac_sha256" in bytes(obstore.get(store.location.open(), name).bytes())
    assert storage_options("lake") == {}
    assert KEY not in repr(store) + repr(store.location) + repr(CheckpointHook("lake"))
    assert CheckpointHook().get_conn().signer is None


@pytest.mark.parametrize(
    "extra",
    [
        {"signing_secret": "short"},
        {"signing_secret": 5},
        {"previous_signing_secrets": [KEY]},
        {"signing_secret": KEY, "previous_signing_secrets": [1]},
        {"signing_secret": KEY, "previous_signing_secrets": {"a": KEY}},
    ],
)
def test_signing_secrets_that_cannot_work_are_refused_and_not_repeated(connect, extra):
    connect("lake", conn_type="checkpoint", host="memory:///signed", extra=extra)
    with pytest.raises(InvalidInputError, match="signing_secret") as caught:
        CheckpointHook("lake").get_conn()
    assert KEY not in str(caught.value)


SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    "facts",
    [
        {"host": SECRET_KEY},
        {"host": f"file://{SECRET_KEY}"},
        {"host": f"ftp://{SECRET_KEY}"},
        {"host": f"s3://bucket/{SECRET_KEY}?x"},
        {"host": "s3://bucket/x", "extra": {"bogus": SECRET_KEY}},
        {"host": "s3://bucket/x", "extra": {"endpoint": f"http://user:{SECRET_KEY}@minio:9000"}},
        {"host": "gs://bucket/x", "extra": {"google_application_credentials": json.dumps({"private_key": SECRET_KEY})}},
    ],
)
def test_a_secret_in_the_wrong_field_is_refused_and_not_repeated(connect, facts):
    connect("lake", conn_type="checkpoint", **facts)
    with pytest.raises(InvalidInputError, match="'lake'") as caught:
        CheckpointHook("lake").get_conn()
    assert SECRET_KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("opened", "facts"),
    [
        (
            lambda: CheckpointHook("x").get_conn(),
            {"conn_type": "checkpoint", "host": "memory:///x", "extra": {"session_token": SECRET_KEY}},
        ),
        (
            lambda: CheckpointHook("x").get_conn(),
            {"conn_type": "checkpoint", "host": "s3://b/x", "extra": {"proxy_url": f"http://user:{SECRET_KEY}@proxy"}},
        ),
        (lambda: spark_target("x", {}), {"conn_type": "spark", "host": f"spark://user:{SECRET_KEY}@host", "port": 7077}),
        (
            lambda: spark_target("x", {}),
            {"conn_type": "spark", "host": "local", "extra": {"spark.hadoop.fs.azure.account.key.lake": SECRET_KEY}},
        ),
        (
            lambda: iceberg_catalog("x"),
            {"conn_type": "iceberg", "host": "http://127.0.0.1:9", "extra": {"s3.secret-access-key": SECRET_KEY, "type": "rest"}},
        ),
    ],
    ids=["token", "proxy", "spark master", "spark setting", "iceberg"],
)
def test_what_is_secret_in_a_connection_is_masked_in_whatever_is_logged_after_it_was_read(connect, opened, facts):
    connect("x", **facts)
    with contextlib.suppress(CheckpointError):
        opened()
    assert SECRET_KEY not in redact(f"somebody logs {SECRET_KEY} in a sentence")


def test_the_embedded_default_is_open_to_its_own_user_only(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    before = os.umask(0)
    try:
        CheckpointHook().get_conn().create(
            f"{'ab' * 10}/g1/discard.json", Tombstone(discarded_at=datetime.now(UTC), reason="a test")
        )
        iceberg_catalog()
    finally:
        os.umask(before)
    assert (tmp_path / "home" / "checkpoints").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "home" / "checkpoints" / "store").stat().st_mode & 0o777 == 0o700


def test_the_connection_form_hides_the_signing_secret():
    (form,) = get_provider_info()["connection-types"]
    assert form["conn-fields"]["signing_secret"]["schema"]["format"] == "password"


# -- what Airflow's own API and command line show ----------------------------------------------------------------------------


def test_the_api_and_the_command_line_of_airflow_hide_what_signs_the_documents():
    from airflow._shared.secrets_masker import redact
    from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse

    extra = {"signing_secret": KEY, "previous_signing_secrets": ["a5" * 16], "region": "eu-central-1"}
    facts = dict.fromkeys(("description", "host", "login", "schema", "port", "password", "team_name"))
    shown = ConnectionResponse(conn_id="lake", conn_type="checkpoint", extra=json.dumps(extra), **facts).model_dump_json()
    for said in (shown, json.dumps(redact(extra))):
        assert KEY not in said
        assert "a5a5" not in said
        assert "eu-central-1" in said
