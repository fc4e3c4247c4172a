"""Which checkpoints a page lists: those of a store that match a search, or those of a task instance or a run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.inventory import Inventory
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import CheckpointError
from airflow_ckpt_provider.overview.listing import listing, summary
from airflow_ckpt_provider.ui.pages import overdue
from airflow_ckpt_provider.ui.stores import known_stores, open_store
from airflow_ckpt_provider.ui.task_keys import Pointed, pointed_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.overview.facts import Summary
    from airflow_ckpt_provider.ui.access import Viewer
    from airflow_ckpt_provider.ui.task_keys import Instance

#: Checkpoints on one page of a list.
PER_PAGE = 100

#: Keys of a run that are looked for; the list of all checkpoints has the others. And how many at once.
MOST = 60
_AT_ONCE = 8

#: What the filter offers besides the states: what may need somebody.
UNCOMMITTED, PROBLEMS = "uncommitted", "problems"


class Search(NamedTuple):
    """What a user looks for.

    :param text: part of a key, a Dag, a task, a run or a table; upper and lower case are one.
    :param state: a state; ``UNCOMMITTED`` for what is sealed for long; ``PROBLEMS`` for what cannot be read; empty for all.
    """

    text: str = ""
    state: str = ""
    page: int = 1

    def matches(self, found: Summary) -> bool:
        """Whether a checkpoint is looked for."""
        places = (found.key, found.table, found.dag_id, found.task_id, found.run_id)
        if self.text and not any(self.text.casefold() in place.casefold() for place in places):
            return False
        if self.state == UNCOMMITTED:
            return overdue(found)
        if self.state == PROBLEMS:
            return bool(found.problem)
        return not self.state or found.state == self.state


class Result(NamedTuple):
    """What a search has found.

    :param summaries: of one page.
    :param total: how many match; ``everything`` how many the user may see.
    :param counts: how many the user may see of each state, by its name.
    """

    summaries: list[Summary]
    total: int
    everything: int
    counts: dict[str, int]
    pages: int


def searched(store: CheckpointStore, viewer: Viewer, search: Search) -> Result:
    """The checkpoints that a user looks for and may see.

    :raises StoreError: if the store does not answer.
    """
    visible = [found for found in listing(store) if viewer.may_see(found.dag_id)]
    counts = {str(state): sum(found.state is state for found in visible) for state in State}
    counts |= {UNCOMMITTED: sum(map(overdue, visible)), PROBLEMS: sum(bool(found.problem) for found in visible)}
    matching = [found for found in visible if search.matches(found)]
    start = (search.page - 1) * PER_PAGE
    pages = max(1, -(-len(matching) // PER_PAGE))
    return Result(matching[start : start + PER_PAGE], len(matching), len(visible), counts, pages)


class Found(NamedTuple):
    """The checkpoints of a task instance or a run.

    :param conn_ids: the connection of the store of each.
    :param hidden: how many belong to Dags, or programs, that the user may not see.
    :param more: how many keys were not looked for, because a run has so many.
    :param problems: why stores could not be read.
    """

    summaries: list[Summary]
    conn_ids: list[str]
    hidden: int
    more: int
    problems: list[str]


def found_for(instance: Instance, viewer: Viewer, conn_id: str, *, deep: bool) -> Found:
    """The checkpoints that a task instance or a run writes, or has taken up.

    They are looked for by the keys that XCom names, in the stores that Airflow knows; and if it names none, by the key that a stage
    has by default, and by their origin, in the store of the page alone.

    :param conn_id: connection of the store of the page, which is looked into first.
    :param deep: whether to look for origins, for which the whole store is read.
    """
    pointed = pointed_by(instance)
    named = [known.conn_id for known in pointed if known.conn_id]
    stores = _Stores([conn_id, *named, *(known_stores() if pointed else [])])
    if not pointed and instance.task_id:
        pointed = [Pointed(instance.default_key)]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        pairs = [pair for pair in threads.map(stores.newest, pointed[:MOST]) if pair is not None]
    if not pairs and deep:
        pairs = [(found, conn_id) for found in stores.all_in(conn_id) if _is_from(found, instance)]
    pairs.sort(key=lambda pair: (pair[0].created_at is None, pair[0].created_at))
    seen = [(found, store) for found, store in pairs if viewer.at(store).may_see(found.dag_id)]
    return Found(
        [found for found, _ in seen],
        [store for _, store in seen],
        len(pairs) - len(seen),
        max(0, len(pointed) - MOST),
        # What is found in one store needs no other one.
        [] if pairs else list(stores.problems.values()),
    )


class _Stores:
    """Stores by the ids of their connections; those that cannot be read are left out, and are a problem.

    :param conn_ids: in the order in which they are looked into.
    """

    def __init__(self, conn_ids: Iterable[str]) -> None:
        self.problems: dict[str, str] = {}
        self._stores: dict[str, CheckpointStore] = {}
        for conn_id in dict.fromkeys(conn_ids):
            try:
                self._stores[conn_id] = open_store(conn_id)
            except CheckpointError as error:
                self.problems[conn_id] = str(error)

    def newest(self, pointed: Pointed) -> tuple[Summary, str] | None:
        """The newest generation of a key, and the connection of the first store that has it."""
        key = IdempotenceKey(pointed.key)
        for conn_id, store in self._stores.items():
            if pointed.conn_id not in {"", conn_id}:
                continue
            try:
                generations = Inventory.of(store, key.hash).generations.get(key.hash)
                if generations:
                    return summary(store, generations[max(generations)]), conn_id
            except CheckpointError as error:
                self.problems[conn_id] = str(error)
        return None

    def all_in(self, conn_id: str) -> list[Summary]:
        """Everything in a store."""
        try:
            return listing(self._stores[conn_id]) if conn_id in self._stores else []
        except CheckpointError as error:
            self.problems[conn_id] = str(error)
            return []


def _is_from(found: Summary, instance: Instance) -> bool:
    if (found.dag_id, found.run_id) != (instance.dag_id, instance.run_id):
        return False
    return not instance.task_id or (found.task_id, found.map_index) == (instance.task_id, instance.map_index)
