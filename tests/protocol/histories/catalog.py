"""The world's catalog, with replies that get lost, clients that die around a commit, and others who come between."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from protocol.crash.faulty_catalog import FaultyCatalog
from requests.exceptions import ReadTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World

#: Seconds that a slow catalog takes: longer than the patience of those who play histories.
_SLOW_S = 0.06


class KilledError(BaseException):
    """The process ended here. No ``except Exception`` of the product sees it."""


class MeddlingCatalog(FaultyCatalog):
    """The first commit after ``expect`` meets its fault, those after it none.

    A history has one of them: each new one would keep connections and compiled statements of its own.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._meanwhile: Callable[[], None] = lambda: None
        self._silent_looks = 0

    @property
    def late(self) -> list[Callable[[], Any]]:
        """Requests that the catalog has not got to yet, and that nobody waits for any more."""
        return self._zombies

    def expect(self, fault: str, meanwhile: Callable[[], None]) -> None:
        """What is to happen.

        :param meanwhile: what another process does just before the commit reaches the catalog.
        """
        self._faults, self._meanwhile = [fault], meanwhile
        self._silent_looks = 2 if fault == "no_answer_to_looks" else 0

    def load_table(self, identifier: Any) -> Any:
        if self._silent_looks:
            self._silent_looks -= 1
            raise ReadTimeout("no answer in time")
        return super().load_table(identifier)

    def answers_slowly(self, apply: Callable[[], Any]) -> Any:
        time.sleep(_SLOW_S)
        return apply()

    def lands_and_hangs(self, apply: Callable[[], Any]) -> Any:
        """No answer, neither to the commit nor to the looks that follow it."""
        apply()
        self._silent_looks = 3
        raise ReadTimeout("no answer in time")

    def hangs(self, apply: Callable[[], Any]) -> Any:
        """The same, and the catalog gets to the commit later."""
        self._zombies.append(apply)
        self._silent_looks = 3
        raise ReadTimeout("no answer in time")

    def no_answer_to_looks(self, apply: Callable[[], Any]) -> Any:
        return apply()

    def killed_before(self, apply: Callable[[], Any]) -> Any:
        raise KilledError

    def killed_after(self, apply: Callable[[], Any]) -> Any:
        apply()
        raise KilledError

    def overtaken(self, apply: Callable[[], Any]) -> Any:
        self._meanwhile()
        return apply()

    def overtaken_and_lost(self, apply: Callable[[], Any]) -> Any:
        self._meanwhile()
        apply()
        raise ConnectionError("connection reset by peer")


#: Faults after which the client may not know what became of its commit.
SILENT = {"applied_later", "fails_before_applying"}
KILLED = {"killed_before", "killed_after"}
FAULTS = (
    "none", "none", "reply_lost_after_landing", "landed_but_reported_as_conflict", "landed_but_reported_as_forbidden", "forbidden",
    *sorted(SILENT), *sorted(KILLED), "overtaken", "overtaken_and_lost",
)  # fmt: skip

#: Those of a catalog that is slow, or gives no answer for a while.
SLOW = ("answers_slowly", "lands_and_hangs", "hangs", "no_answer_to_looks")
