"""What is said of a row at which a user's function failed, and which errors are none of a row."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_ckpt_provider
from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.exceptions import CheckpointError, OutputError
from airflow_ckpt_provider.transforms.steps import FailedRows, Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

#: Characters of a message, and of a traceback, that are kept of a row.
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 4_000, 16_000

_OURS = str(Path(airflow_ckpt_provider.__file__).parent)


def is_of_a_row(error: BaseException) -> bool:
    """Whether an error may be due to the row that was computed.

    A process without memory, and whatever this package refuses beside what the function has returned, are no row's fault. What is
    no ``Exception``, such as an interrupt, never gets here.
    """
    if isinstance(error, CheckpointError):
        return isinstance(error, OutputError)
    return isinstance(error, Exception) and not isinstance(error, MemoryError)


def failure_of(error: BaseException, row: int) -> Failure:
    """What is kept of an error. The values of the function's variables are not."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    lines = "".join(traceback.format_list(frames))
    return Failure(row, _storable(said_by(error))[:_LONGEST_MESSAGE], _storable(lines)[-_LONGEST_TRACEBACK:])


def said_by(error: BaseException) -> str:
    """Type and message of an error, whatever class of a user it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the user's class
        return f"{type(error).__name__}: (it cannot be shown)"


def failed_rows(batch: pa.RecordBatch, failures: Mapping[int, Failure]) -> FailedRows | None:
    """The rows of a batch at which the function failed; None if there are none.

    :param failures: by the number of the row in the batch.
    """
    import pyarrow as pa

    if not failures:
        return None
    numbers = sorted(failures)
    return FailedRows(batch.take(pa.array(numbers, pa.int64())), [failures[number] for number in numbers])


def is_ours(file: str) -> bool:
    """Whether a file of Python code is one of this package, also where it was sent to a worker as a zip."""
    return file.startswith(_OURS) or "airflow_ckpt_provider-" in file


def place_of(error: BaseException) -> str:
    """The line of the user's code that raised an error."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not is_ours(file):
            place = f" ({file}, line {traceback.tb_lineno}, in {traceback.tb_frame.f_code.co_name})"
        traceback = traceback.tb_next
    return place


def _storable(text: str) -> str:
    """A text that can be stored as UTF-8, whatever the user's error says, without users and passwords of URLs (I9)."""
    return without_credentials(text.encode("utf-8", "backslashreplace").decode())
