from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import F, OuterRef, Q, Subquery
from django.urls import reverse

from activities.models import Activity
from database.statements import insert_each, literal, slices, update_each
from operations.initiator import Initiator
from schedules.models import Refused
from schedules.models.step import check_plain_text
from schedules.placeholders import hint
from text.clean import clean_json, clean_text
from workflows.definition import Pending

from .workflow import Workflow

PAYLOAD_BYTES = 256 * 1024
LONGEST_ID = 200
LONGEST_TITLE = 200
MOST_CAUSES = 100
MOST_COUNTED = 1_000


@dataclass(frozen=True)
class Publication:
    """A validated event, ready to be published."""

    topic: str
    message_id: str
    payload: Any = None
    title: str = ""

    @classmethod
    def of(cls, topic: str, message_id: object, payload: Any = None, title: object = "") -> Publication:
        """Return a publication with these fields; raise ValidationError with the errors by field."""
        errors: dict[str, str] = {}
        if not isinstance(message_id, str) or not 0 < len(message_id) <= LONGEST_ID:
            errors["message_id"] = (
                f"Must be a string with 1 to {LONGEST_ID} characters that identifies the event."
            )
        if not isinstance(title, str) or len(title) > LONGEST_TITLE:
            errors["title"] = f"Must be a string with at most {LONGEST_TITLE} characters."
        if why := _unstorable(payload):
            errors["payload"] = why
        if errors:
            raise ValidationError(errors)
        check_plain_text(str(message_id), "message_id")
        return cls(topic, str(message_id), clean_json(payload), clean_text(str(title)))


def _unstorable(payload: Any) -> str:
    try:
        size = len(json.dumps(clean_json(payload), allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        return f"The payload cannot be stored as JSON: {error}."
    if size > PAYLOAD_BYTES:
        return (
            f"The payload is {size:,} bytes of JSON; at most {PAYLOAD_BYTES:,} are allowed. "
            "Publish a reference to the data instead."
        )
    return ""


@dataclass(frozen=True)
class Published:
    """How many events were new, got a new payload, or stayed as they were because they were not pending."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0

    def __str__(self) -> str:
        counts = {"new": self.new, "updated": self.updated, "unchanged": self.unchanged}
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "nothing"


class CountOf(Subquery):
    """An expression that counts the rows of a subquery; a LIMIT in the subquery keeps this cheap."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"
    output_field = models.IntegerField()


class TopicQuerySet(models.QuerySet["Topic"]):
    def with_backlog(self) -> TopicQuerySet:
        """Annotate topics with `pending_count` and with `oldest_at`, the time of the oldest pending event.

        Counting stops at MOST_COUNTED + 1, so this number means “more than MOST_COUNTED”.
        """
        pending = Event.objects.pending().filter(topic=OuterRef("pk")).order_by("seq")
        return self.annotate(
            pending_count=CountOf(pending.values("pk")[: MOST_COUNTED + 1]),
            oldest_at=Subquery(pending.values("created_at")[:1]),
        )

    def publish(
        self,
        publications: Sequence[Publication],
        *,
        now: datetime,
        run_id: int | None = None,
        causes: Sequence[int] = (),
        awaken: Collection[int] = (),
        by: Initiator | None = None,
    ) -> Published:
        """Publish all events or none, and return how many were new, updated or unchanged.

        Each topic stays locked until the commit, so that events are numbered in the order of commits.
        `causes`: the ids of the events that caused these. `awaken`: the ids of further workflows to
        wake in the same transaction. `by`: whom to record as the publisher.
        """
        from .trigger import EventTrigger

        with transaction.atomic():
            slugs = {each.topic for each in publications}
            topics = {topic.slug: topic for topic in self.filter(slug__in=slugs).lock()}
            triggers = EventTrigger.objects.hold(topics.values())
            if unknown := sorted(slugs - topics.keys()):
                raise Refused(f"Topic “{unknown[0]}” does not exist; {self._suggestion(unknown[0])}")
            counts = Published()
            grown: list[int] = []
            for slug, topic in topics.items():
                latest = {each.message_id: each for each in publications if each.topic == slug}
                done = topic._add(latest, now=now, run_id=run_id, causes=list(causes)[:MOST_CAUSES], by=by)
                counts = Published(
                    counts.new + done.new, counts.updated + done.updated, counts.unchanged + done.unchanged
                )
                grown += [topic.pk] if done.new else []
            EventTrigger.objects.awaken([each for each in triggers if each.topic_id in grown], now=now)
            self._awaken_consumers(grown, awaken=awaken, now=now)
        return counts

    def _awaken_consumers(self, grown: Sequence[int], *, awaken: Collection[int], now: datetime) -> None:
        from .handler import Subscription

        consumers = Subscription.objects.filter(topic__in=grown).values_list("handler__workflow", flat=True)
        Workflow.objects.awaken({*awaken, *(consumers if grown else ())}, now=now)

    def lock(self) -> TopicQuerySet:
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def missing(self, *slugs: str) -> str:
        """Return a message about the first topic that does not exist, or an empty string if all exist."""
        known = set(self.filter(slug__in=slugs).values_list("slug", flat=True))
        missing = next((slug for slug in slugs if slug not in known), None)
        return (
            "" if missing is None else f"topic “{missing[:60]}” does not exist; {self._suggestion(missing)}"
        )

    def _suggestion(self, slug: str) -> str:
        known = list(self.order_by("slug").values_list("slug", flat=True))
        return hint(slug, known) if known else "no topics exist yet: declare them in a workflow"


class Topic(models.Model):
    """A named sequence of events with at most one consumer. Topics are never deleted."""

    slug = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=200, blank=True)
    workflow = models.ForeignKey(
        Workflow,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="topics",
        help_text="The workflow that declares this topic.",
    )
    last_seq = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()

    objects = TopicQuerySet.as_manager()

    class Meta:
        ordering = ["slug"]
        default_permissions = ("view",)
        permissions = [("publish_event", "Can publish events")]

    def __str__(self) -> str:
        return self.slug

    def get_absolute_url(self) -> str:
        return reverse("web:topic", args=[self.slug])

    def _add(
        self,
        latest: dict[str, Publication],
        *,
        now: datetime,
        run_id: int | None,
        causes: list[int],
        by: Initiator | None,
    ) -> Published:
        """Add new events, replace the payload of known ones that are still pending, and return the counts.

        `latest` maps message ids to publications. The caller holds the topic's lock.
        """
        rows = Event.objects.filter(topic=self).values_list("pk", "message_id", "status")
        known = {
            message_id: (pk, status)
            for some in slices(list(latest))
            for pk, message_id, status in rows.filter(message_id__in=some)
        }
        pending = [
            (pk, latest[m].payload) for m, (pk, status) in known.items() if status == Event.Status.PENDING
        ]
        if pending:
            update_each(Event, ("payload",), pending, where="t.status = 'pending'")
        new = [each for each in latest.values() if each.message_id not in known]
        if new:
            self._insert(new, now=now, run_id=run_id, causes=causes, publisher=by.name if by else "")
        done = Published(len(new), len(pending), len(known) - len(pending))
        if by is not None and (new or pending):
            Activity.objects.record("publish", self, initiator=by, now=now, message=str(done))
        return done

    def _insert(
        self,
        new: Sequence[Publication],
        *,
        now: datetime,
        run_id: int | None,
        causes: list[int],
        publisher: str,
    ) -> None:
        rows = [
            (self.last_seq + number, each.message_id, each.payload, each.title, causes)
            for number, each in enumerate(new, 1)
        ]
        same = {
            "topic": self.pk,
            "status": Event.Status.PENDING,
            "created_by": run_id,
            "published_by": publisher,
            "attempt": 1,
            "created_at": now,
        }
        insert_each(Event, ("seq", "message_id", "payload", "title", "caused_by"), rows, same=same)
        Topic.objects.filter(pk=self.pk).update(last_seq=F("last_seq") + len(new))
        self.last_seq += len(new)


class EventQuerySet(models.QuerySet["Event"]):
    def pending(self) -> EventQuerySet:
        return self.filter(status=literal(Event.Status.PENDING))

    def reserve(self, ids: Collection[int], *, run_id: int, topics: Iterable[int]) -> int:
        """Reserve the events with these ids that are pending in `topics`; return how many were reserved."""
        free = self.pending().filter(topic__in=list(topics))
        taken = {"status": Event.Status.RESERVED, "reserved_by": run_id}
        with transaction.atomic(savepoint=False):
            return sum(free.filter(pk__in=some).update(**taken) for some in slices(sorted(set(ids))))

    def release(self) -> int:
        """Make reserved events pending again, for another attempt."""
        reserved = self.filter(status=Event.Status.RESERVED)
        return reserved.update(status=Event.Status.PENDING, reserved_by=None, attempt=F("attempt") + 1)

    def consume(self, *, now: datetime) -> int:
        """Mark pending events as consumed; used for events that started a schedule and have no consumer."""
        return self.pending().update(status=Event.Status.CONSUMED, settled_at=now)

    def settle(self, status: str, *, now: datetime) -> int:
        """Mark reserved events as consumed or skipped."""
        return self.filter(status=Event.Status.RESERVED).update(status=status, settled_at=now)


class Event(models.Model):
    """One message in a topic."""

    class Status(models.TextChoices):
        PENDING = "pending"
        RESERVED = "reserved"
        CONSUMED = "consumed"
        SKIPPED = "skipped"

    topic = models.ForeignKey(Topic, models.CASCADE, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    message_id = models.CharField(max_length=LONGEST_ID)
    title = models.CharField(max_length=LONGEST_TITLE, blank=True)
    payload = models.JSONField(null=True, blank=True)
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.PENDING)
    reserved_by = models.ForeignKey(
        "workflows.Run", models.SET_NULL, null=True, blank=True, related_name="reserved", db_index=False
    )
    created_by = models.ForeignKey(
        "workflows.Run", models.SET_NULL, null=True, blank=True, related_name="published", db_index=False
    )
    published_by = models.CharField(
        max_length=255, blank=True, help_text="Who published the event. Empty if a run published it."
    )
    caused_by = models.JSONField(
        default=list, blank=True, help_text="The ids of the events that caused this one."
    )
    attempt = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(
        null=True, blank=True, help_text="When the event was consumed or skipped."
    )

    objects = EventQuerySet.as_manager()

    class Meta:
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["topic", "message_id"], name="event_once"),
            models.UniqueConstraint(fields=["topic", "seq"], name="event_in_order"),
        ]
        indexes = [
            models.Index(fields=["topic", "seq"], name="event_pending", condition=Q(status="pending")),
            models.Index(
                fields=["reserved_by"], name="event_reserved_by", condition=Q(reserved_by__isnull=False)
            ),
            models.Index(
                fields=["created_by"], name="event_created_by", condition=Q(created_by__isnull=False)
            ),
            models.Index(fields=["settled_at"], name="event_settled", condition=Q(settled_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.title or self.message_id

    def get_absolute_url(self) -> str:
        return reverse("web:event", args=[self.pk])

    def skip(self, note: str, *, initiator: Initiator, now: datetime) -> bool:
        """Skip the event; return False if it is no longer pending."""
        with transaction.atomic():
            skipped = Event.objects.pending().filter(pk=self.pk)
            if not skipped.update(status=Event.Status.SKIPPED, settled_at=now):
                return False
            Activity.objects.record("skip", self, initiator=initiator, now=now, message=note)
        return True

    def as_pending(self) -> Pending:
        """Return the event in the form that handlers get."""
        return Pending(
            self.pk, self.topic.slug, self.message_id, self.payload, self.title, self.attempt, self.created_at
        )
