"""A sweep over the store of a connection, for the operator and the command line: what it is told, and what it hands back."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, get_args

from airflow_ckpt_provider.exceptions import CleanupIncompleteError, InvalidInputError
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook
from airflow_ckpt_provider.hooks.configuration import retention, time_of
from airflow_ckpt_provider.hooks.lookup import table_of
from airflow_ckpt_provider.write.sweep import Abandoned, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.hooks.lookup import OwnConnections
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.removal import SweptGeneration
    from airflow_ckpt_provider.write.sweep import Counts

#: What a sweep is told at least. A task puts something of its write more often than that, unless a single split takes longer.
SHORTEST = timedelta(hours=1)

#: Generations that a result lists; all of them are in the log.
LISTED = 500


class SweptRecord(TypedDict):
    """What became of one generation of a key.

    ``objects`` were removed from the checkpoint store and ``files`` from the table's storage, with their bytes. ``kept`` says why
    nothing was, and is empty otherwise. Where the header cannot be read, ``idempotence_key`` is None, and ``folder`` tells which
    it is.
    """

    idempotence_key: str | None
    folder: str
    generation: int
    state: str | None
    objects: int
    object_bytes: int
    files: int
    file_bytes: int
    kept: str


class SweepTotals(TypedDict):
    """All generations together.

    ``cleaned`` lost records, ``kept`` did not, and ``failed`` of those did not because of an error. ``younger`` are the
    generations of which something was put since then, ``without_records`` those that had nothing to remove; neither was looked
    into. ``foreign`` objects in the store have names that are none of ours, and were left as they are.
    """

    cleaned: int
    objects: int
    object_bytes: int
    files: int
    file_bytes: int
    kept: int
    failed: int
    younger: int
    without_records: int
    foreign: int


class SweepResult(TypedDict):
    """What a sweep has removed; what it would, in a dry run.

    ``generations`` lists those that were looked into, errors first, up to ``LISTED``; ``unlisted`` is the number of the others.
    """

    store: str
    dry_run: bool
    generations: list[SweptRecord]
    unlisted: int
    totals: SweepTotals


class SweepOrder(NamedTuple):
    """What a sweep is told; see ``write.sweep.Sweep``."""

    older_than: timedelta
    keys: str = "*"
    abandoned: Abandoned = "keep"
    dry_run: bool = False


def require_older_than(value: object) -> timedelta:
    """What a user says of how old something has to be.

    :param value: None for what the configuration says.
    :raises InvalidInputError: if it is no time, or too short a one.
    """
    value = retention() if value is None else value
    if value is None:
        raise InvalidInputError(
            "Nothing says how old a write has to be for a sweep: give older_than (--older-than), such as '14d', or set older_than "
            "in the section [checkpoints] of Airflow's configuration."
        )
    age = time_of(value) or value
    if not isinstance(age, timedelta):
        raise InvalidInputError(f"older_than={value!r} is no time: write '14d', '12h' or '2w', or give a timedelta.")
    if age < SHORTEST:
        raise InvalidInputError(
            f"older_than={value!r} is less than an hour. What is that young may belong to a task that is running: choose longer "
            "than any of your stages takes, such as '14d'."
        )
    return age


def require_abandoned(value: str) -> Literal["keep", "discard"]:
    """What becomes of writes that nobody has finished.

    :raises InvalidInputError: if it is no such policy.
    """
    if value not in get_args(Abandoned):
        raise InvalidInputError(f"abandoned={value!r}: the values are 'keep' and 'discard'.")
    return "discard" if value == "discard" else "keep"


class SweepRun:
    """One sweep over the store of the checkpoint connection.

    :param connections: what the DAG, or the command line, says; generations of others are kept.
    """

    def __init__(self, order: SweepOrder, connections: OwnConnections) -> None:
        store = CheckpointHook(connections.checkpoint or CheckpointHook.default_conn_name).get_conn()
        self._order = order
        self._connections = connections
        self._tables: dict[tuple[str, ...], Table] = {}
        self._sweep = Sweep(
            store,
            self._table_of,
            older_than=order.older_than,
            keys=order.keys,
            abandoned=order.abandoned,
            dry_run=order.dry_run,
        )
        self._swept: list[SweptGeneration] = []
        self.store = store

    def run(self, report: Callable[[SweptGeneration], None]) -> SweepResult:
        """Sweep, and return what was removed.

        :param report: told of each generation that was looked into.
        """
        for swept in self._sweep.run():
            self._swept.append(swept)
            report(swept)
        listed = sorted(self._swept, key=lambda swept: (not swept.is_error, bool(swept.kept)))
        return SweepResult(
            store=self.store.uri,
            dry_run=self._order.dry_run,
            generations=[_record(swept) for swept in listed[:LISTED]],
            unlisted=max(0, len(listed) - LISTED),
            totals=_totals(self._swept, self._sweep.counts),
        )

    def require_no_errors(self) -> None:
        """Fail if anything was kept because of an error.

        :raises CleanupIncompleteError: naming some.
        """
        errors = [swept for swept in self._swept if swept.is_error]
        if errors:
            shown = "\n  ".join(f"{swept.key or swept.folder}: {swept.kept}" for swept in errors[:10])
            raise CleanupIncompleteError(
                f"The clean-up of the checkpoint store {self.store.uri} has done all but {len(errors)} of its generations, which "
                f"it left as they are:\n  {shown}"
                + (f"\n  and {len(errors) - 10} more: see the log" if len(errors) > 10 else "")
                + "\nSee to these, and run it again."
            )

    def _table_of(self, checkpoint: Checkpoint) -> Table:
        """The table of a generation, as the DAG says it; each is opened once."""
        header = checkpoint.header
        self._connections.require(checkpoint, header.key)
        place = (header.table.format, header.table.identifier, header.table.branch)
        if place not in self._tables or header.table.creation is not None:
            self._tables[place] = table_of(checkpoint, header.key, self._connections)
        return self._tables[place]


def _record(swept: SweptGeneration) -> SweptRecord:
    return SweptRecord(
        idempotence_key=swept.key,
        folder=swept.folder,
        generation=swept.generation,
        state=None if swept.state is None else swept.state.value,
        objects=swept.objects,
        object_bytes=swept.object_bytes,
        files=swept.files,
        file_bytes=swept.file_bytes,
        kept=swept.kept,
    )


def _totals(swept: list[SweptGeneration], counts: Counts) -> SweepTotals:
    cleaned = [generation for generation in swept if not generation.kept]
    return SweepTotals(
        cleaned=len(cleaned),
        objects=sum(generation.objects for generation in cleaned),
        object_bytes=sum(generation.object_bytes for generation in cleaned),
        files=sum(generation.files for generation in cleaned),
        file_bytes=sum(generation.file_bytes for generation in cleaned),
        kept=len(swept) - len(cleaned),
        failed=sum(generation.is_error for generation in swept),
        younger=counts.younger,
        without_records=counts.without_records,
        foreign=counts.foreign,
    )
