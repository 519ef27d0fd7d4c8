"""What people may ask of executions, of what waits in the queue and of jobs that have ended."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils.html import format_html

from activities import vocabulary
from activities.models import Activity
from execution.loops import invoker
from execution.loops.invoker import Overlapping
from execution.models import Execution, Reservation, WorkerTask
from operations.initiator import Initiator
from operations.operation import Declined, Done, OnceForm, Operation, offer
from schedules import permissions
from schedules.form_fields import WallTime
from schedules.models import Overlap, Refused, Schedule, TaskTemplate
from schedules.operations import Removal, ScheduleOperation, instant
from schedules.spec.wording import counted

from .models import Job, Limit
from .models.task import MOST_PRIORITY


class RetryForm(OnceForm):
    overlap = forms.ChoiceField(
        label="If its schedule runs already",
        required=False,
        choices=[("", "As the schedule says"), *Overlap.choices],
    )


class Retry(Operation[Execution]):
    name, label, form = "retry", "Retry what failed", RetryForm
    permission = permissions.RUN
    question = (
        "A new execution of the same plan, for the same time: what succeeded is kept, the rest runs again. "
        "Start it now?"
    )
    whole = False

    def applies(self, execution: Execution) -> bool:
        return execution.status in (Execution.Status.FAILED, Execution.Status.CANCELLED)

    def perform(
        self, execution: Execution, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            # One page may ask for several, of the same schedule as well.
            key, overlap = f"{answers['key']}/{execution.pk}", answers["overlap"]
            started = execution.retry(
                initiator=initiator, now=now, whole=self.whole, key=key, overlap=overlap
            )
        except Overlapping as overlapping:
            raise Declined(
                format_html(
                    "“{}” was not started: {} is still running. Choose what becomes of it, or wait.",
                    execution,
                    execution_link(overlapping.blocked_by),
                )
            ) from overlapping
        except Refused as refused:
            raise Declined(str(refused)) from refused
        if started is None:
            return Done(f"“{execution.schedule_name}” waits for its turn.")
        return Done(f"“{started}” is started.", execution_url(started.pk))


class RunAgain(Retry):
    name, label = "again", "Run again"
    question = "A new execution of the whole plan, for the same time. Start it now?"
    whole = True

    def applies(self, execution: Execution) -> bool:
        return execution.status != Execution.Status.IN_PROGRESS


class CancelTask(Operation[WorkerTask]):
    name, label = "cancel", "Cancel"
    permission = permissions.RUN
    question = (
        "What waits is not started, and what runs is asked to stop. Clean-up steps still run. Cancel this?"
    )

    def about(self, task: WorkerTask) -> str:
        if task.execution is None:
            return "a single job"
        return f"all of execution {task.execution_id}: {cancelled_tasks(task.execution)}"

    def perform(
        self, task: WorkerTask, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        job = Job.find(task.key) if task.execution is None else None
        target = task.execution or job
        if target is not None and target.cancel(initiator=initiator, now=now):
            return Done(f"“{task.execution or task}” is being cancelled.", queue_url())
        # The tasks of one execution may have been chosen together: the first took the others with it.
        mine = Execution.objects.filter(cancel_requested_at=now)
        if task.execution is not None and mine.filter(pk=task.execution.pk).exists():
            return Done(f"“{task}” is cancelled with “{task.execution}”.", queue_url())
        raise Declined(f"“{task}” has ended already.")


def ending_tasks(execution: Execution) -> str:
    """What its end means for the tasks that it still has."""
    return _told(list(execution.tasks.values_list("status", flat=True)))


def cancelled_tasks(execution: Execution) -> str:
    """What a cancel means for them: clean-up is left alone."""
    kept = execution.clean_up_tasks()
    ended = execution.tasks.exclude(pk__in=[pk for pk, _ in kept])
    told = _told(list(ended.values_list("status", flat=True)))
    return f"{told}; {clean_up_words([name for _, name in kept])}" if kept else told


def clean_up_words(names: Sequence[str]) -> str:
    return f"clean-up still runs: {', '.join(f'“{name}”' for name in names)}"


def _told(statuses: Sequence[str]) -> str:
    running = statuses.count(WorkerTask.Status.PROCESSING)
    waiting = len(statuses) - running
    told = [f"{running} {'task is' if running == 1 else 'tasks are'} running"] if running else []
    told += [f"{waiting} {'task' if waiting == 1 else 'tasks'} will not start"] if waiting else []
    return ", ".join(told) or "nothing of it is left"


class OfWaiting(Operation[WorkerTask]):
    """Once it runs, its place is as it is."""

    permission = permissions.RUN
    why_not = "has been started meanwhile"

    def applies(self, task: WorkerTask) -> bool:
        return task.status != WorkerTask.Status.PROCESSING

    def perform(
        self, task: WorkerTask, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not self.change(task, answers, initiator, now):
            raise Declined(f"“{task}” {self.why_not}: nothing was changed.")
        return Done(f"“{task}”: {self.label.lower()}.")

    @abstractmethod
    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        """False: it runs by now."""


class MoveToFront(OfWaiting):
    name, label = "front", "Move to the front"
    question = "It goes before all others of its pool and priority. Move it?"

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.move_to_front(initiator=by, now=now)


class MoveToBack(OfWaiting):
    name, label = "back", "Move to the back"
    question = "It goes after all others of its pool and priority that are there now. Move it?"

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.move_to_back(initiator=by, now=now)


class PriorityForm(forms.Form):
    priority = forms.IntegerField(
        min_value=-MOST_PRIORITY, max_value=MOST_PRIORITY, help_text="The highest goes first; 0 is usual."
    )


class Prioritise(OfWaiting):
    name, label, form = "prioritise", "Change priority", PriorityForm
    question = "Among what waits in a pool, the highest priority goes first. Which one shall it have?"

    def about(self, task: WorkerTask) -> str:
        return f"now {task.priority}"

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.prioritise(answers["priority"], initiator=by, now=now)


class Hasten(OfWaiting):
    name, label = "hasten", "Start without waiting"
    why_not = "does not wait for a time"
    question = (
        "It waits no longer for its time: the delay before a retry, or the time that it was queued for. "
        "Start it without waiting?"
    )

    def applies(self, task: WorkerTask) -> bool:
        is_queued = task.status == WorkerTask.Status.QUEUED
        return is_queued and task.is_delayed and task.begun_at is None

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.hasten(initiator=by, now=now)


class RetryJob(Operation[Activity]):
    name, label = "retry", "Retry"
    permission = permissions.RUN
    question = "One more attempt of this job, with a full budget of automatic retries. Queue it?"

    def applies(self, activity: Activity) -> bool:
        return activity.is_final and "step" in (activity.details or {}) and not activity.retries.exists()

    def perform(
        self, activity: Activity, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        job = Job.find(activity.task_key) if activity.task_key else None
        if job is None:
            raise Declined(f"“{activity.target_name}” is no single job: retry its execution.")
        try:
            task = job.retry(initiator=initiator, now=now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        return Done(f"“{activity.target_name}” is queued again.", task.get_absolute_url())


class RunTemplate(Operation[TaskTemplate]):
    name, label, form = "run", "Run now", OnceForm
    permission = permissions.RUN
    question = "A single job of it, as it is now. Queue it?"

    def applies(self, template: TaskTemplate) -> bool:
        return not template.is_archived

    def perform(
        self, template: TaskTemplate, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        asked = {"template": template.name, "idempotency_key": f"{answers['key']}/{template.pk}"}
        try:
            [key] = WorkerTask.objects.enqueue([asked], initiator=initiator, now=now)
        except ValidationError as error:
            raise Declined(" ".join(error.messages)) from error
        job = Job.find(key)
        assert job is not None
        return Done(f"A job of “{template}” is queued.", job.activity.get_absolute_url())


def execution_url(pk: int | None) -> str:
    return reverse("web:execution", args=[pk])


def execution_link(pk: int | None) -> Any:
    return format_html('<a href="{}">execution {}</a>', execution_url(pk), pk)


def queue_url() -> str:
    return reverse("web:queue")


class RunForm(OnceForm):
    overlap = forms.ChoiceField(
        label="If it runs already",
        required=False,
        choices=[("", "As the schedule says"), *Overlap.choices],
    )
    at = WallTime(
        label="For the time",
        required=False,
        help_text="The time that this run stands for, if that is another than now. {clock}",
    )


class ReasonForm(forms.Form):
    reason = forms.CharField(
        required=False, max_length=1000, widget=forms.TextInput(attrs={"class": "vTextField"})
    )


class RunNow(ScheduleOperation):
    name, label, form = "run", "Run now", RunForm
    question = "Start this now, whatever the time and whether it is paused or not?"

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        at = instant(schedule, answers["at"]) if answers["at"] else None
        try:
            occurrence = invoker.trigger(
                schedule, initiator=by, now=now, at=at, key=answers["key"], overlap=answers["overlap"]
            )
        except invoker.Overlapping as overlapping:
            raise Declined(
                format_html(
                    "“{}” was not started: {} is still running. Choose what to do then, or wait.",
                    schedule,
                    execution_link(overlapping.blocked_by),
                )
            ) from overlapping
        started = Execution.objects.filter(occurrence=occurrence).only("pk").first()
        if started is None:
            return Done(f"“{schedule}” waits for its turn.", schedule.get_absolute_url())
        return Done(f"“{schedule}” is started.", started.get_absolute_url())

    def about(self, schedule: Schedule) -> str:
        return schedule.get_overlap_display()


class CancelRunning(ScheduleOperation):
    name, label, form = "cancel", "Cancel running", ReasonForm
    question = (
        "Running steps are asked to stop, and nothing more starts, except clean-up: later steps that always "
        "run. Cancel it?"
    )

    def about(self, schedule: Schedule) -> str:
        running = schedule.executions.in_progress()
        kept = [task for execution in running for task in execution.clean_up_tasks()]
        tasks = WorkerTask.objects.filter(execution__in=running)
        told = f"{counted(tasks.count() - len(kept), 'task')} will be cancelled"
        return f"{told}; {clean_up_words(sorted({name for _, name in kept}))}" if kept else told

    def applies(self, schedule: Schedule) -> bool:
        return schedule.executions.in_progress().exists()

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        running = list(schedule.executions.in_progress().order_by("pk"))
        asked = [e for e in running if e.cancel(initiator=by, now=now, reason=answers["reason"])]
        if not asked:
            raise Declined(f"Nothing of “{schedule}” is running.")
        count = "1 execution is" if len(asked) == 1 else f"{len(asked)} executions are"
        return Done(f"{count} being cancelled: “{schedule}”.")


class Cancel(Operation[Execution]):
    name, label, form = "cancel", "Cancel", ReasonForm
    permission = permissions.RUN
    question = (
        "Steps that run are asked to stop, and get a moment to do so. Nothing more starts, except clean-up: "
        "later steps that always run. Cancel this?"
    )

    def applies(self, execution: Execution) -> bool:
        return execution.status == Execution.Status.IN_PROGRESS and not execution.is_cancelling

    def about(self, execution: Execution) -> str:
        return cancelled_tasks(execution)

    def perform(
        self, execution: Execution, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not execution.cancel(initiator=initiator, now=now, reason=answers["reason"]):
            raise Declined(f"“{execution}” has ended already.")
        return Done(f"“{execution}” is being cancelled.")


class Terminate(Operation[Execution]):
    name, label, form, is_final = "terminate", "Terminate", ReasonForm, True
    permission = permissions.RUN
    question = (
        "It ends at once, without clean-up. Running steps are killed, what they still say is not recorded. "
        "Terminate this?"
    )

    def applies(self, execution: Execution) -> bool:
        return execution.status == Execution.Status.IN_PROGRESS

    def about(self, execution: Execution) -> str:
        return ending_tasks(execution)

    def perform(
        self, execution: Execution, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not execution.terminate(initiator=initiator, now=now, reason=answers["reason"]):
            raise Declined(f"“{execution}” has ended already.")
        return Done(f"“{execution}” is terminated.")


class Release(Operation[Reservation]):
    name, label, form, is_final = "release", "Release", ReasonForm, True
    permission = permissions.RUN
    question = (
        "The seat is free at once. The request that has it, or waits for it, is told that it was lost; "
        "what it runs is asked to stop. Release this?"
    )

    def applies(self, reservation: Reservation) -> bool:
        return reservation.released_at is None

    def perform(
        self, reservation: Reservation, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not reservation.free(initiator=initiator, now=now, reason=answers["reason"]):
            raise Declined(f"The seat of “{reservation}” is free already.")
        return Done(f"The seat of “{reservation}” is released.")


class DeleteLimit(Removal):
    permission, list_name = "execution.delete_limit", "web:limits"
    question = "What waits for it starts at once, unless another limit holds it. Delete this?"


offer(Schedule, RunNow(), CancelRunning(), first=True)
offer(TaskTemplate, RunTemplate(), first=True)
offer(Execution, Retry(), RunAgain(), Cancel(), Terminate())
offer(WorkerTask, MoveToFront(), MoveToBack(), Prioritise(), Hasten(), CancelTask())
offer(Activity, RetryJob())
offer(Reservation, Release())
offer(Limit, DeleteLimit())
vocabulary.add(
    *("trigger", "cancel", "terminate", "reorder", "retry", "release"),
    targets=lambda: ("execution", "reservation", "limit"),
)
