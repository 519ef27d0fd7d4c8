"""Manual trigger: a request goes through the same ledger as any other time, and is answered at once."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from execution.loops.manual_runs import Overlapping, trigger
from execution.loops.scheduler import tick
from execution.models import Execution
from schedules.models import Occurrence, Refused, Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    everything,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
)
from tests.timeline import Timeline, counters, ledger, minutes

pytestmark = pytest.mark.django_db
EVERY_FIVE = {"every": ["5m"]}


class TestImmediately:
    def test_it_is_recorded_as_an_occurrence_and_starts_without_a_scheduler(self) -> None:
        """It moves neither the times nor the token; the automatic time that meets it is skipped."""
        schedule = make_schedule(spec=EVERY_FIVE)
        occurrence = run(schedule, at=2)
        asked = occurrence.source, occurrence.status, occurrence.nominal_at, occurrence.initiator
        assert asked == ("manual", "started", minutes(2), SOMEBODY)
        after = fresh(schedule)
        assert (after.processed_until, after.next_run_at, after.token) == (NOW, minutes(5), 1)
        assert (after.started_count, after.last_run_at) == (1, minutes(2))
        tick(minutes(5))
        assert ledger(schedule, source="manual") == {2: "started 2"}
        assert ledger(schedule) == {5: "skipped: overlap"}

    def test_it_never_comes_too_late_and_uses_up_no_run(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=0, remaining=0)
        assert run(schedule, at=10_000, scheduled=NOW).status == "started"
        assert fresh(schedule).remaining == 0

    def test_with_a_scheduled_time_of_its_own_its_steps_work_for_that_time(self) -> None:
        """It does not stand in for the automatic time."""
        schedule = make_schedule(spec=EVERY_FIVE)
        occurrence = run(schedule, at=2, scheduled=minutes(5))
        assert (occurrence.nominal_at, occurrence.created_at) == (minutes(5), minutes(2))
        worker = make_worker()
        (task,) = claim(worker, now=minutes(2))
        assert task.work.nominal_at == minutes(5).isoformat()
        end(worker, task, now=minutes(3))
        tick(minutes(5))
        assert ledger(schedule, source="manual") == {5: "started 2, completed 3"}
        assert ledger(schedule) == {5: "started 5"}


class TestOverlap:
    def test_skip_refuses_it_and_names_the_execution_in_the_way(self) -> None:
        """Its key stays free."""
        schedule = make_schedule()
        blocker = execution_of(run(schedule))
        before = everything()
        with pytest.raises(Overlapping, match=f"Execution {blocker.pk} is still running") as refused:
            run(schedule, at=1, key="order 7")
        assert refused.value.blocked_by == blocker.pk
        assert everything() == before
        run_until_idle(now=minutes(2))
        assert run(schedule, at=3, key="order 7").status == "started"

    @pytest.mark.parametrize("overlap", ["buffer_one", "buffer_all"])
    def test_buffered_ones_wait_for_their_turn_and_all_get_one(self, overlap: str) -> None:
        """Also while the schedule is paused."""
        schedule = make_schedule()
        timeline = Timeline([10])
        blocker = execution_of(run(schedule))
        timeline.settle()
        waiting = [run(schedule, at=0, overlap=overlap, scheduled=minutes(-at)) for at in (1, 2, 3)]
        assert {(o.status, o.reason, o.blocked_by) for o in waiting} == {("pending", "overlap", blocker.pk)}
        schedule.pause(initiator=SOMEBODY, now=minutes(2))
        timeline.pass_to(20)
        assert ledger(schedule, source="manual") == {
            -3: "started 10, completed 12",
            -2: "started 12, completed 14",
            -1: "started 14, completed 16",
            0: "started 0, completed 10",
        }

    @pytest.mark.parametrize(
        ("overlap", "status", "first", "second"),
        [
            ("allow_all", "started", "started 0", "started 1"),
            ("cancel_other", "pending", "started 0, cancelled 2", "started 2"),
            ("terminate_other", "started", "started 0, cancelled 1", "started 1"),
        ],
    )
    def test_one_that_does_not_wait(self, overlap: str, status: str, first: str, second: str) -> None:
        schedule = make_schedule()
        timeline = Timeline([60])
        run(schedule)
        timeline.pass_to(1)
        assert run(schedule, at=1, overlap=overlap).status == status
        timeline.pass_to(2)
        assert ledger(schedule, source="manual") == {0: first, 1: second}

    def test_without_one_of_its_own_the_schedules_policy_holds(self) -> None:
        """What waited when the schedule was closed never starts."""
        schedule = make_schedule(overlap="buffer_all")
        timeline = Timeline([5])
        run(schedule)
        timeline.pass_to(1)
        assert run(schedule, at=1).status == "pending"
        schedule.close(initiator=SOMEBODY, now=minutes(2))
        timeline.pass_to(20)
        assert ledger(schedule, source="manual") == {0: "started 0, completed 6", 1: "cancelled: closed"}
        assert counters(schedule) == {"started": 1}


class TestIdempotencyKey:
    @pytest.mark.parametrize(
        "asked", [{}, {"scheduled": minutes(-60), "overlap": "allow_all"}, {"scheduled": minutes(3)}]
    )
    def test_the_same_request_is_the_same_occurrence_however_often_and_late(
        self, asked: dict[str, Any]
    ) -> None:
        schedule = make_schedule()
        first = run(schedule, at=3, key="order 7", **asked)
        before = everything()
        assert run(schedule, at=5, key="order 7", **asked) == first
        assert everything() == before
        schedule.close(initiator=SOMEBODY, now=minutes(6))
        assert run(schedule, at=10_000, key="order 7", **asked) == first
        with pytest.raises(Refused, match="closed"):
            run(schedule, at=10_000, key="order 8", **asked)

    @pytest.mark.parametrize(
        "other", [{"overlap": "allow_all"}, {"scheduled": minutes(-60)}], ids=["policy", "scheduled time"]
    )
    def test_another_request_with_the_same_key_is_refused(self, other: dict[str, Any]) -> None:
        schedule = make_schedule()
        run(schedule, key="order 7")
        before = everything()
        with pytest.raises(
            Refused,
            match="The idempotency key “order 7” was already used for another request: use a different key",
        ):
            run(schedule, at=1, key="order 7", **other)
        assert everything() == before

    def test_keys_belong_to_their_schedule(self) -> None:
        one, other = make_schedule(), make_schedule()
        assert run(one, key="order 7") != run(other, key="order 7")
        assert Execution.objects.count() == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("key", "7" * 201), ("key", "a\x00b"), ("key", "a\ud800b"), ("overlap", "buffer_most")],
    ids=["too long", "NUL", "surrogate", "policy"],
)
def test_what_makes_no_sense_is_refused_by_name(field: str, value: str) -> None:
    schedule, asked = make_schedule(), dict[str, Any]({field: value})
    before = everything()
    with pytest.raises(ValidationError) as refused:
        run(schedule, **asked)
    assert set(refused.value.message_dict) == {field}
    assert everything() == before


def test_while_paused_it_runs_and_the_automatic_times_go_on_waiting() -> None:
    schedule = make_schedule(spec=EVERY_FIVE, paused=True)
    tick(minutes(5))
    assert run(schedule, at=6).status == "started"
    assert ledger(schedule) == {5: "pending"}
    assert fresh(schedule).status == "paused"


def run(
    schedule: Schedule, *, at: float = 0, scheduled: Any = None, key: str = "", overlap: str = ""
) -> Occurrence:
    """Somebody triggers it at this minute."""
    return trigger(schedule, initiator=SOMEBODY, now=minutes(at), at=scheduled, key=key, overlap=overlap)


def execution_of(occurrence: Occurrence) -> Execution:
    return Execution.objects.get(occurrence=occurrence)
