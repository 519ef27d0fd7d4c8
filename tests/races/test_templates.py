"""A template and the schedules that use it, changed at the same time: nobody keeps what is out of date."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from schedules.models import Conflict, Schedule, TaskTemplate
from tests.base import NOW, SOMEBODY, fresh, make_schedule, make_template, step
from tests.races.meeting import Meeting

pytestmark = pytest.mark.django_db(transaction=True)
USE = {"name": "work", "index": 0, "template": "Export"}


def edit_template(template: TaskTemplate) -> None:
    current = fresh(template)
    current.edit(token=current.token, changes={"max_retries": 9}, initiator=SOMEBODY, now=NOW)


def edit_schedule(schedule: Schedule, *steps: Any) -> None:
    schedule.edit(token=schedule.token, changes={}, steps=steps, initiator=SOMEBODY, now=NOW)


def this(template: TaskTemplate) -> Any:
    return TaskTemplate.objects.filter(pk=template.pk)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_edit_and_a_schedule_that_begins_to_use_it(meet: Meeting, is_new: bool) -> None:
    template, schedule = make_template(), make_schedule()
    use = partial(make_schedule, USE) if is_new else partial(edit_schedule, schedule, USE)
    edited, used = meet(partial(edit_template, template), use, behind=this(template))
    assert edited is None
    assert not isinstance(used, Exception)
    assert template.steps.get().max_retries == 9


def test_an_edit_and_an_edit_of_a_schedule_that_uses_it(meet: Meeting) -> None:
    """Whoever is second finds the other's change, and the editor of the schedule is told of it."""
    template = make_template()
    schedule = make_schedule(USE)
    edited, changed = meet(
        partial(edit_template, template),
        partial(edit_schedule, schedule, USE, step("more", 1)),
        behind=this(template),
    )
    assert edited is None
    assert changed is None or isinstance(changed, Conflict)
    assert schedule.steps.get(name="work").max_retries == 9
    assert schedule.steps.count() == (2 if changed is None else 1)


def test_an_archive_and_a_schedule_that_begins_to_use_it(meet: Meeting) -> None:
    template = make_template()
    archived, made = meet(
        partial(fresh(template).archive, initiator=SOMEBODY, now=NOW),
        partial(make_schedule, USE),
        behind=this(template),
    )
    assert archived is None
    if isinstance(made, Exception):
        assert isinstance(made, ValidationError)
        assert "“Export” is archived: restore it first" in str(made)
    else:
        assert template.steps.get().schedule == made


def test_a_name_is_taken_once(meet: Meeting) -> None:
    schedule = Schedule.objects.filter(pk=make_schedule().pk)
    results = meet(make_template, make_template, behind=schedule)
    (refusal,) = [result for result in results if isinstance(result, Exception)]
    assert isinstance(refusal, ValidationError)
    assert "There is a template with this name already" in str(refusal)
