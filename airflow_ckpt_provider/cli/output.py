"""How the commands print: the document and nothing else on standard output; what went wrong, in a line, on standard error."""

from __future__ import annotations

import functools
import json
import sys
from typing import TYPE_CHECKING, ParamSpec

from airflow_ckpt_provider.checkpoint.storage_problems import storage_failures_as_errors
from airflow_ckpt_provider.exceptions import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

P = ParamSpec("P")


def say(text: str) -> None:
    """Print for a person, or for what reads standard output."""
    print(text)  # noqa: T201 - a command's output


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A command that ends with 1 and a line on standard error, instead of a traceback, where it could not do what was asked."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with storage_failures_as_errors():
                function(*args, **kwargs)
        except CheckpointError as error:
            print(error, file=sys.stderr)  # noqa: T201 - a command's output
            raise SystemExit(1) from error

    return run


def print_rows(rows: Sequence[JsonObject], output: str, columns: Sequence[str]) -> None:
    """Print a list.

    :param output: ``json`` and ``yaml`` have all members of all rows; ``table`` and ``plain`` have these columns.
    """
    if output in {"json", "yaml"}:
        print_document(list(rows), output)
        return
    shown = [[_cell(row.get(column)) for column in columns] for row in rows]
    titles = [column.upper().replace("_", " ") for column in columns]
    say(as_table([titles, *shown] if output == "table" else shown))


def print_document(document: object, output: str) -> None:
    """Print one document as JSON or YAML."""
    if output == "json":
        say(json.dumps(document, ensure_ascii=False, indent=2))
        return
    from airflow.utils import yaml

    say(yaml.dump(document, allow_unicode=True, sort_keys=False).rstrip("\n"))


def as_table(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns, two blanks between them; the last column is as wide as it is."""
    if not lines:
        return ""
    cells = [[_printable(cell) for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip() for line in cells
    )


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is changed.

    :param question: what will be done.
    :param yes: whether the user said beforehand that it is to be done.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        print(f"{question} Pass --yes to do that without being asked.", file=sys.stderr)  # noqa: T201 - a command's output
        raise SystemExit(1)
    print(f"{question} Continue? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201 - a command's output
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        print("Nothing was changed.", file=sys.stderr)  # noqa: T201 - a command's output
        raise SystemExit(1)


def _cell(value: object) -> str:
    """A value for a person."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _printable(text: str) -> str:
    """A text whose control characters, such as in a key, do not move the cursor."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
