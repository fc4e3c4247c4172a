"""From a task instance, or a run, to the checkpoints that it writes, or that it has taken up.

A stage pushes its key to XCom before it does anything, and stage, commit and sensor return references: Airflow's database is the
shortest way. Where XComs are gone, the store is asked which checkpoints come from there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.restart import default_key_of
from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEY, _RETURNED = "idempotence_key", "return_value"

#: Values that are looked at: a run of many mapped tasks has more, and shows no more anyway.
LIMIT = 1_000


class Instance(NamedTuple):
    """A task instance, as the address of its tab names it; a whole run has no ``task_id``."""

    dag_id: str
    run_id: str
    task_id: str = ""
    map_index: int = -1

    @property
    def default_key(self) -> str:
        """The key that it writes under if it is a stage without one of its own."""
        return default_key_of(self.dag_id, self.task_id, self.run_id, self.map_index)


class Pointed(NamedTuple):
    """A key that XCom names.

    :param conn_id: of the store; empty if only the key is known.
    :param table_conn_id: of the table, if a reference says it.
    """

    key: str
    conn_id: str = ""
    table_conn_id: str = ""


def pointed_by(instance: Instance) -> list[Pointed]:
    """The keys that an instance has pushed or returned, each once, with all that is known of it."""
    query = select(XComModel.key, XComModel.value).where(
        XComModel.dag_id == instance.dag_id,
        XComModel.run_id == instance.run_id,
        XComModel.key.in_([_KEY, _RETURNED]),
    )
    if instance.task_id:
        query = query.where(XComModel.task_id == instance.task_id, XComModel.map_index == instance.map_index)
    with create_session() as session:
        pushed = session.execute(query.order_by(XComModel.key, XComModel.task_id, XComModel.map_index).limit(LIMIT)).all()
    found: dict[str, Pointed] = {}
    for name, value in pushed:
        for pointed in _key(value) if name == _KEY else _references(value):
            known = found.get(pointed.key)
            if known is None or (pointed.conn_id and not known.conn_id):
                found[pointed.key] = pointed
    return list(found.values())


def _key(value: object) -> Iterator[Pointed]:
    """What a stage pushes first."""
    if isinstance(value, str) and _is_key(value):
        yield Pointed(value)


def _references(value: object) -> Iterator[Pointed]:
    """The references in what a task has returned; nothing in what is no output of this provider's tasks."""
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            value = json.loads(value)
        except ValueError:
            return
    for member in value if isinstance(value, list) else [value]:
        if isinstance(member, dict) and isinstance(key := member.get("idempotence_key"), str) and _is_key(key):
            yield Pointed(key, str(member.get("checkpoint_conn_id") or ""), str(member.get("table_conn_id") or ""))


def _is_key(text: str) -> bool:
    try:
        IdempotenceKey(text)
    except InvalidInputError:
        return False
    return True
