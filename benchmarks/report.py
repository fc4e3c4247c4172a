"""The table of results. Every figure in it was measured in the run that prints it."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGES = ("pyspark", "pyarrow", "pyiceberg", "obstore")


@dataclass(frozen=True)
class Line:
    """One comparison.

    :param what: what is compared, in words.
    :param ours: our side, with its unit.
    :param other: what it is compared with.
    :param value: the figure that is held against the target: a ratio or a time.
    :param target: None for a figure that is shown beside another.
    :param at_least: True if the target is a lower bound.
    :param unit: of ``value``: ``x`` for ratios.
    :param ratio: the ratio of both sides, where the target is not about it.
    """

    what: str
    ours: str
    other: str
    value: float
    target: float | None
    at_least: bool = False
    unit: str = "x"
    ratio: float | None = None

    @property
    def met(self) -> bool:
        """True if the figure, unrounded, reaches the target."""
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target

    def cells(self) -> tuple[str, ...]:
        """The cells of this line."""
        sign = "≥" if self.at_least else "≤"
        ratio = _number(self.value, self.unit) if self.ratio is None else _number(self.ratio, "x")
        if self.target is None:
            return (self.what, self.ours, self.other, ratio, "", "")
        target = f"{sign} {_number(self.target, self.unit)}"
        return (self.what, self.ours, self.other, ratio, target, "met" if self.met else "**not met**")


@dataclass
class Report:
    """All lines of one run, and notes on how they were measured."""

    command: str
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _start: float = field(default_factory=time.monotonic)
    _load: float = field(default_factory=lambda: os.getloadavg()[0])

    def begin(self, what: str) -> None:
        """Say what is measured now, and how long everything took so far."""
        print(f"[{time.monotonic() - self._start:4.0f} s] {what}", flush=True)

    def add(self, lines: Sequence[Line], *notes: str) -> None:
        """Add a section, and show its lines at once."""
        self.lines += lines
        self.notes += notes
        for line in lines:
            print("  " + " | ".join(line.cells()), flush=True)

    def markdown(self) -> str:
        """The whole report."""
        rows = [("measured", "ours", "beside", "ratio", "target", ""), ("---",) * 6, *(line.cells() for line in self.lines)]
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
        packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
        return "\n".join(
            [
                "# Benchmark results",
                "",
                f"`{self.command}` on {datetime.now(UTC):%Y-%m-%d}: {machine}, {packages}. Medians of interleaved runs.",
                f"The machine's load average was {self._load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end.",
                "",
                *(f"| {' | '.join(row)} |" for row in rows),
                "",
                *(f"- {note}" for note in self.notes),
                "",
            ]
        )


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}"
    return f"{value:.3g}x" if unit == "x" else f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median with the range, such as ``2.31 (2.25-2.40)``."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
