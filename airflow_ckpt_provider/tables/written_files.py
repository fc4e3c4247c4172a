"""Files that attempts have written into a table's storage, as one listing showed them: a clean-up of many keys lists once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.checkpoint.documents import StagedFile

#: Whose a file is, as its name tells: hash of the key and generation, or the number of an attempt.
Owner: TypeAlias = tuple[str, int] | int


class WrittenFiles:
    """A listing, by owners.

    :param files: each with its owner; a file may be there twice.
    """

    def __init__(self, files: Iterable[tuple[Owner, StagedFile]]) -> None:
        self._files: dict[Owner, dict[str, StagedFile]] = {}
        for owner, file in files:
            self._files.setdefault(owner, {})[file.path] = file

    def of(self, *owners: Owner) -> list[StagedFile]:
        """Files of these owners, by their paths."""
        files = {path: file for owner in owners for path, file in self._files.get(owner, {}).items()}
        return [files[path] for path in sorted(files)]
