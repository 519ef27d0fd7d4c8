from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import at_most, topic_called
from jimsite.terminal import on_clock, state
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused
from text.clean import clean_text
from workflows.models import Event


def event_called(text: str) -> Event:
    slug, slash, message_id = text.strip().partition("/")
    topic = topic_called(slug)
    if not slash:
        raise Refused(f"Give the topic and the message id of the event: {topic.slug}/MESSAGE_ID.")
    found = topic.events.filter(message_id=clean_text(message_id)).first()
    if found is None:
        way_out = f"Use “event list {topic.slug}” to list the events"
        raise Refused(f"Event “{message_id}” was not found in topic {topic.slug}. {way_out}.")
    return found


class Command(VerbsCommand):
    help = "List and skip the events of a topic. To publish an event, use “publish”."

    def verbs(self) -> Iterator[Verb]:
        yield Verb("list", "List the events of a topic, oldest first.", self.list_all, _ask)
        yield from self.operations_of(
            Event, Target("TOPIC/MESSAGE_ID", "such as orders/order-4711", event_called)
        )

    def list_all(self, options: dict[str, Any]) -> None:
        rows = topic_called(options["topic"]).events.order_by("seq")
        if options["status"]:
            rows = rows.filter(status=options["status"])
        found = list(rows[: options["limit"]])
        self.tell({"events": [_facts(row) for row in found]}, lambda: self._show(found))

    def _show(self, rows: Sequence[Event]) -> None:
        if not rows:
            self.say("No events match these filters.")
            return
        self.columns(
            {
                "State": [state(row.status, of=_tone(row)) for row in rows],
                "Event": [row.message_id for row in rows],
                "Title": [row.title for row in rows],
                "Published (UTC)": [on_clock(row.created_at) for row in rows],
            }
        )


def _ask(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="slug of the topic")
    parser.add_argument("--status", choices=Event.Status.values, help="only events in this state")
    at_most(parser, 50)


def _tone(row: Event) -> str:
    return {"consumed": "complete", "reserved": "in_progress"}.get(row.status, "")


def _facts(row: Event) -> dict[str, Any]:
    return {
        "message_id": row.message_id,
        "title": row.title,
        "status": row.status,
        "payload": row.payload,
        "created_at": row.created_at,
        "settled_at": row.settled_at,
    }
