"""The idempotence key: the one name under which a write is remembered. Not a fingerprint of its content."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from airflow_ckpt_provider.exceptions import InvalidInputError

#: Longest key accepted, in characters. Keys are stored and shown whole, in snapshot summaries too.
MAX_KEY_LENGTH = 512

#: Hex digits of the key's SHA-256 that name its folder and its files. 80 bits: a collision is detected by the header.
KEY_HASH_LENGTH = 20

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class IdempotenceKey:
    """A validated idempotence key.

    :param value: the key: 1 to 512 characters, no control characters, no white space around it.
    :raises InvalidInputError: if it is not one.
    """

    value: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            raise InvalidInputError(f"The idempotence key {self.value!r} is a {type(self.value).__name__} and not a string.")
        if self.value == "None":
            raise InvalidInputError(
                "The idempotence key is 'None': its template renders to nothing in this run, and every such run would share one "
                "key. Use a template that has a value in every run, or leave idempotence_key out to use the default."
            )
        if not self.value or self.value != self.value.strip():
            raise InvalidInputError(
                f"The idempotence key {self.value!r} is empty or has white space around it. Leave idempotence_key out to "
                "use the default, or check what its template renders to."
            )
        if len(self.value) > MAX_KEY_LENGTH:
            raise InvalidInputError(
                f"The idempotence key {self.value[:60]!r}... is {len(self.value)} characters long; at most {MAX_KEY_LENGTH} "
                "are allowed. Use a shorter idempotence_key, for instance a digest of the long part."
            )
        if _HALF.search(self.value):
            raise InvalidInputError(
                f"The idempotence key {self.value!r} holds a lone half of a surrogate pair, which is no character and cannot be "
                "stored. Check how the text it is rendered from was decoded."
            )
        if _CONTROL.search(self.value):
            raise InvalidInputError(f"The idempotence key {self.value!r} holds control characters.")

    @cached_property
    def hash(self) -> str:
        """The 20 hex digits that stand for the key in folder and file names."""
        return hashlib.sha256(self.value.encode()).hexdigest()[:KEY_HASH_LENGTH]

    def __str__(self) -> str:
        return self.value
