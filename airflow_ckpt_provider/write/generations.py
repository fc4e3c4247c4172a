"""Which generation of a key an attempt works on: the newest, or a new one that is bound to the table as it is now."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.codes import accept, differs_in_code_only
from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    RestartRefusedError,
    TableExistsError,
    TableMissingError,
    UndoneError,
)
from airflow_ckpt_provider.sources.protocol import ListableSource
from airflow_ckpt_provider.tables.format import format_of
from airflow_ckpt_provider.tables.summary import trace_of
from airflow_ckpt_provider.write import commits, groups
from airflow_ckpt_provider.write.conflict_checks import require_not_landed
from airflow_ckpt_provider.write.headers import Headers
from airflow_ckpt_provider.write.looks import look_at

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Commit, Header, Tombstone
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.mode import Mode
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.request import SourcePlan, WriteRequest

_log = logging.getLogger(__name__)


class Generations:
    """The generations of one key, as one request sees them.

    :param store: the checkpoint store.
    :param table: the table to write to.
    :param source_plan: asked for the columns of the rows, where the table is made or grows by them.
    """

    def __init__(self, store: CheckpointStore, table: Table, request: WriteRequest, source_plan: SourcePlan) -> None:
        self._store = store
        self._table = table
        self._request = request
        self._source_plan = source_plan
        self._headers = Headers(table, request)
        #: Digest of the transform's code as this attempt has it; see ``Header.code``.
        self.code = self._headers.code
        #: What an evolution of the table's schema changed, one readable line each.
        self.evolved: list[str] = []
        #: What there is to read now, if a generation was opened because nothing of the one before it has landed.
        self.news = ""

    @property
    def _mode(self) -> type[Mode]:
        return self._request.mode_on(self._table)

    def open(self) -> Checkpoint:
        """The generation to work on: the newest, or the next one if a restart or a replacement was asked for.

        :raises TableExistsError: if it is to create a table, and another writer has created one of its name; but a write that
            creates its table only if there is none begins anew on the one that is there.
        """
        try:
            return self._open()
        except TableExistsError:
            latest = Checkpoint.latest(self._store, self._request.key)
            if latest is None or not self._is_for_no_table(latest):
                raise
            # Whatever becomes of its commit, it can only land in a table with the identity that it has pinned, which is none.
            if latest.discarded() is None:
                latest.discard("another writer has created the table")
                table = self._table.identifier
                _log.warning(
                    "%s was created by another writer. The rows of the key %s are staged again, for it.", table, latest.key
                )
            return self._create_after(latest)

    def _is_for_no_table(self, latest: Checkpoint) -> bool:
        """Whether a generation that has not landed is to create a table only because there was none."""
        is_creating = self._request.creates_if_missing and latest.header.table.creation is not None
        return is_creating and latest.committed() is None and latest.header.replaces is None and not self._is_sibling(latest)

    def _open(self) -> Checkpoint:
        request = self._request
        latest = Checkpoint.latest(self._store, request.key)
        if latest is None or latest.header.undoes is not None:
            return self._create_first() if latest is None else self._after_undo(latest)
        tombstone = latest.discarded()
        if tombstone is not None and not _discarded_too_late(latest):
            return self._after(latest, tombstone)
        restart = request.restart_token is not None and not self._served(latest, request.restart_token)
        committed = self._landed(latest) if request.on_rerun == "replace" and self._headers.is_same_table(latest) else None
        if restart and committed is None:
            self._require_same_replacement(latest)
            self._discard(latest, "restart was asked for")
            return self._create_after(latest)
        wanted = self._headers.wanted(latest)
        changes = latest.header.differences(wanted)
        # What is replaced is written anew as a whole, and so by one code.
        replaceable = request.on_change == "restart" or (
            request.on_change == "continue" and latest.header.differs_in_code_only(wanted)
        )
        if committed is not None and (restart or not changes or replaceable):
            self._require_replaceable(latest, wanted)
            commits.verify(latest, committed, self._table)
            landed = SealedWrite(latest)
            look_at(self._table, latest.header.table, lambda state: state.mode(latest.header).require_replaceable(landed))
            return self._create_after(latest, replaces=latest.header.generation)
        if changes and request.on_change == "restart":
            self._require_same_replacement(latest)
            self._discard(latest, "; ".join(changes))
            return self._create_after(latest)
        if not (changes and self._goes_on(latest, wanted)):
            latest.require_binding(wanted)
        self._table.require_creation(latest.header.table, request.parameters)
        looks_again = self._looks_again(latest)
        if not looks_again and latest.header.table.creation is not None and bound_group(latest) is None:
            look_at(self._table, latest.header.table, lambda _: None)
        return self._create_after(latest) if looks_again else latest

    def _after_undo(self, undo: Checkpoint) -> Checkpoint:
        """The generation to work on where what the key had committed was taken out of the table again: a new one.

        :raises UndoneError: if that was begun, and has not landed.
        """
        if commits.landed(undo, self._table) is None:
            key = undo.key.value
            raise UndoneError(
                f"An undo of what generation {undo.header.undoes} of the key {key!r} has committed to "
                f"{undo.header.table.identifier} was begun, and has not landed. Let it end first: airflow checkpoints undo "
                f"{shlex.quote(key)}. Or give it up: airflow checkpoints discard {shlex.quote(key)}. Then clear this task."
            )
        if not self._mode.creates:
            return self._create(self._new_header(undo))
        try:
            # The table that the write has created is there still, and empty.
            return self._create(self._header_on_existing(undo.next_generation, None))
        except TableMissingError:
            return self._create(self._new_header(undo))

    def _after(self, latest: Checkpoint, tombstone: Tombstone) -> Checkpoint:
        """The generation to work on where the newest was given up: the next one, or the same if it was done with."""
        if tombstone.freed and self._stays_freed(latest):
            return latest
        self._require_same_replacement(latest)
        self._require_settled(latest)
        return self._create_after(latest)

    def _stays_freed(self, latest: Checkpoint) -> bool:
        """Whether rows whose readers were all done are not computed again: nobody asks for it, and nothing has changed."""
        request = self._request
        if not self._mode.stays_freed(latest.header.parameters):
            return False
        if request.restart_token is not None and not self._served(latest, request.restart_token):
            return False
        wanted = self._headers.wanted(latest)
        if latest.header.differences(wanted) and request.on_change == "restart":
            return False
        if not (request.on_change == "continue" and latest.header.differs_in_code_only(wanted)):
            latest.require_binding(wanted)
        return True

    def _goes_on(self, latest: Checkpoint, wanted: Header) -> bool:
        """Whether other code may go on with what is staged; says so in the store before it stages anything."""
        told = self._request.on_change == "continue"
        if not differs_in_code_only(latest.header, wanted, told=told):
            return False
        return accept(latest, wanted, told=told)

    def _landed(self, latest: Checkpoint) -> Commit | None:
        """The commit of a generation, if it made a snapshot."""
        commit = commits.landed(latest, self._table)
        return None if commit is None or commit.commit_id is None else commit

    def _looks_again(self, latest: Checkpoint) -> bool:
        """Whether the next generation is to be opened because nothing of this one has landed, and there is something to read now.

        A commit of it that is under way is settled first. One that begins later lands nothing, or sees the tombstone.
        """
        commit = commits.landed(latest, self._table)
        if commit is None:
            if not self._is_empty(latest) or self._is_sibling(latest):
                return False
            if bound_group(latest) is not None:
                if not groups.settle_nothing(latest, self._table):
                    return False
                commit = latest.committed()
        elif commit.commit_id is not None:
            return False
        # A source that only Spark can look at is looked at by writing it again, once its commit has shown that there was nothing.
        listable = isinstance(self._request.source, ListableSource)
        if not listable and commit is not None:
            self.news = "only Spark can tell what there is to read"
            return True
        try:
            self.news = self._source_plan.news(latest.plan()) or ""
        except Exception as error:  # noqa: BLE001 - whatever it is, what was written before stands
            _log.warning("What there is to read now could not be compared with what was read for the key %s: %s", latest.key, error)
        if self.news and commit is None:
            self._require_same_replacement(latest)
            self._discard(latest, f"it has no rows, and {self.news}")
        return bool(self.news)

    def _is_empty(self, latest: Checkpoint) -> bool:
        """Whether it is known to have no rows."""
        seal, plan = latest.newest_seal(), latest.plan()
        return seal.is_empty if seal is not None else plan is not None and not plan.splits

    def _create_first(self) -> Checkpoint:
        """The first generation."""
        return self._create(self._new_header(None))

    def _create(self, header: Header) -> Checkpoint:
        """A new generation; if somebody else opened it since we looked, theirs, as any later attempt finds it."""
        self._require_unknown(header)
        self._source_plan.require_storable(CheckpointPaths(self._request.key.hash, header.generation), header.replaces)
        try:
            return Checkpoint.create(self._store, header)
        except BindingMismatchError:
            if header.table.creation is None:
                raise
            # A table to be has an identity of its own in each attempt: that of the first to open the generation counts.
            first = Checkpoint.at(self._store, self._request.key, header.generation)
            first.require_binding(self._headers.wanted(first))
            self._table.require_creation(first.header.table, self._request.parameters)
            return first

    def _create_after(self, latest: Checkpoint, replaces: int | None = None) -> Checkpoint:
        """The next generation. One that takes the place of a discarded replacement replaces what that was to replace.

        :raises RecordsRemovedError: if the records of what it is to replace were cleaned up.
        """
        replaces = latest.header.replaces if replaces is None else replaces
        if replaces is None:
            return self._create(self._new_header(latest))
        replaced = Checkpoint.at(self._store, latest.key, replaces)
        replaced.require_not_compacted()
        created = self._create(self._new_header(latest, replaces))
        # A clean-up puts its compact record first and looks for a replacement second, before it removes anything. So either it
        # sees this header, or what it was about to remove is seen here; if both, only what it has not removed can be gone on with.
        if not self._store.exists(replaced.paths.seal()):
            replaced.require_not_compacted()
        return created

    def _require_unknown(self, header: Header) -> None:
        """Refuse to open a generation if the table shows rows of its key that this store knows nothing of.

        :raises BindingMismatchError: if it does.
        """
        try:
            earlier_generations = Checkpoint(self._store, header).earlier_generations()
            known = {trace_of(checkpoint.header) for checkpoint in earlier_generations}

            def look(state: TableState) -> None:
                state.require_unknown([header], known)
                require_not_landed(header, earlier_generations, state)

            look_at(self._table, header.table, look)
        except (BindingMismatchError, RestartRefusedError):
            # Another attempt may have opened this generation, and committed it, since we looked for it.
            if not self._store.exists(CheckpointPaths(self._request.key.hash, header.generation).header):
                raise

    def _require_replaceable(self, latest: Checkpoint, wanted: Header) -> None:
        if (latest.header.mode, latest.header.parameters) != (wanted.mode, wanted.parameters):
            raise BindingMismatchError(
                f"The key {latest.key.value!r} was committed with the mode {latest.header.mode!r} and other parameters, so that "
                "its files cannot be replaced one for one. Use another idempotence key."
            )

    def _require_same_replacement(self, given_up: Checkpoint) -> None:
        """Refuse to let this request take the place of a replacement that it could not have been.

        :param given_up: a generation that is not committed; what it was to replace, the next one is to.
        """
        if given_up.header.replaces is None:
            return
        replaced = Checkpoint.at(self._store, given_up.key, given_up.header.replaces).header
        request, table, existing = self._request, self._table, format_of(replaced.table.format).on_existing
        then = (replaced.table.identifier, replaced.table.branch, replaced.mode, existing(replaced.parameters))
        if then != (table.identifier, table.branch, request.mode, existing(request.parameters)):
            raise BindingMismatchError(
                f"Generation {given_up.header.generation} of the key {given_up.key.value!r} is to replace generation "
                f"{replaced.generation}, committed to {replaced.table.identifier} with the mode {replaced.mode!r}. Only a "
                "write into the same table with the same mode and parameters can take its place. Use another idempotence key."
            )

    def _new_header(self, latest: Checkpoint | None, replaces: int | None = None) -> Header:
        """Header of a new generation, bound to the table as it is now."""
        request, table = self._request, self._table
        generation = 1 if latest is None else latest.next_generation
        if self._mode.creates and replaces is None:
            rows = self._source_plan.required_schema(replaces)
            return self._headers.of(generation, table.creation(rows, request.parameters), replaces)
        try:
            return self._header_on_existing(generation, replaces)
        except TableMissingError:
            if not request.creates_if_missing or replaces is not None:
                raise
        rows = self._source_plan.required_schema(replaces)
        try:
            binding = table.creation(rows, request.parameters)
        except TableExistsError:
            # It came into being just now.
            return self._header_on_existing(generation, replaces)
        header = self._headers.of(generation, binding, replaces)
        look_at(table, binding, lambda state: state.mode(header).validate())
        return header

    def _header_on_existing(self, generation: int, replaces: int | None) -> Header:
        """Header of a generation that is bound to a table that is there.

        :raises TableMissingError: if there is none.
        """
        request, table = self._request, self._table
        if request.evolve_schema:
            # Before the source is looked at, and the table grows by it.
            self._require_unknown(self._headers.of(generation, table.binding(), replaces))
            rows = self._source_plan.output_schema(replaces)
            if rows is not None:
                self.evolved = table.evolve(rows)
        return self._headers.of(generation, table.binding(), replaces)

    def _served(self, latest: Checkpoint, token: str) -> bool:
        """Whether this restart opened a generation already; a newer one may belong to somebody else since."""
        return any(checkpoint.header.restart_token == token for checkpoint in (latest, *latest.earlier_generations()))

    def _discard(self, checkpoint: Checkpoint, why: str) -> None:
        """Give up a generation that did not land. One that landed is not given up: its rows are in the table."""
        if self._is_sibling(checkpoint):
            sibling, mine = checkpoint.header.origin, self._request.origin
            raise RestartRefusedError(
                f"The key {checkpoint.key.value!r} is used by map index {sibling.map_index} and {mine.map_index} of one mapped "
                "task in one run, which would discard each other's work. Put something of each into idempotence_key."
            )
        same_table = self._headers.is_same_table(checkpoint)
        recorded = checkpoint.committed() if not same_table else self._landed(checkpoint)
        if recorded is None and not same_table and bound_group(checkpoint) is not None:
            raise RestartRefusedError(
                f"A commit of the key {checkpoint.key.value!r} to {checkpoint.header.table.identifier} was begun. Run its commit "
                "task first, or use another idempotence key for the other table."
            )
        if recorded is not None:
            word = format_of(checkpoint.header.table.format).commit_is
            raise RestartRefusedError(
                f"The key {checkpoint.key.value!r}, generation {checkpoint.header.generation}, is committed"
                + (f" as {word} {recorded.commit_id}" if recorded.commit_id else "")
                + f" of {checkpoint.header.table.identifier}; a restart would land its rows a second time. To replace them, "
                "clear the task with on_rerun='replace'; to have them twice, use another idempotence key."
            )
        # What is to take its place can be stored at all.
        self._source_plan.require_storable(checkpoint.paths, checkpoint.header.replaces)
        checkpoint.discard(why)
        self._require_settled(checkpoint)

    def _is_sibling(self, checkpoint: Checkpoint) -> bool:
        """Whether it was opened by another instance of the same mapped task in the same run."""
        sibling, mine = checkpoint.header.origin, self._request.origin
        return sibling != mine and msgspec.structs.replace(sibling, map_index=mine.map_index) == mine

    def _require_settled(self, checkpoint: Checkpoint) -> None:
        """Look a second time, after the tombstone: a commit that began in between is seen here, or sees the tombstone.

        One in this table is looked for again when the newer generation is committed; one in another table is not.
        """
        if bound_group(checkpoint) is None or self._headers.is_same_table(checkpoint):
            return
        raise RestartRefusedError(
            f"A commit of the key {checkpoint.key.value!r} to {checkpoint.header.table.identifier} was under way while it was "
            "discarded. Use another idempotence key for the other table."
        )


def _discarded_too_late(discarded: Checkpoint) -> bool:
    """Whether a commit that was under way when a generation was discarded has landed all the same, and is recorded."""
    commit = discarded.committed()
    return commit is not None and commit.commit_id is not None
