"""The step types of workflows: `handler` performs a run, `publish` publishes an event."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.steps.context import Context, Work
from execution.steps.fields import Field
from execution.steps.outcome import CannotRun, StepFailed
from execution.steps.step_type import StepType
from schedules.models import Refused
from schedules.placeholders import has_placeholders

from . import failures
from .failures import Status
from .models import Run, Topic
from .models.event import Publication

# Everyone who may view workflows can read stored events.
RECORDED: dict[str, Any] = {
    "secrets": False,
    "shown_in": "every viewer can read the event; use the secret in the consumer instead",
}


class HandlerStep(StepType):
    name = "handler"
    title = "Handler of a workflow"
    is_offered = False
    is_recovered_individually = True  # recovery locks the workflow
    fields = (Field("workflow", "Workflow", required=True), Field("handler", "Handler", required=True))

    def run(self, ctx: Context) -> object:
        from .performing import perform

        run = Run.objects.select_related("handler__workflow", "workflow").filter(key=ctx.work.key).first()
        if run is None:
            raise CannotRun("only a workflow can start a run of its handler; use “Run now” on the workflow")
        return perform(run, ctx)

    def lost(self, work: Work, *, is_cancelled: bool, now: datetime) -> str | None:
        """End the run of an attempt whose worker was lost, and return the status for the attempt.

        The rules for runs decide what follows, not the retry policy of the step. The attempt is complete if
        the run was committed. Return None if the attempt has no run.
        """
        run = Run.objects.filter(key=work.key).first()
        if run is None:
            return None
        if run.is_active and not end_unperformed(run, "worker lost", is_cancelled=is_cancelled, now=now):
            run.refresh_from_db()  # the run has ended meanwhile
        if run.status == Status.COMMITTED:
            return Activity.Status.COMPLETE
        return Activity.Status.CANCELLED if is_cancelled else Activity.Status.FAILED_WITH_ERROR


def end_unperformed(run: Run, why: str, *, is_cancelled: bool, now: datetime) -> bool:
    """End an active run that no worker performs any longer; return False if it has already ended.

    A cancelled run then waits for approval, or for reconciliation if its mutation is in flight.
    """
    if not is_cancelled:
        return run.crash(why, now=now)
    in_flight = run.effect == Run.Effect.IN_FLIGHT
    status = Status.PAUSED_RECONCILIATION if in_flight else Status.PAUSED_APPROVAL
    stop = failures.stop(status, run.tries, can_reconcile=True, now=now)
    why = "cancelled while running" if run.started_at else "cancelled before the run started"
    return run.stop(stop, why, now=now)


class PublishStep(StepType):
    name = "publish"
    title = "Publish an event"
    needs_code_permission = False
    permission = "workflows.publish_event"
    fields = (
        Field(
            "topic",
            "Topic",
            required=True,
            fixed=True,
            help="slug of the topic, such as orders. The topic's consumer, and the schedules that start from "
            "this topic, will run",
        ),
        Field(
            "message_id",
            "Message id",
            help="identifies the event in its topic; an id that was published before is not published again. "
            "If empty, the step's idempotency key is used, which stays the same across retries",
            **RECORDED,
        ),
        Field("payload", "Payload", kind="mapping", help='such as {"order": 17}', **RECORDED),
        Field(
            "title",
            "Title",
            help="a title, such as Order 17, that is shown instead of the message id",
            **RECORDED,
        ),
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        if missing := Topic.objects.missing(values["topic"]):
            return {"topic": missing}
        written = {name: "" if has_placeholders(value) else value for name, value in values.items()}
        try:
            _publication(written, message_id=written["message_id"] or "any")
        except ValidationError as error:
            return {field: " ".join(texts) for field, texts in error.message_dict.items()}
        return {}

    def run(self, ctx: Context) -> object:
        config = ctx.config
        message_id = config["message_id"] or ctx.idempotency_key
        publication = _publication(config, message_id=message_id)
        try:
            done = Topic.objects.publish([publication], now=ctx.clock())
        except Refused as refused:
            raise StepFailed(str(refused), can_retry=False) from None
        ctx.write(f"{publication.topic}: {message_id} ({done})")
        counts = {"new": done.new, "updated": done.updated, "unchanged": done.unchanged}
        return {"topic": publication.topic, "message_id": message_id, **counts}


def _publication(config: dict[str, Any], *, message_id: str) -> Publication:
    return Publication.of(config["topic"], message_id, config["payload"], config["title"])
