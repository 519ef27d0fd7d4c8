"""What goes wrong at a bad moment: nothing is repeated blindly, nothing is forgotten, nothing spins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection

from activities.models import Activity
from execution.loops.scheduler import tick
from execution.models import Job, Worker, WorkerTask
from tests.base import NOW, SOMEBODY, claim, make_worker
from tests.workflows.base import deploy_all, deployed, events, publish, runs, work
from tests.workflows.scripted import Script, SortMail, last
from workflows import AuthRequired, Indeterminate, Transient, performing
from workflows.definition import applied, failed
from workflows.models import Run
from workflows.models import Workflow as Row
from workflows.models.commit import Commit

pytestmark = pytest.mark.django_db


@contextmanager
def mail(script: Script | None = None, **methods: Any) -> Iterator[None]:
    """There is a letter for this consumer, with these methods instead of its own."""
    with deployed((script or Script()).workflow(**methods)):
        publish("mail", "a")
        yield


def work_to_the_end() -> None:
    """At each time for which the last run waits, until it waits for somebody."""
    work()
    while (due := last().due_at) is not None:
        work(now=due)


def approve() -> None:
    last().approve("", initiator=SOMEBODY, now=NOW)


def statuses() -> list[str]:
    return [status for _, _, status in runs()]


def test_what_comes_after_an_empty_preparation_is_seen_even_if_it_goes_on_later() -> None:
    """It is cancelled when it has found nothing; an event comes; then a person lets it go on."""

    def look(self: Any, ctx: Any) -> Any:
        prepared = SortMail.prepare(self, ctx)
        if not prepared.reserve:
            ctx._step.interrupt("cancel")
        return prepared

    with deployed(Script().workflow(prepare=look)):
        work()
        assert runs() == [("Sort", "prepared", "paused:approval")]
        publish("mail", "a")
        approve()
        work()
        assert events("mail") == {"a": "consumed"}


def test_the_key_of_a_call_is_the_one_that_is_asked_about_later() -> None:
    """Also if the first try of an approved mutation did not happen: it is still about the same one."""
    script = Script(apply=[AuthRequired("sign in again"), OSError("no answer")])
    with mail(script):
        work()
        approve()
        work()
    assert last().status == "paused:reconciliation"
    assert script.keys == [str(last().mutation_key)] * 2


def test_nobody_is_asked_to_fix_a_run_that_was_taken_over(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Mock(return_value=True)
    monkeypatch.setattr(performing, "import_string", lambda path: asked)
    settings.JIM_WORKFLOW_FIXER = "installation.fixer"

    def come_too_late(self: Any, ctx: Any) -> Any:
        if Run.objects.count() == 1:
            last().crash("worker lost", now=NOW)
            raise ValueError("what it read is gone")
        return SortMail.prepare(self, ctx)

    with mail(prepare=come_too_late):
        work()
    assert statuses() == ["crashed", "committed", "committed"]
    assert not asked.called


CAUGHT = [
    (Transient("busy"), "paused:transient", "failed"),
    (Indeterminate("no answer"), "paused:reconciliation", "in_flight"),
    (ValueError("wrong"), "paused:reconciliation", "in_flight"),
]


@pytest.mark.parametrize(("error", "status", "effect"), CAUGHT, ids=lambda each: str(each))
def test_a_handler_cannot_catch_what_became_of_its_mutation(
    error: Exception, status: str, effect: str
) -> None:
    def catch(*given: Any) -> None:
        with suppress(Exception):
            SortMail.mutate(*given)

    with mail(Script(apply=[error]), mutate=catch):
        work()
    assert (last().status, last().effect, last().phase) == (status, effect, "mutating")
    assert events("mail") == {"a": "reserved"}


def test_a_handler_may_say_what_an_error_of_its_mutation_means() -> None:
    def translate(*given: Any) -> None:
        try:
            SortMail.mutate(*given)
        except OSError as error:
            raise Transient("nobody was there") from error

    with mail(Script(apply=[OSError("connection refused")]), mutate=translate):
        work()
    assert (last().status, last().effect) == ("paused:transient", "failed")


CHECKPOINTS = ("start", "reach_prepared", "reach_mutating", "reach_mutated", "reach", "commit")


@pytest.mark.parametrize("was_written", [True, False], ids=["written", "not written"])
def test_a_checkpoint_whose_answer_is_lost_is_reached_once(
    monkeypatch: pytest.MonkeyPatch, was_written: bool
) -> None:
    """Each of a run loses its first answer."""
    monkeypatch.setattr(performing, "RETRY_SECONDS", 0)
    monkeypatch.setattr(performing, "connection", Mock())
    lost = []

    def losing(name: str) -> Callable[..., Any]:
        write = getattr(Run, name)

        def lose(run: Run, *args: Any, **kwargs: Any) -> Any:
            if (name, run.pk) in lost:
                return write(run, *args, **kwargs)
            lost.append((name, run.pk))
            if was_written:
                write(run, *args, **kwargs)
            raise OperationalError("server closed the connection unexpectedly")

        return lose

    for name in CHECKPOINTS:
        monkeypatch.setattr(Run, name, losing(name))
    script = Script()
    with mail(script):
        work()
    assert {name for name, _ in lost} == set(CHECKPOINTS)
    assert statuses() == ["committed", "committed"]
    assert (len(script.keys), events("mail")) == (1, {"a": "consumed"})


def test_a_mutation_that_never_happens_is_tried_again_ever_later_and_not_for_ever() -> None:
    """The service does not answer, and each time it turns out that it did nothing."""
    tried: list[float] = []

    def send(self: Any, ctx: Any, prepared: Any) -> None:
        tried.append((ctx.now - NOW).total_seconds())
        SortMail.mutate(self, ctx, prepared)

    with mail(Script(apply=[Indeterminate("no answer")] * 9, verdicts=[failed] * 9), mutate=send):
        work_to_the_end()
    assert tried == [0, 0, 20, 60, 140, 300]
    assert (last().status, last().due_at, last().effect) == ("paused:transient", None, "failed")


def test_a_result_that_cannot_be_kept_is_known_to_have_happened() -> None:
    with mail(Script(apply=[Indeterminate("no answer")], verdicts=[applied({1, 2})])):
        work()
        assert (last().status, last().effect, last().phase) == ("failed:logic", "applied", "mutated")
        last().retry("", initiator=SOMEBODY, now=NOW)
        work()
        assert events("mail") == {"a": "consumed"}


def test_a_question_that_is_not_answered_in_time_is_not_asked_for_ever() -> None:
    asked: list[float] = []

    def ask(self: Any, ctx: Any, prepared: Any) -> None:
        asked.append((ctx.now - NOW).total_seconds())
        ctx._step.interrupt("timeout")
        ctx.check()

    with mail(Script(apply=[Indeterminate("no answer")]), reconcile=ask):
        work_to_the_end()
    assert asked == [0, 10, 30, 70, 150]
    assert (last().status, last().due_at) == ("paused:reconciliation", None)


def lose_worker(worker: Worker) -> None:
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)
    WorkerTask.objects.recover(now=NOW)


def activity_status(run: Run) -> list[str]:
    return list(
        Activity.objects.filter(task_key=run.key).order_by("attempt").values_list("status", flat=True)
    )


def test_a_cancelled_run_whose_worker_is_lost_ends_as_cancelled() -> None:
    with mail():
        tick(NOW)
    worker = make_worker()
    claim(worker)
    Job.find(last().key).cancel(initiator=SOMEBODY, now=NOW)  # type: ignore[union-attr]
    lose_worker(worker)
    assert activity_status(last()) == ["cancelled"]
    assert (last().status, last().due_at) == ("paused:approval", None)


def test_a_run_that_commits_while_its_worker_is_given_up_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    with mail():
        tick(NOW)
    worker = make_worker()
    claim(worker)
    stop = Run.stop

    def commit_first(run: Run, *args: Any, **kwargs: Any) -> bool:
        Run.objects.get(pk=run.pk).commit(Commit(None, (), ""), now=NOW)
        return stop(run, *args, **kwargs)

    monkeypatch.setattr(Run, "stop", commit_first)
    lose_worker(worker)
    assert (last().status, activity_status(last())) == ("committed", ["complete"])


def test_a_look_for_runs_that_go_on_does_not_read_those_that_have_ended() -> None:
    for rows in (Run.objects.active(), Row.objects.due(NOW), Run.objects.abandoned()):
        plan = explain(rows)
        assert "run_open" in plan, plan


def explain(rows: Any) -> str:
    """With as few rows as a test has, PostgreSQL would rather read them all."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
    return str(rows.explain())


def test_what_fails_with_old_code_after_a_deployment_is_tried_with_the_new() -> None:
    """The deployment came while it ran: there was nothing to try again then."""

    def fail_while_mended(self: Any, ctx: Any) -> Any:
        if Run.objects.count() == 1:
            type(self).version = "mended"
            deploy_all()
            raise ValueError("a bug")
        return SortMail.prepare(self, ctx)

    with mail(prepare=fail_while_mended):
        work()
    assert statuses() == ["failed:logic", "committed", "committed"]
    assert events("mail") == {"a": "consumed"}
