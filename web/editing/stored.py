"""Schedules as drafts: one that is stored, a copy of it, or a new one."""

from __future__ import annotations

from dataclasses import replace

from django.utils import timezone

from schedules.models import Schedule
from schedules.revisions import records_of

from .definition import BOUNDS, own_texts
from .draft import Draft, numbered
from .exclusions import exclusions_of
from .rules import rules_of
from .steps import shown


def draft_of(schedule: Schedule) -> Draft:
    """As it is stored; `token` and `seen` tell later what somebody else has changed meanwhile."""
    marks = {"token": str(schedule.token), "seen": str(newest_record(schedule))}
    return Draft(
        own_texts(schedule) | marks,
        rules_of(schedule.spec, schedule.calendars),
        exclusions_of(schedule.spec),
        numbered(map(shown, schedule.steps.select_related("template"))),
    )


def copy_of(schedule: Schedule) -> Draft:
    draft = draft_of(schedule)
    own = {name: text for name, text in draft.own.items() if name not in ("token", "seen", "remaining_was")}
    return Draft(
        {**own, "name": f"Copy of {schedule.name}"[:200]}, draft.rules, draft.exclusions, draft.steps
    )


def new_draft() -> Draft:
    """In the time zone of whoever makes it."""
    return Draft(own_texts(Schedule()) | {"time_zone": timezone.get_current_timezone_name()})


def with_theirs(draft: Draft, part: str, schedule: Schedule) -> Draft:
    """One part as it is stored; the rest as it was typed."""
    if part not in (*Schedule.EDITABLE, "steps"):
        return draft
    theirs = draft_of(schedule)
    if part == "steps":
        return replace(draft, steps=theirs.steps)
    if part == "spec":
        bounds = {name: theirs.own.get(name, "") for name in BOUNDS}
        own = draft.own | bounds
        return replace(draft, own=own, rules=theirs.rules, exclusions=theirs.exclusions)
    names = {part, "remaining_was"} if part == "remaining" else {part}
    kept = {name: text for name, text in draft.own.items() if name not in names}
    return replace(draft, own=kept | {name: theirs.own[name] for name in names if name in theirs.own})


def newest_record(schedule: Schedule) -> int:
    return records_of(schedule).order_by("-pk").values_list("pk", flat=True).first() or 0
