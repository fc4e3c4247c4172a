"""Values of the parameters of a row filter: they take their place in the expression, and are never part of its text.

So no value, whatever a template renders to, can end a text and go on as a condition.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.expressions import BooleanExpression

#: A text, a quoted name, or a parameter.
_PART = re.compile(r"""'(?:[^'\\]|''|\\.)*' | "(?:[^"\\]|\\.)*" | :(?P<name>[A-Za-z_]\w*)""", re.VERBOSE)

#: What stands for a parameter while the text is read; no text has such characters by itself.
_MARK = "\ue000{}\ue001"
_MARKED = re.compile("\ue000(.*)\ue001")


def with_watermarks(text: str, values: Mapping[str, object]) -> str:
    """The text of a filter, with a mark as text for each parameter.

    :raises InvalidInputError: if a parameter has no value, or a value no parameter.
    """
    if "\ue000" in text or "\ue001" in text:
        raise InvalidInputError(f"overwrite_filter={text!r} holds characters of no meaning (U+E000 or U+E001).")
    used = set()

    def mark(marker: re.Match[str]) -> str:
        name = marker["name"]
        if name is None:
            return marker.group()
        if name not in values:
            raise InvalidInputError(f"overwrite_filter={text!r} has the parameter :{name}, which is not in overwrite_parameters.")
        if re.search(r"\blike\s*$", text[: marker.start()], re.IGNORECASE):
            raise InvalidInputError(
                f"overwrite_filter={text!r} takes :{name} as a pattern; like needs a pattern in the text itself."
            )
        used.add(name)
        return f"'{_MARK.format(name)}'"

    marked = _PART.sub(mark, text)
    if values.keys() - used:
        raise InvalidInputError(
            f"overwrite_parameters has {', '.join(sorted(values.keys() - used))}, and overwrite_filter={text!r} has no such "
            "parameter. Parameters are written as in: day = :day, without quotes."
        )
    return marked


def bound_values(expression: BooleanExpression, values: Mapping[str, object]) -> BooleanExpression:
    """``expression`` with values in the place of marks."""
    from pyiceberg.expressions import And, LiteralPredicate, Not, Or, SetPredicate
    from pyiceberg.expressions.literals import literal

    def value_of(given: Any) -> Any:  # noqa: ANN401 - a literal of Iceberg
        marker = _MARKED.fullmatch(given.value) if isinstance(given.value, str) else None
        return given if marker is None else literal(values[marker[1]])

    make: Any
    match expression:
        case And(left=left, right=right):
            return And(bound_values(left, values), bound_values(right, values))
        case Or(left=left, right=right):
            return Or(bound_values(left, values), bound_values(right, values))
        case Not(child=child):
            make = Not
            return make(bound_values(child, values))  # type: ignore[no-any-return]
        case LiteralPredicate():
            make = type(expression)
            return make(expression.term, value_of(expression.literal))  # type: ignore[no-any-return]
        case SetPredicate():
            make = type(expression)
            return make(expression.term, {value_of(value) for value in expression.literals})  # type: ignore[no-any-return]
    return expression
