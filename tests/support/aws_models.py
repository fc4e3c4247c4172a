"""What botocore knows of AWS, read once: each client would read and parse megabytes of it anew, and each catalog makes one."""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import Loader


def keep() -> None:
    """Let all loaders of this process, and of those forked from it, share what they have read."""
    shared: dict[Any, Any] = {}
    make = Loader.__init__

    @functools.wraps(make)
    def sharing(self: Loader, *args: Any, **settings: Any) -> None:
        make(self, *args, **settings)
        self._cache = shared

    Loader.__init__ = sharing


def read_glue() -> None:
    """Read what a client of Glue needs."""
    import boto3

    keep()
    boto3.client("glue", region_name="us-east-1")
