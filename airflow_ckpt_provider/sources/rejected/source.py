"""The ``Rejected`` source: rows of the input of another write at which its transform failed, so that they are written after all.

What is read is pinned by the seal of that write, which a reference vouches for (I15): the seal names the files of rejected rows,
each with its SHA-256.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import (  # msgspec reads the annotations of its structs at run time
    Count,  # noqa: TC001
    Generation,  # noqa: TC001
)
from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Pinned, Plan, RejectedFile, Split, part_of
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.checkpoint.reference import pointers, resolve
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import CheckpointMissingError, InvalidInputError
from airflow_ckpt_provider.sources.packing import DEFAULT_SPLIT_BYTES, pack, require_each_once
from airflow_ckpt_provider.sources.rejected.file import COLUMNS, require_there, rows_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.checkpoint.reference import Reference


class RejectedInput(Pinned, frozen=True, kw_only=True, tag="rejected"):
    """Whose rejected rows a plan reads.

    :param sealed: digest of the seal that names them.
    """

    key: str
    generation: Generation
    sealed: str
    rows: Count


class Rejected:
    """Rows that a sealed write has left out, because its transform failed at them: their columns as they came in.

    A second stage with a corrected transform writes them, exactly once, under its own key::

        again = CheckpointedIcebergWriteOperator(
            task_id="stage_rejected", table="shop.orders", source=Rejected(stage.output), transform=Map(corrected, ...))

    :param checkpoint: what the stage has returned, or its idempotence key (templated)
    :param with_errors: whether the rows have the columns ``_error``, ``_traceback``, ``_split`` and ``_row`` too: type and message
        of the error, the lines of the user's code that led there, and where the row stood in the input
    :param checkpoint_conn_id: connection of type ``checkpoint``; that of the reference, or the default one for a key, if None
    :raises InvalidInputError: for what is neither
    """

    template_fields = ("checkpoint",)

    def __init__(self, checkpoint: Reference | str, *, with_errors: bool = False, checkpoint_conn_id: str | None = None) -> None:
        if not isinstance(checkpoint, str | dict) and not hasattr(checkpoint, "resolve"):
            raise InvalidInputError(f"Rejected({checkpoint!r}): pass what a stage returns (stage.output), or an idempotence key.")
        self.checkpoint: Any = checkpoint
        self.with_errors = with_errors
        self.checkpoint_conn_id = checkpoint_conn_id

    def __repr__(self) -> str:
        return "Rejected(...)"

    @property
    def pointer(self) -> str | Reference:
        """What was given, once templates are rendered.

        :raises InvalidInputError: if it is no single reference or key.
        """
        given, several = pointers(self.checkpoint)
        if several:
            raise InvalidInputError(
                "Rejected takes one reference or key: write the rejected rows of each mapped task by themselves."
            )
        return given[0]

    def store_conn_id(self) -> str:
        """Connection of the store.

        :raises InvalidInputError: if a reference has another one than this was given.
        """
        pointer, given = self.pointer, self.checkpoint_conn_id
        if isinstance(pointer, str):
            return given or "checkpoint_default"
        if given not in {None, pointer["checkpoint_conn_id"]}:
            raise InvalidInputError(
                f"Rejected: the reference to the key {pointer['idempotence_key']!r} is of the checkpoint connection "
                f"{pointer['checkpoint_conn_id']!r}, and checkpoint_conn_id={given!r} is given. Leave it out."
            )
        return pointer["checkpoint_conn_id"]

    def opened(self, store: CheckpointStore) -> RejectedSource:
        """The rows, in their store."""
        return RejectedSource(self.pointer, store, with_errors=self.with_errors)


class RejectedSource:
    """``Rejected``, with the store in which the rows are; see ``Source``, whose words the methods have."""

    conn_id: str | None = None
    conn_kind = "checkpoint"

    def __init__(self, pointer: str | Reference, store: CheckpointStore, *, with_errors: bool = False) -> None:
        self._pointer = pointer
        self._store = store
        self._with_errors = with_errors

    def __repr__(self) -> str:
        pointer = self._pointer
        return f"the rows that the key {pointer if isinstance(pointer, str) else pointer['idempotence_key']!r} has rejected"

    def describe(self) -> JsonObject:
        """Whose rejected rows are read."""
        pointer = self._pointer
        facts: JsonObject = {"rejected": pointer if isinstance(pointer, str) else pointer["idempotence_key"]}
        if not isinstance(pointer, str):
            facts |= {"generation": pointer["generation"], "sealed": pointer["sealed"]}
        if self._with_errors:
            facts["with_errors"] = True
        return facts

    def plan(self, options: Mapping[str, str]) -> Plan:
        """The files that the seal names, as splits."""
        write = self._write()
        header, files = write.header, write.seal.rejected
        splits = pack(((file, file.bytes) for file in files), DEFAULT_SPLIT_BYTES, f"What the key {header.key!r} has rejected")
        pinned = RejectedInput(
            key=header.key, generation=header.generation, sealed=write.seal.digest, rows=write.seal.rejected_rows
        )
        return Plan(
            created_at=now(),
            source=pinned.to_json(),
            splits=tuple(
                Split(id=f"{number:06d}", bytes=size, read=_read(header.key, header.generation, of_split))
                for number, (of_split, size) in enumerate(splits)
            ),
        )

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the files of these splits are there.

        :raises CorruptObjectError: naming one that is not.
        """
        for split in splits:
            paths, files = _files(split)
            require_there(self._store, paths, files)

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse a plan that does not read each file that the seal names once, and no other; see ``AccountingSource``."""
        write = self._write(part_of(plan.source, RejectedInput, "source of a plan").sealed)
        header = write.header
        paths = CheckpointPaths(write.checkpoint.key.hash, header.generation)
        named = {_name(paths, file) for file in write.seal.rejected}
        reads = [_name(*pair) for split in plan.splits if split.task == READ for pair in _pairs(split)]
        require_each_once([*reads, *(name for name in reads if name not in named)], f"what {header.key!r} has rejected", named)

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """Columns of the first rows; None if there are none."""
        for split in plan.splits:
            for batch in self.reader(options).read(split, None):
                return batch.schema
        return None

    def reader(self, options: Mapping[str, str]) -> RejectedReader:
        """What executors read the files with."""
        # Without the keys that sign: the SHA-256 of each file is in the plan, which is signed.
        return RejectedReader(CheckpointStore(self._store.location), with_errors=self._with_errors)

    def _write(self, sealed: str | None = None) -> SealedWrite:
        """The write that has rejected the rows.

        :param sealed: digest of the seal that was pinned.
        :raises BindingMismatchError: if the store has another seal than a reference vouches for (I15).
        """
        pointer, store = self._pointer, self._store
        checkpoint = resolve(store, pointer)
        if checkpoint is None:
            raise CheckpointMissingError(
                f"There is no checkpoint under the key {pointer!r} in the store {store.uri}. Check the key, and that the stage ran."
            )
        if checkpoint.vouched is None:
            checkpoint.vouched = sealed
        checkpoint.require_live()
        seals = checkpoint.seals()
        # A write that is sealed again, because its table has moved, has the same rows of the input.
        seal = next((seal for seal in seals if seal.digest == checkpoint.vouched), None)
        write = SealedWrite(checkpoint, seal)
        write.require_handed_over()
        return write


class RejectedReader:
    """Reads files of rejected rows on an executor. Picklable; holds credentials, so it is never stored."""

    def __init__(self, store: CheckpointStore, *, with_errors: bool) -> None:
        self._store = store
        self._columns = COLUMNS if with_errors else ()

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The rows, file after file."""
        del expected
        for paths, file in _pairs(split):
            yield from rows_in(self._store, paths, file, self._columns)


def _read(key: str, generation: int, files: Sequence[RejectedFile]) -> JsonObject:
    return {"rejected": [IdempotenceKey(key).hash, generation, msgspec.to_builtins(files)]}


def _files(split: Split) -> tuple[CheckpointPaths, list[RejectedFile]]:
    """What a split reads: whose files, and which."""
    key_hash, generation, files = part_of(split.read.get("rejected"), tuple[str, int, list[RejectedFile]])
    return CheckpointPaths(key_hash, generation), files


def _pairs(split: Split) -> list[tuple[CheckpointPaths, RejectedFile]]:
    paths, files = _files(split)
    return [(paths, file) for file in files]


def _name(paths: CheckpointPaths, file: RejectedFile) -> str:
    """Which file, with its content, in which generation."""
    return f"{paths.rejected(file.split, file.writer)} ({file.rows} rows, {file.sha256})"
