"""What looks like a secret in the options of a connection, and texts without it.

A name tells most of them, such as ``secret_access_key`` or ``spark.hadoop.fs.azure.account.key.x``. A value tells the others: a URL
with a user and a password, a pasted file of credentials.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMED = (
    r"secret|passw|passphrase|token|credential|authorization|keyfile|(access|account|private|api|service|signing|encryption)"
    r"[._-]?key|[._-]sas"
)

#: What Spark redacts, by name or value: a regular expression of Java.
REDACTED = rf"(?i){_NAMED}|://[^/?#\s]+@"

_NAME = re.compile(_NAMED, re.IGNORECASE)
_NO_SECRET = re.compile(r"(?i)path|file$|application_credentials|provider|class|regex|duration|expir|enabled|lifetime|interval")
#: The length of the scheme is bounded: looking for it from each character of a long text would take the square of its length.
_USER_INFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)(?P<user>[^/?#\s'\"]+)@", re.IGNORECASE)
_IN_VALUE = re.compile(r"(?i)private_key|BEGIN [A-Z ]*PRIVATE KEY|(password|secret|token|sig|accountkey)=")

#: Shorter values are too often parts of other words to be taken out of a text.
_SHORTEST = 4


def is_secret(name: str, value: str) -> bool:
    """Whether an option has to be kept from everybody's eyes."""
    if _USER_INFO.search(value) or _IN_VALUE.search(value):
        return True
    return bool(_NAME.search(name)) and not (_NO_SECRET.search(name) and not value.lstrip().startswith("{"))


def secrets_in(options: Mapping[str, object]) -> Iterator[str]:
    """The texts that must not be shown of these options."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from secrets_in(value)
        elif isinstance(value, list):
            yield from secrets_in({f"{name} {number}": member for number, member in enumerate(value)})
        elif isinstance(value, str) and is_secret(name, value):
            yield value
            yield from (
                part
                for user_info in _USER_INFO.finditer(value)
                for part in (user_info["user"], user_info["user"].partition(":")[2])
            )
            yield from _pasted(value)


def _pasted(value: str) -> Iterator[str]:
    """Secrets inside a JSON text."""
    if value.lstrip().startswith("{"):
        try:
            inner = json.loads(value)
        except ValueError:
            return
        yield from secrets_in(inner)


def without_credentials(text: str) -> str:
    """A text without the user and password of any URL in it."""
    return _USER_INFO.sub(r"\g<scheme>***@", text)


def redacted(text: object, options: Mapping[str, object]) -> str:
    """A text without what must not be shown of ``options``, and without the credentials of any URL."""
    clean = str(text)
    for secret in sorted(set(secrets_in(options)), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            clean = clean.replace(secret, "***").replace(repr(secret)[1:-1], "***")
    return without_credentials(clean)
