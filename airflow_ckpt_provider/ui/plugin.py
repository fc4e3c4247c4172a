"""What Airflow loads: a tab for task instances and Dag runs, an entry in the navigation, and the application behind them.

Airflow imports plugins in every task process as well. There this module is all that is imported; what makes the pages is loaded by
the API server when the first of them is asked for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Where the application is mounted. Links in the plugin are relative, so that a proxy may put a path in front.
URL_PREFIX = "/checkpoints"

_INSTANCE = "dag_id={DAG_ID}&run_id={RUN_ID}"


class LazyApp:
    """An ASGI application that is made when it is called first."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._made()(scope, receive, send)

    def _made(self) -> ASGIApp:
        with self._lock:
            if self._app is None:
                from airflow_ckpt_provider.ui.app import create_app

                self._app = create_app()
            return self._app


class CheckpointsPlugin(AirflowPlugin):
    """Registers the pages; found by the entry point ``airflow.plugins``."""

    name = "checkpoints"
    fastapi_apps: list[Any] = [{"app": LazyApp(), "url_prefix": URL_PREFIX, "name": "Checkpoints"}]  # noqa: RUF012 - Airflow's own attribute
    external_views: list[Any] = [  # noqa: RUF012 - Airflow's own attribute
        {
            "name": "Checkpoints",
            "href": "checkpoints/",
            "destination": "nav",
            "category": "browse",
            "icon": "checkpoints/static/icon.svg",
            "url_route": "checkpoints",
        },
        {
            "name": "Checkpoints",
            "href": f"checkpoints/run?{_INSTANCE}",
            "destination": "dag_run",
            "url_route": "run_checkpoints",
        },
        {
            "name": "Checkpoint",
            "href": f"checkpoints/task?{_INSTANCE}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": "task_checkpoint",
        },
    ]
