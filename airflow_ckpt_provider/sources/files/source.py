"""The ``Files`` source: a file, a folder or a glob, cut into splits of bounded size.

One huge Parquet or ORC file becomes many splits, at row groups or stripes; many small files become one. The listing is
pinned in the plan, so that a retry reads the same files, notices one that changed, and does not pick up new ones.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Pinned, Plan, Split, part_of
from airflow_ckpt_provider.checkpoint.location import normal_uri
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError
from airflow_ckpt_provider.scan.batches import groups_behind
from airflow_ckpt_provider.sources.files.formats import FORMATS, OpenFile, Parquet, unnamed_columns
from airflow_ckpt_provider.sources.files.listing import InputFiles, PinnedFile  # noqa: TC001 - msgspec reads annotations
from airflow_ckpt_provider.sources.packing import DEFAULT_SPLIT_BYTES, pack, require_each_once
from airflow_ckpt_provider.sources.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

#: Files that a message names.
_NAMED = 10

Filter = list[tuple[str, str, Any]] | list[list[tuple[str, str, Any]]]


class FileSlice(msgspec.Struct, frozen=True, array_like=True):
    """A file, or some of its units: from ``first`` up to, not including, ``last``; None for the whole file."""

    file: PinnedFile
    first: int | None = None
    last: int | None = None

    def units_in_words(self, unit: str) -> str:
        """Which units, to follow the file's name; nothing for the whole file."""
        if self.first is None or self.last is None:
            return ""
        return f" ({unit} {self.first})" if self.last - self.first == 1 else f" ({unit}s {self.first} to {self.last - 1})"


class ListedFiles(Pinned, frozen=True, kw_only=True, tag="files"):
    """How many files were listed, and their bytes."""

    files: Count
    bytes: Count


class Files:
    """Files to read.

    :param uri: a file, a folder, or a glob with ``*``, ``?``, ``[…]`` and ``**``; an absolute path or a URI (templated)
    :param format: ``parquet``, ``csv``, ``jsonl`` (one JSON object per line) or ``orc``
    :param max_split_bytes: input bytes of one split, about; a Parquet row group or ORC stripe is never cut
    :param columns: columns to read; all if None (templated)
    :param filter: rows to keep, as pyarrow filter tuples such as ``[("day", "=", "{{ ds }}")]``, a list of which is
        AND and a list of lists of which is OR of ANDs (templated)
    :param conn_id: Airflow connection of type ``checkpoint`` with the storage's credentials; None for those of the
        environment
    :raises InvalidInputError: when the DAG is parsed, for an unknown format or a size that is not positive
    """

    template_fields = ("uri", "columns", "filter")

    #: The operator opens a connection of type ``checkpoint`` for this source.
    conn_kind = "checkpoint"

    #: A plan has each file as it was found; see ``LookingSource``.
    plan_looks = True

    def __init__(
        self,
        uri: str,
        format: str = "parquet",  # noqa: A002 - the name users know from every reader
        max_split_bytes: int = DEFAULT_SPLIT_BYTES,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002 - the name users know from every reader
        conn_id: str | None = None,
    ) -> None:
        if format not in FORMATS:
            raise InvalidInputError(f"Files(format={format!r}): the formats are {', '.join(sorted(FORMATS))}.")
        if max_split_bytes <= 0:
            raise InvalidInputError(f"Files(max_split_bytes={max_split_bytes}): must be positive.")
        if isinstance(columns, str) or (columns is not None and not columns):
            raise InvalidInputError(f"Files(columns={columns!r}): must be a list of at least one column name, or None for all.")
        self.uri = uri
        self.format = format
        self.max_split_bytes = max_split_bytes
        self.columns = None if columns is None else list(columns)
        self.filter = filter or None
        self.conn_id = conn_id

    def serialize(self) -> JsonObject:
        """What Airflow shows of it."""
        return shown("Files", self.uri, format=self.format, columns=self.columns, filter=self.filter, conn_id=self.conn_id)

    def __repr__(self) -> str:
        return f"Files({self.uri!r}, format={self.format!r})"

    def describe(self) -> JsonObject:
        """What decides which rows are read."""
        facts: JsonObject = {"files": normal_uri(self.uri), "format": self.format}
        if self.columns is not None:
            facts["columns"] = self.columns
        if self.filter is not None:
            facts["filter"] = msgspec.to_builtins(self.filter, str_keys=True, order="deterministic")
        return facts

    def plan(self, options: Mapping[str, str]) -> Plan:
        """List the files and cut them into splits."""
        files = InputFiles(self.uri, options).all()
        return Plan(
            created_at=now(),
            source=ListedFiles(files=len(files), bytes=sum(file.size for file in files)).to_json(),
            splits=tuple(self.splits_of(files, options)),
        )

    def splits_of(
        self, files: Sequence[PinnedFile], options: Mapping[str, str], first: int = 0, *, together: bool = True
    ) -> list[Split]:
        """Files that were listed, cut into splits.

        :param first: number of the first split.
        :param together: whether small files share a split.
        """
        inputs = InputFiles(self.uri, options)
        parts = (part for file in files for part in self._pieces(inputs, file))
        splits = pack(parts, self.max_split_bytes, inputs.uri) if together else [([part], size) for part, size in parts]
        return [
            Split(id=f"{number:06d}", bytes=split_bytes, read={"slices": msgspec.to_builtins(of_split)})
            for number, (of_split, split_bytes) in enumerate(splits, first)
        ]

    def _pieces(self, inputs: InputFiles, file: PinnedFile) -> Iterator[tuple[FileSlice, int]]:
        """The file whole if it fits into a split, else cut at units into slices that do."""
        if file.size <= self.max_split_bytes:
            yield FileSlice(file), file.size
            return
        with _naming(inputs, file, self.format):
            units = FORMATS[self.format].units(OpenFile(inputs.objects(), file))
        first = size = 0
        for number, unit_bytes in enumerate(units):
            if number > first and size + unit_bytes > self.max_split_bytes:
                yield FileSlice(file, first, number), size
                first, size = number, 0
            size += unit_bytes
        if first < len(units):
            yield FileSlice(file, first, len(units)), size

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the files of these splits are as they were when they were listed."""
        InputFiles(self.uri, options).verify(part.file for split in splits for part in slices_of(split))

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse slices of one file that overlap; see ``AccountingSource``. What was listed then, nothing tells now."""
        del options
        slices = sorted(
            (part for split in plan.splits if split.task == READ for part in slices_of(split)),
            key=lambda before: (before.file.path, before.first or 0),
        )
        overlapping = (
            before.file.path
            for before, after in itertools.pairwise(slices)
            if before.file.path == after.file.path and (before.last is None or after.first is None or after.first < before.last)
        )
        require_each_once((path for doubled in overlapping for path in (doubled, doubled)), self.uri)

    def news(self, plan: Plan, options: Mapping[str, str]) -> str | None:
        """Files that match now and were not planned, or were written again since; see ``ListableSource.news``."""
        inputs = InputFiles(self.uri, options)
        read = {part.file for split in plan.splits if split.task == READ for part in slices_of(split)}
        paths = {file.path for file in read}
        # A file without a single row group or stripe is in no plan.
        new = [file for file in inputs.all() if file not in read and any(True for _ in self._pieces(inputs, file))]
        if not new:
            return None
        names = [inputs.short_name_of(file) + (" (written again)" if file.path in paths else "") for file in new[:_NAMED]]
        what = "file matches now that was" if len(new) == 1 else "files match now that were"
        return f"{len(new):,} {what} not read: {', '.join(names)}{', …' if len(new) > _NAMED else ''}"

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """Schema of the first file, for formats that carry one, after ``columns``."""
        if not plan.splits:
            return None
        first = slices_of(plan.splits[0])[0].file
        inputs = InputFiles(self.uri, options)
        with _naming(inputs, first, self.format):
            schema = FORMATS[self.format].schema(OpenFile(inputs.objects(), first))
        if schema is None or self.columns is None:
            return schema
        missing = [name for name in self.columns if name not in schema.names]
        if missing:
            raise InvalidInputError(
                f"{inputs.name_of(first)} has no column {', '.join(missing)}; it has {', '.join(schema.names)}."
            )
        return schema.empty_table().select(self.columns).schema

    def reader(self, options: Mapping[str, str]) -> FilesReader:
        """What executors read these files with."""
        return FilesReader(normal_uri(self.uri), self.format, self.columns, self.filter, options)


class FilesReader:
    """Reads splits of ``Files`` on an executor. Picklable."""

    def __init__(
        self, uri: str, format_name: str, columns: list[str] | None, rows: Filter | None, options: Mapping[str, str]
    ) -> None:
        self._uri = uri
        self._format = format_name
        self._columns = columns
        self._filter = rows
        self._options = options
        self._at: FileSlice | None = None

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """Rows of the split, file after file."""
        return self._read(slices_of(split), expected)

    def read_near(self, split: Split, expected: pa.Schema | None, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        """The same without the row groups before that of a row, where the footers of Parquet files tell which those are."""
        file_format, slices, begin = FORMATS[self._format], slices_of(split), 0
        if not isinstance(file_format, Parquet) or self._filter is not None:
            return 0, self._read(slices, expected)
        inputs = InputFiles(self._uri, self._options)
        inputs.verify(part.file for part in slices)
        objects = inputs.objects()
        while slices:
            first = slices[0]
            with _naming(inputs, first.file, self._format):
                rows = file_format.rows(OpenFile(objects, first.file))
            units = range(len(rows)) if first.first is None or first.last is None else range(first.first, first.last)
            done, rows_done = groups_behind(rows[units.start : units.stop], row - begin)
            begin, units = begin + rows_done, units[done:]
            if units:
                return begin, self._read([FileSlice(first.file, units.start, units.stop), *slices[1:]], expected)
            slices = slices[1:]
        return begin, iter(())

    def places(self, split: Split) -> list[str]:
        """The file at which it is, or all, each with the units of it that are read."""
        inputs, unit, parts = InputFiles(self._uri, self._options), FORMATS[self._format].unit, slices_of(split)
        if self._at is not None and self._at.file in [part.file for part in parts]:
            parts = [self._at]
        return [inputs.name_of(part.file) + part.units_in_words(unit) for part in parts]

    def _read(self, slices: Sequence[FileSlice], expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        inputs = InputFiles(self._uri, self._options)
        inputs.verify(part.file for part in slices)
        objects = inputs.objects()
        for part in slices:
            self._at = part
            units = None if part.first is None or part.last is None else range(part.first, part.last)
            opened = OpenFile(objects, part.file)
            with _naming(inputs, part.file, self._format):
                unnamed = unnamed_columns(self._format, opened, expected) if self._columns is None else frozenset()
                for batch in FORMATS[self._format].read(opened, units, self._read_columns(), expected):
                    yield _without(self._keep(batch), unnamed)

    def _read_columns(self) -> list[str] | None:
        if self._columns is None:
            return None
        return list(dict.fromkeys([*self._columns, *_filter_columns(self._filter)]))

    def _keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows and columns asked for."""
        if self._filter is not None:
            from pyarrow.parquet import filters_to_expression

            batch = batch.filter(filters_to_expression(self._filter))
        return batch if self._columns is None else batch.select(self._columns)


def _without(batch: pa.RecordBatch, unnamed: frozenset[str]) -> pa.RecordBatch:
    """The batch without those of these columns that have no value in it: its rows do not have them."""
    empty = [name for name in batch.schema.names if name in unnamed and batch.column(name).null_count == batch.num_rows]
    # Without any column it would have no rows either.
    return batch.drop_columns(empty) if 0 < len(empty) < batch.num_columns else batch


@contextlib.contextmanager
def _naming(inputs: InputFiles, file: PinnedFile, format_name: str) -> Iterator[None]:
    """Errors of reading ``file`` name it, and tell a file that was changed from one that was never right.

    :raises InputChangedError: if it changed while it was read (I6).
    :raises InvalidInputError: if it is not what ``Files`` was told.
    """
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise InputChangedError(f"The input file {inputs.name_of(file)} went away while it was read.") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, KeyError, OSError) as error:
        # What is wrong in the file itself is a bare OSError to Arrow's ORC reader and decompressors.
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise
        inputs.verify([file])
        raise InvalidInputError(
            f"The input file {inputs.name_of(file)} cannot be read as {format_name} with these columns and this filter: "
            f"{str(error).rstrip('.')}. Correct the file or the parameters of Files, or leave the file out."
        ) from error


def slices_of(split: Split) -> list[FileSlice]:
    """What a split of a ``Files`` plan reads."""
    return part_of(split.read.get("slices"), list[FileSlice])


def _filter_columns(rows: Filter | None) -> list[str]:
    if not rows:
        return []
    flat: list[Any] = [term for ands in rows for term in ands] if isinstance(rows[0], list) else list(rows)
    return [str(term[0]) for term in flat]
