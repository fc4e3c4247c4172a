"""An auth manager with a Dag that not everybody may see: Airflow's own simple one lets every user see all of them."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

#: Dags that only operators and admins may see or change.
SECRET = "secret"


class PickyAuthManager(SimpleAuthManager):
    """Users and viewers get nothing of Dags whose ids begin with ``SECRET``."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        if details is not None and (details.id or "").startswith(SECRET) and str(user.role).upper() not in {"OP", "ADMIN"}:
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
