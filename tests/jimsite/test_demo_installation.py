"""What is made up for photographs and measurements is what JIM itself might have written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from activities.models import Activity
from execution.models import Execution
from tests.base import NOW, fresh, make_schedule, step, step_statuses
from tests.browser.pages import addresses, admin_addresses
from tests.installation import installation
from tests.installation.history import Habits, write_history
from tests.invariants import violations

pytestmark = pytest.mark.django_db
SINCE = NOW - timedelta(days=15)
# A list costs the same whatever its length; the page of a row may have a few parts of its own.
MOST_QUERIES = 25


def test_a_history_that_never_was_keeps_every_promise() -> None:
    plan = [step("a", 0), step("b", 1), step("c", 1), step("d", 2, run_if="failure")]
    plan.append(step("e", 3, run_if="always"))
    steps = [each | {"max_retries": 2} for each in plan]
    schedule = make_schedule(*steps, name="Report", spec={"cron": ["0 */3 * * *"]}, now=SINCE)
    habits = Habits(fails=0.2, skips=0, misses=0, cancels=0)
    assert write_history({schedule: habits}, since=SINCE, until=NOW, most=1_000) > 100
    assert violations() == []
    beside = {"b": {"failed_with_error"}, "c": {"complete"}}
    assert any(
        beside == {name: set(own[-1:]) for name, own in step_statuses(each).items() if name in beside}
        for each in Execution.objects.all()
    )
    assert set(Execution.objects.values_list("status", flat=True)) == {"completed", "failed"}


def test_it_is_the_same_each_time() -> None:
    outcomes = []
    for name in ("One", "Other"):
        schedule = make_schedule(name=name, spec={"cron": ["0 * * * *"]}, now=SINCE)
        write_history({schedule: Habits(fails=0.3)}, since=SINCE, until=NOW, most=60)
        outcomes.append(fresh(schedule).recent_outcomes)
    assert outcomes[0] == outcomes[1]


def test_there_is_one_of_everything_and_no_page_of_the_admin_asks_too_often(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    owner = User.objects.create_superuser("ada")
    installation.create(now=NOW, days=2, owner=owner)
    assert Activity.objects.filter(status="in_progress").exists()
    assert None not in installation.examples().values()
    assert len({each.name for each in addresses()}) > 20
    client.force_login(owner)
    found = {each.name: each.url for each in admin_addresses()}
    assert len([name for name in found if name.endswith("-change")]) >= len(admin.site._registry) - 3
    for url in found.values():
        with django_assert_max_num_queries(MOST_QUERIES):
            assert client.get(url).status_code == 200
