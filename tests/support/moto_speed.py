"""moto without what it does anew for each request: hundreds of thousands of requests are a good part of the suite's time."""

from __future__ import annotations

import functools
import logging


def hasten() -> None:
    """Change moto in this process; what it answers stays the same."""
    from moto.core import serialize
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication
    from werkzeug.serving import WSGIRequestHandler

    # Head and body are two packets, of which the second would wait 40 ms for the first one's receipt.
    WSGIRequestHandler.disable_nagle_algorithm = True
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # It looks into its own folder, twice, which of a hundred services is meant.
    DomainDispatcherApplication.get_backend_for_host = functools.lru_cache(DomainDispatcherApplication.get_backend_for_host)
    # The time of each object in a list, from text to text.
    serialize.parse_to_aware_datetime = functools.lru_cache(1 << 14)(serialize.parse_to_aware_datetime)
