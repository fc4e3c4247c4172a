"""Records in the store that name files of others: over an Iceberg table and a Lance dataset, nothing of them lands (I15).

The forger can write to the checkpoint store, and to nothing else. Each document that is forged has a valid checksum.
"""

from __future__ import annotations

import base64
import json
import shutil

import msgspec
import pytest
from contract.table.both import BEFORE, HALF, REPLACE, UPSERT, Iceberg, Lance, kinds, marked, of, only_even
from support.forging import forge, forge_plan, forge_seal, forge_staged, refused

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.sources import Files, IcebergTable
from airflow_ckpt_provider.sources.files.listing import InputFiles
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.cleanup import clean


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    world = request.param(tmp_path)
    world.put_files()
    world.make()
    return world


@pytest.fixture
def iceberg(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files()
    world.make()
    return world


@pytest.fixture
def dataset(tmp_path):
    world = Lance(tmp_path)
    world.put_files()
    world.make()
    return world


def test_what_was_not_touched_lands(world):
    world.commit(world.stage())
    assert world.read() == of(range(400), BEFORE)


def test_the_staged_files_of_another_key_do_not_land_under_this_one(world):
    mine = world.stage().checkpoint
    theirs = world.stage(world.request("theirs", transform=only_even)).checkpoint
    forge(world.store, mine.paths.seal(), theirs.sealed())
    for split in theirs.plan().splits:
        (record,) = theirs.staged([split.id])
        forge(world.store, mine.paths.staged(split.id), record)
    refused(world, mine, f"ckpt-{theirs.paths.key_hash}-g1")


def test_the_staged_files_of_an_earlier_generation_do_not_land_again(world):
    world.commit(world.stage())
    again = world.stage(world.request(**REPLACE, transform=only_even)).checkpoint
    first = groups.Checkpoint.at(world.store, again.key, 1)
    forge(world.store, again.paths.seal(), first.sealed())
    for split in first.plan().splits:
        (record,) = first.staged([split.id])
        forge(world.store, again.paths.staged(split.id), record)
    refused(world, again, f"ckpt-{first.paths.key_hash}-g1")


def test_files_of_an_attempt_that_is_not_recorded_do_not_land(world):
    checkpoint = world.stage().checkpoint
    for attempt in checkpoint.attempts():
        (world.root / "store" / checkpoint.paths.attempt(attempt.id)).unlink()
    refused(world, checkpoint, "No attempt of it that is recorded")


def test_a_replacement_removes_no_file_that_the_earlier_generation_has_not_written(world):
    world.commit(world.stage())
    victim = StagedFile(f"file://{max(world.referenced_files()).removeprefix('file://')}", 1)
    world.commit(world.stage(world.request("theirs")))
    theirs = groups.Checkpoint.latest(world.store, world.request("theirs").key)
    again = world.stage(world.request(**REPLACE, transform=only_even)).checkpoint
    first = groups.Checkpoint.at(world.store, again.key, 1)
    (record,) = theirs.staged(["000000"])
    forge_staged(first, "000001", files=(*record.files, victim))
    refused(world, again, f"ckpt-{theirs.paths.key_hash}-g1")


# -- Iceberg ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    ["file:///etc/passwd", "{other}", "{location}/metadata/../../../elsewhere/{name}", "{location}/metadata/%2e%2e/{name}",
     "s3://bucket/{name}", "{location}x/metadata/{name}", "{other folder}/{name}"],
)  # fmt: skip
def test_a_manifest_that_is_not_the_writes_own_does_not_land(iceberg, place):
    checkpoint = iceberg.stage().checkpoint
    other = iceberg.create_table("shop.salaries")
    other.append(iceberg.table().scan().to_arrow())
    (listed,) = iceberg.table("shop.salaries").current_snapshot().manifests(other.io)
    name = checkpoint.sealed().manifests[0]["path"].rpartition("/")[2]
    folder = iceberg.root / "elsewhere"
    folder.mkdir()
    own = iceberg.table().location()
    shutil.copy(checkpoint.sealed().manifests[0]["path"].removeprefix("file://"), folder / name)
    shutil.copytree(folder, own.removeprefix("file://") + "x/metadata")
    path = place.format_map({
        "other": listed.manifest_path, "location": own, "name": name, "other folder": f"file://{folder}",
    })  # fmt: skip
    forge_seal(checkpoint, lambda manifest: manifest | {"path": path})
    refused(iceberg, checkpoint, "has written '")


def test_data_files_elsewhere_and_manifests_that_list_others_do_not_land(iceberg):
    checkpoint = iceberg.stage().checkpoint
    (record,) = checkpoint.staged(["000000"])
    name = record.files[0].path.rpartition("/")[2]
    forge_staged(checkpoint, "000000", files=(StagedFile(f"file:///tmp/{name}", record.files[0].bytes),))
    refused(iceberg, checkpoint, f"file:///tmp/{name}")
    # The manifest lists what no record names.
    (other,) = checkpoint.staged(["000001"])
    forge_staged(checkpoint, "000000", files=other.files)
    refused(iceberg, checkpoint, other.files[0].path.rpartition("/")[2])
    more = record.files[0].path.replace("00000.parquet", "1.parquet")
    shutil.copy(record.files[0].path.removeprefix("file://"), more.removeprefix("file://"))
    forge_staged(checkpoint, "000000", files=(*record.files, StagedFile(more, record.files[0].bytes)))
    forge(iceberg.store, checkpoint.paths.seal(), checkpoint.sealed(), files=5)
    refused(iceberg, checkpoint, "list 4 files, and its splits have staged 5")


@pytest.mark.parametrize("folder", ["data/../../elsewhere", "data/%2e%2e/%2e%2e/elsewhere", "data/..\\elsewhere", "data//.."])
def test_a_data_file_that_hides_a_step_upwards_among_others_does_not_land(iceberg, folder):
    """The others lie where they should, as very many of a write do."""
    checkpoint = iceberg.stage().checkpoint
    (record,) = checkpoint.staged(["000000"])
    (good,) = record.files
    place, _, name = good.path.rpartition("/")
    path = f"{place.removesuffix('/data')}/{folder}/{name}"
    forge_staged(checkpoint, "000000", files=(good, StagedFile(path, good.bytes)))
    refused(iceberg, checkpoint, "has written '")
    odd = f"{place}/%2e%2e%2f{name}"
    forge_staged(checkpoint, "000000", files=(good, StagedFile(odd, good.bytes)))
    refused(iceberg, checkpoint, "has written '")


def test_files_land_in_whatever_order_their_manifests_list_them(iceberg):
    checkpoint = iceberg.stage().checkpoint
    forge(iceberg.store, checkpoint.paths.seal(), checkpoint.sealed(), manifests=tuple(reversed(checkpoint.sealed().manifests)))
    groups.commit([checkpoint], iceberg.as_table())
    assert iceberg.read() == of(range(400), BEFORE)


def test_entries_that_are_no_new_files_do_not_land(iceberg):
    """A manifest of the table's own, under a name of ours: its entries have a snapshot."""
    checkpoint = iceberg.stage().checkpoint
    iceberg.commit(iceberg.stage(iceberg.request("theirs")))
    (path,) = {manifest["path"] for manifest in checkpoint.sealed().manifests[:1]}
    table = iceberg.table()
    theirs = next(m for m in table.current_snapshot().manifests(table.io) if "ckpt-" not in m.manifest_path)
    shutil.copy(theirs.manifest_path.removeprefix("file://"), path.removeprefix("file://"))
    forge_seal(checkpoint, lambda manifest: manifest | ({"length": theirs.manifest_length} if manifest["path"] == path else {}))
    refused(iceberg, checkpoint, "does not say of the files")


def test_a_manifest_of_another_partition_spec_than_it_says_does_not_land(iceberg):
    checkpoint = iceberg.stage().checkpoint
    forge_seal(checkpoint, lambda manifest: manifest | {"spec_id": 7})
    refused(iceberg, checkpoint, "has written '")


def test_a_rewritten_file_is_the_one_that_the_split_was_to_rewrite(iceberg):
    request = iceberg.request(mode="overwrite", parameters={"overwrite_filter": "id < 1000002"})
    checkpoint = iceberg.stage(request).checkpoint
    iceberg.add()
    plan = checkpoint.plan(checkpoint.sealed().round)
    (boundary,) = [split for split in plan.splits if split.task == "boundary"]
    victim = max(
        entry.data_file.file_path
        for manifest in iceberg.table().current_snapshot().manifests(iceberg.table().io)
        for entry in manifest.fetch_manifest_entry(iceberg.table().io)
        if entry.data_file.file_path != boundary.read["path"]
    )
    (record,) = checkpoint.staged([boundary.id])
    forge_staged(checkpoint, boundary.id, replaces=(*record.replaces, victim))
    refused(iceberg, checkpoint, "which is not the file that it was to rewrite")


@pytest.mark.parametrize("forged", ["record", "plan"])
def test_staged_source_files_elsewhere_are_not_read(iceberg, forged):
    iceberg.drop()
    iceberg.make(HALF)
    request = iceberg.request(**UPSERT, transform=marked)
    attempt = iceberg.stage(request, splits=4 if forged == "record" else 5)
    checkpoint = attempt.checkpoint
    (record,) = checkpoint.staged(["000000"])
    elsewhere = iceberg.root / record.intermediate["path"].rpartition("/")[2]
    shutil.copy(record.intermediate["path"].removeprefix("file://"), elsewhere)
    source = record.intermediate | {"path": f"file://{elsewhere}"}
    if forged == "record":
        forge_staged(checkpoint, "000000", intermediate=source)
    else:
        forge_plan(checkpoint, 2, mode=checkpoint.plan(2).mode | {"sources": [source]})
    with pytest.raises(CorruptObjectError, match=str(elsewhere)):
        iceberg.stage(request)


def upserting(world, until):
    """An upsert of half of the rows that was killed as soon as its newest plan has splits of this task."""
    world.drop()
    world.make(HALF)
    request = world.request(**UPSERT, transform=marked)
    while True:
        checkpoint = world.stage(request, splits=1).checkpoint
        if any(split.task == until for split in checkpoint.plans()[-1].splits):
            return request, checkpoint


@pytest.mark.parametrize("forged", [{"sources": ["elsewhere"]}, {"rows": 7}, {"sources": ["elsewhere"], "rows": 7}], ids=str)
def test_rows_that_are_there_are_not_inserted_because_a_record_does_not_name_them(iceberg, forged):
    request, checkpoint = upserting(iceberg, "insert")
    matches = checkpoint.staged([split.id for split in checkpoint.plans()[-1].splits if split.task == "match"])
    record = next(record for record in matches if record.intermediate)
    forge_staged(checkpoint, record.split, intermediate=record.intermediate | forged)
    with pytest.raises(CorruptObjectError, match=r"does not say of '.*-matched\.parquet'"):
        iceberg.stage(request)
    forge_staged(checkpoint, record.split, intermediate=record.intermediate)
    iceberg.commit(iceberg.stage(request))
    assert kinds(iceberg) == ({*range(400)}, {*range(400, 600)})


#: Bounds of a staged source file without any key, and of one whose keys are at least 300.
NO_KEYS = [[None, None, False, False, False]]
FROM_300 = [[base64.b64encode((300).to_bytes(8, "little")).decode(), None, True, False, False]]


def test_a_file_of_the_table_is_matched_whatever_a_record_says_of_the_bounds_of_its_source(iceberg):
    iceberg.drop()
    iceberg.make(HALF)
    request = iceberg.request(**UPSERT, transform=marked)
    checkpoint = iceberg.stage(request, splits=4).checkpoint
    for number in range(4):
        (record,) = checkpoint.staged([f"00000{number}"])
        forge_staged(checkpoint, record.split, intermediate=record.intermediate | {"bounds": NO_KEYS})
    with pytest.raises(CorruptObjectError, match=r"does not say of '.*-source\.parquet'"):
        iceberg.stage(request)


def test_a_table_that_has_moved_is_matched_whatever_a_plan_says_of_the_bounds_of_the_source(iceberg):
    request, _ = upserting(iceberg, "insert")
    checkpoint = iceberg.stage(request).checkpoint
    number = checkpoint.sealed().round
    records = checkpoint.staged([f"00000{n}" for n in range(4)])
    sources = [record.intermediate | {"bounds": FROM_300} for record in records]
    forge_plan(checkpoint, number, mode=checkpoint.plan(number).mode | {"sources": sources})
    iceberg.add(range(5))
    refused(iceberg, checkpoint, r"does not say of '.*-source\.parquet'")


# -- Lance -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../../elsewhere.lance/data/{name}", "%2e%2e/{name}", "/etc/passwd", "file:///etc/{name}", "{theirs}", "..%2f{name}"]
)
def test_a_fragment_that_is_not_the_writes_own_does_not_land(dataset, name):
    checkpoint = dataset.stage().checkpoint
    own = checkpoint.sealed().manifests[0]["fragments"][0][0]
    theirs = dataset.dataset.get_fragments()[0].data_files()[0].path

    def elsewhere(manifest):
        first, *others = manifest["fragments"]
        return manifest | {"fragments": [[name.format(name=own, theirs=theirs), *first[1:]], *others]}

    forge_seal(checkpoint, elsewhere)
    refused(dataset, checkpoint, "has written '")


def upserted(world):
    """A sealed upsert of half of the rows."""
    world.drop()
    world.make(HALF)
    checkpoint = world.stage(world.request(**UPSERT, transform=marked)).checkpoint
    plan = checkpoint.plan(checkpoint.sealed().round)
    records = checkpoint.staged([split.id for split in plan.splits])
    return checkpoint, [record for record in records if record.intermediate and "deletions" in record.intermediate]


def test_deletions_and_sidecars_of_others_do_not_land(dataset):
    checkpoint, (record, *_) = upserted(dataset)
    deletions = record.intermediate["deletions"]
    for change, why in (({"id": 7}, "_deletions"), ({"base_id": 0}, "base_id"), ({"file_type": "bitmap"}, "file_type")):
        forge_staged(checkpoint, record.split, intermediate=record.intermediate | {"deletions": deletions | change})
        refused(dataset, checkpoint, why)
    sidecar = record.intermediate["sidecar"] | {"name": "../elsewhere/matched.arrow"}
    forge_staged(checkpoint, record.split, intermediate=record.intermediate | {"sidecar": sidecar})
    refused(dataset, checkpoint, r"elsewhere/matched\.arrow")


def test_a_record_says_nothing_of_the_files_of_a_fragment(dataset):
    checkpoint, (record, *_) = upserted(dataset)
    for place in ({"files": ["../../elsewhere.lance/data/x.lance"]}, {"fragment": {"id": 0, "files": []}}):
        forge_staged(checkpoint, record.split, intermediate=record.intermediate | place)
        refused(dataset, checkpoint, f"unknown field `{next(iter(place))}`")
    forge_staged(checkpoint, record.split, intermediate=record.intermediate)
    groups.commit([checkpoint], dataset.as_table())
    assert kinds(dataset) == ({*range(400)}, {*range(400, 600)})


@pytest.mark.parametrize("kind", ["lance_keys_size", "lance_row_ids", "lance_column_file", "iceberg_sidecar", 7, None])
def test_what_a_split_found_is_not_read_as_something_of_another_kind(dataset, kind):
    checkpoint, (record, *_) = upserted(dataset)
    forge_staged(checkpoint, record.split, intermediate=record.intermediate | {"kind": kind})
    refused(dataset, checkpoint, "cannot be read")


# -- sources, and what is never staged -----------------------------------------------------------------------------------------


def forge_split(checkpoint, change):
    """Change what the split that is not staged yet reads, in the pinned plan."""
    plan = checkpoint.plan()
    *others, last = plan.splits
    forge_plan(checkpoint, splits=(*others, msgspec.structs.replace(last, read=change(json.loads(json.dumps(last.read))))))


@pytest.mark.parametrize("where", ["in another folder", "by a step upwards", "of another kind", "hidden"])
@pytest.mark.parametrize("pattern", ["/*.parquet", "", "/"])
def test_a_plan_reads_no_file_that_the_source_does_not_name(world, where, pattern):
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir()
    path = {
        "in another folder": elsewhere / "3.parquet",
        "by a step upwards": world.input / ".." / "elsewhere" / "3.parquet",
        "of another kind": world.input / "3.secret" if pattern.endswith("parquet") else elsewhere / "3.secret",
        "hidden": world.input / "_3.parquet",
    }[where]
    shutil.copy(world.input / "3.parquet", path)
    request = world.request(source=Files(f"{world.input}{pattern}", max_split_bytes=1))
    checkpoint = world.stage(request, splits=3).checkpoint
    (theirs,) = InputFiles(str(path.resolve()), {}).all()

    def change(read):
        read["slices"][0][0] = [str(path).lstrip("/"), theirs.size, theirs.token]
        return read

    forge_split(checkpoint, change)
    with pytest.raises(CorruptObjectError, match="does not name"):
        world.stage(request)


@pytest.mark.parametrize("expired", [False, True], ids=["pinned", "expired"])
def test_a_plan_reads_no_file_that_the_pinned_snapshot_does_not_have(world, tmp_path, expired):
    source = Iceberg(tmp_path / "source")
    source.make()
    source.add()
    other = source.create_table("shop.salaries")
    other.append(source.table().scan().to_arrow())
    request = world.request(source=IcebergTable("shop.orders", max_split_bytes=1), options=source.source_options)
    checkpoint = world.stage(request, splits=1).checkpoint
    (theirs,) = source.table("shop.salaries").scan().plan_files()
    forge_split(checkpoint, lambda read: read | {"files": [*read["files"], read["files"][0] | {"path": theirs.file.file_path}]})
    if expired:
        source.forget()
    with pytest.raises(CorruptObjectError, match=r"shop/salaries.* does not have"):
        world.stage(request)


@pytest.mark.parametrize("split", ["../../other/g1/staged/000000", "a-b", "", "x/y"])
def test_ids_of_splits_lead_to_no_other_object(world, split):
    checkpoint = world.stage(splits=3).checkpoint
    *others, last = checkpoint.plan().splits
    forge_plan(checkpoint, splits=(*others, msgspec.structs.replace(last, id=split)))
    with pytest.raises(CorruptObjectError, match=r"has a split|is not a valid plan document"):
        world.stage()


def test_a_clean_up_does_not_remove_by_a_record(world):
    """A record of staged files that names live ones removes none of them."""
    checkpoint = world.stage(splits=1).checkpoint
    live = sorted(world.referenced_files()) or [""]
    forge_staged(checkpoint, "000000", files=tuple(StagedFile(path, 1) for path in live))
    before = world.read()
    list(clean(checkpoint, lambda _: world.as_table(), discard_unfinished=True))
    assert world.read() == before
