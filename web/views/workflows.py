"""Pages of workflows: the list, and one workflow with its event flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from activities.models import Activity
from database import clock
from database.batched import together
from web.flow import Flow, Node, flow
from web.keyset import address
from web.operating import register
from web.page import fragment, is_asked_by, page, version_of
from web.templatetags.web import up_to
from workflows import operations, words
from workflows.failures import Status
from workflows.models import Handler, Run, Subscription, Topic, Workflow
from workflows.models.event import MOST_COUNTED
from workflows.overview import newest_of

VIEW = "workflows.view_workflow"
MOST_SHOWN = 100
MOST_TOLD = 3
MOST_RUNS = 10
MOST_CHANGES = 10
RECENT = 20
# How often relative times in sentences, such as “in 3 min”, are refreshed.
WORDS_SECONDS = 15

register(Workflow, view_permission=VIEW)


@page(VIEW)
def workflows(request: HttpRequest) -> HttpResponse:
    now = clock.now()
    looks, has_more = _overviews(now)
    version = version_of([look.change_key for look in looks], has_more)
    if is_asked_by(request, "rows") and request.GET.get("version") == version:
        return HttpResponse(status=204)
    context = {
        "looks": _add_details(looks),
        "most_shown": MOST_SHOWN if has_more else None,
        "here": address(request),
        "most_counted": MOST_COUNTED,
    }
    if is_asked_by(request, "rows"):
        return fragment(request, "web/workflows/_rows.html", context, version=version)
    context |= {"title": "Workflows", "version": version}
    return render(request, "web/workflows/list.html", context)


@page(VIEW)
def workflow(request: HttpRequest, slug: str) -> HttpResponse:
    look = _overview(slug, clock.now())
    changes = Activity.objects.filter(target_type="workflow", target_id=str(look.workflow.pk), task_key=None)
    context = {
        "title": look.workflow.title,
        **_page_context(look),
        "changes": list(changes.defer("traceback", "result", "details").order_by("-pk")[:MOST_CHANGES]),
    }
    return render(request, "web/workflows/page.html", context)


@page(VIEW)
def workflow_now(request: HttpRequest, slug: str) -> HttpResponse:
    look = _overview(slug, clock.now())
    version = version_of(look.change_key)
    if request.GET.get("version") == version:
        return HttpResponse(status=204)
    return fragment(request, "web/workflows/_now.html", _page_context(look), version=version)


@dataclass
class WorkflowOverview:
    """A workflow with its open run, topics, handlers and recent runs, as its pages show it."""

    workflow: Workflow
    run: Run | None
    topics: Sequence[Any]
    now: datetime
    handlers: Sequence[Handler] = ()
    recent: Sequence[Run] = ()

    @property
    def change_key(self) -> tuple[Any, ...]:
        """Return the values that are compared to find out whether the page must be drawn again."""
        of, run = self.workflow, self.run
        state = run and (run.pk, run.status, run.phase, run.due_at)
        age = int(self.now.timestamp() / WORDS_SECONDS) if run and run.due_at else 0
        topics = [(topic.pk, topic.last_seq, topic.pending_count) for topic in self.topics]
        return of.pk, of.title, of.status, of.note, of.deployed_at, of.due_at, state, age, topics

    @property
    def status(self) -> str:
        return words.shown_status(self.workflow, self.run)

    @property
    def issue(self) -> str:
        return words.issue(self.workflow, self.run, self.now)

    @property
    def stuck(self) -> Run | None:
        return self.run if self.run and self.run.is_stuck else None

    @property
    def first(self) -> str:
        """Return the name of the recommended operation on the open run, or an empty string."""
        found = self.run and operations.first_operation(self.run)
        return found.name if found else ""

    @property
    def schedule(self) -> str:
        return words.schedule_words(self.handlers)

    @property
    def next_at(self) -> datetime | None:
        """Return the next time at which a handler runs without a new event, or None."""
        return min((at for at in self._times if at > self.now), default=None)

    @property
    def is_due(self) -> bool:
        """Return whether a handler is due now."""
        return any(at <= self.now for at in self._times)

    @property
    def _times(self) -> list[datetime]:
        if self.workflow.status != Workflow.Status.ACTIVE:
            return []
        return [at for each in self.handlers for at in (each.next_run_at, each.wake_at) if at]

    @property
    def did(self) -> list[Run]:
        """Return the last committed runs that did something, or else the last committed run."""
        done = [run for run in self.recent if run.status == Status.COMMITTED]
        return [run for run in done if run.summary != words.NOTHING_TO_DO][:MOST_TOLD] or done[:1]


def took(run: Run) -> timedelta | None:
    return run.finished_at - run.started_at if run.finished_at and run.started_at else None


def _overviews(now: datetime) -> tuple[list[WorkflowOverview], bool]:
    """Return the workflows of the list, and whether there are more."""
    shown = Workflow.objects.in_order_of_need()[: MOST_SHOWN + 1]
    consumer = "subscription__handler__workflow"
    consumed = Topic.objects.filter(**{f"{consumer}__in": shown.values("pk")}).with_backlog()
    rows, runs, consumed_topics = together(
        shown,
        _open_runs().filter(workflow__in=shown.values("pk")),
        consumed.annotate(consumed_by=F(consumer)).order_by("slug"),
    )
    open_runs, topics = {run.workflow_id: run for run in runs}, defaultdict[int, list[Any]](list)
    for topic in consumed_topics:
        topics[topic.consumed_by].append(topic)
    looks = [WorkflowOverview(row, open_runs.get(row.pk), topics[row.pk], now) for row in rows[:MOST_SHOWN]]
    return looks, len(rows) > MOST_SHOWN


def _open_runs() -> QuerySet[Run]:
    """Select open runs; each workflow has at most one."""
    return Run.objects.open().select_related("handler").defer("handler__state", "snapshot", "mutation_result")


def _add_details(looks: list[WorkflowOverview]) -> list[WorkflowOverview]:
    """Add the handlers and recent runs to the overviews. They are not needed to detect changes."""
    ids = [look.workflow.pk for look in looks]
    deployed = Handler.objects.deployed().filter(workflow__in=ids).defer("state")
    handlers, recent = defaultdict[int, list[Handler]](list), defaultdict[int, list[Run]](list)
    found_handlers, found_runs = together(deployed, newest_of(ids, count=RECENT))
    for handler in found_handlers:
        handlers[handler.workflow_id].append(handler)
    for run in found_runs:
        recent[run.workflow_id].append(run)
    for look in looks:
        look.handlers, look.recent = handlers[look.workflow.pk], recent[look.workflow.pk]
    return looks


def _overview(slug: str, now: datetime) -> WorkflowOverview:
    is_its_own = Q(subscription__handler__workflow__slug=slug) | Q(workflow__slug=slug)
    rows, runs, topics = together(
        Workflow.objects.filter(slug=slug),
        _open_runs().filter(workflow__slug=slug),
        Topic.objects.filter(is_its_own).with_backlog().order_by("slug"),
    )
    if not rows:
        raise Http404(f"Workflow “{slug}” does not exist.")
    return WorkflowOverview(rows[0], next(iter(runs), None), topics, now)


def _page_context(look: WorkflowOverview) -> dict[str, Any]:
    row = look.workflow
    handlers, others, consumed, look.recent = together(
        row.handlers.all(),
        Handler.objects.deployed().exclude(workflow=row).select_related("workflow").defer("state"),
        Subscription.objects.order_by("topic__slug").values_list("handler", "topic__slug"),
        newest_of([row.pk], count=RECENT),
    )
    look.handlers = [handler for handler in handlers if not handler.is_stopped]
    is_idle = row.is_active and look.run is None
    row.can_run_now = is_idle and any(handler.is_producer for handler in look.handlers)
    by_pk = {handler.pk: handler for handler in handlers}
    topics = defaultdict[int, list[str]](list)
    for handler_id, slug in consumed:
        topics[handler_id].append(slug)
    return {
        "look": look,
        "workflow": row,
        "handlers": [(each, words.schedule_words([each]), topics[each.pk]) for each in handlers],
        "runs": [(run, by_pk[run.handler_id], took(run)) for run in look.recent[:MOST_RUNS]],
        "flow": _flow(look, others, topics),
        "most_counted": MOST_COUNTED,
        "version": version_of(look.change_key),
    }


def _flow(look: WorkflowOverview, others: Sequence[Handler], consumed: Mapping[int, Sequence[str]]) -> Flow:
    """Draw the handlers and topics of a workflow, and handlers of other workflows that use these topics."""

    def topics_of(handlers: Iterable[Handler]) -> set[str]:
        return {slug for each in handlers for slug in (*each.publishes, *consumed[each.pk])}

    slugs = {topic.slug for topic in look.topics} | topics_of(look.handlers)
    near = [other for other in others if topics_of([other]) & slugs]
    nodes = [_handler_node(handler) for handler in look.handlers]
    nodes += [_handler_node(other, is_foreign=True) for other in near]
    counts = {topic.slug: topic.pending_count for topic in look.topics}
    nodes += [_topic_node(slug, counts.get(slug)) for slug in sorted(slugs)]
    links = [link for each in [*look.handlers, *near] for link in _links(each, consumed[each.pk])]
    return flow(nodes, links)


def _handler_node(handler: Handler, *, is_foreign: bool = False) -> Node:
    url = handler.workflow.get_absolute_url() if is_foreign else ""
    note = handler.workflow.title if is_foreign else handler.kind
    return Node(f"handler {handler.pk}", handler.kind, str(handler), note, url, is_foreign)


def _topic_node(slug: str, pending: int | None) -> Node:
    note = "topic" if pending is None else f"{up_to(pending, MOST_COUNTED)} pending"
    return Node(slug, "topic", slug, note, reverse("web:topic", args=[slug]), is_open=bool(pending))


def _links(handler: Handler, consumed: Sequence[str]) -> list[tuple[str, str]]:
    key = f"handler {handler.pk}"
    return [*((slug, key) for slug in consumed), *((key, slug) for slug in handler.publishes)]
