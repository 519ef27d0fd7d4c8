"""Topics as event sources of schedules, with checks that they exist and that no schedule starts itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from schedules.models import Schedule, Step

from .models import Event, EventTrigger, Topic

PUBLISHING = "publish"


class TopicEventSource:
    """The event source that lets schedules start from the events of topics."""

    def complaints(self, schedule: Schedule, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        if missing := Topic.objects.missing(*schedule.topics):
            return [f"{missing[0].upper()}{missing[1:]}"]
        published = {step["config"]["topic"] for step in steps if step["step_type"] == PUBLISHING}
        if not published:
            return []
        # Lock one topic on behalf of all: if two edits together form a cycle, one of them must see the other.
        list(Topic.objects.lock()[:1])
        links = [Link(topic, str(schedule), to) for topic in schedule.topics for to in sorted(published)]
        cycle = next((found for link in links if (found := cycle_of(link, _links(schedule)))), None)
        return (
            []
            if cycle is None
            else [
                f"The schedule would start itself: {_in_words(cycle)}. "
                "Change one of these topics to break the cycle."
            ]
        )

    def follow(self, schedule: Schedule, *, now: datetime) -> None:
        EventTrigger.objects.follow(schedule, now=now)

    def make_room(self, schedule_ids: Collection[int], *, now: datetime) -> None:
        EventTrigger.objects.make_room(schedule_ids, now=now)

    def events(self, ids: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
        found = Event.objects.filter(pk__in=ids).select_related("topic")
        return {
            event.pk: {
                "id": event.pk,
                "topic": event.topic.slug,
                "message_id": event.message_id,
                "title": event.title,
                "payload": event.payload,
            }
            for event in found
        }


class Link(NamedTuple):
    """A schedule that starts from one topic and publishes to another."""

    topic: str
    schedule: str
    to: str


def cycle_of(link: Link, others: Mapping[str, Sequence[Link]]) -> list[Link] | None:
    """Return the shortest cycle of links that begins with this link, or None if there is none."""
    ways, seen = [[link]], {link.to}
    for way in ways:  # the list grows while it is read
        if way[-1].to == link.topic:
            return way
        further = [each for each in others.get(way[-1].to, ()) if each.to not in seen]
        seen |= {each.to for each in further}
        ways += [[*way, each] for each in further]
    return None


def _links(schedule: Schedule) -> dict[str, list[Link]]:
    """Return the links of all other open schedules, grouped by the topic that they start from."""
    links: dict[str, list[Link]] = defaultdict(list)
    for link in _stored_links(schedule):
        links[link.topic].append(link)
    return links


def _stored_links(schedule: Schedule) -> Iterator[Link]:
    others = EventTrigger.objects.exclude(schedule=schedule.pk)
    steps = Step.objects.filter(step_type=PUBLISHING, schedule__in=others.values("schedule"))
    published: dict[int, set[str]] = defaultdict(set)
    for schedule_id, config in steps.values_list("schedule_id", "config"):
        published[schedule_id].add(str(config.get("topic")))
    known = others.filter(schedule__in=published).order_by("pk")
    for schedule_id, name, topic in known.values_list("schedule_id", "schedule__name", "topic__slug"):
        yield from (Link(topic, name, to) for to in sorted(published[schedule_id]))


def _in_words(cycle: Sequence[Link]) -> str:
    steps = "".join(f" → “{link.schedule}” → {link.to}" for link in cycle)
    return f"{cycle[0].topic}{steps}"
