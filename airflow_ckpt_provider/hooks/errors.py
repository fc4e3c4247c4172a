"""Mapping this provider's errors to what Airflow does about them. The only place where that is decided."""

from __future__ import annotations

import contextlib
import logging
import traceback
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.checkpoint.storage_problems import storage_failures_as_errors
from airflow_ckpt_provider.exceptions import CheckpointError, StoppedError, TerminalError, panics_as_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

#: Of a task that was stopped with Ctrl-C where it has nothing to say of it.
_STOPPED = "stopped; the next try looks at what was done, and goes on from there"


@contextlib.contextmanager
def airflow_errors() -> Iterator[None]:
    """Fail the task at once for what no retry can cure; fail only the try for everything else.

    Decision: the errors of this package say what happened and what to do, with the user's own line. Below them Spark, Java and Rust
    say the same once more in a hundred lines, which Airflow would show above and below it: they are logged at the level DEBUG.

    Decision: a task that was stopped by hand exits, which Airflow logs in one line and retries like an error. Of an exception it
    would show forty lines, to somebody who knows why it ended.
    """
    try:
        with panics_as_errors("in this task"), storage_failures_as_errors():
            yield
    except KeyboardInterrupt:
        raise SystemExit(_STOPPED) from None
    except StoppedError as error:
        _log.debug("%s", without_credentials("".join(traceback.format_exception(error))))
        raise SystemExit(without_credentials(str(error))) from None
    except CheckpointError as error:
        _log.debug("%s", without_credentials("".join(traceback.format_exception(error))))
        kind = AirflowFailException if isinstance(error, TerminalError) else AirflowException
        raise kind(f"{type(error).__name__}: {without_credentials(str(error))}") from None
