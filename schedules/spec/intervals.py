"""Durations such as 1h30m, and the intervals that repeat them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .shapes import object_of
from .wording import UNITS, SpecError, duration, shown, span

if TYPE_CHECKING:
    from .zones import Stretch

LONGEST_INTERVAL = 3660 * 86_400


@dataclass(frozen=True)
class Interval:
    """An interval of fixed length, counted from the Unix epoch. Daylight saving time does not affect it."""

    seconds: int
    offset: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= LONGEST_INTERVAL:
            allowed = span("1s", duration(LONGEST_INTERVAL))
            raise SpecError("every", f"{shown(self.seconds)} seconds is outside the range {allowed}")
        if not 0 <= self.offset < self.seconds:
            allowed = f"at least 0s and less than {duration(self.seconds)}"
            raise SpecError(
                "every", f"the offset of {shown(self.offset)} seconds is not allowed: it must be {allowed}"
            )

    @classmethod
    def parse(cls, item: object) -> Interval:
        if not isinstance(item, dict):
            return cls(seconds_from("every", item))
        parts = object_of("every", item, allowed=("every", "offset"))
        return cls(seconds_from("every", parts.get("every")), seconds_from("every", parts.get("offset", 0)))

    def as_json(self) -> str | dict[str, str]:
        every = duration(self.seconds)
        return {"every": every, "offset": duration(self.offset)} if self.offset else every

    def ahead(self, floor: int) -> int:
        return self.offset + -(-(floor - self.offset) // self.seconds) * self.seconds

    def blocks(self, stretch: Stretch, low: int, high: int) -> Iterator[Iterable[int]]:
        yield range(self.ahead(low), high + 1, self.seconds)


def seconds_from(field: str, value: object) -> int:
    """Convert a duration, given as text or as a whole number of seconds, to seconds."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    seconds = seconds_of(value) if isinstance(value, str) else None
    if seconds is None:
        examples = "write it like 90s, 15m, 1h30m or 2d, or as a whole number of seconds"
        raise SpecError(field, f"{shown(value)} is not a duration; {examples}")
    return seconds


def seconds_of(text: str) -> int | None:
    """Return a duration such as 1h30m in seconds; None if the text is not a duration."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None or not parts[0]:
        return None
    return sum(int(parts[unit] or 0) * seconds for unit, seconds in UNITS.items())


_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}){unit[0]})?" for unit in UNITS))
