"""JSON that a table keeps for checkpoints, in properties, metadata or objects of its own, which others can edit."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from airflow_ckpt_provider.checkpoint.known_types import known
from airflow_ckpt_provider.exceptions import CorruptObjectError

T = TypeVar("T")


def decoded(text: str | bytes, kind: type[T], place: str, remedy: str) -> T:
    """The content of such a place.

    :param place: what an error calls it, such as ``The table property airflow.checkpoint.commits.0f…``.
    :param remedy: what it is for, and how it is put right, in whole sentences.
    :raises CorruptObjectError: if it is nothing of this kind.
    """
    try:
        return msgspec.json.decode(text, type=known(kind))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CorruptObjectError(f"{place} was altered and cannot be read ({error}). {remedy}") from error
