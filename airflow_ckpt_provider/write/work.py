"""What one task does with one split: read, transform, write, publish. Runs on an executor, and knows no engine.

The order is the protocol: data files, then the manifest, then the published record. A task that dies anywhere leaves either a
published split or files that nothing refers to and whose names tell whose they are (I3, I4, I12). A split that takes long is
published in pieces before that; one that is done before the first piece would be due is staged as if there were none. Rows at which
the transform fails are put into the store before the record that names them, if the write goes on behind such rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import AGAIN, Piece
from airflow_ckpt_provider.checkpoint.pieces import input_id, require_next
from airflow_ckpt_provider.exceptions import CheckpointMissingError, RowCountError, panics_as_errors
from airflow_ckpt_provider.sources.protocol import ResumableReader
from airflow_ckpt_provider.sources.rejected import file as rejected_file
from airflow_ckpt_provider.sources.transform import steps_of
from airflow_ckpt_provider.tables.staged_files import reading_staged
from airflow_ckpt_provider.tables.writer import Written
from airflow_ckpt_provider.write.naming import in_input, naming
from airflow_ckpt_provider.write.pieces import Input, SaveEvery, WholeSplit, behind, paced, require_owned_pieces, staged_record
from airflow_ckpt_provider.write.rejecting import AgainReader, OnError, Places, Rejecting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, RejectedFile, Split, Staged
    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Reader
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.tables.missing import MissingColumns
    from airflow_ckpt_provider.tables.writer import Writer
    from airflow_ckpt_provider.transforms.steps import Step


@dataclass(frozen=True)
class SplitWork:
    """Everything a task needs for any split of one attempt. Travels to executors by pickle, never into the store.

    :param attempt_id: id of the recorded attempt (I4).
    :param header: of the generation.
    :param code: digest of the code that this attempt runs; see ``Header.code``.
    :param missing: which columns the rows may lack; None if what is written are no whole rows.
    :param save: when a piece of a split is due.
    :param pieces: those that earlier attempts have left, by ``input_id``.
    :param on_error: what becomes of rows at which the transform fails.
    """

    store: CheckpointStore
    paths: CheckpointPaths
    attempt_id: str
    reader: Reader
    transform: Transform | None
    writer: Writer
    header: Header
    code: str
    missing: MissingColumns | None = None
    save: SaveEvery = field(default_factory=SaveEvery)
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    on_error: OnError = field(default_factory=OnError)

    def run(self, split: Split, task_attempt: str, *, repeated: bool = False) -> bool:
        """Stage ``split``.

        :param task_attempt: id of the task attempt, unique within the attempt.
        :param repeated: whether the engine runs the task again, which may have left pieces since the attempt began.
        :returns: True if this call published it, False if it was or became published by another.
        """
        author = f"{self.attempt_id}.{task_attempt}"
        if split.is_input:
            return SplitInPieces(self, split, author).stage(repeated=repeated)
        with naming(split.id), panics_as_errors(f"while split {split.id} was staged"):
            if self.is_staged(split.id):
                return False
            written = self.writer.work(split, self.paths.file_stem(split.id, author))
            return self.publish(WholeSplit(written, staged_record(split.id, author, written)))

    def is_staged(self, split_id: str) -> bool:
        """Whether any task has published the split."""
        return self.store.exists(self.paths.staged(split_id))

    def stage(self, split_id: str, batches: Iterable[pa.RecordBatch], task_attempt: str) -> bool:
        """Stage a split whose rows are at hand, in no order that lasts: all of it or nothing. See ``run``."""
        author, rows = f"{self.attempt_id}.{task_attempt}", self.input_of(split_id, self.steps(batches, 0), 0)
        with naming(split_id), panics_as_errors(f"while split {split_id} was staged"):
            return self.publish(self.write_until(rows, SaveEvery(seconds=None), split_id, author))

    def steps(self, batches: Iterable[pa.RecordBatch], begin: int) -> Iterator[Step]:
        """What becomes of rows of the input.

        :param begin: number of the first of them.
        """
        return steps_of(self.transform, batches, begin, rejecting=self.on_error.rejects)

    def input_of(
        self,
        split_id: str,
        steps: Iterator[Step],
        begin: int,
        places: Places | None = None,
        may_end: Callable[[int], bool] = lambda _: True,
    ) -> Input:
        """What comes out of the input of a split.

        :param places: where its rows stood, if it is made of rejected ones.
        :param may_end: whether a piece may end before a row of the input.
        """
        rejecting = Rejecting(self.store, self.paths, self.on_error, self.header, split_id, places)
        one_each = self.transform is not None and self.transform.one_each
        return Input(steps, begin, rejecting, one_each=one_each, may_end=may_end)

    def write_until(self, rows: Input, save: SaveEvery, split_id: str, author: str) -> WholeSplit:
        """Write what comes out of an input before a piece of it is due, and put what is rejected into the store."""
        begin, missing = rows.row, set[str]()
        with rows.kept_by(author) as rejected:
            written = self.write(rows.until(save, rejected), split_id, author, missing)
            files = rejected.publish()
        record = staged_record(split_id, author, written, missing, self.computed_here, rows.row - begin, files)
        return WholeSplit(written, record)

    def write(self, rows: Iterable[pa.RecordBatch], split_id: str, author: str, missing: set[str]) -> Written:
        """Write rows that are as they are to land.

        :param author: attempt and task attempt, and the piece, if it is one: part of the names of all files.
        :param missing: the names of columns that the rows lack are added here.
        """
        if self.missing is not None:
            rows = self.missing.seen(rows, self.writer.schema, missing)
        return self.writer.write(rows, self.paths.file_stem(split_id, author))

    @property
    def computed_here(self) -> tuple[str, ...]:
        """What a record says of the code that this attempt runs; nothing if it is the header's."""
        return () if self.code == self.header.code else (self.code,)

    def publish(self, whole: WholeSplit) -> bool:
        """Publish a split; whether this call did. If not, what was written for it is removed."""
        won = self.store.create(self.paths.staged(whole.record.split), whole.record)
        if not won:
            self.remove(whole.written, [file for file in whole.record.rejected if file not in whole.of_pieces])
        return won

    def remove(self, written: Written, rejected: Sequence[RejectedFile]) -> None:
        """Remove files that no record names."""
        self.writer.remove(written)
        rejected_file.remove(self.store, [self.paths.rejected(file.split, file.writer) for file in rejected])


class SplitInPieces:
    """One split, on its way.

    :param author: attempt and task attempt.
    """

    def __init__(self, work: SplitWork, split: Split, author: str) -> None:
        self._work = work
        self._split = split
        self._author = author
        self._input_id = input_id(split)
        self._pieces: list[Piece] = list(work.pieces.get(self._input_id, ()))
        self._rows: Input | None = None

    def stage(self, *, repeated: bool) -> bool:
        """Stage the split; see ``SplitWork.run``."""
        work, split = self._work, self._split
        with naming(split.id, self.where), panics_as_errors(f"while split {split.id} was staged"):
            if self._is_staged():
                return False
            if repeated:
                self.follow()
            whole = self.whole()
            won = whole is not None and work.publish(whole)
            # The split is staged now, whoever has done that: if another task, it may not know of the pieces of this one.
            self.remove()
            return won

    def where(self) -> str:
        """How far it is, and in which input, to follow its name in a message."""
        done = self._pieces[-1].end if self._pieces else 0
        reader: Reader = self._work.reader if self._split.task != AGAIN else AgainReader(self._work.store, self._work.paths)
        return in_input(self._split, reader, done if self._rows is None else self._rows.row)

    def whole(self) -> WholeSplit | None:
        """Write what is missing of the split, piece by piece, and then all of it.

        :returns: None if another task has staged it meanwhile.
        """
        while not (self._pieces and self._pieces[-1].last):
            number, begin = len(self._pieces), self._pieces[-1].end if self._pieces else 0
            rows = self._rows
            if rows is None or rows.row != begin:
                rows = self._rows = self._input(begin)
            # The first piece may turn out to be the whole split.
            author = f"{self._author}p{number}" if number else self._author
            written, record, _ = whole = self._work.write_until(rows, self._save, self._split.id, author)
            if rows.ended and not number:
                return whole
            piece = self._piece(record, number, begin, rows)
            if not self._published(piece, written):
                return None
        author = f"{self._author}whole"
        missing = {name for piece in self._pieces for name in piece.missing}
        rejected = tuple(file for piece in self._pieces for file in piece.rejected)
        try:
            written = self._rewritten(author)
        except Exception:
            # Whoever staged the split has removed its pieces.
            if self._is_staged():
                return None
            raise
        record = staged_record(self._split.id, author, written, missing, self._computed_by(), self._pieces[-1].end, rejected)
        return WholeSplit(written, record, self._rejected_by_pieces())

    @property
    def _save(self) -> SaveEvery:
        """When the next piece is due."""
        return self._work.save

    def _input(self, begin: int) -> Input:
        """What comes out of the input from a row on."""
        places = Places() if self._split.task == AGAIN else None
        return self._work.input_of(self._split.id, self._steps(begin, places), begin, places)

    def _piece(self, record: Staged, number: int, begin: int, rows: Input) -> Piece:
        """The record of a piece that ends where its input is now."""
        return Piece(**msgspec.structs.asdict(record), number=number, begin=begin, end=rows.row, last=rows.ended)

    def _rejected_by_pieces(self) -> tuple[RejectedFile, ...]:
        """Rejected rows that records of pieces in the store name."""
        return tuple(file for piece in self._pieces for file in piece.rejected)

    def _computed_by(self) -> tuple[str, ...]:
        """What the record of the split says of the code that has computed its pieces."""
        header = self._work.header.code
        codes = tuple(dict.fromkeys(code for piece in self._pieces for code in (piece.computed_by or (header,))))
        return () if codes == (header,) else codes

    def remove(self) -> None:
        """Remove the files of the pieces, which nothing needs any more. Those that stay are known by their names (I4)."""
        writer = self._work.writer
        for piece in self._pieces:
            writer.remove(Written(piece.rows, piece.bytes, tuple(writer.named_in(piece)), None))

    def _steps(self, begin: int, places: Places | None) -> Iterator[Step]:
        work = self._work
        # Formats without types of their own are read with the table's; a transform gets what the format infers.
        expected = work.writer.schema if work.transform is None else None
        reader: Reader = work.reader if places is None else AgainReader(work.store, work.paths)
        first, rows = 0, None
        if begin and isinstance(reader, ResumableReader):
            first, rows = reader.read_near(self._split, expected, begin)
        batches = behind(reader.read(self._split, expected) if rows is None else rows, begin - first, self._split)
        if places is not None:
            batches = places.passing(batches, begin)
        return work.steps(batches if work.transform is None else paced(batches, work.save, work.transform.first_rows), begin)

    def _published(self, piece: Piece, written: Written) -> bool:
        """Publish a piece. If another task's piece of its number was first, that takes its place, with all that follow it.

        :returns: False if another task has staged the whole split meanwhile.
        """
        work = self._work
        name = work.paths.piece(self._input_id, piece.number)
        if work.store.create(name, piece):
            self._pieces.append(piece)
            return not self._is_staged()
        is_staged = self._is_staged()
        # The other task may be far ahead: what it has done is not done once more.
        if not is_staged and self.follow():
            self._join(piece, written)
            return True
        work.remove(written, piece.rejected)
        if not is_staged:
            raise CheckpointMissingError(
                f"Object {name} existed in the checkpoint store {work.store.uri} a moment ago and is gone. Something deletes from "
                "the store while it is in use; stop that before you retry."
            )
        return False

    def _join(self, piece: Piece, written: Written) -> None:
        """Go on behind the pieces of another task, which was the first to publish one of this number.

        :param piece: of this task.
        """
        self._work.remove(written, piece.rejected)

    def follow(self) -> bool:
        """Take up the pieces behind those that are known, which another task has published; whether there are any."""
        work, known = self._work, len(self._pieces)
        while (piece := work.store.read(work.paths.piece(self._input_id, len(self._pieces)), Piece)) is not None:
            require_next(work.paths, piece, self._split, self._pieces)
            self._pieces.append(piece)
        if len(self._pieces) > known:
            require_owned_pieces(self._pieces, work.writer, Checkpoint(work.store, work.header))
        return len(self._pieces) > known

    def _rewritten(self, author: str) -> Written:
        """The rows of all pieces, in files of their usual size."""
        writer = self._work.writer
        held = [file for piece in self._pieces for file in writer.holding(piece)]
        with reading_staged(held, writer.sizes, self._work.header.table.identifier):
            batches = (batch for piece in self._pieces if piece.rows for batch in writer.read(piece))
            written = writer.rewrite(batches, self._work.paths.file_stem(self._split.id, author))
        rows = sum(piece.rows for piece in self._pieces)
        if written.rows != rows:
            raise RowCountError(f"The pieces of the split {self._split.id} have {rows} rows, but {written.rows} were written (I2).")
        return written

    def _is_staged(self) -> bool:
        return self._work.is_staged(self._split.id)
