"""What storage says when it fails, in a sentence that helps: who refused what, and which connection to look at.

obstore and Lance are written in Rust, and append the structure of their error and the file of their source; S3 answers in XML;
pyarrow names an operation of the AWS library. Where credentials are missing, all of them say that a metadata service did not
answer.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.exceptions import CheckpointError, RetryableError, escaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Longer sentences of a library are cut: what matters of them comes first.
_LONGEST = 400

_METADATA_SERVICE = re.compile(
    r"169\.254\.(169\.254|170\.2)|metadata\.google\.internal|CredentialsNotLoaded|no providers in chain provided credentials"
)
_ANSWER = re.compile(r"<Code>(?P<code>[^<]+)</Code>(?:\s*<Message>(?P<message>[^<]*)</Message>)?")
_STATUS = re.compile(r"status code: (?P<code>\d{3})")
_OF_PYARROW = re.compile(r"AWS Error (?P<code>[A-Z_]+) during (?P<operation>\w+)")
_NOT_SENT = re.compile(
    r"error sending request|error trying to connect|could ?n[o']t connect to server|NETWORK_CONNECTION", re.IGNORECASE
)
_URL = re.compile(r"https?://[^/\s?,)]+")

#: What follows the sentence in an error of Rust.
_STRUCTURE = re.compile(r"\n\nDebug source|, /[^\s,]+\.rs:\d+|\s*source: Generic \{", re.DOTALL)
_WRAPPED = re.compile(r"LanceError\(IO\): |Generic N/A error: ")
_LIBRARIES = re.compile(r"LanceError\(IO\)|AWS Error [A-Z_]+ during|Generic (S3|GCS|MicrosoftAzure) error")
_TAG = re.compile(r"<[^<>]{1,100}>")


class _Kind(NamedTuple):
    """One thing that may be wrong.

    :param codes: by which an answer says it.
    :param said: what is wrong, with a place for the answer's words.
    :param cure: what to do, with a place for the connection.
    """

    codes: frozenset[str]
    said: str
    cure: str


_KINDS = (
    _Kind(
        frozenset({"NoSuchBucket", "NO_SUCH_BUCKET", "ContainerNotFound"}),
        "the bucket does not exist ({told})",
        "Create it, or correct the URI.",
    ),
    _Kind(
        frozenset(
            {
                "401",
                "AuthenticationFailed",
                "ExpiredToken",
                "INVALID_ACCESS_KEY_ID",
                "INVALID_CLIENT_TOKEN_ID",
                "InvalidAccessKeyId",
                "InvalidToken",
                "SIGNATURE_DOES_NOT_MATCH",
                "SignatureDoesNotMatch",
            }
        ),
        "the credentials are refused ({told})",
        "Correct them in {connection}.",
    ),
    _Kind(
        frozenset({"403", "ACCESS_DENIED", "AccessDenied", "AuthorizationFailure", "AuthorizationPermissionMismatch"}),
        "access is denied ({told})",
        "Allow these credentials to list, read, write and delete there, or put others into {connection}.",
    ),
    _Kind(
        frozenset({"301", "AuthorizationHeaderMalformed", "PermanentRedirect"}),
        "the storage is in another region, or at another endpoint ({told})",
        "Correct that in {connection}.",
    ),
)


class StorageOptions(dict[str, str]):
    """Options that a storage is opened with, which know where they are from, for the errors about them. They hold credentials.

    :param conn_id: of the connection that they were taken from; None if none was named, so that the environment says them.
    :param parameter: what names the connection in the user's code.
    """

    def __init__(self, options: Mapping[str, str], conn_id: str | None = None, parameter: str = "conn_id") -> None:
        super().__init__(options)
        self.conn_id = conn_id
        self.parameter = parameter

    def copy(self) -> StorageOptions:
        """The same options, of the same connection."""
        return StorageOptions(self, self.conn_id, self.parameter)

    def __reduce__(self) -> tuple[object, ...]:
        return StorageOptions, (dict(self), self.conn_id, self.parameter)


def storage_problem(text: str, options: Mapping[str, str] | None = None) -> str | None:
    """What is wrong, and what to do; None if it is nothing that is known of storage.

    :param text: of the error, whichever library raised it.
    :param options: that the storage was opened with.
    """
    connection = _connection(options)
    if _METADATA_SERVICE.search(text):
        return (
            "there are no credentials: none were given, and neither the environment nor a metadata service of a cloud has any. "
            f"Put them into {connection}."
        )
    if _NOT_SENT.search(text):
        url = _URL.search(text)
        where = f" at {url.group()}" if url else ""
        return (
            f"nobody answers{where}. See whether this machine can reach it; if the endpoint is wrong, correct it in {connection}."
        )
    code, told = _answer(text)
    for kind in _KINDS:
        if code in kind.codes:
            return f"{kind.said.format(told=told)}. {kind.cure.format(connection=connection)}"
    return f"it answers {told}." if told != code else None


@contextlib.contextmanager
def storage_failures_as_errors() -> Iterator[None]:
    """Make an error of this package of one that obstore, Lance or pyarrow raise where storage fails and nobody looked after it.

    :raises RetryableError: with what is wrong, in a sentence.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        if not _of_a_library(error):
            raise
        text = str(error)
        said = without_credentials(storage_problem(text) or without_structure(text)).rstrip(".")
        raise RetryableError(f"Storage failed: {said}. Nothing that was staged is lost; a retry goes on from there.") from error


def _of_a_library(error: Exception) -> bool:
    """Whether it says that storage failed, and is of one of the libraries that reach it."""
    from obstore.exceptions import BaseError

    return isinstance(error, BaseError) or (
        isinstance(error, OSError | ValueError | RuntimeError) and bool(_LIBRARIES.search(str(error)))
    )


def without_structure(text: str) -> str:
    """The sentence of a library's error, in one line, without what is for the library's authors."""
    sentence = _WRAPPED.sub("", _STRUCTURE.split(text, maxsplit=1)[0])
    line = escaped(_TAG.sub(" ", sentence).strip())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _answer(text: str) -> tuple[str, str]:
    """The code in an answer, and all that the answer says; empty if there is none."""
    answer = _ANSWER.search(text) or _OF_PYARROW.search(text) or _STATUS.search(text)
    if answer is None:
        return "", ""
    code, message = answer["code"], (answer.groupdict().get("message") or "").rstrip(".")
    return code, f"{code}: {message}" if message else code


def _connection(options: Mapping[str, str] | None) -> str:
    if not isinstance(options, StorageOptions):
        return "the connection"
    if options.conn_id is None:
        return f"a connection of type 'checkpoint' and name it with {options.parameter}=, or into the environment of the workers"
    return f"the connection {options.conn_id!r}"
