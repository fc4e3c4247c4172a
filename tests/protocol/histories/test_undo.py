"""Any history of writes, undos and other hands: an undo takes out what its key has landed and puts back what that replaced, or
changes nothing; and what is written anew after it lands once.

The model is a multiset of rows, and for each write which of them it took out and put in. ``UNDO_EXAMPLES`` plays more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.table.both import Iceberg, Lance, StableLance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol.crash.maintenance import expire_all_but_the_head
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.foreign import data_files, delete_positions
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import CheckpointError, HistoryExpiredError, RolledBackError, UndoneError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import cleanup
from airflow_ckpt_provider.write.undoing import foresee, undo

pytestmark = pytest.mark.crash

BY_KIND = PartitionSpec(PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="kind"))


class Partitioned(Iceberg):
    """An Iceberg table with a partition for each kind."""

    def create_table(self, *args, **facts):
        return super().create_table(*args, **facts | {"spec": BY_KIND})


KINDS = {"iceberg": Iceberg, "iceberg, partitioned": Partitioned, "lance": Lance, "lance with stable row ids": StableLance}

MODES = ["append", "append", "overwrite", "upsert", "overwrite_partitions"]


class Play:
    """One history, and its model."""

    def __init__(self, kind, root):
        self.world = kind(root)
        self.world.make(range(6))
        self.is_iceberg = isinstance(self.world, Iceberg)
        self.model = self.found()
        #: Key, request, rows taken out and put in, of writes that have landed and are not undone.
        self.landed, self.undone = {}, {}
        self.number = 0
        self.said = []

    def found(self):
        return Counter((row["id"], row["value"], row["kind"]) for row in self.world.read())

    def head(self):
        """Which snapshot or version the table is at."""
        return self.world.table().metadata.current_snapshot_id if self.is_iceberg else self.world.dataset.version

    def check(self, what):
        assert self.found() == self.model, f"{what}: too many {self.found() - self.model}, too few {self.model - self.found()}"

    # -- ours

    def write(self, mode, start, count):
        if mode == "overwrite_partitions" and type(self.world) is not Partitioned:
            mode = "append"
        self.number += 1
        key = f"k{self.number}"
        path = self.world.input / f"{key}.parquet"
        ids = range(start, start + count)
        written = rows(start, count).set_column(1, "value", pa.array([float(1000 * self.number)] * count, pa.float64()))
        pq.write_table(written, path)
        changes = {"mode": mode, "source": Files(str(path))}
        changes |= {"parameters": {"upsert_keys": ["id"]}} if mode == "upsert" else {}
        new = Counter((row["id"], row["value"], row["kind"]) for row in written.to_pylist())
        self._land(key, changes, new, ids)

    def _land(self, key, changes, new, ids):
        kinds = {row[2] for row in new}
        goes = {
            "append": lambda _: False,
            "overwrite": lambda _: True,
            "upsert": lambda row: row[0] in ids,
            "overwrite_partitions": lambda row: row[2] in kinds,
        }[changes["mode"]]
        out = Counter({row: count for row, count in self.model.items() if goes(row)})
        if changes["mode"] == "upsert" and any(count > 1 for count in Counter(row[0] for row in self.model.elements()).values()):
            return
        attempt = self.world.stage(self.world.request(key, **changes))
        (settled,) = self.world.commit(attempt)
        assert settled.landed_now
        self.model = self.model - out + new
        self.check(f"{changes['mode']} of {key}")
        self.landed[key] = (changes, new, ids, out)

    def undo(self, which, force):
        if not self.landed:
            return
        key = sorted(self.landed)[which % len(self.landed)]
        changes, new, ids, out = self.landed[key]
        latest = Checkpoint.latest(self.world.store, IdempotenceKey(key))
        before, commits = self.found(), self.head()
        try:
            foreseen = foresee(latest, self.world.as_table(), force=force)
            done = undo(latest, self.world.as_table(), "ada", force=force)
        except CheckpointError as refused:
            self.said.append(type(refused).__name__)
            assert (self.found(), self.head()) == (before, commits), f"a refused undo of {key} changed something"
            return
        self.said.append("undone")
        assert foreseen is not None
        assert done.landed_now
        assert new <= self.model, f"{key} was undone though rows of it are gone: {new - self.model}"
        self.model = self.model - new + out
        self.check(f"undo of {key}, {changes['mode']}, force={force}")
        again = undo(Checkpoint.latest(self.world.store, IdempotenceKey(key)), self.world.as_table(), "ada")
        assert not again.landed_now
        del self.landed[key]
        self.undone[key] = (changes, new, ids)

    def commit_undone(self, which):
        """The commit of what was undone is refused."""
        if self.undone:
            key = sorted(self.undone)[which % len(self.undone)]
            checkpoint = Checkpoint.at(self.world.store, IdempotenceKey(key), 1)
            with pytest.raises((UndoneError, RolledBackError, HistoryExpiredError)):
                self.world.commit(type("Attempt", (), {"checkpoint": checkpoint})())
            self.check("a commit of what was undone")

    def write_anew(self, which):
        if self.undone:
            key = sorted(self.undone)[which % len(self.undone)]
            try:
                self._land(key, *self.undone[key])
            except HistoryExpiredError:
                # A dataset whose versions are cleaned up does not tell of the undo any more.
                self.check("a write that could not tell")
            else:
                del self.undone[key]

    def clean(self, which):
        """A clean-up of a key changes no row."""
        keys = sorted(self.landed) + sorted(self.undone)
        if keys:
            latest = Checkpoint.latest(self.world.store, IdempotenceKey(keys[which % len(keys)]))
            list(cleanup.clean(latest, lambda _: self.world.as_table()))
            self.check("a clean-up")

    # -- others

    def others_append(self, start):
        self.number += 1
        ids = range(50_000 + 100 * self.number, 50_000 + 100 * self.number + start % 4 + 1)
        new = rows(ids.start, len(ids))
        if self.is_iceberg:
            for field in self.world.table().schema().as_arrow():
                if field.name not in new.column_names:
                    new = new.append_column(field.name, pa.nulls(len(ids), field.type))
            self.world.table().append(new.cast(self.world.table().schema().as_arrow()))
        else:
            lance.write_dataset(new, self.world.uri, mode="append")
        self.model += Counter((row["id"], row["value"], row["kind"]) for row in new.to_pylist())
        self.check("an append of others")

    def others_delete(self, row, how):
        if not self.model:
            return
        number = sorted(self.model)[row % len(self.model)][0]
        if not self.is_iceberg:
            self.world.dataset.delete(f"id = {number}")
        elif how == "position" and type(self.world) is Iceberg:
            files = data_files(self.world.table())
            delete_positions(self.world.table(), {files[row % len(files)].file_path: [0]})
        else:
            self.world.table().delete(f"id == {number}")
        self.model = self.found()

    def others_compact(self, _):
        if self.found():
            self.world.compact() if not isinstance(self.world, Partitioned) else None
        self.check("a compaction")

    def others_widen(self, _):
        if "more" not in (self.world.table().schema().column_names if self.is_iceberg else self.world.dataset.schema.names):
            self.world.widen()
        self.check("a column more")

    def others_expire(self, _):
        if self.is_iceberg:
            expire_all_but_the_head(self.world)
        else:
            self.world.dataset.cleanup_old_versions(older_than=timedelta(0))
        self.check("an expiry")


NUMBERS = st.integers(0, 9)

STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(MODES), st.integers(0, 12), st.integers(1, 5)),
    st.tuples(st.just("write"), st.sampled_from(MODES), st.integers(0, 12), st.integers(1, 5)),
    st.tuples(st.just("undo"), NUMBERS, st.booleans()),
    st.tuples(st.just("undo"), NUMBERS, st.booleans()),
    st.tuples(st.just("write_anew"), NUMBERS),
    st.tuples(st.just("commit_undone"), NUMBERS),
    st.tuples(st.just("clean"), NUMBERS),
    st.tuples(st.just("others_append"), NUMBERS),
    st.tuples(st.just("others_delete"), NUMBERS, st.sampled_from(["position", "rewrite"])),
    st.tuples(st.just("others_compact"), NUMBERS),
    st.tuples(st.just("others_widen"), NUMBERS),
    st.tuples(st.just("others_expire"), NUMBERS),
)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_history_of_writes_and_undos_is_that_of_the_model(tmp_path_factory, kind):
    @settings(
        max_examples=int(os.environ.get("UNDO_EXAMPLES", "10")),
        derandomize=not os.environ.get("UNDO_EXAMPLES"),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(STEPS, min_size=2, max_size=9))
    def play(steps):
        history = Play(kind, tmp_path_factory.mktemp("undo"))
        for do, *what in steps:
            getattr(history, do)(*what)
        for key in history.landed:
            assert state_of(Checkpoint.latest(history.world.store, IdempotenceKey(key))) is State.COMMITTED

    play()
