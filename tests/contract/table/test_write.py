"""What a write promises whatever the table's format is: one behaviour, over an Iceberg table and a Lance dataset.

Each test reads the table back with the format's own library, as anybody else would.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import lance
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from contract.table.both import (
    ALL,
    ALSO_WITH_STABLE_ROW_IDS,
    BEFORE,
    COMMITS_BEFORE,
    FOREIGN,
    HALF,
    REPLACE,
    UPSERT,
    Iceberg,
    Lance,
    StagedRows,
    kinds,
    marked,
    marked_even,
    nothing,
    of,
    only_even,
)
from protocol.crash import maintenance
from protocol.crash.exactly_once import Midway, assert_only_missing_splits_were_written
from support.world import ORIGIN, SCHEMA, rows

from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    CheckFailedError,
    DiscardedError,
    DuplicateKeyError,
    InvalidInputError,
    NullInRequiredColumnError,
    RestartRefusedError,
    SchemaMismatchError,
    StagedFileMissingError,
    TableExistsError,
    TableMissingError,
    TableMovedError,
)
from airflow_ckpt_provider.sources import Files, IcebergTable, LanceDataset
from airflow_ckpt_provider.spark.checks.check import parse_checks
from airflow_ckpt_provider.spark.checks.run import CheckRun
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.write import groups


def without_a_table(kind, root):
    world = kind(root)
    world.put_files()
    return world


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def empty(request, tmp_path):
    """A world with four input files, and no table."""
    return without_a_table(request.param, tmp_path)


@pytest.fixture(params=[Iceberg, Lance, StagedRows], ids=["iceberg", "lance", "staged rows"])
def empty_of_any(request, tmp_path):
    """The same of every format there is, those to which rows can only be added included."""
    return without_a_table(request.param, tmp_path)


@pytest.fixture
def any_world(empty_of_any):
    """The same, with a table in which somebody's rows are."""
    empty_of_any.make()
    return empty_of_any


@pytest.fixture
def world(empty):
    """The same, with a table in which somebody's rows are."""
    empty.make()
    return empty


def mapped(world, index, **changes):
    """What one task of a mapped stage asks for: the input file of its number."""
    source = Files(f"{world.input}/{index}.parquet", max_split_bytes=1)
    return world.request(f"orders/{index}", source=source, origin=msgspec.structs.replace(ORIGIN, map_index=index), **changes)


# -- how rows land ---------------------------------------------------------------------------------------------------------


def test_an_append_adds_its_rows_in_one_commit(any_world):
    attempt = any_world.stage()
    assert any_world.read() == of(BEFORE)
    assert any_world.commits() == COMMITS_BEFORE
    (settled,) = any_world.commit(attempt)
    assert settled.landed_now
    assert any_world.read() == of(ALL, BEFORE)
    assert any_world.commits() == COMMITS_BEFORE + 1
    assert any_world.referenced_files() >= any_world.files_on_disk()


def test_a_create_makes_the_table_and_its_rows_in_one_commit_and_not_before(empty):
    attempt = empty.stage(empty.request(mode="create"))
    assert not empty.there
    empty.commit(attempt)
    assert empty.read() == of(ALL)
    assert empty.commits() == 1
    assert not empty.commit(empty.stage(empty.request(mode="create")))[0].landed_now
    assert empty.commits() == 1


def test_a_create_without_rows_makes_an_empty_table_with_columns(empty):
    empty.commit(empty.stage(empty.request(mode="create", transform=nothing)))
    assert empty.there
    assert empty.read() == []
    empty.commit(empty.stage(empty.request("later")))
    assert empty.read() == of(ALL)


def test_a_create_over_a_table_of_somebody_else_is_refused_before_anything_is_stored(world):
    with pytest.raises(TableExistsError, match="Use mode='append' or 'overwrite'"):
        world.stage(world.request(mode="create"))
    assert list((world.root / "store").rglob("*.json")) == []
    assert world.read() == of(BEFORE)


def test_a_create_finds_a_table_that_somebody_else_made_meanwhile_and_leaves_it(empty):
    attempt = empty.stage(empty.request(mode="create"))
    empty.make()
    with pytest.raises(TableExistsError):
        empty.commit(attempt)
    assert empty.read() == of(BEFORE)
    empty.drop()
    if isinstance(empty, Lance):
        # Staged files lie in the dataset's folder.
        with pytest.raises(StagedFileMissingError, match="Clear the stage"):
            empty.commit(attempt)
        assert not empty.there
        attempt = empty.stage(empty.request(mode="create", restart_token="now"))
    empty.commit(attempt)
    assert empty.read() == of(ALL)


def test_of_two_keys_that_create_one_table_the_second_is_told(empty):
    first, second = (empty.stage(empty.request(key, mode="create")) for key in ("first", "second"))
    empty.commit(second)
    with pytest.raises(TableExistsError):
        empty.commit(first)
    assert empty.read() == of(ALL)
    assert empty.commits() == 1


def test_an_overwrite_replaces_all_rows_also_those_that_came_meanwhile(world):
    attempt = world.stage(world.request(mode="overwrite"))
    world.add()
    world.commit(attempt)
    assert world.read() == of(ALL)
    assert world.commits() == COMMITS_BEFORE + 2


def test_rows_that_others_add_between_stage_and_commit_stay(any_world):
    attempt = any_world.stage()
    any_world.add()
    any_world.commit(attempt)
    assert any_world.read() == of(ALL, BEFORE, FOREIGN)
    any_world.compact()
    assert not any_world.commit(attempt)[0].landed_now
    assert any_world.read() == of(ALL, BEFORE, FOREIGN)


@pytest.mark.parametrize("has_rows", [True, False], ids=["into rows", "into an empty table"])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_every_mode_writes_into_a_table_with_rows_and_without(empty, mode, has_rows):
    empty.make(BEFORE if has_rows else range(0))
    empty.commit(empty.stage(empty.request(mode=mode)))
    assert empty.read() == (of(ALL, BEFORE) if has_rows and mode == "append" else of(ALL))


# -- upserts ---------------------------------------------------------------------------------------------------------------


@ALSO_WITH_STABLE_ROW_IDS
@pytest.mark.parametrize(
    ("ignored", "own", "others"),
    [
        ({}, {*ALL}, {*range(400, 600)}),
        ({"when_matched": "ignore"}, {*range(200)}, {*HALF}),
        ({"when_not_matched": "ignore"}, {*range(200, 400)}, {*range(400, 600)}),
    ],
    ids=["update and insert", "insert only", "update only"],
)
def test_an_upsert_updates_and_inserts_as_it_is_told_in_one_commit(empty, ignored, own, others):
    empty.make(HALF)
    request = empty.request(**UPSERT | {"parameters": UPSERT["parameters"] | ignored}, transform=marked)
    (settled,) = empty.commit(empty.stage(request))
    assert kinds(empty) == (own, others)
    assert empty.commits() == COMMITS_BEFORE + 1
    assert not empty.commit(empty.stage(request))[0].landed_now
    assert settled.checkpoint.sealed().counts.get("updated", 0) == len(own & {*HALF})


@ALSO_WITH_STABLE_ROW_IDS
def test_an_upsert_sees_what_others_changed_after_its_stage(empty):
    empty.make(HALF)
    request = empty.request(**UPSERT, transform=marked)
    attempt = empty.stage(request)
    empty.add(range(100, 110))
    with pytest.raises(TableMovedError):
        empty.commit(attempt)
    assert kinds(empty) == (set(), {*HALF, *range(100, 110)})
    empty.commit(empty.stage(request))
    assert kinds(empty) == ({*ALL}, {*range(400, 600)})


@ALSO_WITH_STABLE_ROW_IDS
@pytest.mark.parametrize("staged", [4, 5, 6])
def test_an_upsert_that_was_killed_while_it_matched_what_is_gone_by_now_matches_what_there_is(empty, staged):
    """Its plan names files, or a version, that compaction and expiry have taken away meanwhile."""
    empty.make(HALF)
    empty.match_files_alone()
    for start in (600, 700):
        empty.add(range(start, start + 5))
    request = empty.request(**UPSERT, transform=marked)
    empty.stage(request, splits=staged)
    empty.add(range(50, 60))
    empty.forget()
    empty.commit(empty.stage(request))
    assert kinds(empty) == ({*ALL}, {*range(400, 600), *range(600, 605), *range(700, 705)})


def test_a_key_that_is_in_the_source_twice_is_refused(empty):
    empty.make(HALF)
    with pytest.raises(DuplicateKeyError, match=r"\(7\): 2 rows"):
        empty.stage(empty.request(**UPSERT, transform=twice))
    assert kinds(empty) == (set(), {*HALF})


def twice(batch):
    return pa.concat_batches([batch, batch.filter(pc.equal(batch["id"], 7))])


@ALSO_WITH_STABLE_ROW_IDS
def test_a_replacement_of_an_upsert_takes_away_what_it_inserted_and_no_row_of_others(empty):
    empty.make(HALF)
    empty.commit(empty.stage(empty.request(**UPSERT, transform=marked)))
    empty.add()
    for transform, left in ((marked_even, {*range(0, 400, 2)}), (nothing, set()), (marked, {*ALL})):
        empty.commit(empty.stage(empty.request(**UPSERT, **REPLACE, transform=transform)))
        # What took the place of rows of others stays, or those would be gone.
        assert kinds(empty) == (left | {*range(200, 400)}, {*range(400, 600), *FOREIGN})


# -- columns that grow -----------------------------------------------------------------------------------------------------

EVOLVE = {"evolve_schema": True}


def wider(batch):
    return batch.append_column("extra", pa.array([f"x{n}" for n in batch["id"].to_pylist()]))


def without_type(batch):
    return batch.append_column("extra", pa.nulls(batch.num_rows))


def as_text(batch):
    return batch.set_column(batch.schema.get_field_index("value"), "value", batch["value"].cast(pa.string()))


def extras(world):
    return {row["id"]: row["extra"] for row in world.read()}


@pytest.mark.parametrize("more", [{}, {"mode": "overwrite"}, UPSERT], ids=["append", "overwrite", "upsert"])
def test_columns_that_the_table_lacks_are_added_as_optional_ones(empty, more):
    empty.make(HALF)
    ids = range(1000, 1400)
    for file, start in enumerate(range(1000, 1400, 100)):
        pq.write_table(rows(start, 100), empty.input / f"{file}.parquet")
    attempt = empty.stage(empty.request(**EVOLVE, **more, transform=wider))
    assert len(attempt.evolved) == 1
    assert "column 'extra' added as string" in attempt.evolved[0]
    empty.commit(attempt)
    left = {} if more.get("mode") == "overwrite" else dict.fromkeys(HALF)
    assert extras(empty) == {n: f"x{n}" for n in ids} | left
    assert empty.stage(empty.request("again", **EVOLVE, **more, transform=wider)).evolved == []


def test_without_being_asked_for_no_column_is_added(world):
    with pytest.raises(SchemaMismatchError, match="'extra' is not in the table"):
        world.stage(world.request(transform=wider))
    assert world.read() == of(BEFORE)


def test_what_no_new_column_makes_fit_is_refused_and_nothing_changes(world):
    commits = world.commits()
    with pytest.raises(SchemaMismatchError, match=r"'value'"):
        world.stage(world.request(**EVOLVE, transform=lambda batch: as_text(wider(batch))))
    assert world.read() == of(BEFORE)
    assert world.commits() == commits


def test_an_attempt_that_stopped_after_the_growth_does_not_grow_it_again(world):
    request = world.request(**EVOLVE, transform=wider)
    world.stage(request, splits=1)
    again = world.stage(request)
    assert again.evolved == []
    world.commit(again)
    assert extras(world) == {n: f"x{n}" for n in ALL} | dict.fromkeys(BEFORE)


def test_of_writes_that_need_the_same_growth_at_once_one_makes_it(world):
    with ThreadPoolExecutor(4) as pool:
        stage = lambda number: world.stage(world.request(f"key {number}", **EVOLVE, transform=wider))  # noqa: E731 - of this test only
        attempts = list(pool.map(stage, range(4)))
    assert max(len(attempt.evolved) for attempt in attempts) == 1
    for attempt in attempts:
        world.commit(attempt)
    assert len(world.read()) == 4 * len(ALL) + len(BEFORE)
    assert set(world.read()[0]) == {"id", "value", "kind", "at", "extra"}


def test_writes_that_each_need_another_column_all_land(world):
    """Mapped tasks with other columns each: one that grows the table later must not spoil what others have staged before."""

    def named(name):
        return lambda batch: batch.append_column(name, batch["id"])

    attempts = [world.stage(world.request(name, **EVOLVE, transform=named(name))) for name in ("one", "two", "three")]
    for attempt in attempts:
        world.commit(attempt)
    found = [row for row in world.read() if row["id"] in ALL]
    assert len(found) == 3 * len(ALL)
    for name in ("one", "two", "three"):
        assert sorted(row[name] for row in found if row[name] is not None) == list(ALL)
        assert all(row[name] in (None, row["id"]) for row in found)


# -- nothing to write ------------------------------------------------------------------------------------------------------


def test_without_rows_an_append_lands_without_a_commit(any_world):
    (settled,) = any_world.commit(any_world.stage(any_world.request(transform=nothing)))
    assert settled.commit.commit_id is None
    assert any_world.read() == of(BEFORE)
    assert any_world.commits() == COMMITS_BEFORE
    assert not any_world.commit(any_world.stage(any_world.request(transform=nothing)))[0].landed_now


@pytest.mark.parametrize("files", [0, 2])
def test_without_rows_an_overwrite_empties_the_table_once(world, files):
    for path in sorted(world.input.iterdir())[files:]:
        path.unlink()
    request = world.request(mode="overwrite", transform=nothing)
    world.commit(world.stage(request))
    assert world.read() == []
    world.add()
    assert not world.commit(world.stage(request))[0].landed_now
    assert world.read() == of(FOREIGN)


# -- once ------------------------------------------------------------------------------------------------------------------


def test_a_retry_recovers_what_is_staged_and_writes_only_the_rest(any_world):
    any_world.stage(splits=3)
    before = {path: stat(path) for path in any_world.files_on_disk()}
    again = any_world.stage()
    assert again.recovered(again.checkpoint.sealed()) == 3
    data = {path for path in before if path.endswith((".parquet", ".lance"))}
    assert len(data) == 3
    taken_up = again.taken_up(again.checkpoint.sealed())
    assert taken_up[:2] == (3, sum(before[path][1] for path in data))
    assert taken_up.seconds > 0
    assert {path: stat(path) for path in data} == {path: before[path] for path in data}
    assert len([path for path in any_world.files_on_disk() if path.endswith((".parquet", ".lance"))]) == 4
    any_world.commit(again)
    assert any_world.read() == of(ALL, BEFORE)


def stat(path):
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


@pytest.mark.parametrize(
    ("empty", "mode"),
    [(kind, mode) for kind in (Iceberg, Lance) for mode in ("append", "overwrite", "create")] + [(StagedRows, "append")],
    indirect=["empty"],
)
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "record lost"])
def test_a_repeated_commit_finds_the_first(empty, mode, recorded):
    if mode != "create":
        empty.make()
    attempt = empty.stage(empty.request(mode=mode))
    (first,) = empty.commit(attempt)
    landed, read = empty.commits(), empty.read()
    if not recorded:
        maintenance.forget_the_record(empty, attempt.checkpoint)
    again = empty.stage(empty.request(mode=mode))
    assert again.commit.commit_id == first.commit.commit_id
    (found,) = empty.commit(attempt)
    assert not found.landed_now
    assert found.commit.commit_id == first.commit.commit_id
    assert (empty.commits(), empty.read()) == (landed, read)


def test_another_key_writes_again(any_world):
    for key in ("monday", "tuesday"):
        any_world.commit(any_world.stage(any_world.request(key)))
    assert any_world.read() == sorted(of(ALL, ALL, BEFORE), key=lambda row: row["id"])
    assert any_world.commits() == COMMITS_BEFORE + 2


def test_mapped_keys_land_in_one_commit(any_world):
    attempts = [any_world.stage(mapped(any_world, index)) for index in range(4)]
    settled = any_world.commit(*attempts)
    assert len({one.commit.commit_id for one in settled}) == 1
    assert any_world.read() == of(ALL, BEFORE)
    assert any_world.commits() == COMMITS_BEFORE + 1
    assert not any(one.landed_now for one in any_world.commit(*attempts))
    assert any_world.commits() == COMMITS_BEFORE + 1


def test_mapped_keys_overwrite_together_also_if_one_has_no_rows(world):
    attempts = [
        world.stage(mapped(world, index, mode="overwrite", transform=nothing if index == 2 else None)) for index in range(4)
    ]
    world.commit(*attempts)
    assert world.read() == of(range(200), range(300, 400))


def test_mapped_keys_that_each_create_the_table_are_refused(empty):
    attempts = [empty.stage(mapped(empty, index, mode="create")) for index in range(2)]
    with pytest.raises(InvalidInputError, match="cannot create one"):
        empty.commit(*attempts)
    assert not empty.there


def test_keys_of_other_modes_do_not_land_together(world):
    attempts = [world.stage(mapped(world, 0)), world.stage(mapped(world, 1, mode="overwrite"))]
    with pytest.raises(InvalidInputError):
        world.commit(*attempts)
    assert world.read() == of(BEFORE)


# -- generations -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite", "create"])
def test_a_replacement_takes_the_rows_of_its_own_key_away_and_no_others(empty, mode):
    if mode != "create":
        empty.make()
    left = BEFORE if mode == "append" else range(0)
    empty.commit(empty.stage(empty.request(mode=mode)))
    empty.add()
    for transform in (only_even, None, nothing):
        (settled,) = empty.commit(empty.stage(empty.request(mode=mode, transform=transform, **REPLACE)))
        assert settled.landed_now
        mine = {None: of(ALL), nothing: [], only_even: [row for row in of(ALL) if row["id"] % 2 == 0]}[transform]
        assert empty.read() == mine + of(left, FOREIGN)
    assert settled.checkpoint.header.generation == 4


@pytest.mark.parametrize("more", [{}, {"mode": "overwrite"}, UPSERT], ids=["append", "overwrite", "upsert"])
def test_a_column_that_others_added_does_not_hinder_a_replacement(world, more):
    world.commit(world.stage(world.request(**more)))
    world.widen()
    world.commit(world.stage(world.request(**more, **REPLACE, transform=only_even)))
    left = () if more.get("mode") == "overwrite" else BEFORE
    assert [row["id"] for row in world.read()] == [*range(0, 400, 2), *left]


OTHER_MODES = {
    "append, then overwrite": ({}, {"mode": "overwrite"}),
    "upsert, then append": (UPSERT, {}),
    "upsert, then another one": (UPSERT, UPSERT | {"parameters": {"upsert_keys": ["id", "kind"]}}),
}


@pytest.mark.parametrize("given_up", ["restart", "change", "discarded"])
@pytest.mark.parametrize(("first", "other"), OTHER_MODES.values(), ids=OTHER_MODES)
def test_another_write_does_not_inherit_what_a_replacement_was_to_replace(empty, first, other, given_up):
    """It would remove files of the first by the rules of its own mode: whole ones, where rows of others were updated."""
    empty.make(HALF)
    empty.commit(empty.stage(empty.request(**first, transform=marked)))
    begun = empty.stage(empty.request(**first, **REPLACE, transform=marked_even), splits=1)
    before = empty.read()
    how = {"on_change": "restart"} | ({"restart_token": "now"} if given_up == "restart" else {})
    if given_up == "discarded":
        begun.checkpoint.discard("a test")
    with pytest.raises(BindingMismatchError, match=r"Generation 2 .* is to replace generation 1"):
        empty.stage(empty.request(**other, **how))
    assert empty.read() == before
    empty.commit(empty.stage(empty.request(**first, **REPLACE, transform=marked)))
    assert {row["id"] for row in empty.read()} == {*range(600)}


def test_a_replacement_of_what_compaction_has_rewritten_is_refused(world):
    world.commit(world.stage())
    world.compact()
    again = world.request(transform=only_even, **REPLACE)
    with pytest.raises(TableMovedError):
        world.commit(world.stage(again))
    assert world.read() == of(ALL, BEFORE)


def test_a_restart_of_a_landed_write_is_refused_in_the_words_of_its_format(world):
    world.commit(world.stage())
    word = {"iceberg": "snapshot", "lance": "version"}[world.as_table().binding().format]
    with pytest.raises(RestartRefusedError, match=rf"is committed as {word} \d+ of "):
        world.stage(world.request(transform=only_even, restart_token="now"))


def test_a_restart_stages_anew_and_the_discarded_generation_never_lands(any_world):
    first = any_world.stage()
    second = any_world.stage(any_world.request(transform=only_even, restart_token="now"))
    assert second.checkpoint.header.generation == 2
    with pytest.raises(DiscardedError):
        any_world.commit(first)
    assert any_world.read() == of(BEFORE)
    any_world.commit(second)
    with pytest.raises(DiscardedError):
        any_world.commit(first)
    assert any_world.read() == [row for row in of(ALL) if row["id"] % 2 == 0] + of(BEFORE)
    assert any_world.commits() == COMMITS_BEFORE + 1


def test_another_write_under_the_same_key_is_refused(world):
    world.stage()
    for other in ({"mode": "overwrite"}, {"transform": only_even}, {"source": Files(f"{world.input}/0.parquet")}):
        with pytest.raises(BindingMismatchError):
            world.stage(world.request(**other))


# -- the table is another one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("empty", "mode"),
    [(kind, mode) for kind in (Iceberg, Lance) for mode in ("append", "overwrite")] + [(StagedRows, "append")],
    indirect=["empty"],
)
@pytest.mark.parametrize("anew", [True, False], ids=["made anew", "gone"])
def test_a_table_that_was_removed_after_the_stage_gets_no_rows(world, mode, anew):
    attempt = world.stage(world.request(mode=mode))
    world.drop()
    if anew:
        world.make()
    with pytest.raises(TableMissingError):
        world.commit(attempt)
    assert world.there is anew
    assert not anew or world.read() == of(BEFORE)


def test_a_table_that_is_not_there_is_refused_before_anything_is_stored(empty_of_any):
    with pytest.raises(TableMissingError):
        empty_of_any.stage()
    assert list((empty_of_any.root / "store").rglob("*.json")) == []


# -- rows that do not fit --------------------------------------------------------------------------------------------------


def test_columns_that_do_not_fit_are_refused_before_anything_is_staged(any_world):
    pq.write_table(rows(0, 3).append_column("extra", pa.array([1, 2, 3])), any_world.input / "0.parquet")
    with pytest.raises(SchemaMismatchError, match="column 'extra' is not in the table"):
        any_world.stage()
    assert any_world.files_on_disk() == set()


def test_of_many_files_that_one_is_named_whose_rows_do_not_fit_and_how_the_table_takes_them(any_world):
    for number in range(3):
        extra = number == 2
        table = rows(number * 3, 3)
        pq.write_table(table.append_column("extra", pa.array([1, 2, 3])) if extra else table, any_world.input / f"{number}.parquet")
    for _ in range(2):
        # While rows are staged, and by a retry.
        with pytest.raises(SchemaMismatchError, match=r"column 'extra' is not(.|\n)*evolve_schema=True(.|\n)*/in/2\.parquet"):
            any_world.stage()
    (any_world.input / "0.parquet").unlink()
    (any_world.input / "1.parquet").unlink()
    with pytest.raises(SchemaMismatchError, match=r"column 'extra' is not(.|\n)*evolve_schema=True(.|\n)*/in/2\.parquet"):
        # Before Spark starts.
        any_world.stage(any_world.request("another"))


def test_a_column_of_another_type_is_named_with_both_types_and_its_file(any_world):
    changed = rows(0, 3).set_column(1, "value", pa.array(["a", "b", "c"]))
    pq.write_table(changed, any_world.input / "0.parquet")
    with pytest.raises(SchemaMismatchError, match=r"column 'value' is string, the table has double(.|\n)*/in/0\.parquet"):
        any_world.stage()


@pytest.mark.parametrize("kind", [Iceberg, Lance, StagedRows])
def test_a_null_in_a_required_column_fails_its_split_and_leaves_no_file(tmp_path, kind):
    world = kind(tmp_path)
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), *rows(0, 1).schema.remove(0)])
    if kind is Lance:
        lance.write_dataset(required.empty_table(), world.uri, schema=required)
    elif kind is StagedRows:
        world.make((), required)
    else:
        world.create_table(schema=SCHEMA)
    table = rows(0, 3).set_column(0, "id", pa.array([0, None, 2], pa.int64()))
    pq.write_table(table, world.input / "0.parquet")
    with pytest.raises(NullInRequiredColumnError, match=r"Column 'id' .* row 1 of the split(.|\n)*/in/0\.parquet"):
        world.stage()
    assert world.files_on_disk() == set()


# -- checks of staged rows -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark():
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    with spark_session(SparkTarget("local[2]", conf=conf), "checks") as spark:
        yield spark


def fully_counted(staged):
    ids = sorted(n for batch in staged.batches(["id"]) for n in batch["id"].to_pylist())
    return ids == list(ALL) and staged.rows == len(ALL)


def nothing_large(staged):
    return max(n for batch in staged.batches(["value"]) for n in batch["value"].to_pylist()) < 50


SQL = (
    "SELECT count(*) = 400 AND count(DISTINCT id) = 400 AND max(value) = 99.75 AND min(at) = TIMESTAMP_NTZ '1970-01-01' FROM staged"
)

CHECKS = {
    "SQL that passes": (SQL, True),
    "SQL that fails": ("SELECT max(value) < 50, max(value) FROM staged", False),
    "a function that passes": (fully_counted, True),
    "a function that fails": (nothing_large, False),
}


@pytest.mark.spark
@pytest.mark.parametrize(("check", "passes"), CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("mode", ["append", "create"])
def test_a_check_sees_the_staged_rows_and_one_that_fails_leaves_the_table_as_it_was(empty, spark, mode, check, passes):
    if mode == "append":
        empty.make()
    before = empty.read() if mode == "append" else []
    attempt = empty.stage(empty.request(mode=mode))
    target = empty.as_table()

    def audit(sealed):
        CheckRun(parse_checks([check]), target, sealed, lambda: spark).run(lambda _: None)

    if passes:
        (settled,) = groups.commit([attempt.checkpoint], target, audit)
        assert settled.landed_now
    else:
        commits, files = empty.commits(), empty.files_on_disk()
        with pytest.raises(CheckFailedError):
            groups.commit([attempt.checkpoint], target, audit)
        assert empty.there is (mode == "append")
        assert (empty.commits(), empty.files_on_disk()) == (commits, files)
        assert not empty.there or empty.read() == before
        empty.commit(attempt)
    assert empty.read() == of(ALL) + before


# -- the sensor ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def connections(empty, monkeypatch):
    catalog = {"type": "sql", "uri": f"sqlite:///{empty.root}/catalog.db", "warehouse": f"file://{empty.root}/warehouse"}
    found = {
        "ICEBERG_DEFAULT": {"conn_type": "iceberg", "extra": catalog},
        "CHECKPOINT_DEFAULT": {"conn_type": "checkpoint", "host": f"file://{empty.root}/store"},
    }
    for name, facts in found.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(facts))


@pytest.mark.airflow
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "record lost"])
def test_the_sensor_sees_what_is_sealed_and_what_has_landed(world, connections, recorded):
    from airflow_ckpt_provider.hooks.lookup import OwnConnections, reached

    def seen(pointer):
        return [reached(pointer, until, OwnConnections()) for until in (State.SEALED, State.COMMITTED)]

    assert seen("orders") == [False, False]
    world.stage(splits=1)
    assert seen("orders") == [False, False]
    attempt = world.stage()
    seal = attempt.checkpoint.sealed()
    pointer = reference(attempt.checkpoint, seal, State.SEALED, recovered=1, written=3)
    assert seen("orders") == seen(pointer) == [True, False]
    world.commit(attempt)
    if not recorded:
        maintenance.forget_the_record(world, attempt.checkpoint)
    assert seen("orders") == seen(pointer) == [True, True]


@pytest.mark.airflow
def test_the_sensor_is_told_that_a_discarded_generation_never_lands(world, connections):
    from airflow_ckpt_provider.hooks.lookup import OwnConnections, reached

    attempt = world.stage()
    pointer = reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.SEALED, recovered=0, written=4)
    world.stage(world.request(restart_token="now"), splits=0)
    with pytest.raises(DiscardedError):
        reached(pointer, State.COMMITTED, OwnConnections())


# -- from one format into the other ----------------------------------------------------------------------------------------


def copy_request(table, into, **changes):
    """For a copy of all that is in one world's table into another's."""
    return into.request("copy", **({"source": table.as_source, "options": table.source_options} | changes))


def copied(source, into, **changes):
    """Write all of one world's table into another's."""
    into.commit(into.stage(copy_request(source, into, **changes)))


FORMATS = pytest.mark.parametrize(
    "kinds", [(Lance, Iceberg), (Iceberg, Lance), (Lance, Lance)], ids=["to iceberg", "to lance", "lance to lance"]
)


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
@FORMATS
def test_rows_go_from_one_format_into_the_other_and_back(tmp_path, kinds, mode):
    first, second, third = kinds[0](tmp_path / "1"), kinds[1](tmp_path / "2"), kinds[0](tmp_path / "3")
    first.make(range(50))
    first.add(range(50, 60))
    for into in (second, third):
        if mode != "create":
            into.make()
    copied(first, second, mode=mode)
    copied(second, third, mode=mode)
    left = of(BEFORE) if mode == "append" else []
    assert second.read() == of(range(60)) + left
    assert third.read() == sorted(of(range(60)) + left * 2, key=lambda row: row["id"])


def small_splits(world):
    """All of a world's table, a split for each of its files."""
    if isinstance(world, Iceberg):
        return IcebergTable("shop.orders", max_split_bytes=1)
    return LanceDataset(world.uri, max_split_bytes=1)


class Read:
    """A transform that notes the ids that came to it."""

    def __init__(self):
        self.ids = []

    def __call__(self, batch):
        self.ids += batch["id"].to_pylist()
        return batch


@pytest.mark.parametrize("more", [{"mode": "create"}, {}, UPSERT], ids=["create", "append", "upsert"])
@pytest.mark.parametrize("splits", [1, 2])
@FORMATS
def test_a_copy_that_stopped_on_the_way_goes_on_with_what_is_missing(tmp_path, kinds, splits, more):
    """Also if what it reads was rewritten in between."""
    first, second = kinds[0](tmp_path / "1"), kinds[1](tmp_path / "2")
    first.make(range(20))
    for start in (20, 40):
        first.add(range(start, start + 20))
    creates = more.get("mode") == "create"
    if not creates:
        second.make()
    read = Read()
    request = copy_request(first, second, source=small_splits(first), transform=read, **more)
    second.stage(request, splits=splits)
    before, files = Midway.of(second, "copy"), {path: stat(path) for path in second.files_on_disk()}
    assert len(before.published) == splits
    first.compact()
    first.add(FOREIGN)
    read.ids.clear()
    again = second.stage(request)
    assert len(read.ids) == 20 * (3 - splits)
    assert_only_missing_splits_were_written(second, before, "copy")
    assert {path: stat(path) for path in files} == files
    if more is not UPSERT:
        assert again.recovered(again.checkpoint.sealed()) == splits
    second.commit(again)
    assert second.read() == of(range(60), *([] if creates else [BEFORE]))
    assert second.commits() == (1 if creates else COMMITS_BEFORE + 1)


def test_vectors_and_nested_rows_go_into_iceberg_as_lists_and_come_back_as_vectors(tmp_path):
    first, second, third = Lance(tmp_path / "1"), Iceberg(tmp_path / "2"), Lance(tmp_path / "3")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("v", pa.list_(pa.float32(), 3)),
            ("s", pa.struct([("tags", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.float64()))])),
        ]
    )
    given = [
        {"id": 1, "v": [1.0, 2.0, 3.0], "s": {"tags": ["a", None], "m": [("k", 0.5)]}},
        {"id": 2, "v": None, "s": {"tags": [], "m": []}},
        {"id": 3, "v": [0.0, -1.0, 0.5], "s": {"tags": None, "m": [("x", None), ("y", 1.0)]}},
    ]
    lance.write_dataset(pa.Table.from_pylist(given, schema=schema), first.uri)
    lance.write_dataset(schema.empty_table(), third.uri, schema=schema)
    copied(first, second, mode="create")
    assert second.table().schema().as_arrow().field("v").type.value_type == pa.float32()
    copied(second, third, mode="append")
    assert third.read() == given
    assert third.dataset.schema == schema


# -- what only a Lance dataset has -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("stable", [True, False, None])
def test_a_dataset_is_created_with_its_storage_version_and_row_ids(tmp_path, version, stable):
    world = Lance(tmp_path)
    world.put_files()
    parameters = {"storage_version": version} | ({} if stable is None else {"stable_row_ids": stable})
    world.commit(world.stage(world.request(mode="create", parameters=parameters)))
    assert world.dataset.data_storage_version == version
    assert world.dataset.has_stable_row_ids is bool(stable)
    assert world.read() == of(ALL)

    by_address = {row["_rowid"]: row["id"] for row in world.dataset.to_table(["id"], with_row_id=True).to_pylist()}
    world.commit(world.stage(world.request("more", source=Files(f"{world.input}/0.parquet"))))
    world.dataset.delete("id < 50")
    world.compact()
    found = world.dataset.to_table(["id"], with_row_id=True, filter="id >= 100").to_pylist()
    assert world.dataset.data_storage_version == version
    assert all(by_address.get(row["_rowid"]) == row["id"] for row in found) is bool(stable)

    world.commit(world.stage(world.request("anew", mode="overwrite")))
    assert world.dataset.has_stable_row_ids is bool(stable)
    assert world.read() == of(ALL)


@pytest.mark.parametrize(
    ("mode", "parameters", "message"),
    [
        ("create", {"storage_version": "2.0"}, "storage_version='2.0'"),
        ("create", {"storage_version": "newest"}, "storage_version='newest'"),
        ("create", {"partition_by": ["id"]}, "does not take partition_by"),
        ("append", {"storage_version": "2.1"}, "storage_version belongs to"),
        ("overwrite", {"overwrite_filter": "id < 3"}, "does not take overwrite_filter"),
        ("overwrite_partitions", {}, "the modes are create, append, overwrite, upsert, add_columns"),
    ],
    ids=str,
)
def test_what_a_dataset_does_not_have_is_refused_before_anything_is_stored(tmp_path, mode, parameters, message):
    world = Lance(tmp_path)
    world.put_files(1)
    if mode != "create":
        world.make()
    with pytest.raises(InvalidInputError, match=message):
        world.stage(world.request(mode=mode, parameters=parameters))
    assert list((world.root / "store").rglob("*.json")) == []


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_dataset_is_of_the_version_that_was_asked_for(tmp_path, version):
    world = Lance(tmp_path)
    world.put_files(1, 10)
    parameters = {"storage_version": version, "stable_row_ids": True}
    world.commit(world.stage(world.request(mode="create", parameters=parameters)))
    world.commit(world.stage(world.request("more")))
    dataset = world.dataset
    dataset.validate()
    assert (dataset.count_rows(), dataset.data_storage_version, dataset.has_stable_row_ids) == (20, version, True)


@pytest.mark.parametrize(("asked", "warned"), [("2.1", True), ("2.2", False)])
def test_lance_chooses_the_version_of_a_dataset_without_rows_and_that_is_said(tmp_path, caplog, asked, warned):
    world = Lance(tmp_path)
    world.put_files(1, 0)
    parameters = {"storage_version": asked, "stable_row_ids": True}
    world.commit(world.stage(world.request(mode="create", parameters=parameters)))
    assert (world.dataset.data_storage_version, world.dataset.has_stable_row_ids) == ("2.2", True)
    assert ("with the storage version 2.2 instead of 2.1" in caplog.text) is warned


SAID = {
    "new and required": "'more' is new and required",
    "dropped": "'kind' was dropped or renamed",
    "renamed": "'kind' was dropped or renamed",
    "another type": "'value' was double and is float",
}


def require_a_new_column(dataset):
    dataset.add_columns({"more": "id + 1"})
    lance.dataset(dataset.uri).alter_columns({"path": "more", "nullable": False})


@pytest.mark.parametrize("change", ["new and required", "dropped", "renamed", "another type"])
def test_rows_that_were_staged_before_the_columns_changed_are_not_read_as_other_columns(tmp_path, change):
    world = Lance(tmp_path)
    world.put_files(2)
    world.make()
    attempt = world.stage()
    changes = {
        "new and required": require_a_new_column,
        "dropped": lambda dataset: dataset.drop_columns(["kind"]),
        "renamed": lambda dataset: dataset.alter_columns({"path": "kind", "name": "sort"}),
        "another type": lambda dataset: dataset.alter_columns({"path": "value", "data_type": pa.float32()}),
    }
    changes[change](world.dataset)
    before = world.read()
    with pytest.raises(SchemaMismatchError, match=rf"(?s)columns of the Lance dataset .* were changed.*column .*{SAID[change]}"):
        world.commit(attempt)
    assert world.read() == before
