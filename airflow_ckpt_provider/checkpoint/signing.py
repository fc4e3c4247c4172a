"""Signatures of stored documents: an HMAC that nobody can make who has no key, where a checksum anybody can compute.

What is signed is the document together with its name, which begins with the hash of its key and its generation, so that no
document can be put in the place of another one. The driver has the connection's key; what it sends to executors has a key that is
derived for one generation of one idempotence key, and can sign nothing else.

What a signature does not cover: the files of rows themselves, and the ids of staged rows beside their records. A staged record says
the sizes of its data files. Nor does it tell that an object was removed, or that an older store was put back in its place.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from airflow_ckpt_provider.checkpoint.layout import root_of
from airflow_ckpt_provider.exceptions import InvalidInputError, SignatureError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fewest characters of a key: 32 hex digits are 128 bits.
MIN_KEY_LENGTH = 32

_CONTEXT = b"airflow-provider-ckpt/generation\0"


class Signer(Protocol):
    """Signs what is stored under some names."""

    def keys(self, name: str) -> tuple[bytes, ...]:
        """Keys that a document of this name may be signed with; the first is the one to sign with."""
        ...

    def of_generation(self, root: str) -> Signer:
        """What signs the documents of one generation only."""
        ...


@dataclass(frozen=True)
class GenerationKeys:
    """Keys that are derived for one generation of one idempotence key. They travel to executors.

    :param root: folder of the generation; see ``CheckpointPaths.root``.
    """

    root: str
    derived: tuple[bytes, ...] = field(repr=False)

    def keys(self, name: str) -> tuple[bytes, ...]:
        if root_of(name) != self.root:
            raise SignatureError(f"A task of the generation {self.root} has no key for the object {name} of another one.")
        return self.derived

    def of_generation(self, root: str) -> Signer:
        self.keys(root)
        return self


@dataclass(frozen=True)
class ConnectionKeys:
    """The keys of a connection. They stay in the process that read it.

    :param secrets: the key that signs, then those that were used before it and are still accepted.
    :raises InvalidInputError: if one is too short.
    """

    secrets: Sequence[str] = field(repr=False)

    def __post_init__(self) -> None:
        short = [number for number, secret in enumerate(self.secrets) if len(secret) < MIN_KEY_LENGTH]
        if short or not self.secrets:
            raise InvalidInputError(
                f"A key in signing_secret or previous_signing_secrets has fewer than {MIN_KEY_LENGTH} characters. Make one, for "
                "instance with: openssl rand -hex 32"
            )

    def keys(self, name: str) -> tuple[bytes, ...]:
        return self.of_generation(root_of(name)).keys(name)

    def of_generation(self, root: str) -> GenerationKeys:
        return GenerationKeys(root, tuple(_hmac(secret.encode(), _CONTEXT + root.encode()) for secret in self.secrets))

    def __reduce__(self) -> NoReturn:
        raise TypeError("The keys of a connection stay in the process that read it: see CheckpointStore.of_generation.")


def signature(key: bytes, name: str, body: bytes) -> bytes:
    """Signature of a document under its name, as hex digits."""
    return _hmac(key, name.encode() + b"\0" + body).hex().encode()


def is_signed(keys: Sequence[bytes], name: str, body: bytes, said: bytes) -> bool:
    """Whether ``said`` is a signature of the document by one of ``keys``."""
    return any(hmac.compare_digest(signature(key, name, body), said) for key in keys)


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()
