"""A key that says what is computed, and not by whom: the digest of the input's identity, the code and what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import fingerprint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.protocol import IncrementalSource, SessionSource, SharedSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.write.rejecting import OnError


def content_key(
    source: Source,
    options: Mapping[str, str],
    transform: Transform | None,
    transform_version: str | None,
    on_error: OnError | None = None,
    planned: Sequence[Split] | None = None,
) -> IdempotenceKey:
    """The key of what a transform makes of the input as it is now: the same in any task and run that asks for the same.

    :param options: of the source.
    :param transform_version: what stands for the transform's code in place of its fingerprint, if anything does. Of two transforms
        that have other names, it stands for other code.
    :param on_error: what becomes of rows at which the transform fails, if it may go on: who wants all rows is not given fewer.
    :param planned: splits of a plan of the source, for the key of what that reads; those of the input as it is now if None.
    :raises InvalidInputError: for a source whose rows have no identity.
    """
    if isinstance(source, SessionSource) or (isinstance(source, IncrementalSource) and source.incremental):
        raise without_identity(source)
    # Which rows another stage has staged, its reference says; of all others, the plan does: files with their versions, snapshots.
    splits = [] if isinstance(source, SharedSource) else (source.plan(options).splits if planned is None else planned)
    made_of = [source.describe(), msgspec.to_builtins([split.read for split in splits]), _code(transform, transform_version)]
    return IdempotenceKey(f"content/{fingerprint([*made_of, '' if on_error is None or not on_error.rejects else str(on_error)])}")


def without_identity(source: Source) -> InvalidInputError:
    """The error for a source that does not say which rows it has, so that nothing stands for what is computed of them."""
    return InvalidInputError(
        "reuse='content' needs a source that says which rows it has before they are read, such as Files, a table at a snapshot, "
        f"or Staged; {source!r} does not."
    )


def _code(transform: Transform | None, version: str | None) -> list[str]:
    """What says which code runs. A version belongs to the name of a transform: other tasks count their own from 1, too."""
    if transform is None:
        return []
    return [transform.kind, transform.fingerprint] if version is None else [transform.kind, *transform.whole_names, version]
