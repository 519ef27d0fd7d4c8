"""Events, the schedules that they start, and whoever changes those, at the same time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from execution.loops.scheduler import tick
from schedules.models import Schedule
from tests.base import NOW, SOMEBODY, fresh, make_schedule
from tests.races.meeting import Meeting, at_once
from tests.workflows.base import events, make_topics, publish
from tests.workflows.test_publish_step import publishing
from workflows.models import EventTrigger, Topic

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def topics() -> None:
    make_topics("orders", "mail")


def edit(schedule: Schedule, **changes: Any) -> None:
    current = fresh(schedule)
    current.edit(token=current.token, initiator=SOMEBODY, now=NOW, changes=changes)


def settle(schedule: Schedule) -> None:
    EventTrigger.objects.settle(schedule.pk, now=NOW)


def starts(schedule: Schedule) -> list[str]:
    names = schedule.occurrences.order_by("pk").values_list("initiator_name", flat=True)
    return sorted(name.removeprefix("orders: ") for name in names)


def test_a_publication_and_a_look(meet: Meeting) -> None:
    """Whoever comes second sees the other's: no event is left lying, and none starts it twice."""
    schedule = make_schedule(topics=["orders"], overlap="allow_all")
    names = []
    for number in meet.rounds:
        publish("orders", f"a{number}")
        # The same event once more, which a look may be about to consume, and a new one.
        again = partial(publish, "orders", f"a{number}", f"b{number}")
        found = meet(again, partial(settle, schedule), behind=Topic.objects.filter(slug="orders"))
        assert not any(isinstance(each, Exception) for each in found), found
        names += [f"a{number}", f"b{number}"]
    tick(NOW)
    assert starts(schedule) == sorted(names)
    assert set(events("orders").values()) == {"consumed"}


def test_many_publishers_and_many_looks() -> None:
    schedule = make_schedule(topics=["orders"], overlap="allow_all")
    publishers = [partial(publish, "orders", *(f"{n}-{m}" for m in range(20))) for n in range(4)]
    found = at_once(*publishers, *[partial(settle, schedule)] * 3, partial(tick, NOW))
    assert not any(isinstance(each, Exception) for each in found), found
    tick(NOW)
    assert starts(schedule) == sorted(f"{n}-{m}" for n in range(4) for m in range(20))


def test_a_publication_and_an_edit_that_adds_or_removes_the_topic(meet: Meeting) -> None:
    schedule = make_schedule(topics=["mail"], overlap="allow_all")
    for number in meet.rounds:
        wanted = ["mail", "orders"] if number % 2 == 0 else ["mail"]
        found = meet(
            partial(publish, "orders", f"a{number}"),
            partial(edit, schedule, topics=wanted),
            behind=Topic.objects.filter(slug="orders"),
        )
        assert not any(isinstance(each, Exception) for each in found), found
        tick(NOW)
    assert len(starts(schedule)) <= len(meet.rounds)
    assert sorted(EventTrigger.objects.values_list("topic__slug", flat=True)) == wanted


def test_two_edits_that_would_close_a_circle_together(meet: Meeting) -> None:
    one, other = make_schedule(publishing(topic="mail")), make_schedule(publishing(topic="orders"))
    found = meet(
        partial(edit, one, topics=["orders"]),
        partial(edit, other, topics=["mail"]),
        behind=Topic.objects.order_by("pk")[:1],
    )
    refused = [each for each in found if isinstance(each, ValidationError)]
    assert len(refused) == 1
    assert "The schedule would start itself" in str(refused[0])
    assert EventTrigger.objects.count() == 1
