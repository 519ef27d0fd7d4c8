from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime

from django.conf import settings
from django.db import models, transaction
from django.db.models import F, Q

from database.statements import AWAY
from database.wake import wake
from execution.loops.invoker import invoke_soon
from schedules.models import Occurrence, Schedule

from .event import Event, Topic

SCHEDULES_PER_TICK = 200
logger = logging.getLogger(__name__)


class EventTriggerQuerySet(models.QuerySet["EventTrigger"]):
    def due(self, now: datetime) -> EventTriggerQuerySet:
        return self.filter(due_at__lte=now)

    def behind(self) -> EventTriggerQuerySet:
        """Keep the triggers that have not yet read all events of their topic."""
        return self.filter(cursor__lt=F("topic__last_seq"))

    def lock(self) -> EventTriggerQuerySet:
        """Lock the triggers in id order.

        To avoid deadlocks, lock topics and schedules before triggers, and events after triggers.
        """
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def follow(self, schedule: Schedule, *, now: datetime) -> None:
        """Create and delete triggers so that an open schedule has one trigger for each of its topics.

        A new trigger begins with the next event of its topic. A closed schedule keeps no triggers.
        """
        own = self.filter(schedule=schedule)
        wanted = [] if schedule.status == Schedule.Status.CLOSED else schedule.topics
        concerned = Topic.objects.filter(Q(slug__in=wanted) | Q(pk__in=own.values("topic")))
        topics = {topic.slug: topic for topic in concerned.lock()}
        own.exclude(topic__slug__in=wanted).delete()
        known = set(own.values_list("topic__slug", flat=True))
        for slug in wanted:
            if slug not in known:
                topic = topics[slug]
                self.create(schedule=schedule, topic=topic, cursor=topic.last_seq)
        own.behind().update(due_at=now)

    def hold(self, topics: Collection[Topic]) -> list[EventTrigger]:
        """Lock and return the triggers of topics that are already locked.

        This is called before any event is written, so that `settle` waits for the new events.
        """
        return list(self.filter(topic__in=topics).lock())

    def awaken(self, triggers: Sequence[EventTrigger], *, now: datetime) -> None:
        """Make locked triggers due for new events, in the transaction that publishes the events.

        `due_at` is written even if it is already set, because a concurrent `settle` that clears `due_at` has
        not seen these events.
        """
        if not triggers:
            return
        self.filter(pk__in=[trigger.pk for trigger in triggers]).update(due_at=now)
        schedules = sorted({trigger.schedule_id for trigger in triggers})
        wake("jim_schedules")
        transaction.on_commit(lambda: start_soon(schedules), robust=True)

    def settle(self, schedule_id: int, *, now: datetime) -> None:
        """Turn new events into occurrences of the schedule, as many as its buffer has room for.

        The invoker then decides which occurrences start.
        """
        with transaction.atomic():
            [schedule] = Schedule.objects.lock_in_order([schedule_id])
            due = self.filter(schedule=schedule, due_at__isnull=False)
            for trigger in due.lock():
                trigger._settle(schedule, now)

    def settle_due(self, now: datetime) -> None:
        due = self.due(now).order_by("schedule_id").values_list("schedule_id", flat=True).distinct()
        ids = list(due[:SCHEDULES_PER_TICK])
        for schedule_id in ids:
            try:
                self.settle(schedule_id, now=now)
            except AWAY as error:
                logger.info("the next tick reads the events of schedule %s: %s", schedule_id, error)
            except Exception:
                logger.exception("could not read the events of schedule %s", schedule_id)
        if ids:
            invoke_soon(ids, now=now)

    def make_room(self, schedule_ids: Collection[int], *, now: datetime) -> None:
        """Make triggers due again that waited because too many occurrences of their schedules were pending.

        A trigger waits until at most half of `share()` occurrences from events are pending.
        """
        waits = self.filter(schedule__in=schedule_ids, due_at=None).behind()
        waiting = dict(waits.values_list("pk", "schedule_id"))
        if not waiting:
            return
        pending = Occurrence.objects.pending().filter(schedule__in=waiting.values(), source="event")
        held = Counter(pending.values_list("schedule_id", flat=True))
        free = [pk for pk, schedule_id in waiting.items() if held[schedule_id] <= share() // 2]
        if free:
            list(self.filter(pk__in=free).lock().values_list("pk"))
            self.filter(pk__in=free).update(due_at=now)
            wake("jim_schedules")


def start_soon(schedule_ids: Sequence[int]) -> None:
    """Start schedules for new events immediately; the scheduler's next tick repeats whatever fails here."""
    from database import clock

    for schedule_id in schedule_ids:
        try:
            EventTrigger.objects.settle(schedule_id, now=clock.now())
        except AWAY as error:
            logger.warning(
                "could not read the events of schedule %s now; the scheduler will: %s", schedule_id, error
            )
    invoke_soon(schedule_ids, now=clock.now())


def share() -> int:
    """Return how many of a schedule's pending occurrences may come from events instead of its times."""
    return max(int(settings.JIM_BUFFER_LIMIT) // 2, 1)


class EventTrigger(models.Model):
    """A topic whose events start a schedule, with the position up to which the topic was read."""

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="event_triggers")
    topic = models.ForeignKey(Topic, models.CASCADE, related_name="triggers")
    cursor = models.BigIntegerField(help_text="The number of the last event that was read.")
    due_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When to read the topic. Empty if all events were read, or if too many are pending.",
    )

    objects = EventTriggerQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["schedule", "topic"], name="trigger_once")]
        indexes = [
            models.Index(fields=["due_at"], name="trigger_due", condition=Q(due_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.schedule} ← {self.topic}"

    def _settle(self, schedule: Schedule, now: datetime) -> None:
        """Turn new events of the topic into occurrences.

        The caller has locked the schedule and the trigger, so events that are published later make the
        trigger due again.
        """
        room = self._room(schedule)
        events = list(self.topic.events.filter(seq__gt=self.cursor).order_by("seq").defer("payload")[:room])
        new = [event for event in events if event.status != Event.Status.SKIPPED]
        Occurrence.objects.bulk_create(
            [
                Occurrence.of_event(
                    schedule, event.pk, event.created_at, name=f"{self.topic}: {event}", now=now
                )
                for event in new
            ],
            ignore_conflicts=True,
        )
        if not hasattr(self.topic, "subscription"):
            Event.objects.filter(pk__in=[event.pk for event in new]).consume(now=now)
        if events:
            self.cursor = events[-1].seq
        self.due_at = None
        self.save(update_fields=["cursor", "due_at"])

    def _room(self, schedule: Schedule) -> int:
        """Return how many more events can become occurrences now; the others wait in the topic."""
        pending = schedule.occurrences.buffered()
        held = pending.filter(source=Occurrence.Source.EVENT).count()
        return max(0, min(share() - held, int(settings.JIM_BUFFER_LIMIT) - pending.count()))
