"""A function that fails at some rows, and a write of which such rows are rejected."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.rejected.file import COLUMNS, rows_in
from airflow_ckpt_provider.transforms import FlatMap, Map
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rejecting import OnError
from support.world import rows

#: Columns beside the one that the function makes.
KEPT = ["id", "value", "at"]


class Killed(BaseException):
    """The process of the task is gone. No error handler of ours sees that."""


class Function:
    """A function of a row that fails at some of them.

    :param fails_at: the ids of these.
    :param dies_at: the id of the row that it does not live to see.
    """

    def __init__(self, fails_at=(), dies_at=None):
        self.fails_at = set(fails_at)
        self.dies_at = dies_at
        self.seen = []

    def __call__(self, id):  # noqa: A002 - the column
        if id == self.dies_at:
            raise Killed
        self.seen.append(id)
        if id in self.fails_at:
            raise ValueError(f"{id} is bad")
        return f"made of {id}"


def mapped(function):
    return Map(function, output={"kind": pa.string()}, keep=KEPT)


def twice(function):
    """Two rows of each; a row at which the function fails has made one before that."""

    def several(id):  # noqa: A002 - the column
        yield "first"
        yield function(id)

    return FlatMap(several, output={"kind": pa.string()}, keep=KEPT)


def batched(function):
    """The same function, of batches."""

    def of_batch(batch):
        return pa.table({"kind": [function(one) for one in batch["id"].to_pylist()]})

    return Map(of_batch, output={"kind": pa.string()}, keep=KEPT, batched=True)


def asked(world, function, on_error="skip", max_errors=None, save=30, kind=mapped, version="1", **changes):
    """The write of all input files; a piece of a split is saved every so many rows."""
    facts = {
        "source": Files(f"{world.input}/*.parquet", max_split_bytes=1),
        "save_every": SaveEvery(rows=save, seconds=None),
        "transform": kind(function),
        "transform_version": version,
        "on_error": OnError(on_error, max_errors),
    }
    return world.request(**(facts | changes))


def put(world, *files):
    """Input files with these ids."""
    for number, ids in enumerate(files):
        pq.write_table(rows(ids.start, len(ids)), world.input / f"{number}.parquet")


def rejected(attempt):
    """The rows that a sealed write leaves out, with their errors, by id."""
    checkpoint = attempt.checkpoint
    found = []
    for file in checkpoint.sealed().rejected:
        here = [batch.to_pylist() for batch in rows_in(checkpoint.store, checkpoint.paths, file, COLUMNS)]
        assert sum(map(len, here)) == file.rows
        found += [row for batch in here for row in batch]
    return sorted(found, key=lambda row: row["id"])


def rejected_files(world, key="orders", generation=1):
    """Files of rejected rows in the store, whether a record names them or not."""
    found = world.root.glob(f"store/*/g{generation}/rejected/*.parquet")
    return sorted(path.name for path in found)


def right(world, ids, times=1):
    """Whether the table has what the function makes of these ids, so many times each, and nothing else of the input."""
    made = sorted(row["id"] for row in world.read() if (row["kind"] or "").startswith(("made", "first")))
    return made == sorted(one for one in ids for _ in range(times))
