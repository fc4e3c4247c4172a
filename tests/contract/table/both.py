"""An Iceberg table and a Lance dataset in the same words, and the rows that tests of both are about."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta

import duckdb
import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from protocol.crash import maintenance
from pyiceberg.types import LongType
from support.foreign import compact, options_of
from support.lance_world import LanceWorld
from support.world import World, rows

from airflow_ckpt_provider.sources import IcebergTable, LanceDataset
from airflow_ckpt_provider.tables.staged.format import RowsTable

BEFORE = range(1_000_000, 1_000_005)

FOREIGN = range(2_000_000, 2_000_005)


class Iceberg(World):
    """An Iceberg table, in the words of this contract."""

    def make(self, ids=BEFORE) -> None:
        """Make the table with these rows of somebody else."""
        table = self.create_table()
        if ids:
            table.append(rows(ids.start, len(ids)).cast(table.schema().as_arrow()))

    def match_files_alone(self) -> None:
        """An upsert has a split for each file of the table, however small."""
        with self.table().transaction() as transaction:
            transaction.set_properties({"read.split.target-size": "1"})

    def drop(self) -> None:
        self.catalog.drop_table("shop.orders")

    @property
    def there(self) -> bool:
        return self.catalog.table_exists("shop.orders")

    def read(self) -> list[dict]:
        """All rows, by id."""
        return sorted(self.table().scan().to_arrow().to_pylist(), key=lambda row: row["id"])

    def commits(self) -> int:
        """Commits of anybody that the table remembers."""
        return len(self.table().snapshots()) if self.there else 0

    def add(self, ids=FOREIGN) -> None:
        """Rows of somebody who knows nothing of checkpoints."""
        maintenance.foreign_append(self, ids.start, len(ids))

    def compact(self) -> None:
        compact(self.table())

    def forget(self) -> None:
        """Compact, and expire whatever was before, with its files."""
        self.compact()
        maintenance.expire_all_but_the_head(self)
        there = self.referenced_files()
        for path in (self.root / "warehouse").rglob("*.parquet"):
            if str(path) not in there and not path.name.startswith("ckpt-"):
                path.unlink()

    def widen(self) -> None:
        """Somebody adds a column."""
        with self.table().update_schema() as update:
            update.add_column("more", LongType())

    @property
    def as_source(self):
        return IcebergTable("shop.orders")

    @property
    def source_options(self) -> dict[str, str]:
        return options_of(self)


class Lance(LanceWorld):
    """A Lance dataset, in the same words."""

    def make(self, ids=BEFORE) -> None:
        self.create_dataset(ids.start if ids else 0, len(ids))

    def match_files_alone(self) -> None:
        """An upsert has a split for each fragment of the dataset anyway."""

    def drop(self) -> None:
        shutil.rmtree(self.uri)

    @property
    def there(self) -> bool:
        return self.exists

    def read(self) -> list[dict]:
        self.dataset.validate()
        return self.table_rows()

    def commits(self) -> int:
        found = self.versions()
        # An empty dataset is a version; an empty Iceberg table is no snapshot.
        return len(found) - (bool(found) and self.made_without_rows)

    @property
    def made_without_rows(self) -> bool:
        return lance.dataset(self.uri, version=1).count_rows() == 0

    def add(self, ids=FOREIGN) -> None:
        self.foreign_append(ids.start, len(ids))

    def compact(self) -> None:
        self.dataset.optimize.compact_files()

    def forget(self) -> None:
        """Compact, and clean up whatever was before, with its files."""
        self.compact()
        self.dataset.cleanup_old_versions(older_than=timedelta(0))

    def widen(self) -> None:
        """Somebody adds a column, with values."""
        self.dataset.add_columns({"more": "id * 2"})

    @property
    def as_source(self):
        return LanceDataset(self.uri)

    @property
    def source_options(self) -> dict[str, str]:
        return {}


class StagedRows(World):
    """A folder of rows, in the same words, as far as rows are only added."""

    @property
    def place(self):
        return self.root / "rows"

    def as_table(self, name: str = "", catalog: object = None) -> RowsTable:
        return RowsTable(str(self.place))

    def make(self, ids=BEFORE, schema=None) -> None:
        self.as_table().make(schema or rows(0, 0).schema)
        if ids:
            self.add(ids)

    def drop(self) -> None:
        shutil.rmtree(self.place)

    @property
    def there(self) -> bool:
        return (self.place / "table.json").exists()

    @property
    def _commits(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in (self.place / "commits").glob("*.json")]

    def read(self) -> list[dict]:
        """By a reader that knows where commits are, and nothing else."""
        listed = [path.removeprefix("file://") for commit in self._commits for path, _ in commit["files"]]
        found = duckdb.sql("SELECT * FROM read_parquet($files) ORDER BY id", params={"files": listed}).to_arrow_table()
        return found.to_pylist()

    def commits(self) -> int:
        return len(self._commits)

    def add(self, ids=FOREIGN) -> None:
        """A writer that knows what a commit is, and nothing of checkpoints."""
        file = self.place / "data" / f"foreign-{ids.start}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(rows(ids.start, len(ids)), file)
        files = [[f"file://{file}", file.stat().st_size]]
        facts = {"identity": "", "keys": [], "committed_at": "2026-01-01T00:00:00Z", "rows": len(ids), "files": files}
        (self.place / "commits").mkdir(exist_ok=True)
        (self.place / "commits" / f"{ids.start}.json").write_text(json.dumps(facts))

    def compact(self) -> None:
        """Nobody does."""

    def files_on_disk(self) -> set[str]:
        return {str(path) for path in (self.place / "data").glob("ckpt-*")}

    def referenced_files(self, name: str = "") -> set[str]:
        return {path.removeprefix("file://") for commit in self._commits for path, _ in commit["files"]}


class StableLance(Lance):
    """The same whose rows have stable row ids."""

    def create_dataset(self, *args, **settings):
        return super().create_dataset(*args, **{"enable_stable_row_ids": True} | settings)


#: Of tests that take the fixture ``empty``, for what is done in another way there.
ALSO_WITH_STABLE_ROW_IDS = pytest.mark.parametrize(
    "empty", [Iceberg, Lance, StableLance], ids=["iceberg", "lance", "lance with stable row ids"], indirect=True
)

ALL = range(400)

COMMITS_BEFORE = 1

REPLACE = {"on_rerun": "replace", "on_change": "restart"}


def of(*ids):
    """The rows with these ids, as every writer here writes them."""
    return [row for some in ids for row in rows(some.start, len(some)).to_pylist()]


def only_even(batch):
    return batch.filter(pc.equal(pc.bit_wise_and(batch["id"], 1), 0))


def nothing(batch):
    return batch.slice(0, 0)


#: Rows of others, of which half have keys of the input.
HALF = range(200, 600)

UPSERT = {"mode": "upsert", "parameters": {"upsert_keys": ["id"]}}


def marked(batch):
    return batch.set_column(batch.schema.get_field_index("kind"), "kind", pa.array(["marked"] * batch.num_rows))


def marked_even(batch):
    return marked(only_even(batch))


def kinds(world):
    """Ids of the rows that an upsert has written, and of the others."""
    found = world.read()
    assert len({row["id"] for row in found}) == len(found)
    own = {row["id"] for row in found if row["kind"] == "marked"}
    return own, {row["id"] for row in found} - own
