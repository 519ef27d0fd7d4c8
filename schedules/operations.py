"""Operations on schedules, backfills, templates, calendars and secrets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.template.loader import render_to_string
from django.urls import reverse

from activities import vocabulary
from database import clock
from operations.initiator import Initiator
from operations.operation import Declined, Done, OnceForm, Operation, offer
from schedules import permissions, registry
from schedules.form_fields import WallTime
from schedules.models import (
    Backfill,
    Conflict,
    Overlap,
    Refused,
    Schedule,
    ScheduleQuerySet,
    Secret,
    SharedCalendar,
    TaskTemplate,
)
from schedules.models.backfill import USUAL_OVERLAP, USUAL_WHICH
from schedules.spec.wording import counted, listed
from text.words import on_the_clock

TIMES_SHOWN = 10


class NoteForm(forms.Form):
    note = forms.CharField(
        required=False,
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text="Why the schedule is paused. The note is shown on the schedule's page.",
    )


class PauseForm(NoteForm):
    until = WallTime(
        required=False,
        help_text="When the schedule resumes automatically. If empty, it stays paused until it is resumed by "
        "hand. {clock}",
    )


class ResumeForm(forms.Form):
    missed = forms.ChoiceField(
        label="Runs that were due during the pause",
        choices=[
            ("catch_up", "Catch up: start the runs that the catch-up window and the overlap policy allow"),
            ("discard", "Discard: record all these runs as skipped"),
        ],
        initial="catch_up",
        widget=forms.RadioSelect,
    )


class SkipForm(forms.Form):
    # Without tokens, a form that is sent twice, or after another change, would skip a time that it did not
    # show.
    tokens = forms.RegexField(r"^[0-9]{1,18}:[0-9]{1,9}(,[0-9]{1,18}:[0-9]{1,9})*$", widget=forms.HiddenInput)


class UnskipForm(forms.Form):
    at = forms.ChoiceField(label="Time", widget=forms.RadioSelect)


class BackfillForm(OnceForm):
    start_at = WallTime(label="From", help_text="The range includes this time. {clock}")
    end_at = WallTime(label="To", help_text="The range includes this time. It cannot be in the future.")
    which = forms.ChoiceField(
        label="Which times",
        choices=Backfill.Which.choices,
        initial=USUAL_WHICH,
        widget=forms.RadioSelect,
    )
    overlap = forms.ChoiceField(
        label="Overlap policy",
        choices=Overlap.choices,
        initial=USUAL_OVERLAP,
        help_text="What to do while another execution of the schedule is running. With “Allow all”, at most "
        "10 backfill executions of the schedule run at the same time.",
    )


class ScheduleOperation(Operation[Schedule]):
    """An operation on a schedule. If the schedule refuses the change, the reason is shown as a message."""

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

    def ask(
        self, targets: Sequence[Schedule], asked: QueryDict, given: QueryDict | None = None
    ) -> forms.Form:
        form = super().ask(targets, asked, given)
        for field in form.fields.values():
            field.help_text = str(field.help_text).replace("{clock}", clock_of(targets))
        return form

    def applies(self, schedule: Schedule) -> bool:
        return schedule.status != Schedule.Status.CLOSED


class SkipNext(ScheduleOperation):
    name, label, form = "skip", "Skip next", SkipForm
    question = (
        "The next automatic run will not start and will be recorded as skipped. You can undo this until the "
        "scheduled time of the run. Skip the next run?"
    )

    def ask(
        self, targets: Sequence[Schedule], asked: QueryDict, given: QueryDict | None = None
    ) -> forms.Form:
        tokens = ",".join(f"{schedule.pk}:{schedule.token}" for schedule in targets)
        return self.form(given, initial={"tokens": tokens})

    def about(self, schedule: Schedule) -> str:
        now = clock.now()
        held_back = schedule.occurrences.pending().automatic().filter(planned_at__gt=now)
        coming = list(held_back.order_by("planned_at").values_list("nominal_at", flat=True)[:1])
        with suppress(Refused):
            coming = coming or schedule.next_times(1, now=now)
        words = f"{on_the_clock(coming[0], schedule.zone)} {schedule.zone}" if coming else "none"
        return f"next run: {words}"

    def applies(self, schedule: Schedule) -> bool:
        return super().applies(schedule) and schedule.next_run_at is not None

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        tokens = dict(pair.split(":") for pair in answers["tokens"].split(","))
        at = schedule.skip_next(initiator=by, now=now, token=int(tokens.get(str(schedule.pk), 0)))
        return Done(f"“{schedule}” will skip the run at {on_the_clock(at, schedule.zone)} {schedule.zone}.")


class Unskip(ScheduleOperation):
    name, label, form = "unskip", "Undo skip", UnskipForm
    question = "The schedule will run at the chosen time after all. Undo the skip?"

    def ask(
        self, targets: Sequence[Schedule], asked: QueryDict, given: QueryDict | None = None
    ) -> forms.Form:
        form = self.form(given, initial={"at": asked.get("at")})
        at = form.fields["at"]
        assert isinstance(at, forms.ChoiceField)
        at.choices = list(_left_out(targets).items())
        return form

    def applies(self, schedule: Schedule) -> bool:
        return super().applies(schedule) and bool(schedule.skips)

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        at = datetime.fromisoformat(answers["at"])
        schedule.unskip(at, initiator=by, now=now)
        local = f"{on_the_clock(at, schedule.zone)} {schedule.zone}"
        return Done(f"“{schedule}” will no longer skip the run at {local}.")


class AskBackfill(ScheduleOperation):
    name, label, form, is_rehearsed = "backfill", "Backfill", BackfillForm, True
    question = (
        "A backfill runs the schedule for the times in a past range, with the current definition of the "
        "schedule. Other runs that are due start before the runs of a backfill. Choose the range."
    )

    def applies(self, schedule: Schedule) -> bool:
        return super().applies(schedule) and not schedule.spec_error and bool(schedule.spec)

    def rehearse(self, schedule: Schedule, *, answers: dict[str, Any], now: datetime) -> str:
        asked = _range_of(schedule, answers)
        try:
            survey = Backfill.objects.survey(
                schedule, **asked, which=answers["which"], now=now, limit=TIMES_SHOWN
            )
        except Refused as refused:
            raise Declined(str(refused)) from refused
        survey.refuse_if_empty()
        times = [(on_the_clock(at, schedule.zone), on_the_clock(at)) for at in survey.times]
        last = survey.last if survey.last not in survey.times else None
        context = {
            "schedule": schedule,
            "survey": survey,
            "left_out": sorted(survey.left_out.items()),
            "times": times,
            "last": on_the_clock(last, schedule.zone) if last else "",
            "zone": schedule.zone,
        }
        return render_to_string("admin/schedules/schedule/_survey.html", context)

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        asked: dict[str, Any] = {**_range_of(schedule, answers)}
        asked |= {name: answers[name] for name in ("which", "overlap", "key")}
        backfill = Backfill.objects.ask(schedule, **asked, initiator=by, now=now)
        return Done(f"The backfill of “{schedule}” has been queued.", backfill.get_absolute_url())


class Pause(ScheduleOperation):
    name, label, form = "pause", "Pause", PauseForm
    question = (
        "Automatic runs are still recorded, but wait until the schedule is resumed. Running executions "
        "continue, and you can still start runs by hand. Pause now?"
    )

    def applies(self, schedule: Schedule) -> bool:
        return schedule.status == Schedule.Status.ACTIVE

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        if schedule.is_paused:  # only in a selection: its own page does not offer a pause
            raise Declined(f"“{schedule}” is already {schedule.pause_in_words}. Nothing was changed.")
        until = instant(schedule, answers["until"]) if answers["until"] else None
        schedule.pause(initiator=by, now=now, note=answers["note"], until=until)
        return Done(f"“{schedule}” is paused.")


class Resume(ScheduleOperation):
    name, label, form = "resume", "Resume", ResumeForm
    question = "Automatic runs will start again. Resume now?"

    def about(self, schedule: Schedule) -> str:
        return schedule.pause_in_words if schedule.is_paused else ""

    def applies(self, schedule: Schedule) -> bool:
        return schedule.status == Schedule.Status.PAUSED

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        schedule.resume(initiator=by, now=now, discard=answers["missed"] == "discard")
        return Done(f"“{schedule}” is active again.")


class Close(ScheduleOperation):
    name, label, is_final = "close", "Close", True
    permission = permissions.CLOSE
    question = (
        "A closed schedule never runs again and cannot be edited or reopened. Waiting runs are cancelled, "
        "running executions continue, the history is kept, and the name can be used for a new schedule. "
        "Close the schedule permanently?"
    )

    def about(self, schedule: Schedule) -> str:
        waiting = schedule.occurrences.pending().count()
        backfills = schedule.backfills.open().count()
        ending = [f"{counted(waiting, 'waiting run')} will be cancelled"] if waiting else []
        ending += [f"{counted(backfills, 'backfill')} will be cancelled"] if backfills else []
        running = schedule.executions.in_progress().count()
        return ", ".join([*ending, *([f"{counted(running, 'execution')} will continue"] if running else [])])

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        schedule.close(initiator=by, now=now)
        return Done(f"“{schedule}” is closed.")


def clock_of(schedules: Sequence[Schedule]) -> str:
    """Return a sentence that says in which time zone a typed time is read."""
    zones = sorted({str(schedule.zone) for schedule in schedules})
    return (
        f"In the time zone {listed(zones[:5])}." if len(zones) == 1 else "In the time zone of each schedule."
    )


def instant(schedule: Schedule, typed: datetime, *, fold: int = 0) -> datetime:
    """Return a typed time as an instant. A time without a UTC offset is in the schedule's time zone.

    If a clock time occurs twice because the clocks go back, `fold` 0 is the first time, and 1 the second.
    """
    return typed if typed.tzinfo else typed.replace(tzinfo=schedule.zone, fold=fold).astimezone(UTC)


def _range_of(schedule: Schedule, answers: dict[str, Any]) -> dict[str, datetime]:
    start, end = instant(schedule, answers["start_at"]), instant(schedule, answers["end_at"], fold=1)
    if end < start:
        raise ValidationError({"end_at": "The range ends before it starts: choose a later end."})
    return {"start_at": start, "end_at": end}


def _left_out(schedules: Sequence[Schedule]) -> dict[str, str]:
    """Return a dict from each time that is marked to be skipped to its text in its schedule's time zone."""
    times = {name: schedule for schedule in schedules for name in schedule.skips}
    return {
        name: f"{on_the_clock(datetime.fromisoformat(name), times[name].zone)} {times[name].zone}"
        for name in sorted(times)
    }


class Removal(Operation[Any]):
    """An operation that deletes an object by calling its method `remove`."""

    name, label, is_final = "delete", "Delete", True
    # The URL name of the page to show next; if empty, the list in the admin is shown.
    list_name: ClassVar = ""

    def perform(self, target: Any, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        name = str(target)
        try:
            target.remove(initiator=initiator, now=now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        meta = target._meta
        list_name = self.list_name or f"admin:{meta.app_label}_{meta.model_name}_changelist"
        return Done(f"“{name}” is deleted.", reverse(list_name))


class ReasonForm(forms.Form):
    reason = forms.CharField(
        required=False, max_length=500, widget=forms.TextInput(attrs={"class": "vTextField"})
    )


class CancelBackfill(Operation[Backfill]):
    name, label, form, is_final = "cancel", "Cancel backfill", ReasonForm, True
    permission = permissions.RUN
    question = (
        "No more runs of this backfill will start. Running executions continue. This cannot be undone. "
        "Cancel the backfill?"
    )

    def applies(self, backfill: Backfill) -> bool:
        """Return whether the backfill is open or has pending occurrences.

        Lists have the number of these occurrences in the annotation `waiting`.
        """
        if backfill.status == Backfill.Status.OPEN:
            return True
        waiting: int | None = getattr(backfill, "waiting", None)
        return backfill.occurrences.pending().exists() if waiting is None else waiting > 0

    def about(self, backfill: Backfill) -> str:
        return f"of “{backfill.schedule}”"

    def perform(
        self, target: Backfill, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not target.cancel(initiator=initiator, now=now, reason=answers["reason"]):
            raise Declined(f"The backfill from {target} has already ended.")
        return Done(f"The backfill from {target} is cancelled.")


class TemplateOperation(Operation[TaskTemplate]):
    permission = "schedules.change_tasktemplate"

    def perform(
        self, target: TaskTemplate, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            return self.change(target, initiator, now)
        except (Refused, Conflict) as refused:
            raise Declined(str(refused)) from refused

    @abstractmethod
    def change(self, template: TaskTemplate, by: Initiator, now: datetime) -> Done: ...


class Archive(TemplateOperation):
    name, label = "archive", "Archive"
    question = (
        "An archived template cannot be edited, and cannot be used in further steps. Steps that already use "
        "the template keep working. You can restore the template later. Archive the template?"
    )

    def applies(self, template: TaskTemplate) -> bool:
        return not template.is_archived

    def change(self, template: TaskTemplate, by: Initiator, now: datetime) -> Done:
        template.archive(initiator=by, now=now)
        return Done(f"“{template}” is archived.")


class Restore(TemplateOperation):
    name, label = "restore", "Restore"
    question = "Steps will be able to use the template again. Restore the template?"

    def applies(self, template: TaskTemplate) -> bool:
        return template.is_archived

    def change(self, template: TaskTemplate, by: Initiator, now: datetime) -> Done:
        template.restore(initiator=by, now=now)
        return Done(f"“{template}” is active again.")


class PauseAll:
    name: ClassVar = "pause"
    label: ClassVar = "Pause all"
    form: ClassVar[type[forms.Form]] = NoteForm
    question: ClassVar = (
        "Pause every active schedule: automatic runs are still recorded, but wait. Running executions "
        "continue, and you can still start runs by hand. “Resume all” will resume only the schedules that "
        "are paused now, not those that were already paused. Pause all schedules?"
    )

    def affected(self) -> ScheduleQuerySet:
        return Schedule.objects.filter(status=Schedule.Status.ACTIVE)

    def perform(self, answers: dict[str, Any], by: Initiator, now: datetime) -> str:
        count = Schedule.objects.pause_all(initiator=by, now=now, note=answers["note"])
        return f"{_are(count)} paused."


class ResumeAll:
    name: ClassVar = "resume"
    label: ClassVar = "Resume all"
    form: ClassVar[type[forms.Form]] = ResumeForm
    question: ClassVar = (
        "Resume the schedules that “Pause all” paused. Schedules that were paused individually stay paused. "
        "Resume all?"
    )

    def affected(self) -> ScheduleQuerySet:
        return Schedule.objects.paused_together()

    def perform(self, answers: dict[str, Any], by: Initiator, now: datetime) -> str:
        discard = answers["missed"] == "discard"
        count = Schedule.objects.resume_all(initiator=by, now=now, discard=discard)
        return f"{_are(count)} active again."


VERBS: dict[str, PauseAll | ResumeAll] = {verb.name: verb for verb in (PauseAll(), ResumeAll())}


def _are(count: int) -> str:
    return f"{counted(count, 'schedule')} {'is' if count == 1 else 'are'}"


class DeleteSecret(Removal):
    permission = "schedules.delete_secret"
    question = (
        "The value will be lost. The record of who set and changed the value is kept. Delete the secret?"
    )


class DeleteCalendar(Removal):
    permission, list_name = "schedules.delete_sharedcalendar", "web:calendars"
    question = "The record of who created and changed the calendar is kept. Delete the calendar?"


offer(Schedule, SkipNext(), Unskip(), AskBackfill(), Pause(), Resume(), Close())
offer(Backfill, CancelBackfill())
offer(Secret, DeleteSecret())
offer(SharedCalendar, DeleteCalendar())
offer(TaskTemplate, Archive(), Restore())
vocabulary.add(
    *("create", "edit", "pause", "resume", "close", "delete", "rotate"),
    *("skip", "unskip", "backfill", "cancel_backfill", "archive", "restore"),
    targets=lambda: ("schedule", "secret", "sharedcalendar", "tasktemplate", *registry.step_types),
)
