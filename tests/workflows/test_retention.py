"""What is old goes; what is open, and what leads to it, stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from execution.loops import housekeeping
from tests.base import NOW, SOMEBODY
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, work
from tests.workflows.scripted import Script, last
from workflows import AuthRequired, Transient
from workflows.models import Event, Run
from workflows.scheduling import prune_events, prune_runs

pytestmark = pytest.mark.django_db
DAYS_90 = NOW + timedelta(days=90, seconds=1)


def prune(now: Any) -> tuple[int, int]:
    """(events, runs)"""
    return prune_events(now), prune_runs(now)


def test_after_90_days_or_another_setting_events_and_then_their_runs_are_gone(settings: Any) -> None:
    with deployed(Script().workflow()):
        publish("mail", "a")
        work()
        assert prune(NOW + timedelta(days=90)) == (0, 0)
        settings.JIM_RETENTION_DAYS = 91
        assert prune(DAYS_90) == (0, 0)
        settings.JIM_RETENTION_DAYS = 90
        assert prune(DAYS_90) == (1, 2)
        assert not Run.objects.exists()
        assert events("rows") == {"a": "pending"}
        assert Event.objects.get().created_by is None
    assert {"runs", "events"} <= {duty.name for duty in housekeeping.duties}


def test_what_is_open_is_never_pruned_with_the_attempts_before_it() -> None:
    with deployed(Script(prepare=[Transient("?")], mutate=[AuthRequired("?")]).workflow()):
        publish("mail", "a", "b")
        work()
        work(now=minutes(1))
        assert prune(NOW + timedelta(days=1_000)) == (0, 0)
        assert events("mail") == {"a": "reserved", "b": "pending"}
        assert [run.status for run in last().chain()] == ["paused:transient", "paused:approval"]


def test_a_chain_goes_from_its_end() -> None:
    with deployed(Script(prepare=[Transient("?")]).workflow()):
        publish("mail", "a")
        work()
        work(now=minutes(1))
        late = NOW + timedelta(days=1_000)
        prune_events(late)
        counts = [prune_runs(late) for _ in range(3)]
        assert (sum(counts), counts[-1]) == (3, 0)


def test_a_run_whose_events_are_kept_is_kept() -> None:
    """So that an event can always say who consumed it."""
    with deployed(Script().workflow()):
        publish("mail", "a")
        work()
        Event.objects.filter(topic__slug="mail").update(settled_at=DAYS_90)
        assert prune(DAYS_90) == (0, 1)
        assert Event.objects.get(topic__slug="mail").reserved_by is not None


def test_skipped_events_go_too_and_then_their_id_may_be_used_again() -> None:
    with deployed(Script().workflow()):
        publish("mail", "a")
        Event.objects.get().skip("", initiator=SOMEBODY, now=NOW)
        work()
        prune(DAYS_90)
        assert publish("mail", "a", now=DAYS_90).new == 1
        work(now=DAYS_90)
        assert events("mail") == {"a": "consumed"}


def test_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.scheduling.BATCH", 2)
    with deployed(Script().workflow(reserving=5)):
        publish("mail", *"abcde")
        work()
        assert [prune_events(DAYS_90) for _ in range(4)] == [2, 2, 1, 0]
