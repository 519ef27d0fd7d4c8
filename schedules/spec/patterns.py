"""Patterns: times of day, or an interval within a daily window, on chosen days."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .fields import DAY_OF_WEEK
from .intervals import seconds_from
from .shapes import list_of, object_of, text_of
from .structured import text_of_values
from .wall_calendar import DAY, Calendar, Days, Listed
from .wording import SpecError, duration, shown, span, time_of_day

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_TIMES_KEYS = ("times", "weekdays")
_WINDOW_KEYS = ("every", "from", "until", "weekdays")
_FORMS = '{"times": ["09:00", "12:30"]} or {"every": "15m", "from": "09:00", "until": "17:00"}'
_MOST_TIMES = 1440


@dataclass(frozen=True)
class Pattern:
    """Times of day, or an interval (`every`) within the window from `start` until `until`, all in seconds."""

    weekdays: str = "*"
    times: tuple[int, ...] = ()
    every: int = 0
    start: int = 0
    until: int = DAY - 1

    @classmethod
    def parse(cls, item: object) -> Pattern:
        if not isinstance(item, dict) or ("times" in item) == ("every" in item):
            raise SpecError("patterns", f"expected either times or every, such as {_FORMS}")
        data = object_of("patterns", item, allowed=_TIMES_KEYS if "times" in item else _WINDOW_KEYS)
        weekdays = text_of_values("patterns", DAY_OF_WEEK, data.get("weekdays", "*"))
        try:
            _days(weekdays)
        except ValueError as error:
            raise SpecError("patterns", str(error)) from error
        return cls(weekdays, _times(data["times"])) if "times" in data else cls(weekdays, (), *_window(data))

    @property
    def calendar(self) -> Calendar:
        return Calendar(_days(self.weekdays), Listed(self.times or self._window), is_wildcard=False)

    @property
    def notes(self) -> Iterator[str]:
        if self.every and len(self._window) == 1:
            window = f"from {time_of_day(self.start)} to {time_of_day(self.until)}"
            yield f"every {duration(self.every)} {window} runs only at {time_of_day(self.start)}"

    @property
    def _window(self) -> range:
        return range(self.start, self.until + 1, self.every)

    def as_json(self) -> dict[str, object]:
        weekdays = {} if self.weekdays == "*" else {"weekdays": self.weekdays}
        if self.times:
            return {"times": [time_of_day(time) for time in self.times], **weekdays}
        window = {"from": time_of_day(self.start), "until": time_of_day(self.until)}
        return {"every": duration(self.every), **window, **weekdays}


@lru_cache(maxsize=1024)
def _days(weekdays: str) -> Days:
    values = DAY_OF_WEEK.values(weekdays)
    return Days(weekdays=values.weekdays, nth=values.nth_weekdays)


def _times(value: object) -> tuple[int, ...]:
    items = list_of("patterns", value, most=_MOST_TIMES)
    if not items:
        raise SpecError("patterns", 'times is empty; give at least one time, such as ["09:00"]')
    return tuple(sorted({_time("times", item) for item in items}))


def _window(data: dict[str, object]) -> tuple[int, int, int]:
    every = seconds_from("patterns", data["every"])
    if not 1 <= every <= DAY:
        raise SpecError("patterns", f"every: {shown(every)} seconds is outside the range {span('1s', '1d')}")
    start, until = _time("from", data.get("from", "00:00")), _time("until", data.get("until", "23:59:59"))
    if until < start:
        window = f"until ({time_of_day(until)}) is earlier than from ({time_of_day(start)})"
        raise SpecError("patterns", f"{window}; for a window across midnight, write two patterns")
    return every, start, until


def _time(key: str, value: object) -> int:
    text = text_of("patterns", value)
    parts = _TIME.fullmatch(text)
    if parts is None:
        allowed = "use 00:00 to 23:59:59, such as 09:30"
        raise SpecError("patterns", f"{key}: {shown(text)} is not a time of day; {allowed}")
    hour, minute, second = (int(part or 0) for part in parts.groups())
    return hour * 3600 + minute * 60 + second
