"""A table of either format, with what its owner and other writers do to it, and a reader of it that is not ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import warnings
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import lance
import pyarrow as pa
from protocol.histories import owner
from protocol.histories.catalog import KilledError, MeddlingCatalog
from protocol.histories.model import partitioning
from protocol.histories.play import ORDERS, SCHEMA, SteadyWorld
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.types import DoubleType, LongType
from support.lance_world import LanceWorld
from support.readers import duckdb_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from protocol.histories.model import Row
    from pyiceberg.partitioning import PartitionSpec

    from airflow_ckpt_provider.checkpoint.documents import TableBinding

#: What a reader finds: id and value of each row, and how often.
Found = Counter[tuple[int, float]]


class Fault(NamedTuple):
    """What happens to the next commit of ours: ``name`` is a method of the faults, ``meanwhile`` what others do just before it."""

    name: str = "none"
    meanwhile: Callable[[], None] = lambda: None


class IcebergPlace:
    """An Iceberg table in a SQLite catalog. DuckDB reads it."""

    kind = "iceberg"
    modes = ("append", "append", "overwrite", "upsert", "upsert", "overwrite_partitions")

    def __init__(self, root: Path, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> None:
        self.world = SteadyWorld(root)
        self.world.create_table(ORDERS, SCHEMA, spec)
        self._catalog = MeddlingCatalog(self.world)
        self.acts: dict[str, Callable[[int], Any]] = {
            "compact": lambda _: self._if_any(lambda table: owner.compact(table, "main")),
            "cut history": lambda _: self._if_any(owner.expire),
            "column": self._column,
            "type": lambda _: self._partitioning(),
        }

    def as_table(self) -> Any:
        return self.world.as_table(ORDERS, self._catalog)

    def read(self) -> Found:
        return Counter(duckdb_rows(self.world.table(), "select id, value from rows"))

    def computed(self, column: str) -> None:
        """No mode adds columns to an Iceberg table."""

    def partition_of(self, binding: TableBinding) -> Callable[[int], tuple[Any, ...]]:
        """The partition of a row, by its id, as a write that is bound to the table so has it."""
        of_row = partitioning(self.world.table(), binding.spec_id)
        return lambda row_id: of_row(owner.row(row_id, 0.0))

    def head(self) -> int | None:
        head = self.world.table().current_snapshot()
        return head and head.snapshot_id

    def earlier_generations(self) -> list[int]:
        """Snapshots that the owner can roll back to, newest first."""
        by_id = {one.snapshot_id: one for one in self.world.table().snapshots()}
        found, at = [], by_id.get(self.head())
        while at is not None and (at := by_id.get(at.parent_snapshot_id)) is not None:
            found.append(at.snapshot_id)
        return found

    def restore(self, version: int) -> None:
        owner.roll_back(self.world.table(), version)

    def append(self, rows: Iterable[Row]) -> None:
        self.world.table().append(self._arrow(rows))

    def overwrite(self, rows: Iterable[Row]) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Delete operation did not match any records")
            self.world.table().overwrite(self._arrow(rows))

    def delete_below(self, number: int) -> None:
        self._if_any(lambda table: owner.delete(table, f"id < {number}", "main"))

    @contextlib.contextmanager
    def away(self, *, impostor: bool) -> Iterator[None]:
        """The table has another name for a while, and another table may have its name."""
        catalog = self.world.catalog
        catalog.rename_table(ORDERS, "shop.elsewhere")
        if impostor:
            self.world.create_table(ORDERS, SCHEMA)
        try:
            yield
            assert not impostor or not self.read(), "rows have landed in another table of the same name"
        finally:
            if impostor:
                catalog.drop_table(ORDERS)
            catalog.rename_table("shop.elsewhere", ORDERS)

    @contextlib.contextmanager
    def faulty(self, fault: Fault) -> Iterator[None]:
        self._catalog.expect(fault.name, fault.meanwhile)
        try:
            yield
        finally:
            self._catalog.expect("none", lambda: None)

    def late(self) -> list[Callable[[], Any]]:
        """Requests that nobody waits for any more."""
        found, self._catalog._zombies = self._catalog.late, []
        return found

    def unreferenced(self) -> list[Path]:
        """Staged files that no snapshot refers to."""
        table = self.world.table()
        known = set()
        for snapshot in table.snapshots():
            manifests = snapshot.manifests(table.io)
            known |= {one.manifest_path for one in manifests}
            known |= {entry.data_file.file_path for one in manifests for entry in one.fetch_manifest_entry(table.io)}
        known = {path.removeprefix("file://") for path in known}
        return sorted(path for path in self.world.root.glob("warehouse/**/ckpt-*") if path.is_file() and str(path) not in known)

    def require_sound(self) -> None:
        """Check what other libraries demand of a table, beside its rows."""
        metadata = self.world.table().metadata
        log = [one.timestamp_ms for one in metadata.snapshot_log]
        assert log[-2:] == sorted(log[-2:]), f"the snapshot log goes back in time: {log}"
        assert metadata.last_updated_ms >= max(log[-1:], default=0)

    def close(self) -> None:
        self._catalog.close()
        self.world.catalog.close()

    def _arrow(self, rows: Iterable[Row]) -> pa.Table:
        """Rows as the table calls its columns by now."""
        names = self.world.table().schema().column_names
        return owner.arrow(rows).rename_columns(["id", "value", "kind" if "kind" in names else "sort"])

    def _if_any(self, act: Callable[[Any], Any]) -> None:
        if self.head() is not None:
            act(self.world.table())

    def _column(self, number: int) -> None:
        table = self.world.table()
        if number % 2 and "kind" in table.schema().column_names and not any(one.source_id == 3 for one in table.spec().fields):
            with table.update_schema() as update:
                update.rename_column("kind", "sort")
        else:
            owner.add_column(table, f"extra{number % 3}")

    def _partitioning(self) -> None:
        owner.turn_buckets(self.world.table())


class LancePlace:
    """A Lance dataset in a folder. Plain ``lance`` reads it, opened anew."""

    kind = "lance"
    modes = ("append", "append", "overwrite", "upsert", "upsert", "add_columns")

    def __init__(self, root: Path, *, stable: bool = False) -> None:
        self.world = LanceWorld(root)
        nothing = owner.arrow([])
        lance.write_dataset(nothing, self.world.uri, mode="create", enable_stable_row_ids=stable)
        self._late: list[Callable[[], Any]] = []
        self._silent_looks = 0
        self.acts: dict[str, Callable[[int], Any]] = {
            "compact": lambda _: self.world.dataset.optimize.compact_files(),
            "cut history": lambda _: self._clean_up(),
            "column": self._column,
            "type": lambda _: self.world.dataset.alter_columns({"path": "kind", "nullable": True}),
        }

    def as_table(self) -> Any:
        return self.world.as_table()

    def read(self) -> Found:
        table = self.world.dataset.to_table(columns=["id", "value"]).to_pydict()
        return Counter(zip(table["id"], table["value"], strict=True))

    def computed(self, column: str) -> frozenset[tuple[int, float]] | None:
        """Rows that have a value in a column that was added; None if there is no such column."""
        dataset = self.world.dataset
        if column not in dataset.schema.names:
            return None
        rows = dataset.to_table(columns=["id", "value", column]).to_pylist()
        wrong = [row for row in rows if row[column] not in {None, 10 * row["value"]}]
        assert not wrong, f"rows with values of others: {wrong}"
        return frozenset((row["id"], row["value"]) for row in rows if row[column] is not None)

    def partition_of(self, binding: TableBinding) -> Callable[[int], tuple[Any, ...]]:
        """A dataset has no partitions."""
        return lambda _: ()

    def head(self) -> int:
        return self.world.dataset.version

    def earlier_generations(self) -> list[int]:
        """Versions that the owner can restore, newest first."""
        return sorted((one["version"] for one in self.world.dataset.versions()), reverse=True)[1:]

    def restore(self, version: int) -> None:
        self.world.dataset.checkout_version(version).restore()

    def append(self, rows: Iterable[Row]) -> None:
        lance.write_dataset(owner.arrow(rows), self.world.uri, mode="append")

    def overwrite(self, rows: Iterable[Row]) -> None:
        lance.write_dataset(owner.arrow(rows), self.world.uri, mode="overwrite")

    def delete_below(self, number: int) -> None:
        self.world.dataset.delete(f"id < {number}")

    @contextlib.contextmanager
    def away(self, *, impostor: bool) -> Iterator[None]:
        """The dataset is moved for a while, and another one may be where it was."""
        elsewhere = self.world.uri + ".elsewhere"
        shutil.move(self.world.uri, elsewhere)
        if impostor:
            lance.write_dataset(owner.arrow([]), self.world.uri, mode="create")
        try:
            yield
            assert impostor or not os.path.exists(os.path.join(self.world.uri, "_versions")), "a dataset came into being"
            assert not impostor or not self.read(), "rows have landed in another dataset at the same place"
        finally:
            shutil.rmtree(self.world.uri, ignore_errors=True)
            shutil.move(elsewhere, self.world.uri)

    @contextlib.contextmanager
    def faulty(self, fault: Fault) -> Iterator[None]:
        self._silent_looks = 2 if fault.name == "no_answer_to_looks" else 0
        init = lance.LanceDataset.__init__

        def opened(*args: Any, **settings: Any) -> None:
            if self._silent_looks and not _in_memory(args[1]):
                self._silent_looks -= 1
                raise OSError("LanceError(IO): Generic S3 error: operation timed out")
            init(*args, **settings)

        with mock.patch.object(lance.LanceDataset, "__init__", opened), self._faulty_commit(fault):
            yield

    @contextlib.contextmanager
    def _faulty_commit(self, fault: Fault) -> Iterator[None]:
        commit, left = lance.LanceDataset.commit, [fault]

        def answer(*args: Any, **settings: Any) -> Any:
            if _in_memory(args[0]) or not left:
                return commit(*args, **settings)
            return getattr(self, f"_{left.pop().name}")(lambda: commit(*args, **settings), fault.meanwhile)

        with mock.patch.object(lance.LanceDataset, "commit", staticmethod(answer)):
            yield

    def late(self) -> list[Callable[[], Any]]:
        """Requests that nobody waits for any more."""
        found, self._late = self._late, []
        return found

    def unreferenced(self) -> list[Path]:
        """Staged files that no version refers to."""
        known = self.world.ever_referenced_files()
        return sorted(path for path in self.world.root.glob("orders.lance/data/*.lance") if str(path) not in known)

    def require_sound(self) -> None:
        """Check what Lance itself says of the dataset."""
        self.world.dataset.validate()

    def close(self) -> None:
        """Nothing is open."""

    # -- faults, by the names of those of the catalog -----------------------------------------------------------------

    def _none(self, apply: Callable[[], Any], _: Any) -> Any:
        return apply()

    def _reply_lost_after_landing(self, apply: Callable[[], Any], _: Any) -> Any:
        apply()
        raise OSError("connection reset by peer")

    def _landed_but_reported_as_conflict(self, apply: Callable[[], Any], _: Any) -> Any:
        apply()
        raise lance.commit.CommitConflictError("the dataset was changed by another process")

    def _answers_slowly(self, apply: Callable[[], Any], _: Any) -> Any:
        time.sleep(0.06)
        return apply()

    def _lands_and_hangs(self, apply: Callable[[], Any], _: Any) -> Any:
        apply()
        self._silent_looks = 3
        raise TimeoutError("no answer in time")

    def _hangs(self, apply: Callable[[], Any], _: Any) -> Any:
        self._late.append(apply)
        self._silent_looks = 3
        raise TimeoutError("no answer in time")

    def _no_answer_to_looks(self, apply: Callable[[], Any], _: Any) -> Any:
        return apply()

    def _fails_before_applying(self, apply: Callable[[], Any], _: Any) -> Any:
        raise OSError("no route to the storage")

    def _applied_later(self, apply: Callable[[], Any], _: Any) -> Any:
        self._late.append(apply)
        raise TimeoutError("no answer in time")

    def _killed_before(self, apply: Callable[[], Any], _: Any) -> Any:
        raise KilledError

    def _killed_after(self, apply: Callable[[], Any], _: Any) -> Any:
        apply()
        raise KilledError

    def _overtaken(self, apply: Callable[[], Any], meanwhile: Callable[[], None]) -> Any:
        meanwhile()
        return apply()

    def _overtaken_and_lost(self, apply: Callable[[], Any], meanwhile: Callable[[], None]) -> Any:
        meanwhile()
        apply()
        raise OSError("connection reset by peer")

    # -- the owner ----------------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        self.world.dataset.cleanup_old_versions(older_than=timedelta(0))

    def _column(self, number: int) -> None:
        dataset, name = self.world.dataset, f"extra{number % 3}"
        if name in dataset.schema.names:
            dataset.drop_columns([name])
        else:
            dataset.add_columns(pa.field(name, pa.string()))


def _in_memory(base: Any) -> bool:
    return str(getattr(base, "uri", base)).startswith("memory:")


#: The columns that the model knows rows by.
assert [type(SCHEMA.find_type(name)) for name in ("id", "value")] == [LongType, DoubleType]
