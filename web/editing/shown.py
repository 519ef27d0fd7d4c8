"""What the page of the editor shows of a reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from schedules.form_fields import Tags
from schedules.models.definition import in_words
from schedules.models.occurrence import named_time
from schedules.previews import Preview, preview
from schedules.spec import SpecError
from schedules.spec.zones import zone_of
from text import words
from web.mistakes import Mistake

from .edit_conflict import EditConflict, conflict_of
from .places import mistakes_of, undefined_secrets, warnings_of
from .reading import Reading
from .steps import MOST_OPEN

TIMES = 10
COMPARED = 50
MOST_NAMED = 10
SECTIONS = ("", "rules", "exclude", "steps")
# What is wrong with these comes from what was typed, not from what is still missing.
AT_ONCE = ("", "rules", "exclude")
_NAME = re.compile(r"[\w-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class Time:
    """A run to come; `clock` is what the clocks of the schedule show."""

    at: datetime
    clock: str
    starts: str
    note: str = ""


def checked(reading: Reading, *, knows_code: bool) -> Shown:
    """As “Check” answers: all that is wrong, what may be, or that there is nothing."""
    warnings = warnings_of(reading) if knows_code else []
    if not reading.is_right:
        said = "The fields that need fixing are listed at the top of the form."
    elif warnings:
        said = f"No errors, but {_count(warnings, 'warning')}. Nothing is saved yet."
    else:
        looked_at = f"name, times, {_count(reading.steps, 'step')} and policies"
        said = f"No problems found in {looked_at}. Nothing is saved yet."
    return Shown(reading, is_checked=True, said=said, warnings=warnings)


class Shown:
    """What the page shows. `is_checked`: all errors are shown; else only those of touched fields."""

    def __init__(
        self, reading: Reading, *, is_checked: bool, said: str = "", warnings: Sequence[Mistake] = ()
    ) -> None:
        self.reading, self.is_checked, self.said, self.warnings = reading, is_checked, said, warnings
        self.touched = _names(reading.data.get("touched", ""))

    def errors_of(self, name: str) -> Sequence[str]:
        """Also of a part as a whole, once one of its fields was touched."""
        is_shown = self.is_checked or name in self._touched_parts or name in AT_ONCE
        return self.reading.errors.get(name, []) if is_shown else []

    @cached_property
    def _touched_parts(self) -> set[str]:
        """The touched fields, and the parts of the form that they belong to."""
        names = [name.split("-") for name in self.touched]
        return {"-".join(name[:end]) for name in names for end in range(1, len(name) + 1)}

    @cached_property
    def slots(self) -> list[tuple[str, Sequence[str]]]:
        """The places of errors that may have changed since the last request."""
        parts = {"-".join(name.split("-")[:2]) for name in self.touched if name.count("-") > 1}
        names = {*self.touched, *parts, *SECTIONS, *(self.reading.errors if self.is_checked else ())}
        return [(name, self.errors_of(name)) for name in sorted(names)]

    @cached_property
    def mistakes(self) -> list[Mistake]:
        """All that is wrong, in the order of the page."""
        return mistakes_of(self.reading) if self.is_checked else []

    @cached_property
    def missing_secrets(self) -> list[str]:
        return undefined_secrets(step for group in self.cards for card in group if (step := card.step))

    @cached_property
    def edit_conflict(self) -> EditConflict | None:
        return conflict_of(self.reading)

    @cached_property
    def preview(self) -> Preview | None:
        """None while the times cannot be told."""
        spec, schedule = self.reading.times.readable, self.reading.schedule
        if spec is None or (self.is_partial and spec.is_manual):
            return None
        seed = schedule.jitter_seed if schedule else self.reading.data.get("name", "").strip()
        is_other = not self.is_partial and schedule and spec.as_json() != schedule.spec
        instead_of = schedule if is_other else None
        try:
            return preview(
                spec.as_json(), count=COMPARED, now=self.reading.now, seed=seed, instead_of=instead_of
            )
        except SpecError:
            return None

    @property
    def sentence(self) -> str:
        """What starts it, as far as that can be read."""
        spec = self.reading.times.readable
        topics = Tags().to_python(self.reading.data.get("topics", ""))
        return in_words(spec, topics) if spec else ""

    @property
    def is_partial(self) -> bool:
        """The preview is of those rules alone that can be read."""
        return self.reading.times.spec is None

    @property
    def times(self) -> list[Time]:
        schedule = self.reading.schedule
        skips = schedule.skips if schedule else {}
        rows = self.preview.upcoming[:TIMES] if self.preview else []
        return [self._time(row.at, row.due_at, row.note, skips.get(named_time(row.at))) for row in rows]

    def _time(self, at: datetime, due_at: datetime, note: str, skipped_by: str | None) -> Time:
        starts = self._clock(due_at) if due_at != at else ""
        return Time(at, self._clock(at), starts, f"skipped by {skipped_by}" if skipped_by else note)

    def _clock(self, at: datetime) -> str:
        return words.on_the_clock(at, self.zone).removesuffix(":00")

    @property
    def zone(self) -> Any:
        return zone_of(self.preview.time_zone if self.preview else "UTC")

    @property
    def gone(self) -> list[Time]:
        difference = self.preview.difference if self.preview else None
        return [Time(at, self._clock(at), "") for at in (difference.gone if difference else ())]

    @property
    def come(self) -> list[Time]:
        difference = self.preview.difference if self.preview else None
        return [Time(at, self._clock(at), "") for at in (difference.added if difference else ())]

    compared = COMPARED
    most_named = MOST_NAMED

    @property
    def lanes(self) -> list[list[str]]:
        """The plan: groups one after the other."""
        return [[card.name or "?" for card in group] for group in self.cards]

    @property
    def is_long(self) -> bool:
        """A plan whose steps are opened one by one."""
        return len(self.reading.steps) > MOST_OPEN

    @cached_property
    def cards(self) -> Any:
        return self.reading.cards


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _names(text: str) -> set[str]:
    return {name for name in text.split() if _NAME.fullmatch(name)}
