"""Which commits of keys were begun, remembered in the dataset's own folder (I1).

The versions of a dataset tell which keys were committed, until they are cleaned up; its files tell, until they are compacted; and
the checkpoint store tells, until it is lost. So that a key is not landed twice after all three, each commit first puts an empty
object into the dataset's folder, whose name says for which key and generation, as which commit group, and at which version it was
begun. Nothing removes these but the removal of the dataset. Whether a commit that was begun has landed, the versions since then
tell; where those are gone nothing does, and the key is refused.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import HistoryExpiredError, RolledBackError, TableMissingError
from airflow_ckpt_provider.tables.lance.history import Search, find
from airflow_ckpt_provider.tables.summary import Trace, not_ours, trace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from lance import LanceDataset

    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.state import GroupCommit

#: Below the dataset's root; in it a folder for each key, by the key's trace.
FOLDER = "_checkpoint_keys"

#: The generation's trace, the group's id, and the version that the commit was begun at.
_NAME = re.compile(r"^([\w-]{8})\.([0-9a-f]{32})\.(\d{1,15})$")

#: Objects that are put at the same time.
_PUTS = 16


def remember(files: DatasetFiles, commit: GroupCommit) -> None:
    """Note that the commit of these keys is about to begin."""
    group = commit.group

    def put(trace: Trace) -> None:
        files.put(f"{FOLDER}/{trace.key}/{trace.begun}.{group.id}.{group.horizon}", b"")

    with ThreadPoolExecutor(_PUTS) as pool:
        list(pool.map(put, map(trace_of, commit.headers)))


def require_unremembered(files: DatasetFiles, dataset: LanceDataset, keys: Mapping[str, str], known: AbstractSet[Trace]) -> None:
    """Refuse keys of which a commit was begun by a checkpoint that is not known, unless it certainly is not in the dataset.

    :param keys: by their traces.
    :raises BindingMismatchError: naming the key.
    """
    for trace, key in keys.items():
        for search in _begun(files.names(f"{FOLDER}/{trace}"), trace, known):
            try:
                landed = find(dataset, search)
            except (RolledBackError, TableMissingError):
                # The dataset's owner took it back, or made another dataset where this one was.
                continue
            except HistoryExpiredError as error:
                raise not_ours(f"the key {key!r}", "a version that was cleaned up since", dataset.uri) from error
            if landed is not None:
                raise not_ours(f"the key {key!r}", f"version {landed.commit_id}", dataset.uri)


def _begun(names: Iterable[str], key: str, known: AbstractSet[Trace]) -> list[Search]:
    """Searches for the commits that these objects name, but for those of known checkpoints."""
    matches = [match for match in map(_NAME.match, names) if match and Trace(key, match[1]) not in known]
    return [Search(match[2], int(match[3]), None, "an earlier checkpoint of this key") for match in matches]
