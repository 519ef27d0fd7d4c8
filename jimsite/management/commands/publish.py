from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from files import given_files, strict_json
from jimsite.arguments import topic_called
from jimsite.terminal import JimCommand
from schedules.models import Refused
from workflows.models import Topic
from workflows.models.event import Publication
from workflows.words import published


class Command(JimCommand):
    help = (
        "Publish an event to a topic. The topic's consumer, and the schedules that start from this topic, "
        "will run. If you use a message id again, no second event is added: while the first event is "
        "pending, its payload is replaced."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("topic", metavar="TOPIC", help="slug of the topic")
        parser.add_argument("message_id", metavar="MESSAGE_ID", help="identifies the event in its topic")
        parser.add_argument(
            "--payload", metavar="JSON", help="data of the event as JSON; - reads standard input"
        )
        parser.add_argument("--title", default="", help="shown instead of the message id")

    def run(self, options: dict[str, Any]) -> None:
        slug, message_id = topic_called(options["topic"]).slug, options["message_id"]
        event = Publication.of(slug, message_id, _payload(options["payload"]), options["title"])
        done = Topic.objects.publish([event], now=self.now, by=self.by)
        outcome = "new" if done.new else "updated" if done.updated else "unchanged"
        facts = {"topic": slug, "message_id": message_id, "outcome": outcome}
        self.tell(facts, lambda: self.say(published(event, done)))


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    if text == given_files.STANDARD_INPUT:
        text = _read()
    try:
        return strict_json.loads(text)
    except ValueError as error:
        raise Refused(f"--payload: {error}.") from None


def _read() -> str:
    try:
        return given_files.read(given_files.STANDARD_INPUT, most=4 * strict_json.MAX_CHARS)
    except given_files.Unfit as error:
        raise Refused(f"--payload: standard input {error}.") from None
