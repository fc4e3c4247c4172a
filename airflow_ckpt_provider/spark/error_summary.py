"""What a Spark error says, in one line that helps: the Python error inside it and whose line raised it.

Spark wraps the error of a task in its own words, in a Java stack trace, and in another one of the driver.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_ckpt_provider
from airflow_ckpt_provider import exceptions

if TYPE_CHECKING:
    from airflow_ckpt_provider.exceptions import TerminalError

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)(, in (?P<function>.+))?$')

#: An error of this package.
_OF_OURS = re.compile(rf"{re.escape(exceptions.__name__)}\.(?P<kind>\w+): (?P<message>.+)", re.DOTALL)

#: What follows the message of a Python error inside a Spark error.
_END = ("\tat ", " SQLSTATE:", "JVM stacktrace:", "Driver stacktrace:")

#: Frames of these are how the user's code was called, not the user's code.
_OURS = (str(Path(airflow_ckpt_provider.__file__).parent), "airflow_ckpt_provider-", "/pyspark/", "pyspark.zip")


def error_summary(problem: BaseException) -> str:
    """The last Python error in ``problem`` and the line of the user's code that raised it; else the first line that says something.

    :param problem: what Spark raised on the driver, classic or Connect.
    """
    lines = str(problem).splitlines()
    starts = [n for n, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if starts:
        summary = _python_error(lines[starts[-1] + 1 :])
        if summary:
            return summary
    said = (line.strip(": ") for line in lines if not line.startswith("An error occurred while calling"))
    return next((line for line in said if line), type(problem).__name__)


def terminal_in(problem: BaseException) -> TerminalError | None:
    """The error that no retry can cure, if a task has raised one where Spark alone could see it, such as in what it reads.

    :param problem: what Spark raised on the driver.
    """
    told = _OF_OURS.match(error_summary(problem))
    kind = None if told is None else getattr(exceptions, told["kind"], None)
    if told is None or not (isinstance(kind, type) and issubclass(kind, exceptions.TerminalError)):
        return None
    return exceptions.terminal_error(told["kind"], told["message"])


def _python_error(lines: list[str]) -> str:
    """Error and place in the lines below the head of a traceback; empty if there is none."""
    places = [match for line in lines if (match := _FRAME.match(line))]
    text: list[str] = []
    for line in lines:
        if text and line.startswith(_END):
            break
        if text or (line and not line.startswith(" ")):
            text.append(line.strip())
    theirs = [place for place in places if not any(part in place["file"] for part in _OURS)]
    message = " ".join(part for part in text if part)
    if not (message and theirs):
        return message
    place = theirs[-1]
    return f"{message} ({place['file']}, line {place['line']}, in {place['function']})"
