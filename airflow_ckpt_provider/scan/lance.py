"""Where a Lance dataset is, as Lance is told."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.location import normal_uri
from airflow_ckpt_provider.exceptions import InvalidInputError

#: Schemes that Lance opens, of those that the checkpoint store knows.
_SCHEMES = ("file", "s3", "gs", "az")


def dataset_uri(text: str) -> str:
    """Normal form of a dataset's URI or absolute local path.

    :raises InvalidInputError: if it carries credentials, is a relative path, or has a scheme that Lance does not open.
    """
    uri = normal_uri(text).rstrip("/")
    scheme, _, rest = uri.partition("://")
    scheme = "s3" if scheme == "s3a" else scheme
    if scheme not in _SCHEMES:
        raise InvalidInputError(f"{text!r} has the scheme {scheme!r}; Lance datasets are opened at {', '.join(_SCHEMES)}.")
    return f"{scheme}://{rest}"
