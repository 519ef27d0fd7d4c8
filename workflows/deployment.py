"""Write the workflows of the code to the database. Removed workflows are stopped, never deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from activities.models import Activity
from operations.initiator import Initiator

from . import definition
from .definition import Consumer, Definitions, Producer
from .discovery import definitions
from .failures import Status
from .models import Handler, Run, Subscription, Topic, Workflow

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """One difference between code and database. `how`: new, changed, stopped or resumed."""

    how: str
    what: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.how:<8} {self.what}" + (f" ({'; '.join(self.details)})" if self.details else "")


def deploy_at_start(now: datetime) -> None:
    for change in deploy(definitions(), initiator=Initiator.system("deployment"), now=now):
        logger.info("deployed: %s", change)


def deploy(wanted: Definitions, *, initiator: Initiator, now: datetime) -> list[Change]:
    """Make the database match the code, and return what changed."""
    changes = _topics(wanted, now=now)
    for slug, workflow in wanted.workflows.items():
        changes += _deploy(slug, workflow, initiator=initiator, now=now)
    gone = Workflow.objects.exclude(slug__in=wanted.workflows).exclude(status=Workflow.Status.STOPPED)
    changes += [
        Change("stopped", f"workflow {row.slug}") for row in gone if row.stop(initiator=initiator, now=now)
    ]
    return changes


def rehearse(wanted: Definitions, *, initiator: Initiator, now: datetime) -> list[Change]:
    """Return what `deploy` would change, without changing anything."""
    with transaction.atomic():
        # All changes are in one transaction, so lock all topics before the first workflow to avoid deadlocks.
        for rows in (Topic.objects.lock(), Workflow.objects.lock()):
            list(rows.values_list("pk"))
        changes = deploy(wanted, initiator=initiator, now=now)
        transaction.set_rollback(True)
    return changes


def _topics(wanted: Definitions, *, now: datetime) -> list[Change]:
    """Create and rename topics, and return the changes.

    Topics are locked before workflows to avoid deadlocks.
    """
    known = {topic.slug: topic for topic in Topic.objects.all()}
    changes = []
    for slug, (title, _) in wanted.topics.items():
        if slug not in known:
            _, is_new = Topic.objects.get_or_create(slug=slug, defaults={"title": title, "created_at": now})
            changes += [Change("new", f"topic {slug}")] if is_new else []
        elif known[slug].title != title:
            Topic.objects.filter(slug=slug).update(title=title)
            changes.append(Change("changed", f"topic {slug}", (f"title: {title}",)))
    return changes


def _deploy(
    slug: str, wanted: type[definition.Workflow], *, initiator: Initiator, now: datetime
) -> list[Change]:
    with transaction.atomic():
        values = {
            "title": wanted.title.strip(),
            "description": wanted.description.strip(),
            "pool": wanted.pool,
        }
        workflow, is_new = Workflow.objects.get_or_create(
            slug=slug, defaults=values | {"created_at": now, "deployed_at": now}
        )
        # With this lock, a concurrent publication either sees the new consumer or commits before the consumer
        # first looks.
        list(Topic.objects.filter(slug__in=_topics_of(wanted)).lock().values_list("pk"))
        workflow = Workflow.objects.lock().get(pk=workflow.pk)
        changes = [Change("new", f"workflow {slug}")] if is_new else list(_edited(workflow, values, slug))
        if workflow.return_to_code():
            changes.append(Change("resumed", f"workflow {slug}"))
        changes += _handlers(workflow, wanted, now=now)
        if changes:
            Workflow.objects.filter(pk=workflow.pk).update(**values, deployed_at=now)
            described = [str(change) for change in changes]
            Activity.objects.record(
                "deploy", workflow, initiator=initiator, now=now, details={"changes": described}
            )
            Workflow.objects.awaken([workflow.pk], now=now)
    # This is a separate transaction, because topics are never locked after a workflow.
    Topic.objects.filter(slug__in=wanted.topics).exclude(workflow=workflow).update(workflow=workflow)
    return changes


def _topics_of(wanted: type[definition.Workflow]) -> set[str]:
    return {*wanted.topics, *(topic for consumer in wanted.consumers for topic in consumer.subscribe)}


def _edited(row: Workflow | Handler, values: dict[str, Any], name: str) -> Iterator[Change]:
    details = [f"{field}: {value}" for field, value in values.items() if getattr(row, field) != value]
    if details:
        yield Change("changed", f"{row._meta.model_name} {name}", tuple(details))


def _handlers(workflow: Workflow, wanted: type[definition.Workflow], *, now: datetime) -> list[Change]:
    known = {handler.name: handler for handler in workflow.handlers.all()}
    changes: list[Change] = []
    for position, kind in enumerate(wanted.handlers()):
        changes += _handler(workflow, known.pop(kind.name(), None), kind, position, now=now)
    for handler in known.values():
        if not handler.is_stopped:
            Handler.objects.filter(pk=handler.pk).update(is_stopped=True, next_run_at=None, wake_at=None)
            handler.subscriptions.all().delete()
            changes.append(Change("stopped", f"handler {workflow.slug}.{handler.name}"))
    return changes


def _handler(
    workflow: Workflow, row: Handler | None, kind: type[definition.Handler], position: int, *, now: datetime
) -> list[Change]:
    name = f"{workflow.slug}.{kind.name()}"
    values = {
        "title": kind.title,
        "kind": Handler.Kind.PRODUCER if issubclass(kind, Producer) else Handler.Kind.CONSUMER,
        "position": position,
        "spec": kind.spec_json() if issubclass(kind, Producer) else None,
        "publishes": list(kind.publishes),
        "timeout_seconds": kind.timeout_seconds,
        "code_version": kind.code_version(),
        "is_stopped": False,
    }
    # A producer that is new or has new code runs immediately.
    first_run = {"next_run_at": now} if issubclass(kind, Producer) else {}
    if row is None:
        row = Handler.objects.create(workflow=workflow, name=kind.name(), **values, **first_run)
        changes = [Change("new", f"handler {name}")]
    elif changes := list(_edited(row, values, name)):
        Handler.objects.filter(pk=row.pk).update(**values, **first_run)
        # New code may find work in events that the old code left, so the consumer looks at all of them.
        row.subscriptions.rewind()
        _retry_with_new_code(row, kind.code_version(), now=now)
    return changes + _subscribe(row, kind, name)


def _retry_with_new_code(handler: Handler, version: str, *, now: datetime) -> None:
    stuck = Run.objects.stuck().filter(handler=handler, status=Status.FAILED_LOGIC)
    stuck.exclude(code_version=version).update(due_at=now, updated_at=now)


def _subscribe(handler: Handler, kind: type[definition.Handler], name: str) -> list[Change]:
    wanted: Sequence[str] = kind.subscribe if issubclass(kind, Consumer) else ()
    handler.subscriptions.exclude(topic__slug__in=wanted).delete()
    changes = []
    for topic in Topic.objects.filter(slug__in=wanted).exclude(subscription__handler=handler):
        # Each topic has one consumer, so this handler replaces the previous one.
        Subscription.objects.filter(topic=topic).delete()
        Subscription.objects.create(handler=handler, topic=topic)
        changes.append(Change("new", f"subscription {name} ← {topic.slug}"))
    return changes
