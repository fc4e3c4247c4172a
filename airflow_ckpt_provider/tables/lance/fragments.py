"""Staged fragments: what is stored of them, and Lance's own description made of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Part, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import JsonObject


class StagedFragment(Part, frozen=True, array_like=True):
    """One data file that is to become a fragment: its name below ``data``, rows and size in bytes."""

    name: str
    rows: int
    bytes: int


class StagedFragments(Part, frozen=True, kw_only=True):
    """The fragments of one split.

    :param fields: ids of the fields that have a column in each file, in the order of the columns.
    :param storage_version: version of the file format, such as ``2.2``.
    """

    fragments: tuple[StagedFragment, ...]
    fields: tuple[int, ...]
    storage_version: str

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)

    def to_json(self) -> JsonObject:
        """As stored in a staged record."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: JsonObject) -> StagedFragments:
        """As read from a staged record or seal."""
        return part_of(value, cls)


def metadata_of(staged: Iterable[StagedFragments]) -> list[Any]:
    """Lance's description of all these fragments; they get their ids from the commit."""
    from lance.fragment import FragmentMetadata

    metadata: list[Any] = []
    for manifest in staged:
        describe = _describing(manifest.fields, manifest.storage_version)
        metadata += [
            FragmentMetadata(id=0, files=[describe(fragment.name, fragment.bytes)], physical_rows=fragment.rows)
            for fragment in manifest.fragments
        ]
    return metadata


def data_file(name: str, fields: Sequence[int], storage_version: str, size: int) -> Any:  # noqa: ANN401 - a DataFile
    """Lance's description of one data file.

    :param fields: see ``StagedFragments``; columns behind those are not looked at.
    """
    return _describing(fields, storage_version)(name, size)


def _describing(fields: Sequence[int], storage_version: str) -> Callable[[str, int], Any]:
    """What describes data files with equal columns, by name and size."""
    kind = _named_file()
    field_ids, columns = list(fields), list(range(len(fields)))
    major, minor = map(int, storage_version.split("."))
    return lambda name, size: kind(name, field_ids, columns, major, minor, size)


@functools.cache
def _named_file() -> Callable[..., Any]:
    """Lance's ``DataFile``, with a name that is there and not made anew at each look: see ``scan.lance.name_of``."""
    from lance.fragment import DataFile

    class NamedFile(DataFile):
        path: Any = ""

        def __init__(self, path: str, *args: Any) -> None:  # noqa: ANN401 - those of Lance
            super().__init__(path, *args)
            self.path = path

    return NamedFile
