"""Sidecars: which source rows a file of the table holds already, so that they are not inserted.

A Parquet file of row numbers; each row group is about one staged source file, and the file says which.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.tables.iceberg.upsert.facts import FACTS, IntermediateFile, facts_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from airflow_ckpt_provider.tables.keys.index import Positions

#: Name under which a sidecar says which staged source file each of its row groups is about.
_SOURCES = b"sources"

#: Staged source files that a record names; if more are concerned, it names none, and the sidecar has to be looked into.
_NAMED = 16


class MatchSidecar(IntermediateFile, frozen=True, kw_only=True, tag="iceberg_sidecar"):
    """One sidecar.

    :param rows: matched source rows.
    :param sources: paths of the staged source files that they are in; empty if these are many.
    """

    rows: Count
    sources: tuple[str, ...] = ()


class SidecarWriter(contextlib.ExitStack):
    """Writes a sidecar; no file comes to be if nothing is added."""

    def __init__(self, io: FileIO, path: str) -> None:
        super().__init__()
        self._io = io
        self._path = path
        self._sources: list[str] = []
        self._rows = 0
        self._writer: Any = None

    def add(self, source: str, rows: Positions) -> None:
        """Add rows of one staged source file, sorted by number."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not len(rows):
            return
        table = pa.table({"row": rows})
        if self._writer is None:
            stream = self.enter_context(self._io.new_output(self._path).create(overwrite=True))
            encoding = {"use_dictionary": False, "column_encoding": {"row": "DELTA_BINARY_PACKED"}, "write_statistics": False}
            self._writer = self.enter_context(pq.ParquetWriter(stream, table.schema, compression="zstd", **encoding))
        self._writer.write_table(table, row_group_size=len(rows))
        self._sources.append(source)
        self._rows += len(rows)

    def finish(self) -> MatchSidecar | None:
        """Close the file."""
        if self._writer is None:
            return None
        named = sorted(set(self._sources))
        written = MatchSidecar(path=self._path, bytes=0, rows=self._rows, sources=tuple(named) if len(named) <= _NAMED else ())
        self._writer.add_key_value_metadata({_SOURCES: msgspec.json.encode(self._sources), FACTS: facts_of(written)})
        self.close()
        return msgspec.structs.replace(written, bytes=len(self._io.new_input(self._path)))


def mark_matched(io: FileIO, sidecar: MatchSidecar, source: str, matched: Any) -> None:  # noqa: ANN401 - a numpy array of booleans
    """Set ``matched`` at the rows of this staged source file that the sidecar names."""
    import pyarrow.parquet as pq

    if sidecar.sources and source not in sidecar.sources:
        return
    with io.new_input(sidecar.path).open() as stream:
        file = pq.ParquetFile(stream)
        sources = msgspec.json.decode(file.metadata.metadata[_SOURCES], type=list[str])
        for number, path in enumerate(sources):
            if path == source:
                matched[file.read_row_group(number, use_threads=False).column("row").to_numpy()] = True
