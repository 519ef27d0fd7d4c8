"""Patterns as people say them: these times of day, or every so often inside a daily window, on weekdays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .fields import DAY_OF_WEEK
from .intervals import seconds_from
from .shapes import list_of, object_of, text_of
from .structured import text_of_values
from .wall_calendar import DAY, EVERY_WEEKDAY, Calendar, Days, Listed
from .wording import SpecError, duration, shown, time_of_day

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_KEYS = ("times", "every", "from", "until", "weekdays")
_MOST_TIMES = 1440


@dataclass(frozen=True)
class Pattern:
    """Either times, in seconds from midnight, or every so many seconds from one of them until another."""

    weekdays: str = "*"
    times: tuple[int, ...] = ()
    every: int = 0
    start: int = 0
    until: int = DAY - 1

    @classmethod
    def parse(cls, item: object) -> Pattern:
        data = object_of("patterns", item, allowed=_KEYS)
        weekdays = text_of_values("patterns", DAY_OF_WEEK, data.get("weekdays", "*"))
        try:
            _days(weekdays)
        except ValueError as error:
            raise SpecError("patterns", str(error)) from error
        if ("times" in data) == ("every" in data) or (
            "times" in data and ("from" in data or "until" in data)
        ):
            forms = '{"times": ["09:00"]} or {"every": "15m", "from": "09:00", "until": "17:00"}'
            raise SpecError("patterns", f"give either times or every with from and until: {forms}")
        return (
            cls(weekdays, times=_times(data["times"]))
            if "times" in data
            else cls(weekdays, (), *_window(data))
        )

    @property
    def calendar(self) -> Calendar:
        times = self.times or range(self.start, self.until + 1, self.every)
        return Calendar(_days(self.weekdays), Listed(times), is_wildcard=False)

    def as_json(self) -> dict[str, object]:
        weekdays = {} if self.weekdays == "*" else {"weekdays": self.weekdays}
        if self.times:
            return {"times": [time_of_day(time) for time in self.times], **weekdays}
        window = {"from": time_of_day(self.start), "until": time_of_day(self.until)}
        return {"every": duration(self.every), **window, **weekdays}


@lru_cache(maxsize=256)
def _days(weekdays: str) -> Days:
    values = DAY_OF_WEEK.values(weekdays)
    numbers = tuple(sorted({(weekday - 1) % 7 for weekday in values.numbers}))
    nth = tuple(sorted(((weekday - 1) % 7, count) for weekday, count in values.nth))
    return Days(weekdays=EVERY_WEEKDAY if weekdays == "*" else numbers, nth=nth)


def _times(value: object) -> tuple[int, ...]:
    items = list_of("patterns", value, most=_MOST_TIMES)
    if not items:
        raise SpecError("patterns", 'times is empty; give at least one, such as ["09:00"]')
    return tuple(sorted({_time("times", item) for item in items}))


def _window(data: dict[str, object]) -> tuple[int, int, int]:
    every = seconds_from("patterns", data["every"])
    if not 1 <= every <= DAY:
        raise SpecError("patterns", f"every {shown(every)} seconds is out of range 1s\N{EN DASH}1d")
    start, until = _time("from", data.get("from", "00:00")), _time("until", data.get("until", "23:59:59"))
    if until < start:
        window = f"until {time_of_day(until)} is before from {time_of_day(start)}"
        raise SpecError("patterns", f"{window}; for a window across midnight, write two patterns")
    return every, start, until


def _time(key: str, value: object) -> int:
    text = text_of("patterns", value)
    parts = _TIME.fullmatch(text)
    if parts is None:
        raise SpecError(
            "patterns", f"{key} {shown(text)} is not a time of day; write 00:00 to 23:59, such as 09:30"
        )
    hour, minute, second = (int(part or 0) for part in parts.groups())
    return hour * 3600 + minute * 60 + second
