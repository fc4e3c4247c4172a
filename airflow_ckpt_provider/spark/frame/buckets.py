"""Which bucket a row belongs to: the same one in every attempt, as long as its id is the same value.

``xxhash64`` differs between forms of one value, so ids are cast first: integers to bigint, floats to double, decimals to 38 digits
of their own scale, strings to the plain collation. A column that becomes wider between two attempts keeps its buckets; one that
becomes another kind of value, or a decimal of another scale, does not. Nulls are values like others.

Expressions are SQL text, which classic and Connect sessions understand alike. They meet every row of the DataFrame, also those that
are staged, so whatever depends on no column is of a kind that Spark folds into a literal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from airflow_ckpt_provider.sources.dealing import Cut

#: Column that carries a row's hash to the task that compares what it writes with what was counted.
HASH = "__ckpt_hash"

#: Column that carries a row's place among the buckets of this run to the task that writes it.
PLACE = "__ckpt_place"


def canonical(schema: StructType, id_columns: Sequence[str], name: str) -> list[DataType]:
    """The types that ids are hashed and compared in.

    :param name: the DataFrame, for messages.
    :raises InvalidInputError: if a column is missing, or of a type that is no id.
    """
    missing = [column for column in id_columns if column not in schema.names]
    if missing:
        raise InvalidInputError(
            f"The DataFrame of {name} has no column {', '.join(missing)}, which id_column names; it has "
            f"{', '.join(schema.names)}. Keep id columns in the DataFrame; the operator's transform may drop them."
        )
    require_one_of_each(schema.names, name)
    return [_canonical(column, schema[column].dataType, name) for column in id_columns]


def require_one_of_each(columns: Sequence[str], name: str) -> None:
    """Refuse columns of one name.

    :param name: the DataFrame, for messages.
    :raises InvalidInputError: naming them.
    """
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise InvalidInputError(f"The DataFrame of {name} has more than one column named {', '.join(twice)}. Rename or drop one.")


def _canonical(column: str, kind: DataType, name: str) -> DataType:
    from pyspark.sql import types as t

    if isinstance(kind, t.IntegralType):
        return t.LongType()
    if isinstance(kind, t.FloatType | t.DoubleType):
        return t.DoubleType()
    if isinstance(kind, t.DecimalType):
        return t.DecimalType(38, kind.scale)
    if isinstance(kind, t.StringType | t.CharType | t.VarcharType):
        return t.StringType()
    if isinstance(kind, t.BooleanType | t.DateType | t.TimestampType | t.TimestampNTZType | t.BinaryType):
        return kind
    raise InvalidInputError(
        f"The id column {column!r} of the DataFrame of {name} is of the type {kind.simpleString()}. Ids are numbers, strings, "
        "booleans, dates, timestamps or binary; name the columns inside it instead."
    )


def canonical_sql(column: str, kind: DataType) -> str:
    """SQL of an id column in its canonical type."""
    quoted = column.replace("`", "``")
    return f"cast(`{quoted}` AS {kind.simpleString()})"


def bucket_sql(id_columns: Sequence[str], kinds: Sequence[DataType], count: int) -> str:
    """SQL of the number of a row's bucket.

    :param count: number of all buckets.
    """
    return f"cast(pmod({_hash_sql(id_columns, kinds)}, {count}L) AS int)"


def _hash_sql(columns: Sequence[str], kinds: Sequence[DataType], more: str = "") -> str:
    values = ", ".join(canonical_sql(column, kind) for column, kind in zip(columns, kinds, strict=True))
    return f"xxhash64({values}{more})"


def lookup_sql(values: Sequence[int], index: str) -> str:
    """SQL of the value that a number stands for.

    One literal, which Spark parses once and casts once, when it optimizes the plan: a list of literals makes planning slow, and a
    lambda function, which Spark does not fold, is evaluated for every row and every bucket.
    """
    return f"get(cast(split('{','.join(map(str, values))}', ',') AS array<int>), {index})"


def stable_columns(schema: StructType) -> list[str]:
    """The columns that have a hash, and one value however often Spark computes them: no float, whose sums depend on an order."""
    from pyspark.sql import types as t

    kinds = t.IntegralType, t.DecimalType, t.StringType, t.CharType, t.VarcharType, t.BooleanType, t.DateType, t.TimestampType
    stable = (*kinds, t.TimestampNTZType, t.BinaryType)
    return [field.name for field in schema.fields if isinstance(field.dataType, stable)]


def share_hash_sql(schema: StructType, by: Sequence[str], name: str) -> str:
    """SQL of the hash that tells the shares of a bucket apart. The text at its end makes it another one than that of the bucket.

    :param by: columns that it is of.
    :param name: the DataFrame, for messages.
    """
    return _hash_sql(by, canonical(schema, by, name), ", 'share'")


def placed_shares(
    frame: DataFrame, bucket: str, share_hash: str, count: int, cut: Cut, wanted: Sequence[tuple[int, int]]
) -> DataFrame:
    """As ``placed``, where buckets are cut: the wanted units, one in each partition, with the hash of each row behind its place.

    :param bucket: see ``bucket_sql``.
    :param share_hash: see ``share_hash_sql``.
    :param wanted: buckets, and their shares.
    """
    numbers = cut.places(count)
    size = lookup_sql([cut.sizes.get(number, 1) for number in range(count)], bucket)
    first = lookup_sql([numbers[number, 0] for number in range(count)], bucket)
    place = {unit: at for at, unit in enumerate(wanted)}
    number = f"{first} + if({size} = 1, 0, cast(pmod({share_hash}, {size}) AS int))"
    at = lookup_sql([place.get(unit, -1) for unit in numbers], number)
    rows = frame.selectExpr(f"{at} AS {PLACE}", f"{share_hash} AS {HASH}", "*").where(f"{PLACE} >= 0")
    return rows.repartitionById(len(wanted), PLACE).toDF(PLACE, HASH, *(f"c{number}" for number in range(len(frame.columns))))


def placed(frame: DataFrame, id_columns: Sequence[str], kinds: Sequence[DataType], count: int, wanted: Sequence[int]) -> DataFrame:
    """The rows of the buckets ``wanted``, one bucket in each partition, with the partition's number as the first column.

    The columns are named by their positions: ``mapInArrow`` takes a dot in a name for a member of a struct. Rows of other
    buckets are dropped before they are shuffled, and there are no partitions for them: an empty one costs a
    Python task.

    :param count: number of all buckets.
    """
    bucket = bucket_sql(id_columns, kinds, count)
    if list(wanted) == list(range(count)):
        rows = frame.selectExpr(f"{bucket} AS {PLACE}", "*")
    else:
        place = {number: place for place, number in enumerate(wanted)}
        at = lookup_sql([place.get(number, -1) for number in range(count)], bucket)
        rows = frame.selectExpr(f"{at} AS {PLACE}", "*").where(f"{PLACE} >= 0")
    return rows.repartitionById(len(wanted), PLACE).toDF(PLACE, *(f"c{number}" for number in range(len(frame.columns))))


def sorted_by(buckets: DataFrame, frame: DataFrame, columns: Sequence[str], kinds: Sequence[DataType]) -> DataFrame:
    """The rows of each bucket, sorted by some columns, so that equal values come one after the other.

    :param buckets: see ``placed``.
    :param frame: what they were made of, which knows the columns by their names.
    :param kinds: the types in which the first of the columns are compared, see ``canonical``: a collation may take for equal
        what is not, and put it in any order.
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    places = {name: number for number, name in enumerate(frame.columns)}
    keys = []
    for number, name in enumerate(columns):
        key = f"cast(c{places[name]} AS {kinds[number].simpleString()})" if number < len(kinds) else f"c{places[name]}"
        # The two zeros are one value, and another column may be sorted by after this one.
        is_float = isinstance(frame.schema[name].dataType, t.FloatType | t.DoubleType)
        keys.append(f.expr(f"{key} + 0.0D" if is_float else key))
    return buckets.sortWithinPartitions(*keys)
