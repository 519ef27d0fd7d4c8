"""Waits: when they end, and that a task which waits needs no seat, no worker and no luck."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from database import clock
from execution.children.nursery import Nursery
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.models import Execution, Worker, WorkerTask
from execution.steps.context import Context
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from execution.steps.step_type import get
from execution.steps.wait import end_of, next_time_of_day
from schedules.models import Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    end,
    everything,
    fresh,
    make_schedule,
    make_worker,
    queue,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
    work_on,
)
from tests.invariants import violations
from tests.loops import running_worker, work_until_idle
from tests.steps.stage import Recorder, work
from tests.steps.test_config import refuses
from tests.waiting import wait_until

BERLIN = "Europe/Berlin"
IN_A_MINUTE, AT_THE_END = NOW + seconds(60), NOW + seconds(600)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def waiting(name: str = "wait", index: int = 0, /, **fields: Any) -> dict[str, Any]:
    """A step that waits ten minutes, unless told otherwise."""
    config = {key: fields.pop(key) for key in ("duration", "until") if key in fields}
    return step(name, index, step_type="wait", config=config or {"duration": "10m"}, **fields)


@pytest.mark.parametrize(
    ("config", "place", "nominal", "expected"),
    [
        # Counted from the beginning, and two hours are two hours where the clocks go back in the middle.
        ({"duration": "90s"}, "UTC", "2026-10-24T00:00", "2026-10-24T23:31:30"),
        ({"duration": "366d"}, "UTC", None, "2027-10-25T23:30"),
        ({"duration": "2h"}, BERLIN, None, "2026-10-25T01:30"),
        # A moment: on the schedule's clock, or with an offset; in a gap, in a fold, long ago.
        ({"until": "2026-12-01 09:00:30"}, BERLIN, None, "2026-12-01T08:00:30"),
        ({"until": "2026-12-01T09:00+05:30"}, BERLIN, None, "2026-12-01T03:30"),
        ({"until": "2026-03-29T02:30"}, BERLIN, None, "2026-03-29T01:00"),
        ({"until": "2026-10-25T02:30"}, BERLIN, None, "2026-10-25T00:30"),
        ({"until": "2020-01-01T00:00Z"}, BERLIN, None, "2020-01-01T00:00"),
        # A time of day: from the nominal time, and from the beginning where there is none.
        ({"until": "06:30"}, BERLIN, "2026-10-20T03:00", "2026-10-20T04:30"),
        ({"until": "06:30"}, "UTC", None, "2026-10-25T06:30"),
    ],
)
def test_the_end(config: dict[str, str], place: str, nominal: str | None, expected: str) -> None:
    nominal_at = None if nominal is None else utc(nominal).isoformat()
    ctx = Context(work("wait", config, time_zone=place, nominal_at=nominal_at), Recorder())
    ctx.config = get("wait").clean(config)
    assert end_of(ctx, utc("2026-10-24T23:30")) == utc(expected)


@pytest.mark.parametrize(
    ("at", "after", "expected"),
    [
        pytest.param("06:30", "2026-11-16T03:00", "2026-11-16T05:30", id="later that day"),
        pytest.param("06:30", "2026-11-16T05:30", "2026-11-16T05:30", id="at that very moment"),
        pytest.param("06:30", "2026-11-16T05:30:01", "2026-11-17T05:30", id="past it, so the next day"),
        pytest.param("00:15", "2026-11-16T22:50", "2026-11-16T23:15", id="past midnight"),
        pytest.param("00:00", "2026-11-16T22:50", "2026-11-16T23:00", id="at midnight"),
        pytest.param("23:59:59", "2026-11-16T23:00", "2026-11-17T22:59:59", id="the day is the place's"),
        pytest.param("02:30", "2026-03-28T23:00", "2026-03-29T01:00", id="a gap: when it ends"),
        pytest.param("02:30", "2026-03-29T01:00", "2026-03-29T01:00", id="a gap: it has just ended"),
        pytest.param("02:30", "2026-03-29T01:10", "2026-03-30T00:30", id="a gap: it is over"),
        pytest.param("03:30", "2026-03-28T23:00", "2026-03-29T01:30", id="right after a gap"),
        pytest.param("06:30", "2026-03-28T23:00", "2026-03-29T04:30", id="across a gap"),
        pytest.param("02:30", "2026-10-24T23:00", "2026-10-25T00:30", id="a fold: its first pass"),
        pytest.param("02:30", "2026-10-25T00:45", "2026-10-26T01:30", id="a fold: the second does not count"),
        pytest.param("06:30", "2026-10-24T23:00", "2026-10-25T05:30", id="across a fold"),
    ],
)
def test_the_next_time_of_day(at: str, after: str, expected: str) -> None:
    assert next_time_of_day(time.fromisoformat(at), BERLIN, after=utc(after)) == utc(expected)


def test_the_next_time_of_day_where_a_whole_day_was_left_out() -> None:
    """Samoa had no 30 December 2011."""
    after = utc("2011-12-30T09:59")
    assert next_time_of_day(time(0, 30), "Pacific/Apia", after=after) == utc("2011-12-30T10:30")


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"duration": " 90s "}, "", ""),
        ({"until": "06:30"}, "", ""),
        ({"until": "2026-12-01T09:00"}, "", ""),
        ({"duration": "{{ steps.a.result }}"}, "", ""),
        ({"until": "{{ nominal_date }}T09:00"}, "", ""),
        ({}, "duration", "give either duration or until"),
        ({"duration": "1s", "until": "06:30"}, "duration", "either duration or until"),
        ({"duration": "90"}, "duration", "'90' is not a duration; write 90s, 15m, 1h30m or 2d"),
        ({"duration": "0s"}, "duration", "'0s' is out of range; use a duration from 1s to 366d"),
        ({"duration": "367d"}, "duration", "out of range"),
        ({"until": "24:00"}, "until", "'24:00' is not a time; write a time of day such as 06:30"),
        ({"until": "06:30:60"}, "until", "is not a time"),
        ({"until": "2026-02-30T09:00"}, "until", "is not a time"),
        ({"until": "{{ tomorrow }}"}, "until", "tomorrow"),
    ],
)
def test_what_is_taken_and_refused(config: dict[str, Any], field: str, words: str) -> None:
    if field:
        refuses("wait", config, field, words)
    else:
        canonical = {"duration": "", "until": ""} | {name: text.strip() for name, text in config.items()}
        assert get("wait").clean(config) == canonical


class TestOneRun:
    """What the step itself says, at a given time."""

    def run(self, nursery: Nursery, now: datetime, **rest: Any) -> Outcome:
        given = work("wait", rest.pop("config", {"duration": "10m"}), **rest)
        return perform(given, Recorder(), nursery=nursery, clock=lambda: now)

    def test_it_is_put_off_until_it_is_over(self, nursery: Nursery) -> None:
        outcome = self.run(nursery, NOW, time_zone=BERLIN)
        assert (outcome.status, outcome.again_at, outcome.executed_at) == ("pending", AT_THE_END, NOW)
        assert outcome.message == "Waiting until Mon 2026-11-16 04:10:00 Europe/Berlin, 10 min in total."
        early = self.run(nursery, NOW + seconds(599), begun_at=NOW.isoformat())
        assert (early.again_at, early.executed_at) == (AT_THE_END, NOW)
        last = self.run(nursery, NOW + seconds(600.25), begun_at=NOW.isoformat())
        assert (last.status, last.executed_at, last.message) == ("complete", NOW, "")
        assert last.result == {"until": "2026-11-16T03:10:00+00:00", "waited_seconds": 600.25}

    @pytest.mark.parametrize("config", [{"until": "2026-11-16T02:00"}, {"until": "02:59"}])
    def test_what_has_passed_is_not_waited_for(self, nursery: Nursery, config: dict[str, str]) -> None:
        """A run of yesterday that comes a day late."""
        outcome = self.run(nursery, NOW, config=config, nominal_at=(NOW - timedelta(days=1)).isoformat())
        assert outcome.status == "complete"

    @pytest.mark.parametrize(
        ("config", "place", "words"),
        [
            ({"until": "2011-12-30T12:00"}, "Pacific/Apia", "until: 2011-12-30T12:00 does not exist: the cl"),
            ({"until": "06:30"}, "Nowhere", "until: 'Nowhere' is not a known time zone"),
        ],
    )
    def test_a_time_that_does_not_exist_fails_in_words(
        self, nursery: Nursery, config: dict[str, str], place: str, words: str
    ) -> None:
        outcome = self.run(nursery, NOW, config=config, time_zone=place)
        assert outcome.error.startswith(words)
        assert (outcome.traceback, outcome.can_retry) == ("", False)


@pytest.mark.django_db
class TestStories:
    @pytest.fixture(autouse=True)
    def promises(self, db: None) -> Iterator[None]:
        """However a story ends, once its executions are counted no promise is broken."""
        yield
        tick(NOW, recovering=False)
        assert violations() == []

    def test_success(self) -> None:
        execution = start(waiting(timeout_seconds=601), step("after", 1))
        assert run_until_idle() == ["wait"]
        assert queue(execution) == {"wait": "queued", "after": "waiting"}
        assert step_statuses(execution) == {"wait": ["pending"], "after": ["pending"]}
        (activity,) = attempts(execution, "wait")
        assert activity.message == "Waiting until Mon 2026-11-16 03:10:00 UTC, 10 min in total."
        assert (activity.worker_id, activity.executed_at) == (None, NOW)
        task = WorkerTask.objects.get(name="wait")
        assert (task.worker_id, task.claimed_at, task.begun_at) == (None, None, NOW)
        assert task.available_at == AT_THE_END
        assert run_until_idle(now=NOW + seconds(599.999)) == []
        assert run_until_idle(now=AT_THE_END) == ["wait", "after"]
        assert (fresh(activity).executed_at, fresh(activity).finished_at) == (NOW, AT_THE_END)
        assert fresh(activity).result == {"until": "2026-11-16T03:10:00+00:00", "waited_seconds": 600.0}
        assert fresh(execution).status == Execution.Status.COMPLETED

    def test_a_wait_until_a_time_of_day_is_on_the_clock_of_the_schedule(self) -> None:
        execution = start(waiting(until="06:30"), spec={"time_zone": BERLIN, "every": ["1h"]})
        run_until_idle()
        assert WorkerTask.objects.get().available_at == utc("2026-11-16T05:30")
        run_until_idle(now=utc("2026-11-16T05:30"))
        assert step_statuses(execution) == {"wait": ["complete"]}

    def test_a_schedule_whose_spec_is_broken_can_still_be_run_by_hand(self) -> None:
        schedule = make_schedule(waiting())
        Schedule.objects.filter(pk=schedule.pk).update(spec={"time_zone": "Nowhere"})
        trigger(fresh(schedule), initiator=SOMEBODY, now=NOW)
        run_until_idle()
        run_until_idle(now=AT_THE_END)
        assert Execution.objects.get().status == Execution.Status.COMPLETED

    def test_a_timeout_ends_it_and_each_retry_is_a_wait_of_its_own(self) -> None:
        execution = start(waiting(timeout_seconds=60, max_retries=1, retry_seconds=10))
        run_until_idle()
        assert run_until_idle(now=NOW + seconds(59)) == []
        run_until_idle(now=NOW + seconds(60))
        first, second = attempts(execution, "wait")
        assert (first.status, first.error) == ("failed_with_error", "timed out after 60 s")
        assert (first.executed_at, first.finished_at) == (NOW, NOW + seconds(60))
        assert WorkerTask.objects.get().begun_at is None

        run_until_idle(now=NOW + seconds(70))
        assert run_until_idle(now=NOW + seconds(129)) == []
        run_until_idle(now=NOW + seconds(130))
        assert fresh(second).error == "timed out after 60 s"
        assert (fresh(second).executed_at, fresh(execution).status) == (NOW + seconds(70), "failed")

    @pytest.mark.parametrize(
        ("how", "words"),
        [("cancel", "Cancelled while the step was waiting to continue."), ("terminate", "Terminated.")],
    )
    def test_a_cancel_or_terminate_in_mid_wait_ends_it_at_once(self, how: str, words: str) -> None:
        execution = start(waiting(), step("after", 1))
        run_until_idle()
        assert getattr(execution, how)(initiator=SOMEBODY, now=IN_A_MINUTE)
        assert (fresh(execution).status, queue(execution)) == ("cancelled", {})
        assert step_statuses(execution) == {"wait": ["cancelled"], "after": ["cancelled"]}
        (activity,) = attempts(execution, "wait")
        assert (activity.executed_at, activity.finished_at) == (NOW, IN_A_MINUTE)
        assert activity.message == words
        assert run_until_idle(now=AT_THE_END) == []

    def test_a_cancel_that_comes_before_it_is_put_off_prevails(self) -> None:
        execution = start(waiting())
        worker = make_worker()
        tasks = claim(worker)
        assert execution.cancel(initiator=SOMEBODY, now=NOW)
        assert work_on(worker, tasks) == {tasks[0].pk}
        assert (fresh(execution).status, queue(execution)) == ("cancelled", {})
        (activity,) = attempts(execution, "wait")
        assert (activity.status, activity.executed_at, activity.finished_at) == ("cancelled", NOW, NOW)
        assert activity.message.startswith("Waiting until"), "it ended as what it was, not as never run"

    def test_a_terminate_that_comes_before_it_is_put_off_leaves_nothing_to_put_off(self) -> None:
        execution = start(waiting())
        worker = make_worker()
        tasks = claim(worker)
        execution.terminate(initiator=SOMEBODY, now=NOW)
        before = everything()
        assert work_on(worker, tasks) == set()
        assert everything() == before

    def test_one_whose_worker_was_buried_cannot_put_it_off(self) -> None:
        """Somebody else waits in its place by now."""
        execution = start(waiting())
        lost, other = make_worker(), make_worker()
        tasks = claim(lost)
        bury(lost, IN_A_MINUTE)
        work_on(other, claim(other, now=IN_A_MINUTE), now=IN_A_MINUTE)
        before = everything()
        assert work_on(lost, tasks, now=IN_A_MINUTE) == set()
        assert everything() == before
        run_until_idle(now=IN_A_MINUTE + seconds(600))
        assert step_statuses(execution) == {"wait": ["failed_with_error", "complete"]}

    def test_an_earlier_attempt_of_the_same_worker_cannot_put_it_off(self) -> None:
        execution = start(waiting(max_retries=1, retry_seconds=0))
        worker = make_worker()
        earlier = claim(worker)
        break_down(worker, *earlier)
        (later,) = claim(worker)
        before = everything()
        assert work_on(worker, earlier) == set()
        assert everything() == before
        assert work_on(worker, [later]) == {later.pk}
        run_until_idle(now=AT_THE_END)
        assert step_statuses(execution) == {"wait": ["failed_with_error", "complete"]}

    @pytest.mark.parametrize("reason", ["lost", "drain"])
    def test_an_attempt_after_a_crash_or_a_drain_goes_on_where_it_was(self, reason: str) -> None:
        execution = start(waiting())
        first, worker = make_worker(), make_worker()
        work_on(first, claim(first))
        bury(first, IN_A_MINUTE)
        assert step_statuses(execution) == {"wait": ["pending"]}, "who died had nothing of it"
        (task,) = claim(worker, now=AT_THE_END)
        if reason == "lost":
            bury(worker, AT_THE_END)
        else:
            fields = {"error": "worker stopped", "interrupted": "drain"}
            assert end(worker, task, status="failed_with_error", now=AT_THE_END, **fields)
        run_until_idle(now=AT_THE_END + seconds(30))
        assert step_statuses(execution) == {"wait": ["failed_with_error", "complete"]}
        activity = attempts(execution, "wait")[1]
        assert activity.executed_at == NOW
        assert activity.result == {"until": "2026-11-16T03:10:00+00:00", "waited_seconds": 630.0}

    def test_one_that_is_given_back_unstarted_goes_on_where_it_was(self) -> None:
        """As by a worker that drains."""
        execution = start(waiting())
        worker = make_worker()
        work_on(worker, claim(worker))
        (task,) = claim(worker, now=AT_THE_END)
        assert WorkerTask.objects.release([task], worker_id=worker.pk) == {task.pk}
        assert run_until_idle(now=AT_THE_END) == ["wait"]
        (activity,) = attempts(execution, "wait")
        assert (activity.status, activity.executed_at) == ("complete", NOW)

    @pytest.mark.parametrize(
        ("result", "config"),
        [
            ({"until": "2026-11-16T04:10:00+01:00"}, {"until": "{{ steps.plan.result.until }}"}),
            ({"minutes": 10}, {"duration": "{{ steps.plan.result.minutes }}m"}),
        ],
    )
    def test_an_earlier_step_may_say_how_long(self, result: dict[str, Any], config: dict[str, str]) -> None:
        execution = start(step("plan", 0, "result", kwargs={"value": result}), waiting("wait", 1, **config))
        assert run_until_idle() == ["plan", "wait"]
        assert WorkerTask.objects.get().available_at == AT_THE_END
        run_until_idle(now=AT_THE_END)
        assert step_statuses(execution)["wait"] == ["complete"]

    def test_an_earlier_step_that_says_nonsense_fails_it_for_good(self) -> None:
        execution = start(
            step("plan", 0, "result", kwargs={"value": {"until": "soon"}}),
            waiting("wait", 1, until="{{ steps.plan.result.until }}", max_retries=3),
        )
        run_until_idle()
        (activity,) = attempts(execution, "wait")
        assert "until: 'soon' is not a time; write a time of day such as 06:30" in activity.error
        assert fresh(execution).status == Execution.Status.FAILED


@pytest.mark.live
@pytest.mark.django_db(transaction=True)
class TestWorker:
    """Real workers, in real time."""

    def test_ten_waits_leave_the_only_seat_to_others(self) -> None:
        execution = start(
            *(waiting(f"wait {number}", duration="1h") for number in range(10)),
            *(step(f"work {number}") for number in range(5)),
            now=clock.now(),
        )
        work_until_idle(processes=0, threads=1)
        statuses = step_statuses(execution)
        assert [statuses[f"work {number}"] for number in range(5)] == [["complete"]] * 5
        assert [statuses[f"wait {number}"] for number in range(10)] == [["pending"]] * 10
        assert not WorkerTask.objects.processing().exists()
        assert WorkerTask.objects.exclude(begun_at=None).queued().count() == 10

    @pytest.mark.parametrize("is_put_off_elsewhere", [False, True])
    def test_an_idle_worker_wakes_up_when_the_time_has_come(
        self, settings: Any, is_put_off_elsewhere: bool
    ) -> None:
        settings.JIM_POLL_SECONDS = 3600
        execution = start(waiting(duration="1s"), step("after", 1), now=clock.now())
        other = make_worker(clock.now())
        tasks = claim(other, now=clock.now()) if is_put_off_elsewhere else []
        with running_worker():
            wait_until(lambda: Worker.objects.alive().count() == 2)
            work_on(other, tasks, now=clock.now())
            wait_until(lambda: fresh(execution).status == Execution.Status.COMPLETED)
        (activity,) = attempts(execution, "wait")
        assert activity.duration is not None
        assert activity.duration >= timedelta(seconds=1)
        assert violations() == []


def bury(worker: Worker, now: datetime) -> None:
    """It dies; what it held is recovered."""
    Worker.objects.filter(pk=worker.pk).bury(now=now)
    WorkerTask.objects.recover(now=now)
