"""What is left of a run that is killed at any of its effects, for the price of one run.

A process that is stopped by a signal has written what one has that is killed at the same moment, and no more. So one run is
stopped at each effect, what is there is kept, and the run goes on. ``test_points`` kills runs at each effect and finds the same.

From one effect to the next there is often not a byte written: ``after`` the one is ``before`` the next. Whoever goes on from
there finds the same files in both, and does so once for both.
"""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from protocol.crash.effects import EVERY
from support import s3
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.crash.runs import Run, Runs

W = TypeVar("W", bound=World)


class _File(NamedTuple):
    data: bytes | None  # None is a folder.
    at: int


class State(NamedTuple):
    """All files of a world, and its objects if it has some in a bucket, by their names."""

    files: dict[str, _File]
    objects: dict[str, s3.Kept]

    @classmethod
    def of(cls, world: World) -> State:
        found = {}
        for folder, folders, files in os.walk(world.root):
            found |= {os.path.join(folder, name): _File(None, 0) for name in folders}
            for path in (os.path.join(folder, name) for name in files):
                with open(path, "rb") as file:
                    found[path] = _File(file.read(), os.fstat(file.fileno()).st_mtime_ns)
        return cls(found, s3.kept(*place) if (place := _in_bucket(world)) else {})

    def put_back(self, world: W) -> W:
        """The world as it was, at the same place, because tables hold absolute paths."""
        shutil.rmtree(world.root)
        world.root.mkdir()
        for path, (data, at) in sorted(self.files.items()):
            if data is None:
                os.mkdir(path)
            else:
                with open(path, "wb") as file:
                    file.write(data)
                os.utime(path, ns=(at, at))
        if place := _in_bucket(world):
            s3.put_back(*place, self.objects)
        return type(world)(world.root)

    def same_bytes(self, other: State) -> bool:
        return {path: one.data for path, one in self.files.items()} == {path: one.data for path, one in other.files.items()} and {
            name: one.data for name, one in self.objects.items()
        } == {name: one.data for name, one in other.objects.items()}


@dataclass
class Point:
    """Effects at which a killed run leaves the same bytes, and what it leaves."""

    state: State
    numbers: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "; ".join(f"{number} {name}" for number, name in zip(self.numbers, self.names, strict=True))


class Points(Generic[W]):
    """All crash points of a run, which ends undisturbed in the world that it is given.

    :param do: what the run does, as for ``Runs.run``.
    """

    def __init__(self, runs: Runs, world: W, *writes: dict[str, Any], do: str = "write") -> None:
        self._world = world
        self._found: list[Point] = []
        self.run: Run = runs.run(world, *writes, do=do, fatal=EVERY, how=signal.SIGSTOP)
        counted = 0
        while self.run.suspended:
            # More than one if threads have them at the same time.
            names = self.run.effects[counted:]
            if names:
                self._add(State.of(world), counted + 1, names)
            counted += len(names)
            runs.go_on(self.run)
        assert counted == len(self.run.effects)

    def _add(self, state: State, first: int, names: list[str]) -> None:
        if not self._found or not state.same_bytes(self._found[-1].state):
            self._found.append(Point(state))
        self._found[-1].numbers += range(first, first + len(names))
        self._found[-1].names += names

    def __iter__(self) -> Iterator[Point]:
        return iter(self._found)

    def again(self, point: Point) -> W:
        """The world as it was at a point, to be used until this is called once more."""
        return point.state.put_back(self._world)

    def at(self, number: int) -> W:
        """The same by the number of the effect."""
        return self.again(next(point for point in self._found if number in point.numbers))


def said(error: AssertionError) -> str:
    """The first line of its message; the line that raised it, if it has none."""
    return (str(error).splitlines() or [f"{traceback.extract_tb(error.__traceback__)[-1].line}"])[0]


def _in_bucket(world: World) -> tuple[str, str] | None:
    """Bucket and prefix of a world that has its dataset and store there."""
    uri = getattr(world, "uri", "")
    if not uri.startswith("s3://"):
        return None
    bucket, _, path = uri.removeprefix("s3://").partition("/")
    return bucket, path.rpartition("/")[0] + "/"
