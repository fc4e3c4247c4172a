"""The URIs by which Airflow's assets name tables: ``iceberg://<connection>/<namespace>.<table>``, ``lance://<scheme>/<path>``.

Airflow calls the handlers for each asset of these schemes, whoever declares it, when it parses a DAG: importing this costs nothing.
A mistyped asset would be one that no commit ever updates, so that a DAG waits for it for good; it is refused where it is declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlunsplit

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow_ckpt_provider.checkpoint.reference import Reference

#: The branch that an asset without one stands for.
_MAIN = "main"

_ICEBERG = "iceberg://<connection id>/<namespace>.<table>, with ?branch=<branch> for another branch than main"

_LANCE = "lance://<scheme>/<path>, such as lance://s3/lake/vectors.lance for the dataset s3://lake/vectors.lance"


def asset_uri(reference: Reference) -> str:
    """The URI of the asset that is the table of a reference, as the handlers leave it."""
    table = reference["table"]
    if reference["format"] == "lance":
        scheme, _, path = table.partition("://")
        return f"lance://{scheme}/{quote(path.strip('/'))}"
    branch = "" if reference["branch"] == _MAIN else urlencode({"branch": reference["branch"]})
    return urlunsplit(("iceberg", quote(reference["table_conn_id"], safe=""), f"/{quote(table, safe='')}", branch, ""))


def iceberg_asset(parts: SplitResult) -> SplitResult:
    """The normal form of the URI of an Iceberg table.

    :raises ValueError: if it is none.
    """
    name = unquote(parts.path.removeprefix("/"))
    asked = dict(parse_qsl(parts.query, keep_blank_values=True))
    is_name = "/" not in parts.path[1:] and "." in name and all(name.split("."))
    is_branch = set(asked) <= {"branch"} and asked.get("branch") != ""
    if not (is_name and is_branch) or _has_login(parts):
        raise _wrong(parts, "an Iceberg table", _ICEBERG)
    branch = asked.get("branch", _MAIN)
    query = "" if branch == _MAIN else urlencode({"branch": branch})
    return parts._replace(path=f"/{quote(name, safe='')}", query=query)


def lance_asset(parts: SplitResult) -> SplitResult:
    """The normal form of the URI of a Lance dataset.

    :raises ValueError: if it is none.
    """
    if not parts.path.strip("/") or parts.query or _has_login(parts):
        raise _wrong(parts, "a Lance dataset", _LANCE)
    scheme = parts.netloc.lower()
    path = quote(unquote(parts.path.strip("/")))
    return parts._replace(netloc="s3" if scheme == "s3a" else scheme, path=f"/{path}")


def _has_login(parts: SplitResult) -> bool:
    """Whether something is wrong with the part before the path: it is not there, or names a user or a port."""
    return not parts.netloc or bool({"@", ":"} & set(parts.netloc))


def _wrong(parts: SplitResult, what: str, form: str) -> ValueError:
    # Whatever stands before an @ is not repeated.
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return ValueError(f"The asset URI {shown!r} is none of {what}. It has the form {form}.")
