"""Where nothing landed there is nothing to protect: a stage that runs again looks at its source again. In either format.

Late data is read by a reader that is not ours, and is there once, whoever else commits or looks at the same moment.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest
from contract.table.both import BEFORE, UPSERT, Iceberg, Lance, nothing, of, only_even
from protocol.crash.maintenance import forget_the_record
from support.foreign import options_of
from support.growing import grow, growing_table, request
from support.world import rows

from airflow_ckpt_provider.exceptions import DiscardedError, RestartRefusedError
from airflow_ckpt_provider.sources import Files, LanceDataset, SparkDataFrame
from airflow_ckpt_provider.write import commits


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    """A world with a table in which somebody's rows are, and no input."""
    world = request.param(tmp_path)
    world.make()
    return world


def committed(world, **changes):
    (settled,) = world.commit(world.stage(world.request(**changes)))
    return settled


def test_files_that_come_after_an_empty_commit_are_written_when_the_stage_runs_again(world):
    before = world.commits()
    assert committed(world).commit.commit_id is None
    world.put_files(2)
    assert committed(world).landed_now
    assert world.read() == of(range(200), BEFORE)
    assert world.commits() == before + 1
    # From now on it has landed.
    world.put_files(3)
    assert not committed(world).landed_now
    assert world.read() == of(range(200), BEFORE)


def test_files_that_come_after_an_empty_seal_are_written_when_the_stage_runs_again(world):
    world.stage()
    world.put_files(1)
    committed(world)
    assert world.read() == of(range(100), BEFORE)


def test_files_that_come_after_an_empty_plan_are_written_when_the_stage_runs_again(world):
    attempt = world.attempt()
    assert attempt.next_round() is None
    world.put_files(1)
    committed(world)
    assert world.read() == of(range(100), BEFORE)


def test_as_long_as_nothing_comes_the_empty_commit_is_reported(world):
    first = world.stage()
    world.commit(first)
    again = world.stage()
    assert again.checkpoint.header == first.checkpoint.header
    assert again.commit.commit_id is None
    assert again.news() is None


def test_files_of_which_no_row_was_kept_are_not_read_again_but_others_are(world):
    world.put_files(1)
    first = world.stage(world.request(transform=nothing))
    assert world.commit(first)[0].commit.commit_id is None
    assert world.stage(world.request(transform=nothing)).checkpoint.header == first.checkpoint.header
    pq.write_table(rows(100, 100), world.input / "1.parquet")
    again = world.stage(world.request(transform=nothing))
    assert again.looked_again == "1 file matches now that was not read: 1.parquet"
    assert again.checkpoint.header.generation == 2


def test_a_file_without_a_row_group_is_no_news(world):
    schema = rows(0, 1).schema
    with pq.ParquetWriter(world.input / "empty.parquet", schema):
        pass
    committed(world)
    assert world.stage().checkpoint.header.generation == 1


def test_an_overwrite_by_nothing_has_landed_and_is_not_looked_at_again(world):
    assert committed(world, mode="overwrite").commit.commit_id is not None
    assert world.read() == []
    world.put_files(1)
    again = world.stage(world.request(mode="overwrite"))
    assert again.checkpoint.header.generation == 1
    assert again.commit.commit_id is not None
    assert again.news() == "1 file matches now that was not read: 0.parquet"
    # As the warning advises.
    committed(world, mode="overwrite", on_rerun="replace")
    assert world.read() == of(range(100))


def test_what_came_since_a_write_landed_is_named_and_nothing_else_is(world):
    world.put_files(2)
    committed(world)
    assert world.stage().news() is None
    world.put_files(5)
    pq.write_table(rows(0, 50), world.input / "1.parquet")
    (world.input / "0.parquet").unlink()
    assert world.stage().news() == (
        "4 files match now that were not read: 1.parquet (written again), 2.parquet, 3.parquet, 4.parquet"
    )
    assert world.read() == of(range(200), BEFORE)


def test_folders_are_named_and_long_lists_are_cut(world):
    for day in range(12):
        (world.input / f"day={day:02}").mkdir()
    source = Files(f"{world.input}/*/*.parquet")
    world.put_files(1)
    (world.input / "0.parquet").rename(world.input / "day=00" / "0.parquet")
    committed(world, source=source)
    for day in range(1, 12):
        pq.write_table(rows(day * 100, 100), world.input / f"day={day:02}" / "0.parquet")
    news = world.stage(world.request(source=source)).news()
    assert news.startswith("11 files match now that were not read: day=01/0.parquet, ")
    assert news.endswith("day=10/0.parquet, …")


@pytest.mark.parametrize("late", [range(200)], ids=str)
def test_two_stages_that_look_again_at_once_write_it_once(world, late):
    committed(world)
    world.put_files(2)
    with ThreadPoolExecutor(2) as pool:
        attempts = list(pool.map(lambda _: world.stage(), range(2)))
    assert {attempt.checkpoint.header.generation for attempt in attempts} == {2}
    for attempt in attempts:
        world.commit(attempt)
    assert world.read() == of(late, BEFORE)


def test_a_commit_of_the_empty_generation_at_the_same_time_lands_nothing_or_is_refused(world):
    old = world.stage()
    world.put_files(1)
    new = world.stage()
    assert new.checkpoint.header.generation == 2
    with pytest.raises(DiscardedError, match="reference that the newer"):
        world.commit(old)
    world.commit(new)
    assert world.read() == of(range(100), BEFORE)


def test_a_begun_commit_that_lands_nothing_is_settled_before_the_stage_looks_again(world):
    first = world.stage()
    world.commit(first)
    # Killed before it was recorded.
    forget_the_record(world, first.checkpoint)
    world.put_files(1)
    new = world.stage()
    assert new.checkpoint.header.generation == 2
    assert first.checkpoint.committed().commit_id is None
    assert world.commit(first)[0].commit.commit_id is None
    world.commit(new)
    assert world.read() == of(range(100), BEFORE)


def test_a_begun_commit_that_lands_rows_of_others_is_left_to_its_own_retry(world):
    empty = world.stage(world.request("empty", source=Files(f"{world.input}/late/*.parquet")))
    world.put_files(1)
    other = world.stage(world.request("other"))
    world.commit(empty, other)
    assert empty.checkpoint.committed().commit_id is not None
    (world.input / "late").mkdir()
    pq.write_table(rows(500, 10), world.input / "late" / "0.parquet")
    again = world.stage(world.request("empty", source=Files(f"{world.input}/late/*.parquet")))
    # It landed together with the other.
    assert again.checkpoint.header.generation == 1
    assert again.news() == "1 file matches now that was not read: 0.parquet"
    assert world.read() == of(range(100), BEFORE)


def test_late_data_lands_though_the_history_since_the_empty_commit_is_gone(world):
    committed(world)
    world.add()
    world.forget()
    world.put_files(1)
    committed(world)
    assert [row["id"] for row in world.read()][:100] == list(range(100))


def test_an_upsert_whose_rows_are_all_there_has_input_and_is_not_written_again(tmp_path):
    # In Lance, rows that did not change are replaced as well.
    world = Iceberg(tmp_path)
    world.make()
    world.put_files(1)
    committed(world, **UPSERT)
    again = world.stage(world.request("again", **UPSERT))
    seal = again.checkpoint.sealed()
    assert (seal.rows, seal.is_empty) == (0, False)
    assert world.commit(again)[0].commit.commit_id is None
    assert world.stage(world.request("again", **UPSERT)).checkpoint.header.generation == 1


def test_where_nothing_landed_a_restart_with_other_code_is_not_refused(world):
    world.put_files(1)
    committed(world, transform=nothing)
    committed(world, transform=only_even, on_change="restart")
    assert world.read() == of(*(range(even, even + 1) for even in range(0, 100, 2)), BEFORE)
    with pytest.raises(RestartRefusedError):
        world.stage(world.request(transform=nothing, on_change="restart"))


def test_a_source_that_cannot_be_listed_any_more_does_not_make_the_stage_fail(world):
    source = Files(str(world.input))
    first = world.stage(world.request(source=source))
    world.commit(first)
    world.input.rmdir()
    again = world.stage(world.request(source=source))
    assert again.commit.commit_id is None
    assert again.checkpoint.header == first.checkpoint.header


def frame(spark):
    return spark.range(0)


def test_a_source_that_only_spark_can_look_at_is_written_again_once_its_commit_has_landed_nothing(world):
    request = world.request(source=SparkDataFrame(frame, "id", buckets=2))
    attempt = world.attempt(request)
    missing = attempt.next_round().missing
    work = attempt.begin("none", 1)
    for split in missing:
        work.stage(split.id, iter(()), "0")
    attempt.seal()
    # Sealed is handed on without Spark.
    assert world.attempt(request).checkpoint.header.generation == 1
    assert world.commit(attempt)[0].commit.commit_id is None
    assert world.attempt(request).checkpoint.header.generation == 2


def test_an_increment_that_was_empty_is_read_when_there_is_one(world, tmp_path):
    growing = growing_table(tmp_path / "growing")
    world.commit(world.stage(request(world, growing, "first")))
    assert world.commit(world.stage(request(world, growing, "second")))[0].commit.commit_id is None
    grow(growing, range(2, 5))
    again = world.stage(request(world, growing, "second"))
    world.commit(again)
    assert [row["id"] for row in world.read()] == [*range(5), *BEFORE]
    # What comes now is the next run's.
    grow(growing, range(5, 6))
    assert world.stage(request(world, growing, "second")).news() is None


def test_another_snapshot_of_a_table_that_was_read_is_news_and_a_compaction_of_it_is_not(tmp_path):
    world, read = Iceberg(tmp_path / "target"), Iceberg(tmp_path / "source")
    world.make(ids=range(0))
    read.make()
    request = {"source": read.as_source, "options": options_of(read)}
    committed(world, **request)
    then = read.table().current_snapshot().snapshot_id
    read.compact()
    assert world.stage(world.request(**request)).news() is None
    read.add()
    now = read.table().current_snapshot().snapshot_id
    assert world.stage(world.request(**request)).news() == f"shop.orders is at snapshot {now} now, and snapshot {then} was read"


def test_another_version_of_a_dataset_that_was_read_is_news(tmp_path):
    world, read = Lance(tmp_path / "target"), Lance(tmp_path / "source")
    world.make()
    read.make()
    committed(world, source=read.as_source)
    assert world.stage(world.request(source=read.as_source)).news() is None
    assert world.stage(world.request("pinned", source=LanceDataset(read.uri, version=1))).news() is None
    read.add()
    news = world.stage(world.request(source=read.as_source)).news()
    assert news == f"file://{read.uri} is at version 2 now, and version 1 was read"


def test_what_is_sealed_with_rows_is_handed_on_whatever_comes_later(world):
    world.put_files(1)
    first = world.stage()
    world.put_files(2)
    again = world.stage()
    assert again.checkpoint.header == first.checkpoint.header
    assert commits.landed(again.checkpoint, world.as_table()) is None
