"""The addresses of the pages that show checkpoints, for whoever links to them."""

from __future__ import annotations

from urllib.parse import urlencode

#: Where the API server mounts the pages: see ``ui.plugin``, which every task process imports, and so imports nothing.
_PREFIX = "/checkpoints"


def checkpoint_url(base_url: str, key: str, conn_id: str, generation: int | None = None) -> str:
    """The page of one checkpoint.

    :param base_url: of Airflow's API server, as its ``[api] base_url`` says; empty for an address on the same host.
    :param conn_id: connection of the store.
    :param generation: the newest one if None.
    """
    asked = {"key": key, "conn_id": conn_id} | ({} if generation is None else {"generation": str(generation)})
    return f"{base_url.rstrip('/')}{_PREFIX}/checkpoint?{urlencode(asked)}"


def instance_url(base_url: str, dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The page that lists the checkpoints of a task instance.

    :param base_url: see ``checkpoint_url``.
    """
    asked = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": str(map_index)}
    return f"{base_url.rstrip('/')}{_PREFIX}/task?{urlencode(asked)}"
