"""What comes out of a transform by and by."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa


class Step(NamedTuple):
    """What came out of an input by and by.

    :param batch: rows; None for none.
    :param done: rows of the input of which all has come out with it, beside those that were done before.
    """

    batch: pa.RecordBatch | None
    done: int = 0
