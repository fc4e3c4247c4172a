"""The format ``checkpointed``: ``df.write.format("checkpointed").option("key", …).save()``, by Spark's Python data sources.

Spark runs this in three kinds of Python processes, and none of them has a session: one makes the writer, those of the executors
call its ``write``, and another one of the driver's its ``commit`` or ``abort``. The pickled writer is all that goes from one to the
next. See ``sources.saved`` for why rows land once, however often Spark runs a save or a task of it.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from airflow_ckpt_provider.exceptions import InvalidInputError, RowCountError
from airflow_ckpt_provider.tables.format import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.execution import Execution, Saved
    from airflow_ckpt_provider.write.request import WriteRequest

_log = logging.getLogger(__name__)

#: Options with a name of their own, and beginnings of the names of others.
_NAMES = ("table", "uri", "key", "store", "branch", "mode", "upsert_keys", "commit")
_GROUPS = ("store.", "catalog.", "storage.")

#: Modes whose splits are all staged by what Spark runs: there is no round after that.
_MODES = ("append", "overwrite", "overwrite_partitions", "create")

#: Those that a save in Spark's mode "overwrite" cannot mean.
_KEEPING = ("append", "create")

#: Spark passes those of ``CREATE TABLE … OPTIONS`` to nobody.
_OF_A_TABLE = " Of SQL, Spark passes only the options that stand in INSERT INTO … WITH (…) itself."

#: What helps with modes that take more than one round.
_OTHER_WAY = (
    "What such a mode stages depends on what the table holds, and so takes more rounds than the one of a save: use "
    "airflow_ckpt_provider.spark.checkpointed_write."
)


@dataclass(frozen=True)
class SaveOptions:
    """What a save is told by its options.

    :param columns: of the DataFrame.
    :param groups: what stands behind ``store.``, ``catalog.`` and ``storage.``.
    """

    columns: pa.Schema
    table: str | None
    uri: str | None
    key: str
    store: str
    branch: str
    mode: str
    commit: bool
    groups: Mapping[str, Mapping[str, str]] = field(repr=False)

    @classmethod
    def read(cls, options: Mapping[str, str], columns: pa.Schema, *, overwrite: bool) -> SaveOptions:
        """What these options say.

        :param overwrite: whether Spark's save mode is that.
        :raises InvalidInputError: naming those that are missing, unknown or wrong.
        """
        told = {name: value for name, value in options.items() if not name.startswith(_GROUPS)}
        _require_known(told)
        groups = {
            group: {name.removeprefix(group): value for name, value in options.items() if name.startswith(group)}
            for group in _GROUPS
        }
        mode = told.get("mode") or ("overwrite" if overwrite else "append")
        _require_mode(mode, overwrite=overwrite)
        read = cls(
            columns, told.get("table"), told.get("uri"), told["key"], told["store"], told.get("branch", MAIN), mode,
            _flag("commit", told.get("commit", "false")), groups,
        )  # fmt: skip
        read._require_one_target()
        return read

    def _require_one_target(self) -> None:
        if self.uri is None:
            wrong, right = "storage.", "an Iceberg table, which has option('table'). Those of its storage are catalog.*"
        else:
            wrong, right = "catalog.", "a Lance dataset, which has option('uri'). Those of its storage are storage.*"
        if self.groups[wrong]:
            raise InvalidInputError(f"format('checkpointed'): options {wrong}* do not belong to {right}.")
        if self.uri is not None and self.branch != MAIN:
            raise InvalidInputError(
                "format('checkpointed'): option('branch') belongs to an Iceberg table, and uri is a Lance dataset."
            )
        if self.uri is None and not self.groups["catalog."]:
            raise InvalidInputError(
                "format('checkpointed'): an Iceberg table needs pyiceberg's properties of its catalog, such as "
                "option('catalog.type', 'rest'), option('catalog.uri', …), and option('catalog.name', …) for its name. "
                "Spark runs a save in processes that do not see the session, and so not its spark.sql.catalog.* either: "
                "airflow_ckpt_provider.spark.checkpointed_write goes by those, with table='prod.shop.orders'."
            )

    def opened(self) -> tuple[CheckpointStore, Table, WriteRequest]:
        """The store, the table and what is asked for.

        :raises InvalidInputError: for a store that only one process has.
        """
        from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
        from airflow_ckpt_provider.sources.saved import SavedRows
        from airflow_ckpt_provider.spark.places import NO_CONNECTIONS, program_origin, store_at, table_at
        from airflow_ckpt_provider.write.request import WriteRequest

        store = store_at(self.store, self.groups["store."])
        if store.location.scheme == "memory":
            raise InvalidInputError(f"The checkpoint store {store.uri} is in one process only, and a save runs in several.")
        if self.uri is not None:
            table = table_at("lance", self.uri, MAIN, None, self.groups["storage."])
        else:
            table = table_at("iceberg", str(self.table), self.branch, self.groups["catalog."], None)
        request = WriteRequest(
            key=IdempotenceKey(self.key),
            source=SavedRows(self.columns),
            options={},
            transform=None,
            mode=self.mode,
            connections=NO_CONNECTIONS,
            # Spark does not say here in which program this is.
            origin=program_origin(None),
        )
        return store, table, request


def writer_of(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> CheckpointedWriter:
    """What writes the rows of one execution of a save, once all that can be refused is.

    :param schema: of the DataFrame.
    :param overwrite: whether Spark's save mode is that.
    """
    from airflow_ckpt_provider.spark.frame.plans import arrow_schema
    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from airflow_ckpt_provider.write.execution import opened

    told = SaveOptions.read(options, arrow_schema(schema, "The DataFrame"), overwrite=overwrite)
    store, table, request = told.opened()
    attempt = WriteAttempt(store, table, request)
    execution = opened(attempt, told.columns, "format")
    if attempt.missing:
        _log.warning(
            "The rows do not have these columns of %s, which are null in them: %s.",
            table.identifier,
            ", ".join(sorted(attempt.missing)),
        )
    return CheckpointedWriter(told, execution)


@dataclass
class StagedTask(WriterCommitMessage):
    """What a task tells the driver.

    :param split: that it has staged; None if there was nothing to do.
    """

    split: str | None


class CheckpointedWriter(DataSourceArrowWriter):
    """Stages the rows of one execution, and seals them at its end.

    :param options: of the save; with all credentials.
    """

    def __init__(self, options: SaveOptions, execution: Execution) -> None:
        self._options = options
        self._execution = execution

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage the rows of one partition. Runs on an executor."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("There is no Spark task around this call.")
        # Beside the id, because a task that Spark repeats under the same id must not write under the same name.
        task_attempt = f"{context.taskAttemptId()}_{uuid.uuid4().hex[:6]}"
        return StagedTask(self._execution.stage(iterator, context.partitionId(), task_attempt))

    def commit(self, messages: Sequence[Any]) -> None:
        """Seal what the tasks of these messages have staged; land it, if the save is to.

        :raises CheckpointError: if it cannot be sealed, or cannot land. What is sealed stays so.
        """
        from airflow_ckpt_provider.write import groups
        from airflow_ckpt_provider.write.execution import sealed
        from airflow_ckpt_provider.write.outcome import commit_word

        told = [message.split for message in messages if isinstance(message, StagedTask)]
        if len(told) < len(messages):
            raise RowCountError("Spark did not say of each of its tasks what it has staged. Nothing was sealed; save again.")
        store, table, request = self._options.opened()
        saved = sealed(store, table, request, self._execution, [split for split in told if split is not None])
        _report(saved)
        if self._options.commit:
            (settled,) = groups.commit([saved.checkpoint], table)
            _log.info(
                "%s %s of %s has the rows of the key %s%s.", commit_word(saved.checkpoint).capitalize(), settled.commit.commit_id,
                table.identifier, request.key, "" if settled.landed_now else ", since an earlier commit",
            )  # fmt: skip

    def abort(self, messages: Sequence[Any]) -> None:
        """Do nothing: another execution may have sealed, and what is staged here is known by its names."""


def _report(saved: Saved) -> None:
    checkpoint, seal = saved.checkpoint, saved.seal
    if saved.is_own:
        _log.info("Sealed under the key %s: %d splits with %s rows.", checkpoint.key, seal.splits, f"{seal.rows:,}")
    else:
        _log.warning(
            "The key %s was sealed before, with %s rows for %s: that is what lands, and no row of this save is added. To "
            "write those too, save them under another key.",
            checkpoint.key, f"{seal.rows:,}", checkpoint.header.table.identifier,
        )  # fmt: skip


def _require_known(told: Mapping[str, str]) -> None:
    unknown = sorted(told.keys() - set(_NAMES))
    if unknown:
        hint = " A path is no name of a table: use save() without one, and option('table') or option('uri')."
        raise InvalidInputError(
            f"format('checkpointed') does not know the option{'s' * (len(unknown) > 1)} {', '.join(unknown)}. There are "
            f"{', '.join(_NAMES)}, and {', '.join(f'{group}*' for group in _GROUPS)}.{hint if 'path' in unknown else ''}"
        )
    for name in ("key", "store"):
        if not told.get(name):
            raise InvalidInputError(f"format('checkpointed') needs option({name!r}, …).{_OF_A_TABLE}")
    if bool(told.get("table")) is bool(told.get("uri")):
        raise InvalidInputError(
            "format('checkpointed') needs either option('table', …), an Iceberg table, or option('uri', …), a Lance dataset."
        )
    if "upsert_keys" in told:
        raise InvalidInputError(f"format('checkpointed'): option('upsert_keys') belongs to mode='upsert'. {_OTHER_WAY}")


def _require_mode(mode: str, *, overwrite: bool) -> None:
    if mode not in _MODES:
        raise InvalidInputError(
            f"format('checkpointed') does not write in mode={mode!r}; it does in {', '.join(_MODES)}. {_OTHER_WAY}"
        )
    if overwrite and mode in _KEEPING:
        raise InvalidInputError(
            f"format('checkpointed'): option('mode', {mode!r}) contradicts Spark's save mode 'overwrite'. Use mode('append')."
        )


def _flag(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise InvalidInputError(f"format('checkpointed'): option({name!r}, {value!r}) is neither true nor false.")
    return value.lower() == "true"
