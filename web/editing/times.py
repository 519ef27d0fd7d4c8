"""The rules of a draft, what it leaves out and where its times begin and end, read as a spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from django.conf import settings
from django.db.models.functions import Lower

from schedules.models import Schedule, SharedCalendar
from schedules.spec import Spec, SpecError

from .complaints import Complaints
from .definition import BOUNDS
from .draft import Draft
from .exclusions import Exclusion, Shared, exclusion_form
from .rules import Rule, list_of, rule_form

MOST_OFFERED = 500
CLOCK = ("time_zone", "dst")
WITHOUT_CLOCK = tuple(name for name in BOUNDS if name not in CLOCK)


class Times:
    """`spec` is None while anything is wrong; `readable` is what can be read so far."""

    def __init__(
        self, draft: Draft, complaints: Complaints, *, schedule: Schedule | None, now: datetime
    ) -> None:
        self._draft, self._complaints = draft, complaints
        self.rules = [rule_form(part) for part in draft.rules]
        self.exclusions = [exclusion_form(part, self._calendar_names) for part in draft.exclusions]
        self.readable = self._read()
        self.spec = self.readable if self._is_right(schedule, now) else None

    def _read(self) -> Spec | None:
        pieces = list(self._pieces())
        calendars = SharedCalendar.objects.named_in(
            {"exclude": [item for name, _, items in pieces if name == "exclude" for item in items]}
        )
        data = self._clock()
        for name, place, value in [*self._bounds(), *pieces]:
            if self._parsed(place, {**self._clock(), name: value}, calendars):
                data[name] = data[name] + value if isinstance(value, list) and name in data else value
        return self._parsed("", data, calendars)

    def _pieces(self) -> Iterator[tuple[str, str, list[object]]]:
        """The list of the spec, the place in the form, and what stands there."""
        forms: list[Rule | Exclusion] = [*self.rules, *self.exclusions]
        for form in forms:
            try:
                yield (list_of(form) if isinstance(form, Rule) else "exclude"), str(form.prefix), form.items()
            except SpecError as error:
                self._complaints.add(str(form.prefix), error.message)

    def _bounds(self) -> Iterator[tuple[str, str, str]]:
        own = self._draft.own
        return ((name, name, own[name]) for name in WITHOUT_CLOCK if own.get(name, "").strip())

    def _clock(self) -> dict[str, Any]:
        """The time zone, if there is such a one."""
        own = self._draft.own
        clock = {name: own[name].strip() for name in CLOCK if own.get(name, "").strip()}
        return clock if self._parsed("time_zone", clock, {}) else {}

    def _parsed(self, place: str, data: Mapping[str, Any], calendars: Mapping[str, Any]) -> Spec | None:
        try:
            return Spec.parse(data, calendars)
        except SpecError as error:
            self._complaints.add(place or self._place(error.field), error.message)
            return None

    def _is_right(self, schedule: Schedule | None, now: datetime) -> bool:
        spec = self.readable
        if spec is None or self._complaints.found:
            return False
        try:
            if schedule is None or spec.as_json() != schedule.spec:
                spec.check(now, minimum_seconds=settings.JIM_MINIMUM_INTERVAL_SECONDS)
        except SpecError as error:
            self._complaints.add(self._place(error.field), error.message)
            return False
        return True

    def _place(self, field: str) -> str:
        """Where a complaint about a field of the spec is shown."""
        if field in (*BOUNDS, "exclude"):
            return field
        alone = [form for form in self.rules if list_of(form) == field]
        return str(alone[0].prefix) if len(alone) == 1 else "rules"

    @cached_property
    def _calendar_names(self) -> Sequence[str]:
        if not any(part.texts.get("kind") == Shared.kind for part in self._draft.exclusions):
            return ()
        names = SharedCalendar.objects.order_by(Lower("name")).values_list("name", flat=True)
        return list(names[:MOST_OFFERED])
