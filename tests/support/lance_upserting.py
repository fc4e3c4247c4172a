"""A Lance dataset of people, and upserts into it without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.lance.table import DatasetTable
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.attempt import WriteAttempt
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("note", pa.string()), ("vector", pa.list_(pa.float32(), 2))])


class Place:
    """A dataset, and upserts into it."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.world = World(root)
        self.uri = str(root / "people.lance")

    def begin(self, *files: pa.Table, rows_per_file: int = 1000, **options: Any) -> None:
        schema = files[0].schema
        lance.write_dataset(pa.Table.from_batches([], schema), self.uri, **options)
        for file in files:
            lance.write_dataset(file, self.uri, mode="append", max_rows_per_file=rows_per_file)

    def attempt(
        self,
        key: str,
        files: Sequence[pa.Table],
        keys: Sequence[str] = ("id",),
        when: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> WriteAttempt:
        """An attempt at an upsert of these files; those of a key that was used before stay as they were."""
        folder = self.world.input / key
        if not folder.exists():
            folder.mkdir(parents=True)
            for number, file in enumerate(files):
                pq.write_table(file, folder / f"{number}.parquet")
        source = Files(f"{folder}/*.parquet", max_split_bytes=1)
        parameters = {"upsert_keys": list(keys), **(when or {})}
        request = self.world.request(**({"key": key, "source": source, "mode": "upsert", "parameters": parameters} | changes))
        return WriteAttempt(self.world.store, DatasetTable(self.uri), request)

    def stage(self, *args: Any, **changes: Any) -> WriteAttempt:
        attempt = self.attempt(*args, **changes)
        while (found := attempt.next_round()) is not None:
            work = attempt.begin("a test", 1)
            for split in found.missing:
                work.run(split, "0")
        attempt.seal()
        return attempt

    def stage_losing(self, attempt: WriteAttempt) -> int:
        """Stage it, with each of the dataset's own splits done twice, of which one loses; how many that were.

        What has lost leaves nothing behind.
        """
        lost, folder = 0, self.world.root / "people.lance"
        while (found := attempt.next_round()) is not None:
            work = attempt.begin("a test", 1)
            for split in found.missing:
                if split.task != "read":
                    before = set(folder.rglob("*.*"))
                    work.writer.remove(work.writer.work(split, work.paths.file_stem(split.id, "abc.1")))
                    assert set(folder.rglob("*.*")) == before
                    lost += 1
                work.run(split, "0")
        attempt.seal()
        return lost

    def commit(self, attempt: WriteAttempt) -> groups.Settled:
        (settled,) = groups.commit([attempt.checkpoint], DatasetTable(self.uri))
        return settled

    def upsert(self, *args: Any, **changes: Any) -> groups.Settled:
        return self.commit(self.stage(*args, **changes))

    def replace(self, files: Sequence[pa.Table], **changes: Any) -> groups.Settled:
        """Write the key ``first`` anew, from these files."""
        folder = self.world.input / f"again{len(list(self.world.input.iterdir()))}"
        folder.mkdir()
        for number, file in enumerate(files):
            pq.write_table(file, folder / f"{number}.parquet")
        source = Files(f"{folder}/*.parquet", max_split_bytes=1)
        return self.upsert("first", [], source=source, on_rerun="replace", on_change="restart", **changes)

    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.uri)

    def rows(self) -> list[dict[str, Any]]:
        dataset = self.dataset()
        dataset.validate()
        return dataset.to_table().to_pylist()

    def notes(self) -> dict[int | None, str]:
        """The note of each id."""
        return {row["id"]: row["note"] for row in self.rows()}

    def files(self) -> set[str]:
        """Names of the data files of the last version."""
        return {file.path for fragment in self.dataset().get_fragments() for file in fragment.data_files()}


def people(ids: Iterable[int | None], note: str, kind: str = "a") -> pa.Table:
    ids = list(ids)
    return pa.table(
        {"id": ids, "kind": [kind] * len(ids), "note": [note] * len(ids), "vector": [[float(n or 0), 1.0] for n in ids]},
        schema=SCHEMA,
    )
