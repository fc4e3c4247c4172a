"""Which files a path, folder or glob names, in a local folder and in S3, and that a listing is always the same."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.reading import read_all, splits_of

from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.files.listing import InputFiles

NAMES = [
    "in/1.parquet",
    "in/2.parquet",
    "in/10.csv",
    "in/day=2026-01-01/3.parquet",
    "in/day=2026-01-02/deep/4.parquet",
    "in/_SUCCESS",
    "in/.hidden.parquet",
    "in/_temporary/0/5.parquet",
    "in/.staging/6.parquet",
    "in/_tenant=7/7.parquet",
    "inside/8.parquet",
    "odd/sp ace/a b.parquet",
    "odd/ü/ü.parquet",
    "odd/50%20.parquet",
    "odd/a#b.parquet",
    "odd/a[1].parquet",
    "odd/a+b&c.parquet",
]


class Place:
    """Files in a local folder or a bucket."""

    def __init__(self, root, options, put):
        self.root, self.options, self.put = root, options, put

    def names(self, pattern):
        found = InputFiles(self.root + pattern, self.options)
        return [found.name_of(file).removeprefix(self.root) for file in found.all()]


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        return Place(bucket.uri(), bucket.options, bucket.put)

    def put(name, data):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return Place(f"{tmp_path}/", {}, put)


@pytest.fixture
def full(place):
    for name in NAMES:
        place.put(name, b"x" * len(name))
    return place


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("in/*.parquet", ["in/1.parquet", "in/2.parquet"]),
        ("in/?.parquet", ["in/1.parquet", "in/2.parquet"]),
        ("in/[12].parquet", ["in/1.parquet", "in/2.parquet"]),
        ("in/[!1]*", ["in/10.csv", "in/2.parquet"][1:]),
        ("in/1*", ["in/1.parquet", "in/10.csv"]),
        ("in/day=*/*.parquet", ["in/day=2026-01-01/3.parquet"]),
        ("in/*/3.parquet", ["in/day=2026-01-01/3.parquet"]),
        ("in*/8.parquet", ["inside/8.parquet"]),
        (
            "in/**/*.parquet",
            [
                "in/1.parquet",
                "in/2.parquet",
                "in/_tenant=7/7.parquet",
                "in/day=2026-01-01/3.parquet",
                "in/day=2026-01-02/deep/4.parquet",
            ],
        ),
        ("**/3.parquet", ["in/day=2026-01-01/3.parquet"]),
        ("in/nothing-*.parquet", []),
        ("nowhere/*.parquet", []),
    ],
)
def test_a_glob_names_these_files(full, pattern, names):
    assert full.names(pattern) == names


@pytest.mark.parametrize("pattern", ["in[!x]1.parquet", "in?1.parquet", "i*1.parquet", "in/**/", "**/in/1"])
def test_no_wildcard_and_no_bracket_of_a_glob_takes_a_slash(full, pattern):
    assert full.names(pattern) == []


def test_any_depth_within_a_name_is_refused(full):
    with pytest.raises(InvalidInputError, match=r"in/\*\*\.parquet' has '\*\*' within '\*\*\.parquet'.*write \*\*/\*\.parquet"):
        full.names("in/**.parquet")


@pytest.mark.parametrize("folder", ["in", "in/"])
def test_a_folder_names_everything_in_it_but_hidden_files_and_folders(full, folder):
    assert full.names(folder) == [
        "in/1.parquet",
        "in/10.csv",
        "in/2.parquet",
        "in/_tenant=7/7.parquet",
        "in/day=2026-01-01/3.parquet",
        "in/day=2026-01-02/deep/4.parquet",
    ]


@pytest.mark.parametrize("name", ["in/1.parquet", "in/.hidden.parquet", "in/_temporary/0/5.parquet"])
def test_a_file_that_is_named_by_itself_is_read_even_if_it_is_hidden(full, name):
    assert full.names(name) == [name]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("odd/")])
def test_a_name_is_taken_as_it_is_written(full, name):
    assert full.names(name) == [name]
    assert name in full.names("odd/**")
    assert name in full.names("odd")


@pytest.mark.parametrize("path", ["in/missing.parquet", "nowhere", "nowhere/"])
def test_a_file_or_folder_that_is_not_there_is_an_error_that_names_it(full, path):
    with pytest.raises(InvalidInputError, match=path):
        full.names(path)


def test_the_whole_bucket_is_a_folder_too(s3_bucket):
    assert InputFiles(s3_bucket.uri(), s3_bucket.options).all() == []
    s3_bucket.put("1.parquet", b"x")
    assert [file.path for file in InputFiles(s3_bucket.uri(), s3_bucket.options).all()] == ["1.parquet"]


def test_folder_markers_of_consoles_are_no_files(s3_bucket):
    for name in ("in/", "in/empty/", "in/sub/", "in/sub/1.parquet"):
        s3_bucket.put(name, b"x" if name.endswith("parquet") else b"")
    for pattern in ("in", "in/", "in/**", "in/*/*", "**"):
        assert [file.path for file in InputFiles(s3_bucket.uri(pattern), s3_bucket.options).all()] == ["in/sub/1.parquet"], pattern


def test_an_empty_local_folder_has_no_files(tmp_path):
    assert InputFiles(str(tmp_path), {}).all() == []


def test_links_are_followed_and_broken_ones_are_no_files(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.parquet").write_bytes(b"x")
    (tmp_path / "real" / "broken.parquet").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = InputFiles(str(tmp_path / "link"), {})
    assert [found.name_of(file) for file in found.all()] == [f"{tmp_path}/link/1.parquet"]


def test_a_bucket_that_cannot_be_listed_is_an_error_that_a_retry_may_help(s3_bucket):
    with pytest.raises(RetryableError, match="s3://no-such-bucket/in/"):
        InputFiles("s3://no-such-bucket/in/*", s3_bucket.options).all()


def test_a_glob_that_matches_nothing_is_nothing_to_write(place):
    plan = Files(f"{place.root}none/*.parquet").plan(place.options)
    assert plan.splits == ()
    assert plan.source == {"kind": "files", "files": 0, "bytes": 0}


def test_the_same_files_give_the_same_plan_again(place):
    for number in (3, 1, 2):
        sink = io.BytesIO()
        parquet.write_table(pa.table({"id": range(number * 100)}), sink)
        place.put(f"in/{number}.parquet", sink.getvalue())
    source = Files(f"{place.root}in/*.parquet", max_split_bytes=2000)
    assert splits_of(source, place.options) == splits_of(source, place.options)
    assert len(splits_of(source, place.options)) > 1
    assert [row["id"] for row in read_all(source, place.options)] == [*range(100), *range(200), *range(300)]


@pytest.mark.parametrize("uri", ["data/*.parquet", "http://host/x", "s3://user:secret@bucket/x", "s3://bucket/x?token=secret"])
def test_an_input_that_may_not_be_stored_is_refused(uri):
    with pytest.raises(InvalidInputError):
        Files(uri).describe()
