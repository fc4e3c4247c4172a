"""What a user may give as a check, and what it says of the staged rows. Light: DAG files are parsed with it."""

from __future__ import annotations

import inspect
import pkgutil
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_ckpt_provider.exceptions import InvalidInputError, escaped
from airflow_ckpt_provider.spark.checks.sql import SAFE_SETTINGS, require_harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row

    from airflow_ckpt_provider.spark.checks.rows import StagedRows

    CheckFunction: TypeAlias = Callable[[StagedRows], bool | str | None]
    Verdict: TypeAlias = "tuple[bool, str]"

    #: SQL, SQL with the values of its parameters, a function, or its name.
    Test: TypeAlias = str | tuple[str, Mapping[str, Any]] | CheckFunction

#: A check as a user writes it: SQL, a function or its name, or a mapping from names to those.
CheckSpec: TypeAlias = "Test | Mapping[str, Test]"


_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")

#: Characters of a text, and of a value, that messages show.
_TEXT, _VALUE = 300, 200


@dataclass(frozen=True)
class Check:
    """One check.

    :param name: as the user called it, if they did.
    :param test: SQL over the view ``staged``, the name of a function, or the function.
    :param values: of the parameters of SQL, such as ``:day``.
    """

    name: str | None
    test: str | CheckFunction
    values: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """What to call it in messages."""
        text = _brief(self.test, _TEXT) if isinstance(self.test, str) else _name(self.test)
        if self.values:
            text += " with " + ", ".join(f"{name} = {_brief(repr(value), _VALUE)}" for name, value in self.values.items())
        return text if self.name is None else f"{self.name!r} ({text})"

    def run(self, staged: StagedRows) -> Verdict:
        """Look at the rows.

        :returns: whether they pass, and the values that say why.
        :raises InvalidInputError: if the check is none, its SQL may do anything but look at rows, or its answer is neither true nor
            false.
        """
        from airflow_ckpt_provider.spark.stage import spark_settings

        if isinstance(self.test, str) and not _FUNCTION.fullmatch(self.test.strip()):
            require_harmless(self.test)
            spark = staged.dataframe.sparkSession
            with spark_settings(spark, SAFE_SETTINGS):
                return of_rows(spark.sql(self.test, args=dict(self.values or {})).limit(2).collect())
        function = _load(self.test.strip()) if isinstance(self.test, str) else self.test
        try:
            return of_answer(function(staged))
        except AssertionError as error:
            return False, _brief(error, _TEXT) or _place(error)


def parse_checks(checks: object) -> list[Check]:
    """The checks of a parameter; called when the DAG is parsed, and again once templates are rendered.

    :raises InvalidInputError: naming what is no check.
    """
    if checks is None:
        return []
    if isinstance(checks, str | Mapping) or not isinstance(checks, Sequence):
        raise InvalidInputError(f"checks={checks!r} is not a list. Write checks=[...], for one check too.")
    parsed = []
    for number, spec in enumerate(checks, 1):
        named = list(spec.items()) if isinstance(spec, Mapping) else [(None, spec)]
        if not named:
            raise InvalidInputError(f"Check {number} is an empty mapping; write it as {{name: check}}.")
        for name, test in named:
            if name is not None and not (isinstance(name, str) and name.strip()):
                raise InvalidInputError(f"Check {number} has the name {name!r}; a name is a text.")
            parsed.append(_check(name, test, f"Check {number}" if name is None else f"Check {number}, {name!r},"))
    return parsed


def _check(name: str | None, test: Any, what: str) -> Check:  # noqa: ANN401 - whatever a user wrote
    if isinstance(test, tuple | list) and len(test) == 2 and isinstance(test[0], str) and isinstance(test[1], Mapping):
        sql, values = test
        if _FUNCTION.fullmatch(sql.strip()):
            raise InvalidInputError(f"{what} gives parameters to the function {sql}; they belong to SQL.")
        for parameter, value in values.items():
            if not (isinstance(parameter, str) and parameter.isidentifier()):
                raise InvalidInputError(f"{what} has the parameter {parameter!r}; a name is written as in SQL, without the colon.")
            if not isinstance(value, str | int | float | Decimal | date | None):
                kind = type(value).__name__
                raise InvalidInputError(f"{what} has a {kind} for the parameter {parameter!r}; it is a text, a number or a date.")
        return Check(name, _require_test(sql, what), dict(values))
    return Check(name, _require_test(test, what))


def _require_test(test: Any, what: str) -> Any:  # noqa: ANN401 - whatever a user wrote
    if isinstance(test, str):
        text = test.strip()
        if not text:
            raise InvalidInputError(f"{what} is an empty text; a template may have rendered to nothing.")
        if not _FUNCTION.fullmatch(text) and not re.search(r"[\s({]", text):
            raise InvalidInputError(f"{what} is {text!r}, which is neither SQL nor a name of the form 'package.module:function'.")
        return test
    if not callable(test):
        raise InvalidInputError(
            f"{what} is {test!r}, which is neither SQL, with its parameters or without, nor a function, nor a mapping from a name "
            "to one of them."
        )
    try:
        signature = inspect.signature(test)
    except ValueError:
        return test
    try:
        signature.bind(None)
    except TypeError as error:
        raise InvalidInputError(
            f"{what} is the function {_name(test)}{signature}; it is called with one argument, staged."
        ) from error
    return test


def of_rows(rows: Sequence[Row]) -> Verdict:
    """What the result of a query says: its one row's first column, which is true or not zero if the rows pass.

    :raises InvalidInputError: if it says neither.
    """
    if len(rows) != 1:
        raise InvalidInputError(
            f"it returned {'no row' if not rows else 'several rows'}; a check returns one row whose first column is the verdict"
        )
    columns = list(zip(rows[0].__fields__, rows[0], strict=True))
    if not columns:
        raise InvalidInputError("it returned no column; the first column of a check is the verdict")
    values = ", ".join(f"{name} = {_shown(value)}" for name, value in columns[1:])
    (name, verdict), beside = columns[0], f"; {values}" if values else ""
    if verdict is None:
        raise InvalidInputError(
            f"its verdict {name} is null, as an aggregate over no rows is; say with coalesce(..., true) what that means{beside}"
        )
    if not _is_verdict(verdict):
        raise InvalidInputError(f"its verdict {name} is {_shown(verdict)}, which is neither a boolean nor a number{beside}")
    return bool(verdict), f"{_shown(verdict)}{beside}"


def of_answer(answer: Any) -> Verdict:  # noqa: ANN401 - whatever a function returned
    """What the answer of a function says: None or True if the rows pass, False or a text that says why if they do not.

    :raises InvalidInputError: if it says neither.
    """
    if answer is None:
        return True, ""
    # Booleans of Arrow and NumPy.
    given = answer
    for plain in ("as_py", "item"):
        if not isinstance(given, bool | str) and hasattr(given, plain):
            given = getattr(given, plain)()
    if isinstance(given, bool):
        return given, "" if given else "false"
    if isinstance(given, str):
        return False, _brief(given, _TEXT) or "an empty text"
    raise InvalidInputError(
        f"it returned {_brief(repr(answer), _VALUE)}; a check returns True or None if the rows pass, and False or a text that says "
        "why if they do not"
    )


def _is_verdict(value: object) -> bool:
    # Not a number is not equal to itself.
    return isinstance(value, bool | int | float | Decimal) and value == value  # noqa: PLR0124


def _load(name: str) -> CheckFunction:
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"{name} cannot be imported: {error}. Put the module beside the DAG or install it on the worker"
        ) from error
    if not callable(function):
        raise InvalidInputError(f"{name} is not a function")
    return function  # type: ignore[no-any-return]


def _place(error: AssertionError) -> str:
    """The assertion itself, for one without a message."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.line or 'an assertion'} ({last.filename}, line {last.lineno})"


def _name(function: Any) -> str:  # noqa: ANN401 - any callable
    name = getattr(function, "__qualname__", None) or getattr(getattr(function, "func", None), "__qualname__", None)
    return str(name or type(function).__qualname__).replace("<locals>.", "")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else _brief(value, _VALUE)


def _brief(value: object, length: int) -> str:
    """``value`` on one line, as it is read."""
    text = escaped(" ".join(str(value).split()))
    return text if len(text) <= length else f"{text[: length - 3]}..."
