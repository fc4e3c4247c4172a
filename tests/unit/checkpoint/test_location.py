"""Which places are accepted, and that no credential gets through in a URI: it would end in the store, XCom and logs (I9)."""

from __future__ import annotations

import pickle

import pytest
from support.s3 import SECRET

from airflow_ckpt_provider.checkpoint.location import StorageLocation, normal_uri
from airflow_ckpt_provider.exceptions import InvalidInputError


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://AKIA:{SECRET}@bucket/prefix",
        f"s3://{SECRET}@bucket/prefix",
        f"gs://user:{SECRET}@bucket",
        f"az://:{SECRET}@container/x",
        f"abfss://container:{SECRET}@account.dfs.core.windows.net/x",
        f"abfs://container:{SECRET}@account.dfs.core.windows.net/x",
        f"s3://bucket/x?X-Amz-Signature={SECRET}",
        f"s3://bucket/x?X-Amz-Credential={SECRET}",
        f"s3://bucket/x?X-Amz-Security-Token={SECRET}",
        f"s3://bucket/x?AWSAccessKeyId={SECRET}",
        f"s3://bucket/x?access_key={SECRET}",
        f"s3://bucket/x?region=eu&secret={SECRET}",
        f"az://container/x?sv=2024&sig={SECRET}",
        f"gs://bucket/x?token={SECRET}",
        f"s3://bucket/x?PASSWORD={SECRET}",
        "s3://bucket/x?sig=",
    ],
)
def test_a_uri_with_a_credential_is_refused_and_not_repeated(uri):
    with pytest.raises(InvalidInputError, match="credential") as refused:
        normal_uri(uri)
    assert SECRET not in str(refused.value)
    assert "connection" in str(refused.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/prefix",
        "s3a://bucket",
        "gs://bucket/a@b",
        "az://container/x",
        "abfs://container@account.dfs.core.windows.net/x",
        "abfss://container@account.dfs.core.windows.net/x",
        "s3://bucket/x?region=eu-west-1",
        "s3://bucket/day=2026-01-01/part-?.parquet",
        "memory:///x",
        "file:///data/x",
    ],
)
def test_a_uri_without_one_is_kept_as_it_is(uri):
    assert normal_uri(uri) == uri


@pytest.mark.parametrize("path", ["data/x", "./x", "../x", "~/x", "x", ""])
def test_a_relative_path_is_refused_because_every_worker_has_another_folder(path):
    with pytest.raises(InvalidInputError, match="relative path"):
        normal_uri(path)


@pytest.mark.parametrize("uri", ["http://host/x", "https://host/x", "hdfs://nn/x", "ftp://host/x", "S4://bucket/x"])
def test_another_scheme_is_refused_with_the_ones_there_are(uri):
    with pytest.raises(InvalidInputError, match="supported are file, memory, s3"):
        normal_uri(uri)


def test_a_file_uri_with_two_slashes_is_refused_instead_of_losing_its_first_folder():
    with pytest.raises(InvalidInputError, match=r"file:///data"):
        normal_uri("file://data/x")


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/data/x", "file:///data/x"),
        ("/data//x/../y", "file:///data/y"),
        ("/data/x/", "file:///data/x/"),
        ("/a b/ü", "file:///a b/ü"),
    ],
)
def test_an_absolute_path_becomes_a_file_uri(path, uri):
    assert normal_uri(path) == uri
    assert normal_uri(uri) == uri


@pytest.mark.parametrize("name", ["plain", "sp ace", "50%20", "ü", "a#b", "a+b", "day=1"])
def test_a_local_folder_keeps_its_name_whatever_is_in_it(tmp_path, name):
    StorageLocation(str(tmp_path / name)).open(create=True)
    assert [child.name for child in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("uri", "local"), [("/x", True), ("memory:///x", True), ("s3://b", False), ("gs://b", False), ("az://c", False)]
)
def test_it_is_known_whether_only_this_machine_sees_a_place(uri, local):
    assert StorageLocation(uri).is_local is local


def test_options_travel_to_executors_and_are_never_shown():
    location = StorageLocation("s3://bucket/x", {"secret_access_key": SECRET})
    assert pickle.loads(pickle.dumps(location)).options == {"secret_access_key": SECRET}
    assert SECRET not in repr(location)


@pytest.mark.parametrize("uri", ["s3://lake/events#1", "gs://lake/events?1", "memory://events#1"])
def test_a_place_whose_name_would_lose_its_end_is_refused(uri):
    with pytest.raises(InvalidInputError, match="leave out what follows"):
        StorageLocation(uri)


def test_a_local_name_loses_nothing(tmp_path):
    assert StorageLocation(f"{tmp_path}/events#1?").path == f"{tmp_path}/events#1?"


@pytest.mark.parametrize("uri", ["file:///a//b/./store/", "file:///a/c/../b/store/", "/a/b//store/"])
def test_a_local_place_has_one_name(uri):
    """What is listed has no steps and no empty parts in its name, and is compared with what was put."""
    assert normal_uri(uri) == "file:///a/b/store/"


def test_a_percent_encoded_place_in_object_storage_is_refused():
    """It is opened by the decoded name, and its objects would be looked for under the other one."""
    with pytest.raises(InvalidInputError, match=r"Write 's3://bucket/a b'"):
        StorageLocation("s3://bucket/a%20b")
    assert StorageLocation("s3://bucket/a%b").uri == "s3://bucket/a%b"
