"""Two verbs on the same rows at the same time: somebody wins, and the rows stay consistent."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import pytest
from django.db.models.sql.constants import GET_ITERATOR_CHUNK_SIZE

from activities import clock
from activities.models import Activity, OutputLine
from execution import invoker, recovery
from execution.invoker import Overlapping
from execution.models import Execution, Worker, WorkerTask
from execution.models.attempt import Finish, Held
from execution.recorder import Said, write
from execution.steps.base import Outcome
from schedules.generator import generate
from schedules.models import Conflict, Occurrence, Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    fates,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)
from tests.fleet import is_at_rest
from tests.invariants import violations
from tests.races.meeting import Meeting, at_once, queue_up
from tests.settings import TEST_DB

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def clock_at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done after a commit reads the clock by itself: it leaves alone what the tests settle."""
    monkeypatch.setattr(clock, "now", lambda: NOW)


def test_claim_and_claim(meet: Meeting) -> None:
    """Every task is claimed once, and each worker gets at most what it has seats for."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(20)))
        workers = [make_worker(), make_worker()]
        ours, theirs = meet(
            partial(claim, workers[0], limit=12),
            partial(claim, workers[1], limit=12),
            behind=Execution.objects.filter(pk=execution.pk),
        )
        claimed = [task.pk for task in ours + theirs]
        assert len(claimed) == len(set(claimed))
        assert max(len(ours), len(theirs)) <= 12
        owners = dict(WorkerTask.objects.processing().values_list("pk", "worker"))
        mine = dict.fromkeys((task.pk for task in ours), workers[0].pk)
        assert owners == mine | dict.fromkeys((task.pk for task in theirs), workers[1].pk)
        assert Activity.objects.filter(status="in_progress", task_key__isnull=False).count() == len(claimed)
        for worker, tasks in zip(workers, (ours, theirs), strict=True):
            finish(worker, *tasks)
        run_until_idle()
    assert violations() == []


def test_the_last_two_of_a_group_finish(meet: Meeting) -> None:
    """Both outcomes count, and exactly one of the two moves the execution on."""
    for _ in meet.rounds:
        execution = start(step("a"), step("b"), step("c", 1), step("d", 1))
        worker = make_worker()
        one, other = claim(worker)
        accepted = meet(
            partial(finish, worker, one),
            partial(finish, worker, other),
            behind=Activity.objects.filter(pk__in=[one.activity_id, other.activity_id]),
        )
        assert accepted == ({one.pk}, {other.pk})
        execution.refresh_from_db()
        assert execution.current_index == 1
        assert sorted(task.name for task in claim(worker)) == ["c", "d"]
        finish(worker, *WorkerTask.objects.all())
    assert violations() == []


@pytest.mark.parametrize("is_last", [False, True])
def test_cancel_and_finish(meet: Meeting, is_last: bool) -> None:
    """The step keeps its true outcome; only a completed execution can no longer be cancelled."""
    for _ in meet.rounds:
        execution = start(step("a"), *([] if is_last else [step("b", 1)]))
        worker = make_worker()
        (task,) = claim(worker)
        was_cancelled, accepted = meet(
            partial(execution.cancel, initiator=SOMEBODY, now=NOW),
            partial(finish, worker, task),
            behind=Execution.objects.filter(pk=execution.pk),
        )
        assert accepted == {task.pk}
        execution.refresh_from_db()
        assert execution.status == ("cancelled" if was_cancelled else "completed")
        assert was_cancelled or is_last
        statuses = step_statuses(execution)
        assert statuses.pop("a") == ["complete"]
        assert statuses == ({} if is_last else {"b": ["cancelled"]})
    assert violations() == []


def test_cancel_and_failure_with_a_retry(meet: Meeting) -> None:
    """A retry is not queued behind the back of a cancellation."""
    for _ in meet.rounds:
        execution = start(step("a", max_retries=3), step("b", 1))
        worker = make_worker()
        (task,) = claim(worker)
        was_cancelled, accepted = meet(
            partial(execution.cancel, initiator=SOMEBODY, now=NOW),
            partial(finish, worker, task, status="failed_with_error"),
            behind=Execution.objects.filter(pk=execution.pk),
        )
        assert (was_cancelled, accepted) == (True, {task.pk})
        execution.refresh_from_db()
        assert execution.status == "cancelled"
        assert step_statuses(execution)["a"] in (["failed_with_error"], ["failed_with_error", "cancelled"])
    assert violations() == []


def test_cancel_and_claim(meet: Meeting) -> None:
    """What is claimed hears of the cancellation, what is not claimed is closed."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(20)))
        worker = make_worker()
        was_cancelled, claimed = meet(
            partial(execution.cancel, initiator=SOMEBODY, now=NOW),
            partial(claim, worker, limit=10),
            behind=WorkerTask.objects.filter(execution=execution),
        )
        assert was_cancelled
        left = WorkerTask.objects.filter(execution=execution)
        assert {task.pk for task in left} == {task.pk for task in claimed}
        assert not left.filter(cancel_requested_at=None).exists()
        assert not left.queued().exists()
        finish(worker, *claimed, status="cancelled")
        execution.refresh_from_db()
        assert execution.status == "cancelled"
    assert violations() == []


def test_cancel_and_release(meet: Meeting) -> None:
    """What was given back is closed, what was not is flagged: nothing returns to the queue."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(20)))
        worker = make_worker()
        tasks = claim(worker)
        was_cancelled, released = meet(
            partial(execution.cancel, initiator=SOMEBODY, now=NOW),
            partial(WorkerTask.objects.release, tasks[::-1], worker_id=worker.pk),
            behind=WorkerTask.objects.filter(execution=execution),
        )
        assert was_cancelled
        held = [task for task in tasks if task.pk not in released]
        left = WorkerTask.objects.filter(execution=execution)
        assert {task.pk for task in left} == {task.pk for task in held}
        assert not left.filter(cancel_requested_at=None).exists()
        finish(worker, *held, status="cancelled")
        execution.refresh_from_db()
        assert execution.status == "cancelled"
    assert violations() == []


def test_terminate_and_finish(meet: Meeting) -> None:
    """An outcome that comes too late changes nothing."""
    for _ in meet.rounds:
        execution = start(step("a"), step("b"), step("c", 1))
        worker = make_worker()
        tasks = claim(worker)
        was_terminated, accepted = meet(
            partial(execution.terminate, initiator=SOMEBODY, now=NOW),
            partial(finish, worker, *tasks),
            behind=Execution.objects.filter(pk=execution.pk),
        )
        assert was_terminated
        assert accepted in (set(), {task.pk for task in tasks})
        execution.refresh_from_db()
        assert execution.status == "cancelled"
        ended = ["complete" if accepted else "cancelled"]
        assert step_statuses(execution) == {"a": ended, "b": ended, "c": ["cancelled"]}
    assert violations() == []


def test_terminate_and_progress(meet: Meeting) -> None:
    """What a running step says never stands in the way of its end."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(10)))
        worker = make_worker()
        saids = [Said(task.activity_id, lambda: NOW) for task in claim(worker)]
        for said in saids[::-1]:
            said.progress(1, 2, "half-way")
            said.output("stdout", ["a line"])
            said.item("an object", "ok", "")
        was_terminated, refused = meet(
            partial(execution.terminate, initiator=SOMEBODY, now=NOW),
            partial(write, saids[::-1], worker_id=worker.pk),
            behind=Activity.objects.filter(parent=execution.activity_id),
        )
        assert was_terminated
        assert refused <= {said.activity_id for said in saids}
        steps = Activity.objects.filter(parent=execution.activity_id)
        for activity in steps:
            # Written before the end or refused; lines and items in the same transaction.
            assert activity.output.count() == activity.items.count() <= 1
            assert activity.output.count() == (activity.pk not in refused)
    assert violations() == []


def test_recover_and_finish(meet: Meeting) -> None:
    """The attempt of a buried worker ends once: by the worker that still lives, or by whoever recovers it."""
    for _ in meet.rounds:
        execution = start(step("a"), step("b"), step("c", 1))
        worker = make_worker()
        tasks = claim(worker)
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        _, accepted = meet(
            partial(recovery.recover, NOW),
            partial(finish, worker, *tasks),
            behind=Execution.objects.filter(pk=execution.pk),
        )
        recovery.recover(NOW)
        assert accepted in (set(), {task.pk for task in tasks})
        ended = ["complete"] if accepted else ["failed_with_error", "complete"]
        assert WorkerTask.objects.processing().count() == 0
        run_until_idle()
        assert step_statuses(execution) == {"a": ended, "b": ended, "c": ["complete"]}
    assert violations() == []


def test_finish_behind_a_recovery() -> None:
    """An outcome that comes while its attempt is being recovered is refused, whatever it was."""
    for status in ("complete", "failed_with_error", "cancelled"):
        execution = start(step("a", max_retries=3), step("b", 1))
        worker = make_worker()
        (task,) = claim(worker)
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        accepted = queue_up(
            partial(finish, worker, task, status=status), behind=partial(recovery.recover, NOW)
        )
        assert accepted == [set()]
        assert step_statuses(execution) == {"a": ["failed_with_error", "pending"], "b": ["pending"]}
        run_until_idle()
    assert violations() == []


def test_recovery_and_a_write_in_flight() -> None:
    """What a worker was just writing is written before its attempt ends, or not at all."""
    execution = start(step("a"))
    worker = make_worker()
    (task,) = claim(worker)
    said = Said(task.activity_id, lambda: NOW)
    said.output("stdout", ["in time"])
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)
    queue_up(partial(recovery.recover, NOW), behind=partial(write, [said], worker_id=worker.pk))
    recovery.recover(NOW)
    said.output("stdout", ["too late"])
    assert write([said], worker_id=worker.pk) == {task.activity_id}
    assert [line.text for line in OutputLine.objects.filter(activity=task.activity_id)] == ["in time"]
    assert step_statuses(execution) == {"a": ["failed_with_error", "pending"]}
    run_until_idle()
    assert violations() == []


def test_recover_and_recover(meet: Meeting) -> None:
    """Two schedulers find the same orphans: one next attempt. What was held is left to the next tick."""
    for _ in meet.rounds:
        execution = start(step("a"), step("b"), step("c", 1))
        worker = make_worker()
        claim(worker)
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        meet(
            partial(recovery.recover, NOW),
            partial(recovery.recover, NOW),
            behind=Execution.objects.filter(pk=execution.pk),
        )
        recovery.recover(NOW)
        assert set(WorkerTask.objects.queued().values_list("attempt", "crashes")) == {(2, 1)}
        run_until_idle()
        assert step_statuses(execution)["a"] == ["failed_with_error", "complete"]
    assert violations() == []


def test_bury_and_claim(meet: Meeting) -> None:
    """A worker that is buried while it claims loses what it claimed to the next one."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(10)))
        worker = make_worker()
        meet(
            partial(Worker.objects.filter(pk=worker.pk).bury, now=NOW),
            partial(claim, worker),
            behind=Worker.objects.filter(pk=worker.pk),
        )
        recovery.recover(NOW)
        assert claim(worker) == []
        run_until_idle()
        execution.refresh_from_db()
        assert execution.status == "completed"
    assert violations() == []


def test_beat_and_bury(meet: Meeting) -> None:
    """Either it beat in time, or it is dead and knows it."""
    for _ in meet.rounds:
        worker = make_worker()
        late = NOW + seconds(3600)
        is_alive, buried = meet(
            partial(worker.beat, late),
            partial(Worker.objects.filter(pk=worker.pk).expired(late).bury, now=late),
            behind=Worker.objects.filter(pk=worker.pk),
        )
        assert is_alive is (buried == 0)
        worker.refresh_from_db()
        assert worker.status == ("alive" if is_alive else "dead")


def test_generate_and_generate(meet: Meeting) -> None:
    """Every nominal time once, and the cursor behind the last of them."""
    now = NOW
    schedules = [make_schedule(spec={"every": ["10s"]}, overlap="allow_all") for _ in range(10)]
    for _ in meet.rounds:
        now += seconds(60)
        meet(
            partial(generate, now),
            partial(generate, now),
            behind=Schedule.objects.filter(pk__in=[schedules[0].pk, schedules[-1].pk]),
        )
        generate(now)
    for schedule in schedules:
        schedule.refresh_from_db()
        assert schedule.processed_until == now
        assert schedule.occurrences.count() == 6 * len(meet.rounds)
    settle_everything(now)
    assert violations() == []


@pytest.mark.parametrize("overlap", ["skip", "allow_all"])
def test_invoke_and_invoke(meet: Meeting, overlap: str) -> None:
    """Every occurrence once: all of them start, or the first does and blocks the others."""
    now = NOW
    schedules = [make_schedule(spec={"every": ["10s"]}, overlap=overlap) for _ in range(5)]
    for _ in meet.rounds:
        now += seconds(30)
        generate(now)
        meet(
            partial(invoker.invoke, now),
            partial(invoker.invoke, now),
            behind=Schedule.objects.filter(pk__in=[schedule.pk for schedule in schedules[1:]]),
        )
        settle_everything(now)
    for schedule in schedules:
        statuses = [status for status, _ in fates(schedule)]
        each = ["started"] * 3 if overlap == "allow_all" else ["started", "skipped", "skipped"]
        assert statuses == each * len(meet.rounds)
    assert violations() == []


def test_trigger_and_trigger(meet: Meeting) -> None:
    """A schedule that never overlaps starts once; the second request is told what is in its way."""
    for _ in meet.rounds:
        schedule = make_schedule()
        results = meet(
            partial(invoker.trigger, schedule, initiator=SOMEBODY, now=NOW),
            partial(invoker.trigger, schedule, initiator=SOMEBODY, now=NOW),
            behind=Schedule.objects.filter(pk=schedule.pk),
        )
        (execution,) = Execution.objects.filter(schedule=schedule)
        started = [result for result in results if isinstance(result, Occurrence)]
        refused = [result for result in results if isinstance(result, Overlapping)]
        assert [occurrence.pk for occurrence in started] == [execution.occurrence_id]
        assert [error.blocked_by for error in refused] == [execution.pk]
    run_until_idle()
    assert violations() == []


def test_trigger_twice_with_the_same_key(meet: Meeting) -> None:
    """The same key asks for the same run."""
    for _ in meet.rounds:
        schedule = make_schedule(overlap="allow_all")
        one, other = meet(
            partial(invoker.trigger, schedule, initiator=SOMEBODY, now=NOW, key="k"),
            partial(invoker.trigger, schedule, initiator=SOMEBODY, now=NOW, key="k"),
            behind=Schedule.objects.filter(pk=schedule.pk),
        )
        assert one.pk == other.pk
        assert Execution.objects.filter(schedule=schedule).count() == 1
    run_until_idle()
    assert violations() == []


def test_edit_and_generate(meet: Meeting) -> None:
    """Up to the edit the old spec counts, from then on the new one: no time is lost, none is doubled."""
    now = NOW
    schedule = make_schedule(spec={"every": ["10s"]}, overlap="allow_all")
    specs = [{"every": ["7s"]}, {"every": ["10s"]}] * 5
    expected: list[float] = []
    for number in meet.rounds:
        size, since, now = (10, 7)[number % 2], now, now + seconds(61)
        schedule.refresh_from_db()
        edited, _ = meet(
            partial(
                schedule.edit,
                token=schedule.token,
                initiator=SOMEBODY,
                now=now,
                changes={"spec": specs[number]},
            ),
            partial(generate, now),
            behind=Schedule.objects.filter(pk=schedule.pk),
        )
        assert edited is None
        first, last = int(since.timestamp()) // size + 1, int(now.timestamp()) // size
        expected += [float(place * size) for place in range(first, last + 1)]
        schedule.refresh_from_db()
        assert (schedule.spec, schedule.processed_until) == (specs[number], now)
    nominal = Occurrence.objects.order_by("nominal_at").values_list("nominal_at", flat=True)
    assert [at.timestamp() for at in nominal] == expected
    settle_everything(now)
    assert violations() == []


def test_edit_and_edit(meet: Meeting) -> None:
    """The second one is told that it would undo the first."""
    for _ in meet.rounds:
        schedule = make_schedule()
        copies = [Schedule.objects.get(pk=schedule.pk) for _ in range(2)]
        one, other = (
            partial(copy.edit, token=copy.token, initiator=SOMEBODY, now=NOW, changes={"description": "new"})
            for copy in copies
        )
        results = meet(one, other, behind=Schedule.objects.filter(pk=schedule.pk))
        assert sorted(type(result).__name__ for result in results) == [Conflict.__name__, "NoneType"]


def test_cancel_and_the_next_start(meet: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a cancelled execution and the start of the next one never overlap."""
    now = NOW
    monkeypatch.setattr(clock, "now", lambda: now)  # whoever accounts for an end, in the order of the ends
    schedule = make_schedule(step("a"), step("b", 1), spec={"every": ["10s"]})
    for _ in meet.rounds:
        generate(now := now + seconds(10))
        invoker.invoke(now)
        (running,) = Execution.objects.in_progress()
        generate(now := now + seconds(10))
        results = meet(
            partial(running.cancel, initiator=SOMEBODY, now=now),
            partial(invoker.invoke, now),
            behind=Schedule.objects.filter(pk=schedule.pk),
        )
        assert results == (True, None)
        assert Execution.objects.in_progress().count() <= 1
        settle_everything(now)
        assert is_at_rest()
    assert violations() == []


def test_many_finishes_of_one_wide_group() -> None:
    """Five workers end the ten steps of a group one by one: the next group starts once, and at the end."""
    execution = start(*(step(f"step {number}") for number in range(10)), step("last", 1))
    workers = [make_worker() for _ in range(5)]
    claimed = [(worker, task) for worker in workers for task in claim(worker, limit=2)]
    assert len(claimed) == 10
    accepted = at_once(*(partial(finish, worker, task) for worker, task in claimed))
    assert accepted == [{task.pk} for _, task in claimed]
    assert [task.name for task in claim(workers[0])] == ["last"]
    finish(workers[0], *map(Held.of, WorkerTask.objects.all()))
    execution.refresh_from_db()
    assert execution.status == "completed"
    assert violations() == []


def finish(worker: Worker, *tasks: Held, status: str = "complete") -> set[int]:
    finishes = [
        Finish(
            task,
            Outcome(
                status=status,
                executed_at=NOW,
                finished_at=NOW,
                interrupted="cancel" if status == "cancelled" else None,
                can_retry=True,
            ),
        )
        for task in tasks
    ]
    return WorkerTask.objects.finish(finishes, worker_id=worker.pk, now=NOW)


def settle_everything(now: datetime) -> None:
    """Whatever is due starts, and what has started is worked on until its end."""
    invoker.invoke(now)
    run_until_idle(now=now)
    invoker.invoke(now)


@pytest.mark.skipif(TEST_DB == "postgres", reason="PostgreSQL lets everybody write")
def test_pause_all_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite refuses a write at once to whoever still reads what others have changed since."""
    many = GET_ITERATOR_CHUNK_SIZE + 4
    Schedule.objects.bulk_create(Schedule(name=f"Schedule {n}", processed_until=NOW) for n in range(many))
    pause = Schedule.pause

    def meanwhile(schedule: Schedule, **how: Any) -> None:
        if schedule.pk % 20 == 0:
            at_once(make_worker)
        pause(schedule, **how)

    monkeypatch.setattr(Schedule, "pause", meanwhile)
    assert Schedule.objects.pause_all(initiator=SOMEBODY, now=NOW) == many
    assert Worker.objects.count() >= 5
