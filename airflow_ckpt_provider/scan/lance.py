"""A Lance dataset as tables and sources open it: where it is, at which version, and when that was made."""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.checkpoint.location import StorageLocation, whole_uri
from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError, first_line
from airflow_ckpt_provider.scan.looks import LOOKS, wait_for_look

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lance import LanceDataset

#: Rows of a batch, and about its bytes, whichever is less.
_BATCH_ROWS, _BATCH_BYTES = 8192, 16 << 20

#: Bytes that a row is reckoned with where a fragment does not say how large its files are.
_ROW_BYTES = 1024

#: Blobs are read as what they hold; Lance's default is where they are in this dataset's files.
BLOBS: Literal["all_binary"] = "all_binary"

#: Operations after which each row that is left is where it was, in a fragment of the same columns. An update is none of them: it
#: deletes a row in one fragment and adds it in another.
MOVES_NO_ROW = frozenset({"Append", "Delete", "CreateIndex", "UpdateConfig"})

#: How the file of a version ends.
_MANIFEST = ".manifest"

#: Schemes that Lance opens, of those that the checkpoint store knows.
_SCHEMES = ("file", "s3", "gs", "az")


def dataset_uri(text: str) -> str:
    """Normal form of a dataset's URI or absolute local path.

    :raises InvalidInputError: if it carries credentials, is a relative path, would lose its end, or has a scheme that Lance does
        not open.
    """
    uri = whole_uri(text).rstrip("/")
    scheme, _, rest = uri.partition("://")
    scheme = "s3" if scheme == "s3a" else scheme
    if scheme not in _SCHEMES:
        raise InvalidInputError(f"{text!r} has the scheme {scheme!r}; Lance datasets are opened at {', '.join(_SCHEMES)}.")
    return f"{scheme}://{rest}"


def address_of(uri: str) -> str:
    """A URI as Lance takes it: nothing in a local path is percent-decoded."""
    return uri.removeprefix("file://")


def name_of(file: Any) -> str:  # noqa: ANN401 - a DataFile
    """Name of a fragment's data file, below ``data``.

    Lance makes a class at each look at ``DataFile.path``, so that the names of ten thousand files would take longer than to commit
    them. Where it no longer keeps the name as it does, the look is taken.
    """
    name = vars(file).get("_path")
    return name if isinstance(name, str) else str(file.path)


def open_dataset(uri: str, options: Mapping[str, str], version: int | None = None) -> LanceDataset | None:
    """The dataset at a version, or at its latest; None if there is none.

    Lance lists the versions and then opens the latest. If that was cleaned up in between, it says that there is no dataset.

    :param uri: as from ``dataset_uri``.
    :raises RetryableError: if the storage failed, or the latest version was another one each time.
    """
    import lance

    for number in range(1, LOOKS + 1):
        try:
            return lance.dataset(address_of(uri), version=version, storage_options=dict(options) or None)
        except Exception as error:
            if not isinstance(error, ValueError) or "not found" not in str(error).lower():
                raise RetryableError(
                    f"The Lance dataset {uri} could not be opened: {StorageLocation(uri, options).said(error)}"
                ) from error
            if version is not None or not _has_versions(uri, options):
                return None
            last = error
        wait_for_look(number)
    raise busy(uri, last) from last


def _has_versions(uri: str, options: Mapping[str, str]) -> bool:
    """Whether there is any version of a dataset."""
    import obstore

    folder = "_versions"
    if uri.startswith("file://"):
        place = Path(address_of(uri)) / folder
        return place.is_dir() and any(name.endswith(_MANIFEST) for name in os.listdir(place))
    location = StorageLocation(uri, options)
    try:
        listed = obstore.list(location.open(), folder)
        return any(entry["path"].endswith(_MANIFEST) for chunk in listed for entry in chunk)
    except obstore.exceptions.BaseError as error:
        raise RetryableError(f"The versions of the Lance dataset {uri} could not be listed: {location.said(error)}") from error


def busy(uri: str, error: Exception) -> RetryableError:
    """The error for a dataset that was changed at each look, after the last of them."""
    return RetryableError(
        f"The Lance dataset {uri} was looked at {LOOKS} times, and each time versions were made and cleaned up meanwhile "
        f"({first_line(error)}). Nothing was changed; a retry looks again. Clean up only versions older than a commit takes."
    )


def made_at(dataset: LanceDataset) -> datetime:
    """When the version that ``dataset`` shows was made."""
    # Lance gives local time without a zone.
    made: Any = dataset.get_version()["timestamp"]
    return made.astimezone(UTC)  # type: ignore[no-any-return]


def transaction_of(dataset: LanceDataset, version: int) -> Any:  # noqa: ANN401 - a lance.Transaction, or None for a version without one
    """The transaction that made a version.

    :raises OSError: if the version is gone.
    """
    from lance import LanceOperation

    try:
        return dataset.read_transaction(version)
    except TypeError as error:
        if "RewrittenIndex" not in str(error):
            raise
        # Of a compaction that took an index with it, pylance 14 hands over less than its own class asks for.
        LanceOperation.RewrittenIndex.__init__.__defaults__ = (None, None, None)
        return dataset.read_transaction(version)


def bytes_of(fragment: Any) -> int:  # noqa: ANN401 - a FragmentMetadata
    """Size of a fragment's files, about."""
    known = sum(file.file_size_bytes or 0 for file in fragment.files)
    return known or int(fragment.physical_rows) * _ROW_BYTES


def batch_rows(fragment: Any) -> int:  # noqa: ANN401 - a FragmentMetadata
    """Rows of a batch that is not too large."""
    row_bytes = bytes_of(fragment) // max(1, int(fragment.physical_rows))
    return min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, row_bytes)))
