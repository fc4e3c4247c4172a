"""The methods by which OpenLineage asks an operator what it has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_ckpt_provider.operators.lineage.facts import Lineage


class TellsLineage:
    """An operator that gathers what it does in a ``Lineage``, as soon as there is anything to gather."""

    _lineage: Lineage | None = None

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage[Any, Any] | None:
        """What the task has read and landed; called by OpenLineage's provider alone, and so with it installed."""
        from airflow_ckpt_provider.operators.lineage.facets import on_complete

        return None if self._lineage is None else on_complete(self._lineage)

    def get_openlineage_facets_on_failure(self, task_instance: object) -> OperatorLineage[Any, Any] | None:
        """What a task that has failed has read, and what its checks have found."""
        from airflow_ckpt_provider.operators.lineage.facets import on_failure

        return None if self._lineage is None else on_failure(self._lineage)
