"""What people see of workflows: their status, what they wait for, what waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.base import NOW, SOMEBODY, fresh, seconds
from tests.workflows.base import publish, work
from tests.workflows.orders import backing_off, meets, orders, stuck
from workflows import AuthRequired, Transient, overview
from workflows.models import Handler, Run, Workflow
from workflows.models import event as of_events
from workflows.overview import overviews_of
from workflows.words import SHOWN_STATUSES, shown_status

pytestmark = pytest.mark.django_db


def seen(workflow: Workflow) -> Any:
    return overviews_of([fresh(workflow)], now=NOW)[0]


def begin() -> None:
    publish("orders", "o0")
    Workflow.objects.get().start(NOW)


def wait_for_somebody() -> None:
    stuck(AuthRequired("sign in to the carrier"), message_id="o2")


def pause() -> None:
    Workflow.objects.get().pause("holidays", initiator=SOMEBODY, now=NOW)


def test_status_and_issue_and_who_is_found_by_it() -> None:
    with orders() as workflow:
        happens: list[tuple[Callable[[], Any], str, str]] = [
            (lambda: None, "idle", ""),
            (begin, "running", ""),
            (work, "idle", ""),
            (backing_off, "running", "The carrier is closed. Retries in 10 s."),
            (lambda: work(now=NOW + seconds(10)), "idle", ""),
            (wait_for_somebody, "needs_attention", "Sign in to the carrier. An operator must"),
            (pause, "paused", "Paused by an operator. holidays"),
        ]
        for happen, status, issue in happens:
            happen()
            found = seen(workflow)
            told = (found.status, found.issue.startswith(issue), bool(found.issue))
            assert told == (status, True, bool(issue))
            assert shown_status(fresh(workflow), Run.objects.open().first()) == status
            for each in SHOWN_STATUSES:
                assert Workflow.objects.shown_as(each).exists() is (each == status)


def test_when_it_goes_on_by_itself() -> None:
    with orders() as workflow:
        assert seen(workflow).next_at == NOW + seconds(300)
        Handler.objects.filter(name="Ship").update(wake_at=NOW + seconds(60))
        assert seen(workflow).next_at == NOW + seconds(60)
        assert seen(workflow).schedule == "Every 5 minutes"
        backing_off()
        assert seen(workflow).next_at == NOW + seconds(10)
        pause()
        assert seen(workflow).next_at is None


def test_what_waits_is_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with orders() as workflow:
        pause()
        publish("orders", "o1", "o2", "o3", now=NOW - seconds(60))
        publish("orders", "o4")
        assert seen(workflow).pending == (4, False)
        [backlog] = seen(workflow).backlogs
        assert (backlog.topic, backlog.oldest_at) == ("orders", NOW - seconds(60))
        monkeypatch.setattr(of_events, "MOST_COUNTED", 3)
        monkeypatch.setattr(overview, "MOST_COUNTED", 3)
        assert seen(workflow).pending == (3, True)


def test_the_chain_of_attempts_is_found_from_each_of_them(django_assert_num_queries: Any) -> None:
    with orders():
        backing_off()
        meets.append(Transient("still closed"))
        work(now=NOW + seconds(10))
        work(now=NOW + seconds(60))
        chain = list(Run.objects.filter(handler__name="Ship").exclude(status="committed").order_by("pk"))
        chain += Run.objects.filter(retry_of=chain[-1])
        assert len(chain) == 3
        for run in chain:
            with django_assert_num_queries(2):
                assert run.chain() == chain
        others = Run.objects.exclude(pk__in=[run.pk for run in chain])
        assert all(run.chain() == [run] for run in others)
        assert others
