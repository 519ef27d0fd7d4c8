"""The same request with the same key, sent twice at once: it is carried out once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from execution.models import Execution
from jimsite.roles import give_permissions
from schedules.models import Schedule
from tests.api.calling import Caller
from tests.base import make_schedule
from tests.races.meeting import Meeting, at_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(transactional_db: None) -> Caller:
    """A test before may have emptied the tables, with what the migrations had put into them."""
    give_permissions()
    return Caller("Administrator")


def run(api: Caller, schedule: Schedule, key: str, **body: Any) -> Any:
    return api.post(f"schedules/{schedule.pk}/run", body, idempotency_key=key)


def test_two_that_are_the_same(api: Caller, meet: Meeting) -> None:
    for number in meet.rounds:
        schedule = make_schedule(overlap="allow_all")
        call = partial(run, api, schedule, f"key {number}")
        answers = meet(call, call, behind=Schedule.objects.filter(pk=schedule.pk))
        codes = sorted(answer.status_code for answer in answers)
        assert codes in ([202, 202], [202, 409])
        assert Execution.objects.filter(schedule=schedule).count() == 1
        for late in (answer for answer in answers if answer.status_code == 409):
            assert late["Retry-After"] == "1"
        again = call()
        assert (again.status_code, again["Idempotent-Replayed"]) == (202, "true")


def test_two_with_the_same_key_for_different_things(api: Caller) -> None:
    schedule = make_schedule(overlap="allow_all")
    answers = at_once(
        partial(run, api, schedule, "a"), partial(run, api, schedule, "a", at="2026-11-01T00:00:00Z")
    )
    assert sorted(answer.status_code for answer in answers) == [202, 409]
    assert Execution.objects.count() == 1
