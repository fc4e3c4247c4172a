"""How files become splits: one huge file many, many small ones one, never a row group cut, and each row in exactly one."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from pyarrow import csv, orc, parquet
from support.reading import read_split, splits_of

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.files.source import slices_of


def write(path, start, count, row_group=None):
    # Random-looking values, so that bytes are in proportion to rows.
    ids = pa.array(range(start, start + count))
    parquet.write_table(
        pa.table({"id": ids, "noise": [hash((n, "noise")) for n in ids.to_pylist()]}),
        path,
        row_group_size=row_group,
        compression="none",
        use_dictionary=False,
    )


def ids_by_split(source):
    return [[row["id"] for row in read_split(source, split)] for split in splits_of(source)]


def flat(parts):
    return list(itertools.chain.from_iterable(parts))


def test_one_huge_file_is_cut_at_its_row_groups(tmp_path):
    write(tmp_path / "1.parquet", 0, 10_000, row_group=1000)
    parts = ids_by_split(Files(str(tmp_path), max_split_bytes=1))
    assert parts == [list(range(start, start + 1000)) for start in range(0, 10_000, 1000)]


def test_row_groups_are_gathered_up_to_the_size_asked_for(tmp_path):
    write(tmp_path / "1.parquet", 0, 10_000, row_group=1000)
    group = parquet.ParquetFile(tmp_path / "1.parquet").metadata.row_group(0)
    size = sum(group.column(c).total_compressed_size for c in range(group.num_columns))
    source = Files(str(tmp_path), max_split_bytes=size * 3 + size // 2)
    assert [len(part) for part in ids_by_split(source)] == [3000, 3000, 3000, 1000]
    assert all(split.bytes <= source.max_split_bytes for split in splits_of(source))


def test_many_small_files_are_one_split(tmp_path):
    for number in range(20):
        write(tmp_path / f"{number:02d}.parquet", number * 10, 10)
    assert ids_by_split(Files(str(tmp_path))) == [list(range(200))]


def test_small_files_are_packed_up_to_the_size_asked_for(tmp_path):
    for number in range(10):
        write(tmp_path / f"{number:02d}.parquet", number * 10, 10)
    size = (tmp_path / "00.parquet").stat().st_size
    parts = ids_by_split(Files(str(tmp_path), max_split_bytes=size * 4 + 1))
    assert [len(part) for part in parts] == [40, 40, 20]
    assert flat(parts) == list(range(100))


def test_large_and_small_files_mix_and_no_row_is_lost_or_doubled(tmp_path):
    write(tmp_path / "a.parquet", 0, 5)
    write(tmp_path / "b.parquet", 5, 4000, row_group=500)
    write(tmp_path / "c.parquet", 4005, 5)
    for size in (1, 100, 5000, 20_000, 50_000, 1 << 30):
        assert flat(ids_by_split(Files(str(tmp_path), max_split_bytes=size))) == list(range(4010)), size


def test_a_row_group_larger_than_the_size_asked_for_is_not_cut(tmp_path):
    write(tmp_path / "1.parquet", 0, 3000, row_group=3000)
    assert ids_by_split(Files(str(tmp_path), max_split_bytes=10)) == [list(range(3000))]


def test_an_orc_file_is_cut_at_its_stripes(tmp_path):
    table = pa.table({"id": range(400_000), "noise": [hash((n, "noise")) for n in range(400_000)]})
    orc.write_table(table, tmp_path / "1.orc", stripe_size=1 << 18)
    stripes = orc.ORCFile(tmp_path / "1.orc").nstripes
    parts = ids_by_split(Files(str(tmp_path), format="orc", max_split_bytes=1))
    assert stripes > 1
    assert len(parts) == stripes
    assert flat(parts) == list(range(400_000))


def test_text_is_cut_between_files_only(tmp_path):
    for number in range(3):
        csv.write_csv(pa.table({"id": range(number * 1000, (number + 1) * 1000)}), tmp_path / f"{number}.csv")
    parts = ids_by_split(Files(str(tmp_path), format="csv", max_split_bytes=1))
    assert parts == [list(range(start, start + 1000)) for start in (0, 1000, 2000)]


def test_a_large_parquet_file_in_s3_is_cut_too(s3_bucket, tmp_path):
    write(tmp_path / "1.parquet", 0, 10_000, row_group=2500)
    s3_bucket.put("in/1.parquet", (tmp_path / "1.parquet").read_bytes())
    source = Files(s3_bucket.uri("in/*.parquet"), max_split_bytes=1)
    splits = splits_of(source, s3_bucket.options)
    parts = [[row["id"] for row in read_split(source, split, s3_bucket.options)] for split in splits]
    assert parts == [list(range(start, start + 2500)) for start in range(0, 10_000, 2500)]


def test_splits_have_ids_that_sort_and_say_what_they_read(tmp_path):
    for number in range(12):
        write(tmp_path / f"{number:02d}.parquet", number, 1)
    splits = splits_of(Files(str(tmp_path), max_split_bytes=1))
    assert [split.id for split in splits] == [f"{n:06d}" for n in range(12)]
    assert [len(slices_of(split)) for split in splits] == [1] * 12


def test_a_plan_of_too_many_splits_is_refused_with_the_parameter_to_raise(tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_ckpt_provider.sources.packing.MAX_SPLITS", 3)
    for number in range(4):
        write(tmp_path / f"{number}.parquet", number, 1)
    with pytest.raises(InvalidInputError, match="max_split_bytes"):
        splits_of(Files(str(tmp_path), max_split_bytes=1))


@pytest.mark.parametrize("size", [0, -1])
def test_a_split_size_that_is_not_positive_is_refused_when_the_dag_is_parsed(size):
    with pytest.raises(InvalidInputError, match="positive"):
        Files("/data", max_split_bytes=size)
