"""The checkpoint store: named immutable documents with put-if-absent, on a local folder, S3, GCS, Azure or memory.

It wraps ``obstore`` and adds the one thing a protocol needs and an object store's client does not give: an honest answer
to "did *I* create this object", also when a reply was lost and the client repeated the request behind our back.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from airflow_ckpt_provider.checkpoint.bounds import BoundsError, require_size
from airflow_ckpt_provider.checkpoint.encoding import corrupt, from_json, to_json
from airflow_ckpt_provider.checkpoint.layout import probe
from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.exceptions import CheckpointMissingError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from obstore.store import ObjectStore

    from airflow_ckpt_provider.checkpoint.encoding import AnyDocument, Document
    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.signing import Signer

T = TypeVar("T")
R = TypeVar("R")

#: Requests made at the same time by ``each``.
_READERS = 16

#: Most objects that are removed by one request.
_REMOVED_AT_ONCE = 1000


class StoreError(RetryableError):
    """The store did not answer, or refused. Nothing is known about the object."""


class ObjectGoneError(StoreError):
    """An object that has to be there is not."""


class Listed(NamedTuple):
    """An object as a listing shows it.

    :param modified: when it was put, by the store's clock.
    """

    name: str
    bytes: int
    modified: datetime


@dataclass(frozen=True)
class CheckpointStore:
    """Documents under names, created once and never changed; records of writes that are done may be removed.

    Picklable, so that executors open the same store; a signed one only as ``of_generation``.

    :param location: where.
    :param signer: signs and proves every document; see ``signing``.
    """

    location: StorageLocation
    signer: Signer | None = None

    @classmethod
    def at(cls, uri: str, **options: str) -> CheckpointStore:
        """Store at ``uri``, a URI or absolute path, with obstore options."""
        return cls(StorageLocation(uri, options))

    def of_generation(self, paths: CheckpointPaths) -> CheckpointStore:
        """The same store for the tasks of one generation: it can sign nothing of another."""
        return self if self.signer is None else CheckpointStore(self.location, self.signer.of_generation(paths.root))

    @property
    def uri(self) -> str:
        return self.location.uri

    def create(self, name: str, document: Document) -> bool:
        """Put ``document`` under ``name`` if nothing is there.

        :returns: True if this very document is now stored there, False if another one was there before.
        :raises StoreError: if the store failed and the object is not there.
        """
        return self.put_if_absent(name, to_json(name, document, self.signer))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put these bytes under ``name`` if nothing is there; see ``create``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        objects = self._objects()
        try:
            obstore.put(objects, name, data, mode="create")
            self.location.restrict(name)
        except AlreadyExistsError:
            # Not proof that somebody else was first: a client that lost the reply to our put repeats it.
            return self.bytes_of(name) == data
        except Exception as error:
            # obstore maps client errors to many types, and all mean "unknown".
            stored = self.bytes_of(name)
            if stored is None:
                raise StoreError(
                    f"Could not write {name} to the checkpoint store {self.uri}: {self.location.said(error)}"
                ) from error
            return stored == data
        return True

    def read(self, name: str, kind: type[AnyDocument]) -> AnyDocument | None:
        """Document under ``name``, or None if there is none.

        :raises SignatureError: if it is not signed as it has to be.
        :raises CorruptObjectError: if what is there is not a whole, unaltered document of this kind.
        :raises NewerFormatError: if a newer provider wrote it.
        :raises StoreError: if the store failed.
        """
        data = self.bytes_of(name)
        return None if data is None else from_json(name, data, kind, self.signer)

    def vanished(self, name: str) -> CheckpointMissingError:
        """The error of an object that was there a moment ago, such as when ours could not be created, and is not any more."""
        return CheckpointMissingError(
            f"Object {name} existed in the checkpoint store {self.uri} a moment ago and is gone. Something deletes "
            "from the store while it is in use; stop that before you retry."
        )

    def read_many(self, names: Iterable[str], kind: type[AnyDocument]) -> list[AnyDocument]:
        """Documents that were listed, so that they must exist, in the order of ``names``."""

        def listed(name: str) -> AnyDocument:
            document = self.read(name, kind)
            if document is None:
                raise ObjectGoneError(f"Object {name} was listed in the checkpoint store {self.uri} and is gone.")
            return document

        return self.each(listed, names)

    def each(self, ask: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The answers of ``ask`` for all items, in their order. A store on another machine is asked for many at a time.

        :param ask: may be called from several threads.
        """
        from concurrent.futures import ThreadPoolExecutor

        if self.location.is_local:
            return [ask(item) for item in items]
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(ask, items))

    def exists(self, name: str) -> bool:
        """True if there is an object under ``name``, whatever is in it."""
        import obstore

        objects = self._objects()
        try:
            obstore.head(objects, name)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise StoreError(f"Could not look at {name} in the checkpoint store {self.uri}: {self.location.said(error)}") from error
        return True

    def names(self, prefix: str) -> list[str]:
        """Names of all objects below ``prefix``, a folder, sorted."""
        import obstore

        objects = self._objects()
        try:
            return sorted(item["path"] for chunk in obstore.list(objects, prefix) for item in chunk)
        except Exception as error:
            raise StoreError(f"Could not list {prefix} in the checkpoint store {self.uri}: {self.location.said(error)}") from error

    def listed(self, prefix: str = "") -> Iterator[Listed]:
        """All objects below ``prefix``, a folder, or in the whole store, as they are listed, in no order."""
        import obstore

        objects = self._objects()
        try:
            for chunk in obstore.list(objects, prefix or None):
                for item in chunk:
                    yield Listed(item["path"], item["size"], item["last_modified"])
        except Exception as error:
            raise StoreError(f"Could not list {prefix} in the checkpoint store {self.uri}: {self.location.said(error)}") from error

    def now(self) -> datetime:
        """What time it is by the clock that dates the store's objects (I13): that of an object which is put, and removed again."""
        import obstore

        objects = self._objects()
        name = probe(uuid.uuid4().hex)
        try:
            obstore.put(objects, name, b"")
            try:
                return obstore.head(objects, name)["last_modified"]
            finally:
                self.remove([name])
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(
                f"Could not read the clock of the checkpoint store {self.uri} by putting {name}: {self.location.said(error)}"
            ) from error

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects. Those that are gone already are passed over.

        :raises StoreError: if the store failed. Some of them may be gone then.
        """
        import obstore

        objects = self._objects()
        lots = (
            [[name] for name in names]
            if self.location.is_local
            else [list(names[start : start + _REMOVED_AT_ONCE]) for start in range(0, len(names), _REMOVED_AT_ONCE)]
        )
        for lot in lots:
            try:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(objects, lot)
            except Exception as error:
                raise StoreError(
                    f"Could not remove {len(lot)} objects, the first {lot[0]}, from the checkpoint store {self.uri}: "
                    f"{self.location.said(error)}"
                ) from error

    def folders(self, prefix: str) -> list[str]:
        """Folders below ``prefix`` that hold any object, with a trailing slash, sorted. What they hold is not listed."""
        import obstore

        objects = self._objects()
        try:
            subfolders = sorted(
                f"{folder.rstrip('/')}/" for folder in obstore.list_with_delimiter(objects, prefix)["common_prefixes"]
            )
            if not self.location.is_local:
                return subfolders
            # Where objects are files, a folder may have lost all of them.
            return [folder for folder in subfolders if any(obstore.list(objects, folder, chunk_size=1))]
        except Exception as error:
            raise StoreError(f"Could not list {prefix} in the checkpoint store {self.uri}: {self.location.said(error)}") from error

    def check(self) -> None:
        """Prove that the store can be listed with these credentials.

        :raises StoreError: if it cannot.
        """
        import obstore

        objects = self._objects()
        try:
            obstore.list_with_delimiter(objects)
        except Exception as error:
            raise StoreError(f"Could not list the checkpoint store {self.uri}: {self.location.said(error)}") from error

    def bytes_of(self, name: str) -> bytes | None:
        """What is under ``name``, whatever it is; None if there is nothing.

        :raises CorruptObjectError: if it is larger than any document.
        :raises StoreError: if the store failed.
        """
        import obstore

        objects = self._objects()
        try:
            answer = obstore.get(objects, name)
            # The answer says how large the object is before anything of it is fetched.
            require_size(name, answer.meta["size"])
            return bytes(answer.bytes())
        except BoundsError as error:
            raise corrupt(name, str(error)) from error
        except FileNotFoundError:
            return None
        except Exception as error:
            raise StoreError(f"Could not read {name} from the checkpoint store {self.uri}: {self.location.said(error)}") from error

    def _objects(self) -> ObjectStore:
        """The open storage, kept for the life of the process and not pickled."""
        objects = self.__dict__.get("_opened")
        if objects is None:
            objects = self.location.open(create=True)
            object.__setattr__(self, "_opened", objects)
        return objects

    def __getstate__(self) -> dict[str, object]:
        return {"location": self.location, "signer": self.signer}
