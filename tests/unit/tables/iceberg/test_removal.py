"""What a commit removes: exactly the files that were asked for, told to every reader, with the table's history left as it was."""

from __future__ import annotations

import io as streams
import itertools
import json
import math
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import (
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, TimestampType
from support.readers import assert_same_everywhere
from support.replacing import commit_manifests, delete_positions, new_path, new_table, without

from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.scan.comparing import fitted
from airflow_ckpt_provider.tables.iceberg.manifest_rewrite import classify, remove
from airflow_ckpt_provider.tables.iceberg.removals import RemoveAll, RemoveFiles, RemovePartitions, RemoveWhere, key_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.manifest import (
        ManifestFile,
    )
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "value", DoubleType()),
    NestedField(3, "kind", StringType()),
    NestedField(4, "at", TimestampType()),
)

SPECS = {
    "unpartitioned": PartitionSpec(),
    "identity": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind")),
    "bucket": PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket")),
    "day": PartitionSpec(PartitionField(4, 1000, DayTransform(), "day")),
    "truncate": PartitionSpec(PartitionField(3, 1000, TruncateTransform(2), "kind_2")),
    "two fields": PartitionSpec(
        PartitionField(4, 1000, DayTransform(), "day"), PartitionField(3, 1001, IdentityTransform(), "kind")
    ),
}


def rows(start: int, count: int) -> pa.Table:
    """Rows with a null among the kinds and the days."""
    ids = range(start, start + count)
    day = timedelta(days=1)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "value": [n / 4 for n in ids],
            "kind": [None if n % 7 == 3 else f"k{n % 3}" for n in ids],
            "at": pa.array([None if n % 11 == 5 else datetime(2026, 1, 1) + (n % 4) * day for n in ids], pa.timestamp("us")),  # noqa: DTZ001
        }
    )


def lived_in(root: Path, spec: PartitionSpec) -> Table:
    """A table whose manifests hold added, existing and deleted entries, and a position delete file."""
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = new_table(root, SCHEMA, spec, merging)
    for number in range(3):
        table.append(rows(20 * number, 20))
    path = next(path for path, (_, _, live) in sorted(by_file(table).items()) if len(live) > 1)
    delete_positions(table, path, [0])
    without(table, RemoveFiles(frozenset([max(by_file(table).keys() - {path})])))
    with table.transaction() as transaction:
        transaction.remove_properties("commit.manifest-merge.enabled")
    table.append(rows(60, 20))
    return table


def by_file(table: Table, snapshot_id: int | None = None) -> dict[str, tuple[int, tuple, list[dict]]]:
    """Spec, partition key and live rows of each data file."""
    scan = table.scan(snapshot_id=snapshot_id)
    found = {}
    for task in scan.plan_files():
        read = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter).to_table([task])
        found[task.file.file_path] = (task.file.spec_id, key_of(task.file.partition._data), read.to_pylist())
    return found


def entries(table: Table, snapshot: Snapshot) -> list[tuple[ManifestFile, ManifestEntry]]:
    manifests = snapshot.manifests(table.io)
    return [(m, entry) for m in manifests for entry in m.fetch_manifest_entry(table.io, discard_deleted=False)]


def removal_of(kind: str, table: Table) -> tuple[object, set[str]]:
    """A removal of about half of the table, and the paths that it has to take."""
    files = by_file(table)
    if kind == "everything":
        return RemoveAll(), set(files)
    if kind == "paths":
        taken = set(sorted(files)[::2])
        return RemoveFiles(frozenset(taken)), taken
    if kind == "partitions":
        spec_id = max(spec_id for spec_id, _, _ in files.values())
        keys = sorted({key for spec, key, _ in files.values() if spec == spec_id}, key=repr)[::2]
        return RemovePartitions(spec_id, frozenset(keys)), {
            p for p, (spec, key, _) in files.items() if spec == spec_id and key in keys
        }
    expression = And(LessThan("id", 40), NotNull("id"))
    return RemoveWhere(expression), {path for path, (_, _, live) in files.items() if all(row["id"] < 40 for row in live)}


KINDS = ["everything", "paths", "partitions", "matching"]


def assert_removed(table: Table, kind: str) -> None:
    """Remove, and check the rows, the history, the entries and the summary."""
    removal, taken = removal_of(kind, table)
    assert taken
    parent, before = table.current_snapshot(), by_file(table)
    old = {e.data_file.file_path: e for _, e in entries(table, parent) if e.status != ManifestEntryStatus.DELETED}

    removed = without(table, removal)

    left = [row for path, (_, _, live) in before.items() if path not in taken for row in live]
    assert_same_everywhere(table, left)
    assert_same_everywhere(table, [row for _, _, live in before.values() for row in live], snapshot_id=parent.snapshot_id)
    head = table.current_snapshot()
    new = entries(table, head)
    live = {e.data_file.file_path: e for _, e in new if e.status != ManifestEntryStatus.DELETED}
    gone = {
        e.data_file.file_path: e for _, e in new if e.status == ManifestEntryStatus.DELETED and e.snapshot_id == head.snapshot_id
    }
    data_gone = {path for path, e in gone.items() if e.data_file.content == DataFileContent.DATA}
    assert data_gone == taken
    assert live.keys() | gone.keys() == old.keys()
    for path, entry in old.items():
        now = live.get(path) or gone[path]
        assert (now.sequence_number, now.file_sequence_number) == (entry.sequence_number, entry.file_sequence_number)
        assert now.snapshot_id == (head.snapshot_id if path in gone else entry.snapshot_id)
        assert now.data_file._data == entry.data_file._data
    assert_listed_right(table, head)
    assert_totals(table, head, live)
    assert removed.files == len(taken)
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()[:-2]]).commit()
    table.refresh()
    assert_same_everywhere(table, [row for _, _, live in before.values() for row in live], snapshot_id=parent.snapshot_id)
    assert_same_everywhere(table, left)


def assert_listed_right(table: Table, snapshot: Snapshot) -> None:
    """Counts and sequence numbers of the manifest list are those of the entries."""
    for manifest in snapshot.manifests(table.io):
        own = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        for status, files, count in (
            (ManifestEntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
            (ManifestEntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
            (ManifestEntryStatus.DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
        ):
            of_it = [e.data_file.record_count for e in own if e.status == status]
            assert (files, count) == (len(of_it), sum(of_it))
        live = [e.sequence_number for e in own if e.status != ManifestEntryStatus.DELETED]
        assert manifest.min_sequence_number == min(live, default=snapshot.sequence_number)
        assert manifest.manifest_length == len(table.io.new_input(manifest.manifest_path))


def assert_totals(table: Table, snapshot: Snapshot, live: dict[str, ManifestEntry]) -> None:
    files = [entry.data_file for entry in live.values()]
    data = [file for file in files if file.content == DataFileContent.DATA]
    deletes = [file for file in files if file.content == DataFileContent.POSITION_DELETES]
    assert {name: int(snapshot.summary[f"total-{name}"]) for name in ("data-files", "records", "files-size", "delete-files")} == {
        "data-files": len(data),
        "records": sum(file.record_count for file in data),
        "files-size": sum(file.file_size_in_bytes for file in files),
        "delete-files": len(deletes),
    }
    assert int(snapshot.summary["total-position-deletes"]) == sum(file.record_count for file in deletes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", SPECS)
def test_exactly_the_files_asked_for_are_removed(tmp_path, spec, kind):
    table = lived_in(tmp_path, SPECS[spec])
    assert_removed(table, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_spec_are_removed_after_the_spec_evolved(tmp_path, kind):
    table = lived_in(tmp_path, SPECS["two fields"])
    with table.update_spec() as update:
        update.remove_field("kind")
        update.add_field("id", BucketTransform(2), "id_bucket")
    table.append(rows(80, 20))
    assert_removed(table, kind)


def test_partitions_of_one_spec_leave_files_of_another_alone(tmp_path):
    table = new_table(tmp_path, SCHEMA, SPECS["identity"])
    table.append(rows(0, 10))
    with table.update_spec() as update:
        update.remove_field("kind")
    table.append(rows(10, 10))
    old = {(spec_id, key) for spec_id, key, _ in by_file(table).values() if spec_id == 0}
    without(table, RemovePartitions(0, frozenset(key for _, key in old)))
    assert_same_everywhere(table, rows(10, 10))


def test_a_partition_of_nan_and_one_of_null_are_found(tmp_path):
    table, manifests = synthetic(tmp_path, [[(Record(v), "ADDED") for v in (math.nan, None, 1.0, -0.0, math.inf)]])
    table = commit_synthetic(table, manifests)
    removed = without(table, RemovePartitions(0, frozenset([(math.nan,), (None,)])))
    assert removed.files == 2
    left = [entry.data_file.partition[0] for _, entry in entries(table, table.current_snapshot()) if entry.status == 0]
    assert left == [1.0, -0.0, math.inf]


def test_a_manifest_without_a_hit_stays_listed_as_it_is(tmp_path):
    table = new_table(tmp_path, SCHEMA, SPECS["day"])
    table.append(rows(0, 4))
    table.append(rows(4, 4))
    first, second = [manifest.manifest_path for manifest in table.current_snapshot().manifests(table.io)]
    (path, *_) = [e.data_file.file_path for m, e in entries(table, table.current_snapshot()) if m.manifest_path == first]
    without(table, RemoveFiles(frozenset([path])))
    assert second in {manifest.manifest_path for manifest in table.current_snapshot().manifests(table.io)}


def test_a_path_that_is_not_live_any_more_is_refused_and_nothing_is_written(tmp_path):
    table = lived_in(tmp_path, SPECS["identity"])
    before = set((tmp_path / "warehouse").rglob("*"))
    live, *_ = by_file(table)
    with pytest.raises(TableMovedError, match=r"1 of 2 data files .* such as file:///gone\.parquet"):
        without(table, RemoveFiles(frozenset([live, "file:///gone.parquet"])))
    assert set((tmp_path / "warehouse").rglob("*")) == before


def test_files_that_were_removed_before_are_not_removed_again(tmp_path):
    table = new_table(tmp_path, SCHEMA)
    table.append(rows(0, 5))
    table.append(rows(5, 5))
    first = min(by_file(table))
    without(table, RemoveFiles(frozenset([first])))
    with pytest.raises(TableMovedError):
        without(table, RemoveFiles(frozenset([first])))
    assert without(table, RemoveAll()).files == 1
    assert not [entry for _, entry in entries(table, table.current_snapshot()) if entry.data_file.file_path == first]


def test_delete_files_go_with_their_partition_and_others_stay(tmp_path):
    table = new_table(tmp_path, SCHEMA, SPECS["identity"])
    table.append(rows(0, 21))
    where = {key: path for path, (_, key, _) in by_file(table).items()}
    delete_positions(table, where["k0",], [0, 1])
    delete_positions(table, where["k1",], [0])
    before = by_file(table)
    removed = without(table, RemovePartitions(0, frozenset([("k0",)])))
    assert (removed.position_delete_files, removed.position_deletes) == (1, 2)
    assert_same_everywhere(table, [row for _, key, live in before.values() if key != ("k0",) for row in live])
    assert table.current_snapshot().summary["total-position-deletes"] == "1"


def test_a_table_that_was_version_1_keeps_its_rows(tmp_path):
    table = new_table(tmp_path, SCHEMA, SPECS["identity"], {"format-version": "1"})
    table.append(rows(0, 20))
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    table.append(rows(20, 20))
    assert_removed(table, "paths")


def test_fields_that_pyiceberg_does_not_know_survive_a_rewrite(tmp_path):
    table = new_table(tmp_path, SCHEMA)
    table.append(rows(0, 5))
    table.append(rows(5, 5))
    snapshot = table.current_snapshot()
    manifest = snapshot.manifests(table.io)[0]
    where = manifest.manifest_path.removeprefix("file://")
    with open(where, "rb") as file:
        reader = fastavro.reader(file)
        records, schema, meta = list(reader), json.loads(reader.metadata["avro.schema"]), dict(reader.metadata)
    schema["fields"][-1]["type"]["fields"].append(
        {"name": "first_row_id", "type": ["null", "long"], "field-id": 142, "default": None}
    )
    records = [records[0], *({**records[0], "data_file": {**records[0]["data_file"], "file_path": "x", "first_row_id": 7}},)]
    out = streams.BytesIO()
    fastavro.writer(out, schema, records, codec="deflate", metadata={**meta, "engine": "other"})
    with open(where, "wb") as file:
        file.write(out.getvalue())
    removed = remove(table.metadata, table.io, snapshot, [RemoveFiles(frozenset(["x"]))], 5, lambda: new_path(table, "m"))
    (new,) = {m.manifest_path for m in removed.manifests} - {m.manifest_path for m in snapshot.manifests(table.io)}
    with open(new.removeprefix("file://"), "rb") as file:
        reader = fastavro.reader(file)
        kept = list(reader)
    assert [record["data_file"].get("first_row_id") for record in kept] == [None, 7]
    names = ("schema", "partition-spec", "partition-spec-id", "format-version", "content", "avro.codec", "engine")
    assert [reader.metadata[name] for name in names] == [{**meta, "engine": "other"}[name] for name in names]
    assert json.loads(reader.metadata["avro.schema"]) == schema


def test_memory_does_not_grow_with_the_entries_of_a_manifest(tmp_path):
    table, manifests = synthetic(tmp_path, [[(Record(float(n)), "ADDED") for n in range(6000)]])
    table = commit_synthetic(table, manifests)
    snapshot = table.current_snapshot()
    tracemalloc.start()
    removed = remove(table.metadata, table.io, snapshot, [RemoveAll()], 5, lambda: new_path(table, "m"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert removed.files == 6000
    # Two megabytes are the reader's buffers; the partitions and their paths are counted, 0.3 KB each.
    assert peak < 7_000_000


# --- properties ---

VALUE = Schema(NestedField(1, "value", DoubleType()))
BY_VALUE = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "value"))
_numbers = itertools.count()


def synthetic(root: Path, manifests: list[list[tuple[Record, str]]]) -> tuple[Table, list[ManifestFile]]:
    """Manifests of files that do not exist, for a table partitioned by a double."""
    table = new_table(root / str(next(_numbers)), VALUE, BY_VALUE)
    return table, [synthetic_manifest(table, number, files) for number, files in enumerate(manifests)]


def synthetic_manifest(table: Table, number: int, files: list[tuple[Record, str]]) -> ManifestFile:
    with write_manifest(2, BY_VALUE, VALUE, table.io.new_output(new_path(table, "s")), 1, "gzip") as writer:
        for place, (partition, status) in enumerate(files):
            explicit = {"snapshot_id": 1, "sequence_number": 1, "file_sequence_number": 1} if status != "ADDED" else {}
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"file:///{number}/{place}",
                file_format=FileFormat.PARQUET,
                partition=partition,
                record_count=place + 1,
                file_size_in_bytes=10 + place,
            )
            writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus[status], data_file=file, **explicit))
    return writer.to_manifest_file()


def commit_synthetic(table: Table, manifests: list[ManifestFile]) -> Table:
    counts = {"added-data-files": str(sum(manifest.added_files_count for manifest in manifests))}
    commit_manifests(table, manifests, Operation.APPEND, 1, **counts)
    return table


def live_values(table: Table) -> dict[str, float | None]:
    """Partition value of each live file. By fastavro: pyiceberg's decoder reads the doubles of partitions as floats."""
    found = {}
    for manifest in table.current_snapshot().manifests(table.io):
        with open(manifest.manifest_path.removeprefix("file://"), "rb") as file:
            for entry in fastavro.reader(file):
                if entry["status"] != ManifestEntryStatus.DELETED:
                    found[entry["data_file"]["file_path"]] = entry["data_file"]["partition"]["value"]
    return found


doubles = st.one_of(st.none(), st.just(math.nan), st.sampled_from([-1.5, -0.0, 0.0, 0.1, 1e300, math.inf, -math.inf]))
statuses = st.sampled_from(["ADDED", "ADDED", "EXISTING", "DELETED"])


@settings(max_examples=40, deadline=None)
@given(
    manifests=st.lists(st.lists(st.tuples(doubles, statuses), min_size=1, max_size=6), min_size=1, max_size=4),
    keys=st.frozensets(doubles, max_size=4),
    named=st.sets(st.integers(0, 23), max_size=5),
)
def test_any_mix_of_removals_takes_what_it_says(tmp_path_factory, manifests, keys, named):
    table, written = synthetic(tmp_path_factory.mktemp("any"), [[(Record(v), s) for v, s in files] for files in manifests])
    table = commit_synthetic(table, written)
    live = {f"file:///{m}/{n}": v for m, files in enumerate(manifests) for n, (v, s) in enumerate(files) if s != "DELETED"}
    paths = frozenset(path for at, path in enumerate(sorted(live)) if at in named)
    wanted = {key_of([key]) for key in keys}
    taken = {path for path, value in live.items() if path in paths or key_of([value]) in wanted}

    removed = without(table, RemoveFiles(paths), RemovePartitions(0, frozenset((key,) for key in keys)))

    found = entries(table, table.current_snapshot())
    left = live_values(table)
    assert {path: repr(value) for path, value in left.items()} == {p: repr(v) for p, v in live.items() if p not in taken}
    deleted = {e.data_file.file_path for _, e in found if e.status == ManifestEntryStatus.DELETED and e.snapshot_id != 1}
    assert deleted == taken
    assert removed.files == len(taken)
    assert_listed_right(table, table.current_snapshot())


FILES = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "x", DoubleType()), NestedField(3, "s", StringType()))
texts = st.sampled_from(["", "a", "ab", "abc", "b", "long enough to be cut off in bounds", "long enough to be cut", None])
numbers = st.one_of(st.none(), st.integers(-2, 3))
floats = st.one_of(st.none(), st.sampled_from([math.nan, -1.0, 0.0, 1.5, 2.0]))
row_lists = st.lists(st.fixed_dictionaries({"n": numbers, "x": floats, "s": texts}), min_size=1, max_size=4)
literal = {"n": st.integers(-2, 3), "x": st.sampled_from([-1.0, 0.0, 1.5, 2.0]), "s": texts.filter(lambda t: t)}


@st.composite
def leaves(draw):
    name = draw(st.sampled_from(["n", "x", "s"]))
    kinds = [EqualTo, NotEqualTo, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, In, NotIn, IsNull, NotNull]
    kinds += [IsNaN, NotNaN] if name == "x" else []
    kinds += [StartsWith, NotStartsWith] if name == "s" else []
    kind = draw(st.sampled_from(kinds))
    if kind in {IsNull, NotNull, IsNaN, NotNaN}:
        return kind(name)
    if kind in {In, NotIn}:
        return kind(name, draw(st.sets(literal[name], min_size=1, max_size=3)))
    return kind(name, draw(literal[name]))


expressions = st.recursive(
    leaves(),
    lambda inner: st.one_of(st.builds(And, inner, inner), st.builds(Or, inner, inner), st.builds(Not, inner)),
    max_leaves=4,
)
specs = st.sampled_from(
    [
        PartitionSpec(),
        PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "n_p")),
        PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "n_bucket")),
        PartitionSpec(PartitionField(1, 1000, TruncateTransform(2), "n_2")),
        PartitionSpec(PartitionField(3, 1000, TruncateTransform(2), "s_2")),
        PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "s_p"), PartitionField(1, 1001, BucketTransform(3), "n_3")),
    ]
)


@settings(max_examples=50, deadline=None)
@given(files=st.lists(row_lists, min_size=1, max_size=3), expression=expressions, spec=specs)
def test_a_whole_file_has_no_other_row_and_a_file_left_out_has_no_matching_one(tmp_path_factory, files, expression, spec):
    table = new_table(tmp_path_factory.mktemp("any"), FILES, spec)
    arrow = pa.schema([("n", pa.int32()), ("x", pa.float64()), ("s", pa.string())])
    for some in files:
        table.append(pa.Table.from_pylist(some, schema=arrow))
    matches = expression_to_pyarrow(bind(FILES, fitted(expression, FILES), case_sensitive=True), FILES)
    found = classify(table, table.current_snapshot().snapshot_id, expression)
    whole, partial = {file.file_path for file in found.whole}, {file.file_path for file in found.partial}
    assert not whole & partial
    for path, (_, _, live) in by_file(table).items():
        matching = pa.Table.from_pylist(live, schema=arrow).filter(matches).num_rows
        assert path not in whole or matching == len(live)
        assert path in whole | partial or matching == 0


def test_rows_of_nan_or_null_keep_a_file_from_being_whole(tmp_path):
    table = new_table(tmp_path, SCHEMA, SPECS["identity"])
    columns = {
        "id": [1, 2, 3],
        "value": [math.nan, 2.0, 5.0],
        "kind": [None, "a", None],
        "at": pa.array([None] * 3, pa.timestamp("us")),
    }
    table.append(pa.table(columns))
    head = table.current_snapshot().snapshot_id
    assert not list(classify(table, head, LessThanOrEqual("value", 10.0)).whole)  # pyiceberg writes no counts of NaN
    assert [file.partition[0] for file in classify(table, head, NotEqualTo("kind", "b")).whole] == ["a"]
    assert [file.partition[0] for file in classify(table, head, EqualTo("kind", "a")).whole] == ["a"]


def test_partition_and_metrics_together_make_a_file_whole(tmp_path):
    table = new_table(tmp_path, SCHEMA, SPECS["day"])
    table.append(rows(0, 5).slice(0, 5))
    day = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    expression = And(
        GreaterThanOrEqual("at", day.isoformat()), And(LessThan("at", (day + timedelta(days=1)).isoformat()), LessThan("id", 9))
    )
    whole = list(classify(table, table.current_snapshot().snapshot_id, expression).whole)
    assert [file.record_count for file in whole] == [2]


def test_partial_files_are_found_and_left(tmp_path):
    table = new_table(tmp_path, SCHEMA)
    table.append(rows(0, 10))
    table.append(rows(10, 10))
    partial = [file.record_count for file in classify(table, table.current_snapshot().snapshot_id, LessThan("id", 15)).partial]
    assert (without(table, RemoveWhere(LessThan("id", 15))).files, partial) == (1, [10])
    assert_same_everywhere(table, rows(10, 10))


def test_the_first_snapshot_of_a_table_removes_nothing(tmp_path):
    table = new_table(tmp_path, SCHEMA)
    removed = remove(table.metadata, table.io, None, [RemoveAll()], 5, lambda: new_path(table, "m"))
    assert removed.manifests == []
    assert removed.facts == {}
