"""What ``overwrite_filter`` matches, which files it rewrites, and what it refuses."""

from __future__ import annotations

import duckdb
import pytest
from contract.table.scenes import BEFORE, NEW, SPECS, WHERE, append, arrow, put, rows, world_with
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.types import StringType
from support.readers import assert_same_everywhere

from airflow_ckpt_provider.exceptions import InvalidInputError, SchemaMismatchError, StageFailedError, TableMovedError

#: Filters, and where they are written otherwise, what SQL calls them. Comparisons with NaN hold as in IEEE 754, not as in DuckDB.
FILTERS = [
    ("kind = 'north'", None),
    ("kind != 'north'", None),
    ("not kind = 'north'", None),
    ("kind in ('north', 'south')", None),
    ("kind not in ('north', 'south')", None),
    ("not kind in ('north', 'south')", None),
    ("kind is null", None),
    ("kind is not null", None),
    ("kind like 'n%'", None),
    ("kind not like 'n%'", None),
    ("value > 0.5", "value > 0.5 and not isnan(value)"),
    ("not value > 0.5", "value <= 0.5 and not isnan(value)"),
    ("value <= 0.5", "value <= 0.5 and not isnan(value)"),
    ("value is nan", "isnan(value)"),
    ("value is not nan", "not isnan(value)"),
    ("value not in (0.5)", None),
    ("kind = 'north' or value = 0.5", None),
    ("not (kind = 'north' or value = 0.5)", None),
    ("not (kind = 'north' and id < 106)", None),
    ("at >= '2026-01-01T14:00:00' and id > 101", "\"at\" >= '2026-01-01T14:00:00' and id > 101"),
    ("true", None),
    ("false", None),
]


@pytest.mark.parametrize("spec", ["unpartitioned", "several"])
@pytest.mark.parametrize(("text", "sql"), FILTERS, ids=str)
def test_rows_for_which_the_filter_is_true_are_removed_and_all_others_kept(tmp_path, text, sql, spec):
    world = world_with(tmp_path, SPECS[spec])
    world.commit(world.stage(world.request(mode="overwrite", parameters={"overwrite_filter": text})))
    connection = duckdb.connect()
    connection.register("before", arrow(BEFORE))
    kept = connection.execute(f"select id from before where ({sql or text}) is not true order by id").fetchall()
    assert world.ids() == [row[0] for row in kept]


@pytest.mark.parametrize("zero", ["0.0", "-0.0"])
@pytest.mark.parametrize("operator", ["in", "not in"])
def test_minus_zero_is_zero_in_a_set_as_in_sql(tmp_path, zero, operator):
    text = f"value {operator} ({zero}, 9.0)"
    before = [dict(rows(n, 1)[0], value=value) for n, value in enumerate([0.0, -0.0, 9.0, 1.0, float("nan"), None])]
    world = world_with(tmp_path, before=before)
    world.commit(world.stage(world.request(mode="overwrite", parameters={"overwrite_filter": text})))
    connection = duckdb.connect()
    connection.register("before", arrow(before))
    kept = connection.execute(f"select id from before where ({text}) is not true order by id").fetchall()
    assert world.ids() == [row[0] for row in kept]


def test_the_rows_that_stay_keep_all_their_values(tmp_path):
    world = world_with(tmp_path, SPECS["several"])
    put(world, NEW)
    world.commit(world.stage(WHERE.request(world)))
    assert_same_everywhere(world.table(), WHERE.after(BEFORE, NEW, SPECS["several"]))


def test_only_files_that_hold_both_are_rewritten(tmp_path):
    world = world_with(tmp_path, before=[])
    whole, both, none = rows(0, 3), rows(102, 4), rows(200, 3)
    for listed in (whole, both, none):
        append(world.table(), listed)
    paths = {task.file.record_count * 1000 + i: task.file.file_path for i, task in enumerate(world.table().scan().plan_files())}
    put(world, rows(50, 2))
    attempt = world.stage(WHERE.request(world))
    (kept,) = [split for split in attempt.checkpoint.plans()[-1].splits if split.task != "read"]
    world.commit(attempt)
    table = world.table()
    entries = [
        entry
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    removed = {entry.data_file.file_path for entry in entries if entry.status == ManifestEntryStatus.DELETED}
    live = {entry.data_file.file_path for entry in entries if entry.status != ManifestEntryStatus.DELETED}
    assert kept.read["path"] in removed
    assert len(removed) == 2
    assert len(live & set(paths.values())) == 1
    assert_same_everywhere(table, both[2:] + none + rows(50, 2))


def test_a_new_row_that_does_not_match_is_refused_and_shown(tmp_path):
    world = world_with(tmp_path)
    put(world, [*NEW, *rows(500, 1)])
    with pytest.raises((InvalidInputError, StageFailedError), match=r"1 rows do not match overwrite_filter='id < 104'.*'id': 500"):
        world.stage(WHERE.request(world))
    assert_same_everywhere(world.table(), BEFORE)


@pytest.mark.parametrize(
    "text",
    ["nosuch = 1", "id = ", "id = 'x'", "kind > 5", "", "length(kind) = 3", "ID < 4", "id < 4; drop"],
)
def test_a_filter_that_cannot_work_is_refused_before_anything_is_stored(tmp_path, text):
    world = world_with(tmp_path)
    put(world, NEW)
    with pytest.raises(InvalidInputError, match="overwrite_filter"):
        world.stage(world.request(mode="overwrite", parameters={"overwrite_filter": text}))
    assert list((world.root / "store").rglob("*.json")) == []


@pytest.mark.parametrize("mode", ["append", "overwrite_partitions", "create"])
def test_no_other_mode_takes_a_filter(tmp_path, mode):
    world = world_with(tmp_path, SPECS["identity"])
    with pytest.raises(InvalidInputError, match="does not take overwrite_filter"):
        world.stage(world.request(mode=mode, parameters={"overwrite_filter": "id < 4"}))


def test_a_column_added_by_others_meanwhile_is_not_lost_from_rows_that_are_kept(tmp_path):
    world = world_with(tmp_path)
    put(world, NEW)
    attempt = world.stage(WHERE.request(world))
    with world.table().update_schema() as update:
        update.add_column("extra", StringType())
    with pytest.raises(SchemaMismatchError, match="would lose what was added"):
        world.commit(attempt)
    world.commit(world.stage(WHERE.request(world, restart_token="once")))
    assert_same_everywhere(world.table(), WHERE.after(BEFORE, NEW, SPECS["unpartitioned"]))


def test_a_column_of_the_filter_that_was_replaced_by_another_of_its_name_is_noticed(tmp_path):
    world = world_with(tmp_path, before=[BEFORE[1]])
    new = [row | {"kind": "north"} for row in NEW]
    put(world, new)
    request = world.request(mode="overwrite", parameters={"overwrite_filter": "kind = 'north'"})
    attempt = world.stage(request)
    with world.table().update_schema() as update:
        update.rename_column("kind", "direction")
    with world.table().update_schema() as update:
        update.add_column("kind", StringType())
    before = world.table().metadata_location
    with pytest.raises(SchemaMismatchError):
        world.commit(attempt)
    assert world.table().metadata_location == before


def test_a_boundary_file_that_was_deleted_by_others_is_not_brought_back(tmp_path):
    world = world_with(tmp_path)
    put(world, NEW)
    attempt = world.stage(WHERE.request(world))
    world.table().delete("id >= 104")
    with pytest.raises(TableMovedError, match="Clear the task 'stage'"):
        world.commit(attempt)
    world.commit(world.stage(WHERE.request(world)))
    assert_same_everywhere(world.table(), NEW)


def test_a_retry_after_the_table_moved_writes_only_what_that_affects(tmp_path):
    world = world_with(tmp_path)
    put(world, NEW[:2], NEW[2:])
    attempt = world.stage(WHERE.request(world))
    staged = {split: attempt.checkpoint.staged([split])[0].writer for split in attempt.checkpoint.staged_ids()}
    more = rows(102, 4)
    append(world.table(), more)
    again = world.stage(WHERE.request(world))
    assert staged.items() <= {s: again.checkpoint.staged([s])[0].writer for s in again.checkpoint.staged_ids()}.items()
    assert len(again.checkpoint.staged_ids()) == len(staged) + 1
    world.commit(again)
    assert_same_everywhere(world.table(), WHERE.after(BEFORE + more, NEW, SPECS["unpartitioned"]))


# -- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "same"),
    [
        ("kind = :kind", {"kind": "north"}, "kind = 'north'"),
        (
            "kind in (:a, :b) and not value > :most",
            {"a": "north", "b": "south", "most": 0.5},
            "kind in ('north', 'south') and not value > 0.5",
        ),
        ("kind not in (:a, 'south') or id >= :id", {"a": "north", "id": "106"}, "kind not in ('north', 'south') or id >= 106"),
        ("id between :low and :high", {"low": 101, "high": 103}, "id between 101 and 103"),
        ("at >= :at", {"at": "2026-01-01T14:00:00"}, "at >= '2026-01-01T14:00:00'"),
        ("kind = ':kind' or kind = :kind", {"kind": "north"}, "kind = 'north'"),
    ],
)
def test_values_of_parameters_stand_where_literals_would(tmp_path, text, values, same):
    left = []
    for name, parameters in (
        ("one", {"overwrite_filter": text, "overwrite_parameters": values}),
        ("other", {"overwrite_filter": same}),
    ):
        world = world_with(tmp_path / name, SPECS["several"])
        world.commit(world.stage(world.request(mode="overwrite", parameters=parameters)))
        left.append(world.ids())
    assert left[0] == left[1]
    assert len(left[0]) < len(BEFORE)


@pytest.mark.parametrize(
    "value", ["north' or true or kind = '", "north\\", "north\\' or id > 0 or kind = '", "' or id is not null --"]
)
def test_no_value_becomes_a_part_of_the_filter(tmp_path, value):
    world = world_with(tmp_path, SPECS["unpartitioned"])
    before = world.ids()
    parameters = {"overwrite_filter": "kind = :kind", "overwrite_parameters": {"kind": value}}
    world.commit(world.stage(world.request(mode="overwrite", parameters=parameters)))
    assert world.ids() == before


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("kind = :kind", {}, r"has the parameter :kind, which is not in overwrite_parameters"),
        ("kind = ':kind'", {"kind": "north"}, r"has no such parameter.*without quotes"),
        ("kind like :kind", {"kind": "n%"}, "as a pattern"),
        ("id = :id", {"id": "x"}, "does not fit the table"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, text, values, said):
    world = world_with(tmp_path, SPECS["unpartitioned"])
    before = world.ids()
    with pytest.raises(InvalidInputError, match=said):
        world.stage(world.request(mode="overwrite", parameters={"overwrite_filter": text, "overwrite_parameters": values}))
    assert world.ids() == before
    assert world.files_on_disk() <= world.referenced_files()
