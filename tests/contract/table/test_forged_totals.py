"""Documents in the store that do not agree with each other, or with the table: no row lands twice, and none is left out (I2, I15).

The forger can write to the checkpoint store, and to nothing else: each document has a valid checksum, and every file that is named
was written by an attempt of the very write.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
from contract.table.both import BEFORE, HALF, UPSERT, Iceberg, Lance, StableLance, kinds, marked, of
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.forging import forge, forge_plan, forge_seal, forge_staged, refused
from support.growing import grow, growing_table, run
from support.growing import request as growing_request

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Commit
from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
from airflow_ckpt_provider.exceptions import CorruptObjectError, RestartRefusedError, RolledBackError, RowCountError
from airflow_ckpt_provider.sources import Files, IcebergTable, LanceDataset
from airflow_ckpt_provider.write import commits, groups
from airflow_ckpt_provider.write.cleanup import clean

BY_KIND = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind"))


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    world = request.param(tmp_path)
    world.put_files()
    world.make()
    return world


@pytest.fixture
def dataset(tmp_path):
    world = Lance(tmp_path)
    world.put_files()
    world.make()
    return world


def forge_sealed(checkpoint, **changes):
    forge(checkpoint.store, checkpoint.paths.seal(), checkpoint.sealed(), **changes)


def take(checkpoint, name):
    """Remove an object, and give what puts it back."""
    path = Path(checkpoint.store.location.path, name)
    content = path.read_bytes()
    path.unlink()
    return lambda: path.write_bytes(content)


def remove(checkpoint, *names):
    for name in names:
        Path(checkpoint.store.location.path, name).unlink()


def staged_twice(world, checkpoint):
    """The record of a split, and that of a second attempt, which wrote the split too and published nothing."""
    name = checkpoint.paths.staged("000000")
    (record,) = checkpoint.staged(["000000"])
    back = [take(checkpoint, name), take(checkpoint, checkpoint.paths.seal())]
    attempt = world.attempt()
    found = attempt.next_round()
    attempt.begin("none", 2).run(found.missing[0], "0")
    (again,) = checkpoint.staged(["000000"])
    for put in back:
        put()
    return record, again


def both_of(record, again):
    """A manifest that lists the files of two, where it is the record itself that lists them."""
    if "fragments" not in record.manifest:
        return record.manifest
    return record.manifest | {"fragments": [*record.manifest["fragments"], *again.manifest["fragments"]]}


def two_attempts_together(world):
    """A write whose seal has the rows of both attempts at one of its splits; and the name of a file of the second."""
    checkpoint = world.stage().checkpoint
    record, again = staged_twice(world, checkpoint)
    both = both_of(record, again)
    forge_staged(checkpoint, "000000", files=(*record.files, *again.files), rows=200, manifest=both)
    manifests = [one for one in checkpoint.sealed().manifests if one != record.manifest]
    more = [both] if both is not record.manifest else [record.manifest, again.manifest]
    forge_sealed(checkpoint, rows=500, files=5, manifests=(*manifests, *more))
    return checkpoint, again.files[0].path.rpartition("/")[2]


def test_rows_of_two_attempts_at_one_split_do_not_land_together(world):
    refused(world, *two_attempts_together(world))


def test_a_retry_of_the_stage_does_not_hand_over_what_names_files_that_do_not_belong_to_it(world):
    """A commit believes what its reference vouches for, and the reference is made of what is in the store by then."""
    _, file = two_attempts_together(world)
    with pytest.raises(CorruptObjectError, match=file):
        world.stage()


def test_a_retry_of_the_stage_does_not_hand_over_a_seal_that_leaves_out_what_is_staged(world):
    checkpoint = world.stage().checkpoint
    seal = checkpoint.sealed()
    if len(seal.manifests) > 1:
        forge_sealed(checkpoint, manifests=seal.manifests[1:])
    else:
        kept = dict(seal.manifests[0])
        forge_sealed(checkpoint, manifests=(kept | {"fragments": kept["fragments"][1:]},))
    with pytest.raises(CorruptObjectError, match="The store was altered"):
        world.stage()


def test_what_the_stage_has_handed_over_is_committed_without_another_look_at_its_listing(world):
    attempt = world.stage()
    checkpoint = attempt.checkpoint
    checkpoint.vouched = checkpoint.sealed().digest
    (settled,) = world.commit(attempt)
    assert settled.landed_now
    assert world.read() == of(range(400), BEFORE)


def test_rows_of_one_split_do_not_land_in_the_place_of_another(world):
    checkpoint = world.stage().checkpoint
    record, again = staged_twice(world, checkpoint)
    (other,) = checkpoint.staged(["000001"])
    forge_staged(checkpoint, "000001", files=again.files, manifest=again.manifest, bytes=again.bytes)
    forge_seal(checkpoint, lambda manifest: again.manifest if manifest == other.manifest else manifest)
    refused(world, checkpoint, again.files[0].path.rpartition("/")[2])
    assert record.files != again.files


def test_what_is_sealed_twice_does_not_land_twice(world):
    checkpoint = world.stage().checkpoint
    manifests = checkpoint.sealed().manifests
    forge_sealed(checkpoint, rows=800, files=8, manifests=manifests * 2)
    refused(world, checkpoint, "[Tt]he store was altered")
    forge_sealed(checkpoint, rows=400, files=4, manifests=manifests)
    world.commit(world.attempt())
    assert world.read() == of(range(400), BEFORE)


def test_a_file_that_a_fragment_record_lists_twice_does_not_land_twice(dataset):
    checkpoint = dataset.stage().checkpoint
    (record,) = checkpoint.staged(["000000"])
    twice = record.manifest | {"fragments": record.manifest["fragments"] * 2}
    forge_staged(checkpoint, "000000", rows=200, manifest=twice)
    manifests = (
        dataset.as_table()
        .state()
        .storage.merged_manifests(StagedWrite(checkpoint), [one.manifest for one in all_of(checkpoint)], "")
    )
    forge_sealed(checkpoint, rows=500, manifests=tuple(manifests))
    refused(dataset, checkpoint, record.files[0].path.rpartition("/")[2])


def all_of(checkpoint):
    return checkpoint.staged([split.id for split in checkpoint.plan().splits])


@pytest.mark.parametrize("split", ["with the same id", "with the same work"])
def test_a_split_that_is_planned_twice_does_not_land_twice(world, split):
    checkpoint = world.stage(splits=1).checkpoint
    plan = checkpoint.plan()
    again = plan.splits[0] if split == "with the same id" else msgspec.structs.replace(plan.splits[0], id="000009")
    forge_plan(checkpoint, splits=(*plan.splits, again))
    with pytest.raises(CorruptObjectError, match="twice"):
        world.stage()
    assert world.read() == of(BEFORE)


def test_a_part_of_a_file_that_two_splits_read_does_not_land_twice(world):
    for path in world.input.iterdir():
        path.unlink()
    world.put_files(1, 400, row_group=100)
    request = world.request(source=Files(f"{world.input}/0.parquet", max_split_bytes=1))
    checkpoint = world.stage(request, splits=1).checkpoint
    first, *others = checkpoint.plan().splits
    ((file, begin, end),) = first.read["slices"]
    wider = msgspec.structs.replace(first, id="000009", read={"slices": [[file, begin, end + 1]]})
    forge_plan(checkpoint, splits=(first, *others, wider))
    with pytest.raises(CorruptObjectError, match=r"0\.parquet of .* twice"):
        world.stage(request)


@pytest.mark.parametrize("source", [Iceberg, Lance], ids=["iceberg", "lance"])
def test_a_plan_leaves_out_nothing_that_the_pinned_table_has(world, tmp_path, source):
    read = source(tmp_path / "source")
    read.make()
    read.add()
    wanted = IcebergTable("shop.orders", max_split_bytes=1) if source is Iceberg else LanceDataset(read.uri, max_split_bytes=1)
    request = world.request(source=wanted, options=read.source_options)
    checkpoint = world.stage(request, splits=1).checkpoint
    forge_plan(checkpoint, splits=checkpoint.plan().splits[:1])
    with pytest.raises(CorruptObjectError, match="leaves out"):
        world.stage(request)


@pytest.mark.parametrize(
    "sealed", [{"manifests": 3, "rows": 300, "files": 3}, {"manifests": 0, "rows": 0, "files": 0}, {"rows": 0}]
)
def test_what_is_staged_is_not_left_out(world, sealed):
    checkpoint = world.stage().checkpoint
    manifests = [one.manifest for one in all_of(checkpoint)][: sealed.get("manifests")]
    gathered = tuple(world.as_table().state().storage.merged_manifests(StagedWrite(checkpoint), manifests, ""))
    forge_sealed(checkpoint, **(sealed | {"manifests": gathered}))
    refused(world, checkpoint, "The store was altered")


def test_a_write_with_rows_is_not_reported_as_one_without(world):
    """The record of a commit that made no snapshot, beside a seal that says that there was nothing."""
    checkpoint = world.stage().checkpoint
    group = groups.Group(
        id=groups.group_id_of((checkpoint.member,)), members=(checkpoint.member,), stream="s", bound_at=now(), horizon=0
    )
    forge(world.store, checkpoint.paths.group, group)
    forge(world.store, checkpoint.paths.commit, Commit(group=group.id, commit_id=None, committed_at=now(), rows=0))
    forge_sealed(checkpoint, rows=0, files=0, manifests=())
    refused(world, checkpoint, "The store was altered")


# -- what is said of manifests and fragments --------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [4, 20], ids=["as staged", "merged"])
@pytest.mark.parametrize("what", ["no files", "no rows", "another partition", "no base64", "no bounds"])
def test_a_manifest_lands_with_what_it_says_of_itself(tmp_path, many, what):
    """Readers leave out a manifest whose counts or bounds say that it has nothing for them."""
    world = Iceberg(tmp_path)
    world.put_files(many, 20)
    world.create_table(spec=BY_KIND)
    checkpoint = world.stage().checkpoint
    assert len(checkpoint.sealed().manifests) == (4 if many == 4 else 1)
    elsewhere = base64.b64encode(b"zzz").decode()
    forged = {
        "no files": {"files": 0},
        "no rows": {"rows": 0},
        "another partition": {"summaries": [[False, False, elsewhere, elsewhere]], "partitions": ["kind=zzz"]},
        "no base64": {"summaries": [[False, False, "!", "!"]]},
        "no bounds": {"summaries": []},
    }[what]
    forge_seal(checkpoint, lambda manifest: manifest | forged)
    refused(world, checkpoint, "does not say of the files")


def test_a_split_is_not_merged_with_what_a_forged_record_says_of_it(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files(20, 20)
    world.create_table(spec=BY_KIND)
    checkpoint = world.stage(splits=19).checkpoint
    (record,) = checkpoint.staged(["000003"])
    forge_staged(checkpoint, "000003", manifest=record.manifest | {"summaries": [[False, False, None, None]]})
    with pytest.raises(RowCountError, match="says something else of its files"):
        world.stage()


@pytest.mark.parametrize("fields", [[0, 2, 1, 3], [0], [0, 1, 2, 3, 3], [0, 1, 2, 7]])
def test_a_column_is_not_read_as_another_one(dataset, fields):
    """Lance takes a file for whatever columns it is told."""
    checkpoint = dataset.stage().checkpoint
    forge_seal(checkpoint, lambda manifest: manifest | {"fields": fields})
    for record in all_of(checkpoint):
        forge_staged(checkpoint, record.split, manifest=record.manifest | {"fields": fields})
    refused(dataset, checkpoint, "has written '")


def test_a_fragment_has_as_many_rows_as_its_record_says(dataset):
    checkpoint = dataset.stage().checkpoint
    forge_seal(checkpoint, lambda manifest: manifest | {"fragments": [[name, 50, size] for name, _, size in manifest["fragments"]]})
    forge_sealed(checkpoint, rows=200)
    refused(dataset, checkpoint, "has written '")


@pytest.mark.parametrize("rows", [50, 150])
def test_a_fragment_has_as_many_rows_as_its_file_whatever_all_records_say(dataset, rows):
    checkpoint = dataset.stage().checkpoint

    def counted(manifest):
        return manifest | {"fragments": [[name, rows, size] for name, _, size in manifest["fragments"]]}

    for record in all_of(checkpoint):
        forge_staged(checkpoint, record.split, rows=rows, manifest=counted(record.manifest))
    forge_seal(checkpoint, counted)
    forge_sealed(checkpoint, rows=4 * rows)
    refused(dataset, checkpoint, rf"ckpt-.*has {rows} rows, and the file has 100")


def test_a_record_that_miscounts_its_file_is_not_sealed(dataset):
    checkpoint = dataset.stage(splits=3).checkpoint
    (record,) = checkpoint.staged(["000000"])
    ((name, _, size),) = record.manifest["fragments"]
    forge_staged(checkpoint, "000000", rows=50, manifest=record.manifest | {"fragments": [[name, 50, size]]})
    with pytest.raises(CorruptObjectError, match="has 50 rows, and the file has 100"):
        dataset.stage()
    assert checkpoint.sealed() is None


@pytest.mark.parametrize("kind", [Lance, StableLance], ids=["lance", "lance with stable row ids"])
def test_an_upsert_still_lands_the_files_that_it_takes_as_they_are(tmp_path, kind):
    world = kind(tmp_path)
    world.put_files()
    world.make(HALF)
    for way in ({}, {"when_not_matched": "ignore"}):
        request = world.request(f"orders {way}", mode="upsert", parameters=UPSERT["parameters"] | way, transform=marked)
        world.commit(world.stage(request))
    assert kinds(world) == ({*range(400)}, {*range(400, 600)})


def matched(world):
    """A sealed upsert of half of the rows, and the record of a split that has found some of them."""
    checkpoint = world.stage(world.request(**UPSERT, transform=marked)).checkpoint
    plan = checkpoint.plan(checkpoint.sealed().round)
    records = checkpoint.staged([split.id for split in plan.splits if split.task == "match"])
    return checkpoint, next(record for record in records if record.intermediate)


def test_a_rewritten_file_does_not_stay_beside_what_takes_its_place(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files()
    world.make(HALF)
    checkpoint, record = matched(world)
    forge_staged(checkpoint, record.split, replaces=())
    refused(world, checkpoint, "does not take its place")


@pytest.mark.parametrize("forged", [None, {"num_deleted_rows": 7}, {"read_version": 9}, {"id": 9}], ids=str)
@pytest.mark.parametrize("kind", [Lance, StableLance], ids=["lance", "lance with stable row ids"])
def test_rows_that_an_upsert_deletes_are_those_of_its_deletion_file(tmp_path, kind, forged):
    world = kind(tmp_path)
    world.put_files()
    world.make(HALF)
    checkpoint, record = matched(world)
    changed = {} if forged is None else {"deletions": record.intermediate["deletions"] | forged}
    others = {name: value for name, value in record.intermediate.items() if name != "deletions"}
    forge_staged(checkpoint, record.split, intermediate=others | changed)
    refused(world, checkpoint, "7 rows of fragment" if forged == {"num_deleted_rows": 7} else "has written '.*_deletions")


@pytest.mark.parametrize(
    "change", [{"manifest": {}}, {"manifest": {"files": "x"}}, {"intermediate": {"kind": "lance_match", "deletions": 7}}], ids=str
)
def test_a_record_of_no_known_shape_is_an_error_that_says_so(world, change):
    checkpoint = world.stage().checkpoint
    forge_staged(checkpoint, "000000", **change)
    refused(world, checkpoint, r"cannot be read|has not the shape|has written '")


@pytest.mark.parametrize("read", [{}, {"slices": 7}, {"slices": [["x"]]}], ids=str)
def test_a_split_of_no_known_shape_is_an_error_that_says_so(world, read):
    checkpoint = world.stage(splits=1).checkpoint
    first, *others = checkpoint.plan().splits
    forge_plan(checkpoint, splits=(msgspec.structs.replace(first, read=read), *others))
    with pytest.raises(CorruptObjectError, match="cannot be read"):
        world.stage()


# -- what has landed, and how far was read -----------------------------------------------------------------------------------


@pytest.mark.parametrize("forged", ["its group is gone", "its commit made nothing"])
def test_rows_that_landed_do_not_land_again_in_a_later_generation(world, forged):
    """The tombstone of a generation that is committed, and nothing in the store that says so any more."""
    world.commit(world.stage())
    first = world.stage().checkpoint
    first.discard("planted")
    if forged == "its group is gone":
        remove(first, first.paths.group, first.paths.commit)
    else:
        forge(world.store, first.paths.commit, first.committed(), commit_id=None)
    with pytest.raises(RestartRefusedError, match="has landed"):
        world.stage()
    assert world.read() == of(range(400), BEFORE)


def test_rows_that_land_meanwhile_do_not_land_again_in_a_later_generation(world):
    """A commit of a discarded generation was under way, and landed after the next one was opened; its group is lost then."""
    first = world.stage().checkpoint
    back = take(first, first.paths.seal())
    first.discard("planted")
    second = world.stage().checkpoint
    assert second.header.generation == 2
    back()
    remove(first, first.paths.discard)
    second_header = take(second, second.paths.header)
    groups.commit([first], world.as_table())
    second_header()
    first.discard("planted")
    remove(first, first.paths.group, first.paths.commit)
    with pytest.raises(RestartRefusedError, match="has landed"):
        groups.commit([second], world.as_table())
    assert world.read() == of(range(400), BEFORE)


def test_a_clean_up_does_not_take_what_only_the_store_calls_committed(world):
    checkpoint = world.stage().checkpoint
    group = groups.Group(
        id=groups.group_id_of((checkpoint.member,)), members=(checkpoint.member,), stream="s", bound_at=now(), horizon=0
    )
    forge(world.store, checkpoint.paths.group, group)
    forge(world.store, checkpoint.paths.commit, Commit(group=group.id, commit_id=5, committed_at=now(), rows=400))
    for record in all_of(checkpoint):
        forge_staged(checkpoint, record.split, files=(), manifest=None, rows=0)
    before = world.files_on_disk()
    (cleaned,) = clean(checkpoint, lambda _: world.as_table())
    assert "does not show it any more" in cleaned.left
    assert world.files_on_disk() == before
    with pytest.raises(RolledBackError):
        commits.verify(checkpoint, checkpoint.committed(), world.as_table())


@pytest.fixture
def source(tmp_path):
    return growing_table(tmp_path / "source")


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def target(request, tmp_path, source):
    world = request.param(tmp_path / "target")
    world.make()
    return world


def test_a_write_does_not_move_how_far_another_task_has_read(target, source):
    run(target, source, "first")
    grow(source, range(2, 5))
    reading = target.stage(growing_request(target, source, "second"))
    target.put_files(1, 2)
    other = target.stage(target.request("other")).checkpoint
    forge_plan(other, increment=reading.checkpoint.plan().increment)
    refused(target, other, "it reads no increments")
    target.commit(reading)
    assert [row["id"] for row in target.read()] == [*range(5), *BEFORE]


@pytest.mark.parametrize("forged", ["gone", "of another"])
def test_an_increment_is_not_committed_without_its_mark(target, source, forged):
    checkpoint = target.stage(growing_request(target, source, "first")).checkpoint
    another = msgspec.structs.replace(checkpoint.plan().increment, consumer="0" * 16)
    forge_plan(checkpoint, increment={"gone": None, "of another": another}[forged])
    refused(target, checkpoint, "does not say how far")


def test_an_increment_is_staged_with_all_that_was_appended(target, source):
    run(target, source, "first")
    for ids in (range(2, 5), range(5, 7)):
        grow(source, ids)
    checkpoint = target.stage(growing_request(target, source, "second"), splits=1).checkpoint
    plan = checkpoint.plan()
    forge_plan(checkpoint, splits=plan.splits[:1])
    with pytest.raises(CorruptObjectError, match="leaves out"):
        target.stage(growing_request(target, source, "second"))
    forge_plan(checkpoint, splits=plan.splits, increment=msgspec.structs.replace(plan.increment, end=plan.increment.begin))
    with pytest.raises(CorruptObjectError, match="up to where it says"):
        target.stage(growing_request(target, source, "second"))
    forge_plan(checkpoint, splits=plan.splits, increment=plan.increment)
    target.commit(target.stage(growing_request(target, source, "second")))
    assert [row["id"] for row in target.read()] == [*range(7), *BEFORE]
