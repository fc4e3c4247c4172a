"""Mapping this provider's errors to what Airflow does about them. The only place where that is decided."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.exceptions import CheckpointError, TerminalError, panics_as_errors

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def airflow_errors() -> Iterator[None]:
    """Fail the task at once for what no retry can cure; fail only the try for everything else."""
    try:
        with panics_as_errors("in this task"):
            yield
    except TerminalError as error:
        raise AirflowFailException(f"{type(error).__name__}: {without_credentials(str(error))}") from error
    except CheckpointError as error:
        raise AirflowException(f"{type(error).__name__}: {without_credentials(str(error))}") from error
