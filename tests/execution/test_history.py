from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.models import Activity
from execution import history
from execution.loops.manual_runs import trigger
from execution.models import Execution
from execution.progress import ExecutionProgress, progress_by_root
from execution.queue.pulse import pulse
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    fresh,
    make_schedule,
    make_worker,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db


def test_the_last_executions_of_each_schedule_come_in_one_statement(django_assert_num_queries: Any) -> None:
    """Each with its state and how long it took."""
    many, none, worker = make_schedule(overlap="allow_all"), make_schedule(), make_worker()
    for number in range(4):
        trigger(many, initiator=SOMEBODY, now=NOW + seconds(number))
    ids = list(Execution.objects.order_by("-pk").values_list("pk", flat=True))
    *_, last = claim(worker)
    Execution.objects.get(pk=ids[1]).cancel(initiator=SOMEBODY, now=NOW)
    end(worker, last, now=NOW + seconds(93))
    with django_assert_num_queries(1):
        ran = history.recent([many.pk, none.pk], count=2)
    states = [(each.id, each.state, each.duration) for each in ran.pop(many.pk)]
    assert states == [(ids[0], "completed", seconds(90)), (ids[1], "cancelling", None)]
    assert ran == history.recent([], count=3) == {}


def test_what_is_usual_is_told_by_whole_runs_only() -> None:
    """A retry that kept what had succeeded took only as long as the rest."""
    failed, worker = start(step("long"), step("short", 1)), make_worker()
    end(worker, *claim(worker))
    break_down(worker, *claim(worker), can_retry=False)
    for whole, took in ((False, 1), (True, 60)):
        at = NOW + seconds(took)
        assert fresh(failed).retry(initiator=SOMEBODY, now=at, whole=whole)
        while tasks := claim(worker, now=at):
            end(worker, *tasks, now=at + seconds(took))
        assert history.usual_duration_of(failed.schedule_id) == (seconds(60) if whole else None)


def test_what_ended_is_counted_by_hour_and_outcome() -> None:
    worker = make_worker()
    for minutes, status in ((0, "complete"), (10, "complete"), (20, "failed_with_error"), (70, "complete")):
        start()
        end(worker, *claim(worker), status=status, now=NOW + timedelta(minutes=minutes))
    assert sorted(history.ended_by_hour(NOW)) == [
        (NOW, "completed", 2),
        (NOW, "failed", 1),
        (NOW + timedelta(hours=1), "completed", 1),
    ]
    assert len(history.ended_by_hour(NOW + timedelta(hours=1))) == 1


def test_what_started_is_counted_by_ten_minutes_and_no_further_back_than_asked() -> None:
    schedule = make_schedule(overlap="allow_all")
    for minutes in (0, 9, 10, 45):
        trigger(schedule, initiator=SOMEBODY, now=NOW + timedelta(minutes=minutes))
    counted = [(each.at - NOW, each.number) for each in sorted(history.started_by_time(schedule.pk))]
    assert counted == [(timedelta(0), 2), (timedelta(minutes=10), 1), (timedelta(minutes=40), 1)]
    assert len(history.started_by_time(schedule.pk, most=1)) == 1


def test_progress_is_of_steps_and_one_to_be_tried_again_is_not_done() -> None:
    worker = make_worker()
    execution = start(
        step("first"), step("shaky", 1, max_retries=3), step("steady", 1), step("last", 2), now=NOW
    )
    end(worker, *claim(worker))
    shaky, steady = sorted(claim(worker), key=lambda task: task.name)
    Activity.objects.tell_progress([(steady.activity_id, 30, 60, "half")], worker_id=worker.pk)
    break_down(worker, shaky)
    at = progress_by_root([execution.activity_id])[execution.activity_id]
    assert (at.steps, at.done, at.running_part, at.message) == (4, 1, 0.5, "half")
    attempts = Activity.objects.filter(parent=execution.activity_id).order_by("line", "attempt")
    assert ExecutionProgress.of(attempts) == at
    assert progress_by_root([]) == {}


def test_the_pulse_is_felt_in_one_statement(django_assert_num_queries: Any) -> None:
    worker = make_worker()
    start()
    start()
    claim(worker, limit=1)
    make_schedule(spec={"every": [{"every": "1m"}]})
    with django_assert_num_queries(1):
        now = pulse(NOW)
    assert (now.running, now.queued, now.overdue, now.schedules) == (2, 1, 0, 3)
    assert (now.workers, now.seats, now.beat_at) == (1, 100, NOW)
    later = pulse(NOW + timedelta(hours=1))
    assert (later.overdue, later.workers, later.is_ticking) == (1, 0, False)
