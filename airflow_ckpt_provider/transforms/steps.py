"""What comes out of a transform by and by."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


class Failure(NamedTuple):
    """Why a function failed at a row.

    :param row: its number in the split's input.
    :param error: type and message.
    :param traceback: the user's lines that led there; empty if it was no error of theirs.
    """

    row: int
    error: str
    traceback: str


class FailedRows(NamedTuple):
    """Rows of the input of which nothing has come out, because the function failed at them.

    :param rows: as they came in.
    :param failures: of each of them, in their order.
    """

    rows: pa.RecordBatch
    failures: Sequence[Failure]


class Step(NamedTuple):
    """What came out of an input by and by.

    :param batch: rows; None for none.
    :param done: rows of the input of which all has come out with it, beside those that were done before; failed ones are done too.
    :param failed: those of them at which the function failed; None if there are none.
    """

    batch: pa.RecordBatch | None
    done: int = 0
    failed: FailedRows | None = None
