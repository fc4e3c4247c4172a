"""Orphans in a dataset's folder, among the files that bear the names of attempts, whether a version refers to them or not (I4).

A data file and a sidecar have the attempt's id in their names, and a deletion file has it in its number; nothing is told from its
age. A killed writer of a local dataset leaves a file, or a folder, whose name goes on behind that.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.layout import author_of
from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.scan.lance import name_of
from airflow_ckpt_provider.tables.lance.deletions import FOLDER as DELETIONS
from airflow_ckpt_provider.tables.lance.deletions import attempt_number, attempt_number_in, deletion_name, deletions_of
from airflow_ckpt_provider.tables.lance.upsert.sidecar import FOLDER as SIDECARS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.layout import OwnedNames
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.written_files import Owner, WrittenFiles

#: What follows the name of a local file that was not finished; obstore takes no such name.
_UNFINISHED = "#"

_DELETION_FILE = re.compile(r"^\d+-\d+-(\d+)\.arrow$")


def written(files: DatasetFiles) -> Iterator[tuple[Owner, StagedFile]]:
    """Files in the dataset's folder that attempts have written, and whose they are; a deletion file may be Lance's own."""
    for folder in ("data", SIDECARS):
        for file in _listed(files, folder):
            author = author_of(_name(file))
            if author is not None:
                yield (author.key_hash, author.generation), file
    for file in _listed(files, DELETIONS):
        match = _DELETION_FILE.match(_name(file))
        if match:
            yield attempt_number_in(int(match[1])), file


def of_generation(listed: WrittenFiles, names: OwnedNames) -> list[StagedFile]:
    """Those that a generation has written."""
    numbers = [attempt_number(names.key_hash, names.generation, attempt) for attempt in names.attempts]
    data_files = [file for file in listed.of((names.key_hash, names.generation)) if _name(file) in names]
    return data_files + listed.of(*numbers)


def _name(file: StagedFile) -> str:
    return file.path.rpartition("/")[2]


def referenced(files: DatasetFiles, dataset: LanceDataset) -> Iterator[set[str]]:
    """Files that each version refers to which is still there, of every branch; the last one's first."""
    yield _referenced(files, dataset)
    for branch in (None, *dataset.branches.list()):
        line = dataset if branch is None else dataset.checkout_version((branch, None))
        for version in sorted((listed_version["version"] for listed_version in line.versions()), reverse=True):
            try:
                yield _referenced(files, line.checkout_version((branch, version)))
            except (OSError, ValueError):
                # One that others have cleaned up since it was listed refers to nothing.
                if any(listed_version["version"] == version for listed_version in line.versions()):
                    raise


def delete(files: DatasetFiles, paths: Iterable[str]) -> None:
    """Delete files. Those that are gone already are passed over."""
    for path in paths:
        if _is_local(files) and _UNFINISHED in path.rpartition("/")[2]:
            place = Path(path.removeprefix("file://"))
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
        else:
            files.delete([path])


def _referenced(files: DatasetFiles, dataset: LanceDataset) -> set[str]:
    paths = set()
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        paths |= {files.path(name_of(file)) for file in metadata.files}
        deletions = deletions_of(metadata)
        if deletions is not None:
            paths.add(f"{files.uri}/{deletion_name(metadata.id, deletions)}")
    return paths


def _is_local(files: DatasetFiles) -> bool:
    return files.uri.startswith("file://")


def _listed(files: DatasetFiles, folder: str) -> Iterator[StagedFile]:
    """What there is in a folder of the dataset. Lists of local files by obstore leave out those of unfinished writes."""
    if _is_local(files):
        place = Path(files.address) / folder
        if place.is_dir():
            for entry in os.scandir(place):
                # What a link leads to is not in this folder.
                if not entry.is_symlink():
                    yield StagedFile(f"{files.uri}/{folder}/{entry.name}", entry.stat().st_size)
        return
    import obstore

    for chunk in obstore.list(StorageLocation(files.uri, files.options).open(), folder):
        for named in chunk:
            yield StagedFile(f"{files.uri}/{named['path']}", named["size"])
