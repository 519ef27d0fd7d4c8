"""Queued → processing, and back unstarted: only for a worker that is alive, in the queue's order."""

from __future__ import annotations

import uuid

import pytest

from execution.models import Worker, WorkerTask
from execution.models.attempt import ClaimedTask
from tests.base import NOW, SOMEBODY, claim, everything, make_worker, queue, row, seconds, start, step

pytestmark = pytest.mark.django_db


def names(tasks: list[ClaimedTask]) -> list[str]:
    return [task.name for task in tasks]


def test_a_task_of_the_first_group_belongs_to_who_claims_it_and_its_activity_begins() -> None:
    execution = start(step("a"), step("b"), step("c", 1))
    worker, at = make_worker(), NOW + seconds(5)
    (task,) = claim(worker, limit=1, now=at)
    assert (task.name, row(task).worker, row(task).claimed_at) == ("a", worker, at)
    begun = row(task).activity
    assert (begun.status, begun.worker_id, begun.executed_at) == ("in_progress", worker.pk, at)
    assert names(claim(make_worker())) == ["b"]
    assert claim(make_worker()) == []
    assert queue(execution) == {"a": "processing", "b": "processing", "c": "waiting"}


def test_each_kind_of_isolation_has_its_own_seats() -> None:
    start(step("t1"), step("t2"), step("p1", isolation="process"), step("p2", isolation="process"))
    worker = make_worker()
    tasks = claim(worker, seats={"thread": 2, "process": 1})
    assert names(tasks) == ["t1", "t2", "p1"]
    assert claim(worker, seats={"thread": 5, "process": 0}) == []


def test_without_a_free_seat_nothing_is_claimed() -> None:
    start(step())
    worker, before = make_worker(), everything()
    for free in (0, -3):
        assert claim(worker, seats={"thread": free, "process": 0}) == []
    assert everything() == before


def test_a_worker_serves_its_pools_only_and_without_any_all_of_them() -> None:
    start(step("ldap", pool="ldap"), step("hr", pool="hr"), step("other"))
    worker = make_worker()
    assert names(claim(worker, pools=["ldap", "hr"])) == ["ldap", "hr"]
    assert claim(worker, pools=["ldap"]) == []
    assert names(claim(worker)) == ["other"]


def test_what_is_not_available_yet_is_not_claimed() -> None:
    start(step())
    WorkerTask.objects.update(available_at=NOW + seconds(10), is_delayed=True)
    worker = make_worker()
    assert claim(worker, now=NOW + seconds(9)) == []
    assert names(claim(worker, now=NOW + seconds(10))) == ["work"]


@pytest.mark.parametrize("state", ["dead", "gone", "unknown"])
def test_a_worker_that_is_dead_gone_or_unknown_claims_nothing(state: str) -> None:
    start(step())
    worker = make_worker()
    match state:
        case "dead":
            Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        case "gone":
            worker.stop(NOW)
        case "unknown":
            worker = Worker(id=uuid.uuid4())
    before = everything()
    assert claim(worker) == []
    assert everything() == before


class TestRelease:
    """Claimed too early: back to the queue as the same attempt."""

    def test_it_is_queued_again_as_if_it_had_never_been_claimed(self) -> None:
        execution = start(step())
        before = everything()
        worker = make_worker()
        (task,) = claim(worker)
        assert WorkerTask.objects.release([task], worker_id=worker.pk) == {task.pk}
        after = everything()
        for model in ("WorkerTask", "Activity", "Execution"):
            assert after[model] == before[model]
        (again,) = claim(make_worker())
        assert (again.pk, again.attempt) == (task.pk, 1)
        assert queue(execution) == {"work": "processing"}

    @pytest.mark.parametrize("why", ["of another", "being cancelled", "lost"])
    def test_nobody_releases_what_is_not_theirs_or_has_to_end(self, why: str) -> None:
        execution = start(step())
        holder, other = make_worker(), make_worker()
        (task,) = claim(holder)
        releaser = holder
        match why:
            case "of another":
                releaser = other
            case "being cancelled":
                execution.cancel(initiator=SOMEBODY, now=NOW)
            case "lost":
                Worker.objects.filter(pk=holder.pk).bury(now=NOW)
                WorkerTask.objects.recover(now=NOW)
                claim(other)
        before = everything()
        assert WorkerTask.objects.release([task], worker_id=releaser.pk) == set()
        assert everything() == before
