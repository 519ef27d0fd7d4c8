"""What people are told of a workflow: never of handlers and phases first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from schedules.spec import Spec
from text.words import span

from .failures import MOST_CRASHES, Status

if TYPE_CHECKING:
    from .models import Handler, Run, Workflow
    from .models.event import Publication, Published

Shown = Literal["running", "idle", "needs_attention", "stopped"]
MOST_SENTENCE = 300
NOTHING_TO_DO = "Found nothing to do"


def shown_status(workflow: Workflow, open_run: Run | None) -> Shown:
    if workflow.status != workflow.Status.RUNNING:
        return "stopped"
    if open_run is None:
        return "idle"
    return "running" if open_run.is_active or open_run.due_at is not None else "needs_attention"


def issue(workflow: Workflow, open_run: Run | None, now: datetime) -> str:
    """What it waits for and who can resolve it, in a sentence; empty if all is well."""
    if workflow.status == workflow.Status.STOPPED:
        return "Stopped: the code no longer has it. Deploy it again to go on."
    if workflow.status == workflow.Status.PAUSED:
        return f"Paused by a person. {workflow.note}".strip()
    if open_run is None or open_run.is_active:
        return ""
    error = open_run.error.strip().rstrip(".")[:MOST_SENTENCE]
    if open_run.due_at is not None:
        return f"{_sentence(error)} Tries again {_when(open_run.due_at, now)}."
    return f"{_sentence(error)} {_who(open_run)}"


def _when(at: datetime, now: datetime) -> str:
    return f"in {span(at - now)}" if (at - now).total_seconds() >= 1 else "now"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _who(run: Run) -> str:
    match run.status:
        case Status.PAUSED_APPROVAL:
            return "Waiting for an operator to approve or reject it."
        case Status.PAUSED_RECONCILIATION:
            return "Waiting for an operator to say whether it happened."
        case Status.PAUSED_TRANSIENT:
            return f"Tried {run.transient} times; waiting for an operator to retry it."
        case Status.FAILED_LOGIC:
            name = run.handler.name
            return f"Deploy corrected code of {name} and restart scheduler and workers, or retry it as it is."
        case _ if run.crashes >= MOST_CRASHES:
            return "Waiting for somebody to find out why its worker dies, and to retry it."
        case _:
            return "Waiting for somebody who maintains JIM or the connector to mend and retry it."


def schedule_words(handlers: Sequence[Handler]) -> str:
    """When a workflow looks for work by itself."""
    specs = {
        Spec.parse(handler.spec).describe()
        for handler in handlers
        if handler.is_producer and handler.spec and not handler.is_stopped
    }
    return "; ".join(sorted(specs)) or "Runs when an event comes"


def summary(run: Run, publications: Sequence[Publication]) -> str:
    """What a run did: its own title, or what it took and gave."""
    known = run.prepare_result or {}
    if known.get("title"):
        return str(known["title"])
    taken = len(known.get("reserve", []))
    given = Counter(each.topic for each in publications)
    if not taken and not given:
        return NOTHING_TO_DO
    verb = "Skipped" if run.effect == "skipped" else "Consumed"
    parts = [f"{verb} {counted(taken)}"] if taken else []
    parts += [f"published {counted(count)} to {topic}" for topic, count in sorted(given.items())]
    told = " → ".join(parts)
    return told[:1].upper() + told[1:]


def published(event: Publication, done: Published) -> str:
    """What became of one event that somebody published."""
    if done.new:
        return f"“{event.message_id}” is published to {event.topic}."
    if done.updated:
        return f"“{event.message_id}” was pending in {event.topic} already: it has this payload now."
    before = f"“{event.message_id}” was published to {event.topic} before"
    return f"{before}, and is no longer pending: nothing changed."


def counted(number: int) -> str:
    return f"{number:,} event" if number == 1 else f"{number:,} events"
