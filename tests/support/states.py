"""What readers see of a table, without what differs between two tables that were written in the same way.

Random ids in names and numbers, the table's own place and the clock are numbered or left out. Everything else counts: metadata, all
records of manifest lists and manifests with the schemas that they were written with, and the bytes of the data files.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from typing import TYPE_CHECKING, Any

import fastavro

from airflow_ckpt_provider.tables.summary import IDENTITY

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: Random parts of names: UUIDs, and the ids of keys, attempts and splits, which a word may go before.
_RANDOM = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{12,64}(?![0-9a-f])")
_TIMES = {"timestamp-ms", "last-updated-ms"}


def state_of(table: Table) -> str:
    """Equal for two tables if readers must find the same in both."""
    return _State(table).digest()


class _State:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._document = json.loads(self._bytes(table.metadata_location))
        self._numbers: dict[str, str] = {}
        snapshots = list(enumerate(self._document.get("snapshots", [])))
        self._snapshots = {one["snapshot-id"]: f"<snapshot {n}>" for n, one in snapshots}
        self._texts = {str(number): name for number, name in self._snapshots.items()} | {
            one["summary"][IDENTITY]: f"<identity {n}>" for n, one in snapshots if IDENTITY in one.get("summary", {})
        }

    def digest(self) -> str:
        lists = [one["manifest-list"] for one in self._document.get("snapshots", [])]
        manifests = {record["manifest_path"]: None for path in lists for record in self._avro(path)["records"]}
        files = {record["data_file"]["file_path"]: None for path in manifests for record in self._avro(path)["records"]}
        found = {
            "metadata": self._plain(self._document, timed=True),
            "lists": [self._plain(self._list(path)) for path in lists],
            "manifests": [self._plain(self._avro(path)) for path in manifests],
            "files": [hashlib.sha256(self._bytes(path)).hexdigest() for path in files],
        }
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def _list(self, path: str) -> dict[str, Any]:
        """A manifest list; of the sizes of manifests, which are packed, only whether they are told right."""
        found = self._avro(path)
        for record in found["records"]:
            record["manifest_length"] = record["manifest_length"] == len(self._bytes(record["manifest_path"]))
        return found

    def _avro(self, path: str) -> dict[str, Any]:
        reader = fastavro.reader(io.BytesIO(self._bytes(path)))
        return {"path": path, "header": dict(reader.metadata), "records": list(reader)}

    def _bytes(self, path: str) -> bytes:
        with self._table.io.new_input(path).open() as file:
            return file.read()

    def _plain(self, value: Any, *, timed: bool = False) -> Any:
        match value:
            case dict():
                return {
                    self._named(key): "<time>" if timed and key in _TIMES else self._plain(one, timed=timed)
                    for key, one in value.items()
                }
            case list() | tuple():
                return [self._plain(one, timed=timed) for one in value]
            case str():
                return self._named(value)
            case int() | None:
                return self._snapshots.get(value, value)
            case bytes():
                return {"bytes": value.hex()}
            case _:
                return repr(value)

    def _named(self, text: str) -> str:
        """Random ids by the order in which they are met, so that the same one is the same everywhere."""
        text = text.replace(self._table.location(), "<table>")
        for random, name in self._texts.items():
            text = text.replace(random, name)
        return _RANDOM.sub(lambda match: self._numbers.setdefault(match[0], f"<{len(self._numbers)}>"), text)
