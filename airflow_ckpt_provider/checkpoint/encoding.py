"""Stored documents as bytes: JSON on one line with a checksum, read within bounds.

Whatever the bytes are, reading them gives the document that was written or an error that names the object (I7).
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, TypeVar

import msgspec
import msgspec.inspect
import zstandard

from airflow_ckpt_provider.checkpoint.bounds import BoundsError, inflate, largest, require_few_values, require_plain, require_size
from airflow_ckpt_provider.checkpoint.known_types import known
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.checkpoint.signing import is_signed, signature
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, NewerFormatError, SignatureError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.signing import Signer

#: Version of all stored documents; readers accept exactly this one.
FORMAT_VERSION = 1


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="document"):
    """Base of all stored documents. What kind of document it is, is stored as member ``document``."""

    format_version: int = FORMAT_VERSION


AnyDocument = TypeVar("AnyDocument", bound=Document)

#: Last member of a document, before its 64 hex digits: a checksum, or a signature (see ``signing``).
_CHECKSUM = b',"sha256":"'
_SIGNATURE = b',"hmac_sha256":"'
_DIGITS = 64
_END = b'"}\n'
_ZSTD_SUFFIX = ".zst"

#: Bytes of a document that is within all bounds but that of its nesting, whatever it holds.
_SMALL = 1 << 20

_SMALLER = (
    " Plan fewer, larger splits (max_split_bytes, rows_per_split or buckets), or write less under one key. "
    "What is staged stays staged."
)

_KEY_OF = "the signing_secret of the connection."
_UNSIGNED = (
    "It was written before the key was set, under a key that is not among previous_signing_secrets, under another name, or by "
    "another hand. Add the earlier key to previous_signing_secrets of the connection's extra, or write under another idempotence "
    "key. If neither explains it, look who can write to the store."
)


class _Kind(msgspec.Struct):
    """What every document says of itself; msgspec alone would read one without its kind as any kind."""

    document: str
    format_version: int


def to_json(name: str, document: Document, signer: Signer | None = None) -> bytes:
    """Bytes of ``document`` as stored under ``name``; names ending in ``.zst`` are compressed.

    :param signer: signs it; without, it has a checksum.
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
    if signer is None:
        data = body + _CHECKSUM + hashlib.sha256(body).hexdigest().encode() + _END
    else:
        data = body + _SIGNATURE + signature(signer.keys(name)[0], name, body) + _END
    return zstandard.ZstdCompressor().compress(data) if name.endswith(_ZSTD_SUFFIX) else data


def require_storable(name: str, document: Document) -> None:
    """Refuse a document that ``to_json`` would refuse under this name, before anything else is put for its sake.

    :raises InvalidInputError: if it is one that no reader would take.
    """
    if len(msgspec.json.encode(document)) > min(_SMALL, largest(name)):
        to_json(name, document)


def from_json(name: str, data: bytes, kind: type[AnyDocument], signer: Signer | None = None) -> AnyDocument:
    """Read the document stored under ``name``.

    :param signer: one of its keys must have signed it; without, it must not be signed.
    :raises SignatureError: if it is not signed by one of these keys, or is signed and there is none.
    :raises CorruptObjectError: if it is truncated, altered, beyond the bounds, or not of this kind.
    :raises NewerFormatError: if a newer provider wrote it.
    """
    try:
        data = inflate(name, data) if name.endswith(_ZSTD_SUFFIX) else data
        require_size(name, len(data))
    except BoundsError as error:
        raise corrupt(name, str(error)) from error
    text = _proven(name, data, signer) + b"}"
    try:
        if text.startswith(_beginning(kind)):
            # As a writer of this version begins it: what it is need not be decoded first.
            document = _decode(name, text, kind)
            if document.format_version == FORMAT_VERSION:
                return document
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


def _proven(name: str, data: bytes, signer: Signer | None) -> bytes:
    """The body of a document whose checksum or signature is right."""
    head, said = data[: -_DIGITS - len(_END)], data[-_DIGITS - len(_END) : -len(_END)]
    if data.endswith(_END) and head.endswith(_SIGNATURE):
        body = head.removesuffix(_SIGNATURE)
        if signer is None:
            raise SignatureError(
                f"Object {name} in the checkpoint store is signed, and the connection has no signing_secret to prove it with. Put "
                "the key that it was written with into the extra of the checkpoint connection here too."
            )
        if is_signed(signer.keys(name), name, body, said):
            return body
        raise SignatureError(f"Object {name} in the checkpoint store is not signed with {_KEY_OF} {_UNSIGNED}")
    if not (data.endswith(_END) and head.endswith(_CHECKSUM)):
        raise corrupt(name, "is truncated or has no checksum")
    body = head.removesuffix(_CHECKSUM)
    if hashlib.sha256(body).hexdigest().encode() != said:
        raise corrupt(name, "does not match its checksum")
    if signer is not None:
        raise SignatureError(f"Object {name} in the checkpoint store is not signed, and has to be with {_KEY_OF} {_UNSIGNED}")
    return body


@functools.cache
def _beginning(kind: type[Document]) -> bytes:
    """The first bytes of every document of a kind: the kind's name and the format version, such as ``{"document":"plan",…``."""
    tag = msgspec.inspect.type_info(kind).tag  # type: ignore[attr-defined]  # of a struct
    return b'{"document":"%s","format_version":%d,' % (tag.encode(), FORMAT_VERSION)


def _version(text: bytes) -> int:
    require_few_values(text)
    return msgspec.json.decode(text, type=known(_Kind)).format_version


def _decode(name: str, text: bytes, kind: type[AnyDocument]) -> AnyDocument:
    """The document, if it is within all bounds."""
    require_size(name, len(text))
    require_few_values(text)
    document = msgspec.json.decode(text, type=known(kind))
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
    if name.rsplit("/", 1)[-1].startswith(("plan", "seal")) or "/staged/" in name or "/pieces/" in name:
        redo = f"redo the write: {how_to_restart()}"
    return CorruptObjectError(f"Object {name} in the checkpoint store {what}. It is not treated as absent. Restore it, or {redo}.")
