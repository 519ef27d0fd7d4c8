"""The wakeAt hint: what a consumer may ask for, and what the host grants."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import pytest

from activities.models import OutputLine
from execution.loops.scheduler import next_due
from tests.base import NOW, seconds
from tests.timeline import minutes
from tests.workflows.base import begin, deployed, publish, work
from workflows import Consumer, Prepared, Workflow
from workflows.contexts import PrepareContext
from workflows.models import Handler, Run

pytestmark = pytest.mark.django_db


def asking(wish: object, *, reserves: bool = False) -> type[Workflow]:
    """A consumer that asks for this each time, with or without reservations."""

    class Ask(Consumer):
        subscribe = ["mail"]

        def prepare(self, ctx: PrepareContext) -> Prepared:
            found = ctx.peek("mail") if reserves else []
            return Prepared(reserve=found, wake_at=wish(ctx.now) if callable(wish) else wish)  # type: ignore[arg-type]

    body = {"slug": "inbox", "title": "Inbox", "topics": {"mail": ""}, "consumers": [Ask]}
    return type("Inbox", (Workflow,), body)


def granted() -> datetime | None:
    return Handler.objects.get().wake_at


class TestSemantics:
    @pytest.mark.parametrize("reserves", [False, True], ids=["empty", "non-empty"])
    def test_it_is_recorded_whether_reservations_are_empty_or_not(self, reserves: bool) -> None:
        with deployed(asking("2026-11-16T04:00:00Z", reserves=reserves)):
            publish("mail", "m1")
            work()
            assert granted() == next_due(NOW) == minutes(60)
        told = {(run.prepare_result or {})["wake_at"] for run in Run.objects.all()}
        assert told == {"2026-11-16T04:00:00Z"}

    def test_it_wakes_at_the_time_or_on_a_new_event_whichever_comes_first(self) -> None:
        with deployed(asking(lambda now: now + timedelta(hours=1))):
            work()
            publish("mail", "m1", now=minutes(20))
            assert work(now=minutes(20)) == ["Ask"]
            assert work(now=minutes(60)) == []
            assert work(now=minutes(80)) == ["Ask"]

    def test_it_does_not_outlast_the_next_run(self) -> None:
        wishes = [minutes(60), None]
        with deployed(asking(lambda now: wishes.pop(0))):
            work()
            publish("mail", "m1")
            work()
            assert granted() is None

    def test_it_changes_at_commit_only(self) -> None:
        with deployed(asking(minutes(60))) as workflow:
            work()
            publish("mail", "m1")
            begun = begin(workflow, minutes(1))
            begun.crash("worker lost", now=minutes(1))
            assert granted() == minutes(60)


@pytest.mark.parametrize(
    ("wish", "after", "notice"),
    [
        (NOW + timedelta(hours=1), timedelta(hours=1), ""),
        ("2024-01-15T09:00:00Z", seconds(30), "too soon"),
        ("tomorrow", None, "must be a datetime with a time zone"),
    ],
)
def test_host_enforced_constraints(
    wish: object, after: timedelta | None, notice: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them: in tests/workflows/test_waking.py."""
    with caplog.at_level(logging.WARNING, "workflows.performing"), deployed(asking(wish)):
        work()
    assert granted() == (None if after is None else NOW + after)
    assert Run.objects.get().status == "committed"
    said = " ".join(OutputLine.objects.values_list("text", flat=True))
    assert (notice in said and notice in caplog.text) if notice else (not said and not caplog.text)


def test_the_limits_are_the_hosts_policy(settings: Any) -> None:
    settings.JIM_WAKE_LEAST_SECONDS, settings.JIM_WAKE_MOST_SECONDS = 5, 60
    with deployed(asking(lambda now: now + seconds(1))):
        work()
        assert granted() == NOW + seconds(5)
    Handler.objects.all().delete()
    with deployed(asking(lambda now: now + timedelta(hours=1))):
        work()
        assert granted() == NOW + seconds(60)
