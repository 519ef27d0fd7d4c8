"""A consumer that goes wrong as a test says, and a worker that dies in the middle of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from unittest.mock import patch

from activities.models import Activity
from database import clock
from execution.loops.recorder import StepOutput
from execution.loops.scheduler import tick
from execution.models import Worker
from execution.steps.performing import perform
from tests.base import NOW, claim, make_worker, nursery
from workflows import Consumer, Mutation, Prepared, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext, ReconcileContext
from workflows.definition import Reconciled
from workflows.models import Run
from workflows.performing import Performance

Trouble = BaseException | None


class Killed(BaseException):
    """The process of the worker is gone: nothing is said, nothing is tidied up."""


class Script:
    """Reserves the first event of `mail`, writes it to a ledger outside, and publishes to `rows`.

    `trouble`: by place (prepare, mutate, apply, after, next), what it raises each time it comes there.
    """

    def __init__(self, *, verdicts: list[Any] | None = None, **trouble: Sequence[Trouble]) -> None:
        self.trouble = {place: list(errors) for place, errors in trouble.items()}
        self.verdicts = verdicts
        self.calls: list[str] = []
        # The key of each call of the ledger outside, and of each question about it.
        self.keys: list[str] = []
        self.asked: list[str] = []
        self.told: list[Mutation] = []

    def meet(self, place: str) -> None:
        self.calls.append(place)
        waiting = self.trouble.get(place)
        if waiting and (error := waiting.pop(0)) is not None:
            raise error

    def apply(self, key: str) -> dict[str, int]:
        self.keys.append(key)
        self.meet("apply")
        return {"row": len(self.keys)}

    def answer(self, key: str) -> Reconciled:
        self.calls.append("reconcile")
        self.asked.append(key)
        assert self.verdicts is not None
        verdict: Any = self.verdicts.pop(0)
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict  # type: ignore[no-any-return]

    def workflow(self, *, version: str = "1", reserving: int = 1, **methods: Any) -> type[Workflow]:
        """`methods`: what its consumer has instead of its own."""
        given = {"script": self, "version": version, "reserving": reserving} | methods
        consumer = type("Sort", (SortMail,), given)
        if self.verdicts is not None:
            consumer.reconcile = _reconcile  # type: ignore[attr-defined]
        return type("Inbox", (_Inbox,), {"consumers": [consumer]})


class SortMail(Consumer):
    subscribe = ["mail"]
    publishes = ["rows"]
    script: Script
    reserving: int

    def prepare(self, ctx: PrepareContext) -> Prepared:
        self.script.meet("prepare")
        first = ctx.peek("mail")[: self.reserving]
        return Prepared(reserve=first, data=[each.message_id for each in first])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        self.script.meet("mutate")
        ctx.apply(self.script.apply, ctx.idempotency_key)
        self.script.meet("after")

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
        self.script.told.append(mutation)
        self.script.meet("next")
        for each in prepared.reserve:
            ctx.publish("rows", each.message_id, mutation.outcome)
        return {"done": (ctx.state or {"done": 0})["done"] + len(prepared.reserve)}


def _reconcile(self: SortMail, ctx: ReconcileContext, prepared: Prepared) -> Reconciled:
    return self.script.answer(ctx.idempotency_key)


class _Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail", "rows": "Rows"}


def die(*, now: datetime = NOW) -> Run:
    """The next run is performed by a worker that is killed meanwhile; nobody has noticed yet."""
    worker = make_worker(now)
    with (
        patch.object(clock, "now", lambda: now),
        patch.object(Performance, "stop_for"),
        nursery() as children,
    ):
        tick(now)
        (task,) = claim(worker, now=now)
        said = StepOutput(task.activity_id, lambda: now)
        perform(task.work, said, nursery=children, clock=lambda: now)
    assert Activity.objects.get(pk=task.activity_id).status == Activity.Status.IN_PROGRESS
    Worker.objects.filter(pk=worker.pk).bury(now=now)
    return Run.objects.get(key=task.work.key)


def last() -> Run:
    return Run.objects.select_related("workflow", "handler").latest("pk")


def chain() -> list[tuple[str, str]]:
    """(phase, status) of the last attempt and of those that it follows, the first one first."""
    return [(run.phase, run.status) for run in last().chain()]
