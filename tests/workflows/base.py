"""Workflows as the tests write them, and somebody who performs their runs at a given time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from unittest.mock import patch

from database import clock
from execution.loops.scheduler import is_due, tick
from execution.models import WorkerTask
from tests.base import NOW, SOMEBODY, claim, make_worker, work_on
from workflows.definition import Definitions
from workflows.definition import Workflow as Definition
from workflows.deployment import Change, deploy
from workflows.models import Event, Run, Topic, Workflow
from workflows.models.event import Publication, Published
from workflows.scheduling import recover, start_due


@contextmanager
def defined(*workflows: type[Definition]) -> Iterator[Definitions]:
    """The code has just these workflows."""
    wanted = Definitions.of(workflows)
    with patch("workflows.discovery._discover", lambda: (wanted, [])):
        yield wanted


@contextmanager
def deployed(*workflows: type[Definition], now: datetime = NOW) -> Iterator[Workflow]:
    """The same, deployed; the row of the first one."""
    with defined(*workflows):
        deploy_all(now=now)
        yield Workflow.objects.get(slug=workflows[0].slug)


def deploy_all(*, now: datetime = NOW) -> list[Change]:
    from workflows.discovery import definitions

    return deploy(definitions(), initiator=SOMEBODY, now=now)


def publish(topic: str, *message_ids: str, now: datetime = NOW, payload: Any = None) -> Published:
    wanted = [Publication.of(topic, each, payload) for each in message_ids]
    return Topic.objects.publish(wanted, now=now)


def make_topics(*slugs: str) -> None:
    for slug in slugs:
        Topic.objects.create(slug=slug, created_at=NOW)


def begin(workflow: Workflow, now: datetime = NOW) -> Run:
    """The run that it starts."""
    run = workflow.start(now)
    assert run is not None
    return run


def work(*, now: datetime = NOW) -> list[str]:
    """Performs until nothing is left to do at `now`; the handlers that ran, in order.

    Of a tick, only what is about workflows, as there is hardly ever anything else to do in these tests.
    """
    worker, names = make_worker(now), list[str]()
    with patch.object(clock, "now", lambda: now):
        WorkerTask.objects.recover(now=now)
        recover(now)
        while True:
            start_due(now)
            if tasks := claim(worker, now=now):
                names += [task.step["config"]["handler"] for task in tasks]
                work_on(worker, tasks, now=now)
            elif is_due(now):
                tick(now)
            else:
                return names


def runs() -> list[tuple[str, str, str]]:
    """(handler, phase, status) of each, in the order in which they began."""
    return list(Run.objects.order_by("pk").values_list("handler__name", "phase", "status"))


def events(topic: str) -> dict[str, str]:
    """The status of each event of a topic, in order."""
    return dict(Event.objects.filter(topic__slug=topic).order_by("seq").values_list("message_id", "status"))
