"""How many rows staged data files have, by their own footers.

Lance takes a fragment for whatever number of rows it is described with: with too many nobody can read it, and with too few rows are
left out. A reference vouches for what its stage has sealed, and so the stage looks at the footers before it seals. A commit looks
only at what neither a reference nor a signature vouches for: ten thousand footers in a local folder take a second.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles

#: Footers that are read at the same time.
_READS = 16


def require_rows(files: DatasetFiles, manifests: Iterable[JsonObject], header: Header) -> None:
    """Refuse records of fragments that do not say how many rows their files have.

    :param manifests: of staged records, or of a seal.
    :raises CorruptObjectError: naming a file. One that is gone or damaged is left to the look at what the commit needs.
    """
    from lance.file import LanceFileSession

    fragments = [fragment for manifest in manifests for fragment in StagedFragments.from_json(manifest).fragments]
    if not fragments:
        return
    session = LanceFileSession(files.address, storage_options=files.storage_options)

    def rows(name: str) -> int | None:
        try:
            return int(session.open_reader(f"data/{name}").num_rows())
        except (OSError, ValueError):
            return None

    with ThreadPoolExecutor(_READS) as pool:
        for fragment, counted in zip(fragments, pool.map(rows, (fragment_read.name for fragment_read in fragments)), strict=True):
            if counted is not None and fragment.rows != counted:
                raise CorruptObjectError(
                    f"The checkpoint store says that {files.path(fragment.name)}, staged under the key {header.key!r}, has "
                    f"{fragment.rows:,} rows, and the file has {counted:,}. The store was altered; nothing was changed. Redo the "
                    f"write: {how_to_restart(header)}."
                )
