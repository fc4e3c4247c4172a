"""Which files a URI or glob names, and whether they are still the same files.

A file is pinned by path, size and a token that changes when it is written again: the ETag in object storage, the
modification time in a local folder (a local ETag holds the inode, which a restored or moved folder changes).
"""

from __future__ import annotations

import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from airflow_ckpt_provider.checkpoint.location import StorageLocation, normal_uri
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, InputChangedError, InvalidInputError, RetryableError, escaped
from airflow_ckpt_provider.sources.files.globs import glob_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from obstore import ObjectMeta
    from obstore.store import ObjectStore

#: Files looked at the same time when a plan is verified.
_LOOKERS = 16

#: Remote files that are worth a list, and files in one reply to it.
_WORTH_A_LIST, _REPLY = 2 * _LOOKERS, 1000

_GLOB = re.compile(r"[*?\[]")


class PinnedFile(msgspec.Struct, frozen=True, array_like=True):
    """One input file as it was when it was listed.

    :param path: path in its storage, without a leading slash: from the root for local files, the object's key otherwise.
    :param size: bytes.
    :param token: changes when the file is written again.
    """

    path: str
    size: int
    token: str


class InputFiles:
    """The files behind one URI, glob or folder.

    :param uri: a file, a glob (``*``, ``?``, ``[…]``, ``**`` for any depth) or a folder.
    :param options: storage options, see ``StorageLocation``.
    :raises InvalidInputError: if the URI cannot be used.
    """

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.uri = normal_uri(uri)
        scheme, rest = self.uri.split("://", 1)
        bucket, _, path = ("", "", rest.lstrip("/")) if scheme == "file" else rest.partition("/")
        self._local = scheme == "file"
        self._path = path
        self._location = StorageLocation(f"{scheme}://{bucket}/", options)

    def objects(self) -> ObjectStore:
        """The open storage that the paths of the files refer to."""
        return self._location.open()

    def name_of(self, file: PinnedFile) -> str:
        """Absolute path or URI of a file, for messages."""
        return escaped(f"/{file.path}" if self._local else f"{self._location.uri}{file.path}")

    def short_name_of(self, file: PinnedFile) -> str:
        """Name of a file below the folder that the URI begins with, for lists."""
        glob = _GLOB.search(self._path)
        folder = self._path if glob is None else self._path[: glob.start()].rpartition("/")[0]
        return file.path.removeprefix(folder.rstrip("/")).lstrip("/") or file.path.rpartition("/")[2]

    def all(self) -> list[PinnedFile]:
        """All files, sorted by path. Names that begin with ``.`` or ``_`` are skipped, as Spark and Hive do.

        :raises InvalidInputError: if the URI names one file or folder and it does not exist. A glob may match nothing.
        """
        # A name with brackets in it is a file first, and a glob only if there is no such file.
        single = self._head(self._path) if self._path and not self._path.endswith("/") else None
        if single is not None:
            return [self._pin(single)]
        if _GLOB.search(self._path):
            return self._glob()
        folder = self._path.rstrip("/") + "/" if self._path else ""
        visible = [item for item in self._walk(folder) if _visible(item["path"][len(folder) :])]
        if not visible and self._path and not (self._local and os.path.isdir("/" + self._path)):
            raise InvalidInputError(
                f"There is no file or folder {self.uri}. Check the path; use a glob such as '*.parquet' if it may be empty."
            )
        return sorted(map(self._pin, visible), key=lambda file: file.path)

    def verify(self, files: Iterable[PinnedFile]) -> None:
        """Check that these files are as they were when they were listed (I6), and that the URI lists files of their names (I15).

        :raises InputChangedError: naming the files that changed.
        :raises CorruptObjectError: for a file that the URI does not name: no plan of this source has it.
        """
        wanted = sorted(set(files), key=lambda file: file.path)
        names = self._names()
        for file in wanted:
            if not names(file.path):
                raise CorruptObjectError(
                    f"The plan in the checkpoint store reads {self.name_of(file)}, which {self.uri} does not name. The store was "
                    f"altered; nothing was read. Redo the write: {how_to_restart()}."
                )
        shown = self._shown([file.path for file in wanted])
        with ThreadPoolExecutor(_LOOKERS) as pool:
            changes = [change for change in pool.map(self._change, (file for file in wanted if file not in shown)) if change]
        if changes:
            raise InputChangedError(
                f"{len(changes)} input file(s) changed since this checkpoint was planned:\n  "
                + "\n  ".join(changes[:10])
                + ("\n  ..." if len(changes) > 10 else "")
                + "\nRows staged so far came from the files as they were. Put them back, or redo the write: "
                f"{how_to_restart()}."
            )

    def _shown(self, paths: Sequence[str]) -> set[PinnedFile]:
        """What a list shows of many remote files, as they are now. Of a file that it does not show, nothing is known."""
        import obstore

        if self._local or len(paths) < _WORTH_A_LIST:
            return set()
        folder = os.path.commonpath([path.rpartition("/")[0] for path in paths])
        wanted, shown = set(paths), set[PinnedFile]()
        try:
            pages = obstore.list(self.objects(), folder or None, offset=paths[0][:-1], chunk_size=_REPLY)
            # Others may have put very many files between them: no more replies than looks would have taken.
            for page in itertools.islice(pages, len(paths) // _LOOKERS):
                shown.update(self._pin(item) for item in page if item["path"] in wanted)
                if not page or page[-1]["path"] >= paths[-1]:
                    break
        except Exception:  # noqa: BLE001 - the look at each file says what is wrong
            return set()
        return shown

    def _change(self, pinned: PinnedFile) -> str | None:
        current = self._head(pinned.path)
        if current is None:
            return f"{self.name_of(pinned)} is gone"
        file = self._pin(current)
        if file == pinned:
            return None
        return f"{self.name_of(pinned)}: was {pinned.size} bytes ({pinned.token}), is {file.size} bytes ({file.token})"

    def _names(self) -> Callable[[str], bool]:
        """The check of a path: does the URI name the file? A path with a step upwards names none.

        :raises InvalidInputError: for a glob that is none.
        """
        match = _GLOB.search(self._path)
        fits = glob_matcher(self._path) if match else None
        folder = self._path[: match.start()].rpartition("/")[0] if match else self._path.rstrip("/")
        start = folder + "/" if folder else ""

        def named(path: str) -> bool:
            if path == self._path:
                return True
            steps = any(unquote(part) in {"", ".", ".."} for part in path.split("/"))
            inside = path.startswith(start) and _visible(path[len(folder) :]) and not steps
            return inside and (fits is None or fits(path))

        return named

    def _glob(self) -> list[PinnedFile]:
        folder = self._path[: _GLOB.search(self._path).start()].rpartition("/")[0]  # type: ignore[union-attr]
        named = self._names()
        matching = [item for item in self._walk(folder + "/" if folder else "") if named(item["path"])]
        return sorted(map(self._pin, matching), key=lambda file: file.path)

    def _walk(self, folder: str) -> list[ObjectMeta]:
        import obstore

        if self._local and not os.path.isdir("/" + folder):
            return []
        try:
            listed = [item for chunk in obstore.list(self.objects(), folder or None) for item in chunk]
        except Exception as error:
            raise RetryableError(f"Could not list {self.uri}: {escaped(self._location.said(error))}") from error
        # Consoles make "folders": empty objects whose name ends in a slash. The listing shows them without it.
        return [item for item in listed if self._local or item["size"] or self._head(item["path"]) is not None]

    def _head(self, path: str) -> ObjectMeta | None:
        import obstore

        if self._local and os.path.isdir("/" + path):
            return None
        try:
            return obstore.head(self.objects(), path)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise RetryableError(
                f"Could not look at {escaped(path)} of {self.uri}: {escaped(self._location.said(error))}"
            ) from error

    def _pin(self, item: ObjectMeta) -> PinnedFile:
        token = None if self._local else item["e_tag"]
        return PinnedFile(item["path"], item["size"], token or item["last_modified"].isoformat())


def _visible(relative: str) -> bool:
    return not any(part.startswith((".", "_")) for part in relative.split("/") if "=" not in part)
