"""Whether keys were committed to a dataset before, by whomever: looked up in all of its versions that are there (I1).

Lance keeps the transaction of each version in a file of its own as well, whose name ends with the transaction's id. So the id of a
transaction of ours names the keys that it commits, and one list of a folder tells which of ten thousand versions have to be read.
A transaction of more keys than a name can hold says only that it is ours; its file is looked through for them.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import author_of
from airflow_ckpt_provider.scan.lance import name_of, transaction_of
from airflow_ckpt_provider.tables.lance.lineage import is_in_lineage
from airflow_ckpt_provider.tables.summary import IDENTITY, not_ours, traces_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.summary import Trace

#: Folder of the transactions' files.
_FOLDER = "_transactions"

#: A file there: the version that the transaction was begun at, and its id.
_FILE = re.compile(r"^(\d+)-(.+)\.txn$")

#: An id of ours: something of its own, and the traces of the keys, eight characters each.
_ID = re.compile(r"^ckpt-[0-9a-f]{32}-(many|(?:[\w-]{8})+)$")

#: Keys that an id names: file systems take names of 255 characters.
_NAMED = 16

#: So many keys are looked for in a file at most; for more, the transaction is read.
_SOUGHT = 64

#: So many versions are read rather than listed.
_FEW = 16


def transaction_id(identity: str) -> str:
    """A new id of a transaction that commits these."""
    keys = sorted({trace.key for trace in traces_in(identity)})
    return f"ckpt-{uuid.uuid4().hex}-{''.join(keys) if len(keys) <= _NAMED else 'many'}"


def require_unknown(
    files: DatasetFiles, dataset: LanceDataset, keys: Mapping[str, str], known: AbstractSet[Trace], since: int
) -> None:
    """Refuse keys that a checkpoint which is not known has committed; see ``Table.require_unknown``.

    :param keys: by their traces.
    :param since: the version from which on it is looked.
    """
    for version, identity in _committed(files, dataset, keys, since):
        unknown = [trace for trace in traces_in(identity) if trace.key in keys and trace not in known]
        # One of ours that Lance made below the latest version was never part of the dataset, and is landed again.
        if unknown and is_in_lineage(version, dataset) is not False and _is_shown(dataset, version):
            raise not_ours(f"the key {keys[unknown[0].key]!r}", f"version {version}", dataset.uri)


def require_unseen(dataset: LanceDataset, header: Header) -> None:
    """Refuse a new generation of a key if the dataset has files of that generation, or of a later one.

    They tell of a commit whose version was cleaned up, by a checkpoint store that was lost since.

    :param header: of the generation that is to be opened.
    :raises BindingMismatchError: naming the key.
    """
    key = IdempotenceKey(header.key)
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            author = author_of(name_of(file))
            if author is not None and author.key_hash == key.hash and author.generation >= header.generation:
                raise not_ours(f"the key {key.value!r}", "a version that was cleaned up since", dataset.uri)


def _committed(files: DatasetFiles, dataset: LanceDataset, keys: Mapping[str, str], since: int) -> Iterator[tuple[int, str]]:
    """Versions after one that are commits of checkpoints, and their identities; all that may be of these keys."""
    if dataset.version - since <= _FEW:
        versions: Iterator[tuple[int, Any]] = (
            (version, _made(dataset, version)) for version in range(since + 1, dataset.version + 1)
        )
    else:
        ours = (begun for begun in map(_listed, files.names(_FOLDER)) if begun is not None)
        wanted = _holding([begun for begun in ours if begun.keys is None or begun.keys & keys.keys()], files, keys)
        versions = (landed for begun in wanted if (landed := _landed(dataset, begun, since)) is not None)
    for version, transaction in versions:
        identity = None if transaction is None else (transaction.transaction_properties or {}).get(IDENTITY)
        if identity is not None:
            yield version, identity


class _Listed(NamedTuple):
    """A transaction of ours, as its file is named; ``keys`` is None if the name does not say which."""

    name: str
    read_version: int
    id: str
    keys: frozenset[str] | None


def _listed(name: str) -> _Listed | None:
    file = _FILE.match(name)
    id_match = _ID.match(file[2]) if file else None
    if file is None or id_match is None:
        return None
    keys = None if id_match[1] == "many" else frozenset(id_match[1][start : start + 8] for start in range(0, len(id_match[1]), 8))
    return _Listed(name, int(file[1]), file[2], keys)


def _holding(listed: list[_Listed], files: DatasetFiles, keys: Mapping[str, str]) -> list[_Listed]:
    """Those that name one of the keys, and of the others those whose file has one in it, as plain text."""
    unnamed = [f"{_FOLDER}/{begun.name}" for begun in listed if begun.keys is None]
    if not unnamed or len(keys) > _SOUGHT:
        return listed
    holding = set(files.holding(unnamed, [key.encode() for key in keys]))
    return [begun for begun in listed if begun.keys is not None or f"{_FOLDER}/{begun.name}" in holding]


def _landed(dataset: LanceDataset, listed: _Listed, since: int) -> tuple[int, Any] | None:
    """The version that a transaction made, after one, and the transaction; None if it made none, or that is gone.

    Lance may have moved it behind commits of others, so that the version is not always the next.
    """
    for version in range(listed.read_version + 1, dataset.version + 1):
        transaction = _made(dataset, version)
        if transaction is not None and transaction.uuid == listed.id:
            return (version, transaction) if version > since else None
    return None


def _is_shown(dataset: LanceDataset, version: int) -> bool:
    """Whether the last version comes after this one, and not of a restore to one before it. True if that cannot be told."""
    from lance import LanceOperation

    shows = {version: True}
    for later in range(version + 1, dataset.version + 1):
        transaction = _made(dataset, later)
        operation = None if transaction is None else transaction.operation
        shows[later] = shows.get(operation.version, False) if isinstance(operation, LanceOperation.Restore) else shows[later - 1]
    return shows[dataset.version]


def _made(dataset: LanceDataset, version: int) -> Any:  # noqa: ANN401 - a lance.Transaction; None for a version without one, or that is gone
    try:
        return transaction_of(dataset, version)
    except (OSError, ValueError):
        return None
