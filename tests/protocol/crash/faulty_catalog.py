"""A real catalog whose replies go wrong: what a network between client and catalog does, done on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World


class FaultyCatalog(SqlCatalog):
    """The world's catalog; each commit takes the next fault of a list, and after those none.

    :param faults: names of methods below.
    """

    def __init__(self, world: World, *faults: str) -> None:
        root = world.root
        super().__init__(world.catalog.name, uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
        self._faults = list(faults)
        self._zombies: list[Callable[[], Any]] = []
        self.requests = 0

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        self.requests += 1
        fault = self._faults.pop(0) if self._faults else "none"

        def apply() -> Any:
            return super(FaultyCatalog, self).commit_table(table, requirements, updates)

        return getattr(self, fault)(apply)

    def none(self, apply: Callable[[], Any]) -> Any:
        return apply()

    def reply_lost_after_landing(self, apply: Callable[[], Any]) -> Any:
        apply()
        raise ConnectionError("connection reset by peer")

    def landed_but_reported_as_conflict(self, apply: Callable[[], Any]) -> Any:
        # A client that lost the reply and sent the request again is told of a conflict, with its own commit.
        apply()
        raise CommitFailedException("the table was updated by another process")

    def landed_but_reported_as_forbidden(self, apply: Callable[[], Any]) -> Any:
        apply()
        raise ForbiddenError("the token expired meanwhile")

    def forbidden(self, apply: Callable[[], Any]) -> Any:
        raise ForbiddenError("not allowed to write to shop.orders")

    def fails_before_applying(self, apply: Callable[[], Any]) -> Any:
        raise ConnectionError("no route to the catalog")

    def applied_later(self, apply: Callable[[], Any]) -> Any:
        self._zombies.append(apply)
        raise TimeoutError("no answer in time")

    def apply_zombies(self) -> list[Exception]:
        """Let the catalog get to the requests that nobody waits for any more; returns the errors nobody sees."""
        errors = []
        while self._zombies:
            try:
                self._zombies.pop(0)()
            except (CommitFailedException, ValueError) as error:
                errors.append(error)
        return errors

    def zombies_applied_first(self, apply: Callable[[], Any]) -> Any:
        self.apply_zombies()
        return apply()
