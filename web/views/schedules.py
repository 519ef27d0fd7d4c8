"""The list of schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from database import clock
from execution import history
from operations.operation import offered_for
from schedules.description import state_of
from schedules.models import Schedule
from schedules.selection import ORDERS, STATES, select, tags_in_use
from text.clean import search_text
from text.numbers import whole_number
from web import charts, operating
from web.keyset import address
from web.page import fragment, page, version_of

from .schedule import execution_url

ROWS = 50
MOST_PAGES = 1_000
MOST_TAGS = 200
BULK = ("run", "pause", "resume", "skip")
VIEW = "schedules.view_schedule"


operating.register(Schedule, view_permission=VIEW)


class ScheduleFilters(NamedTuple):
    """The filters, order and page in the address; invalid values are ignored."""

    state: str
    text: str
    tag: str
    order: str
    page: int

    @classmethod
    def read(cls, query: QueryDict) -> ScheduleFilters:
        state, order = query.get("state", ""), query.get("sort", "")
        page = whole_number(query.get("page", ""), digits=8)
        return cls(
            state if state in STATES else "",
            search_text(query.get("q", "")),
            search_text(query.get("tag", "")),
            order if order in ORDERS else "name",
            1 if page is None else min(page, MOST_PAGES),
        )

    @property
    def is_narrowed(self) -> bool:
        return bool(self.state or self.text or self.tag)


@dataclass(frozen=True)
class Row:
    schedule: Schedule
    state: str
    sentence: str
    bars: SafeString
    latest: str
    """The state of the schedule's newest execution."""
    is_overdue: bool

    @property
    def failures(self) -> str:
        """Return a warning if the last run or runs failed, otherwise an empty string."""
        count = self.schedule.failures_in_a_row
        return f"{count} failures in a row" if count > 1 else "last run failed" if count else ""


@page(VIEW)
def schedules(request: HttpRequest) -> HttpResponse:
    asked = ScheduleFilters.read(request.GET)
    shown = _list_context(request, asked, clock.now())
    context = {
        "title": "Schedules",
        "asked": asked,
        "states": [state for state in STATES if state],
        "orders": list(ORDERS),
        "tags": tags_in_use(most=MOST_TAGS),
        "bulk": [each for each in offered_for(Schedule) if each.name in BULK and each.is_allowed(request)],
        **shown,
    }
    return render(request, "web/schedules/list.html", context)


@page(VIEW)
def schedules_part(request: HttpRequest) -> HttpResponse:
    """Return the rows of the list for a page that polls, or status 204 if the rows have not changed."""
    asked, now = ScheduleFilters.read(request.GET), clock.now()
    found = _find_schedules(asked, now)
    if request.GET.get("version") == _version(found, now):
        return HttpResponse(status=204)
    shown = _list_context(request, asked, now, found=found)
    return fragment(request, "web/schedules/_rows.html", shown, version=shown["version"])


def _list_context(
    request: HttpRequest, asked: ScheduleFilters, now: datetime, *, found: list[Schedule] | None = None
) -> dict[str, Any]:
    found = _find_schedules(asked, now) if found is None else found
    return {
        "rows": _rows(found[:ROWS], now),
        "asked": asked,
        "version": _version(found, now),
        "here": _address(request, asked.page),
        "previous": _address(request, asked.page - 1) if asked.page > 1 else "",
        "next": _address(request, asked.page + 1) if len(found) > ROWS else "",
    }


def _address(request: HttpRequest, number: int) -> str:
    """Return the address of a page of the whole list, even if the request is only for the rows."""
    _, _, query = address(request, page=number if number > 1 else "", version="").partition("?")
    return f"{reverse('web:schedules')}?{query}" if query else reverse("web:schedules")


def _find_schedules(asked: ScheduleFilters, now: datetime) -> list[Schedule]:
    """Return the schedules of a page, and one more if another page follows."""
    rows = select(state=asked.state, text=asked.text, tag=asked.tag, order=asked.order, now=now)
    start = (max(asked.page, 1) - 1) * ROWS
    return list(rows.defer("last_result", "memo", "skipped_reasons")[start : start + ROWS + 1])


def _rows(found: list[Schedule], now: datetime) -> list[Row]:
    ran = history.recent([schedule.pk for schedule in found], count=charts.BARS)
    url = execution_url()
    return [
        Row(
            schedule,
            state_of(schedule),
            schedule.spec_in_words,
            charts.bars(ran.get(schedule.pk, []), url=url),
            ran[schedule.pk][0].state if schedule.pk in ran else schedule.last_outcome,
            schedule.is_overdue(now),
        )
        for schedule in found
    ]


def _version(found: list[Schedule], now: datetime) -> str:
    """Return the version of the rows: it changes if an execution starts or ends, or a schedule is edited."""
    return version_of(
        [
            (
                *(each.pk, each.token, each.next_run_at, each.last_run_at, each.last_outcome),
                *(each.started_count, each.recent_outcomes, each.is_overdue(now)),
            )
            for each in found
        ]
    )
