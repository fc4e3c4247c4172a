"""What the literals of a filter are equal to, the same wherever a row, a partition or a file's bounds are compared with them.

A literal is a value of its column's type: ``f = 0.1`` on a ``float`` means the float that is nearest to 0.1. -0.0 equals 0.0, as it
does in keys. Of comparisons, ``!=`` and ``not in`` alone hold for NaN, as in IEEE 754 and in Iceberg's own evaluators, which drop a
file of NaNs for ``f > 1``; ``is nan`` finds it. None holds for null, as in SQL.

Decision: filters are rewritten, not evaluated here. Arrow's ``is_in`` tells -0.0 from 0.0, pyiceberg compares bounds with a literal
that is not rounded, and makes ``i < 3000000000`` on an ``int``, and any ``not in``, hold for null; from the rewritten filter all
conclude the same.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import (
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    NotEqualTo,
    NotIn,
    NotNull,
    Or,
    SetPredicate,
)
from pyiceberg.expressions.literals import AboveMax, BelowMin, DoubleLiteral, FloatLiteral
from pyiceberg.expressions.visitors import rewrite_not
from pyiceberg.types import DoubleType, FloatType

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

# pydantic hides the signatures of predicates, in another way in each run of mypy.
_equal: Any = EqualTo
_different: Any = NotEqualTo
_below: Any = LessThan
_above: Any = GreaterThan
_among: Any = In
_not_among: Any = NotIn
_not_null: Any = NotNull


def fitted(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """A filter with literals of its columns' types and without negations, not bound, as the one that is given.

    :raises ValueError: or another error of pyiceberg, if it does not fit the schema.
    """
    return _fitted(rewrite_not(expression), schema)


def _fitted(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    match expression:
        case And(left=left, right=right):
            return And(_fitted(left, schema), _fitted(right, schema))
        case Or(left=left, right=right):
            return Or(_fitted(left, schema), _fitted(right, schema))
        case LiteralPredicate() | SetPredicate():
            kind = expression.term.bind(schema, case_sensitive=True).ref().field.field_type
            floating = isinstance(kind, FloatType | DoubleType)
            if isinstance(expression, SetPredicate):
                return _set_of_floats(expression, kind) if floating else _set(expression, kind)
            return _comparison_of_float(expression, kind) if floating else _comparison(expression, kind)
        case _:
            return expression


def _comparison(predicate: Any, kind: IcebergType) -> BooleanExpression:  # noqa: ANN401 - see above
    fitting = predicate.literal.to(kind)
    too_large = isinstance(fitting, AboveMax) and isinstance(predicate, LessThan | LessThanOrEqual | NotEqualTo)
    too_small = isinstance(fitting, BelowMin) and isinstance(predicate, GreaterThan | GreaterThanOrEqual | NotEqualTo)
    holds: BooleanExpression = _not_null(predicate.term) if too_large or too_small else predicate
    return holds


def _set(predicate: Any, kind: IcebergType) -> BooleanExpression:  # noqa: ANN401 - see above
    fitting = {literal for literal in predicate.literals if not isinstance(literal.to(kind), AboveMax | BelowMin)}
    if isinstance(predicate, In):
        return _among(predicate.term, fitting)  # type: ignore[no-any-return]
    return And(_not_null(predicate.term), _not_among(predicate.term, fitting))


def _comparison_of_float(predicate: Any, kind: IcebergType) -> BooleanExpression:  # noqa: ANN401 - see above
    value = _value(predicate.literal, kind)
    rounded, make = _rounded(value, kind), type(predicate)
    if math.isinf(rounded) and not math.isinf(value):
        # A number beyond all floats lies between the largest float and infinity.
        if isinstance(predicate, LessThan | LessThanOrEqual):
            make = LessThan if rounded > 0 else LessThanOrEqual
        elif isinstance(predicate, GreaterThan | GreaterThanOrEqual):
            make = GreaterThanOrEqual if rounded > 0 else GreaterThan
        elif isinstance(predicate, NotEqualTo):
            return _not_null(predicate.term)  # type: ignore[no-any-return]
        else:
            return predicate  # type: ignore[no-any-return]
    return make(predicate.term, _literal(rounded, kind))  # type: ignore[no-any-return]


def _set_of_floats(predicate: Any, kind: IcebergType) -> BooleanExpression:  # noqa: ANN401 - see above
    given = [(value, _rounded(value, kind)) for value in (_value(literal, kind) for literal in predicate.literals)]
    values = {rounded for value, rounded in given if math.isinf(value) or not math.isinf(rounded)}
    term, others, zero = predicate.term, {_literal(value, kind) for value in values if value}, _literal(0.0, kind)
    # Compared on its own: for Arrow, a set that has 0.0 does not have -0.0.
    if isinstance(predicate, In):
        among = _among(term, others)
        return Or(among, _equal(term, zero)) if 0.0 in values else among
    rest = And(_not_null(term), _not_among(term, others))
    return And(rest, _different(term, zero)) if 0.0 in values else rest


def _value(literal: Any, kind: IcebergType) -> float:  # noqa: ANN401 - of any type
    """A literal as a double, which may be too large for a float."""
    fitting = literal.to(kind)
    return float(literal.to(DoubleType()).value if isinstance(fitting, AboveMax | BelowMin) else fitting.value)


def _rounded(value: float, kind: IcebergType) -> float:
    """The value of the column's type that is nearest; infinity if it is beyond all of them. 0.0 for -0.0."""
    if isinstance(kind, FloatType):
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    return value + 0.0


def _literal(value: float, kind: IcebergType) -> FloatLiteral | DoubleLiteral:
    return FloatLiteral(value) if isinstance(kind, FloatType) else DoubleLiteral(value)
