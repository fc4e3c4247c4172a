"""The ``SparkDataFrame`` source: any Spark DataFrame, in hash buckets of its id columns. Spark computes it; nothing is read here.

**Buckets.** A row belongs to the bucket that the hash of its id says, so every split holds the same ids in every attempt, and a
retry computes only the buckets that are not staged. What arrives between two attempts lands if its bucket was not staged. A bucket
of very many rows can be cut; see ``dealing``.

**Partitions.** Spark's own partitions of the DataFrame, where it can be proved that they have the same rows in each attempt: no id
is needed, and nothing is shuffled for the write. The session tells how many there are, and what decides which rows are in each, so
the plan is made with one; ``spark.frame.partitions`` proves it, and runs the missing ones only.

**Rows, in rounds.** Recovery by rows opens a round in each attempt; see ``sources.frame_plans``. Decision: a row that arrives later
under an id that is staged already counts as staged, and is not written.
"""

from __future__ import annotations

import copy
import functools
import importlib
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.dealing import require_dealing
from airflow_ckpt_provider.sources.frame_input import require_frame_transform
from airflow_ckpt_provider.sources.frame_plans import (
    buckets_again,
    next_round,
    plan_of_buckets,
    plan_of_partitions,
    require_each_bucket,
    require_each_partition,
)
from airflow_ckpt_provider.sources.no_reader import NoReader
from airflow_ckpt_provider.sources.shown import shown
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.transforms.fingerprint import fingerprint_of
from airflow_ckpt_provider.transforms.names import whole_name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Plan, Split
    from airflow_ckpt_provider.sources.dealing import Cut
    from airflow_ckpt_provider.sources.frame_plans import Partitions
    from airflow_ckpt_provider.sources.protocol import Source, StoredSource

Recover = Literal["partitions", "buckets", "rows"]

#: Rows that are looked at where a table is to be made, or to grow, from the columns.
SAMPLE_ROWS = 1000

#: Characters of a query that messages show.
_SHOWN = 60


class SparkDataFrame:
    """A DataFrame to write, from a function, a query or the name of a table; or made of the rows of another source::

        SparkDataFrame(sql="SELECT * FROM lake.shop.orders WHERE day = :day", parameters={"day": "{{ ds }}"})
        SparkDataFrame(source=Files("s3://landing/{{ ds }}/*.parquet"), dataframe=enriched, id_column="id")

    :param build: takes the session and ``parameters`` as keyword arguments and returns the DataFrame; or its name as
        ``"package.module:function"``
    :param id_column: one or several columns that identify a row; they may be null, and one id may have several rows. None where
        Spark's own partitions are recovered (templated)
    :param buckets: number of splits, of rows with an id
    :param build_version: what stands for the code of ``build`` in place of its fingerprint, which covers all that it uses: change
        it whenever the rows that it computes change (templated)
    :param parameters: keyword arguments of ``build``, JSON values; a date belongs here, not into ``current_date()``
        (templated)
    :param recover: what a retry skips. ``partitions``, the default without an ``id_column``: Spark's own partitions that are
        staged, where it is proved that each has the same rows in every attempt; a DataFrame for which it is not is refused, naming
        why. Not over Spark Connect. ``buckets``, the default with one: those that are staged, before anything is shuffled; the
        input must be the same in every attempt. ``rows``: those whose ids are staged, so that rows that arrive between attempts
        are written too; ids are kept beside each split
    :param bucket_rows: rows of a bucket, such as 5_000_000, above which it is cut into shares, a task and a split each, also where
        one id has all of them. The first attempt counts the rows for that, which computes the id columns once more; where an id
        has more, the other columns have to be the same in every attempt too, apart from floats. None to leave buckets whole
    :param assert_unique: fail if an id occurs twice among the rows that an attempt writes
    :param reproducible: True to vouch for a DataFrame that would be refused as not reproducible
    :param sql: in place of ``build``: a query for the session; ``parameters`` are the values of its markers (templated)
    :param table: in place of ``build``: a table that the session knows, such as ``"lake.shop.orders"`` (templated)
    :param source: what ``dataframe`` is given the rows of: a source such as ``Files``, ``IcebergTable``, ``LanceDataset`` or
        ``Staged``, or a path or glob of Parquet files. Each attempt reads just what the first one has planned (templated)
    :param dataframe: in place of ``build``: takes the DataFrame of ``source`` and ``parameters`` as keyword arguments and returns
        the DataFrame to write; or its name. ``df.sparkSession`` has the tables that it may be joined with. Where ``source`` has
        nothing to read, it is not called
    :raises InvalidInputError: when the DAG is parsed, for what cannot work
    """

    template_fields = ("id_column", "parameters", "build_version", "sql", "table", "source")

    conn_id: str | None = None
    conn_kind: str = "checkpoint"

    def __init__(
        self,
        build: Callable[..., DataFrame] | str | None = None,
        id_column: Sequence[str] | str | None = None,
        buckets: int = 64,
        parameters: Mapping[str, Any] | None = None,
        recover: Recover | None = None,
        *,
        bucket_rows: int | None = None,
        assert_unique: bool = False,
        reproducible: bool = False,
        build_version: str | None = None,
        sql: str | None = None,
        table: str | None = None,
        source: Source | StoredSource | str | None = None,
        dataframe: Callable[..., DataFrame] | str | None = None,
    ) -> None:
        require_frame_transform(source, dataframe, recover)
        if [build, sql, table, dataframe].count(None) != 3 or not isinstance(sql, str | None) or not isinstance(table, str | None):
            raise InvalidInputError(
                f"SparkDataFrame(build={build!r}, sql={sql!r}, table={table!r}, dataframe={dataframe!r}): takes one of a function, "
                "a query and the name of a table; or a source, and the dataframe that is made of it."
            )
        given = build if dataframe is None else dataframe
        if given is None and build_version is not None:
            raise InvalidInputError(
                f"SparkDataFrame(build_version={build_version!r}) stands for the code of build, and there is none."
            )
        if table is not None and parameters:
            raise InvalidInputError(f"SparkDataFrame(table={table!r}) takes no parameters.")
        if given is not None and not callable(given) and not (isinstance(given, str) and all(given.partition(":"))):
            raise InvalidInputError(f"SparkDataFrame({given!r}): must be a function or a name like 'package.module:function'.")
        if recover not in {None, "partitions", "buckets", "rows"}:
            raise InvalidInputError(f"SparkDataFrame(recover={recover!r}): the values are 'partitions', 'buckets' and 'rows'.")
        recover = recover or ("partitions" if id_column is None else "buckets")
        columns = [id_column] if isinstance(id_column, str) else list(id_column or ())
        require_dealing(id_column, columns, recover, buckets, bucket_rows, assert_unique=assert_unique)
        self.build = build
        self.sql = sql
        self.table = table
        self.source = source
        self.dataframe = dataframe
        self._given = given
        self.id_column = columns
        self.buckets = buckets
        self.bucket_rows = bucket_rows
        self.parameters = dict(parameters or {})
        self.recover: str = recover
        self.assert_unique = assert_unique
        self.reproducible = reproducible
        self.build_version = build_version
        self.told_partitions: Callable[[SparkDataFrame], Partitions] | None = None
        self.told_cut: Callable[[SparkDataFrame], Cut | None] | None = None
        _parameters_json(self.parameters)

    def serialize(self) -> JsonObject:
        """What Airflow shows of it."""
        return shown(
            "SparkDataFrame",
            whole_name_of(self._given) if self._given is not None else self.sql or self.table,
            source=self.source,
            parameters=self.parameters,
            id_column=self.id_column,
            buckets=None if self.recover == "partitions" else self.buckets,
            bucket_rows=self.bucket_rows,
            recover=self.recover,
            build_version=self.build_version,
        )

    def __repr__(self) -> str:
        if self.recover == "partitions":
            return f"SparkDataFrame({self.name}, recover='partitions')"
        return f"SparkDataFrame({self.name}, id_column={self.id_column!r}, buckets={self.buckets}, recover={self.recover!r})"

    def __copy__(self) -> Self:
        # Templates are rendered in place: a copy has a source of its own.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.source = copy.copy(self.source)
        return other

    def with_parameters(self, parameters: Mapping[str, Any]) -> Self:
        """The same source with other parameters.

        :raises InvalidInputError: if they are no JSON.
        """
        _parameters_json(parameters)
        other = copy.copy(self)
        other.parameters = dict(parameters)
        return other

    def planned_by(self, partitions: Callable[[SparkDataFrame], Partitions], cut: Callable[[SparkDataFrame], Cut | None]) -> Self:
        """The same source, which can be planned by what a session tells of it.

        :param partitions: proves and counts its partitions.
        :param cut: counts the rows of its buckets.
        """
        other = copy.copy(self)
        other.told_partitions, other.told_cut = partitions, cut
        return other

    @property
    def is_planned_in_session(self) -> bool:
        """Whether only a session can tell how its rows are dealt."""
        return self.recover == "partitions" or self.bucket_rows is not None

    def as_input(self) -> SparkDataFrame:
        """The same rows as what something else is made of: the session computes all of them."""
        if not self.is_planned_in_session:
            return self
        other = copy.copy(self)
        other.recover, other.buckets, other.bucket_rows = "buckets", 1, None
        return other

    @property
    def name(self) -> str:
        """What to call it in messages."""
        if self._given is None:
            return f"table={self.table!r}" if self.sql is None else f"sql={_shortened(self.sql)!r}"
        return self._given if isinstance(self._given, str) else Transform(self._given).name

    def frame(self, spark: SparkSession) -> DataFrame:
        """Call ``build``, or ask the query. Runs on the driver; may start Spark jobs, if the user's code does."""
        if self.sql is not None:
            return spark.sql(self.sql, args=self.parameters or None)
        if self.table is not None:
            return spark.table(self.table)
        if self.dataframe is not None:
            raise TypeError(f"{self!r} is made of a source, which was not opened.")
        return self._function()(spark, **self.parameters)

    def session_sample(self, spark: SparkSession) -> Iterator[pa.RecordBatch]:
        """The first rows, to tell the columns by; a batch without rows if there are none."""
        import pyarrow as pa

        rows = self.frame(spark).limit(SAMPLE_ROWS).toArrow()
        yield from rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]

    def describe(self) -> JsonObject:
        """What decides which rows are computed, and into which splits they fall."""
        facts: JsonObject = {"dataframe": self.sql or self.table or self.name, "recover": self.recover}
        if self.recover != "partitions":
            facts |= {"id_column": self.id_column, "buckets": self.buckets}
        if self.bucket_rows is not None:
            facts["bucket_rows"] = self.bucket_rows
        if self._given is None:
            facts["is"] = "table" if self.sql is None else "sql"
        elif self.build_version is None:
            facts["code"] = fingerprint_of(self._function(), self.name, "build_version")
        elif isinstance(self.build_version, str) and self.build_version.strip():
            facts["build_version"] = self.build_version
        else:
            raise InvalidInputError(f"SparkDataFrame(build_version={self.build_version!r}) is not a text.")
        if self.parameters:
            facts["parameters"] = _parameters_json(self.parameters)
        if self.assert_unique:
            facts["assert_unique"] = True
        return facts

    def plan(self, options: Mapping[str, str]) -> Plan:
        """One split per bucket, or share of one. In recovery by rows, this is the first round."""
        if self.recover == "rows":
            return next_round(self.buckets, (), frozenset(), uuid.uuid4().hex)
        if not self.is_planned_in_session:
            return plan_of_buckets(self.buckets)
        if self.told_partitions is None or self.told_cut is None:
            raise TypeError(f"{self!r} is planned by what a session tells.")
        if self.recover == "buckets":
            return plan_of_buckets(self.buckets, self.told_cut(self))
        return plan_of_partitions(self.told_partitions(self))

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse a bucket that is computed twice, or not at all in the last round; see ``AccountingSource``."""
        del options
        if self.recover == "partitions":
            require_each_partition(plan, self.name)
        else:
            require_each_bucket(plan, self.buckets, self.name)

    def replan(
        self,
        rounds: Sequence[Plan],
        staged_ids: AbstractSet[str],
        attempt: str | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Plan | None:
        """The plan of the next round, or None if the newest pinned one is to be worked on.

        :param rounds: all pinned plans, oldest first; there is at least one.
        :param staged_ids: ids of all published splits.
        :param attempt: id of the attempt that opens the round; a random one if None.
        """
        del options
        if self.recover != "rows" or all(split.id in staged_ids for split in rounds[-1].splits):
            return None
        return next_round(self.buckets, rounds, staged_ids, attempt or uuid.uuid4().hex)

    def restaged(self, plan: Plan, staged_ids: AbstractSet[str], number: int, attempt: str) -> Plan:
        """The plan as it is; in recovery by rows, all buckets again for the rows of those that were lost."""
        if self.recover != "rows" or all(split.id in staged_ids for split in plan.splits if split.task == READ):
            return plan
        return buckets_again(self.buckets, plan, staged_ids, number, attempt)

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Nothing is known of the input: what ``build`` reads is its own affair."""

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """Not known before there is a session."""
        return None

    def reader(self, options: Mapping[str, str]) -> NoReader:
        """Refuses to read: the rows of a split come from Spark."""
        return NoReader()

    def _function(self) -> Callable[..., DataFrame]:
        if self._given is None:
            raise TypeError(f"{self!r} has no function.")
        if not isinstance(self._given, str):
            return self._given
        module, _, attribute = self._given.partition(":")
        try:
            function: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            raise InvalidInputError(
                f"SparkDataFrame({self._given!r}) cannot be imported: {error}. Put the module beside the DAG or install it on "
                "the worker."
            ) from error
        if not callable(function):
            raise InvalidInputError(f"SparkDataFrame({self._given!r}) is not a function.")
        return function  # type: ignore[no-any-return]


def _shortened(sql: str) -> str:
    words = " ".join(sql.split())
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]} ..."


def _parameters_json(parameters: Mapping[str, Any]) -> JsonObject:
    """``parameters`` as they are stored.

    :raises InvalidInputError: if they are no JSON: they bind the key, so they must be the same text in every process.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(parameters, order="deterministic"), type=dict[str, object])
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"SparkDataFrame(parameters={parameters!r}): must be JSON values by name: {error}") from error
