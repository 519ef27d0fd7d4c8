"""Two verbs on the same rows at the same time: somebody wins, and the rows stay consistent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.db.models.sql.constants import GET_ITERATOR_CHUNK_SIZE

from activities.models import Activity, ActivityItem, OutputLine
from database import clock
from execution.loops import invoker, manual_runs, recovery
from execution.loops.manual_runs import Overlapping
from execution.loops.recorder import StepOutput, write
from execution.models import Execution, Worker, WorkerTask
from execution.models.attempt import ClaimedTask
from schedules.generator import generate
from schedules.models import Conflict, Occurrence, Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    fates,
    fresh,
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
def consistent(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is done after a commit reads the clock by itself: it leaves alone what the tests settle."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    yield
    assert violations() == []


def test_claim_and_claim(meet: Meeting) -> None:
    """Every task is claimed once, and each worker gets at most what it has seats for."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(20)))
        workers = [make_worker(), make_worker()]
        ours, theirs = meet(
            partial(claim, workers[0], limit=12), partial(claim, workers[1], limit=12), behind=this(execution)
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
        assert fresh(execution).current_index == 1
        assert sorted(task.name for task in claim(worker)) == ["c", "d"]
        finish(worker, *WorkerTask.objects.all())


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
            behind=this(execution),
        )
        assert accepted == {task.pk}
        assert fresh(execution).status == ("cancelled" if was_cancelled else "completed")
        assert was_cancelled or is_last
        statuses = step_statuses(execution)
        assert statuses.pop("a") == ["complete"]
        assert statuses == ({} if is_last else {"b": ["cancelled"]})


def test_cancel_and_failure_with_a_retry(meet: Meeting) -> None:
    """A retry is not queued behind the back of a cancellation."""
    for _ in meet.rounds:
        execution = start(step("a", max_retries=3), step("b", 1))
        worker = make_worker()
        (task,) = claim(worker)
        was_cancelled, accepted = meet(
            partial(execution.cancel, initiator=SOMEBODY, now=NOW),
            partial(finish, worker, task, status="failed_with_error"),
            behind=this(execution),
        )
        assert (was_cancelled, accepted) == (True, {task.pk})
        assert fresh(execution).status == "cancelled"
        assert step_statuses(execution)["a"] in (["failed_with_error"], ["failed_with_error", "cancelled"])


@pytest.mark.parametrize("verb", ["claim", "release"])
def test_cancel_and_claim_or_release(meet: Meeting, verb: str) -> None:
    """What is held hears of the cancellation, what is not or was given back is closed."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(20)))
        worker = make_worker()
        tasks = claim(worker) if verb == "release" else []
        other: Any = partial(WorkerTask.objects.release, tasks[::-1], worker_id=worker.pk)
        was_cancelled, answer = meet(
            partial(execution.cancel, initiator=SOMEBODY, now=NOW),
            other if verb == "release" else partial(claim, worker, limit=10),
            behind=WorkerTask.objects.filter(execution=execution),
        )
        assert was_cancelled
        held = answer if verb == "claim" else [task for task in tasks if task.pk not in answer]
        left = WorkerTask.objects.filter(execution=execution)
        assert {task.pk for task in left} == {task.pk for task in held}
        assert not left.filter(cancel_requested_at=None).exists()
        assert not left.queued().exists()
        finish(worker, *held, status="cancelled")
        assert fresh(execution).status == "cancelled"


def test_terminate_and_finish(meet: Meeting) -> None:
    """An outcome that comes too late changes nothing."""
    for _ in meet.rounds:
        execution = start(step("a"), step("b"), step("c", 1))
        worker = make_worker()
        tasks = claim(worker)
        was_terminated, accepted = meet(
            partial(execution.terminate, initiator=SOMEBODY, now=NOW),
            partial(finish, worker, *tasks),
            behind=this(execution),
        )
        assert was_terminated
        assert accepted in (set(), {task.pk for task in tasks})
        assert fresh(execution).status == "cancelled"
        ended = ["complete" if accepted else "cancelled"]
        assert step_statuses(execution) == {"a": ended, "b": ended, "c": ["cancelled"]}


def test_terminate_and_progress(meet: Meeting) -> None:
    """What a running step says never stands in the way of its end."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(10)))
        worker = make_worker()
        saids = [StepOutput(task.activity_id, lambda: NOW) for task in claim(worker)]
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


class TestRowsThatAStepWritesItself:
    """An attempt does not end between the moment when its step holds it and the commit of these rows."""

    def write_own(self, task: ClaimedTask) -> int | None:
        with transaction.atomic():
            held = Activity.objects.hold_attempt(uuid.UUID(task.work.key), task.work.attempt)
            if held is not None:
                ActivityItem.objects.create(activity_id=held, name="an object", created_at=NOW)
            return held

    @pytest.mark.parametrize("how", ["finish", "terminate"])
    def test_who_ends_the_attempt_finds_them(self, how: str) -> None:
        execution, worker = start(step("a")), make_worker()
        (task,) = claim(worker)

        def end_and_look() -> int:
            if how == "finish":
                finish(worker, task)
            else:
                execution.terminate(initiator=SOMEBODY, now=NOW)
            return ActivityItem.objects.count()

        assert queue_up(end_and_look, behind=partial(self.write_own, task)) == [1]

    def test_after_the_end_there_are_none(self) -> None:
        execution = start(step("a"))
        (task,) = claim(make_worker())
        terminate = partial(execution.terminate, initiator=SOMEBODY, now=NOW)
        assert queue_up(partial(self.write_own, task), behind=terminate) == [None]
        assert not ActivityItem.objects.exists()


def test_recover_and_finish(meet: Meeting) -> None:
    """The attempt of a buried worker ends once: by the worker that still lives, or by whoever recovers it."""
    for _ in meet.rounds:
        execution = start(step("a"), step("b"), step("c", 1))
        worker = make_worker()
        tasks = claim(worker)
        this(worker).bury(now=NOW)
        _, accepted = meet(
            partial(recovery.recover, NOW), partial(finish, worker, *tasks), behind=this(execution)
        )
        recovery.recover(NOW)
        assert accepted in (set(), {task.pk for task in tasks})
        ended = ["complete"] if accepted else ["failed_with_error", "complete"]
        assert WorkerTask.objects.processing().count() == 0
        run_until_idle()
        assert step_statuses(execution) == {"a": ended, "b": ended, "c": ["complete"]}


def test_finish_behind_a_recovery() -> None:
    """An outcome that comes while its attempt is being recovered is refused, whatever it was."""
    for status in ("complete", "failed_with_error", "cancelled"):
        execution = start(step("a", max_retries=3), step("b", 1))
        worker = make_worker()
        (task,) = claim(worker)
        this(worker).bury(now=NOW)
        accepted = queue_up(
            partial(finish, worker, task, status=status), behind=partial(recovery.recover, NOW)
        )
        assert accepted == [set()]
        assert step_statuses(execution) == {"a": ["failed_with_error", "pending"], "b": ["pending"]}
        run_until_idle()


def test_recovery_and_a_write_in_flight() -> None:
    """What a worker was just writing is written before its attempt ends, or not at all."""
    execution = start(step("a"))
    worker = make_worker()
    (task,) = claim(worker)
    said = StepOutput(task.activity_id, lambda: NOW)
    said.output("stdout", ["in time"])
    this(worker).bury(now=NOW)
    queue_up(partial(recovery.recover, NOW), behind=partial(write, [said], worker_id=worker.pk))
    recovery.recover(NOW)
    said.output("stdout", ["too late"])
    assert write([said], worker_id=worker.pk) == {task.activity_id}
    assert [line.text for line in OutputLine.objects.filter(activity=task.activity_id)] == ["in time"]
    assert step_statuses(execution) == {"a": ["failed_with_error", "pending"]}
    run_until_idle()


def test_recover_and_recover(meet: Meeting) -> None:
    """Two schedulers find the same orphans: one next attempt. What was held is left to the next tick."""
    for _ in meet.rounds:
        execution = start(step("a"), step("b"), step("c", 1))
        worker = make_worker()
        claim(worker)
        this(worker).bury(now=NOW)
        meet(*[partial(recovery.recover, NOW)] * 2, behind=this(execution))
        recovery.recover(NOW)
        assert set(WorkerTask.objects.queued().values_list("attempt", "crashes")) == {(2, 1)}
        run_until_idle()
        assert step_statuses(execution)["a"] == ["failed_with_error", "complete"]


def test_bury_and_claim(meet: Meeting) -> None:
    """A worker that is buried while it claims loses what it claimed to the next one."""
    for _ in meet.rounds:
        execution = start(*(step(f"step {number}") for number in range(10)))
        worker = make_worker()
        meet(partial(this(worker).bury, now=NOW), partial(claim, worker), behind=this(worker))
        recovery.recover(NOW)
        assert claim(worker) == []
        run_until_idle()
        assert fresh(execution).status == "completed"


def test_beat_and_bury(meet: Meeting) -> None:
    """Either it beat in time, or it is dead and knows it."""
    for _ in meet.rounds:
        worker = make_worker()
        late = NOW + seconds(3600)
        is_alive, buried = meet(
            partial(worker.beat, late),
            partial(this(worker).expired(late).bury, now=late),
            behind=this(worker),
        )
        assert is_alive is (buried == 0)
        assert fresh(worker).status == ("alive" if is_alive else "dead")


def test_generate_and_generate(meet: Meeting) -> None:
    """Every nominal time once, and the cursor behind the last of them."""
    now = NOW
    schedules = [make_schedule(spec={"every": ["10s"]}, overlap="allow_all") for _ in range(10)]
    for _ in meet.rounds:
        now += seconds(60)
        ends = Schedule.objects.filter(pk__in=[schedules[0].pk, schedules[-1].pk])
        meet(*[partial(generate, now)] * 2, behind=ends)
        generate(now)
    for schedule in schedules:
        assert fresh(schedule).processed_until == now
        assert schedule.occurrences.count() == 6 * len(meet.rounds)
    settle_everything(now)


@pytest.mark.parametrize("overlap", ["skip", "allow_all"])
def test_invoke_and_invoke(meet: Meeting, overlap: str) -> None:
    """Every occurrence once: all of them start, or the first does and blocks the others."""
    now = NOW
    schedules = [make_schedule(spec={"every": ["10s"]}, overlap=overlap) for _ in range(5)]
    for _ in meet.rounds:
        now += seconds(30)
        generate(now)
        later = Schedule.objects.filter(pk__in=[schedule.pk for schedule in schedules[1:]])
        meet(*[partial(invoker.invoke, now)] * 2, behind=later)
        settle_everything(now)
    for schedule in schedules:
        statuses = [status for status, _ in fates(schedule)]
        each = ["started"] * 3 if overlap == "allow_all" else ["started", "skipped", "skipped"]
        assert statuses == each * len(meet.rounds)


@pytest.mark.parametrize("key", ["", "k"])
def test_trigger_and_trigger(meet: Meeting, key: str) -> None:
    """A schedule that never overlaps starts once; the second request is told what is in its way, or gets the
    same run if it has the same key."""
    for _ in meet.rounds:
        schedule = make_schedule()
        ask = partial(manual_runs.trigger, schedule, initiator=SOMEBODY, now=NOW, key=key)
        results = meet(ask, ask, behind=this(schedule))
        (execution,) = Execution.objects.filter(schedule=schedule)
        started = [result.pk for result in results if isinstance(result, Occurrence)]
        refused = [result.blocked_by for result in results if isinstance(result, Overlapping)]
        assert started == [execution.occurrence_id] * (2 if key else 1)
        assert refused == ([] if key else [execution.pk])
    run_until_idle()


def test_edit_and_generate(meet: Meeting) -> None:
    """Up to the edit the old spec counts, from then on the new one: no time is lost, none is doubled."""
    now = NOW
    schedule = make_schedule(spec={"every": ["10s"]}, overlap="allow_all")
    specs = [{"every": ["7s"]}, {"every": ["10s"]}] * 5
    expected: list[float] = []
    for number in meet.rounds:
        size, since, now = (10, 7)[number % 2], now, now + seconds(61)
        schedule.refresh_from_db()
        changes = {"spec": specs[number]}
        edit = partial(schedule.edit, token=schedule.token, initiator=SOMEBODY, now=now, changes=changes)
        edited, _ = meet(edit, partial(generate, now), behind=this(schedule))
        assert edited is True
        first, last = int(since.timestamp()) // size + 1, int(now.timestamp()) // size
        expected += [float(place * size) for place in range(first, last + 1)]
        schedule.refresh_from_db()
        assert (schedule.spec, schedule.processed_until) == (specs[number], now)
    nominal = Occurrence.objects.order_by("nominal_at").values_list("nominal_at", flat=True)
    assert [at.timestamp() for at in nominal] == expected
    settle_everything(now)


def test_edit_and_edit(meet: Meeting) -> None:
    """The second one is told that it would undo the first."""
    for _ in meet.rounds:
        schedule = make_schedule()
        copies = [Schedule.objects.get(pk=schedule.pk) for _ in range(2)]
        one, other = (
            partial(copy.edit, token=copy.token, initiator=SOMEBODY, now=NOW, changes={"description": word})
            for copy, word in zip(copies, ("new", "newer"), strict=True)
        )
        results = meet(one, other, behind=this(schedule))
        assert sorted(type(result).__name__ for result in results) == [Conflict.__name__, "bool"]


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
            behind=this(schedule),
        )
        assert results == (True, None)
        assert Execution.objects.in_progress().count() <= 1
        settle_everything(now)
        assert is_at_rest()


def finish(worker: Worker, *tasks: Any, status: str = "complete") -> set[int]:
    interrupted = "cancel" if status == "cancelled" else None
    return end(worker, *tasks, status=status, interrupted=interrupted, can_retry=True)


def this(row: Any) -> Any:
    return type(row)._default_manager.filter(pk=row.pk)


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
