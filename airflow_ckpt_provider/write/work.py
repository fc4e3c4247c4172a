"""What one task does with one split: read, transform, write, publish. Runs on an executor, and knows no engine.

The order is the protocol: data files, then the manifest, then the published record. A task that dies anywhere leaves either a
published split or files that nothing refers to and whose names tell whose they are (I3, I4, I12).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Staged
from airflow_ckpt_provider.exceptions import panics_as_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Reader
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.tables.missing import MissingColumns
    from airflow_ckpt_provider.tables.writer import Writer, Written


@dataclass(frozen=True)
class SplitWork:
    """Everything a task needs for any split of one attempt. Travels to executors by pickle, never into the store.

    :param attempt_id: id of the recorded attempt (I4).
    :param missing: which columns the rows may lack; None if what is written are no whole rows.
    """

    store: CheckpointStore
    paths: CheckpointPaths
    attempt_id: str
    reader: Reader
    transform: Transform | None
    writer: Writer
    missing: MissingColumns | None = None

    def run(self, split: Split, task_attempt: str) -> bool:
        """Stage ``split``.

        :param task_attempt: id of the task attempt, unique within the attempt.
        :returns: True if this call published it, False if it was or became published by another.
        """
        with panics_as_errors(f"while split {split.id} was staged"):
            return self._run(split, task_attempt)

    def _run(self, split: Split, task_attempt: str) -> bool:
        if self.store.exists(self.paths.staged(split.id)):
            return False
        if split.task != READ:
            return self._publish(split.id, task_attempt, functools.partial(self.writer.work, split))
        # Formats without types of their own are read with the table's; a transform gets what the format infers.
        return self.stage(split.id, self.reader.read(split, self.writer.schema if self.transform is None else None), task_attempt)

    def stage(self, split_id: str, batches: Iterable[pa.RecordBatch], task_attempt: str) -> bool:
        """Stage a split whose rows are at hand; see ``run``."""
        if self.transform is not None:
            batches = self.transform.apply(batches)
        missing: set[str] = set()
        if self.missing is not None:
            batches = self.missing.seen(batches, self.writer.schema, missing)
        with panics_as_errors(f"while split {split_id} was staged"):
            return self._publish(split_id, task_attempt, functools.partial(self.writer.write, batches), missing)

    def _publish(
        self, split_id: str, task_attempt: str, write: Callable[[str], Written], missing: AbstractSet[str] = frozenset()
    ) -> bool:
        author = f"{self.attempt_id}.{task_attempt}"
        written = write(self.paths.file_stem(split_id, author))
        staged = Staged(
            split=split_id,
            writer=author,
            published_at=now(),
            rows=written.rows,
            bytes=written.bytes,
            files=written.files,
            manifest=written.manifest,
            replaces=written.replaces,
            counts=dict(written.counts),
            intermediate=None if written.intermediate is None else written.intermediate.to_json(),
            missing=tuple(sorted(missing)),
        )
        won = self.store.create(self.paths.staged(split_id), staged)
        if not won:
            self.writer.remove(written)
        return won
