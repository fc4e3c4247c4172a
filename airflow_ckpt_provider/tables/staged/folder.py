"""The objects of a folder of rows: reading them, and putting what is not there yet."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations of its structs at run time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Part, StagedFile, fingerprint, part_of  # noqa: TC001 - as above
from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, RetryableError
from airflow_ckpt_provider.scan.objects import RemoteFile, listed_sizes
from airflow_ckpt_provider.tables.decoding import decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from obstore.store import ObjectStore

    from airflow_ckpt_provider.checkpoint.documents import TableBinding

P = TypeVar("P", bound=Part)

TABLE, DATA, COMMITS = "table.json", "data/", "commits/"


class TableFacts(Part, frozen=True, kw_only=True):
    """Content of ``table.json``.

    :param columns: the Arrow schema, as Arrow serialises it, in base64.
    """

    uuid: str
    columns: str

    @classmethod
    def of(cls, uuid: str, schema: pa.Schema) -> TableFacts:
        """The facts of a table of these columns."""
        return cls(uuid=uuid, columns=base64.b64encode(schema.serialize().to_pybytes()).decode())

    @classmethod
    def pinned(cls, binding: TableBinding) -> TableFacts | None:
        """The facts that a header has pinned of a folder without ``table.json``; None of one that has it."""
        if binding.creation is None:
            return None
        return cls(uuid=binding.uuid, columns=part_of(binding.creation.get("columns"), str, "table.creation of the header"))

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        import pyarrow as pa

        try:
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.columns)))
        except (ValueError, EOFError, OSError, pa.ArrowException) as error:
            raise CorruptObjectError(
                f"What a store says of the columns of staged rows cannot be read ({error}). It was altered; nothing was changed. "
                f"Redo the write: {how_to_restart()}."
            ) from error

    @property
    def fingerprint(self) -> str:
        """Digest of its columns."""
        return fingerprint(self.columns)


class RowsCommit(Part, frozen=True, kw_only=True):
    """Content of an object in ``commits/``.

    :param identity: traces of its members; see ``tables.summary``.
    :param files: names below ``data/``, and bytes.
    """

    identity: str
    keys: tuple[str, ...]
    committed_at: datetime
    rows: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class RowsFolder:
    """A folder of rows. Picklable; its options hold credentials."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self) -> ObjectStore:
        """The storage, with the folder as prefix."""
        return StorageLocation(self.uri, self.options).open(create=True)

    def path(self, name: str) -> str:
        """URI of a data file."""
        return f"{self.uri}/{DATA}{name}"

    def file(self, path: str, size: int) -> RemoteFile:
        """A data file, by its URI."""
        return RemoteFile(self.open(), path.removeprefix(f"{self.uri}/"), size)

    def table(self) -> TableFacts | None:
        """What it holds; None if nobody has made it."""
        return self._read(TABLE, TableFacts)

    def commits(self) -> dict[str, RowsCommit]:
        """All commits, by the ids of their groups."""
        names = sorted(name for name, _ in self.listed(COMMITS))
        read = ((name.removesuffix(".json"), self._read(COMMITS + name, RowsCommit)) for name in names)
        return {group: commit for group, commit in read if commit is not None}

    def commit(self, group: str) -> RowsCommit | None:
        """The commit of a group; None if it has not landed."""
        return self._read(f"{COMMITS}{group}.json", RowsCommit)

    def put_table(self, facts: TableFacts) -> TableFacts:
        """Make the table, unless there is one. Returns that which is there then."""
        return facts if self._put(TABLE, facts) else (self.table() or facts)

    def put_commit(self, group: str, commit: RowsCommit) -> bool:
        """Land a commit. Returns False if it had landed before."""
        return self._put(f"{COMMITS}{group}.json", commit)

    def listed(self, folder: str) -> Iterator[tuple[str, int]]:
        """Names of objects in a folder of it, and their bytes."""
        import obstore

        for chunk in obstore.list(self.open(), folder.rstrip("/")):
            for entry in chunk:
                yield entry["path"].removeprefix(folder), entry["size"]

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of objects, by their URIs; None for one that is gone."""
        store = self.open()
        names = [path.removeprefix(f"{self.uri}/") for path in paths]
        known = listed_sizes(store, names)
        return [known.get(name) or _size(store, name) for name in names]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, by their URIs. Those that are gone already are passed over."""
        import obstore

        store = self.open()
        for path in paths:
            try:
                obstore.delete(store, path.removeprefix(f"{self.uri}/"))
            except FileNotFoundError:
                continue

    def _read(self, name: str, kind: type[P]) -> P | None:
        import obstore

        try:
            data = bytes(obstore.get(self.open(), name).bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RetryableError(f"{self.uri}/{name} could not be read: {type(error).__name__}: {error}") from error
        remedy = "Nothing was changed. Restore the object, or write into another folder."
        return decoded(data, kind, f"{self.uri}/{name}", remedy)

    def _put(self, name: str, content: Part) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self.open(), name, msgspec.json.encode(content), mode="create")
        except AlreadyExistsError:
            return False
        return True


def _size(store: ObjectStore, name: str) -> int | None:
    import obstore

    try:
        return obstore.head(store, name)["size"]
    except FileNotFoundError:
        return None
