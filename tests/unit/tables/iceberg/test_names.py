"""Names and values that the format allows and its library does not: they work, or are refused before anything is written."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import ParquetFormatWriter
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType
from support.readers import rows_by_each_reader
from support.world import World

from airflow_ckpt_provider.exceptions import InvalidInputError, UnsupportedTableError
from airflow_ckpt_provider.tables.iceberg.manifest import cut_upper

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))

BY_KIND = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def put(world, **columns):
    pq.write_table(pa.table(columns), world.input / "0.parquet")


def assert_read_by_everybody(world, wanted):
    for reader, found in rows_by_each_reader(world.table()).items():
        assert sorted(row["id"] for row in found) == sorted(wanted), reader


def upsert(world, key="upsert"):
    return world.request(key, mode="upsert", parameters={"upsert_keys": ["kind"]})


# -- codecs of manifests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "zstd", "UNCOMPRESSED"])
def test_manifests_have_any_codec_that_a_table_may_ask_for(world, codec):
    world.create_table(schema=SCHEMA, properties={"write.avro.compression-codec": codec})
    put(world, id=[1, 2], kind=["a", "b"])
    world.commit(world.stage())
    world.commit(world.stage(upsert(world)))
    assert world.ids() == [1, 2]
    if codec != "zstd":
        # DuckDB knows no such manifests.
        assert_read_by_everybody(world, [1, 2])


def test_a_codec_that_is_not_installed_is_refused_before_anything_is_written(world):
    world.create_table(schema=SCHEMA, properties={"write.avro.compression-codec": "snappy"})
    put(world, id=[1], kind=["a"])
    with pytest.raises(InvalidInputError, match=r"install pyiceberg\[snappy\]"):
        world.stage()


def test_a_codec_that_there_is_not_is_refused_before_anything_is_written(world):
    world.create_table(schema=SCHEMA, properties={"write.avro.compression-codec": "zip"})
    put(world, id=[1], kind=["a"])
    with pytest.raises(InvalidInputError, match=r"'zip'; the codecs are uncompressed, gzip, snappy, zstd"):
        world.stage()
    assert world.files_on_disk() == set()


# -- names that files have in common --------------------------------------------------------------------------------------------

ALIKE = [
    Schema(NestedField(1, "a b", LongType()), NestedField(2, "a_x20b", LongType())),
    Schema(NestedField(1, "s", StructType(NestedField(2, "a b", LongType()), NestedField(3, "a_x20b", LongType())))),
]


@pytest.mark.parametrize("schema", ALIKE, ids=["columns", "members of a struct"])
def test_columns_of_one_name_in_files_are_refused_before_anything_is_written(world, schema):
    world.create_table(schema=schema)
    put(world, s=[1])
    with pytest.raises(UnsupportedTableError, match=r"'a b' and 'a_x20b' of shop.orders would both be called 'a_x20b'"):
        world.stage()
    assert not list((world.root / "store").rglob("*.*"))


def test_partition_fields_of_one_name_in_manifests_are_refused_before_anything_is_written(world):
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "a b"), PartitionField(2, 1001, IdentityTransform(), "a_x20b")
    )
    world.create_table(schema=SCHEMA, spec=spec)
    put(world, id=[1], kind=["a"])
    with pytest.raises(UnsupportedTableError, match=r"partition fields 'a b' and 'a_x20b'"):
        world.stage()


def test_a_table_of_such_columns_is_not_created(world):
    put(world, **{"a b": [1], "a_x20b": [2]})
    with pytest.raises(UnsupportedTableError, match="would both be called"):
        world.stage(world.request(mode="create"))
    assert not world.catalog.table_exists("shop.orders")


def test_a_table_does_not_grow_by_such_a_column(world):
    world.create_table(schema=Schema(NestedField(1, "a b", LongType())))
    put(world, **{"a b": [1], "a_x20b": [2]})
    with pytest.raises(UnsupportedTableError, match="would both be called"):
        world.stage(world.request(evolve_schema=True))
    assert world.table().schema().column_names == ["a b"]


# -- bounds of text -------------------------------------------------------------------------------------------------------------

AWKWARD = ["x" * 15 + "\ud7ff" + "tail", "\ud7ff" * 80, "x" * 15 + "\U0010ffff" + "tail", "\U0010ffff" * 80]


@pytest.mark.parametrize("text", AWKWARD)
def test_text_is_written_and_found_whatever_stands_where_its_bound_is_cut(world, text):
    world.create_table(schema=SCHEMA)
    put(world, id=[1, 2], kind=["a", text])
    world.commit(world.stage())
    assert_read_by_everybody(world, [1, 2])
    found = world.table().scan(row_filter=f"kind >= '{text}'").to_arrow()
    assert found["id"].to_pylist() == [2]
    put(world, id=[3, 4], kind=[text, "b"])
    world.commit(world.stage(upsert(world)))
    assert_read_by_everybody(world, [1, 3, 4])


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("length", [1, 16, 64])
def test_a_bound_that_is_cut_is_text_that_is_not_below(text, length):
    bound = cut_upper(text, length)
    if bound is None:
        assert set(text[:length]) == {"\U0010ffff"}
        return
    assert bound.encode() >= text.encode()
    assert len(bound) <= length


# -- partition folders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["k", "ä", "/"])
def test_a_partition_of_a_long_value_is_written_under_a_shorter_name(world, letter):
    world.create_table(schema=SCHEMA, spec=BY_KIND)
    long = [letter * 300 + end for end in ("a", "b")]
    put(world, id=[1, 2, 3], kind=[*long, "short"])
    world.commit(world.stage())
    assert_read_by_everybody(world, [1, 2, 3])
    assert world.table().scan(row_filter=f"kind = '{long[1]}'").to_arrow()["id"].to_pylist() == [2]
    folders = {path.rsplit("/", 2)[1] for path in world.referenced_files() if path.endswith(".parquet")}
    assert len(folders) == 3
    assert "kind=short" in folders
    put(world, id=[4], kind=[long[0]])
    world.commit(world.stage(world.request("again", mode="overwrite_partitions")))
    assert_read_by_everybody(world, [2, 3, 4])


def test_what_the_library_makes_of_other_text_is_what_is_kept(world, monkeypatch):
    closed = []
    close = ParquetFormatWriter.close
    monkeypatch.setattr(ParquetFormatWriter, "close", lambda self: closed.append(close(self)) or closed[-1])
    world.create_table(schema=SCHEMA)
    put(world, id=[1], kind=["z" * 40])
    world.commit(world.stage())
    (manifest,) = world.table().current_snapshot().manifests(world.table().io)
    (entry,) = manifest.fetch_manifest_entry(world.table().io)
    assert entry.data_file.upper_bounds[2] == closed[0].to_serialized_dict()["upper_bounds"][2] == b"z" * 15 + b"{"
