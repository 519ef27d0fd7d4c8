"""Measurements of workflows: waking a consumer, starting a run, publishing."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from database import clock
from execution.models import WorkerTask
from workflows.definition import Definitions
from workflows.deployment import deploy
from workflows.models import Event, Run, Subscription, Topic, Workflow
from workflows.models.event import Publication

from .catalogue import Sizes
from .crew import Crew
from .jobs import marks
from .load import BULK, BY, expect, settle
from .results import Reading

LOOKS = 50


def publish_wakes(sizes: Sizes) -> list[Reading]:
    # This is for the processes that are started from here; this process has already read its settings.
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.flows.settings"
    with Crew() as crew:
        crew.scheduler()
        crew.worker()
        crew.wait(lambda: Run.objects.exists() and _is_idle())
        time.sleep(sizes.rest_seconds)
        times = sorted(_wake(crew, number) for number in range(sizes.wakes))
    expect(Event.objects.exclude(status="consumed").count(), 0, "events left")
    p95 = times[round(0.95 * (len(times) - 1))]
    return [
        Reading("publish_wakes_p50", statistics.median(times), "ms"),
        Reading("publish_wakes_p95", p95, "ms"),
    ]


def _wake(crew: Crew, number: int) -> float:
    """Return the milliseconds from the call that publishes an event to its consumer's `prepare`."""
    crew.wait(_is_idle)
    time.sleep(0.03 + 0.05 * (number * 0.618034 % 1))
    marks.clear(0)
    began = time.monotonic_ns()
    _publish(number, 1)
    crew.wait(lambda: marks.at(0), every=0.0005)
    return (marks.at(0) - began) / 1e6


def workflow_start(sizes: Sizes) -> list[Reading]:
    """Measure how long a check for work takes: with no new event, and with a new event that starts a run.

    In both cases there are many pending events.
    """
    _deploy()
    _publish_all(sizes.events)
    _forget()
    settle()
    workflow = Workflow.objects.get()
    last = Topic.objects.get().last_seq
    Subscription.objects.update(cursor=last)
    idle = _median(lambda: workflow.start(clock.now()))
    expect(Run.objects.count(), 0, "runs that began for nothing")
    Subscription.objects.update(cursor=last - 1)
    busy = _median(lambda: workflow.start(clock.now()), after=_forget)
    return [Reading("workflow_look", idle, "ms"), Reading("workflow_start", busy, "ms")]


def publish_bulk(sizes: Sizes) -> list[Reading]:
    _deploy()
    began = time.perf_counter()
    _publish_all(sizes.drain)
    seconds = time.perf_counter() - began
    expect(Event.objects.count(), sizes.drain, "events published")
    return [Reading("publish_bulk", sizes.drain / seconds, "events/s")]


def _deploy() -> None:
    from .flows.workflows import Switchboard

    deploy(Definitions.of([Switchboard]), initiator=BY, now=clock.now())


def _publish_all(events: int) -> None:
    for first in range(0, events, BULK):
        _publish(first, min(BULK, events - first))


def _publish(first: int, count: int) -> None:
    wanted = [
        Publication.of("calls", f"call {number}", {"n": number}) for number in range(first, first + count)
    ]
    Topic.objects.publish(wanted, now=clock.now())


def _forget() -> None:
    """Delete all runs and tasks, so that a new run can begin."""
    Run.objects.all().delete()
    WorkerTask.objects.all().delete()


def _is_idle() -> bool:
    return not Run.objects.open().exists() and not WorkerTask.objects.exists()


def _median(action: Callable[[], object], *, after: Callable[[], object] = lambda: None) -> float:
    times = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - began))
        after()
    return statistics.median(times)
