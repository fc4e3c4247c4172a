"""Where a Lance dataset keeps how far a task has read a growing source; see ``tables.watermarks``.

In the metadata of its schema, which every version takes over from the one before: set by the very commit that lands the rows,
gone when the dataset is restored to a version before that, and there when versions are cleaned up. Only an overwrite by others
drops it, with the rows. So that this is not taken for a task that has never read, a task is noted in the metadata of the table
before its first such commit; that outlives everything but the dataset. Whether the noted commit landed is asked of the versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from airflow_ckpt_provider.exceptions import CorruptObjectError, HistoryExpiredError, RolledBackError
from airflow_ckpt_provider.tables.decoding import decoded
from airflow_ckpt_provider.tables.lance.history import Search, find
from airflow_ckpt_provider.tables.lance.schema import in_memory
from airflow_ckpt_provider.tables.watermarks import NOTHING_READ, WATERMARK_PREFIX, watermarks_in, watermarks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Group, JsonObject
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite

T = TypeVar("T")

#: Prefix of the notes in the table's metadata; followed by who reads what, a dot, and the commit's group.
BEGUN_PREFIX = "airflow.checkpoint.begun."

#: What an error says of where there is no way on.
_ANEW = (
    "To begin anew, give the task another task_id: its first run reads the whole source, so write it with mode='overwrite' if the "
    "dataset holds rows of the old runs."
)


class Begun(NamedTuple):
    """A commit that was about to be the first of a consumer."""

    group: str
    horizon: int


def watermark_of(dataset: LanceDataset, consumer: str) -> JsonObject | None:
    """How far the last commit of this consumer has read its source.

    :raises CorruptObjectError: if somebody edited the schema's metadata.
    :raises HistoryExpiredError: if it has read, or may have, and how far is not there any more.
    """
    name = WATERMARK_PREFIX + consumer
    text = dataset.schema_metadata.get(name)
    notes = _begun(dataset, consumer)
    if text == NOTHING_READ and notes:
        return None
    if text is not None and notes:
        return _entry(text, name, dataset, dict[str, object])
    if text is not None:
        raise CorruptObjectError(
            f"The schema of {dataset.uri} says that this task has read its source into it ({name}), and the metadata of the table "
            "does not: the schema was copied from another dataset, or somebody replaced that metadata. Nothing was changed. If the "
            f"dataset holds no rows of this task, remove the entry by lance.dataset({dataset.uri!r})."
            f"update_schema_metadata({{{name!r}: None}}). {_ANEW}"
        )
    for begun in notes:
        try:
            landed = find(dataset, Search(begun.group, begun.horizon, None, "the first increment of this task"))
        except RolledBackError:
            continue
        except HistoryExpiredError as error:
            raise HistoryExpiredError(
                f"Up to where this task has read its source cannot be told: {dataset.uri} does not say it, a first commit of the "
                f"task was begun when it was at version {begun.horizon}, and versions since then were cleaned up. Nothing was "
                f"changed. {_ANEW}"
            ) from error
        if landed is not None:
            raise _overwritten(dataset, name, landed.commit_id)
    return None


def _overwritten(dataset: LanceDataset, name: str, landed: int | None) -> HistoryExpiredError:
    before, text = next(_earlier_watermarks(dataset, name), (None, None))
    back = (
        ""
        if text is None
        else f"If what it holds now was made of the rows of its version {before}, set it back, by "
        f"lance.dataset({dataset.uri!r}).update_schema_metadata({{{name!r}: {text!r}}}), and go on. "
    )
    return HistoryExpiredError(
        f"{dataset.uri} was overwritten since this task has written into it (version {landed}), and what said up to where it has "
        f"read its source went with the rows. Nothing was changed. {back}{_ANEW}"
    )


def _earlier_watermarks(dataset: LanceDataset, name: str) -> Iterator[tuple[int, str]]:
    """Versions that show a watermark, the newest first, and the watermark."""
    for version in sorted((listed["version"] for listed in dataset.versions()), reverse=True):
        text = dataset.checkout_version(version).schema_metadata.get(name)
        if text is not None:
            yield version, text


def note(dataset: LanceDataset, group: Group, writes: Sequence[SealedWrite]) -> bool:
    """Note the consumers that have no watermark yet, before their first commit, in a version of its own.

    :returns: whether there was anything to note, so that there is a newer version now.
    """
    from lance import LanceDataset, LanceOperation
    from lance.dataset import Transaction

    text = msgspec.json.encode(Begun(group.id, group.horizon)).decode()
    first = [f"{BEGUN_PREFIX}{watermark.consumer}.{group.id}" for _, watermark in watermarks_in(writes) if watermark.begin is None]
    new: dict[str, str | None] = {name: text for name in first if name not in dataset.metadata}
    if new:
        operation = LanceOperation.UpdateConfig(table_metadata_updates=LanceOperation.UpdateMap(new))
        LanceDataset.commit(dataset, Transaction(read_version=dataset.version, operation=operation))
    return bool(new)


def with_watermarks(dataset: LanceDataset, writes: Sequence[SealedWrite]) -> Any:  # noqa: ANN401 - a LanceSchema
    """The dataset's schema, with how far these have read in its metadata."""
    copy = in_memory(dataset.lance_schema)
    copy.update_schema_metadata({**watermarks_of(writes)})
    return copy.lance_schema


def _begun(dataset: LanceDataset, consumer: str) -> list[Begun]:
    prefix = f"{BEGUN_PREFIX}{consumer}."
    notes = {name: text for name, text in dataset.metadata.items() if name.startswith(prefix)}
    return [_entry(text, name, dataset, Begun) for name, text in sorted(notes.items())]


def _entry(text: str, name: str, dataset: LanceDataset, kind: type[T]) -> T:
    remedy = "It says how far a task has read its source. Set it back to what an earlier version of the dataset holds."
    return decoded(text, kind, f"The entry {name} in the metadata of {dataset.uri}", remedy)
