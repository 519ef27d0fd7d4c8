from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from database import clock
from operations.admin_pages import VerbsAdmin
from operations.form_errors import Unsaved
from operations.initiator import initiator_of
from schedules import permissions
from schedules.description import state_of
from schedules.forms.schedule import ScheduleForm
from schedules.forms.steps import StepForm
from schedules.models import Conflict, Refused, Schedule
from schedules.operations import VERBS, Close
from schedules.spec.wording import duration
from schedules.spec.zones import time_zones
from schedules.spec_text import to_text
from text.words import NOTHING, badge, exact, moment

from .filters import MemoFilter, OutcomeFilter, OverlapFilter, StateFilter, TagFilter
from .schedule_pages import all_view, overview, revisions_view, why_view
from .step import StepInline, can_change, settings_view

LONGEST_SPEC = 150
USUAL_POLICY = Schedule._meta.get_field("on_failure").get_default()
# Rarely needed fieldsets, by title: each is collapsed unless the schedule uses one of these fields.
RARE = {
    "Calendars, jitter and changing clocks": ("calendars", "jitter", "dst"),
    "Failures, limits and notes": ("remaining", "memo", "pause_on_failure", "on_failure"),
}


@admin.register(Schedule)
class ScheduleAdmin(VerbsAdmin[Schedule]):
    form = ScheduleForm
    inlines = (StepInline,)
    change_form_template = "admin/schedules/schedule/change_form.html"
    change_list_template = "admin/schedules/schedule/change_list.html"
    list_display = ("name", "state", "spec_in_words", "next_run", "last", "counts")
    list_filter: ClassVar = [StateFilter, TagFilter, OverlapFilter, OutcomeFilter, MemoFilter]
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name", "next_run", "last")
    fieldsets = (
        (None, {"fields": ("name", "description", "tags", "version")}),
        ("When", {"fields": ("patterns", "cron", "every", "at", "time_zone", "topics")}),
        ("When not", {"fields": ("exclude", ("start_at", "end_at"))}),
        ("Calendars, jitter and changing clocks", {"fields": ("structured", "jitter", "dst")}),
        (
            "Policies",
            {"fields": ("overlap", ("catch_up_seconds", "timeout_seconds", "deadline_seconds"))},
        ),
        (
            "Failures, limits and notes",
            {
                "fields": (
                    "on_failure",
                    ("pause_on_failure", "failures_to_pause", "failures_among"),
                    "remaining",
                    "memo",
                )
            },
        ),
    )
    viewed = ("name", "description", "tag_links", "rules", "policies", "remaining", "memos")

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: Any, what: str, **given: Any) -> URLPattern:
            bound = self.admin_site.admin_view(partial(view, self))
            return path(route, bound, given, name=f"schedules_schedule_{what}")

        return [
            *(page(f"{name}-all/", all_view, f"{name}_all", name=name) for name in VERBS),
            page("step-settings/", settings_view, "step_settings", form=StepForm),
            page("<int:pk>/why/", why_view, "why"),
            page("<int:pk>/revisions/", revisions_view, "revisions"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        is_allowed = request.user.has_perm(permissions.RUN)
        return super().changelist_view(request, {"can_run": is_allowed, **(extra_context or {})})

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return can_change(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return ((None, {"fields": self.viewed}),)
        shown = [(title, fields | {"classes": _classes(title, obj)}) for title, fields in self.fieldsets]
        if obj is None:
            first = ("run_at_once",) if request.user.has_perm(permissions.RUN) else ()
            shown.append(("When created", {"fields": ("paused", "note", *first)}))
        return shown

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Do nothing: `save_related` saves the schedule and its steps together."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        schedule, steps = form.instance, formsets[0].steps
        try:
            if change:
                _edit(request, schedule, form, steps)
            else:
                schedule.pk = _define(request, form, steps).pk
        except Conflict as conflict:
            raise Unsaved({}, refusal=_conflict_words(schedule)) from conflict
        except Refused as refused:
            raise Unsaved({}, refusal=str(refused)) from refused
        except ValidationError as error:
            raise Unsaved(error.message_dict) from error
        except IntegrityError as error:
            raise Unsaved(
                {"name": ["This name was just taken by another schedule. Choose another name."]}
            ) from error

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(self.operation_url(Close.name, [object_id]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["time_zones"] = time_zones()
        if context.get("original"):
            context["overview"] = overview(request, context["original"])
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="state")
    def state(self, schedule: Schedule) -> SafeString:
        state = badge(state_of(schedule))
        return format_html("{} {}", state, badge("overdue")) if schedule.is_overdue(clock.now()) else state

    @admin.display(description="tags")
    def tag_links(self, schedule: Schedule) -> SafeString:
        url = reverse("admin:schedules_schedule_changelist")
        tags = schedule.tags if isinstance(schedule.tags, list) else []
        links = ((f"{url}?{urlencode({'tag': tag})}", tag) for tag in tags)
        return format_html_join(" ", '<a class="tag" href="{}">{}</a>', links)

    @admin.display(description="memo")
    def memos(self, schedule: Schedule) -> SafeString:
        texts = schedule.memo.items() if isinstance(schedule.memo, dict) else ()
        return format_html_join(SafeString("<br>"), "{}: {}", texts)

    @admin.display(description="policies")
    def policies(self, schedule: Schedule) -> str:
        lengths = {
            "catch-up window": schedule.catch_up_seconds,
            "timeout": schedule.timeout_seconds,
            "deadline": schedule.deadline_seconds,
        }
        told = [f"{name} {duration(seconds)}" for name, seconds in lengths.items() if seconds is not None]
        if schedule.on_failure != USUAL_POLICY:
            told.append(f"if a step fails: {schedule.on_failure}")
        if schedule.pause_on_failure:
            failures, among = schedule.failures_to_pause, schedule.failures_among
            told.append(f"pauses itself when {failures} of the last {among} executions fail")
        return " · ".join([schedule.get_overlap_display(), *told])

    @admin.display(description="when")
    def rules(self, schedule: Schedule) -> SafeString:
        """Return the parts of the spec that have a value, as HTML and in the notation of the form."""
        texts = to_text(schedule.spec, schedule.calendars)
        given = [(name.replace("_", " "), text) for name, text in texts.items() if text]
        return format_html_join("", "<b>{}</b><pre>{}</pre>", given)

    @admin.display(description="spec")
    def spec_in_words(self, schedule: Schedule) -> SafeString:
        words = Truncator(schedule.spec_in_words).chars(LONGEST_SPEC)
        return format_html("{} {}", words, self.tag_links(schedule))

    @admin.display(description="next run", ordering="next_run_at")
    def next_run(self, schedule: Schedule) -> SafeString | str:
        if schedule.next_run_at is None:
            return NOTHING
        if schedule.is_paused:
            return "when resumed"
        at = exact(schedule.next_run_at, schedule.zone)
        return format_html(
            '{}<br><span class="quiet">{}</span>', moment(schedule.next_run_at, now=clock.now()), at
        )

    @admin.display(description="last run", ordering="last_run_at")
    def last(self, schedule: Schedule) -> SafeString | str:
        if schedule.last_run_at is None:
            return NOTHING
        outcome = badge(schedule.last_outcome) if schedule.last_outcome else badge("in_progress")
        return format_html("{} {}", outcome, moment(schedule.last_run_at, now=clock.now()))

    @admin.display(description="runs")
    def counts(self, schedule: Schedule) -> SafeString:
        counted = (
            (schedule.failed_count, "failed"),
            (schedule.skipped_count, "skipped"),
            (schedule.missed_count, "missed"),
        )
        trouble = "".join(f", {count:,} {name}" for count, name in counted if count)
        url = f"{reverse('admin:execution_execution_changelist')}?schedule__id__exact={schedule.pk}"
        return format_html('<a href="{}">{}</a>{}', url, f"{schedule.started_count:,}", trouble)


def schedule_link(schedule: Schedule) -> SafeString:
    url = reverse("admin:schedules_schedule_change", args=[schedule.pk])
    return format_html('<a href="{}">{}</a>', url, schedule)


def _classes(title: str | None, schedule: Schedule | None) -> tuple[str, ...]:
    if title not in RARE or _uses(schedule, RARE[title]):
        return ()
    return ("collapse",)


def _uses(schedule: Schedule | None, names: tuple[str, ...]) -> bool:
    if schedule is None:
        return False
    spec = schedule.spec if isinstance(schedule.spec, dict) else {}
    own = {name: getattr(schedule, name) for name in Schedule.EDITABLE}
    return any((spec | own).get(name) not in (None, False, {}, USUAL_POLICY) for name in names)


def _define(request: HttpRequest, form: Any, steps: list[dict[str, Any]]) -> Schedule:
    return Schedule.objects.define(
        **form.definition,
        steps=steps,
        paused=form.cleaned_data["paused"],
        note=form.cleaned_data["note"],
        # Check the permission again: a request can contain fields that its page did not show.
        run_at_once=form.cleaned_data["run_at_once"] and request.user.has_perm(permissions.RUN),
        may=request.user.has_perm,
        initiator=initiator_of(request),
        now=clock.now(),
    )


def _edit(request: HttpRequest, schedule: Schedule, form: Any, steps: list[dict[str, Any]]) -> None:
    current = Schedule.objects.get(pk=schedule.pk)  # the form has changed the given instance
    current.edit(
        token=form.cleaned_data["version"],
        changes=form.definition,
        steps=steps,
        may=request.user.has_perm,
        initiator=initiator_of(request),
        now=clock.now(),
    )


def _conflict_words(schedule: Schedule) -> SafeString:
    return format_html(
        "Another person changed this schedule while you were editing, so nothing was saved. Your changes are "
        'still here: compare them with <a href="{}" target="_blank">the schedule as it is now</a>, '
        "and make your changes there.",
        reverse("admin:schedules_schedule_change", args=[schedule.pk]),
    )
