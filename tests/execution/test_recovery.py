"""Nothing stays "running" that nobody runs; nothing that runs is taken away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured

from activities.models import Activity
from execution.children import lifeline
from execution.children.lifeline import Lifeline, proven_dead
from execution.loops import recovery
from execution.loops.scheduler import tick
from execution.models import Chore, Execution, Worker, WorkerTask
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    claim,
    end,
    everything,
    fresh,
    make_worker,
    row,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)
from tests.conftest import subprocess_env
from tests.fleet import living, state
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def lease_of_a_minute(settings: Any, tmp_path: Path) -> None:
    settings.JIM_LEASE_SECONDS = 60
    settings.JIM_DATA_DIR = tmp_path


def bury(*workers: Worker) -> None:
    Worker.objects.filter(pk__in=[worker.pk for worker in workers]).bury(now=NOW)


class TestWorker:
    """alive → dead, or gone after a clean stop."""

    def test_a_beat_renews_the_lease_and_a_clean_stop_ends_it(self) -> None:
        worker = make_worker()
        assert (worker.status, worker.lease_until) == ("alive", NOW + seconds(60))
        assert worker.beat(NOW + seconds(5), clock_skew=seconds(-90))
        assert (fresh(worker).beat_at, fresh(worker).lease_until) == (NOW + seconds(5), NOW + seconds(65))
        assert fresh(worker).clock_trouble == "1 min 30 s behind the database's"
        assert worker.stop(NOW + seconds(9))
        assert (fresh(worker).status, fresh(worker).ended_at) == ("gone", NOW + seconds(9))

    @pytest.mark.parametrize("ending", ["dead", "gone"])
    def test_a_beat_after_the_end_changes_nothing(self, ending: str) -> None:
        worker = make_worker()
        bury(worker) if ending == "dead" else worker.stop(NOW)
        before = everything()
        assert worker.beat(NOW + seconds(5)) is False
        assert worker.stop(NOW + seconds(5)) is False
        assert Worker.objects.filter(pk=worker.pk).bury(now=NOW + seconds(5)) == 0
        assert everything() == before
        assert fresh(worker).status == ending


class TestExpiredLeases:
    @pytest.mark.parametrize("beats", [False, True])
    def test_a_worker_is_buried_once_its_lease_is_over(self, beats: bool) -> None:
        worker = make_worker()
        self.tick_until(60)
        assert fresh(worker).status == "alive"
        if beats:
            worker.beat(NOW + seconds(50))
        assert recovery.bury_expired(NOW + seconds(61)) == (0 if beats else 1)
        assert fresh(worker).status == ("alive" if beats else "dead")

    def test_the_first_scheduler_waits_one_lease(self) -> None:
        worker = make_worker(NOW - seconds(3600))
        assert recovery.bury_expired(NOW) == 0
        assert recovery.bury_expired(NOW + seconds(30)) == 0
        assert fresh(worker).status == "alive"
        assert recovery.bury_expired(NOW + seconds(60)) == 1

    @pytest.mark.parametrize("beats", [False, True])
    def test_after_an_outage_every_worker_gets_one_lease_to_beat_again(self, beats: bool) -> None:
        worker = make_worker()
        self.tick_until(60)
        worker.beat(NOW + seconds(60))
        back = NOW + seconds(60 + 120)
        assert recovery.bury_expired(back) == recovery.bury_expired(back + seconds(30)) == 0
        if beats:
            worker.beat(back + seconds(31))
        assert recovery.bury_expired(back + seconds(60)) == (0 if beats else 1)
        assert fresh(worker).status == ("alive" if beats else "dead")

    def test_another_scheduler_that_kept_ticking_means_that_there_was_no_outage(self) -> None:
        make_worker()
        self.tick_until(90)
        assert Chore.objects.get(name="tick").steady_since == NOW

    def test_a_clock_that_was_set_back_keeps_nobody_alive(self) -> None:
        """The database's: what was written before seems to be of the future."""
        gone, living = make_worker(NOW + seconds(3600)), make_worker(NOW + seconds(3600))
        recovery.bury_expired(NOW + seconds(3600))
        for late in range(0, 61, 20):
            living.beat(NOW + seconds(late))
            assert recovery.bury_expired(NOW + seconds(late)) == (late == 60)
        assert (fresh(gone).status, fresh(living).status) == ("dead", "alive")

    @pytest.mark.parametrize(
        ("beaten", "orphaned", "again"), [(0, False, 30), (-45, False, 15), (-70, False, 5), (0, True, 5)]
    )
    def test_it_is_looked_at_again_when_it_ends(self, beaten: int, orphaned: bool, again: int) -> None:
        """Soon, if it has ended but must not be believed yet; soon, if a task is left that somebody held."""
        make_worker(NOW + seconds(beaten))
        if orphaned:
            start()
            claim(dead := make_worker())
            bury(dead)
        assert round((recovery.next_look(NOW) - NOW).total_seconds()) == again

    def tick_until(self, last: int) -> None:
        for late in range(0, last + 1, 30):
            recovery.bury_expired(NOW + seconds(late))


class TestProvenDeath:
    """A locked file per worker, inherited by its children: whoever gets the lock has proof."""

    def test_a_dead_one_is_buried_at_once_long_before_its_lease_ends_and_a_live_one_is_not(self) -> None:
        worker = make_worker()
        line = Lifeline(worker.pk)
        assert recovery.bury_proven_dead(NOW) == 0
        assert fresh(worker).status == "alive"
        os.close(line.fd)
        assert recovery.bury_proven_dead(NOW) == 1
        assert fresh(worker).status == "dead"
        assert not line.path.exists()
        assert recovery.bury_proven_dead(NOW) == 0

    def test_it_is_not_dead_while_one_of_its_children_lives(self, settings: Any, tmp_path: Path) -> None:
        """Workers of other data folders are nobody's business."""
        worker = make_worker()
        line = Lifeline(worker.pk)
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[line.fd])
        os.close(line.fd)
        assert list(proven_dead()) == []
        child.kill()
        child.communicate()
        settings.JIM_DATA_DIR = tmp_path / "elsewhere"
        assert list(proven_dead()) == []
        settings.JIM_DATA_DIR = tmp_path
        assert [worker_id for worker_id, _ in proven_dead()] == [worker.pk]

    @pytest.mark.live
    def test_what_outlives_its_worker_is_ended_by_the_next_look_but_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Stopped, it cannot end by itself. Nothing happens to it while its worker's process runs."""
        worker = make_worker()
        with orphan_of(worker) as (parent, orphan):
            monkeypatch.setattr(lifeline, "GRACE_SECONDS", 0)
            assert [lifeline.end_orphans(), lifeline.end_orphans()] == [[], []]
            parent.communicate("die")
            monkeypatch.setattr(lifeline, "GRACE_SECONDS", 3600)
            assert recovery.bury_proven_dead(NOW) == 0
            assert state(orphan) == "T"
            monkeypatch.setattr(lifeline, "GRACE_SECONDS", 0)
            assert lifeline.end_orphans() == [orphan]
            wait_until(lambda: not living([orphan]))
        wait_until(lambda: recovery.bury_proven_dead(NOW) == 1)
        assert fresh(worker).status == "dead"

    def test_after_a_clean_stop_there_is_nothing_to_prove_and_what_nobody_knows_is_cleared_away(self) -> None:
        worker = make_worker()
        line = Lifeline(worker.pk)
        worker.stop(NOW)
        line.drop()
        assert list(proven_dead()) == []
        unknown = Lifeline(uuid.uuid4())
        os.close(unknown.fd)
        assert recovery.bury_proven_dead(NOW) == 0
        assert not unknown.path.exists()


@contextmanager
def orphan_of(worker: Worker) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the worker's lifeline and ends when it is told, and a stopped child of it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(worker.pk)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=configured.BASE_DIR,
        env=subprocess_env(),
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: state(child) == "T")
        yield parent, child
    finally:
        parent.kill()
        parent.wait()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


ORPHAN = """
import subprocess, sys, uuid
from execution.children.lifeline import Lifeline
lifeline = Lifeline(uuid.UUID(sys.argv[1]))
child = subprocess.Popen(["sleep", "3600"], pass_fds=[lifeline.fd], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
input()
"""


class TestLostTasks:
    @pytest.mark.parametrize("is_buried", [True, False])
    def test_the_attempt_fails_with_worker_lost_and_the_next_is_queued_at_once(self, is_buried: bool) -> None:
        """Also if the worker stopped without ending it; to recover twice is to recover once."""
        execution = start(step(max_retries=0))
        worker = make_worker()
        (task,) = claim(worker)
        bury(worker) if is_buried else worker.stop(NOW)
        recovery.recover(NOW + seconds(70))
        before = everything()
        recovery.recover(NOW + seconds(90))
        assert everything() == before
        again = row(task)
        assert (again.status, again.attempt, again.worker_id) == ("queued", 2, None)
        assert (again.failures, again.crashes) == (0, 1)
        assert again.available_at == NOW + seconds(70)
        lost, following = attempts(execution)
        assert (lost.status, lost.error) == ("failed_with_error", "worker lost")
        assert lost.finished_at == NOW + seconds(70)
        assert (following.status, following.retry_of) == ("pending", lost)

    def test_nobody_loses_a_task_before_the_worker_was_found_dead(self) -> None:
        """Two schedulers: one read the clock, and waited while the other buried."""
        execution = start(step())
        worker = make_worker()
        (task,) = claim(worker)
        Worker.objects.filter(pk=worker.pk).bury(now=NOW + seconds(5))
        recovery.recover(NOW)
        assert attempts(execution)[0].finished_at == NOW + seconds(5)
        assert row(task).available_at == NOW + seconds(5)

    def test_tasks_of_the_living_are_left_alone(self) -> None:
        start(step("mine"), step("theirs"))
        dead, living = make_worker(), make_worker()
        claim(dead, limit=1)
        (held,) = claim(living)
        bury(dead)
        recovery.recover(NOW)
        assert WorkerTask.objects.get(name="mine").status == "queued"
        assert row(held).worker == living
        assert end(living, held) == {held.pk}

    def test_a_step_that_must_not_run_twice_fails(self) -> None:
        execution = start(step(on_crash="fail", max_retries=3), step("next", 1))
        worker = make_worker()
        claim(worker)
        bury(worker)
        recovery.recover(NOW)
        (activity,) = attempts(execution)
        assert activity.status == Activity.Status.FAILED_WITH_ERROR
        assert activity.error.startswith("worker lost")
        assert fresh(execution).status == Execution.Status.FAILED
        assert not WorkerTask.objects.exists()

    def test_the_third_crash_is_a_crash_loop_and_stops_nobody_else(self) -> None:
        execution, other = start(step("killer", pool="deadly")), start(step("quiet"))
        for _ in range(3):
            worker = make_worker()
            claim(worker, pools=["deadly"])
            bury(worker)
            recovery.recover(NOW)
        assert not WorkerTask.objects.filter(execution=execution).exists()
        assert step_statuses(execution) == {"killer": ["failed_with_error"] * 3}
        assert "crash loop" in attempts(execution, "killer")[-1].error
        assert "crash loop" in fresh(execution).error
        assert fresh(execution).status == Execution.Status.FAILED
        assert run_until_idle() == ["quiet"]
        assert fresh(other).status == Execution.Status.COMPLETED


class TestStuckExecutions:
    """In progress, but no task is queued or processing: their activities decide, never blindly completed."""

    @pytest.mark.parametrize(
        ("status", "expected"), [("complete", "completed"), ("failed_with_error", "failed")]
    )
    def test_one_whose_last_step_has_ended_ends_likewise(self, status: str, expected: str) -> None:
        execution = start(step("a"))
        self.vanish(execution, status=status)
        Execution.objects.recover(now=NOW + seconds(5))
        assert (fresh(execution).status, fresh(execution).finished_at) == (expected, NOW + seconds(5))

    @pytest.mark.parametrize("status", ["pending", "in_progress"])
    def test_one_whose_tasks_vanished_is_failed_never_completed(self, status: str) -> None:
        execution = start(step("a", continue_on_failure=True), step("b", 1))
        self.vanish(execution, status=status)
        Execution.objects.recover(now=NOW)
        assert fresh(execution).status == Execution.Status.FAILED
        assert "is missing from the queue" in fresh(execution).error
        assert not Activity.objects.open().exists()

    @pytest.mark.parametrize("run_if", ["success", "always"])
    def test_nothing_of_one_stays_open_whose_task_vanished_while_others_wait(self, run_if: str) -> None:
        execution = start(step("a"), step("b", 1, run_if=run_if))
        claim(make_worker())
        WorkerTask.objects.filter(name="a").delete()
        Execution.objects.recover(now=NOW)
        run_until_idle()
        assert fresh(execution).status == Execution.Status.FAILED
        assert not Activity.objects.open().exists()
        assert (
            Activity.objects.get(target_name="a").message
            == "This step has no outcome, because its task is missing from the queue."
        )

    def test_one_whose_later_tasks_vanished_is_failed_never_completed(self) -> None:
        execution = start(step("a"), step("b", 1))
        WorkerTask.objects.filter(name="b").delete()
        worker = make_worker()
        end(worker, *claim(worker))
        assert fresh(execution).status == Execution.Status.FAILED
        assert "“b”" in fresh(execution).error
        assert not Activity.objects.open().exists()

    def test_one_that_was_being_cancelled_is_cancelled(self) -> None:
        execution = start(step("a"), step("b", 1))
        claim(make_worker())
        execution.cancel(initiator=SOMEBODY, now=NOW)
        WorkerTask.objects.all().delete()
        Execution.objects.recover(now=NOW)
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert not Activity.objects.open().exists()

    def test_one_that_cannot_be_judged_does_not_hold_up_the_others(self) -> None:
        bad, good = start(step("a")), start(step("a"))
        self.vanish(bad, status="complete")
        self.vanish(good, status="complete")
        Execution.objects.filter(pk=bad.pk).update(plan={})
        tick(NOW)
        assert fresh(good).status == Execution.Status.COMPLETED

    def vanish(self, execution: Execution, *, status: str) -> None:
        WorkerTask.objects.filter(execution=execution).delete()
        Activity.objects.filter(parent=execution.activity_id, step_index=0).update(status=status)
