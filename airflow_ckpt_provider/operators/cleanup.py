"""The clean-up: removes orphans from the table's storage, those of some keys, or of a whole store with its old records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.checkpoint.documents import Member
from airflow_ckpt_provider.checkpoint.readers import read_by
from airflow_ckpt_provider.checkpoint.reference import pointers
from airflow_ckpt_provider.exceptions import CheckpointMissingError, InvalidInputError
from airflow_ckpt_provider.hooks.configuration import retention
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.lookup import OwnConnections, latest_of, table_of
from airflow_ckpt_provider.hooks.sweeps import SweepOrder, SweepRun, require_abandoned, require_older_than
from airflow_ckpt_provider.operators.readers import ReadersToCome
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.write.cleanup import Listings, clean, free

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.hooks.sweeps import SweepResult
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.cleanup import Cleaned
    from airflow_ckpt_provider.write.removal import SweptGeneration


class CleanedGeneration(TypedDict):
    """What became of a generation; ``left`` says why its files were left, if they were."""

    generation: int
    state: str
    files: int
    bytes: int
    left: str


class CleanedKey(TypedDict):
    """What was removed for a key, in all its generations together and in each.

    ``read`` is there if it has read rows that other stages have staged for it: the same of each of those keys.
    """

    idempotence_key: str
    files: int
    bytes: int
    generations: list[CleanedGeneration]
    read: NotRequired[list[CleanedKey]]


class CheckpointCleanupOperator(BaseOperator):
    """Remove the orphans of a key: files of its attempts that no commit refers to, and that none will; or sweep a whole store.

    Attempts that were killed, tasks that lost a race, and splits that were staged again leave files in the table's storage, as any
    engine does. Here each of them bears the id of its attempt, so that exactly these are removed: nothing by age, nothing of other
    keys, no file that has landed, and nothing that a retry, or a replacement by ``on_rerun="replace"``, needs. What is recorded in
    the checkpoint store stays.

    Of a write that has read rows which a ``CheckpointedTransformOperator`` has staged, those rows go too, and what they were made
    of, once all who read them are done: what has landed needs them no more. They stay while a task of this DAG is still to read
    them.

    With ``older_than`` and without ``checkpoint``, this is a sweep: of all keys of which nothing was put for so long, by the
    store's own clock, it removes their orphans, and from the checkpoint store the records of writes that are
    committed or discarded. Of a committed write a compact record stays: to clear its run still finds the commit and reports
    the same. It cannot be replaced by ``on_rerun="replace"`` any more, and a cleared stage cannot tell what there is to read since.
    Writes of other connections than these are kept. A sweep can be killed and repeated, and run beside anything else.

    Rows that were staged for other tasks go in a sweep once all who have read them are done; with ``abandoned="discard"`` also
    those that nobody has read, and those of ``reuse="content"``.

    :param checkpoint: a checkpoint reference, such as ``stage.output``; a list of them; or an idempotence key (templated)
    :param discard_unfinished: give up what is staged and not committed, and remove it, too. For writes that nobody will finish; an
        attempt that is running loses its work. Not for a sweep, which has ``abandoned``
    :param older_than: sweep what is older than this: ``"14d"``, ``"12h"``, ``"2w"`` or a timedelta of an hour at least. Choose
        longer than any stage takes, and than anybody may want to replace a run. A task that works on one split for longer, and
        saves nothing of it in between, looks dead. Without ``checkpoint``, None is what the section ``[checkpoints]`` of Airflow's
        configuration says
    :param keys: which keys to sweep: a pattern such as ``"orders/*"``, in which ``*`` is any text, slashes included (templated)
    :param abandoned: what becomes of old writes that are neither committed nor discarded: ``"keep"``, which reports them, or
        ``"discard"``, which gives them up and removes them. An attempt that is running all the same fails at its commit, and loses
        nothing but its work. A write whose commit was begun is kept
    :param dry_run: change nothing, and return what a sweep would remove. An object is put and removed to read the store's clock
    :param checkpoint_conn_id: connection of the checkpoint store; None for that of the reference, or ``checkpoint_default`` for a
        bare key. A reference of another one is refused
    :param iceberg_conn_id: connection of the table, where the checkpoint is a bare key of an Iceberg write; a reference has its own
    :param lance_conn_id: the same of a Lance write; None for the credentials of the environment
    :param table: the table, ``namespace.table`` or the dataset's URI; a checkpoint of another one is refused. A bare key does not
        say which table it is of, and the checkpoint store alone is not believed: name the table with it (templated)
    :param branch: the branch that the stage writes to; a checkpoint of another one is refused (templated)
    :returns: what was removed, see ``CleanedKey``; a list of them for a list, one for each key. Of a sweep, see ``SweepResult``; it
        is in XCom, too, if the task fails because something could not be read
    """

    template_fields: Sequence[str] = ("checkpoint", "keys", "table", "branch")

    def __init__(
        self,
        *,
        checkpoint: Any = None,  # noqa: ANN401 - a reference, a list of them, a key, or an XCom that is one of those
        discard_unfinished: bool = False,
        older_than: str | timedelta | None = None,
        keys: str = "*",
        abandoned: Literal["keep", "discard"] = "keep",
        dry_run: bool = False,
        checkpoint_conn_id: str | None = None,
        iceberg_conn_id: str = "iceberg_default",
        lance_conn_id: str | None = None,
        table: str | None = None,
        branch: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(**kwargs)
        if checkpoint is None and older_than is None:
            older_than = retention()
        if (checkpoint is None) is (older_than is None):
            raise InvalidInputError(
                f"The clean-up {self.task_id!r} takes either checkpoint, for some keys, or older_than, such as '14d', to sweep "
                "the store; older_than may also stand in the section [checkpoints] of Airflow's configuration."
            )
        if older_than is None and (keys != "*" or abandoned != "keep" or dry_run):
            raise InvalidInputError(
                f"The clean-up {self.task_id!r} has a checkpoint; keys, abandoned and dry_run belong to a sweep, with older_than."
            )
        if older_than is not None and discard_unfinished:
            raise InvalidInputError(
                f"The clean-up {self.task_id!r} has older_than: in place of discard_unfinished, set abandoned='discard'."
            )
        # Read at once, for what cannot work to fail when the DAG is parsed.
        self.older_than = None if older_than is None else require_older_than(older_than)
        self.keys = keys
        self.abandoned = require_abandoned(abandoned)
        self.is_dry_run = dry_run
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

    def execute(self, context: Context) -> CleanedKey | list[CleanedKey] | SweepResult:
        """Clean up, and return what was removed."""
        with airflow_errors():
            if self.older_than is not None:
                return self._sweep(context, self.older_than)
            given, is_list = pointers(self.checkpoint)
            listings = Listings()
            cleaned = [self._clean(pointer, listings, ReadersToCome(context)) for pointer in given]
            return cleaned if is_list else cleaned[0]

    def _clean(self, pointer: str | Reference, listings: Listings, not_begun: ReadersToCome) -> CleanedKey:
        latest = latest_of(pointer, self._own)
        if latest is None:
            raise CheckpointMissingError(
                f"There is no checkpoint under the key {pointer!r} in the store of the connection {self._own.store_of(pointer)!r}. "
                "Correct the key; if its stage never ran, there is nothing to clean up."
            )
        generations = []

        def table(checkpoint: Checkpoint) -> Table:
            return table_of(checkpoint, pointer, self._own)

        for cleaned in clean(latest, table, listings, not_begun=not_begun, discard_unfinished=self.discard_unfinished):
            self._report(latest.key.value, cleaned)
            generations.append(_facts(cleaned))
        of_key = _of_key(latest.key.value, generations)
        freed = list(self._freed(latest, listings, not_begun, self._own.store_of(pointer)))
        if freed:
            of_key["read"] = freed
        return of_key

    def _freed(self, latest: Checkpoint, listings: Listings, not_begun: ReadersToCome, store_conn_id: str) -> Iterator[CleanedKey]:
        """Free what the generations of a key have read, and what that has read, as far as all who read it are done."""
        connections, asked = OwnConnections(checkpoint=store_conn_id), set[Member]()
        readers = [*latest.earlier_generations(), latest]
        while readers:
            for read in read_by(readers.pop()):
                # What a header in the store says is not believed (I15): of a write into a table nothing is freed.
                if read.member in asked or mode_type(read.header).lands:
                    continue
                asked.add(read.member)
                cleaned = free(read, table_of(read, read.key.value, connections), listings, not_begun)
                self._report(read.key.value, cleaned)
                yield _of_key(read.key.value, [_facts(cleaned)])
                if not cleaned.left:
                    readers.append(read)

    def _sweep(self, context: Context, older_than: timedelta) -> SweepResult:
        run = SweepRun(SweepOrder(older_than, self.keys, self.abandoned, self.is_dry_run), self._own)
        self.log.info("Sweeping %s: keys %s of which nothing was put for %s.", run.store.uri, self.keys, older_than)
        result = run.run(self._report_swept)
        totals = result["totals"]
        self.log.info(
            "%s: %s objects (%.1f MiB) of %d generations from the store, and %s files (%.1f MiB) from tables. %d generations were "
            "kept, %d are younger, %d have nothing to remove. %d objects in the store are none of this provider's.",
            "A sweep would remove" if self.is_dry_run else "Removed", f"{totals['objects']:,}", totals["object_bytes"] / (1 << 20),
            totals["cleaned"], f"{totals['files']:,}", totals["file_bytes"] / (1 << 20), totals["kept"], totals["younger"],
            totals["without_records"], totals["foreign"],
        )  # fmt: skip
        if totals["failed"] and self.do_xcom_push:
            # Airflow keeps what a task pushes before it fails, but takes no return value.
            context["ti"].xcom_push(key="return_value", value=result)
        run.require_no_errors()
        return result

    def _report_swept(self, swept: SweptGeneration) -> None:
        name = swept.key or swept.folder
        if swept.is_error:
            self.log.error("Generation %d of %s is kept: %s", swept.generation, name, swept.kept)
        elif swept.kept:
            self.log.info("Generation %d of %s, %s, is kept: %s.", swept.generation, name, swept.state, swept.kept)
        else:
            self.log.info(
                "Generation %d of %s, %s: %d objects and %d files%s.",
                swept.generation, name, swept.state, swept.objects, swept.files, " to remove" if self.is_dry_run else " removed",
            )  # fmt: skip

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


def _of_key(key: str, generations: list[CleanedGeneration]) -> CleanedKey:
    return CleanedKey(
        idempotence_key=key,
        files=sum(cleaned["files"] for cleaned in generations),
        bytes=sum(cleaned["bytes"] for cleaned in generations),
        generations=generations,
    )


def _facts(cleaned: Cleaned) -> CleanedGeneration:
    return CleanedGeneration(
        generation=cleaned.generation, state=cleaned.state.value, files=cleaned.files, bytes=cleaned.bytes, left=cleaned.left
    )
