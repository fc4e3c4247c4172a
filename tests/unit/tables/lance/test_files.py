"""The data files of a Lance dataset that are written under names of our own: what Lance's ``write_fragments`` writes, and no more.

Rows are read back with plain Lance after a commit; what cannot be written is refused before anything is.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys

import lance
import msgspec
import pyarrow as pa
import pytest
from lance.fragment import DataFile, FragmentMetadata, write_fragments
from support.appending import land, writer_of
from support.lance_types import PACK, PACKED, TYPES, VECTOR
from support.samples import HEADER
from support.standalone import wait_until

from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    NullInRequiredColumnError,
    SchemaMismatchError,
    UnsupportedTableError,
)
from airflow_ckpt_provider.scan.lance import name_of
from airflow_ckpt_provider.tables.fit import Conform
from airflow_ckpt_provider.tables.lance import writer as writing
from airflow_ckpt_provider.tables.lance.fragments import StagedFragment, StagedFragments, metadata_of
from airflow_ckpt_provider.tables.lance.table import DatasetTable
from airflow_ckpt_provider.tables.writer import Written

VERSIONS = ["2.1", "2.2", "2.3"]

CASES = [
    pytest.param(kind, values, version, nullable, id=f"{name}, {version}, {'optional' if nullable else 'required'}")
    for name, (kind, values, *since) in TYPES.items()
    for version in VERSIONS
    for nullable in (True, False)
    if not since or since[0] <= version
]

_numbers = itertools.count()


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "d.lance")


def write(uri, *splits, rows_per_batch=None):
    """Write each of ``splits``; nothing is committed."""
    target = DatasetTable(uri)
    header = msgspec.structs.replace(HEADER, table=target.binding())
    writer = writer_of(target, header)
    return [writer.write(split.to_batches(rows_per_batch), f"ckpt-{next(_numbers):06d}") for split in splits]


def commit(uri, written, mode="append"):
    """Land written splits in one version; the dataset."""
    land(DatasetTable(uri), written, mode)
    return lance.dataset(uri)


def append(uri, *splits, rows_per_batch=None):
    return commit(uri, write(uri, *splits, rows_per_batch=rows_per_batch))


def staged_files(written):
    """Lance's description of the written files."""
    fragments = metadata_of(StagedFragments.from_json(one.manifest) for one in written)
    return [file for fragment in fragments for file in fragment.files]


def names_below_data(uri):
    folder = os.path.join(uri, "data")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def described(file):
    return file.fields, file.column_indices, (file.file_major_version, file.file_minor_version)


def assert_like_lances_own(uri, data):
    """Write ``data`` both ways: files of the same description and about the same size, and ours are read back as they went in."""
    ours = write(uri, data)
    before = lance.dataset(uri)
    rows = before.count_rows()
    (theirs,) = write_fragments(data, before)
    (mine,) = staged_files(ours)
    assert [described(mine)] == list(map(described, theirs.files))
    assert mine.file_size_bytes == pytest.approx(theirs.files[0].file_size_bytes, rel=0.02)
    after = commit(uri, ours)
    after.validate()
    assert after.to_table(offset=rows).select(data.column_names).to_pylist() == data.to_pylist()
    return after


@pytest.mark.parametrize(("kind", "values", "version", "nullable"), CASES)
def test_a_file_is_like_lances_own_and_is_read_back_as_it_went_in(uri, kind, values, version, nullable):
    schema = pa.schema([("n", pa.int64()), pa.field("c", kind, nullable=nullable), ("z", pa.string())])
    values = [*values, None] if nullable else values
    numbers = range(len(values))
    data = pa.Table.from_arrays([pa.array(numbers), pa.array(values, kind), pa.array(map(str, numbers))], schema=schema)
    before = lance.write_dataset(data, uri, data_storage_version=version)
    after = assert_like_lances_own(uri, data)
    assert after.data_storage_version == version
    assert after.schema == before.schema


@pytest.mark.parametrize(
    "said", [{"packed": "true"}, {"lance-encoding:packed": "True"}, {"lance-encoding:packed": "false"}], ids=str
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_packed_struct_among_other_columns(uri, version, said):
    schema = pa.schema([("n", pa.int64()), pa.field("p", PACKED, metadata=said), ("z", pa.string())])
    data = pa.Table.from_pylist([{"n": n, "p": {"x": n, "y": n / 2}, "z": str(n)} for n in range(5)], schema=schema)
    lance.write_dataset(data, uri, data_storage_version=version)
    assert_like_lances_own(uri, data)


def test_a_column_that_a_file_has_elsewhere_than_expected_is_refused(uri, monkeypatch):
    """Whatever a later Lance packs in another way: what is not known is not written."""
    schema = pa.schema([("n", pa.int64()), pa.field("p", PACKED, metadata=PACK)])
    lance.write_dataset(pa.Table.from_pylist([{"n": 1, "p": {"x": 1, "y": 0.5}}], schema=schema), uri)
    monkeypatch.setattr("airflow_ckpt_provider.tables.lance.schema._PACKED", ())
    with pytest.raises(UnsupportedTableError, match=r"column 'p' is struct.*takes 1 columns of a file, where 2 are known"):
        DatasetTable(uri).validate("append", {})


def test_the_name_of_a_data_file_is_the_one_that_lance_says(tmp_path):
    """Lance keeps it in a private member. Where it is kept otherwise, the slow way is taken: then think of another fast one."""
    lance.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "other.lance")
    (fragment,) = lance.dataset(tmp_path / "other.lance").get_fragments()
    (theirs,) = fragment.metadata.files
    assert name_of(theirs) == theirs.path == vars(theirs)["_path"]
    staged = StagedFragments(fragments=(StagedFragment(theirs.path, 2, 10),), fields=(0, 1), storage_version="2.1")
    (own,) = metadata_of([staged])
    like = DataFile(theirs.path, [0, 1], [0, 1], 2, 1, 10)
    assert own.files[0].path == name_of(own.files[0]) == like.path
    assert {**vars(own.files[0]), "path": None} == {**vars(like), "path": None}
    assert own.to_json() == FragmentMetadata(id=0, files=[like], physical_rows=2).to_json()


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_that_hold_nothing(uri, version):
    schema = pa.schema([("nothing", pa.null()), ("all null", pa.list_(pa.struct([("a", VECTOR)]))), ("n", pa.int64())])
    data = pa.Table.from_pylist([{"n": 1}, {"n": 2}], schema=schema)
    lance.write_dataset(data, uri, data_storage_version=version)
    assert_like_lances_own(uri, data)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dictionary_may_be_another_one_in_every_batch_and_file(uri, version):
    kind = pa.dictionary(pa.int8(), pa.string())
    lance.write_dataset(pa.table({"c": pa.array(["a"], pa.string()).cast(kind)}), uri, data_storage_version=version)
    parts = [["b", "c"], ["d", None], ["c", "b"]]
    first = pa.Table.from_batches([pa.record_batch({"c": pa.array(part).dictionary_encode().cast(kind)}) for part in parts])
    after = append(uri, first, pa.table({"c": ["e", "b"]}))
    after.validate()
    assert sorted(map(str, after.to_table()["c"].to_pylist())) == ["None", *"abbbccde"]


@pytest.mark.parametrize("version", VERSIONS)
def test_after_columns_were_dropped_and_added_the_files_carry_the_ids_of_those_that_are_there(uri, version):
    first = pa.table(
        {
            "id": pa.array([1, 2]),
            "gone": pa.array(["a", "b"]),
            "s": pa.array([{"x": 1, "l": [1]}, None], pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int64()))])),
            "gone too": pa.array([[0.0] * 4] * 2, VECTOR),
            "v": pa.array([[1.0] * 4, None], VECTOR),
        }
    )
    dataset = lance.write_dataset(first, uri, data_storage_version=version)
    dataset.drop_columns(["gone", "gone too"])
    dataset.add_columns(pa.schema([pa.field("added", pa.list_(pa.struct([("k", pa.string())]))), pa.field("last", pa.int32())]))
    dataset.alter_columns({"path": "v", "name": "vector"})
    dataset = lance.dataset(uri)
    data = pa.Table.from_pylist(
        [
            {"id": 3, "s": {"x": None, "l": []}, "vector": [2.0] * 4, "added": [{"k": "a"}, None], "last": 7},
            {"id": 4, "s": None, "vector": None, "added": None, "last": None},
        ],
        schema=dataset.schema,
    )
    ids = [field.id() for field in dataset.lance_schema.fields()]
    assert ids != list(range(len(ids)))
    after = assert_like_lances_own(uri, data)
    assert after.to_table().slice(0, 2)["id"].to_pylist() == [1, 2]
    assert after.to_table().slice(0, 2)["added"].to_pylist() == [None, None]

    overwritten = commit(uri, write(uri, data), mode="overwrite")
    overwritten.validate()
    assert overwritten.to_table().to_pylist() == data.to_pylist()
    assert [field.id() for field in overwritten.lance_schema.fields()] == ids


def test_columns_are_matched_by_name_and_missing_ones_are_null(uri):
    lance.write_dataset(pa.table({"a": [1], "b": ["x"], "v": pa.array([[0.0] * 4], VECTOR)}), uri)
    after = append(uri, pa.table({"b": ["y"], "a": [2]}))
    assert after.to_table().to_pylist()[1] == {"a": 2, "b": "y", "v": None}


# -- what is not written ---------------------------------------------------------------------------------------------------

BLOB = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def test_blobs_that_are_pages_of_a_file_are_written_as_blobs(uri):
    schema = pa.schema([("id", pa.int64()), BLOB])
    data = pa.table({"id": [1, 2, 3], "b": [b"x" * 100_000, None, b""]}, schema=schema)
    lance.write_dataset(data.slice(0, 0), uri, schema=schema, data_storage_version="2.1")
    lance.write_dataset(data, uri, mode="append")
    after = append(uri, data)
    after.validate()
    assert after.take_blobs("b", indices=[3])[0].readall() == b"x" * 100_000
    assert after.scanner(blob_handling="all_binary").to_table().to_pylist() == data.to_pylist() * 2


BLOBS = {
    "first kind, 2.2": (BLOB, "2.2", "'b'"),
    "first kind, 2.3": (BLOB, "2.3", "'b'"),
    "second kind": (lance.blob_field("b"), "2.2", "'b'"),
    "in a struct": (pa.field("s", pa.struct([BLOB])), "2.1", r"'s\.b'"),
    "second kind in a struct": (pa.field("s", pa.struct([lance.blob_field("b")])), "2.2", r"'s\.b'"),
}


@pytest.mark.parametrize(("field", "version", "named"), BLOBS.values(), ids=BLOBS)
def test_a_dataset_is_not_created_with_blobs_that_would_be_unreadable(uri, field, version, named):
    with pytest.raises(SchemaMismatchError, match=rf"column {named} is a blob, which is not supported.*{version}"):
        DatasetTable(uri).creation(pa.schema([("id", pa.int64()), field]), {"storage_version": version})
    assert not os.path.exists(uri)


@pytest.mark.parametrize(("mode", "parameters"), [("append", {}), ("overwrite", {}), ("upsert", {"upsert_keys": ["id"]})], ids=str)
@pytest.mark.parametrize("version", ["2.2", "2.3"])
def test_a_dataset_with_blobs_that_would_be_unreadable_is_refused_before_anything_is_staged(uri, version, mode, parameters):
    data = pa.table({"id": [1], "b": [b"x"]}, schema=pa.schema([("id", pa.int64()), BLOB]))
    lance.write_dataset(data, uri, data_storage_version=version)
    before = names_below_data(uri)
    with pytest.raises(UnsupportedTableError, match=rf"column 'b' is a blob, which is not supported.*{version}"):
        DatasetTable(uri).validate(mode, parameters)
    assert names_below_data(uri) == before


REFUSED = {
    "decimal32": (pa.decimal32(5, 1), "2.2", r"column 'c' is decimal32\(5, 1\)"),
    "no type": (pa.null(), "2.2", "column 'c' has no type, because it is null everywhere"),
    "list view": (pa.list_view(pa.int64()), "2.2", "column 'c' is list_view"),
    "interval": (pa.month_day_nano_interval(), "2.2", "column 'c' is month_day_nano_interval"),
    "map": (pa.map_(pa.string(), pa.int64()), "2.1", "column 'c' is map<string, int64>.*Map data type is not enabled"),
    "vector of structs": (pa.list_(pa.struct([("x", pa.float32())]), 2), "2.1", "column 'c' is fixed_size_list"),
}


@pytest.mark.parametrize(("kind", "version", "message"), REFUSED.values(), ids=REFUSED)
def test_a_type_that_lance_does_not_have_is_refused_with_its_column(uri, kind, version, message):
    with pytest.raises(SchemaMismatchError, match=rf"(?s)storage version {version}.*{message}"):
        DatasetTable(uri).creation(pa.schema([("id", pa.int64()), ("c", kind)]), {"storage_version": version})


@pytest.mark.parametrize("version", ["2.0", "0.1", "legacy", "stable", "9.9", ""])
def test_a_storage_version_that_cannot_be_written_is_refused(uri, version):
    with pytest.raises(InvalidInputError, match=r"the versions are 2\.1, 2\.2, 2\.3|'' is not a text"):
        DatasetTable(uri).validate("create", {"storage_version": version})


def test_a_dataset_of_an_older_storage_version_is_refused(uri):
    lance.write_dataset(pa.table({"id": [1]}), uri, data_storage_version="2.0")
    with pytest.raises(UnsupportedTableError, match=r"storage version 2\.0"):
        DatasetTable(uri).validate("append", {})


# -- rows that do not fit --------------------------------------------------------------------------------------------------

STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", VECTOR),
        pa.field("r", pa.list_(pa.field("item", pa.float32(), nullable=False))),
        pa.field("label", pa.large_string()),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
    ]
)


@pytest.fixture
def strict(uri):
    lance.write_dataset(STRICT.empty_table(), uri, schema=STRICT)
    return uri


def vectors(values, kind):
    return {"id": [1] * len(values), "v": pa.array(values, kind)}


UNFIT = {
    "another length": (vectors([[1.0] * 3], pa.list_(pa.float32(), 3)), SchemaMismatchError, r"column 'v' is fixed.*\[3\]"),
    "lists of another length": (vectors([[1.0] * 4, [1.0] * 3], pa.list_(pa.float32())), SchemaMismatchError, "Column 'v' holds"),
    "finer numbers": (vectors([[1.0] * 4], pa.list_(pa.float64(), 4)), SchemaMismatchError, r"column 'v\.element' is double"),
    "no vector": (vectors([1.0], pa.float32()), SchemaMismatchError, "column 'v' is float"),
    "required, missing": ({"v": pa.nulls(1, VECTOR)}, SchemaMismatchError, "column 'id' is required and missing"),
    "required, null": ({"id": pa.array([1, None])}, NullInRequiredColumnError, "Column 'id' .* row 1 of the split"),
    "required, null in a list": (
        {"id": [1, 2, 3], "r": pa.array([None, [1.0, 2.0], [1.0, None]], pa.list_(pa.float32(), 2))},
        NullInRequiredColumnError,
        r"Column 'r\.item' .* row 2 of the split",
    ),
    "a column too many": ({"id": [1], "extra": [1]}, SchemaMismatchError, "column 'extra' is not in the table"),
    "bytes for text": ({"id": [1], "label": [b"x"]}, SchemaMismatchError, "column 'label' is binary"),
    "a number for text": ({"id": [1], "kind": [1]}, SchemaMismatchError, "column 'kind' is int64"),
    "too many words": ({"id": [1] * 300, "kind": [str(n) for n in range(300)]}, SchemaMismatchError, "Column 'kind' holds"),
}


@pytest.mark.parametrize(("columns", "error", "message"), UNFIT.values(), ids=UNFIT)
def test_rows_that_do_not_fit_are_refused_with_the_column_and_leave_nothing(strict, columns, error, message):
    with pytest.raises(error, match=message):
        write(strict, pa.table(columns))
    assert names_below_data(strict) == []


def test_a_null_in_a_vector_of_required_numbers_is_told_with_its_row():
    # Lance does not keep what is said of a vector's numbers; a schema of its own may.
    required = pa.list_(pa.field("item", pa.float32(), nullable=False), 2)
    conform = Conform(pa.schema([("v", required)]), "d.lance")
    rows = pa.array([[9.0, None], None, [1.0, 2.0], [1.0, None]], pa.list_(pa.float32(), 2))
    fits = conform(pa.record_batch({"v": rows.slice(1, 2)}))
    assert fits.column(0).type == required
    assert fits.column(0).to_pylist() == [None, [1.0, 2.0]]
    with pytest.raises(NullInRequiredColumnError, match=r"Column 'v\.item' .* row 4 of the split"):
        conform(pa.record_batch({"v": rows.slice(1)}))


def test_what_fits_without_loss_is_brought_to_the_datasets_types(strict):
    given = pa.table(
        {
            "kind": pa.array(["a", "b"]),
            "label": pa.array(["x", None]),
            "r": pa.array([[1.0, 2.0], None], pa.list_(pa.float32())),
            "v": pa.array([None, [0.5] * 4], pa.large_list(pa.float16())),
            "id": pa.array([1, 2], pa.int16()),
        }
    )
    after = append(strict, given)
    after.validate()
    assert after.schema == STRICT
    assert after.to_table().select(given.column_names).to_pylist() == given.to_pylist()


# -- files and their names -------------------------------------------------------------------------------------------------


def numbered(count):
    return pa.table({"id": pa.array(range(count), pa.int64())})


def test_files_are_rolled_at_a_number_of_rows(uri, monkeypatch):
    monkeypatch.setattr(writing, "FILE_ROWS", 100)
    lance.write_dataset(numbered(0), uri, schema=numbered(0).schema)
    written = write(uri, numbered(250), rows_per_batch=30)
    assert [fragment.rows for fragment in StagedFragments.from_json(written[0].manifest).fragments] == [100, 100, 50]
    assert all(file.bytes == os.path.getsize(file.path.removeprefix("file://")) for file in written[0].files)
    after = commit(uri, written)
    assert after.to_table()["id"].to_pylist() == list(range(250))
    assert len(after.get_fragments()) == 3


def test_a_split_without_rows_leaves_no_file(uri):
    lance.write_dataset(numbered(0), uri, schema=numbered(0).schema)
    assert write(uri, numbered(0)) == [Written(0, 0, (), None)]
    assert names_below_data(uri) == []


@pytest.mark.parametrize("file_rows", [100, 1 << 20], ids=["files closed", "file open"])
def test_a_write_that_fails_half_way_leaves_no_file(uri, monkeypatch, file_rows):
    monkeypatch.setattr(writing, "FILE_ROWS", file_rows)
    lance.write_dataset(numbered(1), uri)
    theirs = names_below_data(uri)
    target = DatasetTable(uri)
    writer = writer_of(target, msgspec.structs.replace(HEADER, table=target.binding()))

    def breaks():
        yield from numbered(550).to_batches(50)
        raise ValueError("no luck today")

    with pytest.raises(ValueError, match="no luck today"):
        writer.write(breaks(), "ckpt-broken")
    assert names_below_data(uri) == theirs


@pytest.mark.parametrize("rows_before", [0, 50], ids=["at once", "after a batch"])
def test_of_a_write_that_fails_before_there_is_a_dataset_what_failed_is_told(uri, rows_before):
    target = DatasetTable(uri)
    header = msgspec.structs.replace(HEADER, mode="create", table=target.creation(numbered(1).schema, {}))

    def breaks():
        yield from numbered(rows_before).to_batches(50)
        raise ValueError("no luck today")

    with pytest.raises(ValueError, match="no luck today"):
        writer_of(target, header).write(breaks(), "ckpt-broken")
    assert names_below_data(uri) == []


def test_a_split_that_lost_the_race_is_removed_and_nothing_else(uri):
    lance.write_dataset(numbered(1), uri)
    theirs = names_below_data(uri)
    kept, lost = write(uri, numbered(10), numbered(10))
    target = DatasetTable(uri)
    writer_of(target, msgspec.structs.replace(HEADER, table=target.binding())).remove(lost)
    assert names_below_data(uri) == sorted([*theirs, *(file.path.rpartition("/")[2] for file in kept.files)])


PROGRAM = """
import sys, time
import msgspec, pyarrow as pa
from support.appending import writer_of
from support.samples import HEADER
from airflow_ckpt_provider.scan.lance import name_of
from airflow_ckpt_provider.tables.fit import Conform
from airflow_ckpt_provider.tables.lance import writer as writing
from airflow_ckpt_provider.tables.lance.table import DatasetTable

_, uri, columns, batches, stem, hangs = sys.argv
target = DatasetTable(uri)
writer = writer_of(target, msgspec.structs.replace(HEADER, table=target.binding()))


def rows():
    for number in range(int(batches)):
        # Of another value in each row: equal ones take no room.
        values = pa.array(range(number * 2500, (number + 1) * 2500), pa.int64()).cast(pa.float64())
        yield pa.record_batch({f"c{n}": values for n in range(int(columns))})
    if hangs == "hangs":
        print("waiting", flush=True)
        time.sleep(60)


written = writer.write(rows(), stem)
# Not ru_maxrss: a child begins with its parent's.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(written.rows, written.bytes, peak)
"""


def program(uri, columns, batches, stem, hangs="ends"):
    environment = {"PYTHONPATH": ":".join(sys.path), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    arguments = [sys.executable, "-c", PROGRAM, uri, str(columns), str(batches), stem, hangs]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


def wide(uri, columns):
    schema = pa.schema([(f"c{n}", pa.float64()) for n in range(columns)])
    lance.write_dataset(schema.empty_table(), uri, schema=schema)


@pytest.mark.timeout(120)
def test_rows_of_400_columns_take_no_more_memory_however_many_they_are(uri):
    wide(uri, 400)
    found = {}
    for batches in (10, 40):
        with program(uri, 400, batches, f"ckpt-{batches}") as done:
            found[batches] = [int(number) for number in done.stdout.read().split()]
    (rows, size, peak), (more_rows, more_size, more_peak) = found[10], found[40]
    assert (rows, more_rows) == (25_000, 100_000)
    # As they are in memory, the rows of the second would not fit into what it may take.
    assert more_rows * 400 * 8 > 300 << 20
    assert more_size > 3 * size
    assert more_peak <= 1.35 * peak, found
    assert more_peak < 450 << 10, found


@pytest.mark.timeout(60)
def test_what_a_killed_writer_leaves_bears_the_name_of_its_split(uri):
    wide(uri, 20)
    with program(uri, 20, 400, "ckpt-killed", "hangs") as running:
        try:
            assert running.stdout.readline() == "waiting\n"
            wait_until(lambda: names_below_data(uri), "a file of the writer", 20)
        finally:
            os.kill(running.pid, signal.SIGKILL)
    left = names_below_data(uri)
    assert left
    assert all(name.startswith("ckpt-killed-00000.lance") for name in left), left
    assert lance.dataset(uri).count_rows() == 0
