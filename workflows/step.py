"""The step type of handler runs: the queue, the worker and the record are those of all other work."""

from __future__ import annotations

from datetime import datetime

from activities.models import Activity
from execution.steps.context import Context, Work
from execution.steps.fields import Field
from execution.steps.outcome import CannotRun
from execution.steps.step_type import StepType

from . import failures
from .failures import Status
from .models import Run


class HandlerStep(StepType):
    name = "handler"
    title = "Handler of a workflow"
    is_offered = False
    is_lost_alone = True  # it locks the workflow
    fields = (Field("workflow", "Workflow", required=True), Field("handler", "Handler", required=True))

    def run(self, ctx: Context) -> object:
        from .performing import perform

        run = Run.objects.select_related("handler__workflow", "workflow").filter(key=ctx.work.key).first()
        if run is None:
            raise CannotRun("no workflow has started this run: workflows do that themselves")
        return perform(run, ctx)

    def lost(self, work: Work, *, is_cancelled: bool, now: datetime) -> str | None:
        """The reset rules decide, not a blind retry; a run that had committed is complete."""
        run = Run.objects.filter(key=work.key).first()
        if run is None:
            return None
        if run.is_active and not end_unperformed(run, "worker lost", is_cancelled=is_cancelled, now=now):
            run.refresh_from_db()  # it got there after all
        if run.status == Status.COMMITTED:
            return Activity.Status.COMPLETE
        return Activity.Status.CANCELLED if is_cancelled else Activity.Status.FAILED_WITH_ERROR


def end_unperformed(run: Run, why: str, *, is_cancelled: bool, now: datetime) -> bool:
    """An active run that nobody performs any more; what somebody cancelled goes on when they say so."""
    if not is_cancelled:
        return run.crash(why, now=now)
    in_flight = run.effect == Run.Effect.IN_FLIGHT
    status = Status.PAUSED_RECONCILIATION if in_flight else Status.PAUSED_APPROVAL
    stop = failures.stop(status, run.tries, can_reconcile=True, now=now)
    return run.stop(stop, "cancelled while it ran" if run.started_at else "cancelled before it ran", now=now)
