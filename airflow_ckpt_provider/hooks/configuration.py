"""The section ``[checkpoints]`` of Airflow's configuration: what holds where a DAG or a command says nothing.

The options, their defaults and what they mean stand in ``get_provider_info``; ``airflow config list --section checkpoints`` shows
them.
"""

from __future__ import annotations

import re
from datetime import timedelta

from airflow.sdk import conf

from airflow_ckpt_provider.exceptions import InvalidInputError

SECTION = "checkpoints"

_TIME = re.compile(r"([1-9][0-9]{0,4})\s*([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}


def policy(name: str, said: str | None) -> str:
    """A policy of a stage: what its DAG says, or else the configuration.

    :param name: of the argument, and of the option.
    :param said: what the DAG says; None if it says nothing.
    """
    return str(conf.get(SECTION, name)) if said is None else said


def retention() -> str | None:
    """How old a write has to be for a sweep that is not told; None if the configuration does not say."""
    return conf.get(SECTION, "older_than") or None


def commit_expected_within() -> timedelta:
    """How long a write may be sealed before the page points out that its commit is missing.

    :raises InvalidInputError: if it is no time.
    """
    value = conf.get(SECTION, "commit_expected_within")
    time = time_of(value)
    if time is None:
        raise InvalidInputError(
            f"The configuration has [{SECTION}] commit_expected_within = {value!r}, which is no time: write '12h', '2d' or '1w'."
        )
    return time


def time_of(text: object) -> timedelta | None:
    """A time as users write it, such as ``"12h"``, ``"14d"`` or ``"2w"``; None for anything else."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    return timedelta(hours=int(match[1]) * _HOURS[match[2]]) if match else None
