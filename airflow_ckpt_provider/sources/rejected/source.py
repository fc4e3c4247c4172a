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
from airflow_ckpt_provider.checkpoint.documents import READ, Part, Pinned, Plan, RejectedFile, Split, part_of
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.checkpoint.reference import given_twice, key_of, pointers, require_whole, resolve
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import CheckpointMissingError, InvalidInputError
from airflow_ckpt_provider.sources.packing import DEFAULT_SPLIT_BYTES, pack, require_each_once
from airflow_ckpt_provider.sources.rejected.file import COLUMNS, require_there, rows_in
from airflow_ckpt_provider.sources.shown import keys_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.checkpoint.reference import Reference


class RejectedWrite(Part, frozen=True, kw_only=True):
    """A write whose rejected rows a plan reads.

    :param sealed: digest of the seal that names them.
    """

    key: str
    generation: Generation
    sealed: str
    rows: Count


class RejectedInput(Pinned, frozen=True, kw_only=True, tag="rejected"):
    """Whose rejected rows a plan reads."""

    writes: tuple[RejectedWrite, ...]


class Rejected:
    """Rows that a sealed write has left out, because its transform failed at them: their columns as they came in.

    A second stage with a corrected transform writes them, exactly once, under its own key::

        again = CheckpointedIcebergWriteOperator(
            task_id="stage_rejected", table="shop.orders", source=Rejected(stage.output), transform=Map(corrected, ...))

    :param checkpoint: what the stage has returned, or its idempotence key; a list of those, or the output of a mapped stage, for
        what all of them have rejected (templated)
    :param with_errors: whether the rows have the columns ``_error``, ``_traceback``, ``_split`` and ``_row`` too: type and message
        of the error, the lines of the user's code that led there, and where the row stood in the input
    :param checkpoint_conn_id: connection of type ``checkpoint``; that of the reference, or the default one for a key, if None
    :raises InvalidInputError: for what is neither
    """

    template_fields = ("checkpoint",)

    def __init__(
        self,
        checkpoint: Reference | str | Sequence[Reference | str],
        *,
        with_errors: bool = False,
        checkpoint_conn_id: str | None = None,
    ) -> None:
        if not isinstance(checkpoint, str | dict | list | tuple) and not hasattr(checkpoint, "resolve"):
            raise InvalidInputError(
                f"Rejected({checkpoint!r}): pass what a stage returns (stage.output), an idempotence key, or a list of those."
            )
        self.checkpoint: Any = checkpoint
        self.with_errors = with_errors
        self.checkpoint_conn_id = checkpoint_conn_id

    def serialize(self) -> JsonObject:
        """What Airflow shows of it."""
        return shown("Rejected", keys_of(self.checkpoint), with_errors=self.with_errors, checkpoint_conn_id=self.checkpoint_conn_id)

    def __repr__(self) -> str:
        return "Rejected(...)"

    @property
    def pointers(self) -> list[str | Reference]:
        """What was given, once templates are rendered.

        :raises InvalidInputError: if one is neither a reference nor a key, or is there twice, or an instance of a mapped stage is
            missing.
        """
        given, _ = pointers(self.checkpoint)
        twice = given_twice(given)
        if twice is not None:
            raise InvalidInputError(f"Rejected: the key {twice!r} is given twice, and its rows would be read twice. Give it once.")
        require_whole(given)
        return given

    def store_conn_id(self) -> str:
        """Connection of the store.

        :raises InvalidInputError: if a reference has another one than this was given, or than another reference.
        """
        references = [pointer for pointer in self.pointers if not isinstance(pointer, str)]
        given = self.checkpoint_conn_id or (references[0]["checkpoint_conn_id"] if references else "checkpoint_default")
        for reference in references:
            if reference["checkpoint_conn_id"] != given:
                raise InvalidInputError(
                    f"Rejected: the reference to the key {reference['idempotence_key']!r} is of the checkpoint connection "
                    f"{reference['checkpoint_conn_id']!r}, and {given!r} is what is read. Leave checkpoint_conn_id out, and "
                    "read what is in one store at a time."
                )
        return given

    def opened(self, store: CheckpointStore) -> RejectedSource:
        """The rows, in their store."""
        return RejectedSource(self.pointers, store, with_errors=self.with_errors)


class RejectedSource:
    """``Rejected``, with the store in which the rows are; see ``Source``, whose words the methods have."""

    conn_id: str | None = None
    conn_kind = "checkpoint"

    def __init__(self, given: Sequence[str | Reference], store: CheckpointStore, *, with_errors: bool = False) -> None:
        self._pointers = list(given)
        self._store = store
        self._with_errors = with_errors

    def __repr__(self) -> str:
        keys = ", ".join(repr(key_of(pointer)) for pointer in self._pointers)
        return f"the rows rejected under the key{'s' * (len(self._pointers) > 1)} {keys}"

    def describe(self) -> JsonObject:
        """Whose rejected rows are read."""
        facts: JsonObject = {
            "rejected": [
                pointer
                if isinstance(pointer, str)
                else {"key": pointer["idempotence_key"], "generation": pointer["generation"], "sealed": pointer["sealed"]}
                for pointer in self._pointers
            ]
        }
        if self._with_errors:
            facts["with_errors"] = True
        return facts

    def plan(self, options: Mapping[str, str]) -> Plan:
        """The files that the seals name, as splits."""
        writes, splits = list[RejectedWrite](), list[Split]()
        for pointer in self._pointers:
            write = self._write(pointer)
            header, seal = write.header, write.seal
            writes.append(RejectedWrite(key=header.key, generation=header.generation, sealed=seal.digest, rows=seal.rejected_rows))
            files = ((file, file.bytes) for file in seal.rejected)
            for of_split, size in pack(files, DEFAULT_SPLIT_BYTES, f"What the key {header.key!r} has rejected"):
                read = _read(header.key, header.generation, of_split)
                splits.append(Split(id=f"{len(splits):06d}", bytes=size, read=read))
        return Plan(created_at=now(), source=RejectedInput(writes=tuple(writes)).to_json(), splits=tuple(splits))

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the files of these splits are there.

        :raises CorruptObjectError: naming one that is not.
        """
        for split in splits:
            paths, files = _files(split)
            require_there(self._store, paths, files)

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse a plan that does not read each file that the seals name once, and no other; see ``AccountingSource``."""
        pinned = {write.key: write.sealed for write in plan.source_as(RejectedInput).writes}
        named = set[str]()
        for pointer in self._pointers:
            write = self._write(pointer, pinned.get(key_of(pointer)))
            paths = CheckpointPaths(write.checkpoint.key.hash, write.header.generation)
            named |= {_name(paths, file) for file in write.seal.rejected}
        reads = [_name(*pair) for split in plan.splits if split.task == READ for pair in _pairs(split)]
        require_each_once([*reads, *(name for name in reads if name not in named)], repr(self), named)

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

    def _write(self, pointer: str | Reference, sealed: str | None = None) -> SealedWrite:
        """A write that has rejected rows.

        :param sealed: digest of the seal that was pinned.
        :raises BindingMismatchError: if the store has another seal than a reference vouches for (I15).
        """
        store = self._store
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

    def places(self, split: Split) -> list[str]:
        """The files in the checkpoint store."""
        return [f"{self._store.uri}/{paths.rejected(file.split, file.writer)}" for paths, file in _pairs(split)]


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
