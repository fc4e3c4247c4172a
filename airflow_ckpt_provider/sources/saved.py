"""The rows of a ``save()``: Spark computes them and hands them to the tasks of one execution, and nothing is read here.

**Executions.** Spark may run a save any number of times, and each time its rows may be cut into other partitions. So each execution
stages under ids of its own, and once Spark says which tasks count, a plan is pinned that names exactly their splits. Why each row
lands exactly once, whatever crashes and races:

1. The splits of one plan are tasks of one execution, one for each partition, as Spark's driver names them. They hold each row of
   that execution once, and no row of another one.
2. The seal is made of one plan and put if absent. Of several executions, also at the same time, one seals; the others find the
   seal, and their files are in no plan that is sealed.
3. A task that Spark runs twice, or does not let commit, stages under an id that no plan names.

Decision: nothing that an execution has staged is recovered by the next one. It would have to be known that both cut the rows alike,
which is what ``checkpointed_write`` proves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Pinned, Plan, Split
from airflow_ckpt_provider.sources.no_reader import NoReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject


class SavedRows:
    """The rows that a program saves.

    :param columns: of the DataFrame. Their names and types are what binds the key: the query is not known.
    """

    conn_id: str | None = None
    conn_kind: str = "checkpoint"

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = columns

    def describe(self) -> JsonObject:
        """The columns. Whether they may be null follows from the query, and may be otherwise in another version of Spark."""
        return {"saved_as": "checkpointed", "columns": [f"{column.name}: {column.type}" for column in self.columns]}

    def plan(self, options: Mapping[str, str]) -> Plan:
        """A plan without splits: which there are is known once they are staged; see ``plan_of``."""
        return plan_of("", ())

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Nothing is known of the input."""

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema:
        """The columns of the DataFrame."""
        return self.columns

    def reader(self, options: Mapping[str, str]) -> NoReader:
        """Refuses to read: the rows come from Spark."""
        return NoReader("what a save has written: only Spark")


class SavedBy(Pinned, frozen=True, kw_only=True, tag="saved"):
    """Which execution of a save has staged the splits of a plan."""

    execution: str


def plan_of(execution: str, split_ids: Sequence[str]) -> Plan:
    """The plan of what an execution of a save has staged.

    :param split_ids: those of the tasks that count.
    """
    splits = tuple(Split(id=split_id, bytes=0, read={"execution": execution}) for split_id in sorted(split_ids))
    return Plan(created_at=now(), source=SavedBy(execution=execution).to_json(), splits=splits)
