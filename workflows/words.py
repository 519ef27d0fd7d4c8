"""Sentences about workflows, runs and events, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args

from schedules.spec import Spec
from text.words import span

from .failures import MOST_CRASHES, Status

if TYPE_CHECKING:
    from .models import Handler, Run, Workflow
    from .models.event import Publication, Published

ShownStatus = Literal["running", "idle", "needs_attention", "paused", "stopped"]
SHOWN_STATUSES: tuple[ShownStatus, ...] = get_args(ShownStatus)
MOST_SENTENCE = 300
NOTHING_TO_DO = "Found nothing to do"


def shown_status(workflow: Workflow, open_run: Run | None) -> ShownStatus:
    """Return the status to show: what an active workflow is doing now, or “paused” or “stopped”."""
    if workflow.status != workflow.Status.ACTIVE:
        return "paused" if workflow.status == workflow.Status.PAUSED else "stopped"
    if open_run is None:
        return "idle"
    return "running" if open_run.is_active or open_run.due_at is not None else "needs_attention"


def issue(workflow: Workflow, open_run: Run | None, now: datetime) -> str:
    """Return what blocks the workflow and what happens next or must be done, or an empty string."""
    if workflow.status == workflow.Status.STOPPED:
        return "Stopped: the workflow was removed from the code. To continue, add it again and deploy."
    if workflow.status == workflow.Status.PAUSED:
        return f"Paused by an operator. {workflow.note}".strip()
    if open_run is None or open_run.is_active:
        return ""
    error = open_run.error.strip().rstrip(".")[:MOST_SENTENCE]
    if open_run.due_at is not None:
        return f"{_sentence(error)} Retries {_when(open_run.due_at, now)}."
    return f"{_sentence(error)} {_next_step(open_run)}"


def _when(at: datetime, now: datetime) -> str:
    return f"in {span(at - now)}" if (at - now).total_seconds() >= 1 else "now"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _next_step(run: Run) -> str:
    match run.status:
        case Status.PAUSED_APPROVAL:
            return "An operator must approve or reject the run."
        case Status.PAUSED_RECONCILIATION:
            return "Check whether the mutation happened, then mark it as applied or not applied."
        case Status.PAUSED_TRANSIENT:
            return f"Failed {run.transient} times. An operator must retry the run."
        case Status.FAILED_LOGIC:
            name = run.handler.name
            return (
                f"Fix and deploy the handler {name}, then restart the scheduler and workers. "
                "Or retry without a fix."
            )
        case _ if run.crashes >= MOST_CRASHES:
            return "Find out why the workers were lost, then retry the run."
        case _:
            return "Fix the fault in JIM or the connector, then retry the run."


def schedule_words(handlers: Sequence[Handler]) -> str:
    """Return text that says when the workflow of these handlers runs."""
    specs = {
        Spec.parse(handler.spec).describe()
        for handler in handlers
        if handler.is_producer and handler.spec and not handler.is_stopped
    }
    return "; ".join(sorted(specs)) or "Runs when an event is published"


def summary(run: Run, publications: Sequence[Publication]) -> str:
    """Return text that says what a run did: its own title, or the events that it consumed and published."""
    known = run.prepare_result or {}
    if known.get("title"):
        return str(known["title"])
    consumed = len(known.get("reserve", []))
    by_topic = Counter(each.topic for each in publications)
    if not consumed and not by_topic:
        return NOTHING_TO_DO
    verb = "Skipped" if run.effect == "skipped" else "Consumed"
    parts = [f"{verb} {counted(consumed)}"] if consumed else []
    parts += [f"published {counted(count)} to {topic}" for topic, count in sorted(by_topic.items())]
    text = " → ".join(parts)
    return text[:1].upper() + text[1:]


def published(event: Publication, done: Published) -> str:
    """Return text that says what publishing one event did."""
    if done.new:
        return f"Published “{event.message_id}” to {event.topic}."
    if done.updated:
        return f"“{event.message_id}” was already pending in {event.topic}. Its payload was replaced."
    return (
        f"“{event.message_id}” was already published to {event.topic} and is no longer pending. "
        "Nothing changed."
    )


def counted(number: int) -> str:
    return f"{number:,} event" if number == 1 else f"{number:,} events"
