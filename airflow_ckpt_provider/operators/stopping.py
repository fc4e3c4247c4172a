"""A stop by hand, Ctrl-C or *mark failed*, is no failure to look into: one line says what stays."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def said_of_a_stop(was_killed: Callable[[], bool], stays: Callable[[], str]) -> Iterator[None]:
    """Make the one error of a stop of whatever it has interrupted.

    :param was_killed: whether Airflow has called ``on_kill``: then every error is one of the stop.
    :param stays: what is left, and what the next try does with it.
    :raises StoppedError: with that.
    """
    try:
        yield
    except (KeyboardInterrupt, StoppedError) as stop:
        raise StoppedError(stays()) from stop
    except Exception as error:
        if was_killed():
            raise StoppedError(stays()) from error
        raise


def staged_so_far(checkpoint: Checkpoint | None) -> str:
    """What a stage that was stopped has staged.

    :param checkpoint: None if it was stopped before there was one.
    """
    try:
        plan = None if checkpoint is None else checkpoint.plan(len(checkpoint.plans()))
        if checkpoint is not None and plan is not None:
            staged = len(checkpoint.staged_ids() & {split.id for split in plan.splits})
            return (
                f"stopped; {staged} of {len(plan.splits)} splits of the key {checkpoint.key.value!r} stay staged; the next try "
                "goes on with them"
            )
    except Exception as error:  # noqa: BLE001 - a stop ends, whether the store answers or not
        _log.debug("What is staged could not be counted: %s", error)
    return "stopped; whatever was staged before stays staged; the next try goes on with it"
