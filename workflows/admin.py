from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from database import clock
from operations.admin_pages import InWords, OperationsAdmin, RecordAdmin, admin_link, text_panel
from text.words import NOTHING, as_json, badge, moment

from .failures import Status
from .models import Event, Handler, Run, Topic, Workflow
from .models.event import MOST_COUNTED
from .models.run import LARGE
from .overview import Overview, overviews_of
from .words import SHOWN_STATUSES, schedule_words


class OverviewChangeList(ChangeList):
    """A change list that loads the overviews of all workflows on a page in a few queries."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        for row, seen in zip(rows, overviews_of(rows, now=clock.now()), strict=True):
            row.seen = seen
        self.result_list = rows


class ShownStatusFilter(admin.SimpleListFilter):
    title = parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name.replace("_", " ")) for name in SHOWN_STATUSES]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        known = [name for name, _ in self.lookup_choices]
        return queryset.shown_as(self.value()) if self.value() in known else queryset


@admin.register(Workflow)
class WorkflowAdmin(RecordAdmin[Workflow], OperationsAdmin[Workflow]):
    list_display = ("title", "slug", "status_badge", "issue", "schedule", "pending", "next_at")
    list_filter = (ShownStatusFilter,)
    search_fields = ("title", "slug")
    ordering = ("title",)
    fields = (
        "slug",
        "description",
        "status_badge",
        "issue",
        "schedule",
        "pending",
        "next_at",
        "open_run",
        "pool",
        "handlers",
        "topics",
        "deployed",
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return OverviewChangeList

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Workflow | None:
        workflow: Any = super().get_object(request, object_id, from_field)
        if workflow is not None:
            [workflow.seen] = overviews_of([workflow], now=clock.now())
        return workflow  # type: ignore[no-any-return]

    @admin.display(description="status")
    def status_badge(self, workflow: Any) -> SafeString:
        return badge(_seen(workflow).status)

    def issue(self, workflow: Any) -> str:
        return _seen(workflow).issue or NOTHING

    def schedule(self, workflow: Any) -> str:
        return _seen(workflow).schedule

    @admin.display(description="pending")
    def pending(self, workflow: Any) -> str:
        return _counted(*_seen(workflow).pending)

    @admin.display(description="next")
    def next_at(self, workflow: Any) -> SafeString:
        return _moment(_seen(workflow).next_at)

    @admin.display(description="open run")
    def open_run(self, workflow: Any) -> SafeString | str:
        return _link(run, str(run)) if (run := _seen(workflow).open_run) else NOTHING

    def handlers(self, workflow: Any) -> SafeString:
        return _links(_seen(workflow).handlers)

    def topics(self, workflow: Workflow) -> SafeString:
        return _links(list(workflow.topics.all()))

    def deployed(self, workflow: Workflow) -> SafeString:
        return _moment(workflow.deployed_at)


def _seen(workflow: Any) -> Overview:
    seen: Overview = workflow.seen
    return seen


class StoppedFilter(admin.SimpleListFilter):
    title = "in the code"
    parameter_name = "is_stopped"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("0", "yes"), ("1", "no")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(is_stopped=self.value() == "1") if self.value() in ("0", "1") else queryset


@admin.register(Handler)
class HandlerAdmin(RecordAdmin[Handler]):
    list_display = ("name", "workflow_link", "state_badge", "kind", "schedule", "next_run", "wake")
    list_filter = ("kind", StoppedFilter, "workflow")
    list_select_related = ("workflow",)
    search_fields = ("name", "title", "workflow__title")
    fields = (
        "workflow_link",
        "name",
        "title",
        "state_badge",
        "kind",
        "schedule",
        "next_run",
        "wake",
        "subscribes",
        "publishes",
        "timeout_seconds",
        "code_version",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Handler]:
        return super().get_queryset(request).select_related("workflow")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ChangeList

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["panels"] = [text_panel("State", as_json(context["original"].state))]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="workflow")
    def workflow_link(self, handler: Handler) -> SafeString:
        return _link(handler.workflow)

    @admin.display(description="state")
    def state_badge(self, handler: Handler) -> SafeString:
        if handler.is_stopped:
            return format_html("{} The handler was removed from the code.", badge("stopped"))
        return badge("active") if _is_active(handler) else badge(handler.workflow.status)

    def schedule(self, handler: Handler) -> str:
        return schedule_words([handler])

    @admin.display(description="next run")
    def next_run(self, handler: Handler) -> SafeString:
        return _moment(handler.next_run_at if _is_active(handler) else None)

    @admin.display(description="wakes")
    def wake(self, handler: Handler) -> SafeString:
        return _moment(handler.wake_at if _is_active(handler) else None)

    def subscribes(self, handler: Handler) -> SafeString:
        return _links(list(handler.topics.order_by("slug")))


def _is_active(handler: Handler) -> bool:
    return not handler.is_stopped and handler.workflow.status == Workflow.Status.ACTIVE


class StatusFilter(admin.SimpleListFilter):
    title = parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "open"), *((each.value, each.replace(":", ": ")) for each in Status)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == "open":
            return queryset.open()
        return queryset.filter(status=self.value()) if self.value() else queryset


@admin.register(Run)
class RunAdmin(RecordAdmin[Run], OperationsAdmin[Run]):
    list_display = ("__str__", "workflow_link", "status_badge", "created", "due", "words")
    list_filter = (StatusFilter, "workflow")
    search_fields = ("workflow__title", "workflow__slug", "handler__name")
    fields = (
        "workflow_link",
        "handler_link",
        "status_badge",
        "phase",
        "effect",
        "summary",
        "note",
        "created",
        "started",
        "finished",
        "settled",
        "due",
        "retry",
        "tries",
        "code_version",
        "record",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        rows = super().get_queryset(request).select_related("workflow", "handler")
        rows = rows.defer("handler__state", "handler__spec")
        return rows.defer(*LARGE) if _is_list(request) else rows

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        run: Run = context["original"]
        context["is_moving"] = run.is_active
        context["panels"] = [
            text_panel("Error", run.error),
            text_panel("Prepared", as_json(run.prepare_result)),
            text_panel("Result of the mutation", as_json(run.mutation_result)),
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="workflow")
    def workflow_link(self, run: Run) -> SafeString:
        return _link(run.workflow)

    @admin.display(description="handler")
    def handler_link(self, run: Run) -> SafeString:
        return _link(run.handler)

    @admin.display(description="status")
    def status_badge(self, run: Run) -> SafeString:
        return badge("running" if run.is_active else run.status)

    @admin.display(description="message")
    def words(self, run: Run) -> str:
        return (run.summary or run.error).partition("\n")[0][:120]

    def created(self, run: Run) -> SafeString:
        return _moment(run.created_at)

    def started(self, run: Run) -> SafeString:
        return _moment(run.started_at)

    def finished(self, run: Run) -> SafeString:
        return _moment(run.finished_at)

    @admin.display(description="committed or retried")
    def settled(self, run: Run) -> SafeString:
        return _moment(run.settled_at)

    @admin.display(description="next attempt")
    def due(self, run: Run) -> SafeString:
        return _moment(run.due_at)

    @admin.display(description="retry of")
    def retry(self, run: Run) -> SafeString | str:
        if run.retry_of_id is None:
            return NOTHING
        url = reverse("admin:workflows_run_change", args=[run.retry_of_id])
        return format_html('<a href="{}">{}</a>', url, f"run {run.retry_of_id}")

    @admin.display(description="earlier failures")
    def tries(self, run: Run) -> str:
        counts = {
            "transient": run.transient,
            "reconciled": run.reconciled,
            "crashed": run.crashes,
            "fixed": run.fixes,
        }
        return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or NOTHING

    def record(self, run: Run) -> SafeString | str:
        activity = run.activity()
        return admin_link(activity, activity.target_name) if activity else NOTHING


@admin.register(Topic)
class TopicAdmin(RecordAdmin[Topic]):
    list_display = ("slug", "title", "workflow_link", "consumer", "pending", "oldest", "last_seq", "events")
    search_fields = ("slug", "title")
    oldest_first = True
    fields = (
        "slug",
        "title",
        "workflow_link",
        "consumer",
        "pending",
        "oldest",
        "last_seq",
        "events",
        "created",
    )

    def get_queryset(self, request: HttpRequest) -> Any:
        rows: Any = super().get_queryset(request)
        rows = rows.select_related("workflow", "subscription__handler__workflow")
        return rows.defer("subscription__handler__state").with_backlog()

    @admin.display(description="workflow")
    def workflow_link(self, topic: Topic) -> SafeString | str:
        return _link(topic.workflow) if topic.workflow else NOTHING

    def consumer(self, topic: Any) -> SafeString | str:
        subscription = getattr(topic, "subscription", None)
        if subscription is None:
            return NOTHING
        return _link(subscription.handler, f"{subscription.handler.workflow}: {subscription.handler}")

    def pending(self, topic: Any) -> str:
        return _counted(min(topic.pending_count, MOST_COUNTED), topic.pending_count > MOST_COUNTED)

    @admin.display(description="oldest pending")
    def oldest(self, topic: Any) -> SafeString:
        return _moment(topic.oldest_at)

    def events(self, topic: Topic) -> SafeString:
        url = f"{reverse('admin:workflows_event_changelist')}?topic={topic.slug}"
        return format_html('<a href="{}">events</a>', url)

    def created(self, topic: Topic) -> SafeString:
        return _moment(topic.created_at)


class TopicFilter(admin.SimpleListFilter):
    title = parameter_name = "topic"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in Topic.objects.values_list("slug", flat=True)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if not self.value():
            return queryset
        return queryset.filter(topic=Topic.objects.filter(slug=self.value()).values("pk")[:1])


@admin.register(Event)
class EventAdmin(RecordAdmin[Event], OperationsAdmin[Event]):
    list_display = ("__str__", "status_badge", "topic_link", "seq", "id_if_titled", "attempt", "created")
    list_filter = (("status", InWords), TopicFilter)
    search_fields = ("message_id",)
    search_help_text = "Enter the full message id."
    fields = (
        "topic_link",
        "seq",
        "message_id",
        "title",
        "status_badge",
        "attempt",
        "created",
        "settled",
        "publisher",
        "consumer",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Event]:
        rows = super().get_queryset(request).select_related("topic")
        if _is_list(request):
            return rows.defer("payload", "caused_by")
        return rows.select_related("created_by__handler", "reserved_by__handler")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Event], search_term: str
    ) -> tuple[QuerySet[Event], bool]:
        """Keep the events with exactly this message id.

        The query lists the ids of all topics, so that the database can use an index.
        """
        if not search_term:
            return queryset, False
        topics = list(Topic.objects.values_list("pk", flat=True))
        return queryset.filter(topic__in=topics, message_id=search_term.strip()), False

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        event: Event = context["original"]
        causes = Event.objects.filter(pk__in=event.caused_by or []).select_related("topic").defer("payload")
        context["panels"] = [
            text_panel("Payload", as_json(event.payload)),
            text_panel("Caused by", "\n".join(f"{each.topic}: {each}" for each in causes.order_by("pk"))),
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="message id")
    def id_if_titled(self, event: Event) -> str:
        """Return the message id if the event has a title; without a title, the list already shows the id."""
        return event.message_id if event.title else NOTHING

    @admin.display(description="topic")
    def topic_link(self, event: Event) -> SafeString:
        return _link(event.topic)

    @admin.display(description="status")
    def status_badge(self, event: Event) -> SafeString:
        return badge(event.status)

    def created(self, event: Event) -> SafeString:
        return _moment(event.created_at)

    @admin.display(description="consumed or skipped")
    def settled(self, event: Event) -> SafeString:
        return _moment(event.settled_at)

    @admin.display(description="published by")
    def publisher(self, event: Event) -> SafeString | str:
        return _link(event.created_by) if event.created_by else event.published_by or NOTHING

    @admin.display(description="reserved by")
    def consumer(self, event: Event) -> SafeString | str:
        return _link(event.reserved_by) if event.reserved_by else NOTHING


def _is_list(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and str(match.url_name).endswith("_changelist")


def _link(row: Workflow | Handler | Run | Topic, text: str = "") -> SafeString:
    url = reverse(f"admin:workflows_{row._meta.model_name}_change", args=[row.pk])
    return format_html('<a href="{}">{}</a>', url, text or str(row))


def _links(rows: Sequence[Handler] | Sequence[Topic]) -> SafeString:
    return format_html_join(", ", "{}", ((_link(row),) for row in rows))


def _counted(count: int, is_more: bool) -> str:
    return f"more than {count:,}" if is_more else f"{count:,}"


def _moment(at: datetime | None) -> SafeString:
    return moment(at, now=clock.now())
