"""The SQL of a check before any Spark sees it: one query that reads, with functions that only compute.

A check may be made of a template, and what a template renders to may come from anybody who starts a run. So its text is taken
apart here, and what is not known to be harmless is refused: statements that write or run something, functions that are not in a
list, tables that are files. Decision: by its words and not by Spark's plan, because over Connect there is no plan to look at
without sending the text, and because a text that is refused should start no session. Where another reader of SQL might see other
words, such as in nested comments, the text is refused too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.spark.checks.functions import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Name of the view that SQL is written over.
VIEW = "staged"

#: Settings of the session while checks run: what stands in ``${…}`` is not put in, and a path is no table.
SAFE_SETTINGS: Mapping[str, str] = {"spark.sql.variable.substitute": "false", "spark.sql.runSQLOnFiles": "false"}

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<comment>--[^\r\n\\]*(?=[\r\n]|\Z) | /\*(?!\+)(?:(?!\*/|/\*)[\s\S])*\*/)
    | (?P<text>'(?:[^'\\]|\\[\s\S]|'')*' | "(?:[^"\\]|\\[\s\S]|"")*")
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?:[A-Za-z]{0,2}(?![\w]))?)
    | (?P<parameter>:[A-Za-z_]\w*)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign>(?!--|/\*|\*/)(?:::|->|=>|\|\||[-+*/%&|^~<>=!(),.;\[\]?:]))
    """,
    re.VERBOSE,
)

#: How a query begins.
_BEGINNINGS = {"SELECT", "WITH", "FROM", "VALUES", "("}

#: Words of statements that write, run or set something. A column of such a name can be written in backquotes.
_FORBIDDEN = {
    "ALTER", "ANALYZE", "CALL", "CREATE", "DELETE", "DIRECTORY", "DROP", "EXECUTE", "INSERT", "INTO", "LOAD", "MERGE", "OVERWRITE",
    "REDUCE", "REFRESH", "TRUNCATE", "UPDATE", "CURRENT_USER", "SESSION_USER",
}  # fmt: skip

#: Words, and types, that a bracket may follow without being a function.
_BEFORE_BRACKETS = {
    "ALL", "AND", "ANTI", "ANY", "AS", "BETWEEN", "BY", "CASE", "CROSS", "CUBE", "DISTINCT", "ELSE", "EXCEPT", "EXISTS",
    "EXTRACT", "FILTER", "FOR", "FROM", "FULL", "GROUP", "HAVING", "ILIKE", "IN", "INTERSECT", "IS", "JOIN", "LATERAL", "LIKE",
    "LIMIT", "MATERIALIZED", "MINUS", "NOT", "OFFSET", "ON", "OR", "OVER", "PIVOT", "RLIKE", "ROLLUP", "SELECT", "SETS",
    "SOME", "TABLESAMPLE", "THEN", "UNION", "UNPIVOT",
    "USING", "VALUES", "WHEN", "WHERE", "WITH", "WITHIN",
    "CAST", "TRY_CAST", "TRIM", "SUBSTRING", "POSITION", "OVERLAY",
    "BIGINT", "CHAR", "CHARACTER", "DEC", "DECIMAL", "NUMERIC", "TIME", "TIMESTAMP", "VARCHAR",
}  # fmt: skip

#: Kinds of files that Spark reads as ``kind.`path```.
_FILE_KINDS = {"AVRO", "BINARYFILE", "CSV", "DELTA", "HUDI", "ICEBERG", "JDBC", "JSON", "LANCE", "ORC", "PARQUET", "TEXT", "XML"}


class _Token(NamedTuple):
    """A piece of SQL.

    :param text: in upper case for words, without quotes for what was quoted.
    """

    kind: str
    text: str


def require_harmless(sql: str) -> None:
    """Refuse SQL that might do anything but look at rows.

    :raises InvalidInputError: naming what is not allowed.
    """
    tokens = list(_tokens(sql))
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens or tokens[0].text not in _BEGINNINGS or tokens[0].kind in {"text", "quoted"}:
        raise InvalidInputError("a check in SQL is one query: it begins with SELECT, WITH, FROM or VALUES")
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else None
        after = tokens[number + 1] if number + 1 < len(tokens) else None
        _require_word(token, before, after)
        if after is not None and after.text == "(" and after.kind == "sign" and token.kind != "sign":
            _require_function(token, tokens[:number])
        _require_table(token, before, after)


def _tokens(sql: str) -> Iterator[_Token]:
    if "${" in sql:
        raise InvalidInputError("it holds ${…}, which Spark would replace by a setting or a variable of the environment")
    place = 0
    while place < len(sql):
        match = _TOKEN.match(sql, place)
        if match is None:
            raise InvalidInputError(
                f"{sql[place : place + 20]!r} is not read: quotes and comments have to be closed, and comments hold no other "
                "comments, hints or backslashes"
            )
        place = match.end()
        kind, text = str(match.lastgroup), match.group()
        if kind in {"space", "comment"}:
            continue
        if kind == "word":
            if text.upper() == "R" and sql[place : place + 1] in {"'", '"'}:
                raise InvalidInputError("raw texts such as r'…' are not read; write '…' with two backslashes for one")
            text = text.upper()
        elif kind == "quoted":
            text = text[1:-1].replace("``", "`")
        elif kind == "text":
            text = text[1:-1]
        yield _Token(kind, text)


def _require_word(token: _Token, before: _Token | None, after: _Token | None) -> None:
    """Refuse words of statements that are no query."""
    if token.kind == "sign" and token.text == ";":
        raise InvalidInputError("it has several statements; a check is one query")
    if token.kind != "word":
        return
    of_table = before is not None and before.text == "." and before.kind == "sign"
    calls = token.text == "REDUCE" and after is not None and after.text == "("
    if token.text in _FORBIDDEN and not of_table and not calls:
        raise InvalidInputError(f"{token.text} is not allowed: a check only reads. A column of that name is written in backquotes")
    if token.text == "USING" and after is not None and after.kind == "text":
        raise InvalidInputError("USING with a text runs a program, and is not allowed")


def _require_function(token: _Token, before: Sequence[_Token]) -> None:
    """Refuse calls of functions that are not known to be harmless."""
    last = before[-1] if before else _Token("sign", "")
    name = token.text.lower()
    if token.kind == "word":
        if token.text in _BEFORE_BRACKETS and last.text != ".":
            return
        if last.kind == "word" and last.text in {"AS", "WITH", "RECURSIVE"}:
            # A name with columns, such as staged AS s(id, day).
            return
    if last.text == "." and last.kind == "sign":
        raise InvalidInputError(f"….{name}(…) is not allowed: functions of a database are not among those of a check")
    if name not in FUNCTIONS:
        raise InvalidInputError(
            f"the function {name} is not allowed: a check in SQL calls those functions of Spark that compute a value from values. "
            "For anything else write the check as a Python function"
        )


def _require_table(token: _Token, before: _Token | None, after: _Token | None) -> None:
    """Refuse files in the place of tables."""
    if after is None or after.text != "." or after.kind != "sign":
        parent = before is not None and before.text == "." and before.kind == "sign"
        named = before is not None and before.kind == "word" and before.text in {"FROM", "JOIN", "TABLE"}
        if (parent or named) and token.kind in {"quoted", "text"} and re.search(r"[/\\:]", token.text):
            raise InvalidInputError(f"{token.text!r} is no table: a check does not read files")
        return
    starts = before is not None and before.kind == "word" and before.text in {"FROM", "JOIN", "TABLE"}
    if starts and token.kind in {"word", "quoted", "text"} and token.text.upper() in _FILE_KINDS:
        raise InvalidInputError(f"{token.text.lower()}.… is no table: a check does not read files")
