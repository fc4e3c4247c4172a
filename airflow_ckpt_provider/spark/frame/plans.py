"""A DataFrame of a session as Python sees it: its columns in Arrow, and its plan as text and as objects of the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Spark cuts long plans off in its texts, and what it cuts off would not be seen.
WHOLE_PLANS = {"spark.sql.debug.maxToStringFields": "1000000", "spark.sql.maxPlanStringLength": str(1 << 30)}

#: Numbers that Spark gives to columns in the text of a plan, other ones in each process.
COLUMN_NUMBERS = r"#\d+L?"


def arrow_schema(schema: StructType, whose: str) -> pa.Schema:
    """The columns of a DataFrame, as Arrow has them.

    :param whose: the DataFrame, to begin a message.
    :raises InvalidInputError: for a column that Arrow cannot hold.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise InvalidInputError(f"{whose} has a column that Arrow cannot hold: {error}") from error


def items(sequence: Any) -> list[Any]:  # noqa: ANN401 - a Scala Seq
    """What a sequence of the JVM holds."""
    return [sequence.apply(index) for index in range(sequence.size())]
