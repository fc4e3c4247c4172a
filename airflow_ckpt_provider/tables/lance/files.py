"""The files of a dataset below ``data``: their names, their sizes, and their removal.

Decision: rows are written with Lance's file writer, under names of our own, and the fragment is described by hand. Lance's
``write_fragments`` names files at random and tells the names only of those it has finished, so that nobody could say whose the
files of a killed writer are (I4). The files are the same, and about as fast to write.

Local files go through the object storage that Lance has for them as for any other. Its shorter way gives a file that is being
written a random name, which it keeps if the writer is killed; the other gives it its own name and ``#1`` behind it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.scan.lance import address_of
from airflow_ckpt_provider.scan.objects import listed_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Looks at remote files at the same time.
_LOOKS = 64

#: Small files that are read at the same time.
_READS = 16


@dataclass(frozen=True)
class DatasetFiles:
    """The data files of one dataset. Picklable; the options hold credentials and are never stored."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def address(self) -> str:
        """The URI as Lance takes it."""
        return address_of(self.uri)

    @property
    def write_address(self) -> str:
        """The URI as Lance takes it to write files below it; percent-decoded, other than ``address``."""
        if not self.uri.startswith("file://"):
            return self.uri
        return "file-object-store://" + quote(self.address)

    def path(self, name: str) -> str:
        """URI of a data file, as staged records name it."""
        return f"{self.uri}/data/{name}"

    def put(self, name: str, content: bytes) -> StagedFile:
        """Write a small file of the dataset.

        :param name: below the dataset's root.
        """
        import obstore

        obstore.put(StorageLocation(self.uri, self.options).open(), name, content)
        return StagedFile(f"{self.uri}/{name}", len(content))

    def _name(self, path: str) -> str:
        """Name of a file below the dataset's root, from its URI."""
        return path.removeprefix(f"{self.uri}/")

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Options as Lance takes them."""
        return dict(self.options) or None

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Sizes in bytes, None for files that are not there."""
        location = StorageLocation(self.uri, self.options)
        if location.scheme == "file":
            return [_local_size(path.removeprefix("file://")) for path in paths]
        import obstore

        store = location.open()
        names = [self._name(path) for path in paths]
        listed = listed_sizes(store, names)

        def look(name: str) -> int | None:
            if name in listed:
                return listed[name]
            try:
                return int(obstore.head(store, name)["size"])
            except FileNotFoundError:
                return None

        with ThreadPoolExecutor(_LOOKS) as pool:
            return list(pool.map(look, names))

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder of the dataset; none if there is no such folder."""
        if self.uri.startswith("file://"):
            try:
                return os.listdir(os.path.join(self.address, folder))
            except FileNotFoundError:
                return []
        import obstore

        listed = obstore.list(StorageLocation(self.uri, self.options).open(), f"{folder}/")
        return [entry["path"].rpartition("/")[2] for chunk in listed for entry in chunk]

    def holding(self, names: Sequence[str], wanted: Sequence[bytes]) -> list[str]:
        """Those of some small files below the dataset's root that hold any of these; one that is not there holds none."""
        import obstore

        store = StorageLocation(self.uri, self.options).open()

        def look(name: str) -> bool:
            try:
                content = bytes(obstore.get(store, name).bytes())
            except FileNotFoundError:
                return False
            return any(text in content for text in wanted)

        # A file has a megabyte for each five thousand fragments of its commit.
        with ThreadPoolExecutor(_READS) as pool:
            return [name for name, holds in zip(names, pool.map(look, names), strict=True) if holds]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files that no version refers to; those that are gone already are passed over."""
        import obstore

        store = StorageLocation(self.uri, self.options).open()
        for path in paths:
            try:
                obstore.delete(store, self._name(path))
            except FileNotFoundError:
                continue


def _local_size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def names_of(paths: Sequence[str]) -> frozenset[str]:
    """Names of data files below ``data``, from the URIs of staged files; deletion files are none."""
    parts = (path.rsplit("/", 2) for path in paths)
    return frozenset(name for _, folder, name in parts if folder == "data")
