from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import F
from django.db.models.functions import Least

from database.statements import fetch, instant
from schedules.spec import Spec
from workflows.decision import ConsumerFacts, ProducerFacts

from .event import Topic
from .workflow import Workflow

# The cursor of a new consumer: before the first event, so that it runs once even in an empty topic.
NEVER = -1


class HandlerQuerySet(models.QuerySet["Handler"]):
    def deployed(self) -> HandlerQuerySet:
        return self.filter(is_stopped=False)

    def producers(self) -> HandlerQuerySet:
        return self.filter(kind=Handler.Kind.PRODUCER)

    def facts(self, workflow_id: int) -> tuple[list[ProducerFacts], list[ConsumerFacts]]:
        """Return what `decide` must know about the workflow's deployed producers and consumers.

        The query makes one index probe for each topic. It is plain SQL, because publications and commits wait
        for it, and Django would take longer to build the query than the database takes to run it.
        """
        producers: list[ProducerFacts] = []
        consumers: dict[int, ConsumerFacts] = {}
        for pk, kind, position, next_run_at, wake_at, is_dirty, oldest in fetch(_FACTS, [workflow_id]):
            if kind == Handler.Kind.PRODUCER:
                producers.append(ProducerFacts(pk, position, _instant(next_run_at)))
                continue
            other = consumers.get(pk)
            times = [at for at in (_instant(oldest), other.oldest if other else None) if at is not None]
            is_dirty = bool(is_dirty) or (other is not None and other.is_dirty)
            consumers[pk] = ConsumerFacts(pk, position, is_dirty, _instant(wake_at), min(times, default=None))
        return producers, list(consumers.values())


_FACTS = """
    SELECT handler.id, handler.kind, handler.position, handler.next_run_at, handler.wake_at,
        topic.last_seq > subscription.cursor,
        (
            SELECT event.created_at FROM workflows_event event
            WHERE event.topic_id = topic.id AND event.status = 'pending' ORDER BY event.seq LIMIT 1
        )
    FROM workflows_handler handler
    LEFT JOIN workflows_subscription subscription ON subscription.handler_id = handler.id
    LEFT JOIN workflows_topic topic ON topic.id = subscription.topic_id
    WHERE handler.workflow_id = %s AND NOT handler.is_stopped
"""


def _instant(at: datetime | str | None) -> datetime | None:
    return None if at is None else instant(at)


class Handler(models.Model):
    """A deployed producer or consumer, with its state."""

    class Kind(models.TextChoices):
        PRODUCER = "producer"
        CONSUMER = "consumer"

    workflow = models.ForeignKey(Workflow, models.CASCADE, related_name="handlers")
    name = models.CharField(max_length=100)
    title = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    position = models.PositiveIntegerField(default=0)
    spec = models.JSONField(
        null=True, blank=True, help_text="The times at which a producer runs. Null for a consumer."
    )
    publishes = models.JSONField(default=list, blank=True)
    timeout_seconds = models.PositiveIntegerField(default=300)
    code_version = models.CharField(max_length=100)
    is_stopped = models.BooleanField(default=False, help_text="The handler was removed from the code.")
    state = models.JSONField(null=True, blank=True)
    next_run_at = models.DateTimeField(null=True, blank=True)
    wake_at = models.DateTimeField(null=True, blank=True)
    topics = models.ManyToManyField(Topic, through="Subscription", related_name="consumers")

    objects = HandlerQuerySet.as_manager()

    class Meta:
        ordering = ["position"]
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["workflow", "name"], name="handler_once")]

    def __str__(self) -> str:
        return self.title or self.name

    @property
    def is_producer(self) -> bool:
        return self.kind == self.Kind.PRODUCER

    def next_time(self, now: datetime) -> datetime | None:
        return Spec.parse(self.spec).next(now) if self.spec else None


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    def behind(self) -> SubscriptionQuerySet:
        """Keep the subscriptions whose topic has events that the consumer has not seen."""
        return self.filter(cursor__lt=F("topic__last_seq"))

    def rewind(self) -> int:
        """Let the consumers look at all pending events again.

        The cursor gets a new value each time, so that a run that began before cannot advance the cursor.
        """
        return self.update(cursor=Least(F("cursor"), NEVER + 1) - 1)


class Subscription(models.Model):
    """A consumer's subscription to a topic, with the number of the last event that it has seen."""

    handler = models.ForeignKey(Handler, models.CASCADE, related_name="subscriptions")
    # One to one, so that each event is consumed once.
    topic = models.OneToOneField(Topic, models.CASCADE, related_name="subscription")
    cursor = models.BigIntegerField(default=NEVER)

    objects = SubscriptionQuerySet.as_manager()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.handler} ← {self.topic}"
