"""A checkpointed write in a program of the user's own: a script, a notebook, an ``@task.pyspark``, a submitted application.

It runs on the session that is there, and imports no Airflow. The program is the driver; what is staged is found again by the key,
whichever process calls next.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.reference import pointers, reference, require_whole, resolve
from airflow_ckpt_provider.checkpoint.staged_write import sealed_of
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import BindingMismatchError, CheckpointMissingError, InvalidInputError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.spark.code_shipping import is_connect
from airflow_ckpt_provider.spark.engine import SessionEngine, planned_in
from airflow_ckpt_provider.spark.frame.plans import COLUMN_NUMBERS
from airflow_ckpt_provider.spark.frame.reproducible import analyzed_plan
from airflow_ckpt_provider.spark.places import NO_CONNECTIONS, program_origin, store_at, table_at
from airflow_ckpt_provider.spark.session import quiet, require_equal_pyspark, same_python
from airflow_ckpt_provider.spark.session_catalog import catalog_of_session
from airflow_ckpt_provider.spark.visibility import require_shared_dataset, require_shared_store
from airflow_ckpt_provider.tables.format import MAIN, format_of
from airflow_ckpt_provider.tables.parameters import given
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.arguments import require_policies, require_save_every, require_transform, require_version
from airflow_ckpt_provider.write.attempt import WriteAttempt
from airflow_ckpt_provider.write.outcome import committed_reference, settled_reference
from airflow_ckpt_provider.write.request import WriteRequest
from airflow_ckpt_provider.write.rounds import Rounds
from airflow_ckpt_provider.write.stage_log import StageLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.dataframe import Recover
    from airflow_ckpt_provider.tables.table import Table

_log = logging.getLogger(__name__)


def checkpointed_write(
    frame: DataFrame,
    *,
    key: str,
    store: str,
    table: str | None = None,
    uri: str | None = None,
    mode: str = "append",
    id_column: Sequence[str] | str | None = None,
    recover: Recover | None = None,
    buckets: int = 64,
    bucket_rows: int | None = None,
    catalog: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    store_options: Mapping[str, str] | None = None,
    branch: str = MAIN,
    transform: Callable[..., Any] | str | None = None,
    transform_version: str | None = None,
    on_change: Literal["fail", "restart", "continue"] = "fail",
    on_rerun: Literal["reuse", "replace"] = "reuse",
    evolve_schema: bool = False,
    missing_columns: Literal["null", "fail"] | None = None,
    save_every: int | timedelta | None = None,
    assert_unique: bool = False,
    reproducible: bool = False,
    restart: str | None = None,
    **parameters: object,
) -> Reference:
    """Stage the rows of a DataFrame: files that no commit references yet. ``commit`` lands them, in this program or another task.

    Run the program again after it was killed, with the same key: buckets that are staged are not computed again::

        reference = checkpointed_write(orders, table="prod.shop.orders", key=f"orders/{day}", id_column="id", store="s3://lake/ckpt")
        commit(reference, catalog="prod", store="s3://lake/ckpt")

    What it does is logged by the logger ``airflow_ckpt_provider.spark.program``, progress too.

    :param frame: the rows; each run has to compute the same ones, unless ``recover`` is ``rows``
    :param key: the name under which this write is remembered, up to 512 characters; another one for each write
    :param store: URI of the checkpoint store
    :param table: an Iceberg table, ``namespace.table``; without ``catalog``, with the name of a catalog of the session before it
    :param uri: a Lance dataset, in place of ``table``
    :param mode: as those of ``CheckpointedIcebergWriteOperator`` and ``CheckpointedLanceWriteOperator``
    :param id_column: one or several columns that identify a row; None where Spark's own partitions can be recovered
    :param recover: see ``SparkDataFrame``, as ``buckets``, ``bucket_rows``, ``assert_unique`` and ``reproducible``
    :param catalog: pyiceberg's properties of the catalog, and its ``name``, which is ``default`` without one; the session's own
        catalog if None
    :param storage_options: options of the dataset's storage, by Lance's names; the environment's credentials without any
    :param store_options: options of the store's storage, by obstore's names, and ``signing_secret`` if all documents are to be
        signed; the environment's credentials without any
    :param branch: of an Iceberg table
    :param transform: a function of Arrow batches, or a ``Map`` or ``FlatMap``, over the rows of the DataFrame
    :param transform_version: what stands for the transform's code
    :param on_change: what to do if the key belongs to a write with another table, DataFrame, mode or transform, as the operators.
        The DataFrame counts by its analyzed plan, in which the code of a UDF, and which files a table has, are not
    :param on_rerun: what to do if the key is committed already, as the operators
    :param evolve_schema: add columns that the table lacks, as the operators
    :param missing_columns: what becomes of columns that the rows lack, as the operators
    :param save_every: rows, or a time, after which what the transform has done of a bucket is saved, so that the next run goes on
        behind it; its rows are sorted by their ids for that. None to save whole buckets only
    :param restart: any text; what is staged is given up and the write begun anew, once for each text
    :param parameters: those of the mode, such as ``upsert_keys``, as the operators
    :returns: the reference; its ``state`` is ``sealed``, or ``committed`` if the key had landed before
    :raises CheckpointError: if the rows cannot be staged; the message says what to do
    """
    require_equal_pyspark()
    quiet()
    require_policies(on_change, on_rerun, "succeed", missing_columns)
    require_transform(transform)
    version = require_version(transform, transform_version)
    save = require_save_every(save_every)
    spark = frame.sparkSession
    engine = SessionEngine(spark)
    opened_store = store_at(store, store_options)
    require_shared_store(opened_store, engine.target)
    written = table_of_session(spark, engine, table, uri, branch, catalog, storage_options)
    source = SparkDataFrame(
        GivenFrame(frame, "checkpointed_write"),
        id_column,
        buckets,
        recover=recover,
        bucket_rows=bucket_rows,
        assert_unique=assert_unique,
        reproducible=reproducible,
        build_version=_plan_digest(spark, frame),
    )
    request = WriteRequest(
        key=IdempotenceKey(key),
        source=planned_in(source, lambda: spark),
        options={},
        transform=None if transform is None else Transform(transform),
        transform_version=version,
        mode=mode,
        parameters=given(format_of(written.format).parameters, mode, parameters),
        connections=NO_CONNECTIONS,
        origin=program_origin(None if is_connect(spark) else spark.sparkContext.appName),
        on_change=on_change,
        on_rerun=on_rerun,
        evolve_schema=evolve_schema,
        missing_columns=missing_columns,
        save_every=save,
        sample=lambda: source.session_sample(spark),
        restart_token=restart,
    )
    return staged(WriteAttempt(opened_store, written, request), engine, StageLog(_log, missing_columns))


def commit(
    checkpoint: Reference | str | Sequence[Reference | str],
    *,
    store: str,
    table: str | None = None,
    uri: str | None = None,
    mode: str = "append",
    branch: str = MAIN,
    catalog: Mapping[str, str] | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Reference | list[Reference]:
    """Land what ``checkpointed_write`` has staged, in one snapshot, once: however often it is called, and by however many.

    :param checkpoint: what ``checkpointed_write`` has returned, or the key of a save in the format ``checkpointed``; a list for one
        snapshot of all
    :param store: as ``checkpointed_write`` was given it
    :param table: the Iceberg table of a key, which does not say it; the store is not believed. What ``checkpointed_write`` has
        returned has to be of this table too, if it is given
    :param uri: the Lance dataset, in place of ``table``
    :param mode: of the write of a key
    :param branch: of the write of a key
    :param catalog: as ``checkpointed_write`` was given it, or the name of a catalog of the session that is active
    :param storage_options: as ``checkpointed_write`` was given them
    :param store_options: as ``checkpointed_write`` was given them
    :returns: the reference with ``state`` ``committed`` and the member ``commit``; a list of them for a list, in its order
    :raises CheckpointError: if it cannot land; the message says what to do
    """
    told, is_list = pointers(checkpoint)
    has_keys = any(isinstance(pointer, str) for pointer in told)
    if table is not None and uri is not None:
        raise InvalidInputError("commit takes either table=, an Iceberg table, or uri=, a Lance dataset.")
    if has_keys and table is None and uri is None:
        raise InvalidInputError(
            "commit takes what checkpointed_write has returned; a key alone does not say what was staged. Name the table of a key, "
            "as table= or uri=."
        )
    require_whole(told)
    opened_store = store_at(store, store_options)
    checkpoints = [_found(opened_store, pointer) for pointer in told]
    bound = checkpoints[0].header.table
    if isinstance(catalog, str):
        catalog = catalog_of_session(_active(), catalog)
    if table is not None or uri is not None:
        name = str(table) if uri is None else uri
        committed_to = table_at("lance" if table is None else "iceberg", name, branch, catalog, storage_options)
    else:
        committed_to = table_at(bound.format, bound.identifier, bound.branch, catalog, storage_options)
    for pointer, named in zip(told, checkpoints, strict=True):
        _require_told(named, committed_to, mode if isinstance(pointer, str) else None)
    settled = groups.commit(checkpoints, committed_to)
    committed = [
        settled_reference(member, pointer, member.checkpoint.header.connections)
        for member, pointer in zip(settled, told, strict=True)
    ]
    return committed if is_list else committed[0]


def _found(store: CheckpointStore, pointer: Reference | str) -> Checkpoint:
    checkpoint = resolve(store, pointer)
    if checkpoint is None:
        raise CheckpointMissingError(f"There is no checkpoint under the key {pointer!r} in the store {store.uri}.")
    return checkpoint


def _require_told(checkpoint: Checkpoint, table: Table, mode: str | None) -> None:
    """Refuse another table than the caller says; and what only the store says of a key: whether others go for its rows (I15).

    :param mode: that the caller says of a key; None for a reference, which says it.
    :raises BindingMismatchError: if the caller says otherwise.
    """
    header = checkpoint.header
    bound = (header.table.format, header.table.identifier, header.table.branch, header.mode)
    said = (table.format, table.identifier, table.branch, mode or header.mode)
    names = ("format", "table", "branch", "mode")
    differing = [f"its {name} is {now!r}, not {then!r}" for name, now, then in zip(names, bound, said, strict=True) if now != then]
    if mode is not None and header.replaces is not None:
        differing.append("it takes the place of an earlier generation: pass what checkpointed_write has returned")
    if differing:
        raise BindingMismatchError(
            f"The checkpoint of the key {header.key!r} is not what commit was told: {'; '.join(differing)}. Nothing was changed."
        )


def staged(attempt: WriteAttempt, engine: SessionEngine, says: StageLog) -> Reference:
    """Stage what is missing of a write in the session of an engine, and seal it."""
    checkpoint = attempt.checkpoint
    says.opened(attempt)
    if attempt.commit is not None:
        attempt.verify_commit()
        says.reused(attempt, attempt.commit)
        return committed_reference(checkpoint, sealed_of(checkpoint), attempt.commit, landed_now=False)
    with same_python(engine.spark):
        Rounds(engine, 1).run(attempt, lambda begun: says.announce(begun, attempt), says.report)
    says.ran(attempt, started=engine.started)
    seal = attempt.seal()
    says.missing(attempt)
    says.rejected(attempt, seal)
    says.sealed(attempt, seal)
    recovered = attempt.recovered(seal)
    made = reference(checkpoint, seal, State.SEALED, recovered=recovered, written=seal.splits - recovered)
    if engine.application is not None:
        made["application"] = engine.application
    return made


class GivenFrame:
    """A DataFrame that is there, where operators have a function that makes one.

    :param name: what messages call it.
    """

    def __init__(self, frame: DataFrame, name: str) -> None:
        self._frame = frame
        self.__name__ = self.__qualname__ = name

    def __call__(self, spark: SparkSession) -> DataFrame:
        del spark
        return self._frame


def _plan_digest(spark: SparkSession, frame: DataFrame) -> str:
    """What stands for the code of a DataFrame: its analyzed plan, without what other processes number otherwise."""
    return hashlib.sha256(re.sub(COLUMN_NUMBERS, "#", analyzed_plan(spark, frame)).encode()).hexdigest()


def table_of_session(
    spark: SparkSession,
    engine: SessionEngine,
    table: str | None,
    uri: str | None,
    branch: str,
    catalog: Mapping[str, str] | None,
    storage_options: Mapping[str, str] | None,
) -> Table:
    """The table that a program writes to.

    :param table: an Iceberg table; with the name of a catalog of the session before it, if ``catalog`` is None.
    :param uri: a Lance dataset, in place of it.
    """
    if (table is None) is (uri is None):
        raise InvalidInputError("A write takes either table=, an Iceberg table, or uri=, a Lance dataset.")
    if uri is not None:
        if catalog is not None or branch != MAIN:
            raise InvalidInputError("catalog= and branch= belong to an Iceberg table, and uri= is a Lance dataset.")
        dataset = table_at("lance", uri, MAIN, None, storage_options)
        require_shared_dataset(dataset.identifier, engine.target)
        return dataset
    if storage_options is not None:
        raise InvalidInputError(
            "storage_options= belong to a Lance dataset. Those of an Iceberg table are properties of its catalog."
        )
    if catalog is None:
        name, _, table = str(table).partition(".")
        catalog = catalog_of_session(spark, name)
    return table_at("iceberg", str(table), branch, catalog, None)


def _active() -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvalidInputError(
            "There is no active Spark session whose catalogs have names. Pass pyiceberg's properties as catalog=."
        )
    return spark
