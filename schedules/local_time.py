"""Times as a schedule's own clock shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from .spec.wording import clock_words, date_words
from .spec.zones import passes_of, wall_time


@dataclass(frozen=True)
class LocalTime:
    """On the clock of one place; a time of the day that is talked about is told without its date."""

    zone: ZoneInfo
    day: date

    def words(self, at: datetime) -> str:
        local = at.astimezone(self.zone)
        return self.time(at) if local.date() == self.day else f"{self.time(at)} on {date_words(local)}"

    def full(self, at: datetime) -> str:
        return f"{self.time(at)} on {date_words(at.astimezone(self.zone))}, {self.zone.key}"

    def time(self, at: datetime) -> str:
        local = at.astimezone(self.zone)
        first_pass, second_pass = passes_of(wall_time(at, self.zone), self.zone)
        return clock_words(local) + (f" {local:%Z}" if first_pass != second_pass else "")
