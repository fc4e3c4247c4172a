"""What every table format can do. It meets sources only through batches and staged records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Group, JsonObject, Seal, StagedFile, TableBinding


class Written(NamedTuple):
    """What one split became: rows and bytes, the data files, and the format's record of them (None without rows)."""

    rows: int
    bytes: int
    files: tuple[StagedFile, ...]
    manifest: JsonObject | None


class Writer(Protocol):
    """Writes splits on an executor. Picklable; may hold credentials, so it never goes into the store."""

    @property
    def schema(self) -> pa.Schema:
        """The schema that rows are brought to."""
        ...

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write the rows of one split in bounded memory (I11). All its file names begin with ``stem`` (I4).

        :raises SchemaMismatchError: if the rows do not fit the table.
        :raises NullInRequiredColumnError: if a required column holds a null.
        """
        ...

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published. Nothing refers to them."""
        ...


class Landed(NamedTuple):
    """A commit as the table's history shows it. ``landed_now`` is False if it was there before."""

    snapshot_id: int | None
    committed_at: datetime
    landed_now: bool


class Table(Protocol):
    """A table on the driver: what it is bound by, how it is written, and how staged files are committed."""

    def binding(self) -> TableBinding:
        """Identity and pinned schema of the table as it is now."""
        ...

    def horizon(self) -> int:
        """Where the table's history stands now; see ``Group.horizon``."""
        ...

    def check_fit(self, schema: pa.Schema) -> None:
        """Refuse rows of ``schema`` before any is read.

        :raises SchemaMismatchError: listing every difference.
        """
        ...

    def writer(self, binding: TableBinding) -> Writer:
        """What executors write with: the schema and spec that ``binding`` pinned."""
        ...

    def find(self, group: Group, binding: TableBinding, seals: Sequence[Seal] = ()) -> Landed | None:
        """Look for the commit of ``group`` in the table's history (I1, I10)."""
        ...

    def landed_earlier(self, groups: Iterable[Group], branch: str, table: Any) -> str | None:  # noqa: ANN401
        """Id of the first of these groups whose rows are in ``table``, as ``commit`` hands it to ``before_swap`` (I1, I10)."""
        ...

    def require_files(self, files: Sequence[StagedFile], manifests: Sequence[JsonObject]) -> None:
        """Check that staged files exist in the size they had (I5).

        :raises StagedFileMissingError: naming what is gone.
        """
        ...

    def commit(self, group: Group, binding: TableBinding, seals: Sequence[Seal], before_swap: Callable[[Any], None]) -> Landed:
        """Land all staged files of ``group`` in one atomic commit, once (I1, I2, I10).

        :param before_swap: called on each base that a compare-and-swap is about to be made on; raises to stop.
        """
        ...
