"""Who works on a generation: its attempts, and the other code that they may go on with."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.bounds import Count, Moment, Name
from airflow_ckpt_provider.checkpoint.documents.header import Origin
from airflow_ckpt_provider.checkpoint.encoding import Document


class Attempt(Document, frozen=True, kw_only=True, tag="attempt"):
    """One execution: who tried, when and where. Its id is in the name of every file it may write (I4)."""

    id: Name
    started_at: Moment
    origin: Origin
    try_number: Count
    host: str
    pid: Count
    engine: str


class Code(Document, frozen=True, kw_only=True, tag="code"):
    """Other code than the header's with which a generation is gone on with; what was staged before stays staged.

    :param transform: name of the transform.
    :param fingerprint: SHA-256 over its code and what it uses; empty where a version says it.
    :param version: what the user says instead of the fingerprint; None if they do not.
    :param request: number of the request that it serves; None if its stage is set to go on.
    """

    transform: str
    fingerprint: str
    version: str | None
    accepted_at: Moment
    request: Count | None = None


class Continue(Document, frozen=True, kw_only=True, tag="continue"):
    """A request to go on with a generation under the code that its next attempt has. It is served once."""

    requested_at: Moment
    requested_by: str
