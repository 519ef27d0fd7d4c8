"""What can be done with a schedule, each on a page that asks first."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import Any

from django import forms

from activities.models import Initiator
from activities.operations import Declined, Done, Operation
from schedules import permissions
from schedules.models import Conflict, Refused, Schedule


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
