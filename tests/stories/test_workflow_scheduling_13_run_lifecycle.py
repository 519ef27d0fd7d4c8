"""Run lifecycle integration: what the scheduler does after each end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.signals import noticed
from execution.loops.scheduler import is_due, next_due, tick
from tests.base import NOW, SOMEBODY, fresh, seconds
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, work
from tests.workflows.scripted import Killed, Script, chain, die, last
from workflows import AuthRequired, Indeterminate, Internal, Transient
from workflows.models import Run

pytestmark = pytest.mark.django_db

# How it ends, when the scheduler looks at it again by itself, and whether people are told.
ENDS: list[tuple[str, str, Exception | None, float | None, bool]] = [
    ("committed", "", None, None, False),
    ("paused:transient", "prepare", Transient("rate limit"), 10, False),
    ("paused:approval", "prepare", AuthRequired("sign in again"), None, True),
    ("paused:reconciliation", "apply", Indeterminate("no answer"), None, True),
    ("failed:logic", "prepare", ValueError("bad input"), None, True),
    ("failed:internal", "prepare", Internal("connector broke"), None, True),
]


@pytest.fixture
def news() -> Iterator[list[Any]]:
    told: list[Any] = []

    def hear(sender: object, events: list[Any], **rest: object) -> None:
        told.extend(each for each in events if each.kind == "workflow.stuck")

    noticed.connect(hear)
    yield told
    noticed.disconnect(hear)


@pytest.mark.parametrize(
    ("status", "place", "trouble", "again", "is_told"), ENDS, ids=[row[0] for row in ENDS]
)
def test_the_table(
    status: str, place: str, trouble: Exception | None, again: float | None, is_told: bool, news: list[Any]
) -> None:
    with deployed(Script(**({place: [trouble]} if place else {})).workflow()) as workflow:
        publish("mail", "a")
        work()
        assert last().status == status
        assert fresh(workflow).due_at == (None if again is None else NOW + seconds(again))
        assert next_due(NOW) == (None if again is None else NOW + seconds(again))
        assert not is_due(NOW + seconds(9))
        assert [(each.data["workflow"], each.data["status"]) for each in news] == (
            [("inbox", status)] if is_told else []
        )


@pytest.mark.parametrize("place", ["prepare", "next"])
def test_during_backoff_triggers_accumulate_and_the_new_run_sees_to_them(place: str) -> None:
    script = Script(**{place: [Transient("rate limit")]})
    with deployed(script.workflow(reserving=10)):
        publish("mail", "a")
        work()
        publish("mail", "b", "c", now=NOW + seconds(5))
        assert work(now=NOW + seconds(5)) == []
        work(now=NOW + seconds(10))
        assert events("mail") == {"a": "consumed", "b": "consumed", "c": "consumed"}
        assert not Run.objects.open().exists()
        publish("mail", "d")
        assert work(now=NOW + seconds(10)) == ["Sort", "Sort"]


def test_after_three_crashes_in_a_row_people_are_told_once_to_have_a_look(news: list[Any]) -> None:
    with deployed(Script(prepare=[Killed(), Killed(), Killed()]).workflow()):
        publish("mail", "a")
        for minute in range(3):
            tick(minutes(minute))
            die(now=minutes(minute))
        work(now=minutes(3))
        assert [status for _, status in chain()] == ["crashed", "crashed", "failed:internal"]
        assert last().error == "worker lost: crash loop, 3 workers were lost"
        assert work(now=minutes(600)) == []
    assert [each.data["status"] for each in news] == ["failed:internal"]


def test_time_during_which_a_person_is_awaited_is_not_spent_on_looking() -> None:
    with deployed(Script(prepare=[AuthRequired("sign in again")]).workflow()):
        publish("mail", "a")
        work()
        publish("mail", "b", now=minutes(1))
        work(now=minutes(1))
        assert not is_due(minutes(24 * 60))
        last().approve("", initiator=SOMEBODY, now=minutes(30))
        assert is_due(minutes(30))
