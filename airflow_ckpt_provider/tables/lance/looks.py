"""Looking at a dataset whose versions others make and clean up meanwhile: what was opened may be gone when it is read.

Lance then raises what its storage or Arrow says. None of that means that the dataset is gone, so it is looked at anew.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from airflow_ckpt_provider.exceptions import StaleStateError
from airflow_ckpt_provider.scan.lance import busy
from airflow_ckpt_provider.scan.looks import LOOKS, wait_for_look

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
P = ParamSpec("P")


class Named(Protocol):
    """What has the URI of a dataset for its name."""

    @property
    def identifier(self) -> str: ...


class OnDataset(Protocol):
    """What was loaded from a dataset."""

    @property
    def named(self) -> Named: ...


N = TypeVar("N", bound=Named)
D = TypeVar("D", bound=OnDataset)


class ListedMeanwhileError(OSError):
    """Versions were listed while they came and went, so that the list is older than what was seen before."""


def looking(uri: str, look: Callable[[], T]) -> T:
    """What ``look`` finds.

    :param uri: of the dataset.
    :param look: opens the dataset anew each time, and changes nothing.
    :raises RetryableError: if the dataset was changed each time.
    """
    for number in range(1, LOOKS + 1):
        try:
            return look()
        except (OSError, ValueError) as error:
            last = error
        wait_for_look(number)
    raise busy(uri, last) from last


def looks_again(method: Callable[Concatenate[N, P], T]) -> Callable[Concatenate[N, P], T]:
    """The same for a method that opens the dataset and changes nothing."""

    def looked(self: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return looking(self.identifier, lambda: method(self, *args, **kwargs))

    functools.update_wrapper(looked, method)
    return looked


def goes_stale(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[D, P], T]:
    """Say of what Lance raises where a version was cleaned up that the state is gone, and not the dataset."""

    @functools.wraps(method)
    def looked(self: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except (OSError, ValueError) as error:
            raise stale(self.named.identifier, error) from error

    return looked


def stale(uri: str, error: Exception) -> StaleStateError:
    """The error for a dataset whose versions went while they were looked at."""
    return StaleStateError(str(busy(uri, error)))
