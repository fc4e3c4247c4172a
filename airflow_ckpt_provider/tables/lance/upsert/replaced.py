"""What a replacement of an upsert takes away: the rows that the earlier generation has inserted, and no others.

Rows that took the place of rows of others stay, as those of the dataset that they are by now, and are matched as such.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import StagedFileMissingError, first_line
from airflow_ckpt_provider.scan.lance import name_of
from airflow_ckpt_provider.tables.lance.files import names_of
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import sidecars_of
from airflow_ckpt_provider.tables.lance.operations import require_there
from airflow_ckpt_provider.tables.lance.upsert.sidecar import FOLDER, matched_rows
from airflow_ckpt_provider.tables.lance.upsert.source import StagedSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar, Mask


#: What a match split of such a data file has, besides its fragment: see ``ReplacedUpsert.numbers``.
REPLACED = "replaced"


class ReplacedUpsert(NamedTuple):
    """What the generation that is replaced has landed.

    :param files: rows of each of its data files, by the file's name.
    :param numbers: which file of its source each of them is; None for one that holds only some rows of such a file, all inserted.
    :param sidecars: which rows of the source were found.
    """

    files: Mapping[str, int] = MappingProxyType({})
    numbers: Mapping[str, int | None] = MappingProxyType({})
    sidecars: tuple[DatasetSidecar, ...] = ()

    @classmethod
    def of(cls, replaced: SealedWrite | None) -> ReplacedUpsert:
        """From its sealed checkpoint."""
        if replaced is None:
            return cls()
        landed, source = names_of(replaced.added_files), StagedSource.of_plan(replaced.plan)
        numbered = {} if source is None else {name: number for number, name in enumerate(source.files)}
        staged = (fragment for manifest in replaced.seal.manifests for fragment in StagedFragments.from_json(manifest).fragments)
        files = {fragment.name: fragment.rows for fragment in staged if fragment.name in landed}
        return cls(files, {name: numbered.get(name) for name in files}, tuple(sidecars_of(replaced.staged).values()))

    def file_of(self, fragment: Any) -> str | None:  # noqa: ANN401 - a FragmentMetadata
        """The one of its data files that a fragment holds, if it holds any."""
        return next((name for name in map(name_of, fragment.files) if name in self.files), None)

    def require_there(self, files: DatasetFiles, dataset: LanceDataset) -> None:
        """Check that every row that was inserted is where it was written, or deleted there.

        :raises TableMovedError: if not.
        """
        missing = self.files.keys() - {self.file_of(fragment.metadata) for fragment in dataset.get_fragments()}
        require_there(sum(bool(self._inserted(files, name).any()) for name in missing), dataset)

    def _inserted(self, files: DatasetFiles, name: str) -> Mask:
        return inserted_rows(files, self.sidecars, self.numbers[name], self.files[name])


def inserted_rows(files: DatasetFiles, sidecars: Sequence[DatasetSidecar], number: int | None, rows: int) -> Mask:
    """Which rows of one data file of the generation that is replaced it has inserted.

    :param sidecars: of that generation.
    :param number: see ``ReplacedUpsert.numbers``.
    :param rows: of the file.
    :raises StagedFileMissingError: if a sidecar is gone or damaged.
    """
    import numpy as np

    if number is None:
        return np.ones(rows, dtype=np.bool_)
    try:
        return ~matched_rows(files, sidecars, number, rows)
    except (OSError, ValueError) as error:
        raise StagedFileMissingError(
            f"A file below {files.uri}/{FOLDER} is gone or damaged, which says which rows the upsert that is to be replaced had "
            f"found: {first_line(error)}. Nothing was committed. What that upsert inserted cannot be told any more; write the rows "
            "under another idempotence key."
        ) from error
