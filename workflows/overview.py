"""Overviews of workflows for pages, API and commands, loaded in a few queries for any number of workflows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, F, QuerySet
from django.db.models.expressions import RawSQL

from database.statements import fetch, found_in

from . import words
from .models import Handler, Run, Topic, Workflow
from .models.event import MOST_COUNTED
from .models.run import LARGE

TABLE = Run._meta.db_table
NEWEST = f"SELECT id FROM {TABLE} WHERE workflow_id >= %s AND workflow_id <= %s ORDER BY workflow_id, id DESC"
CHAIN = f"""
    WITH RECURSIVE
    before(id, retry_of_id, steps) AS (
        SELECT id, retry_of_id, 0 FROM {TABLE} WHERE id = %s
        UNION ALL SELECT r.id, r.retry_of_id, steps + 1 FROM before b
        JOIN {TABLE} r ON r.id = b.retry_of_id WHERE steps < %s
    ),
    later(id, steps) AS (
        SELECT id, 0 FROM {TABLE} WHERE id = %s
        UNION ALL SELECT r.id, steps + 1 FROM later l JOIN {TABLE} r ON r.retry_of_id = l.id WHERE steps < %s
    )
    SELECT id FROM before UNION SELECT id FROM later
"""


@dataclass(frozen=True)
class Backlog:
    """The pending events of a topic. `is_more`: there are more than `count`."""

    topic: str
    handler_id: int
    count: int
    is_more: bool
    oldest_at: datetime | None


@dataclass(frozen=True)
class Overview:
    """A workflow with its handlers, its open run and its pending events."""

    workflow: Workflow
    handlers: Sequence[Handler]
    open_run: Run | None
    backlogs: Sequence[Backlog]
    now: datetime

    @property
    def status(self) -> words.ShownStatus:
        return words.shown_status(self.workflow, self.open_run)

    @property
    def issue(self) -> str:
        return words.issue(self.workflow, self.open_run, self.now)

    @property
    def schedule(self) -> str:
        return words.schedule_words(self.handlers)

    @property
    def pending(self) -> tuple[int, bool]:
        """Return how many pending events were counted, and whether there are more."""
        return sum(each.count for each in self.backlogs), any(each.is_more for each in self.backlogs)

    @property
    def next_at(self) -> datetime | None:
        """Return when the workflow runs next if no event is published, or None if no time is known."""
        if self.workflow.status != Workflow.Status.ACTIVE:
            return None
        if self.open_run is not None:
            return self.open_run.due_at
        times = [each.next_run_at if each.is_producer else each.wake_at for each in self.deployed]
        return min((at for at in times if at is not None), default=None)

    @property
    def deployed(self) -> list[Handler]:
        return [handler for handler in self.handlers if not handler.is_stopped]


def overviews_of(workflows: Sequence[Workflow], *, now: datetime, with_state: bool = False) -> list[Overview]:
    """Return the overview of each workflow. `with_state` loads the handlers' state, which may be large."""
    ids = [workflow.pk for workflow in workflows]
    handlers, backlogs = defaultdict[int, list[Handler]](list), defaultdict[int, list[Backlog]](list)
    kept = Handler.objects.all() if with_state else Handler.objects.defer("state")
    for handler in kept.filter(workflow__in=ids):
        handlers[handler.workflow_id].append(handler)
    open_runs = Run.objects.open().filter(workflow__in=ids).select_related("handler")
    runs = {run.workflow_id: run for run in open_runs.defer(*LARGE)}
    topics: Any = Topic.objects.filter(subscription__handler__workflow__in=ids).with_backlog()
    for topic in topics.annotate(
        consumer=F("subscription__handler"), consumed_by=F("subscription__handler__workflow")
    ):
        backlogs[topic.consumed_by].append(
            Backlog(
                topic.slug,
                topic.consumer,
                min(topic.pending_count, MOST_COUNTED),
                topic.pending_count > MOST_COUNTED,
                topic.oldest_at,
            )
        )
    return [
        Overview(each, handlers[each.pk], runs.get(each.pk), backlogs[each.pk], now) for each in workflows
    ]


def runs_of(workflow: int) -> QuerySet[Run]:
    """Return the runs of one workflow. The caller must order them by workflow first.

    With a range instead of an equality, PostgreSQL uses the index of the workflow. With an equality it would
    read all runs by id, which is slow for a workflow whose last runs are old.
    """
    return Run.objects.filter(workflow__gte=workflow, workflow__lte=workflow).defer(*LARGE)


def newest_of(workflows: Sequence[int], *, count: int) -> QuerySet[Run]:
    """Return the newest `count` runs of each workflow, the newest first."""
    each = [f"SELECT * FROM ({NEWEST} LIMIT {count:d}) AS s{number}" for number in range(len(workflows))]
    if not each:
        return Run.objects.none()
    these, params = found_in(" UNION ALL ".join(each)), [pk for pk in workflows for _ in range(2)]
    is_one = RawSQL(f"{TABLE}.id {these}", params, output_field=BooleanField())  # noqa: S611 no text from outside
    return Run.objects.filter(is_one).defer(*LARGE).order_by("-pk")


def chain_of(run: int, *, most: int) -> list[Run]:
    """Return the attempts at the same work, oldest first, with at most `most` before and after this run."""
    ids = fetch(CHAIN, [run, most, run, most])
    return list(Run.objects.filter(pk__in=[pk for (pk,) in ids]).defer(*LARGE).order_by("pk"))
