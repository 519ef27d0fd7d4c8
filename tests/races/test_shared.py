"""A calendar or a template and the schedules that use it, changed at the same time: nobody keeps what is out
of date."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from schedules.models import Conflict, Refused, Schedule, SharedCalendar, TaskTemplate
from tests.base import NOW, SOMEBODY, fresh, make_schedule, make_template, step
from tests.races.meeting import Meeting

pytestmark = pytest.mark.django_db(transaction=True)
MONDAY, TUESDAY = {"dates": "2026-11-16"}, {"dates": "2026-11-17"}
HOURLY_BUT = {"cron": ["0 * * * *"], "exclude": [{"calendar": "days off"}]}
USE = {"name": "work", "index": 0, "template": "Export"}


def edit(schedule: Schedule, *, steps: Any = None, **changes: Any) -> None:
    schedule.edit(token=schedule.token, changes=changes, steps=steps, initiator=SOMEBODY, now=NOW)


class Calendar:
    """What is shared, how it is used, and whether a schedule has its newest version."""

    def make(self) -> SharedCalendar:
        return SharedCalendar.objects.define("days off", [MONDAY], initiator=SOMEBODY, now=NOW)

    changes = {"excluded": [TUESDAY]}
    use = staticmethod(partial(make_schedule, spec=HOURLY_BUT))
    begin_to_use = staticmethod(partial(edit, spec=HOURLY_BUT))
    edit_what_uses_it = staticmethod(partial(edit, spec=HOURLY_BUT, description="by hand"))

    def is_newest(self, schedule: Schedule) -> bool:
        return bool(schedule.calendars == {"days off": [TUESDAY]})

    def is_edited(self, schedule: Schedule) -> bool:
        return schedule.description == "by hand"

    taken = "A calendar with this name already exists"


class Template:
    def make(self) -> TaskTemplate:
        return make_template()

    changes = {"max_retries": 9}
    use = staticmethod(partial(make_schedule, USE))
    begin_to_use = staticmethod(partial(edit, steps=[USE]))
    edit_what_uses_it = staticmethod(partial(edit, steps=[USE, step("more", 1)]))

    def is_newest(self, schedule: Schedule) -> bool:
        return schedule.steps.get(name="work").max_retries == 9

    def is_edited(self, schedule: Schedule) -> bool:
        return schedule.steps.count() == 2

    taken = "A template with this name already exists"


@pytest.fixture(params=[Calendar(), Template()], ids=["calendar", "template"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def edit_shared(shared: Any, kind: Any) -> None:
    current = fresh(shared)
    current.edit(token=current.token, changes=kind.changes, initiator=SOMEBODY, now=NOW)


def this(shared: Any) -> Any:
    return type(shared)._default_manager.filter(pk=shared.pk)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_edit_and_a_schedule_that_begins_to_use_it(meet: Meeting, kind: Any, is_new: bool) -> None:
    shared, schedule = kind.make(), make_schedule(spec={"cron": ["0 * * * *"]})
    use = kind.use if is_new else partial(kind.begin_to_use, schedule)
    edited, used = meet(partial(edit_shared, shared, kind), use, behind=this(shared))
    assert edited is None
    assert not isinstance(used, Exception)
    (user,) = shared.used_by()
    assert kind.is_newest(user)


def test_an_edit_and_an_edit_of_a_schedule_that_uses_it(meet: Meeting, kind: Any) -> None:
    """Whoever is second finds the other's change, and the editor of the schedule is told of it."""
    shared, schedule = kind.make(), kind.use()
    edited, changed = meet(
        partial(edit_shared, shared, kind), partial(kind.edit_what_uses_it, schedule), behind=this(shared)
    )
    assert edited is None
    assert changed is None or isinstance(changed, Conflict)
    assert kind.is_newest(fresh(schedule))
    assert kind.is_edited(fresh(schedule)) is (changed is None)


def test_a_name_is_taken_once(meet: Meeting, kind: Any) -> None:
    results = meet(kind.make, kind.make, behind=Schedule.objects.filter(pk=make_schedule().pk))
    (refusal,) = [result for result in results if isinstance(result, Exception)]
    assert isinstance(refusal, ValidationError)
    assert kind.taken in str(refusal)


def test_the_removal_of_a_calendar_and_a_schedule_that_begins_to_use_it(meet: Meeting) -> None:
    calendar = Calendar().make()
    removed, made = meet(
        partial(fresh(calendar).remove, initiator=SOMEBODY, now=NOW), Calendar.use, behind=this(calendar)
    )
    if removed is None:
        assert isinstance(made, ValidationError)
        assert "unknown calendar 'days off'" in str(made)
    else:
        assert isinstance(removed, Refused)
        assert calendar.used_by() == [made]


def test_the_archive_of_a_template_and_a_schedule_that_begins_to_use_it(meet: Meeting) -> None:
    template = make_template()
    archived, made = meet(
        partial(fresh(template).archive, initiator=SOMEBODY, now=NOW), Template.use, behind=this(template)
    )
    assert archived is None
    if isinstance(made, Exception):
        assert isinstance(made, ValidationError)
        assert "“Export” is archived: restore it first" in str(made)
    else:
        assert template.steps.get().schedule == made
