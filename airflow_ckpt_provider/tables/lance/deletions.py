"""Deletion files: which rows of a fragment are deleted. Written by ourselves, so that it is known whose each of them is (I4).

Lance's own ``delete_rows`` picks the file's number at random, and gives no fragment back if no row is left. The file is an Arrow
file with one column of row numbers; Lance takes the number in its name from the fragment's description, whatever it is.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, StagedFile
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles

    Offsets = npt.NDArray[np.uint32]


def number_of(stem: str) -> int:
    """Number of the deletion file that belongs to a split in one attempt: 63 bits of a digest."""
    return int.from_bytes(hashlib.sha256(stem.encode()).digest()[:8], "big") >> 1


def write_deletions(files: DatasetFiles, fragment: Any, version: int, offsets: Offsets, stem: str) -> tuple[JsonObject, StagedFile]:  # noqa: ANN401 - a FragmentMetadata
    """Write which rows of a fragment are deleted, those that were before included.

    :param version: the version that the rows were found in.
    :returns: the fragment's description with the deletions, and the file.
    """
    import pyarrow as pa

    number = number_of(stem)
    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table({"row_id": pa.array(offsets, pa.uint32())}, schema=schema))
    file = files.put(f"_deletions/{fragment.id}-{version}-{number}.arrow", sink.getvalue().to_pybytes())
    described = fragment.to_json()
    described["deletion_file"] = {
        "read_version": version,
        "id": number,
        "file_type": "array",
        "num_deleted_rows": len(offsets),
        "base_id": None,
    }
    return described, file


def described(fragment: JsonObject) -> Any:  # noqa: ANN401 - a FragmentMetadata
    """Lance's description of a fragment, from JSON."""
    from lance.fragment import FragmentMetadata

    return FragmentMetadata.from_json(json.dumps(fragment))
