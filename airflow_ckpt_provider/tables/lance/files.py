"""The files of a dataset below ``data``: their names, their sizes, and their removal.

Decision: rows are written with Lance's file writer, under names of our own, and the fragment is described by hand. Lance's
``write_fragments`` names files at random and tells the names only of those it has finished, so that nobody could say whose the
files of a killed writer are (I4). The files are the same, byte for byte of their columns, and as fast to write.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.location import StorageLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Looks at remote files at the same time.
_LOOKS = 64


@dataclass(frozen=True)
class DatasetFiles:
    """The data files of one dataset. Picklable; the options hold credentials and are never stored."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def address(self) -> str:
        """The URI as Lance takes it: nothing in a local path is percent-decoded."""
        return self.uri.removeprefix("file://")

    def path(self, name: str) -> str:
        """URI of a data file, as staged records name it."""
        return f"{self.uri}/data/{name}"

    def name(self, path: str) -> str:
        """Name of a data file below ``data``, from its URI."""
        return path.removeprefix(f"{self.uri}/data/")

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

        def look(path: str) -> int | None:
            try:
                return int(obstore.head(store, f"data/{self.name(path)}")["size"])
            except FileNotFoundError:
                return None

        with ThreadPoolExecutor(_LOOKS) as pool:
            return list(pool.map(look, paths))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files that no version refers to; those that are gone already are passed over."""
        import obstore

        store = StorageLocation(self.uri, self.options).open()
        for path in paths:
            try:
                obstore.delete(store, f"data/{self.name(path)}")
            except FileNotFoundError:
                continue


def _local_size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
