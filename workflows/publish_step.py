"""An event published by a step: what follows from it is up to those who wait for its topic."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError

from execution.steps.context import Context
from execution.steps.fields import Field
from execution.steps.outcome import StepFailed
from execution.steps.step_type import StepType
from schedules.models import Refused
from schedules.placeholders import has_placeholders

from .models import Topic
from .models.event import Publication

# Events are kept, and shown to all who may view workflows.
RECORDED: dict[str, Any] = {
    "secrets": False,
    "shown_in": "every viewer can read the event; let the consumer use the secret instead",
}


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
            help="by its name, such as orders; whoever consumes it, and schedules that it starts, are told",
        ),
        Field(
            "message_id",
            "Message id",
            help="tells events of a topic apart: the same one again is the same event. "
            "Empty: the step's idempotency key, which stays the same across its retries",
            **RECORDED,
        ),
        Field("payload", "Payload", kind="mapping", help='such as {"order": 17}', **RECORDED),
        Field("title", "Title", help="for people, such as Order 17", **RECORDED),
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        if missing := Topic.objects.why_not(values["topic"]):
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
        told = {"new": done.new, "updated": done.updated, "unchanged": done.unchanged}
        return {"topic": publication.topic, "message_id": message_id, **told}


def _publication(config: dict[str, Any], *, message_id: str) -> Publication:
    return Publication.of(config["topic"], message_id, config["payload"], config["title"])
