"""Pages of shared calendars."""

from __future__ import annotations

from calendar import Calendar
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

from django.contrib import messages
from django.db.models import Count, Q
from django.db.models.functions import Lower
from django.forms import modelform_factory
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from database import clock
from operations.initiator import initiator_of
from schedules.calendar_form import CalendarForm
from schedules.models import Conflict, SharedCalendar
from schedules.revisions import records_of
from schedules.spec.wall_calendar import FIRST, LAST
from schedules.spec_text import exclusions_to_text
from text.clean import search_text
from text.numbers import whole_number
from web import operating
from web.page import form_page, page
from web.saving import Overtaken, overtaken, save

MOST_SHOWN = 500
CHANGES_SHOWN = 10
NewCalendar = modelform_factory(SharedCalendar, form=CalendarForm, fields=("name", "description", "excluded"))
EditCalendar = modelform_factory(SharedCalendar, form=CalendarForm, fields=("description", "excluded"))
ABOUT = (
    "A calendar lists times at which schedules do not run, such as public holidays or a maintenance window. "
    "To use a calendar, add it to a schedule under “Except”."
)

operating.register(SharedCalendar, view_permission="schedules.view_sharedcalendar")


@page("schedules.view_sharedcalendar")
def calendars(request: HttpRequest) -> HttpResponse:
    is_open = ~Q(schedules__status="closed")
    rows = SharedCalendar.objects.annotate(users=Count("schedules", filter=is_open)).order_by(Lower("name"))
    text = search_text(request.GET.get("q", ""))
    if text:
        rows = rows.filter(Q(name__icontains=text) | Q(description__icontains=text))
    context = {"title": "Calendars", "about": ABOUT, "rows": rows[:MOST_SHOWN], "text": text}
    return render(request, "web/calendars.html", context)


@page("schedules.view_sharedcalendar")
def calendar(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(SharedCalendar, pk=pk)
    this_year = clock.now().year
    year = _year(request.GET.get("year", ""), this_year)
    dates = found.upcoming_dates(year)
    marked = [*dates, *found.matching_days(year)]
    context = {
        "title": found.name,
        "calendar": found,
        "rules": exclusions_to_text(found.excluded),
        "year": year,
        "years": range(max(this_year - 1, FIRST.year), min(this_year + 3, LAST.year) + 1),
        "dates": dates,
        "months": months(year, marked) if marked else [],
        "used_by": found.used_by() if request.user.has_perm("schedules.view_schedule") else None,
        "changes": records_of(found).order_by("-pk")[:CHANGES_SHOWN],
    }
    return render(request, "web/calendar.html", context)


@form_page("schedules.add_sharedcalendar")
def new(request: HttpRequest) -> HttpResponse:
    form = NewCalendar(request.POST or None)
    by, now = initiator_of(request), clock.now()
    made = save(form, lambda given: SharedCalendar.objects.define(**_fields(given), initiator=by, now=now))
    if made is None:
        return _form(request, form, title="New calendar")
    messages.success(
        request, f"Created the calendar “{made}”. To use it, add it under “Except” in a schedule."
    )
    return redirect(made)


@form_page("schedules.change_sharedcalendar")
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(SharedCalendar, pk=pk)
    form = EditCalendar(request.POST or None, instance=get_object_or_404(SharedCalendar, pk=pk))
    conflict = None
    try:
        saved = save(form, lambda given: _edit(request, found, given))
    except Conflict as other:
        saved, conflict = None, overtaken(form, found, other)
    if saved is None:
        return _form(request, form, title=f"Edit {found}", calendar=found, conflict=conflict)
    messages.success(request, f"Saved “{found}”.")
    return redirect(found)


def _edit(request: HttpRequest, found: SharedCalendar, given: dict[str, Any]) -> SharedCalendar:
    changes = {name: given[name] for name in SharedCalendar.EDITABLE}
    by, now = initiator_of(request), clock.now()
    found.edit(token=given["version"], changes=changes, initiator=by, now=now)
    return found


def _form(
    request: HttpRequest,
    form: Any,
    *,
    title: str,
    calendar: SharedCalendar | None = None,
    conflict: Overtaken | None = None,
) -> HttpResponse:
    can_see_users = request.user.has_perm("schedules.view_schedule")
    context = {
        "title": title,
        "about": ABOUT,
        "form": form,
        "target": calendar,
        "list": "web:calendars",
        "conflict": conflict,
        "used_by": calendar.used_by() if calendar and can_see_users else [],
    }
    return render(request, "web/calendar_form.html", context)


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("name", *SharedCalendar.EDITABLE)}


def _year(text: str, this_year: int) -> int:
    return whole_number(text, digits=4, least=FIRST.year, most=LAST.year) or this_year


class Day(NamedTuple):
    day: date
    mark: str | None
    """The name of a marked day, which can be empty; None for other days."""

    @property
    def is_marked(self) -> bool:
        return self.mark is not None

    @property
    def is_weekend(self) -> bool:
        return self.day.weekday() >= 5


class Month(NamedTuple):
    first: date
    weeks: list[list[Day | None]]


def months(year: int, marked: Sequence[tuple[date, str]]) -> list[Month]:
    """Return the months of a year; weeks begin on Monday, and days of other months are None."""
    marks: dict[date, str] = {}
    for day, name in marked:
        marks[day] = " · ".join(filter(None, (marks.get(day, ""), name)))
    return [_month(year, number, marks) for number in range(1, 13)]


def _month(year: int, number: int, marks: dict[date, str]) -> Month:
    weeks = Calendar().monthdayscalendar(year, number)
    return Month(
        date(year, number, 1),
        [[_day(date(year, number, day), marks) if day else None for day in week] for week in weeks],
    )


def _day(day: date, marks: dict[date, str]) -> Day:
    return Day(day, marks.get(day))
