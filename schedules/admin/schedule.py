from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.db.models import Q, QuerySet
from django.forms import BaseInlineFormSet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from activities import clock
from activities.pages import KnownValues
from activities.words import NOTHING, badge, exact, moment, on_the_clock
from schedules import permissions, registry
from schedules.cron import LAST
from schedules.description import state_of
from schedules.forms import ScheduleForm, StepForm, StepFormSet, Unsaved
from schedules.models import MAX_STEPS, Conflict, Refused, Schedule, Step
from schedules.wording import SpecError
from schedules.zones import time_zones

from .operations import Close, Pause, Resume
from .verbs import VerbsAdmin, initiator_of, unsaved_of

if TYPE_CHECKING:
    StackedInline = admin.StackedInline[Step, Schedule]
else:
    StackedInline = admin.StackedInline


RUNS_SHOWN = 5
EXECUTIONS_SHOWN = 5


class StateFilter(admin.SimpleListFilter):
    """Closed schedules stay for their history; they are shown when asked for."""

    title = parameter_name = "state"
    STATES: ClassVar = {
        "running": Q(status="running", spec_error=""),
        "paused": Q(status="paused"),
        "broken": ~Q(spec_error="") & ~Q(status="closed"),
        "closed": Q(status="closed"),
        "all": Q(),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in self.STATES]

    def choices(self, changelist: Any) -> Any:
        first, *rest = super().choices(changelist)
        return [{**first, "display": "open"}, *rest]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> QuerySet[Schedule]:
        return queryset.filter(self.STATES.get(self.value() or "", ~Q(status="closed")))


class OutcomeFilter(KnownValues):
    title = "last outcome"
    parameter_name = "last_outcome"

    def values(self) -> Iterable[str]:
        return ("completed", "failed", "cancelled")


class StepInline(StackedInline):
    model = Step
    form = StepForm
    formset = StepFormSet
    max_num = MAX_STEPS
    template = "admin/schedules/schedule/steps.html"
    fieldsets = (
        (None, {"fields": (("index", "name", "step_type"), "config")}),
        (
            "If it takes long or fails",
            {
                "fields": (
                    ("timeout_seconds", "max_retries", "retry_seconds"),
                    ("on_crash", "pool"),
                    "continue_on_failure",
                ),
                "classes": ("collapse",),
            },
        ),
    )

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        if not self.has_change_permission(request, obj):
            plain = {"formset": BaseInlineFormSet, "form": forms.ModelForm}
            return super().get_formset(request, obj, **plain, **kwargs)
        formset: Any = super().get_formset(
            request, obj, absolute_max=MAX_STEPS + 1, validate_max=True, **kwargs
        )
        formset.complaints = unsaved_of(request).steps
        return formset

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("schedules.view_schedule") or self.has_change_permission(request, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is None:
            return request.user.has_perm("schedules.add_schedule")
        return _can_change(request, obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)


@admin.register(Schedule)
class ScheduleAdmin(VerbsAdmin[Schedule]):
    form = ScheduleForm
    inlines = (StepInline,)
    operations: ClassVar = [Pause(), Resume(), Close()]
    change_form_template = "admin/schedules/schedule/change_form.html"
    list_display = ("name", "state", "spec_in_words", "next_run", "last", "counts")
    list_filter: ClassVar = [StateFilter, "overlap", OutcomeFilter]
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name", "next_run", "last")
    fieldsets = (
        (None, {"fields": ("name", "description", "version")}),
        ("When", {"fields": ("cron", "every", "at", "time_zone", "dst")}),
        ("How", {"fields": ("overlap", "catch_up_seconds")}),
    )

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return _can_change(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        if obj is None:
            *most, (title, how) = self.fieldsets
            return (*most, (title, {"fields": (*how["fields"], "paused")}))
        if self.has_change_permission(request, obj):
            return self.fieldsets
        fields = ("name", "description", "spec_in_words", "overlap", "catch_up_seconds")
        return ((None, {"fields": fields}),)

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """`save_related` saves schedule and steps as one."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        schedule, steps = form.instance, formsets[0].steps
        try:
            _check_code(request, schedule, steps)
            if change:
                _edit(request, schedule, form, steps)
            else:
                schedule.pk = _define(request, form, steps).pk
        except Conflict as conflict:
            raise Unsaved({"": [_conflict_words(schedule)]}) from conflict
        except Refused as refused:
            raise Unsaved({"": [str(refused)]}) from refused
        except ValidationError as error:
            raise Unsaved(error.message_dict) from error
        except IntegrityError as error:
            raise Unsaved({"name": ["Somebody else took this name just now: choose another one."]}) from error

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(self.operation_url(Close.name, [object_id]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["step_types"] = list(registry.step_types.values())
        context["time_zones"] = time_zones()
        if context.get("original"):
            context["overview"] = _overview(request, context["original"])
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="state")
    def state(self, schedule: Schedule) -> SafeString:
        return badge(state_of(schedule))

    @admin.display(description="spec")
    def spec_in_words(self, schedule: Schedule) -> str:
        return schedule.spec_in_words

    @admin.display(description="next run", ordering="next_run_at")
    def next_run(self, schedule: Schedule) -> SafeString | str:
        if schedule.next_run_at is None:
            return NOTHING
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
        trouble = ", ".join(f"{count:,} {name}" for count, name in counted if count)
        url = f"{reverse('admin:execution_execution_changelist')}?schedule__id__exact={schedule.pk}"
        return format_html('<a href="{}">{}</a> {}', url, f"{schedule.started_count:,}", trouble)


def _can_change(request: HttpRequest, schedule: Schedule | None) -> bool:
    is_open = schedule is None or schedule.status != Schedule.Status.CLOSED
    return is_open and request.user.has_perm("schedules.change_schedule")


def _check_code(request: HttpRequest, schedule: Schedule, steps: list[dict[str, Any]]) -> None:
    if request.user.has_perm(permissions.DEFINE_CODE):
        return
    before = [step.as_json() for step in schedule.steps.all()] if schedule.pk else []
    if names := permissions.new_code(before, steps):
        told = ", ".join(f"“{name}”" for name in names)
        needed = "That needs the permission to define steps that run code."
        raise ValidationError({"steps": f"You may not write steps that run code: {told}. {needed}"})


def _define(request: HttpRequest, form: Any, steps: list[dict[str, Any]]) -> Schedule:
    return Schedule.objects.define(
        **form.definition,
        steps=steps,
        paused=form.cleaned_data["paused"],
        initiator=initiator_of(request),
        now=clock.now(),
    )


def _edit(request: HttpRequest, schedule: Schedule, form: Any, steps: list[dict[str, Any]]) -> None:
    before = [step.as_json() for step in schedule.steps.all()]
    if not form.has_changed() and steps == before:
        return
    schedule.edit(
        token=form.cleaned_data["version"],
        changes=form.definition,
        steps=steps,
        initiator=initiator_of(request),
        now=clock.now(),
    )


def _conflict_words(schedule: Schedule) -> SafeString:
    return format_html(
        "Somebody else changed this schedule while you were typing, so nothing was saved. What you typed is "
        'still here: compare it with <a href="{}" target="_blank">the schedule as it is now</a>, '
        "and make your change there.",
        reverse("admin:schedules_schedule_change", args=[schedule.pk]),
    )


def _overview(request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
    try:
        spec, now = schedule.compiled_spec, clock.now()
        notes, runs = spec.notes, spec.times(now, LAST, limit=RUNS_SHOWN)
    except SpecError:
        notes, runs = (), []
    zone, is_closed = schedule.zone, schedule.status == Schedule.Status.CLOSED
    can_see = request.user.has_perm("execution.view_execution")
    return {
        "state": badge(state_of(schedule)),
        "notes": notes,
        "zone": zone,
        "runs": [] if is_closed else [(at, on_the_clock(at, zone), on_the_clock(at)) for at in runs],
        "executions": schedule.executions.order_by("-pk").defer("plan")[:EXECUTIONS_SHOWN] if can_see else [],
    }
