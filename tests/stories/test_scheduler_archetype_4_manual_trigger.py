"""Manual trigger: a request goes through the same ledger as any other time, and is answered at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from execution.invoker import Overlapping, trigger
from execution.models import Execution
from execution.scheduler import tick
from schedules.models import Occurrence, Refused, Schedule
from tests.base import NOW, SOMEBODY, claim, everything, fresh, make_schedule, make_worker, run_until_idle
from tests.timeline import Timeline, counters, ledger, minutes

pytestmark = pytest.mark.django_db
EVERY_FIVE = {"every": ["5m"]}


class TestImmediately:
    def test_it_is_recorded_as_an_occurrence_and_starts_without_a_scheduler(self) -> None:
        """It moves neither the times nor the token."""
        schedule = make_schedule(spec=EVERY_FIVE)
        occurrence = run(schedule, at=2)
        asked = occurrence.source, occurrence.status, occurrence.nominal_at, occurrence.initiator
        assert asked == ("manual", "started", minutes(2), SOMEBODY)
        assert ledger(schedule, source="manual") == {2: "started 2"}
        after = fresh(schedule)
        assert (after.processed_until, after.next_run_at, after.token) == (NOW, minutes(5), 1)
        assert (after.started_count, after.last_run_at) == (1, minutes(2))

    def test_it_never_comes_too_late_and_uses_up_no_run(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=0, remaining=0)
        assert run(schedule, at=10_000, scheduled=NOW).status == "started"
        assert fresh(schedule).remaining == 0

    def test_the_automatic_time_that_meets_it_is_skipped(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        timeline = Timeline([10])
        timeline.pass_to(3)
        run(schedule, at=3)
        timeline.pass_to(16)
        assert ledger(schedule) == {5: "skipped: overlap", 10: "skipped: overlap", 15: "started 15"}
        assert ledger(schedule, source="manual") == {3: "started 3, completed 14"}


class TestAScheduledTimeOfItsOwn:
    def test_its_steps_work_for_that_time(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        yesterday = NOW - timedelta(days=1)
        occurrence = run(schedule, at=2, scheduled=yesterday)
        assert (occurrence.nominal_at, occurrence.created_at) == (yesterday, minutes(2))
        (task,) = claim(make_worker(), now=minutes(2))
        assert task.work.nominal_at == yesterday.isoformat()

    def test_it_does_not_stand_in_for_the_automatic_time(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        run(schedule, at=2, scheduled=minutes(5))
        run_until_idle(now=minutes(3))
        tick(minutes(5))
        assert ledger(schedule, source="manual") == {5: "started 2, completed 3"}
        assert ledger(schedule) == {5: "started 5"}


class TestOverlap:
    def test_skip_refuses_it_and_names_the_execution_in_the_way(self) -> None:
        schedule = make_schedule()
        blocker = execution_of(run(schedule))
        before = everything()
        with pytest.raises(Overlapping, match=f"Execution {blocker.pk} is still running") as refused:
            run(schedule, at=1)
        assert refused.value.blocked_by == blocker.pk
        assert everything() == before

    def test_allow_all_runs_beside_the_other(self) -> None:
        schedule = make_schedule()
        run(schedule)
        assert run(schedule, at=1, overlap="allow_all").status == "started"
        assert Execution.objects.in_progress().count() == 2

    @pytest.mark.parametrize("overlap", ["buffer_one", "buffer_all"])
    def test_buffered_ones_wait_for_their_turn_and_all_get_one(self, overlap: str) -> None:
        schedule = make_schedule()
        timeline = Timeline([10])
        blocker = execution_of(run(schedule))
        timeline.settle()
        waiting = [run(schedule, at=0, overlap=overlap, scheduled=minutes(-at)) for at in (1, 2, 3)]
        assert {(o.status, o.reason, o.blocked_by) for o in waiting} == {("pending", "overlap", blocker.pk)}
        timeline.pass_to(20)
        assert ledger(schedule, source="manual") == {
            -3: "started 10, completed 12",
            -2: "started 12, completed 14",
            -1: "started 14, completed 16",
            0: "started 0, completed 10",
        }

    def test_cancel_other_starts_when_the_other_has_stopped(self) -> None:
        schedule = make_schedule()
        timeline = Timeline([60])
        run(schedule)
        timeline.settle()
        assert run(schedule, at=0, overlap="cancel_other", scheduled=minutes(-1)).status == "pending"
        timeline.pass_to(1)
        assert ledger(schedule, source="manual") == {-1: "started 1", 0: "started 0, cancelled 1"}

    def test_terminate_other_starts_at_once(self) -> None:
        schedule = make_schedule()
        timeline = Timeline([60])
        run(schedule)
        timeline.pass_to(1)
        assert run(schedule, at=1, overlap="terminate_other").status == "started"
        assert ledger(schedule, source="manual") == {0: "started 0, cancelled 1", 1: "started 1"}

    def test_without_one_of_its_own_the_schedules_policy_holds(self) -> None:
        schedule = make_schedule(overlap="buffer_all")
        run(schedule)
        assert run(schedule, at=1).status == "pending"

    def test_a_policy_that_does_not_exist_is_refused_by_name(self) -> None:
        schedule = make_schedule()
        before = everything()
        with pytest.raises(ValidationError) as refused:
            run(schedule, overlap="buffer_most")
        assert set(refused.value.message_dict) == {"overlap"}
        assert everything() == before


class TestIdempotencyKey:
    def test_the_same_request_is_the_same_occurrence_however_often_and_late(self) -> None:
        schedule = make_schedule()
        first = run(schedule, key="order 7")
        before = everything()
        assert run(schedule, at=1, key="order 7") == first
        assert everything() == before
        run_until_idle(now=minutes(2))
        assert run(schedule, at=10_000, key="order 7") == first
        assert Execution.objects.count() == 1

    @pytest.mark.parametrize(
        "asked", [{"scheduled": minutes(-60), "overlap": "allow_all"}, {"scheduled": minutes(3)}]
    )
    def test_also_with_a_scheduled_time_and_a_policy(self, asked: dict[str, Any]) -> None:
        schedule = make_schedule()
        assert run(schedule, at=3, key="order 7", **asked) == run(schedule, at=5, key="order 7", **asked)
        assert Execution.objects.count() == 1

    @pytest.mark.parametrize(
        "other", [{"overlap": "allow_all"}, {"scheduled": minutes(-60)}], ids=["policy", "scheduled time"]
    )
    def test_another_request_with_the_same_key_is_refused(self, other: dict[str, Any]) -> None:
        schedule = make_schedule()
        run(schedule, key="order 7")
        before = everything()
        with pytest.raises(Refused, match="“order 7” was used for another request: choose another"):
            run(schedule, at=1, key="order 7", **other)
        assert everything() == before

    def test_keys_belong_to_their_schedule(self) -> None:
        one, other = make_schedule(), make_schedule()
        assert run(one, key="order 7") != run(other, key="order 7")
        assert Execution.objects.count() == 2

    def test_a_refused_request_leaves_its_key_free(self) -> None:
        schedule = make_schedule()
        run(schedule)
        with pytest.raises(Overlapping):
            run(schedule, at=1, key="order 7")
        run_until_idle(now=minutes(2))
        assert run(schedule, at=3, key="order 7").status == "started"

    @pytest.mark.parametrize("key", ["7" * 201, "a\x00b", "a\ud800b"], ids=["too long", "NUL", "surrogate"])
    def test_a_key_that_cannot_be_stored_is_refused_by_name(self, key: str) -> None:
        schedule = make_schedule()
        before = everything()
        with pytest.raises(ValidationError) as refused:
            run(schedule, key=key)
        assert set(refused.value.message_dict) == {"key"}
        assert everything() == before


class TestWhilePaused:
    def test_it_runs_and_the_automatic_times_go_on_waiting(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        schedule.pause(initiator=SOMEBODY, now=NOW, note="audit")
        tick(minutes(5))
        assert run(schedule, at=6).status == "started"
        assert ledger(schedule) == {5: "pending"}
        assert fresh(schedule).status == "paused"

    def test_a_buffered_one_gets_its_turn(self) -> None:
        schedule = make_schedule(overlap="buffer_all")
        timeline = Timeline([5])
        run(schedule)
        timeline.settle()
        timeline.pass_to(1)
        run(schedule, at=1)
        schedule.pause(initiator=SOMEBODY, now=minutes(2))
        timeline.pass_to(8)
        assert ledger(schedule, source="manual") == {0: "started 0, completed 5", 1: "started 5, completed 7"}


class TestRefused:
    def test_when_closed_but_what_was_answered_before_is_answered_again(self) -> None:
        schedule = make_schedule()
        first = run(schedule, key="order 7")
        schedule.close(initiator=SOMEBODY, now=minutes(1))
        assert run(schedule, at=2, key="order 7") == first
        before = everything()
        with pytest.raises(Refused, match="closed"):
            run(schedule, at=2, key="order 8")
        assert everything() == before

    def test_what_waited_when_it_was_closed_never_starts(self) -> None:
        schedule = make_schedule(overlap="buffer_all")
        timeline = Timeline([5])
        run(schedule)
        timeline.pass_to(1)
        run(schedule, at=1)
        schedule.close(initiator=SOMEBODY, now=minutes(2))
        timeline.pass_to(20)
        assert ledger(schedule, source="manual") == {0: "started 0, completed 6", 1: "cancelled: closed"}
        assert counters(schedule) == {"started": 1}


def run(
    schedule: Schedule, *, at: float = 0, scheduled: Any = None, key: str = "", overlap: str = ""
) -> Occurrence:
    """Somebody triggers it at this minute."""
    return trigger(schedule, initiator=SOMEBODY, now=minutes(at), at=scheduled, key=key, overlap=overlap)


def execution_of(occurrence: Occurrence) -> Execution:
    return Execution.objects.get(occurrence=occurrence)
