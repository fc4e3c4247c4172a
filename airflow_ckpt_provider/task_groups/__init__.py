"""Task groups: stage, approval, commit and clean-up in one line of a DAG file."""

from __future__ import annotations

from airflow_ckpt_provider.task_groups.write import checkpointed_write_group

__all__ = ["checkpointed_write_group"]
