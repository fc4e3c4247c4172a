"""What a plan of ``add_columns`` pins: the columns that are added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Pinned
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.tables.lance.schema import schema_from_json

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Plan


class NewColumns(Pinned, frozen=True, kw_only=True, tag="add_columns"):
    """The columns that are added, as an Arrow schema."""

    columns: str


def columns_of(plan: Plan) -> pa.Schema:
    """The columns that are added, as the first plan pinned them."""
    pinned = plan.mode_as(NewColumns)
    if pinned is None:
        raise CorruptObjectError(
            "A plan of mode='add_columns' in the checkpoint store does not say which columns are added. The store was altered; "
            f"nothing was changed. Redo the write: {how_to_restart()}."
        )
    return schema_from_json(pinned.columns)
