"""The ``Staged`` source: rows that an earlier stage of the DAG has sealed and that no commit lands.

What is read is what a reference says: which key, which generation, and the digest of what is sealed. The files are listed and
pinned as those of ``Files`` are, one split for each split of the stage before, so that as many tasks work on the next stage as
worked on that one.
"""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Plan
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import author_of, rows_folder
from airflow_ckpt_provider.checkpoint.readers import begin_reading, described, require_readable
from airflow_ckpt_provider.checkpoint.reference import given_twice, pointers, require_whole, resolve
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError, StagedFileMissingError
from airflow_ckpt_provider.sources.files.listing import InputFiles
from airflow_ckpt_provider.sources.files.source import Files, ListedFiles, slices_of
from airflow_ckpt_provider.sources.packing import DEFAULT_SPLIT_BYTES, strange_plan
from airflow_ckpt_provider.sources.shown import keys_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Split
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.files.listing import PinnedFile
    from airflow_ckpt_provider.sources.protocol import Reader

#: Name of the format in references to rows that the next task reads.
_FORMAT = "staged"


class Staged:
    """Rows that a ``CheckpointedTransformOperator`` has staged.

    :param reference: its output, such as ``parse.output``; a list of several, or the output of a mapped stage, for all of their
        rows (templated)
    :param max_split_bytes: bytes of one split, about; staged files that are larger are cut at row groups, smaller ones are not
        gathered
    """

    template_fields = ("reference",)

    def __init__(self, reference: Any, max_split_bytes: int = DEFAULT_SPLIT_BYTES) -> None:  # noqa: ANN401 - a reference or an XCom
        if max_split_bytes <= 0:
            raise InvalidInputError(f"Staged(max_split_bytes={max_split_bytes}): must be positive.")
        if reference is None or isinstance(reference, str):
            raise InvalidInputError(
                f"Staged({reference!r}): it takes the output of a CheckpointedTransformOperator, such as parse.output, which says "
                "what was staged."
            )
        self.reference = reference
        self.max_split_bytes = max_split_bytes

    def serialize(self) -> JsonObject:
        """What Airflow shows of it."""
        return shown("Staged", keys_of(self.reference))

    def __repr__(self) -> str:
        return "Staged(...)"

    @property
    def references(self) -> list[Reference]:
        """What is read, once templates are rendered.

        :raises InvalidInputError: if it is no reference to rows for the next task, or an instance of a mapped stage is missing.
        """
        given, _ = pointers(self.reference)
        references = [pointer for pointer in given if not isinstance(pointer, str)]
        if len(references) < len(given):
            raise InvalidInputError(f"{given!r} has a key in it. A reference says what is sealed; a key alone does not.")
        of_tables = [reference for reference in references if reference["format"] != _FORMAT]
        if of_tables:
            raise InvalidInputError(
                f"The rows of the key {of_tables[0]['idempotence_key']!r} are staged for the table {of_tables[0]['table']}, not "
                "for another task. Read the table once they are committed, or stage them with a CheckpointedTransformOperator."
            )
        if len({reference["checkpoint_conn_id"] for reference in references}) > 1:
            raise InvalidInputError("The stages that are read have different checkpoint connections. Give them one.")
        twice = given_twice(references)
        if twice is not None:
            raise InvalidInputError(
                f"The rows of the key {twice!r} are given twice, and would be read twice. Give each stage once."
            )
        require_whole(references)
        return references

    def store_conn_id(self) -> str:
        """Connection of the store that has the rows."""
        return self.references[0]["checkpoint_conn_id"]

    def opened(self, store: CheckpointStore) -> StagedRows:
        """The rows, in their store. Nothing is read of it before there is something to plan."""
        return StagedRows(self.references, store, self.max_split_bytes)


class StagedRows:
    """``Staged``, with the store in which the rows are; see ``Source``, whose words the methods have."""

    conn_kind = "checkpoint"

    #: A plan has each file as it was found; see ``LookingSource``.
    plan_looks = True

    def __init__(self, references: Sequence[Reference], store: CheckpointStore, max_split_bytes: int) -> None:
        self.conn_id: str | None = references[0]["checkpoint_conn_id"]
        self._references = references
        self._store = store
        self._max_split_bytes = max_split_bytes
        self._folders = [
            f"{rows_folder(store.uri, IdempotenceKey(reference['idempotence_key']).hash)}/data" for reference in references
        ]
        #: The same, as globs of their files: a bracket in the name of a folder stands for itself.
        self._globs = [f"{glob.escape(folder)}/*.parquet" for folder in self._folders]

    def __repr__(self) -> str:
        return f"the rows staged under {', '.join(repr(reference['idempotence_key']) for reference in self._references)}"

    def describe(self) -> JsonObject:
        """Whose rows are read, and which: a key that says what it was made of says that, too."""
        return described(self._references)

    def begin_reading(self, reader: Header) -> None:
        """Record who reads the rows; see ``checkpoint.readers``.

        :raises InvalidInputError: for a reader of another store: whether that one is done could not be told in this one.
        """
        if reader.connections.checkpoint != self.conn_id:
            raise InvalidInputError(
                f"The rows of the key {self._references[0]['idempotence_key']!r} are in the store of {self.conn_id!r}, and the "
                f"task of the key {reader.key!r} has checkpoint_conn_id={reader.connections.checkpoint!r}. Give both the same one: "
                "rows are freed by what their store says of those who read them."
            )
        for checkpoint in self._checkpoints():
            begin_reading(checkpoint, reader)

    def plan(self, options: Mapping[str, str]) -> Plan:
        """List the sealed files, and cut those that are large."""
        splits: list[Split] = []
        listed: list[PinnedFile] = []
        for checkpoint, folder, pattern in zip(self._checkpoints(), self._folders, self._globs, strict=True):
            files = self._sealed_files(checkpoint, folder, pattern, options)
            listed += files
            splits += self._files(pattern).splits_of(files, options, len(splits), together=False)
        size = sum(file.size for file in listed)
        return Plan(created_at=now(), source=ListedFiles(files=len(listed), bytes=size).to_json(), splits=tuple(splits))

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the files of these splits are as they were when they were listed."""
        InputFiles(self._all, options).verify(part.file for split in splits for part in slices_of(split))

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse a plan that reads other files than are sealed, or one twice; see ``AccountingSource``."""
        self._files(self._all).require_once(plan, options)
        self._require_generations(plan)
        files = {part.file for split in plan.splits if split.task == READ for part in slices_of(split)}
        sealed = (sum(ref["files"] for ref in self._references), sum(ref["bytes"] for ref in self._references))
        if (len(files), sum(file.size for file in files)) != sealed:
            raise strange_plan(f"reads {len(files)} files of {self!r}, which are {sealed[0]}")

    def news(self, plan: Plan, options: Mapping[str, str]) -> str | None:
        """Nothing: what is sealed stays as it is."""
        del plan, options
        return None

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """Columns of the first file."""
        return self._files(self._all).schema(plan, options)

    def reader(self, options: Mapping[str, str]) -> Reader:
        """What executors read the files with."""
        return self._files(self._all).reader(options)

    @property
    def _all(self) -> str:
        """What names the files of all stages that are read, and no others but their kind."""
        if len(self._globs) == 1:
            return self._globs[0]
        return f"{rows_folder(glob.escape(self._store.uri), '*')}/data/*.parquet"

    def _files(self, uri: str) -> Files:
        return Files(uri, max_split_bytes=self._max_split_bytes, conn_id=self.conn_id)

    def _checkpoints(self) -> Iterator[Checkpoint]:
        for reference in self._references:
            checkpoint = resolve(self._store, reference)
            if checkpoint is not None:
                yield checkpoint

    def _require_generations(self, plan: Plan) -> None:
        """Refuse a plan of rows that were computed once more since, which a key that stands for what was computed does not tell.

        :raises InputChangedError: naming the key.
        """
        read = {IdempotenceKey(ref["idempotence_key"]).hash: ref for ref in self._references}
        for split in plan.splits:
            for part in slices_of(split) if split.task == READ else ():
                author = author_of(part.file.path.rpartition("/")[2])
                reference = read.get(author.key_hash) if author is not None else None
                if author is None or reference is None or author.generation == reference["generation"]:
                    continue
                raise InputChangedError(
                    f"The rows of the key {reference['idempotence_key']!r} were computed once more since this write was "
                    f"planned: it reads generation {author.generation} of them, and was given generation "
                    f"{reference['generation']}. Redo the write: {how_to_restart()}."
                )

    def _sealed_files(self, checkpoint: Checkpoint, folder: str, pattern: str, options: Mapping[str, str]) -> list[PinnedFile]:
        """The files of a sealed write, as they are now, in the order of its splits.

        :raises DiscardedError: if they were given up.
        :raises StagedFileMissingError: if one is gone, or is of another size than was staged.
        """
        require_readable(checkpoint)
        write = SealedWrite(checkpoint)
        write.require_handed_over()
        write.require_agreeing()
        sealed = [file for record in write.staged for file in record.files]
        if not sealed:
            return []
        listed = {file.path.rpartition("/")[2]: file for file in InputFiles(pattern, options).all()}
        pinned: list[PinnedFile] = []
        for file in sealed:
            name = file.path.rpartition("/")[2]
            file_listed = listed.get(name)
            if file.path != f"{folder}/{name}" or file_listed is None or file_listed.size != file.bytes:
                raise StagedFileMissingError(
                    f"The staged file {file.path} of the key {checkpoint.key.value!r} is gone or damaged, and this task reads it. "
                    "Something deletes below the checkpoint store: stop it. Clear the stage of that key, which stages what is "
                    f"missing, and then this task; or {how_to_restart(checkpoint.header)}."
                )
            pinned.append(file_listed)
        return pinned
