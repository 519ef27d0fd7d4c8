"""One bad schedule, step or row never stops the others: three bad schedules among ten good ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from activities.models import Activity
from database import clock
from execution.models import Execution, WorkerTask
from schedules.models import Schedule
from tests.base import attempts, fates, fresh, make_schedule, step
from tests.loops import running_scheduler, running_worker
from tests.refusing import database_that_refuses
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.live]


def last_outcomes(schedules: list[Schedule]) -> list[str]:
    rows = Schedule.objects.filter(pk__in=[schedule.pk for schedule in schedules])
    return list(rows.values_list("last_outcome", flat=True))


def test_three_bad_schedules_are_shown_as_such_while_the_others_run() -> None:
    """All of them are due before anybody looks."""
    now = clock.now() - timedelta(minutes=1)
    spec = {"at": [(now + timedelta(seconds=2)).isoformat()]}
    good = [make_schedule(step("a"), step("b", 1), spec=spec, now=now) for _ in range(5)]
    broken = make_schedule(spec=spec, now=now)
    Schedule.objects.filter(pk=broken.pk).update(spec={"cron": ["every now and then"]})
    lost = step("lost", 0, "no_such_function", max_retries=3)
    unknown = make_schedule(lost, step("next", 1), spec=spec, now=now)
    refused = make_schedule(step("poison", 0, "result", kwargs={"value": "poison"}), spec=spec, now=now)
    good += [make_schedule(step("a"), step("b", 1), spec=spec, now=now) for _ in range(5)]

    with database_that_refuses(), running_scheduler(), running_worker():
        wait_until(lambda: last_outcomes(good) == ["completed"] * 10)
        wait_until(lambda: last_outcomes([unknown, refused]) == ["failed", "failed"])

    assert "every now and then" in fresh(broken).spec_error
    assert fresh(broken).spec_in_words.startswith("Invalid spec: cron: expected 5 fields")
    assert fates(broken) == []

    (activity,) = attempts(Execution.objects.get(schedule=unknown), "lost")
    assert "cannot import 'tests.work.no_such_function'" in activity.error

    bad = Execution.objects.get(schedule=refused)
    assert "The database refused the outcome: this row is refused" in bad.error
    assert attempts(bad, "poison")[0].result is None

    assert not WorkerTask.objects.exists()
    assert not Activity.objects.open().exists()
    assert Execution.objects.filter(status="completed").count() == 10
