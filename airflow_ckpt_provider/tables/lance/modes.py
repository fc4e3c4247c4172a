"""How rows land in a dataset: what each mode puts into its one version."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.lance.commit import adding, overwriting
from airflow_ckpt_provider.tables.lance.schema import schema_from_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject
    from airflow_ckpt_provider.tables.lance.commit import Swap
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.protocol import Sealed


class Append:
    """Rows are added.

    :cvar takes: parameters of the mode.
    :cvar additive: whether commits of it leave each other's rows where they are.
    :cvar replaces: whether even a commit without rows changes the dataset.
    """

    takes: ClassVar[frozenset[str]] = frozenset()
    additive: ClassVar[bool] = True
    replaces: ClassVar[bool] = False

    def __init__(self, parameters: JsonObject) -> None:
        self.parameters = parameters

    def swap(self, dataset: LanceDataset | None, sealed: Sequence[Sealed], staged: Sequence[StagedFragments]) -> Swap:
        """The operation on this version of the dataset.

        :raises TableMovedError: if what is to be replaced is not there any more.
        """
        if dataset is None:
            return overwriting(_schema_to_be(sealed[0].header), staged)
        removed = frozenset(path.rpartition("/")[2] for one in sealed for path in one.replaced)
        return adding(dataset, staged, removed)


class Create(Append):
    """The dataset comes into being with its rows."""

    takes: ClassVar[frozenset[str]] = frozenset({"storage_version", "stable_row_ids"})
    replaces = True


class Overwrite(Append):
    """All rows of the dataset are replaced."""

    additive = False
    replaces = True

    def swap(self, dataset: LanceDataset | None, sealed: Sequence[Sealed], staged: Sequence[StagedFragments]) -> Swap:
        """Everything, also what others added while the rows were staged; of a committed generation that is replaced, its files."""
        if dataset is None or all(one.header.replaces is not None for one in sealed):
            return super().swap(dataset, sealed, staged)
        return overwriting(dataset.lance_schema, staged)


MODES: dict[str, type[Append]] = {"append": Append, "create": Create, "overwrite": Overwrite}


def mode_of(name: str, parameters: JsonObject) -> Append:
    """The mode of this name.

    :raises InvalidInputError: if there is none.
    """
    kind = MODES.get(name)
    if kind is None:
        raise InvalidInputError(f"mode={name!r}: the modes of a Lance dataset are {', '.join(MODES)}.")
    return kind(parameters)


def _schema_to_be(header: Header) -> pa.Schema:
    if header.table.creation is None:
        raise InvalidInputError(f"The Lance dataset {header.table.identifier} is gone.")
    return schema_from_json(str(header.table.creation["schema"]))
