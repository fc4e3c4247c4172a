"""Which ids the rows of a staged data file take over, in a dataset with stable row ids.

They are in a file of their own beside the sidecars, as numbers in the order of the rows: a commit has to know them, and they are
too many for a record. Once the commit has landed nobody needs the file, and a clean-up removes it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import RowCountError, StagedFileMissingError
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import RowIds, intermediate_of
from airflow_ckpt_provider.tables.lance.upsert.sidecar import FOLDER, READS, DatasetSidecar, opened

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Staged
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import Ids

#: How the names of these files end.
ROW_IDS_SUFFIX = "-rowids.arrow"


def write_row_ids(files: DatasetFiles, ids: Ids, stem: str) -> RowIds:
    """Write the ids of a staged data file's rows."""
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.uint64(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(ids)], schema=schema))
    name = f"{FOLDER}/{stem}{ROW_IDS_SUFFIX}"
    return RowIds(file=DatasetSidecar(name=name, bytes=files.put(name, sink.getvalue().to_pybytes()).bytes))


def row_ids_of(files: DatasetFiles, records: Iterable[Staged]) -> dict[str, pa.Array]:
    """Ids of the rows of staged data files, by the file's name; of those whose rows have any.

    :raises StagedFileMissingError: if a file that says so is gone or damaged.
    :raises RowCountError: if it does not fit the data file.
    """

    def load(record: Staged, file: DatasetSidecar) -> tuple[str, pa.Array]:
        (fragment,) = StagedFragments.from_json(record.manifest or {}).fragments
        ids = _read(files, file)
        if len(ids) != fragment.rows:
            raise RowCountError(f"{file.name} has {len(ids)} row ids for the {fragment.rows} rows of {fragment.name} (I2).")
        return fragment.name, ids

    kept = [(record, intermediate_of(record)) for record in records]
    of_rows = [(record, row_ids.file) for record, row_ids in kept if isinstance(row_ids, RowIds)]
    with ThreadPoolExecutor(READS) as pool:
        return dict(pool.map(load, *zip(*of_rows, strict=True))) if of_rows else {}


def _read(files: DatasetFiles, file: DatasetSidecar) -> pa.Array:
    import pyarrow as pa

    try:
        with opened(files, file) as source, pa.ipc.open_file(source) as reader:
            return reader.get_batch(0).column("id")
    except (FileNotFoundError, ValueError) as error:
        raise StagedFileMissingError(
            f"{files.uri}/{file.name} is gone or damaged, which says which row ids the rows of an upsert keep. Nothing was "
            "committed. Delete it if it is there, and clear the stage: it stages again what is missing. Then clear the commit."
        ) from error
