"""A calendar and the schedules that use it, changed at the same time: nobody keeps what is out of date."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from schedules.models import Conflict, Refused, Schedule, SharedCalendar
from tests.base import NOW, SOMEBODY, fresh, make_schedule
from tests.races.meeting import Meeting

pytestmark = pytest.mark.django_db(transaction=True)
MONDAY, TUESDAY = {"dates": "2026-11-16"}, {"dates": "2026-11-17"}
HOURLY = {"cron": ["0 * * * *"]}
HOURLY_BUT = HOURLY | {"exclude": [{"calendar": "days off"}]}


@pytest.fixture
def calendar() -> SharedCalendar:
    return define()


def define() -> SharedCalendar:
    return SharedCalendar.objects.define("days off", [MONDAY], initiator=SOMEBODY, now=NOW)


def edit_calendar(calendar: SharedCalendar) -> None:
    fresh(calendar).edit(
        token=fresh(calendar).token, changes={"excluded": [TUESDAY]}, initiator=SOMEBODY, now=NOW
    )


def remove(calendar: SharedCalendar) -> None:
    fresh(calendar).remove(initiator=SOMEBODY, now=NOW)


def edit_schedule(schedule: Schedule, **changes: Any) -> None:
    schedule.edit(token=schedule.token, changes=changes, initiator=SOMEBODY, now=NOW)


def this(calendar: SharedCalendar) -> Any:
    return SharedCalendar.objects.filter(pk=calendar.pk)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_edit_and_a_schedule_that_begins_to_use_it(
    meet: Meeting, calendar: SharedCalendar, is_new: bool
) -> None:
    schedule = make_schedule(spec=HOURLY)
    use = (
        partial(make_schedule, spec=HOURLY_BUT)
        if is_new
        else partial(edit_schedule, schedule, spec=HOURLY_BUT)
    )
    edited, used = meet(partial(edit_calendar, calendar), use, behind=this(calendar))
    assert edited is None
    assert not isinstance(used, Exception)
    (user,) = calendar.used_by()
    assert user.calendars == {"days off": [TUESDAY]}


def test_an_edit_and_an_edit_of_a_schedule_that_uses_it(meet: Meeting, calendar: SharedCalendar) -> None:
    """Whoever is second finds the other's change, and the editor of the schedule is told of it."""
    schedule = make_schedule(spec=HOURLY_BUT)
    edited, described = meet(
        partial(edit_calendar, calendar),
        partial(edit_schedule, schedule, description="by hand", spec=HOURLY_BUT),
        behind=this(calendar),
    )
    assert edited is None
    assert described is None or isinstance(described, Conflict)
    assert fresh(schedule).calendars == {"days off": [TUESDAY]}
    assert fresh(schedule).description == ("by hand" if described is None else "")


def test_a_removal_and_a_schedule_that_begins_to_use_it(meet: Meeting, calendar: SharedCalendar) -> None:
    removed, made = meet(
        partial(remove, calendar), partial(make_schedule, spec=HOURLY_BUT), behind=this(calendar)
    )
    if removed is None:
        assert isinstance(made, ValidationError)
        assert "there is no calendar 'days off'" in str(made)
    else:
        assert isinstance(removed, Refused)
        assert calendar.used_by() == [made]


def test_a_name_is_taken_once(meet: Meeting, calendar: SharedCalendar) -> None:
    schedule = Schedule.objects.filter(pk=make_schedule().pk)
    remove(calendar)
    results = meet(define, define, behind=schedule)
    (refusal,) = [result for result in results if isinstance(result, Exception)]
    assert isinstance(refusal, ValidationError)
    assert "There is a calendar with this name already" in str(refusal)
