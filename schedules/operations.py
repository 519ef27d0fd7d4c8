"""What can be done with a schedule, each on a page that asks first."""

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
        help_text="Why, for whoever finds it paused.",
    )


class PauseForm(NoteForm):
    until = WallTime(
        required=False, help_text="It then resumes by itself. Empty: until somebody resumes it. {clock}"
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


class SkipForm(forms.Form):
    # A page that is sent twice, or after somebody else's, would leave out a time that nobody looked at.
    tokens = forms.RegexField(r"^[0-9]{1,18}:[0-9]{1,9}(,[0-9]{1,18}:[0-9]{1,9})*$", widget=forms.HiddenInput)


class UnskipForm(forms.Form):
    at = forms.ChoiceField(label="Time", widget=forms.RadioSelect)


class BackfillForm(OnceForm):
    start_at = WallTime(label="From", help_text="Included. {clock}")
    end_at = WallTime(label="To", help_text="Included, and not in the future.")
    which = forms.ChoiceField(
        label="Which times",
        choices=Backfill.Which.choices,
        initial=USUAL_WHICH,
        widget=forms.RadioSelect,
    )
    overlap = forms.ChoiceField(
        label="Side by side",
        choices=Overlap.choices,
        initial=USUAL_OVERLAP,
        help_text="What becomes of its times while others run. With “Allow all”, at most 10 run at a time.",
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
        "The next automatic time is left out, and recorded as skipped when it comes. It can be taken back "
        "until then. Skip it?"
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
        return f"next time: {words}"

    def applies(self, schedule: Schedule) -> bool:
        return super().applies(schedule) and schedule.next_run_at is not None

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        tokens = dict(pair.split(":") for pair in answers["tokens"].split(","))
        at = schedule.skip_next(initiator=by, now=now, token=int(tokens.get(str(schedule.pk), 0)))
        return Done(f"“{schedule}” leaves out {on_the_clock(at, schedule.zone)} {schedule.zone}.")


class Unskip(ScheduleOperation):
    name, label, form = "unskip", "Take back a skip", UnskipForm
    question = "The time that was to be left out occurs after all. Take the skip back?"

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
        return Done(f"“{schedule}” has its time {on_the_clock(at, schedule.zone)} {schedule.zone} again.")


class AskBackfill(ScheduleOperation):
    name, label, form, is_rehearsed = "backfill", "Backfill", BackfillForm, True
    question = (
        "Times of a past range are started, again or at last, as the schedule has them now. Live times never "
        "wait behind them. Which?"
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
        return Done(f"The backfill of “{schedule}” is on its way.", backfill.get_absolute_url())


class Pause(ScheduleOperation):
    name, label, form = "pause", "Pause", PauseForm
    question = (
        "Automatic runs wait from now on; their times are still recorded. What is running goes on, "
        "and runs by hand stay possible. Pause this?"
    )

    def applies(self, schedule: Schedule) -> bool:
        return schedule.status == Schedule.Status.RUNNING

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        if schedule.is_paused:  # its page offers no pause, so it came with a selection
            raise Declined(f"“{schedule}” is already {schedule.pause_in_words}. It is left as it is.")
        until = instant(schedule, answers["until"]) if answers["until"] else None
        schedule.pause(initiator=by, now=now, note=answers["note"], until=until)
        return Done(f"“{schedule}” is paused.")


class Resume(ScheduleOperation):
    name, label, form = "resume", "Resume", ResumeForm
    question = "Automatic runs start again. Resume this?"

    def about(self, schedule: Schedule) -> str:
        return schedule.pause_in_words if schedule.is_paused else ""

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

    def about(self, schedule: Schedule) -> str:
        waiting = schedule.occurrences.pending().count()
        backfills = schedule.backfills.open().count()
        ending = [f"{counted(waiting, 'waiting time')} will be cancelled"] if waiting else []
        ending += [f"{counted(backfills, 'backfill')} will be cancelled"] if backfills else []
        running = schedule.executions.in_progress().count()
        return ", ".join([*ending, *([f"{counted(running, 'execution')} will go on"] if running else [])])

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        schedule.close(initiator=by, now=now)
        return Done(f"“{schedule}” is closed.")


def clock_of(schedules: Sequence[Schedule]) -> str:
    """Whose clock a time is read on that is typed for all of them."""
    zones = sorted({str(schedule.zone) for schedule in schedules})
    return f"On the clock of {listed(zones[:5])}." if len(zones) == 1 else "On the clock of each of them."


def instant(schedule: Schedule, typed: datetime, *, fold: int = 0) -> datetime:
    """What was typed, on the schedule's clock; of a time that it shows twice, the first or the second."""
    return typed if typed.tzinfo else typed.replace(tzinfo=schedule.zone, fold=fold).astimezone(UTC)


def _range_of(schedule: Schedule, answers: dict[str, Any]) -> dict[str, datetime]:
    start, end = instant(schedule, answers["start_at"]), instant(schedule, answers["end_at"], fold=1)
    if end < start:
        raise ValidationError({"end_at": "The range ends before it starts: choose a later end."})
    return {"start_at": start, "end_at": end}


def _left_out(schedules: Sequence[Schedule]) -> dict[str, str]:
    """The times that can be taken back, each as its schedule's clock shows it."""
    times = {name: schedule for schedule in schedules for name in schedule.skips}
    return {
        name: f"{on_the_clock(datetime.fromisoformat(name), times[name].zone)} {times[name].zone}"
        for name in sorted(times)
    }


class Removal(Operation[Any]):
    """The verb `remove` of a model, which may refuse."""

    name, label, is_final = "delete", "Delete", True
    # Where one goes on: what was deleted has no page any more.
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
    question = "Nothing more of it starts; what is running goes on. It cannot be taken up again. Cancel it?"

    def applies(self, backfill: Backfill) -> bool:
        """A page that shows it has counted already what waits."""
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
            raise Declined(f"The backfill {target} has ended already.")
        return Done(f"The backfill {target} is cancelled.")


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
        "No step can newly refer to it, and it cannot be edited; steps that refer to it already go on. "
        "It can be restored. Archive this?"
    )

    def applies(self, template: TaskTemplate) -> bool:
        return not template.is_archived

    def change(self, template: TaskTemplate, by: Initiator, now: datetime) -> Done:
        template.archive(initiator=by, now=now)
        return Done(f"“{template}” is archived.")


class Restore(TemplateOperation):
    name, label = "restore", "Restore"
    question = "Steps can refer to it again. Restore this?"

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
        "Automatic runs of every schedule that is not paused yet wait from now on; their times are still "
        "recorded. What is running goes on, and runs by hand stay possible. “Resume all” resumes those that "
        "were paused together, and leaves those alone that somebody had paused before. Pause all of them?"
    )

    def affected(self) -> ScheduleQuerySet:
        return Schedule.objects.filter(status=Schedule.Status.RUNNING)

    def perform(self, answers: dict[str, Any], by: Initiator, now: datetime) -> str:
        count = Schedule.objects.pause_all(initiator=by, now=now, note=answers["note"])
        return f"{_are(count)} paused."


class ResumeAll:
    name: ClassVar = "resume"
    label: ClassVar = "Resume all"
    form: ClassVar[type[forms.Form]] = ResumeForm
    question: ClassVar = (
        "The schedules that were paused together run again; those that somebody paused one by one stay "
        "paused. Resume them?"
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
    question = "Its value is gone for good; the record of who set and changed it stays. Delete this?"


class DeleteCalendar(Removal):
    permission, list_name = "schedules.delete_sharedcalendar", "web:calendars"
    question = "It is gone for good; the record of who made and changed it stays. Delete this?"


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
