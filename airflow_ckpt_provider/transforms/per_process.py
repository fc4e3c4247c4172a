"""What a transform sets up once in each worker process, such as a model that takes long to load.

The workers of Spark are used for many splits, and a function of a DAG file travels to each of them by value, so that its module's
globals are new each time. What is kept here stays until the process ends.
"""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_kept: dict[str, Any] = {}
_making = threading.Lock()


def once(name: str, make: Callable[[], Any], end: Callable[[Any], None] | None = None) -> Any:  # noqa: ANN401 - the user's
    """What ``make`` returns, which is called once for each name in this process.

    :param end: called with it when the process ends.
    """
    with _making:
        if name not in _kept:
            _kept[name] = make()
            if end is not None:
                atexit.register(end, _kept[name])
        return _kept[name]
