"""Which files a commit to a dataset may take up: those of the write itself, in the dataset's own folders (I4, I15)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.tables.lance.columns.writer import JOIN, Join
from airflow_ckpt_provider.tables.lance.deletions import FOLDER as DELETIONS
from airflow_ckpt_provider.tables.lance.deletions import attempt_number, attempt_number_in, number_of
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import ColumnFile, deletions_in, intermediate_of
from airflow_ckpt_provider.tables.lance.upsert.filtering import FILTER
from airflow_ckpt_provider.tables.lance.upsert.sidecar import FOLDER as SIDECARS
from airflow_ckpt_provider.tables.lance.upsert.source import UpsertPinned
from airflow_ckpt_provider.tables.ownership import not_owned, require_work_once

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Split, Staged
    from airflow_ckpt_provider.checkpoint.layout import OwnedNames
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar

_DELETION_FILE = re.compile(r"[0-9]{1,20}-[0-9]{1,20}-([0-9]{1,20})\.arrow")

#: Names of files are taken as they are by some, and as parts of a URI by others: in these they are the same.
_PLAIN = re.compile(r"[0-9A-Za-z_.-]+")


def require_owned_records(
    uri: str, header: Header, names: OwnedNames, plans: Sequence[Plan], staged: Sequence[Staged], replaced: OwnedNames | None
) -> None:
    """Refuse records of splits, and plans made from them, that name files that the generation has not written.

    :param replaced: names of the files of the generation that is replaced.
    :raises CorruptObjectError: naming one.
    """
    ownership = _Ownership(uri, header, names)
    for record in staged:
        ownership.require_record(record)
    for plan in plans:
        ownership.require_plan(plan, replaced)


def require_owned_files(uri: str, write: SealedWrite, fields: Collection[int] | None) -> None:
    """Refuse to land a write that names files which it has not written, or fragments that its splits have not staged, or not so.

    :param fields: ids of the fields that rows are staged with; None if what is staged has columns of its own.
    :raises CorruptObjectError: naming one.
    """
    require_owned_records(
        uri, write.header, write.names, [write.plan], write.staged, write.replaced.names if write.replaced else None
    )
    ownership = _Ownership(uri, write.header, write.names)
    filters = [(split.read.get("source"), split.read.get("matched")) for split in write.plan.splits if split.task == FILTER]
    # What was read lands as it is, or as far as these let it.
    first_once_more = filters[:1] if any(split.is_input for split in write.plan.splits) else []
    require_work_once([*filters, *first_once_more], write.header)
    taken = {split.id: _taken(split) for split in write.plan.splits}
    left: dict[str, tuple[int, int]] = {}
    for record in write.staged:
        ownership.require_split(record, taken.get(record.split, frozenset()))
        ownership.require_deletions(record)
        sizes = {file.path: file.bytes for file in record.files}
        for fragment in StagedFragments.from_json(record.manifest).fragments if record.manifest is not None else ():
            if fragment.name in left or sizes.get(f"{uri}/data/{fragment.name}") != fragment.bytes:
                raise ownership.error(f"{uri}/data/{fragment.name}")
            left[fragment.name] = (fragment.rows, fragment.bytes)
    for staged in map(StagedFragments.from_json, write.seal.manifests):
        for name, rows, size in ((fragment.name, fragment.rows, fragment.bytes) for fragment in staged.fragments):
            # Lance takes a file for whatever columns it is told.
            if left.pop(name, None) != (rows, size) or (fields is not None and tuple(fields) != staged.fields):
                raise ownership.error(f"{uri}/data/{name}")
    if left:
        raise CorruptObjectError(
            f"The seal of the key {write.header.key!r} in the checkpoint store leaves out {len(left)} files that its splits have "
            f"staged for {uri}, such as {min(left)}. The store was altered; nothing was changed. Redo the write: "
            f"{how_to_restart(write.header)}."
        )


def _taken(split: Split) -> frozenset[str]:
    """Names of files of the source that a split may take as they are."""
    fragments = None if split.is_input else split.read.get("fragments")
    if not isinstance(fragments, dict):
        return frozenset()
    return frozenset(fragment.name for fragment in StagedFragments.from_json(fragments).fragments)


class _Ownership:
    """What is compared with the names that a generation gives to its files."""

    def __init__(self, uri: str, header: Header, names: OwnedNames) -> None:
        self._uri = uri
        self._data = f"{uri}/data/"
        self._header = header
        self._names = names
        self._numbers = {attempt_number(names.key_hash, names.generation, attempt) for attempt in names.attempts}

    def require_record(self, record: Staged) -> None:
        of_writer = self._of_writer(record)
        for path in (*(file.path for file in record.files), *record.replaces):
            if path in of_writer:
                continue
            folder, _, name = path.removeprefix(f"{self._uri}/").partition("/")
            if folder == DELETIONS:
                self._require_deletions(path, name)
            else:
                self.require(folder, name)
        for fragment in StagedFragments.from_json(record.manifest).fragments if record.manifest is not None else ():
            if f"{self._data}{fragment.name}" not in of_writer:
                self.require("data", fragment.name)
        kept = intermediate_of(record)
        for sidecar in kept.sidecars if kept is not None else ():
            self.require_sidecar(sidecar)
        if isinstance(kept, ColumnFile):
            self.require("data", kept.name)
        deletions = deletions_in(record)
        if deletions is not None and attempt_number_in(deletions.id) not in self._numbers:
            raise self.error(f"{self._uri}/{deletions.name}")

    def _of_writer(self, record: Staged) -> frozenset[str]:
        """Data files of a record that are its writer's for its split, whatever else it names: there may be very many."""
        beginnings = self._names.beginnings(record.split, record.writer)
        begin = tuple(f"{self._data}{beginning}" for beginning in beginnings)
        paths = [file.path for file in record.files if file.path.startswith(begin)]
        text = "".join(path[len(self._data) :] for path in paths)
        return frozenset(paths) if _PLAIN.fullmatch(text) else frozenset()

    def require_split(self, record: Staged, taken: Collection[str]) -> None:
        """Refuse data files that the record's writer has not written for its split, nor taken from the source as they were.

        :param taken: names of those that may be.
        """
        of_writer = self._of_writer(record)
        for file in record.files:
            if file.path in of_writer:
                continue
            folder, _, name = file.path.removeprefix(f"{self._uri}/").partition("/")
            if folder != DELETIONS and name not in taken and not self._names.of_split(name, record.split, record.writer):
                raise self.error(file.path)

    def require_deletions(self, record: Staged) -> None:
        """Refuse to mark rows as deleted by another file than the one that the record's writer has written for its split."""
        deletions = deletions_in(record)
        deleting = any(file.path.startswith(f"{self._uri}/{DELETIONS}/") for file in record.files)
        if deleting and deletions is None:
            raise self.error(record.files[0].path)
        if deletions is None:
            return
        stem = CheckpointPaths(self._names.key_hash, self._names.generation).file_stem(record.split, record.writer)
        path = f"{self._uri}/{deletions.name}"
        if deletions.id != number_of(stem) or path not in {file.path for file in record.files}:
            raise self.error(path)

    def require_plan(self, plan: Plan, replaced: OwnedNames | None) -> None:
        pinned = plan.mode_as(UpsertPinned) if self._header.mode == "upsert" else None
        if pinned is not None:
            for sidecar in pinned.sidecars:
                self.require_sidecar(sidecar)
            for sidecar in pinned.replaced:
                (self if replaced is None else _Ownership(self._uri, self._header, replaced)).require_sidecar(sidecar)
            for name in pinned.source.files if pinned.source is not None else ():
                self.require("data", name)
        for split in plan.splits:
            fragments = split.read.get("fragments")
            if split.task == JOIN:
                for name, _ in Join.from_json(split.read).parts:
                    self.require("data", name)
            elif isinstance(fragments, dict):
                for fragment in StagedFragments.from_json(fragments).fragments:
                    self.require("data", fragment.name)

    def require_sidecar(self, sidecar: DatasetSidecar) -> None:
        """Refuse a sidecar that is not one of this generation's."""
        folder, _, name = sidecar.name.partition("/")
        if folder != SIDECARS:
            raise self.error(f"{self._uri}/{sidecar.name}")
        self.require(folder, name)

    def require(self, folder: str, name: str) -> None:
        """Refuse a name that is not one of this generation's, below a folder of the dataset."""
        if folder not in {"data", SIDECARS} or name not in self._names or not _PLAIN.fullmatch(name):
            raise self.error(f"{self._uri}/{folder}/{name}")

    def _require_deletions(self, path: str, name: str) -> None:
        match = _DELETION_FILE.fullmatch(name)
        if match is None or attempt_number_in(int(match[1])) not in self._numbers:
            raise self.error(path)

    def error(self, path: str) -> Exception:
        return not_owned(path, [self._uri], self._header)
