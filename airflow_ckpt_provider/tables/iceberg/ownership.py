"""Which files a commit to a table may take up: those of the write itself. What its manifests list is among them (I4, I15)."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import part_of
from airflow_ckpt_provider.checkpoint.restaged import first_id
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.scan.places import folders_of
from airflow_ckpt_provider.tables.iceberg.manifest import ADDED, FACTS_ENTRY, StagedManifest
from airflow_ckpt_provider.tables.iceberg.manifest.avro import HEAD, Container, Entries, in_order, shape_of, to_long
from airflow_ckpt_provider.tables.iceberg.modes.upsert import INSERT, MATCH, UNIQUE
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import FileGroup, number_of_rewritten
from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import MatchSidecar
from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile, StagedSources
from airflow_ckpt_provider.tables.ownership import OwnershipCheck, not_owned, require_owned, require_work_once

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Split, Staged
    from airflow_ckpt_provider.checkpoint.layout import OwnedNames
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite

#: What is looked at in an entry.
_LOOKED_AT = frozenset({"content", "file_path"})

#: Tasks of table splits that rewrite no file, or more than one.
_NO_REWRITE = frozenset({INSERT, UNIQUE, MATCH})

#: The member of manifests and splits that is a path.
_PATH = "path"


def require_owned_records(
    metadata: TableMetadata, header: Header, names: OwnedNames, plans: Sequence[Plan], staged: Sequence[Staged]
) -> None:
    """Refuse records of splits, and plans made from them, that name files that the generation has not written.

    :raises CorruptObjectError: naming one.
    """
    folders = folders_of(metadata)
    require_owned(_in_plans(plans), folders, names, header)
    ownership = OwnershipCheck(folders, names, header)
    for record in staged:
        ownership.require(record, _in_record(record))


def require_owned_files(metadata: TableMetadata, write: SealedWrite) -> None:
    """Refuse a sealed checkpoint that names files that the generation has not written.

    :raises CorruptObjectError: naming one.
    """
    header, folders = write.header, folders_of(metadata)
    require_owned_records(metadata, header, write.names, [write.plan], write.staged)
    manifests = [StagedManifest.from_json(manifest) for manifest in write.seal.manifests]
    require_owned((manifest.path for manifest in manifests), folders, write.names, header)
    _require_rewritten(write)


def _require_rewritten(write: SealedWrite) -> None:
    """Refuse records that take the place of other files than those which their splits have rewritten.

    :raises CorruptObjectError: naming a file.
    """
    header, splits = write.header, write.plan.splits
    groups = {split.id: _group_of(split, header) for split in splits if split.task == MATCH}
    work = [(split.task, str(split.read.get(_PATH))) for split in splits if _PATH in split.read]
    require_work_once([*work, *((MATCH, path) for paths in groups.values() for path in paths)], header)
    single = {split.id: str(split.read.get(_PATH)) for split in splits if not split.is_input and split.task not in _NO_REWRITE}
    for record in write.staged:
        paths = groups.get(record.split)
        if paths is None:
            may_be = [single[record.split]] if record.split in single else []
            rewritten = may_be if record.files else []
        else:
            numbers = dict.fromkeys(number_of_rewritten(file.path) for file in record.files)
            rewritten = may_be = [paths[n] for n in numbers if n is not None and n < len(paths)]
        elsewhere = [path for path in record.replaces if path not in may_be]
        if elsewhere:
            raise CorruptObjectError(
                f"The checkpoint store says that the split {record.split} of the key {header.key!r} takes the place of "
                f"{elsewhere[0]!r} in {header.table.identifier}, which is not the file that it was to rewrite. The store was "
                f"altered; nothing was changed. Redo the write: {how_to_restart(header)}."
            )
        beside = [path for path in rewritten if path not in record.replaces]
        if beside:
            raise CorruptObjectError(
                f"The checkpoint store says that the split {record.split} of the key {header.key!r} has rewritten {beside[0]!r} of "
                f"{header.table.identifier} and does not take its place: rows of it would be there twice. The store was altered; "
                f"nothing was changed. Redo the write: {how_to_restart(header)}."
            )


def _group_of(split: Split, header: Header) -> list[str]:
    """Paths of the files that a split matches.

    :raises CorruptObjectError: if these are others than the id of the split says, which is part of the names of its files.
    """
    group = part_of(split.read, FileGroup)
    if first_id(split.id) != f"{MATCH}{group.id}":
        raise CorruptObjectError(
            f"The checkpoint store says that the split {split.id} of the key {header.key!r} matches {len(group.names)} files of "
            f"{header.table.identifier}, such as {group.paths[0]!r}. Those are not the files that it has its name from. The store "
            f"was altered; nothing was changed. Redo the write: {how_to_restart(header)}."
        )
    return group.paths


def require_listed(metadata: TableMetadata, io: FileIO, write: SealedWrite) -> None:
    """Refuse to land a sealed checkpoint whose manifests do not list exactly the files that its splits have staged.

    :raises CorruptObjectError: naming one.
    """
    header, folders = write.header, folders_of(metadata)
    manifests = [StagedManifest.from_json(manifest) for manifest in write.seal.manifests]
    files = _Files(write.staged)
    seen = 0
    for foreign_path, count in in_order(lambda manifest: _foreign_file(io, manifest, files, folders, header), manifests):
        seen += count
        if foreign_path is not None:
            raise not_owned(foreign_path, folders, header)
    if seen != files.count:
        raise CorruptObjectError(
            f"The manifests of the key {header.key!r} list {seen} files, and its splits have staged {files.count} for "
            f"{header.table.identifier}. The store was altered; nothing was changed. Redo the write: "
            f"{how_to_restart(header)}."
        )


class _Files:
    """The data files that the records of a write name.

    Manifests list them in the order of their splits, so that whole lists are compared first: a hundred thousand paths in the time
    that a look at each of a thousand takes.
    """

    def __init__(self, staged: Sequence[Staged]) -> None:
        self._paths: list[str] = []
        #: Where the files of each split begin.
        self._starts: dict[bytes, int] = {}
        for record in staged:
            if record.files:
                self._starts[record.files[0].path.encode()] = len(self._paths)
            self._paths += [file.path for file in record.files]
        #: How many there are.
        self.count = len(set(self._paths))

    @cached_property
    def paths(self) -> frozenset[bytes]:
        """Their paths."""
        return frozenset(path.encode() for path in self._paths)

    def have(self, listed: Sequence[bytes]) -> bool:
        """Whether these are all among them, none of them twice."""
        start = self._starts.get(listed[0]) if listed and self.count == len(self._paths) else None
        if start is not None:
            same = self._paths[start : start + len(listed)]
            text = "".join(same)
            if text.isascii() and [*map(len, same)] == [*map(len, listed)] and text.encode() == b"".join(listed):
                return True
        once = set(listed)
        return len(once) == len(listed) and once <= self.paths


def _foreign_file(
    io: FileIO, manifest: StagedManifest, files: _Files, folders: Collection[str], header: Header
) -> tuple[str | None, int]:
    """The first entry of a manifest that is not a new data file of these; and how many entries it has, up to that one."""
    with Container(io, manifest.path) as container:
        if container.meta.get("partition-spec-id") != str(manifest.spec_id).encode():
            return manifest.path, 0
        if container.meta.get(FACTS_ENTRY) != manifest.facts.encode():
            raise CorruptObjectError(
                f"The checkpoint store does not say of the files in {manifest.path!r} what that manifest itself says of them: how "
                "many there are, with how many rows, in which partitions. The store was altered; nothing was changed. Redo the "
                f"write: {how_to_restart(header)}."
            )
        count, ours = 0, list[bytes]()
        head = _head_of(container.schema, folders)
        for entries, data in container.blocks() if head is not None else ():
            count += entries
            ours += head.findall(data) if head is not None else ()
    if head is not None and len(ours) == count and files.have(ours):
        return None, count
    return _foreign_file_in(io, manifest, files.paths)


def _foreign_file_in(io: FileIO, manifest: StagedManifest, files: AbstractSet[bytes]) -> tuple[str | None, int]:
    """The same, by decoding each entry, which takes a hundred times as long: 100,000 of them several seconds."""
    count = 0
    with Entries(io, manifest.path, _LOOKED_AT) as entries:
        for entry in entries:
            count += 1
            file = entry.file
            new = (entry.status, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (ADDED, None, None, None)
            if not new or file["content"] or file["file_path"].encode() not in files:
                return str(file["file_path"]), count
    return None, count


def _head_of(schema: str, folders: Collection[str]) -> re.Pattern[bytes] | None:
    """How the entry of a new data file below one of these folders begins, up to its format; the group is its path.

    :returns: None for a manifest whose entries are laid out in another way than ours are.
    """
    shape = shape_of(schema, _LOOKED_AT)
    if tuple(shape.head) != HEAD or [field["name"] for field in shape.written["fields"][:3]] != [
        "content",
        "file_path",
        "file_format",
    ]:
        return None
    nulls = [shape.head[name] for name in HEAD[1:]]
    if any(null is None for null in nulls):
        return None
    begin = to_long(ADDED) + b"".join(to_long(null or 0) for null in nulls) + to_long(0)
    places = b"|".join(re.escape(folder.encode()) for folder in sorted(folders))
    return re.compile(re.escape(begin) + rb"[\x80-\xff]{0,3}[\x00-\x7f]((?:" + places + rb")/[^\x0e]+)\x0ePARQUET")


def _in_record(record: Staged) -> list[str]:
    kept = record.intermediate_as(SourceFile, MatchSidecar)
    manifest = [] if record.manifest is None else [str(record.manifest.get(_PATH))]
    return [*(file.path for file in record.files), *manifest, *([] if kept is None else [kept.path])]


def _in_plans(plans: Sequence[Plan]) -> Iterator[str]:
    """Staged source files that plans of later phases go on from."""
    for plan in plans:
        pinned = plan.mode_as(StagedSources)
        for source in pinned.sources if pinned is not None else ():
            yield source.path
        for split in plan.splits:
            if split.task == INSERT:
                yield str(split.read.get(_PATH))
