"""A real panic of native code: Lance divides by the number of rows of a file, which may not be zero."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from typing import NoReturn

SAID = "divisor of zero"


def panic(*_: object, **__: object) -> NoReturn:
    """What a source, a transform, a check or a storage client may do in the middle of its work."""
    import lance

    with tempfile.TemporaryDirectory() as folder:
        lance.write_dataset(pa.table({"a": [1]}), f"{folder}/x.lance", max_rows_per_file=0)
    raise AssertionError("Lance has learned to refuse it: find another panic.")
