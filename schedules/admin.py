from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError
from django.db.models import Model, Q, QuerySet
from django.forms import BaseInlineFormSet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

import activities.admin
from activities import clock
from activities.models import Initiator
from activities.operations import Declined, Done, Operation, OperationsAdmin
from activities.pages import KnownValues, RecordAdmin
from activities.words import NOTHING, badge, exact, moment, on_the_clock, span

from . import permissions, registry
from .cron import LAST
from .forms import ScheduleForm, StepForm, StepFormSet, Unsaved
from .models import MAX_STEPS, Conflict, Occurrence, Refused, Schedule, Secret, Step
from .secret_form import SecretForm
from .vault import VaultError
from .wording import SpecError
from .zones import time_zones

if TYPE_CHECKING:
    StackedInline = admin.StackedInline[Step, Schedule]
else:
    StackedInline = admin.StackedInline

M = TypeVar("M", bound=Model)
RUNS_SHOWN = 5
EXECUTIONS_SHOWN = 5

activities.admin.operations |= {"create", "edit", "pause", "resume", "close", "delete", "rotate"}
activities.admin.target_types.append(lambda: ["schedule", "secret", *registry.step_types])


class PauseForm(forms.Form):
    note = forms.CharField(
        required=False,
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text="Why, for whoever finds it paused.",
    )
    until = forms.DateTimeField(
        label="Until (UTC)",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text="It then resumes by itself. Empty: until somebody resumes it.",
    )


class ResumeForm(forms.Form):
    missed = forms.ChoiceField(
        label="Times that passed meanwhile",
        choices=[
            ("catch_up", "Catch up: start them by catch-up window and overlap policy"),
            ("discard", "Discard: record them as skipped"),
        ],
        initial="catch_up",
        widget=forms.RadioSelect,
    )


class ScheduleOperation(Operation[Schedule]):
    """Says what the schedule's verbs refuse as a message on the page."""

    permission = permissions.RUN

    def perform(
        self, target: Schedule, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            return self.change(target, answers, initiator, now)
        except (Refused, Conflict) as refused:
            raise Declined(str(refused)) from refused

    @abstractmethod
    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done: ...

    def applies(self, schedule: Schedule) -> bool:
        return schedule.status != Schedule.Status.CLOSED


class Pause(ScheduleOperation):
    name, label, form = "pause", "Pause", PauseForm
    question = (
        "Automatic runs wait from now on; their times are still recorded. What is running goes on, "
        "and runs by hand stay possible. Pause this?"
    )

    def applies(self, schedule: Schedule) -> bool:
        return schedule.status == Schedule.Status.RUNNING

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        schedule.pause(initiator=by, now=now, note=answers["note"], until=answers["until"])
        return Done(f"“{schedule}” is paused.")


class Resume(ScheduleOperation):
    name, label, form = "resume", "Resume", ResumeForm
    question = "Automatic runs start again. Resume this?"

    def applies(self, schedule: Schedule) -> bool:
        return schedule.status == Schedule.Status.PAUSED

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        schedule.resume(initiator=by, now=now, discard=answers["missed"] == "discard")
        return Done(f"“{schedule}” runs again.")


class Close(ScheduleOperation):
    name, label, is_final = "close", "Close", True
    permission = permissions.CLOSE
    question = (
        "A closed schedule never runs again and cannot be changed or opened again. What is pending is "
        "cancelled, what is running goes on, its history stays, its name becomes free. Close this for good?"
    )

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        schedule.close(initiator=by, now=now)
        return Done(f"“{schedule}” is closed.")


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
        formset.complaints = _unsaved(request).steps
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


class VerbsAdmin(OperationsAdmin[M]):
    """Forms that are saved by a verb of their model, which may still refuse what the form let through."""

    def get_form(self, request: HttpRequest, obj: M | None = None, *args: Any, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, *args, **kwargs)
        form.unsaved = _unsaved(request)  # a class of this request's own
        return form

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: Any = None,
    ) -> HttpResponse:
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except Unsaved as unsaved:
            # Rolled back. The same page again, with all that was typed and the reason where it belongs.
            setattr(request, "unsaved", unsaved)  # noqa: B010 Django's class does not know it
            return super().changeform_view(request, object_id, form_url, extra_context)

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        return []

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Its activities are its history."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = urlencode({"target_type": str(self.opts.model_name), "target_id": object_id})
        return HttpResponseRedirect(f"{reverse('admin:activities_activity_changelist')}?{query}")


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
        return _state(schedule)

    @admin.display(description="spec")
    def spec_in_words(self, schedule: Schedule) -> str:
        return schedule.spec_in_words

    @admin.display(description="next run", ordering="next_run_at")
    def next_run(self, schedule: Schedule) -> SafeString | str:
        if schedule.next_run_at is None:
            return NOTHING
        at = exact(schedule.next_run_at, _zone(schedule))
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


@admin.register(Occurrence)
class OccurrenceAdmin(RecordAdmin[Occurrence]):
    list_display = ("nominal", "schedule_link", "source", "state", "why", "settled")
    list_filter = ("status", "source")
    list_select_related = ("schedule", "execution")
    fields = ("nominal", "schedule_link", "source", "state", "why", "settled", "initiator", "key")

    @admin.display(description="time")
    def nominal(self, occurrence: Occurrence) -> SafeString:
        zone = _zone(occurrence.schedule)
        return format_html(
            '{} <span class="quiet">{}</span>',
            exact(occurrence.nominal_at, zone),
            moment(occurrence.nominal_at, now=clock.now()),
        )

    @admin.display(description="schedule")
    def schedule_link(self, occurrence: Occurrence) -> SafeString:
        url = reverse("admin:schedules_schedule_change", args=[occurrence.schedule_id])
        return format_html('<a href="{}">{}</a>', url, occurrence.schedule)

    @admin.display(description="fate")
    def state(self, occurrence: Occurrence) -> SafeString:
        execution = getattr(occurrence, "execution", None)
        if execution is None:
            return badge(occurrence.status)
        return format_html("{} {}", badge(occurrence.status), _execution_link(execution.pk))

    @admin.display(description="reason")
    def why(self, occurrence: Occurrence) -> SafeString | str:
        if occurrence.blocked_by is None:
            return occurrence.reason or NOTHING
        return format_html("{}: {} was running", occurrence.reason, _execution_link(occurrence.blocked_by))

    @admin.display(description="settled")
    def settled(self, occurrence: Occurrence) -> str:
        lag = occurrence.lag
        return NOTHING if lag is None else f"{span(lag)} after its time"

    def initiator(self, occurrence: Occurrence) -> str:
        return f"{occurrence.initiator_name} ({occurrence.initiator_type.replace('_', ' ')})"


class Delete(Operation[Secret]):
    name, label, is_final = "delete", "Delete", True
    permission = "schedules.delete_secret"
    question = "Its value is gone for good; the record of who set and changed it stays. Delete this?"

    def perform(
        self, target: Secret, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        name = str(target)
        try:
            target.remove(initiator=initiator, now=now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        return Done(f"“{name}” is deleted.", reverse("admin:schedules_secret_changelist"))


@admin.register(Secret)
class SecretAdmin(VerbsAdmin[Secret]):
    """Names for everybody who may see them, values for nobody."""

    form = SecretForm
    operations: ClassVar = [Delete()]
    change_form_template = "admin/schedules/secret/change_form.html"
    list_display = ("name", "changed", "about")
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name", "changed")

    def get_fields(self, request: HttpRequest, obj: Secret | None = None) -> Any:
        if obj is None:
            return ("name", "description", "value")
        return ("description", "value") if self.has_change_permission(request, obj) else ("description",)

    @method_decorator([sensitive_post_parameters(), sensitive_variables()])
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return super().changeform_view(request, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Secret, form: Any, change: bool) -> None:
        given = {"value": form.cleaned_data["value"], "description": form.cleaned_data["description"]}
        by, now = _initiator(request), clock.now()
        try:
            if change:
                obj.edit(**given, initiator=by, now=now)
            else:
                obj.pk = Secret.objects.define(obj.name, **given, initiator=by, now=now).pk
        except (Refused, VaultError) as refused:
            raise Unsaved({"": [str(refused)]}) from refused
        except IntegrityError as error:
            raise Unsaved({"name": ["Somebody else took this name just now: choose another one."]}) from error

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(self.operation_url(Delete.name, [object_id]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if secret := context.get("original"):
            context["trouble"] = _trouble(secret)
            context["used_by"] = (
                secret.used_by() if request.user.has_perm("schedules.view_schedule") else None
            )
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="description")
    def about(self, secret: Secret) -> str:
        return Truncator(secret.description).chars(80)

    @admin.display(description="value set", ordering="changed_at")
    def changed(self, secret: Secret) -> SafeString:
        return moment(secret.changed_at, now=clock.now())


def _can_change(request: HttpRequest, schedule: Schedule | None) -> bool:
    is_open = schedule is None or schedule.status != Schedule.Status.CLOSED
    return is_open and request.user.has_perm("schedules.change_schedule")


def _unsaved(request: HttpRequest) -> Unsaved:
    return getattr(request, "unsaved", None) or Unsaved({})


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
        initiator=_initiator(request),
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
        initiator=_initiator(request),
        now=clock.now(),
    )


def _initiator(request: HttpRequest) -> Initiator:
    assert request.user.is_authenticated
    return Initiator.user(request.user)


def _conflict_words(schedule: Schedule) -> SafeString:
    return format_html(
        "Somebody else changed this schedule while you were typing, so nothing was saved. What you typed is "
        'still here: compare it with <a href="{}" target="_blank">the schedule as it is now</a>, '
        "and make your change there.",
        reverse("admin:schedules_schedule_change", args=[schedule.pk]),
    )


def _trouble(secret: Secret) -> str:
    """Why steps that refer to it would fail here."""
    try:
        Secret.objects.reveal([secret.name])
    except VaultError as error:
        return str(error)
    return ""


def _state(schedule: Schedule) -> SafeString:
    if schedule.status == Schedule.Status.CLOSED:
        return badge(schedule.status)
    try:
        spec = schedule.compiled_spec
    except SpecError:
        return badge("broken")
    if schedule.spec_error:
        return badge("broken")
    if schedule.status == Schedule.Status.RUNNING and schedule.next_run_at is None:
        return badge("by hand" if spec.is_manual else "ended")
    return badge(schedule.status)


def _zone(schedule: Schedule) -> ZoneInfo:
    try:
        return ZoneInfo(schedule.compiled_spec.time_zone)
    except SpecError:
        return ZoneInfo("UTC")


def _overview(request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
    try:
        spec, now = schedule.compiled_spec, clock.now()
        notes, runs = spec.notes, spec.times(now, LAST, limit=RUNS_SHOWN)
    except SpecError:
        notes, runs = (), []
    zone, is_closed = _zone(schedule), schedule.status == Schedule.Status.CLOSED
    can_see = request.user.has_perm("execution.view_execution")
    return {
        "state": _state(schedule),
        "notes": notes,
        "zone": zone,
        "runs": [] if is_closed else [(at, on_the_clock(at, zone), on_the_clock(at)) for at in runs],
        "executions": schedule.executions.order_by("-pk").defer("plan")[:EXECUTIONS_SHOWN] if can_see else [],
    }


def _execution_link(pk: int) -> SafeString:
    url = reverse("admin:execution_execution_change", args=[pk])
    return format_html('<a href="{}">execution {}</a>', url, pk)
