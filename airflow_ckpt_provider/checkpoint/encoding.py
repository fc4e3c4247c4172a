"""Stored documents as bytes: JSON on one line with a checksum, read within bounds.

Whatever the bytes are, reading them gives the document that was written or an error that names the object (I7).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

import msgspec
import zstandard

from airflow_ckpt_provider.checkpoint.bounds import BoundsError, inflate, require_few_values, require_plain, require_size
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, NewerFormatError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Document

#: Version of all stored documents; readers accept exactly this one.
FORMAT_VERSION = 1

AnyDocument = TypeVar("AnyDocument", bound="Document")

_SEPARATOR = b',"sha256":"'
_TAIL_LENGTH = len(_SEPARATOR) + 64 + len(b'"}\n')
_ZSTD_SUFFIX = ".zst"

_SMALLER = " Plan fewer, larger splits (max_split_bytes, rows_per_split or buckets), or write less under one key. What is staged stays staged."


class _Kind(msgspec.Struct):
    """What every document says of itself; msgspec alone would read one without its kind as any kind."""

    document: str
    format_version: int


def to_json(name: str, document: Document) -> bytes:
    """Bytes of ``document`` as stored under ``name``; names ending in ``.zst`` are compressed.

    :raises InvalidInputError: if it is one that no reader would take, such as a plan of millions of splits.
    """
    try:
        body = msgspec.json.encode(document)[:-1]
        _decode(name, body + b"}", type(document))
    except (BoundsError, msgspec.DecodeError, RecursionError, UnicodeError, OverflowError) as error:
        raise InvalidInputError(
            f"Object {name} cannot be written to the checkpoint store: it {_said(error)}."
            + (_SMALLER if isinstance(error, BoundsError) else "")
        ) from error
    digest = hashlib.sha256(body).hexdigest().encode()
    data = body + _SEPARATOR + digest + b'"}\n'
    return zstandard.ZstdCompressor().compress(data) if name.endswith(_ZSTD_SUFFIX) else data


def from_json(name: str, data: bytes, kind: type[AnyDocument]) -> AnyDocument:
    """Read the document stored under ``name``.

    :raises CorruptObjectError: if it is truncated, altered, beyond the bounds, or not of this kind.
    :raises NewerFormatError: if a newer provider wrote it.
    """
    try:
        data = inflate(name, data) if name.endswith(_ZSTD_SUFFIX) else data
        require_size(name, len(data))
    except BoundsError as error:
        raise corrupt(name, str(error)) from error
    body, tail = data[:-_TAIL_LENGTH], data[-_TAIL_LENGTH:]
    if not (tail.startswith(_SEPARATOR) and tail.endswith(b'"}\n')):
        raise corrupt(name, "is truncated or has no checksum")
    if hashlib.sha256(body).hexdigest().encode() != tail[len(_SEPARATOR) : -3]:
        raise corrupt(name, "does not match its checksum")
    text = body + b"}"
    try:
        version = _version(text)
        if version > FORMAT_VERSION:
            raise NewerFormatError(
                f"Object {name} in the checkpoint store has format version {version}; this provider reads version "
                f"{FORMAT_VERSION}. Upgrade airflow-provider-ckpt here to at least the version that wrote it."
            )
        if version < FORMAT_VERSION:
            raise corrupt(name, f"has format version {version}, which no provider ever wrote")
        return _decode(name, text, kind)
    except (BoundsError, msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise corrupt(name, f"is not a valid {kind.__name__.lower()} document: it {_said(error)}") from error


def _version(text: bytes) -> int:
    require_few_values(text)
    return msgspec.json.decode(text, type=_Kind).format_version


def _decode(name: str, text: bytes, kind: type[AnyDocument]) -> AnyDocument:
    """The document, if it is within all bounds."""
    require_size(name, len(text))
    require_few_values(text)
    document = msgspec.json.decode(text, type=kind)
    require_plain(document)
    return document


def _said(error: Exception) -> str:
    """What a refusal says of a document, after "it"."""
    if isinstance(error, BoundsError):
        return str(error)
    return "is nested too deep" if isinstance(error, RecursionError) else f"cannot be read ({error})"


def corrupt(name: str, what: str) -> CorruptObjectError:
    """The error of an object that is not what its name says, with the way out."""
    # A restart reads the header, group, commit and tombstone of the old generation, and so cannot get around those.
    redo = "use another idempotence key"
    if name.rsplit("/", 1)[-1].startswith(("plan", "seal")) or "/staged/" in name:
        redo = 'redo the write under a new generation by running with the configuration {"checkpoint": "restart"}'
    return CorruptObjectError(f"Object {name} in the checkpoint store {what}. It is not treated as absent. Restore it, or {redo}.")
