"""A key that says what is computed, and not by whom: the digest of the input's identity, the code and what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import fingerprint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.protocol import IncrementalSource, SessionSource, SharedSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.sources.transform import Transform


def content_key(
    source: Source, options: Mapping[str, str], transform: Transform | None, transform_version: str | None
) -> IdempotenceKey:
    """The key of what a transform makes of the input as it is now: the same in any task and run that asks for the same.

    :param options: of the source.
    :param transform_version: what stands for the transform's code in place of its fingerprint, if anything does.
    :raises InvalidInputError: for a source whose rows have no identity.
    """
    if isinstance(source, SessionSource) or (isinstance(source, IncrementalSource) and source.incremental):
        raise InvalidInputError(
            f"reuse='content' needs a source that says which rows it has before they are read, such as Files, a table at a "
            f"snapshot, or Staged; {source!r} does not."
        )
    # Which rows another stage has staged, its reference says; of all others, the plan does: files with their versions, snapshots.
    read = [] if isinstance(source, SharedSource) else [split.read for split in source.plan(options).splits]
    code = "" if transform is None else (transform_version if transform_version is not None else transform.fingerprint)
    kind = "" if transform is None else transform.kind
    return IdempotenceKey(f"content/{fingerprint([source.describe(), read, code, transform_version is not None, kind])}")
