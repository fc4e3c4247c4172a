"""Answers of a catalog to a commit that no second try changes, and what helps with each.

They are answers and not silence, and still no proof: the table's history is looked into once before a commit counts as refused.
"""

from __future__ import annotations

_RIGHTS = "Give the connection the right to commit"
_PLACE = "The connection's URI, warehouse or prefix leads to something that takes no commits: correct it, or the proxy before it"
_REQUEST = "The catalog does not take this request: see its log for why, and whether its version fits"

#: What helps, by HTTP status.
_ADVICE = {
    400: _REQUEST,
    401: _RIGHTS,
    403: _RIGHTS,
    404: _PLACE,
    405: _PLACE,
    413: "The request is larger than the catalog or a proxy before it takes: raise that limit, or commit fewer checkpoints at once",
    415: _REQUEST,
    422: _REQUEST,
    501: "Use a catalog that takes commits from clients",
}


def refusal(error: Exception) -> str | None:
    """What helps with an answer that no second try changes; None if another try may be answered otherwise."""
    from pyiceberg.exceptions import BadRequestError, ForbiddenError, UnauthorizedError

    # The library of REST catalogs hands over the answer as the cause. That of Glue has one without an HTTP status of its own there.
    status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
    if status is not None:
        return _ADVICE.get(status)
    if isinstance(error, (ForbiddenError, UnauthorizedError)):
        return _RIGHTS
    if isinstance(error, NotImplementedError):
        return _ADVICE[501]
    return _REQUEST if isinstance(error, BadRequestError) else None
