"""The sides of the Lance comparisons; each is called in a process of its own, which never forks once it has used Lance."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.lance.fragments import StagedFragment, StagedFragments, metadata_of
from airflow_ckpt_provider.tables.lance.table import DatasetTable
from airflow_ckpt_provider.tables.lance.writer import LanceWriter
from airflow_ckpt_provider.tables.writer import Written
from airflow_ckpt_provider.write import groups
from benchmarks.checkpoint_cost import paired
from benchmarks.processes import cpu_seconds
from benchmarks.stage import Place, session, stage_on_spark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.tables.lance.writer import WriterFacts
    from airflow_ckpt_provider.tables.writer import Writer
    from airflow_ckpt_provider.write.staged_files import CheckCost
    from benchmarks.checkpoint_cost import Plain

_KEY = IdempotenceKey("upsert")

#: Rows of the upsert's target and source; 500,000 of them have the same key.
_TARGET, _SOURCE, _SHARED = 700_000, 600_000, 500_000

_PIECE = 50_000


def append(root: str, data: str, repeats: int) -> dict[str, Any]:
    """CPU seconds of a stage into an empty dataset, from opening the checkpoint to its seal."""
    here = Place(Path(root))
    spent = []
    with session() as spark:
        for number in range(repeats + 1):
            uri = _empty(root, f"ours-{number}", data)
            before = cpu_seconds()
            stage_on_spark(spark, here.attempt(here.key(), Files(data), DatasetTable(uri)))
            spent.append(cpu_seconds() - before)
            shutil.rmtree(uri)
    return {"cpu": spent[1:]}


def write_dataset(root: str, data: str) -> dict[str, Any]:
    """CPU seconds of Lance's own writer, without its import."""
    import lance
    import pyarrow.dataset as ds

    rows = ds.dataset(data).scanner(batch_size=65_536).to_reader()
    before = cpu_seconds()
    lance.write_dataset(rows, f"{root}/theirs.lance")
    return {"cpu": cpu_seconds() - before}


def checkpointed(root: str, data: str, repeats: int) -> dict[str, Any]:
    """Both sides of the cost of checkpointing."""
    here = Place(Path(root))
    uris: list[str] = []

    def target() -> DatasetTable:
        if uris:
            shutil.rmtree(uris[-1])
        uris.append(_empty(root, f"paired-{len(uris)}", data))
        return DatasetTable(uris[-1])

    def plain(writer: Writer) -> Plain:
        if not isinstance(writer, LanceWriter):
            raise TypeError("An append has a plain writer.")
        return LanceWriter(writer.facts).write

    return paired(here, target, Path(data), plain, repeats)._asdict()


def prepare_upsert(root: str) -> dict[str, Any]:
    """The target, and the source as staged fragments."""
    import lance

    here = Place(Path(root))
    folder = here.root / "in"
    folder.mkdir()
    for number, start in enumerate(range(_TARGET - _SHARED, _TARGET - _SHARED + _SOURCE, _PIECE)):
        pq.write_table(pa.Table.from_batches([_rows(start, 1)]), folder / f"{number:03d}.parquet", compression="none")
    schema = _rows(0, 0).schema
    pieces = (_rows(start, 0) for start in range(0, _TARGET, _PIECE))
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, pieces), f"{root}/target.lance", max_rows_per_file=100_000)
    shutil.copytree(f"{root}/target.lance", f"{root}/other.lance")
    attempt = here.attempt(_KEY, Files(str(folder)), DatasetTable(f"{root}/target.lance"), "upsert", upsert_keys=["id"])
    found = attempt.next_round()
    work = attempt.begin("benchmark", 1)
    for split in found.missing if found else []:
        work.run(split, "0")
    # The staged rows as a dataset, for the other side.
    records = attempt.checkpoint.staged(sorted(attempt.checkpoint.staged_ids()))
    data = here.root / "staged.lance" / "data"
    data.mkdir(parents=True)
    for path in (file.path.removeprefix("file://") for one in records for file in one.files):
        os.link(path, data / Path(path).name)
    staged = [StagedFragments.from_json(one.manifest) for one in records if one.manifest]
    operation = lance.LanceOperation.Overwrite(schema, metadata_of(staged))
    lance.LanceDataset.commit(f"{root}/staged.lance", operation)
    return {"rows": lance.dataset(f"{root}/staged.lance").count_rows()}


def ours(root: str) -> dict[str, Any]:
    """Match and commit."""
    here = Place(Path(root))
    target = DatasetTable(f"{root}/target.lance")
    start = time.perf_counter()
    attempt = here.attempt(_KEY, Files(str(here.root / "in")), target, "upsert", upsert_keys=["id"])
    while (found := attempt.next_round()) is not None:
        work = attempt.begin("benchmark", 1)
        for split in found.missing:
            work.run(split, "0")
    attempt.seal()
    groups.commit([attempt.checkpoint], target)
    seconds = time.perf_counter() - start
    _require(f"{root}/target.lance")
    return {"seconds": seconds}


def merge_insert(root: str) -> dict[str, Any]:
    """Lance's own, of the staged rows."""
    import lance

    dataset, staged = lance.dataset(f"{root}/other.lance"), lance.dataset(f"{root}/staged.lance")
    start = time.perf_counter()
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(staged.scanner().to_reader())
    seconds = time.perf_counter() - start
    _require(f"{root}/other.lance")
    return {"seconds": seconds}


def commit_many(root: str, splits: int, files: int) -> dict[str, Any]:
    """Seconds of a commit of many small fragments, and of Lance's own append of the same."""
    import lance

    here = Place(Path(root))
    folder = here.root / "in"
    folder.mkdir()
    for number in range(splits):
        pq.write_table(pa.table({"id": [number]}), folder / f"{number:05d}.parquet")
    uri = f"{root}/many.lance"
    lance.write_dataset(pa.table({"id": [0]}), uri)
    attempt = here.attempt(_KEY, Files(str(folder), max_split_bytes=1), DatasetTable(uri))
    found = attempt.next_round()
    work = attempt.begin("benchmark", 1)
    if not isinstance(work.writer, LanceWriter):
        raise TypeError("An append has a plain writer.")
    template = next(Path(uri, "data").glob("*.lance")).read_bytes()
    work = dataclasses.replace(work, writer=_ManyFiles(work.writer.facts, files, template))
    for split in found.missing if found else []:
        work.run(split, "0")
    seal = attempt.seal()
    checkpoint = Checkpoint.at(here.store, _KEY, 1)
    # As a commit task has it, which gets the stage's reference.
    checkpoint.vouched = seal.digest
    costs: list[CheckCost] = []
    start = time.perf_counter()
    groups.commit([checkpoint], DatasetTable(uri), tell_cost=costs.append)
    mine = time.perf_counter() - start
    dataset = lance.dataset(uri)
    if dataset.count_rows() != 1 + splits * files:
        raise RuntimeError(f"The dataset has {dataset.count_rows()} rows.")
    fragments = _described(StagedFragments.from_json(manifest) for manifest in seal.manifests)
    dataset = lance.dataset(uri, version=1)
    dataset.restore()  # type: ignore[no-untyped-call]
    dataset = lance.dataset(uri)
    start = time.perf_counter()
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=dataset.version)
    return {"ours": mine, "look": sum(cost.seconds for cost in costs), "append": time.perf_counter() - start}


def _described(staged: Iterable[StagedFragments]) -> list[Any]:
    """The fragments as Lance describes those that it has written itself."""
    from lance.fragment import DataFile, FragmentMetadata

    found = []
    for one in staged:
        major, minor = map(int, one.storage_version.split("."))
        for fragment in one.fragments:
            file = DataFile(fragment.name, list(one.fields), list(range(len(one.fields))), major, minor, fragment.bytes)
            found.append(FragmentMetadata(id=0, files=[file], physical_rows=fragment.rows))
    return found


class _ManyFiles(LanceWriter):
    """Writes the same small file many times, whatever it is given."""

    def __init__(self, facts: WriterFacts, files: int, content: bytes) -> None:
        super().__init__(facts)
        self._files, self._content = files, content

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Files of one row each."""
        for _ in batches:
            pass
        facts, size = self.facts, len(self._content)
        names = [f"{stem}-{number:05d}.lance" for number in range(self._files)]
        for name in names:
            Path(facts.files.address, "data", name).write_bytes(self._content)
        staged = StagedFragments(
            fragments=tuple(StagedFragment(name, 1, size) for name in names),
            fields=facts.fields,
            storage_version=facts.storage_version,
        )
        named = tuple(StagedFile(facts.files.path(name), size) for name in names)
        return Written(self._files, size * self._files, named, staged.to_json())


def _empty(root: str, name: str, data: str) -> str:
    """A dataset without rows, of the columns of a Parquet file."""
    import lance

    uri = f"{root}/{name}.lance"
    lance.write_dataset(pa.Table.from_batches([], pq.read_schema(data)), uri)
    return uri


def _rows(start: int, version: int) -> pa.RecordBatch:
    """Rows of 2 KB."""
    ids = np.arange(start, start + _PIECE)
    vectors = np.random.default_rng(start + version).random(_PIECE * 500, dtype=np.float32)
    return pa.record_batch(
        {
            "id": pa.array(ids),
            "version": pa.array(np.full(_PIECE, version, np.int32)),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 500),
        }
    )


def _require(uri: str) -> None:
    import lance

    dataset = lance.dataset(uri)
    found = (dataset.count_rows(), dataset.count_rows("version = 1"))
    if found != (_TARGET - _SHARED + _SOURCE, _SOURCE):
        raise RuntimeError(f"{uri} has {found[0]} rows, {found[1]} of them new.")
