"""What the page of the editor shows of a reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from schedules.models.occurrence import named_time
from schedules.previews import Preview, preview
from schedules.spec import SpecError
from schedules.spec.zones import zone_of

from . import exclusions, rules
from .reading import Reading
from .rivalry import Rivalry, rivalry

TIMES = 10
COMPARED = 50
MOST_NAMED = 10
SECTIONS = ("", "rules", "exclude", "steps")
_NAME = re.compile(r"[\w-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class Time:
    at: datetime
    due_at: datetime
    note: str


class Shown:
    """`is_checked`: all that is wrong is said; else only what is wrong with what somebody has touched."""

    def __init__(self, reading: Reading, *, is_checked: bool, said: str = "") -> None:
        self.reading, self.is_checked, self.said = reading, is_checked, said
        self.touched = _names(reading.draft.own.get("touched", ""))

    rule_kinds = rules.OFFERED
    exclusion_kinds = exclusions.OFFERED

    def errors_of(self, name: str) -> Sequence[str]:
        """Also of a part as a whole, once one of its fields was touched."""
        is_shown = (
            self.is_checked
            or name in SECTIONS
            or any(each == name or each.startswith(f"{name}-") for each in self.touched)
        )
        if name in SECTIONS and not self.is_checked:
            is_shown = name in ("", "rules", "exclude")
        return self.reading.errors.get(name, []) if is_shown else []

    @cached_property
    def slots(self) -> list[tuple[str, Sequence[str]]]:
        """The places of complaints that may have changed while somebody typed."""
        parts = {"-".join(name.split("-")[:2]) for name in self.touched if name.count("-") > 1}
        names = {*self.touched, *parts, *SECTIONS, *(self.reading.errors if self.is_checked else ())}
        return [(name, self.errors_of(name)) for name in sorted(names)]

    @property
    def wrong_count(self) -> int:
        return len(self.reading.errors) if self.is_checked else 0

    @cached_property
    def rivals(self) -> Rivalry | None:
        return rivalry(self.reading)

    @cached_property
    def preview(self) -> Preview | None:
        """None while the times cannot be told."""
        spec, schedule = self.reading.spec, self.reading.schedule
        if spec is None:
            return None
        name = self.reading.draft.own.get("name", "").strip()
        instead_of = schedule if schedule and spec.as_json() != schedule.spec else None
        try:
            return preview(
                spec.as_json(), count=COMPARED, now=self.reading.now, name=name, instead_of=instead_of
            )
        except SpecError:
            return None

    @property
    def times(self) -> list[Time]:
        schedule = self.reading.schedule
        skips = schedule.skips if schedule else {}
        rows = self.preview.upcoming[:TIMES] if self.preview else []
        return [
            Time(row.at, row.due_at, f"left out on request of {skips[name]}" if name in skips else row.note)
            for row in rows
            for name in [named_time(row.at)]
        ]

    @property
    def zone(self) -> Any:
        return zone_of(self.preview.time_zone if self.preview else "UTC")

    @property
    def has_jitter(self) -> bool:
        return any(time.due_at != time.at for time in self.times)

    @property
    def gone(self) -> Sequence[datetime]:
        difference = self.preview.difference if self.preview else None
        return difference.gone if difference else ()

    @property
    def come(self) -> Sequence[datetime]:
        difference = self.preview.difference if self.preview else None
        return difference.added if difference else ()

    @property
    def most_named(self) -> int:
        return MOST_NAMED

    @property
    def lanes(self) -> list[list[str]]:
        """The plan: groups one after the other."""
        return [[card.texts.get("name", "").strip() or "?" for card in group] for group in self.cards]

    @cached_property
    def cards(self) -> Any:
        return self.reading.cards


def _names(text: str) -> set[str]:
    return {name for name in text.split() if _NAME.fullmatch(name)}
