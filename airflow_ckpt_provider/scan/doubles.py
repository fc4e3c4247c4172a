"""Doubles in manifests, as they were written: the library's fast decoder of Avro reads them as floats of 32 bits.

So a partition of ``d = 0.1`` seems to be one of ``0.10000000149011612``, and a filter that asks for 0.1 would leave its files out.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.avro.decoder import BinaryDecoder
    from pyiceberg.avro.reader import DoubleReader


@cache
def read_exactly() -> None:
    """Have pyiceberg read doubles as they are, in this process, from the first call on."""
    from pyiceberg.avro import reader

    reader.DoubleReader.read = _read  # type: ignore[method-assign]


def _read(self: DoubleReader, decoder: BinaryDecoder) -> float:
    del self
    return float(struct.unpack("<d", decoder.read(8))[0])
