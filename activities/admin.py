from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar, cast

from django.apps import apps
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from database import clock
from operations.admin_pages import InWords, KnownValues, OperationsAdmin, RecordAdmin, admin_link, text_panel
from text.words import NOTHING, as_json, badge, exact, moment, span

from . import vocabulary
from .models import Activity, ActivityItem, ActivityQuerySet

ITEMS_SHOWN = 200
LINES_SHOWN = 200
RELATED_SHOWN = 100


class OperationFilter(KnownValues):
    title = parameter_name = "operation"

    def values(self) -> Iterable[str]:
        return vocabulary.operations()


class TargetTypeFilter(KnownValues):
    title = "target type"
    parameter_name = "target_type"

    def values(self) -> Iterable[str]:
        return vocabulary.target_types()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        named = [(value, type_in_words(value)) for value, _ in super().lookups(request, model_admin)]
        return sorted(named, key=lambda each: each[1].lower())


class InitiatorFilter(KnownValues):
    title = "initiator"
    parameter_name = "initiator_type"

    def values(self) -> Iterable[str]:
        return ("user", "token", "schedule", "system")


@admin.register(Activity)
class ActivityAdmin(RecordAdmin[Activity], OperationsAdmin[Activity]):
    list_display = ("state", "operation", "target", "initiator", "created", "duration", "words")
    list_filter: ClassVar = [("status", InWords), OperationFilter, TargetTypeFilter, InitiatorFilter]
    linked_by = ("target_id",)
    search_fields = ("target_name", "initiator_name")
    fields = (
        "state",
        "outcome",
        "operation",
        "target",
        "initiator",
        "times",
        "progress",
        "shown_message",
        "items",
        "parent_link",
        "worker",
        "idempotency_key",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Activity]:
        rows = cast(ActivityQuerySet, super().get_queryset(request)).seen_by(request.user.has_perm)
        is_list = request.resolver_match is not None and request.resolver_match.url_name == self._list_name
        return rows.defer("traceback", "result", "details") if is_list else rows.select_related("parent")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.output_view)
        return [path("<int:pk>/output.txt", view, name="activities_activity_output"), *super().get_urls()]

    def output_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Return the stored output as plain text, which browsers do not interpret as markup."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        activity = self.get_queryset(request).filter(pk=pk).first()
        if activity is None:
            raise Http404(f"Activity {pk} was not found.")
        lines = activity.output.values_list("text", flat=True)
        return HttpResponse("".join(f"{line}\n" for line in lines), content_type="text/plain; charset=utf-8")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        activity: Activity = context["original"]
        context["panels"] = _panels(activity, request.user.has_perm)
        context["is_moving"] = not activity.is_final
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="status")
    def state(self, activity: Activity) -> SafeString:
        return badge(activity.status)

    def outcome(self, activity: Activity) -> str:
        return activity.finality or NOTHING

    def target(self, activity: Activity) -> SafeString | str:
        """Return a link to the target if it has an admin page, else its name."""
        name = f"{activity.target_name} ({type_in_words(activity.target_type)})"
        for app in ("schedules", "execution", "workflows", "webhooks"):
            try:
                url = reverse(f"admin:{app}_{activity.target_type}_change", args=[activity.target_id])
            except NoReverseMatch:
                continue
            return format_html('<a href="{}">{}</a>', url, name)
        return name

    def initiator(self, activity: Activity) -> str:
        return f"{activity.initiator_name} ({activity.initiator_type.replace('_', ' ')})"

    def created(self, activity: Activity) -> SafeString:
        return moment(activity.created_at, now=clock.now())

    def duration(self, activity: Activity) -> str:
        return span(activity.duration)

    def items(self, activity: Activity) -> str:
        if not activity.items_total:
            return NOTHING
        return f"{activity.items_total:,}" + (
            f", {activity.items_failed:,} failed" if activity.items_failed else ""
        )

    @admin.display(description="message")
    def words(self, activity: Activity) -> str:
        return (activity.error or activity.message).partition("\n")[0][:120]

    def times(self, activity: Activity) -> str:
        stages = (
            ("created", activity.created_at),
            ("began", activity.executed_at),
            ("finished", activity.finished_at),
        )
        texts = {at: f"{name} {exact(at)}" for name, at in reversed(stages) if at}
        took = f"took {span(activity.duration)}" if activity.duration else ""
        return " · ".join([*reversed(texts.values()), took]).removesuffix(" · ")

    def progress(self, activity: Activity) -> SafeString | str:
        if activity.progress_done is None:
            return NOTHING
        if not activity.progress_total:
            return f"{activity.progress_done:,}"
        return format_html(
            '<progress max="{}" value="{}"></progress> {} of {}',
            activity.progress_total,
            activity.progress_done,
            f"{activity.progress_done:,}",
            f"{activity.progress_total:,}",
        )

    @admin.display(description="message")
    def shown_message(self, activity: Activity) -> str:
        return activity.message or NOTHING

    @admin.display(description="part of")
    def parent_link(self, activity: Activity) -> SafeString | str:
        return (
            NOTHING if activity.parent is None else admin_link(activity.parent, activity.parent.target_name)
        )

    def worker(self, activity: Activity) -> str:
        return str(activity.worker_id or NOTHING)

    @admin.display(description="idempotency key")
    def idempotency_key(self, activity: Activity) -> str:
        return str(activity.task_key or NOTHING)

    @property
    def _list_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_changelist"


def type_in_words(target_type: str) -> str:
    """Return the display name of a target type. A step type, such as `http`, is returned unchanged."""
    return _row_names().get(target_type, target_type)


@cache
def _row_names() -> dict[str, str]:
    return {str(model._meta.model_name): str(model._meta.verbose_name) for model in apps.get_models()}


def _panels(activity: Activity, may: Callable[[str], bool]) -> list[str]:
    attempts = activity.chain()[-RELATED_SHOWN:]
    parts = activity.children.order_by("step_index", "line", "attempt")[:RELATED_SHOWN]
    return [
        text_panel("Error", activity.error),
        text_panel("Traceback", activity.traceback),
        text_panel("Result", as_json(activity.result)),
        _links("Attempts", attempts if len(attempts) > 1 else [], current=activity),
        _links("Parts", list(parts), current=activity),
        render_to_string("admin/activities/_items.html", _items(activity, may)),
        render_to_string("admin/activities/_output.html", _output(activity)),
        text_panel("Details", as_json(activity.details)),
    ]


def _links(title: str, activities: list[Activity], *, current: Activity) -> str:
    return render_to_string(
        "admin/activities/_links.html", {"title": title, "activities": activities, "current": current}
    )


def _items(activity: Activity, may: Callable[[str], bool]) -> dict[str, Any]:
    rows = ActivityItem.objects.filter(activity=activity).seen_by(may).order_by("pk")
    failed = list(rows.filter(outcome="failed")[:ITEMS_SHOWN])
    others = list(rows.exclude(outcome="failed")[: ITEMS_SHOWN - len(failed)])
    shown = failed + others
    # A smaller number may only mean that the step has counted items without recording them.
    is_cut = len(shown) == ITEMS_SHOWN < activity.items_total
    lacking = Activity.objects.filter(pk=activity.pk).lacking_for_items(may)
    return {"items": shown, "total": activity.items_total, "is_cut": is_cut, "lacking": sorted(lacking)}


def _output(activity: Activity) -> dict[str, Any]:
    lines = list(activity.output.order_by("-number")[:LINES_SHOWN])[::-1]
    return {"activity": activity, "lines": lines, "is_cut": bool(lines) and lines[0].number > 1}
