"""Deletion files: which rows of a fragment are deleted. Written by ourselves, so that it is known whose each of them is (I4).

Lance's own ``delete_rows`` picks the file's number at random, and gives no fragment back if no row is left. The file is an Arrow
file with one column of row numbers; Lance takes the number in its name from the fragment's description, whatever it is.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.checkpoint.documents import Part
from airflow_ckpt_provider.checkpoint.layout import author_of
from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, StagedFileMissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from lance.fragment import DeletionFile

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, StagedFile
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles

    Offsets = npt.NDArray[np.uint32]

#: Folder of the deletion files, below the dataset's root; Lance's own.
FOLDER = "_deletions"


#: Deletion files that are read at the same time.
_READS = 16

#: Bits of a deletion file's number that say which split it is of; those above say which attempt wrote it.
_SPLIT_BITS, _ATTEMPT_BITS = 23, 40


class Deletions(Part, frozen=True, kw_only=True):
    """Which rows of a fragment a commit marks as deleted: those of a deletion file that a split has written.

    :param fragment: id of the fragment.
    :param read_version: the version that the rows were found in.
    :param id: number of the deletion file; see ``number_of``.
    :param num_deleted_rows: rows that it has.
    """

    fragment: Count
    read_version: Count
    id: Count
    num_deleted_rows: Count

    @property
    def name(self) -> str:
        """Name of the file below the dataset's root."""
        return f"{FOLDER}/{self.fragment}-{self.read_version}-{self.id}.arrow"

    def described(self) -> DeletionFile:
        """As the fragment's description has it."""
        from lance.fragment import DeletionFile

        return DeletionFile(
            read_version=self.read_version,
            id=self.id,
            file_type="array",
            num_deleted_rows=self.num_deleted_rows,
            base_id=None,
        )


def number_of(stem: str) -> int:
    """Number of the deletion file that belongs to a split in one attempt: 63 bits of digests."""
    author = author_of(f"{stem}.")
    first = _digest(stem, _ATTEMPT_BITS) if author is None else attempt_number(author.key_hash, author.generation, author.attempt)
    return (first << _SPLIT_BITS) | _digest(stem, _SPLIT_BITS)


def attempt_number(key_hash: str, generation: int, attempt: str) -> int:
    """What the numbers of all deletion files of an attempt begin with: those of another key's begin with something else."""
    return _digest(f"{key_hash}-g{generation}-{attempt}", _ATTEMPT_BITS)


def attempt_number_in(number: int) -> int:
    """The same, from the number of a deletion file."""
    return number >> _SPLIT_BITS


def _digest(text: str, bits: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)


def deletion_name(fragment: int, deletion_file: JsonObject) -> str:
    """Name of a fragment's deletion file below the dataset's root, from the fragment's description."""
    suffix = "arrow" if deletion_file["file_type"] == "array" else "bin"
    return f"{FOLDER}/{fragment}-{deletion_file['read_version']}-{deletion_file['id']}.{suffix}"


def write_deletions(files: DatasetFiles, fragment: int, version: int, offsets: Offsets, stem: str) -> tuple[Deletions, StagedFile]:
    """Write which rows of a fragment are deleted, those that were before included.

    :param fragment: its id.
    :param version: the version that the rows were found in.
    :returns: what the commit makes of it, and the file.
    """
    import pyarrow as pa

    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table({"row_id": pa.array(offsets, pa.uint32())}, schema=schema))
    deletions = Deletions(fragment=fragment, read_version=version, id=number_of(stem), num_deleted_rows=len(offsets))
    return deletions, files.put(deletions.name, sink.getvalue().to_pybytes())


def require_counted(files: DatasetFiles, staged: Sequence[Deletions]) -> None:
    """Check that deletion files have as many rows as they are described with: if not, nobody could read their fragments (I14).

    :raises StagedFileMissingError: if one cannot be read.
    :raises CorruptObjectError: if one has another number of rows.
    """
    import obstore
    import pyarrow as pa

    if not staged:
        # There may be no dataset yet.
        return
    store = StorageLocation(files.uri, files.options).open()

    def rows(deletions: Deletions) -> int:
        try:
            content = obstore.get(store, deletions.name).bytes()
            with pa.ipc.open_file(pa.py_buffer(bytes(content))) as file:
                return sum(file.get_batch(number).num_rows for number in range(file.num_record_batches))
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise StagedFileMissingError(
                f"The deletion file {files.uri}/{deletions.name} is gone or damaged. Nothing was committed. Clear the stage: "
                "it stages again what is missing, and nothing else. Then clear the commit."
            ) from error

    with ThreadPoolExecutor(_READS) as pool:
        for deletions, deleted in zip(staged, pool.map(rows, staged), strict=True):
            if deletions.num_deleted_rows != deleted:
                raise CorruptObjectError(
                    f"The checkpoint store says that {deletions.num_deleted_rows} rows of fragment {deletions.fragment} of "
                    f"{files.uri} are deleted, and the staged deletion file has {deleted}. The store was altered; nothing was "
                    f"changed. Redo the write: {how_to_restart()}."
                )


def deletions_of(fragment: Any) -> JsonObject | None:  # noqa: ANN401 - a FragmentMetadata
    """What a fragment's description says of its deletions; None if it has none. All of it as JSON may be large: it has row ids."""
    return None if fragment.deletion_file is None else dict(fragment.deletion_file.asdict())
