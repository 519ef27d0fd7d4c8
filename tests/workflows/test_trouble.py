"""What goes wrong at a bad moment: nothing is repeated blindly, nothing is forgotten, nothing spins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection

from activities.models import Activity
from execution.models import Job, Worker, WorkerTask
from execution.scheduler import tick
from tests.base import NOW, SOMEBODY, claim, make_worker
from tests.workflows.base import deploy_all, deployed, events, publish, runs, work
from workflows import (
    AuthRequired,
    Consumer,
    Indeterminate,
    Mutation,
    Prepared,
    Transient,
    Workflow,
    performing,
)
from workflows.contexts import MutateContext, NextContext, PrepareContext, ReconcileContext
from workflows.definition import applied, failed
from workflows.models import Run, Subscription
from workflows.models import Workflow as Row
from workflows.models.run import Commit

pytestmark = pytest.mark.django_db


class Pay(Consumer):
    """Each phase does what the test says; by default it pays one bill after the other."""

    subscribe = ["bills"]
    on_prepare: Callable[[PrepareContext], Prepared] | None = None
    on_mutate: Callable[[MutateContext], object] | None = None
    on_next: Callable[[NextContext, Mutation], object] | None = None
    paid: list[Any]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        cls = type(self)
        return cls.on_prepare(ctx) if cls.on_prepare else Prepared(ctx.peek("bills")[:1])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        cls = type(self)
        if cls.on_mutate is None:
            ctx.apply(self.paid.append, (prepared.reserve[0].message_id, ctx.idempotency_key))
        else:
            cls.on_mutate(ctx)

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        cls = type(self)
        if cls.on_next is not None:
            cls.on_next(ctx, mutation)


class Books(Workflow):
    slug, title = "books", "Books"
    topics = {"bills": "Bills"}
    consumers = [Pay]


@pytest.fixture
def pay(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Pay]]:
    for name in ("on_prepare", "on_mutate", "on_next"):
        monkeypatch.setattr(Pay, name, None)
    monkeypatch.setattr(Pay, "paid", [], raising=False)
    with deployed(Books):
        # It has looked already.
        Subscription.objects.update(cursor=0)
        Row.objects.update(due_at=None)
        yield Pay


def raising(*errors: BaseException) -> Callable[..., None]:
    """Raises one after the other."""
    left = list(errors)

    def fail(*_: object) -> None:
        raise left.pop(0)

    return fail


def last() -> Run:
    return Run.objects.order_by("pk").last()  # type: ignore[return-value]


def work_to_the_end() -> None:
    """At each time for which the last run waits, until it waits for somebody."""
    work()
    while (due := last().due_at) is not None:
        work(now=due)


def approve() -> None:
    last().approve("", initiator=SOMEBODY, now=NOW)


def test_what_comes_after_an_empty_preparation_is_seen_even_if_it_goes_on_later(pay: type[Pay]) -> None:
    """It is cancelled when it has found nothing; an event comes; then a person lets it go on."""

    def look(ctx: PrepareContext) -> Prepared:
        found = ctx.peek("bills")[:1]
        ctx._step.interrupt("cancel")
        return Prepared(found)

    pay.on_prepare = look
    Subscription.objects.update(cursor=-1)
    Row.objects.update(due_at=NOW)
    work()
    assert runs() == [("Pay", "prepared", "paused:approval")]
    publish("bills", "rent")
    pay.on_prepare = None
    approve()
    work()
    assert [name for name, _ in pay.paid] == ["rent"]


def test_the_key_of_a_call_is_the_one_that_is_asked_about_later(pay: type[Pay]) -> None:
    """Also if the first try of an approved mutation did not happen: it is still about the same one."""
    keys = []
    call = raising(AuthRequired("sign in again"), OSError("no answer"))

    def send(ctx: MutateContext) -> None:
        keys.append(ctx.idempotency_key)
        ctx.apply(call)

    pay.on_mutate = send
    publish("bills", "rent")
    work()
    approve()
    work()
    assert last().status == "paused:reconciliation"
    assert keys == [str(last().mutation_key)] * 2


def test_nobody_is_asked_to_fix_a_run_that_was_taken_over(
    pay: type[Pay], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Mock(return_value=True)
    monkeypatch.setattr(performing, "import_string", lambda path: asked)
    settings.JIM_WORKFLOW_FIXER = "installation.fixer"

    def come_too_late(ctx: PrepareContext) -> Prepared:
        pay.on_prepare = None
        last().crash("worker lost", now=NOW)
        raise ValueError("what it read is gone")

    pay.on_prepare = come_too_late
    publish("bills", "rent")
    work()
    assert [status for _, _, status in runs()] == ["crashed", "committed", "committed"]
    assert not asked.called


CAUGHT = [
    (Transient("busy"), "paused:transient", "failed"),
    (Indeterminate("no answer"), "paused:reconciliation", "in_flight"),
    (ValueError("wrong"), "paused:reconciliation", "in_flight"),
]


@pytest.mark.parametrize(("error", "status", "effect"), CAUGHT, ids=lambda each: str(each))
def test_a_handler_cannot_catch_what_became_of_its_mutation(
    pay: type[Pay], error: Exception, status: str, effect: str
) -> None:
    def catch(ctx: MutateContext) -> None:
        with suppress(Exception):
            ctx.apply(raising(error))

    pay.on_mutate = catch
    publish("bills", "rent")
    work()
    assert (last().status, last().effect, last().phase) == (status, effect, "mutating")
    assert events("bills") == {"rent": "reserved"}


def test_a_handler_may_say_what_an_error_of_its_mutation_means(pay: type[Pay]) -> None:
    def translate(ctx: MutateContext) -> None:
        try:
            ctx.apply(raising(OSError("connection refused")))
        except OSError as error:
            raise Transient("nobody was there") from error

    pay.on_mutate = translate
    publish("bills", "rent")
    work()
    assert (last().status, last().effect) == ("paused:transient", "failed")


CHECKPOINTS = ("start", "reach_prepared", "reach_mutating", "reach_mutated", "reach", "commit")


@pytest.mark.parametrize("was_written", [True, False], ids=["written", "not written"])
def test_a_checkpoint_whose_answer_is_lost_is_reached_once(
    pay: type[Pay], monkeypatch: pytest.MonkeyPatch, was_written: bool
) -> None:
    """Each of a run loses its first answer."""
    monkeypatch.setattr(performing, "AGAIN_SECONDS", 0)
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
    publish("bills", "rent")
    work()
    assert {name for name, _ in lost} == set(CHECKPOINTS)
    assert [status for _, _, status in runs()] == ["committed", "committed"]
    assert [name for name, _ in pay.paid] == ["rent"]
    assert events("bills") == {"rent": "consumed"}


def test_a_mutation_that_never_happens_is_tried_again_ever_later_and_not_for_ever(
    pay: type[Pay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service does not answer, and each time it turns out that it did nothing."""
    monkeypatch.setattr(Pay, "reconcile", lambda *_: failed)
    tried: list[float] = []

    def send(ctx: MutateContext) -> None:
        tried.append((ctx.now - NOW).total_seconds())
        ctx.apply(raising(Indeterminate("no answer")))

    pay.on_mutate = send
    publish("bills", "rent")
    work_to_the_end()
    assert tried == [0, 0, 20, 60, 140, 300]
    assert (last().status, last().due_at, last().effect) == ("paused:transient", None, "failed")


def test_a_result_that_cannot_be_kept_is_known_to_have_happened(
    pay: type[Pay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pay, "reconcile", lambda *_: applied({1, 2}))
    pay.on_mutate = lambda ctx: ctx.apply(raising(Indeterminate("no answer")))
    publish("bills", "rent")
    work()
    assert (last().status, last().effect, last().phase) == ("failed:logic", "applied", "mutated")
    last().retry("", initiator=SOMEBODY, now=NOW)
    work()
    assert events("bills") == {"rent": "consumed"}


def test_a_question_that_is_not_answered_in_time_is_not_asked_for_ever(
    pay: type[Pay], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def ask(_: object, ctx: ReconcileContext, prepared: Prepared) -> None:
        asked.append((ctx.now - NOW).total_seconds())
        ctx._step.interrupt("timeout")
        ctx.check()

    monkeypatch.setattr(Pay, "reconcile", ask)
    pay.on_mutate = lambda ctx: ctx.apply(raising(Indeterminate("no answer")))
    publish("bills", "rent")
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


def test_a_cancelled_run_whose_worker_is_lost_ends_as_cancelled(pay: type[Pay]) -> None:
    publish("bills", "rent")
    tick(NOW)
    worker = make_worker()
    claim(worker)
    Job.find(last().key).cancel(initiator=SOMEBODY, now=NOW)  # type: ignore[union-attr]
    lose_worker(worker)
    assert activity_status(last()) == ["cancelled"]
    assert (last().status, last().due_at) == ("paused:approval", None)


def test_a_run_that_commits_while_its_worker_is_given_up_is_complete(
    pay: type[Pay], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("bills", "rent")
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


def test_what_fails_with_old_code_after_a_deployment_is_tried_with_the_new(
    pay: type[Pay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployment came while it ran: there was nothing to try again then."""

    def fail_while_mended(ctx: PrepareContext) -> Prepared:
        monkeypatch.setattr(Pay, "version", "mended")
        deploy_all()
        pay.on_prepare = None
        raise ValueError("a bug")

    pay.on_prepare = fail_while_mended
    publish("bills", "rent")
    work()
    assert [status for _, _, status in runs()] == ["failed:logic", "committed", "committed"]
    assert events("bills") == {"rent": "consumed"}
