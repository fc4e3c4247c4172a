"""Table formats, by name: what each is called, which modes it has, and how one of its tables is opened.

A format is one package below ``tables``, and one line here. What is above asks this, and imports none of them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.mode import mode_of, public
from airflow_ckpt_provider.tables.parameters import CREATE_IF_MISSING, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject
    from airflow_ckpt_provider.tables.mode import Mode
    from airflow_ckpt_provider.tables.parameters import ModeParameters
    from airflow_ckpt_provider.tables.table import Table

#: The branch that every table has, and the only one of most.
MAIN = "main"

#: Where each format's ``FORMAT`` is, by the name that headers and references have.
_MODULES = {
    "iceberg": "airflow_ckpt_provider.tables.iceberg.format",
    "lance": "airflow_ckpt_provider.tables.lance.format",
    "staged": "airflow_ckpt_provider.tables.staged.format",
}


@dataclass(frozen=True)
class TableFormat:
    """What there is to know of a format without a table of it.

    :param name: as headers and references have it.
    :param commit_is: what its users call a commit.
    :param what_deletes: what an error says of whatever deletes staged files.
    :param connection: kind of the Airflow connection that opens its tables: ``iceberg``, ``checkpoint`` for storage alone, or
        ``store`` for that of the checkpoint store.
    :param modes: by their names.
    :param open: a table, from its name, its branch, and what its connection gives: a catalog, or storage options.
    :param named: the name that checkpoints have for a table, from what a user calls it; None if it cannot be one.
    :param refusal: what helps with an answer to a commit that no second try changes; None if another try may be answered otherwise.
    """

    name: str
    commit_is: Literal["snapshot", "version"]
    what_deletes: str
    connection: str
    modes: Mapping[str, type[Mode]]
    open: Callable[[str, str, object], Table]
    named: Callable[[str], str | None]
    refusal: Callable[[Exception], str | None]

    def mode(self, name: str, parameters: JsonObject) -> type[Mode]:
        """The mode that does what a name and parameters ask; see ``mode_of``."""
        return mode_of(self.modes, name, parameters)

    def on_existing(self, parameters: JsonObject) -> JsonObject:
        """What a mode is told without what it would make of a table that is missing: of one that is there, that says nothing."""
        if CREATE_IF_MISSING not in parameters:
            return parameters
        creation = {CREATE_IF_MISSING, *fields_of(self.modes["create"].Parameters)}
        return {name: value for name, value in parameters.items() if name not in creation}

    @property
    def parameters(self) -> dict[str, type[ModeParameters]]:
        """What each mode takes that a stage may have."""
        return {name: mode.Parameters for name, mode in public(self.modes).items()}


@cache
def format_of(name: str) -> TableFormat:
    """The format of this name.

    :raises InvalidInputError: if there is none.
    """
    if name not in _MODULES:
        raise InvalidInputError(f"There is no table format {name!r}; there are {', '.join(_MODULES)}.")
    table_format: TableFormat = importlib.import_module(_MODULES[name]).FORMAT
    return table_format


def mode_type(header: Header) -> type[Mode]:
    """The mode that a header names, in the format of its table."""
    return format_of(header.table.format).mode(header.mode, header.parameters)


def storage_options(opened: object) -> dict[str, str]:
    """What the connection of a table gives that is opened with storage options.

    :raises TypeError: if that is something else.
    """
    if not isinstance(opened, dict):
        raise TypeError(f"A table in a storage is opened with storage options, and this is {type(opened).__name__}.")
    return opened


def named_by(name_of: Callable[[str], str]) -> Callable[[str], str | None]:
    """``TableFormat.named`` of a format whose tables have the names that a function makes of URIs, refusing what is none."""

    def named(uri: str) -> str | None:
        try:
            return name_of(uri)
        except InvalidInputError:
            return None

    return named
