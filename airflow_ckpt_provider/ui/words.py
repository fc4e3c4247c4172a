"""How numbers, times and states read on a page."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

#: Stands where a number or a time is not known.
UNKNOWN = "\N{EN DASH}"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(number: int | None) -> str:
    """A number with separators; a dash if it is not known."""
    return UNKNOWN if number is None else f"{number:,}"


def plural(number: int, word: str) -> str:
    """A number with the word that it counts."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def size(number: int | None) -> str:
    """Bytes as a person says them."""
    if number is None:
        return UNKNOWN
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{number:,} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """A time span, by its two largest units."""
    whole = max(0, round(seconds))
    for unit, name, below, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.1f} s" if 0.05 <= seconds < 10 and whole != seconds else f"{whole} s"


def age(moment: datetime | None) -> str:
    """How long ago something was."""
    if moment is None:
        return UNKNOWN
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if seconds < 5:
        return "just now"
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name} ago"
    return f"{int(seconds)} s ago"


def time(moment: datetime | None) -> str:
    """A point in time, in UTC."""
    return UNKNOWN if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def query(**values: object) -> str:
    """The query of a link; what is None or empty is left out."""
    return urlencode({name: str(value) for name, value in values.items() if value is not None and value != ""})
