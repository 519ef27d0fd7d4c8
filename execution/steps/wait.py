"""The wait step, whose task waits in the queue without taking a seat."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from execution.steps.fields import Field
from schedules.placeholders import has_placeholders
from schedules.spec import SpecError
from schedules.spec.intervals import seconds_of
from schedules.spec.moments import moment_of
from schedules.spec.zones import once, wall_time, zone_of
from text.words import exact, span

from .context import Context
from .outcome import Later, StepFailed
from .step_type import StepType

LONGEST = timedelta(days=366)
TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")


class WaitStep(StepType):
    name = "wait"
    title = "Wait"
    needs_code_permission = False
    fields = (
        Field("duration", "Duration", help="such as 90s, 15m, 1h30m or 2d"),
        Field(
            "until",
            "Until",
            help="a time of day such as 06:30 (the next one after the run's nominal time, in the schedule's "
            "time zone), or a date and time such as 2026-12-01T09:00",
        ),
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        if bool(values["duration"]) == bool(values["until"]):
            return {"duration": "give either duration or until, but not both"}
        complaints = {
            "duration": "" if _is_open(values["duration"]) else _duration_complaint(values["duration"]),
            "until": "" if _is_open(values["until"]) else _until_complaint(values["until"]),
        }
        return {field: complaint for field, complaint in complaints.items() if complaint}

    def run(self, ctx: Context) -> object:
        ctx.executed_at = begun = ctx.begun_at
        try:
            end, now = end_of(ctx, begun), ctx.clock()
        except SpecError as error:
            raise StepFailed(f"until: {error.message}", can_retry=False) from None
        if now >= end:
            return {"until": end.isoformat(), "waited_seconds": round((now - begun).total_seconds(), 3)}
        limit = ctx.work.timeout_seconds
        deadline = end if limit is None else begun + timedelta(seconds=limit)
        if now >= deadline:
            ctx.interrupt("timeout")
        ctx.check()
        told = f"Waiting until {exact(end, _zone(ctx.work.time_zone))}, {span(end - begun)} in total."
        raise Later(min(end, deadline), told)


def end_of(ctx: Context, begun: datetime) -> datetime:
    """Return when the wait ends: in each call the same time, so that another worker can continue the wait."""
    if ctx.config["duration"]:
        return begun + timedelta(seconds=seconds_of(ctx.config["duration"]) or 0)
    until, place = ctx.config["until"], ctx.work.time_zone
    if TIME_OF_DAY.fullmatch(until):
        return next_time_of_day(time.fromisoformat(until), place, after=ctx.nominal_at or begun)
    return moment_of(until, place, "cron")


def next_time_of_day(at: time, place: str, *, after: datetime) -> datetime:
    """Return the first moment, not before `after`, with the time of day `at` in the time zone `place`.

    The caller passes the nominal time as `after`, so that a late run does not wait for another day.
    """
    zone = zone_of(place)
    day = wall_time(after, zone).date()
    for days in range(3):
        moment = once(datetime.combine(day + timedelta(days=days), at), zone)
        if moment is not None and moment >= after:
            return moment.astimezone(UTC)
    return after


def _zone(place: str) -> ZoneInfo:
    """Return the time zone for display, or UTC if it is unknown: broken schedules can be run by hand too."""
    try:
        return zone_of(place)
    except SpecError:
        return ZoneInfo("UTC")


def _is_open(value: str) -> bool:
    return not value or has_placeholders(value)


def _duration_complaint(text: str) -> str:
    seconds = seconds_of(text)
    if seconds is None:
        return f"{text!r} is not a duration; write 90s, 15m, 1h30m or 2d"
    if not 1 <= seconds <= LONGEST.total_seconds():
        return f"{text!r} is out of range; use a duration from 1s to {LONGEST.days}d"
    return ""


def _until_complaint(text: str) -> str:
    if TIME_OF_DAY.fullmatch(text):
        return ""
    try:
        moment_of(text, "UTC", "cron")
    except SpecError:
        return (
            f"{text!r} is not a time; write a time of day such as 06:30, or a date and time such as "
            "2026-12-01T09:00"
        )
    return ""
