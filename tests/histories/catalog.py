"""The world's catalog, with replies that get lost, clients that die around a commit, and others who come between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crash.faulty_catalog import FaultyCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World


class KilledError(BaseException):
    """The process ended here. No ``except Exception`` of the product sees it."""


class MeddlingCatalog(FaultyCatalog):
    """The first commit after ``expect`` meets its fault, those after it none.

    A history has one of them: each new one would keep connections and compiled statements of its own.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._meanwhile: Callable[[], None] = lambda: None

    @property
    def late(self) -> list[Callable[[], Any]]:
        """Requests that the catalog has not got to yet, and that nobody waits for any more."""
        return self._zombies

    def expect(self, fault: str, meanwhile: Callable[[], None]) -> None:
        """What is to happen.

        :param meanwhile: what another process does just before the commit reaches the catalog.
        """
        self._faults, self._meanwhile = [fault], meanwhile

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
