"""The list “Needs attention”: problems that a person should look at, each with its next action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Case, Model, OuterRef, QuerySet, Subquery, When
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from database.batched import together
from execution.models import Execution
from schedules import permissions
from schedules.selection import troubled
from webhooks.models import Endpoint
from workflows.models import Run, Workflow
from workflows.operations import OPERATE, first_operation
from workflows.words import issue

MOST_OF_A_KIND = 10
LONGEST_WORDS = 200


@dataclass(frozen=True)
class Concern:
    """A problem and its next action: the operation `verb` on `target`, or else the link `url`."""

    state: str
    about: Model
    words: str
    since: datetime | None
    action: str
    url: str = ""
    verb: str = ""
    target: Model | None = None
    permission: str = permissions.RUN

    @property
    def change_key(self) -> tuple[Any, ...]:
        return self.state, self.about.pk, self.words, self.since, self.action


def concerns(request: HttpRequest, *, now: datetime) -> list[Concern]:
    """Return the problems that this user has permission to see, at most MOST_OF_A_KIND of each kind."""
    seen = [kind for kind in KINDS if request.user.has_perm(kind.permission)]
    found = together(*(kind.rows(now)[:MOST_OF_A_KIND] for kind in seen))
    return [kind.concern(row, now) for kind, rows in zip(seen, found, strict=True) for row in rows]


def _schedules(now: datetime) -> QuerySet[Any]:
    newest = Execution.objects.filter(schedule=OuterRef("pk"), status="failed").order_by("-pk")
    failed_id = Case(When(failures_in_a_row__gt=0, then=Subquery(newest.values("pk")[:1])))
    rows = troubled(now).annotate(failed_id=failed_id).order_by("-failures_in_a_row", "pk")
    return rows.defer("last_result", "calendars", "memo", "description")


def _schedule(schedule: Any, now: datetime) -> Concern:
    if schedule.spec_error:
        url = reverse("web:schedule-edit", args=[schedule.pk])
        return Concern("broken", schedule, _first_line(schedule.spec_error), None, "Edit", url)
    if schedule.is_paused_by_failures:
        words = _first_line(schedule.pause_note)
        url = schedule.get_absolute_url()
        return Concern("paused", schedule, words, schedule.paused_at, "Resume", url, "resume", schedule)
    if schedule.is_overdue(now):
        words = "The next run is overdue, because no scheduler has processed it yet."
        url = (
            f"{reverse('web:why', args=[schedule.pk])}?{urlencode({'at': schedule.next_run_at.isoformat()})}"
        )
        return Concern("overdue", schedule, words, schedule.next_run_at, "Why?", url)
    return _failing(schedule)


def _failing(schedule: Any) -> Concern:
    times = (
        f"Failed {schedule.failures_in_a_row:,} times in a row: " if schedule.failures_in_a_row > 1 else ""
    )
    words = f"{times}{_first_line(schedule.last_failure)}"
    if schedule.failed_id is None:
        url = schedule.get_absolute_url()
        return Concern("failed", schedule, words, schedule.last_run_at, "View", url)
    failed = Execution(pk=schedule.failed_id, schedule_name=schedule.name)
    url = failed.get_absolute_url()
    return Concern("failed", schedule, words, schedule.last_run_at, "Retry", url, "retry", failed)


def _late_executions(now: datetime) -> QuerySet[Any]:
    return Execution.objects.late(now).defer("plan", "last_result").order_by("deadline_at")


def _late(each: Any, now: datetime) -> Concern:
    words, url = "The execution is still running after its deadline.", each.get_absolute_url()
    return Concern("late", each, words, each.deadline_at, "Cancel", url, "cancel", each)


def _endpoints(now: datetime) -> QuerySet[Any]:
    return Endpoint.objects.failing().defer("kinds", "schedules").order_by("-failed_in_a_row")


def _undelivered(each: Any, now: datetime) -> Concern:
    state = "failed" if each.is_enabled else "disabled"
    words = _first_line(each.status_note) or f"The last {each.failed_in_a_row:,} deliveries failed."
    return Concern(state, each, words, each.succeeded_at, "View deliveries", each.get_absolute_url())


def _stuck_runs(now: datetime) -> QuerySet[Any]:
    """Select stuck runs that a person must resolve; those with a `due_at` are retried automatically."""
    waiting = Run.objects.stuck().filter(due_at=None, workflow__status=Workflow.Status.ACTIVE)
    rows = waiting.select_related("workflow", "handler").defer("handler__state", "snapshot")
    return rows.order_by("finished_at")


def _stuck(run: Run, now: datetime) -> Concern:
    about, first = run.workflow, first_operation(run)
    words, url = _first_line(issue(about, run, now)), about.get_absolute_url()
    if first is None:
        return Concern("needs_attention", about, words, run.finished_at, "Resolve", url)
    return Concern(
        *("needs_attention", about, words, run.finished_at, first.label, url, first.name, run), OPERATE
    )


def _first_line(text: str) -> str:
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]}…"


class Kind(NamedTuple):
    """A kind of problem: the permission to see it, the query for affected rows, and how to describe a row."""

    permission: str
    rows: Callable[[datetime], QuerySet[Any]]
    concern: Callable[[Any, datetime], Concern]


KINDS = (
    Kind("schedules.view_schedule", _schedules, _schedule),
    Kind("execution.view_execution", _late_executions, _late),
    Kind("webhooks.view_endpoint", _endpoints, _undelivered),
    Kind("workflows.view_workflow", _stuck_runs, _stuck),
)
