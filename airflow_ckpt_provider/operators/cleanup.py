"""The clean-up: removes what killed and superseded attempts of a key have left in the table's storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.checkpoint.reference import pointers
from airflow_ckpt_provider.exceptions import CheckpointMissingError
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.lookup import OwnConnections, latest_of, target_of
from airflow_ckpt_provider.write.cleanup import Listings, clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.cleanup import Cleaned


class CleanedGeneration(TypedDict):
    """What became of a generation; ``left`` says why its files were left, if they were."""

    generation: int
    state: str
    files: int
    bytes: int
    left: str


class CleanedKey(TypedDict):
    """What was removed for a key, in all its generations together and in each."""

    idempotence_key: str
    files: int
    bytes: int
    generations: list[CleanedGeneration]


class CheckpointCleanupOperator(BaseOperator):
    """Remove what the attempts of a key have left: files that no commit refers to, and that none will.

    Attempts that were killed, tasks that lost a race, and splits that were staged again leave files in the table's storage, as any
    engine does. Here each of them bears the id of its attempt, so that exactly these are removed: nothing by age, nothing of other
    keys, no file that has landed, and nothing that a retry, or a replacement by ``on_rerun="replace"``, needs. What is recorded in
    the checkpoint store stays.

    :param checkpoint: a checkpoint reference, such as ``stage.output``; a list of them; or an idempotence key (templated)
    :param discard_unfinished: give up what is staged and not committed, and remove it, too. For writes that nobody will finish; an
        attempt that is running loses its work
    :param checkpoint_conn_id: connection of the checkpoint store; None for that of the reference, or ``checkpoint_default`` for a
        bare key. A reference of another one is refused
    :param iceberg_conn_id: connection of the table, where the checkpoint is a bare key of an Iceberg write; a reference has its own
    :param lance_conn_id: the same of a Lance write; None for the credentials of the environment
    :param table: the table, ``namespace.table`` or the dataset's URI; a checkpoint of another one is refused. A bare key does not
        say which table it is of, and the checkpoint store alone is not believed: name the table with it (templated)
    :param branch: the branch that the stage writes to; a checkpoint of another one is refused (templated)
    :returns: what was removed, see ``CleanedKey``; a list of them for a list, one for each key
    """

    template_fields: Sequence[str] = ("checkpoint", "table", "branch")

    def __init__(
        self,
        *,
        checkpoint: Any,  # noqa: ANN401 - a reference, a list of them, a key, or an XCom that is one of those
        discard_unfinished: bool = False,
        checkpoint_conn_id: str | None = None,
        iceberg_conn_id: str = "iceberg_default",
        lance_conn_id: str | None = None,
        table: str | None = None,
        branch: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.discard_unfinished = discard_unfinished
        self.checkpoint_conn_id = checkpoint_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.lance_conn_id = lance_conn_id
        self.table = table
        self.branch = branch

    @property
    def _own(self) -> OwnConnections:
        return OwnConnections.said_by(self)

    def execute(self, context: Context) -> CleanedKey | list[CleanedKey]:
        """Clean up, and return what was removed."""
        del context
        with airflow_errors():
            given, is_list = pointers(self.checkpoint)
            listings = Listings()
            cleaned = [self._clean(pointer, listings) for pointer in given]
            return cleaned if is_list else cleaned[0]

    def _clean(self, pointer: str | Reference, listings: Listings) -> CleanedKey:
        latest = latest_of(pointer, self._own)
        if latest is None:
            raise CheckpointMissingError(
                f"There is no checkpoint under the key {pointer!r} in the store of the connection {self._own.store_of(pointer)!r}. "
                "Correct the key; if its stage never ran, there is nothing to clean up."
            )
        generations = []

        def table(checkpoint: Checkpoint) -> Table:
            return target_of(checkpoint, pointer, self._own)

        for cleaned in clean(latest, table, listings, discard_unfinished=self.discard_unfinished):
            self._report(latest.key.value, cleaned)
            generations.append(_facts(cleaned))
        return CleanedKey(
            idempotence_key=latest.key.value,
            files=sum(cleaned["files"] for cleaned in generations),
            bytes=sum(cleaned["bytes"] for cleaned in generations),
            generations=generations,
        )

    def _report(self, key: str, cleaned: Cleaned) -> None:
        if cleaned.left:
            self.log.info(
                "Generation %d of the key %s, %s: nothing removed, because %s.",
                cleaned.generation,
                key,
                cleaned.state,
                cleaned.left,
            )
        else:
            size = f"{cleaned.bytes / (1 << 20):,.1f}"
            self.log.info(
                "Generation %d of the key %s, %s: %d files removed, %s MiB.",
                cleaned.generation,
                key,
                cleaned.state,
                cleaned.files,
                size,
            )


def _facts(cleaned: Cleaned) -> CleanedGeneration:
    return CleanedGeneration(
        generation=cleaned.generation, state=cleaned.state.value, files=cleaned.files, bytes=cleaned.bytes, left=cleaned.left
    )
