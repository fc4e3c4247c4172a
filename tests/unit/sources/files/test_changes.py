"""An input file that is not the one that was planned is an error that names it (I6), before Spark starts and on executors."""

from __future__ import annotations

import io
import os
import shutil

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.reading import read_split, splits_of

from airflow_ckpt_provider.exceptions import InputChangedError, RetryableError
from airflow_ckpt_provider.sources import Files


def put(path, rows):
    parquet.write_table(pa.table({"id": range(rows)}), path)


@pytest.fixture
def source(tmp_path):
    for number in range(3):
        put(tmp_path / f"{number}.parquet", 100 + number)
    return Files(f"{tmp_path}/*.parquet", max_split_bytes=1)


def test_files_that_did_not_change_pass(source):
    source.verify(splits_of(source), {})


def rewritten(path):
    put(path, 999)


def touched(path):
    os.utime(path, ns=(1, 1))


def removed(path):
    path.unlink()


def same_size(path):
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))


def now_a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [rewritten, touched, removed, same_size, now_a_folder])
def test_a_changed_file_is_named_before_anything_is_read_and_when_its_split_is(source, tmp_path, change):
    splits = splits_of(source)
    change(tmp_path / "1.parquet")
    with pytest.raises(InputChangedError, match=f"1 input file.*\n  {tmp_path}/1.parquet") as refused:
        source.verify(splits, {})
    assert '{"checkpoint": "restart"}' in str(refused.value)
    with pytest.raises(InputChangedError, match=rf"{tmp_path}/1\.parquet"):
        read_split(source, splits[1])
    assert len(read_split(source, splits[0])) == 100


def test_only_the_splits_that_are_still_to_be_read_are_looked_at(source, tmp_path):
    splits = splits_of(source)
    removed(tmp_path / "0.parquet")
    source.verify(splits[1:], {})


def test_a_new_file_is_not_picked_up_and_no_error(source, tmp_path):
    splits = splits_of(source)
    put(tmp_path / "new.parquet", 5)
    source.verify(splits, {})
    assert sum(len(read_split(source, split)) for split in splits) == 303


def test_many_changed_files_are_counted_and_ten_are_named(tmp_path):
    for number in range(15):
        put(tmp_path / f"{number:02d}.parquet", 1)
    source = Files(str(tmp_path))
    splits = splits_of(source)
    for path in tmp_path.glob("*.parquet"):
        removed(path)
    with pytest.raises(InputChangedError, match="15 input file") as refused:
        source.verify(splits, {})
    assert str(refused.value).count(" is gone") == 10


@pytest.mark.parametrize("name", ["a\u202egnp.parquet", "a\nINFO landed.parquet", "a\x1b[2J.parquet"], ids=ascii)
def test_the_name_of_a_file_is_shown_as_it_is_read_and_in_one_line(tmp_path, name):
    put(tmp_path / name, 1)
    source = Files(str(tmp_path))

    def looks():
        splits = splits_of(source)
        removed(tmp_path / name)
        source.verify(splits, {})

    # Names that object storage cannot have are refused by the listing already.
    with pytest.raises((InputChangedError, RetryableError)) as refused:
        looks()
    message = str(refused.value)
    assert ascii(name)[1:-1] in message
    assert all(line.isprintable() for line in message.split("\n"))
    assert not any(line.startswith("INFO") for line in message.split("\n"))


def test_a_copied_back_file_with_its_time_is_the_same_file(source, tmp_path):
    splits = splits_of(source)
    shutil.copy2(tmp_path / "1.parquet", tmp_path / "kept")
    removed(tmp_path / "1.parquet")
    shutil.copy2(tmp_path / "kept", tmp_path / "1.parquet")
    source.verify(splits, {})


@pytest.mark.parametrize("how", ["rewritten", "removed"])
def test_a_changed_object_in_s3_is_named_even_if_its_size_is_the_same(s3_bucket, how):
    def data(first):
        sink = io.BytesIO()
        parquet.write_table(pa.table({"id": range(first, first + 100)}), sink, compression="none", use_dictionary=False)
        return sink.getvalue()

    s3_bucket.put("in/1.parquet", data(0))
    source = Files(s3_bucket.uri("in/*.parquet"))
    splits = splits_of(source, s3_bucket.options)
    source.verify(splits, s3_bucket.options)
    if how == "removed":
        s3_bucket.delete("in/1.parquet")
    else:
        assert len(data(1)) == len(data(0))
        s3_bucket.put("in/1.parquet", data(1))
    for act in (lambda: source.verify(splits, s3_bucket.options), lambda: read_split(source, splits[0], s3_bucket.options)):
        with pytest.raises(InputChangedError, match=s3_bucket.uri("in/1.parquet")):
            act()
