"""Restart recovery: incomplete runs are found, marked as crashed, and followed by the reset rules."""

from __future__ import annotations

from typing import Any

import pytest

from activities.models import Activity
from execution.loops.scheduler import tick
from execution.models import Job, Worker, WorkerTask
from tests.base import NOW, SOMEBODY, claim, fresh, make_worker, seconds
from tests.timeline import minutes
from tests.workflows.base import begin, deployed, events, publish, work
from tests.workflows.scripted import Killed, Script, chain, die
from workflows import Mutation
from workflows.definition import applied
from workflows.models import Run

pytestmark = pytest.mark.django_db


class TestRecoveryRuns:
    """For each crashed run a recovery run, with `retry_of` pointing to it."""

    @pytest.mark.parametrize(("place", "phase"), [("prepare", "preparing"), ("mutate", "prepared")])
    def test_mutation_not_applied_it_starts_fresh(self, place: str, phase: str) -> None:
        """The history says what happened, and the task is not repeated."""
        script = Script(**{place: [Killed()]})
        with deployed(script.workflow()):
            publish("mail", "a")
            crashed = die()
            assert (crashed.phase, crashed.status) == (phase, "active")
            work(now=minutes(1))
            following = Run.objects.get(retry_of=crashed)
            assert (fresh(crashed).status, fresh(crashed).phase) == ("crashed", phase)
            activity = Activity.objects.get(task_key=crashed.key)
            assert (activity.status, activity.error) == ("failed_with_error", "worker lost")
            assert (following.status, fresh(crashed).error) == ("committed", "worker lost")
            assert script.calls.count("prepare") == 3
            assert events("mail") == {"a": "consumed"}

    @pytest.mark.parametrize("verdicts", [None, (applied({"row": 1}),)], ids=["a person", "reconcile"])
    def test_outcome_uncertain_it_enters_reconciliation(self, verdicts: Any) -> None:
        script = Script(apply=[Killed()], verdicts=verdicts and list(verdicts))
        with deployed(script.workflow()):
            publish("mail", "a")
            die()
            work(now=minutes(1))
            assert len(script.keys) == 1
            if verdicts is None:
                assert chain() == [("mutating", "crashed"), ("mutating", "paused:reconciliation")]
                assert script.calls.count("prepare") == 1
            else:
                assert script.told[0] == Mutation("applied", {"row": 1})
                assert script.asked == script.keys
                assert events("mail") == {"a": "consumed"}

    @pytest.mark.parametrize(("place", "phase"), [("after", "mutated"), ("next", "emitting")])
    def test_applied_and_confirmed_it_starts_at_emitting(self, place: str, phase: str) -> None:
        script = Script(**{place: [Killed()]})
        with deployed(script.workflow()):
            publish("mail", "a")
            crashed = die()
            assert crashed.phase == phase
            work(now=minutes(1))
            assert (len(script.keys), script.calls.count("mutate")) == (1, 1)
            assert script.told[-2] == Mutation("applied", {"row": 1})
            assert events("mail") == {"a": "consumed"}


class TestNoRunIsSilentlyLost:
    def test_one_that_was_claimed_and_never_began(self) -> None:
        with deployed(Script().workflow()):
            publish("mail", "a")
            tick(NOW)
            worker = make_worker()
            assert len(claim(worker)) == 1
            Worker.objects.filter(pk=worker.pk).bury(now=NOW)
            work(now=minutes(1))
            assert Run.objects.order_by("pk")[0].status == "crashed"
            assert events("mail") == {"a": "consumed"}

    def test_one_whose_task_is_gone(self) -> None:
        with deployed(Script().workflow()) as workflow:
            publish("mail", "a")
            run = begin(workflow)
            WorkerTask.objects.all().delete()
            Activity.objects.filter(task_key=run.key).update(status="failed_with_error")
            work(now=minutes(1))
            assert (fresh(run).status, fresh(run).error) == ("crashed", "the run's task ended before the run")
            assert events("mail") == {"a": "consumed"}

    def test_one_that_somebody_cancelled_in_the_queue_waits_for_their_word(self) -> None:
        with deployed(Script().workflow()) as workflow:
            publish("mail", "a")
            run = begin(workflow)
            job = Job.find(run.key)
            assert job is not None
            job.cancel(initiator=SOMEBODY, now=NOW)
            work(now=minutes(1))
            assert (fresh(run).status, fresh(run).error) == (
                "paused:approval",
                "cancelled before the run started",
            )
            fresh(run).approve("go on", initiator=SOMEBODY, now=minutes(1))
            work(now=minutes(1))
            assert events("mail") == {"a": "consumed"}

    def test_one_that_had_committed_is_complete_though_its_worker_could_not_say_so(self) -> None:
        with deployed(Script().workflow()):
            publish("mail", "a")
            run = die()
            assert run.status == "committed"
            work(now=minutes(1))
            activity = run.activity()
            assert activity is not None
            assert activity.status == "complete"
            assert fresh(run).status == "committed"
            assert len(Run.objects.filter(retry_of=run)) == 0


def test_it_takes_no_longer_than_the_next_look() -> None:
    """A recovery run starts as soon as its worker is known to be lost, without a backoff."""
    with deployed(Script(prepare=[Killed()]).workflow()):
        publish("mail", "a")
        crashed = die()
        tick(NOW + seconds(1))
        tick(NOW + seconds(1))
        assert Run.objects.get(retry_of=crashed).created_at == NOW + seconds(1)
