"""How rows land in a dataset: what each mode puts into its one version."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_ckpt_provider.checkpoint.anew import staged_anew
from airflow_ckpt_provider.exceptions import InvalidInputError, UnsupportedTableError
from airflow_ckpt_provider.tables.lance.operations import adding, overwriting, replaceable
from airflow_ckpt_provider.tables.lance.schema import created_as, unwritable
from airflow_ckpt_provider.tables.lance.writer import LanceWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Plan
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.operations import Swap
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts
    from airflow_ckpt_provider.tables.protocol import Writer


class Append:
    """Rows are added.

    :cvar takes: parameters of the mode.
    :cvar additive: whether commits of it leave each other's rows where they are.
    :cvar replaces: whether even a commit without rows changes the dataset.
    :cvar provisional: whether staged files depend on what the dataset holds.
    :cvar together: whether several checkpoints can share a commit.
    :cvar pins_columns: whether nobody may change any column of the dataset from the first attempt to the commit.
    """

    takes: ClassVar[frozenset[str]] = frozenset()
    additive: ClassVar[bool] = True
    replaces: ClassVar[bool] = False
    provisional: ClassVar[bool] = False
    together: ClassVar[bool] = True
    pins_columns: ClassVar[bool] = True

    def __init__(self, parameters: JsonObject) -> None:
        self.parameters = parameters

    def validate(self, dataset: LanceDataset | None) -> None:
        """Refuse parameters that cannot work on this dataset (None: it does not exist yet).

        :raises UnsupportedTableError: if it has columns that cannot be written.
        """
        lines = [] if dataset is None else unwritable(dataset.schema, dataset.data_storage_version)
        if dataset is not None and lines:
            raise UnsupportedTableError(
                f"The Lance dataset {dataset.uri} has columns that cannot be written from here:\n  " + "\n  ".join(lines)
            )

    def first(self, dataset: LanceDataset, write: StagedWrite, plan: Plan, made: Callable[[], pa.Schema]) -> Plan:
        """The source's plan, with what the mode pins beside it; see ``Table.first``."""
        del dataset, write, made
        return plan

    def plan(self, files: DatasetFiles, dataset: LanceDataset, write: StagedWrite) -> Plan:
        """What the write consists of on the dataset as it is now, whose files these are; its last plan if that has all of it.

        :raises TableMovedError: if what is to be replaced is not there any more.
        """
        del files, dataset
        return write.plan

    def staged_anew(self, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these splits are staged once more. None of the others was computed from them."""
        return staged_anew(write.plan, lost, len(write.plans) + 1)

    def writer(self, facts: WriterFacts, write: StagedWrite) -> Writer:
        """What executors write the last round with."""
        del write
        return LanceWriter(facts)

    def require_replaceable(self, files: DatasetFiles, dataset: LanceDataset, landed: SealedWrite) -> None:
        """Check that a replacement of what has landed could be committed now; see ``Table.require_replaceable``."""
        del files
        replaceable(dataset, names_of(landed.own_files))

    def landed(self, one: SealedWrite) -> set[str]:
        """URIs of the files that a committed checkpoint has landed, or that its replacement would need."""
        return {file.path for record in one.staged for file in record.files}

    def staged_schema(self, pinned: pa.Schema, sealed: Sequence[SealedWrite]) -> pa.Schema:
        """Columns of the rows that are staged, from those of the dataset."""
        del sealed
        return pinned

    def swap(
        self, files: DatasetFiles, dataset: LanceDataset | None, sealed: Sequence[SealedWrite], staged: Sequence[StagedFragments]
    ) -> Swap:
        """The operation on this version of the dataset, whose files these are.

        :raises TableMovedError: if what is to be replaced is not there any more.
        """
        if dataset is None:
            return overwriting(_schema_to_be(sealed[0].header), staged)
        return adding(dataset, staged, names_of([path for one in sealed for path in one.replaced_files]))


class Create(Append):
    """The dataset comes into being with its rows."""

    takes: ClassVar[frozenset[str]] = frozenset({"storage_version", "stable_row_ids"})
    replaces = True


class Overwrite(Append):
    """All rows of the dataset are replaced."""

    additive = False
    replaces = True

    def swap(
        self, files: DatasetFiles, dataset: LanceDataset | None, sealed: Sequence[SealedWrite], staged: Sequence[StagedFragments]
    ) -> Swap:
        """Everything, also what others added while the rows were staged; of a committed generation that is replaced, its files."""
        if dataset is None or all(one.header.replaces is not None for one in sealed):
            return super().swap(files, dataset, sealed, staged)
        return overwriting(dataset.lance_schema, staged)


def mode_of(name: str, parameters: JsonObject) -> Append:
    """The mode of this name.

    :raises InvalidInputError: if there is none.
    """
    from airflow_ckpt_provider.tables.lance.columns.mode import AddColumns
    from airflow_ckpt_provider.tables.lance.upsert.mode import Upsert

    modes: dict[str, type[Append]] = {
        "append": Append,
        "create": Create,
        "overwrite": Overwrite,
        "upsert": Upsert,
        "add_columns": AddColumns,
    }
    kind = modes.get(name)
    if kind is None:
        raise InvalidInputError(f"mode={name!r}: the modes of a Lance dataset are {', '.join(modes)}.")
    return kind(parameters)


def names_of(paths: Sequence[str]) -> frozenset[str]:
    """Names of data files below ``data``, from the URIs of staged files; deletion files are none."""
    parts = (path.rsplit("/", 2) for path in paths)
    return frozenset(name for _, folder, name in parts if folder == "data")


def _schema_to_be(header: Header) -> pa.Schema:
    if header.table.creation is None:
        raise InvalidInputError(f"The Lance dataset {header.table.identifier} is gone.")
    return created_as(header.table.creation)[0]
