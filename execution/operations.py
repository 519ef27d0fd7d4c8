"""Operations that people can perform on executions, queued tasks, finished jobs, reservations and limits."""

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
from execution.loops import manual_runs
from execution.loops.manual_runs import Overlapping
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
        label="If an execution is already running",
        required=False,
        choices=[("", "Use the schedule's overlap policy"), *Overlap.choices],
    )


class Retry(Operation[Execution]):
    name, label, form = "retry", "Retry failed steps", RetryForm
    permission = permissions.RUN
    question = (
        "Start a new execution of the same plan, for the same scheduled time? Steps that succeeded will be "
        "reused, except for steps that always run or that run only after a failure. All other steps will run "
        "again."
    )
    whole = False

    def applies(self, execution: Execution) -> bool:
        return execution.status in (Execution.Status.FAILED, Execution.Status.CANCELLED)

    def perform(
        self, execution: Execution, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            # One request may retry several executions of the same schedule.
            key, overlap = f"{answers['key']}/{execution.pk}", answers["overlap"]
            started = execution.retry(
                initiator=initiator, now=now, whole=self.whole, key=key, overlap=overlap
            )
        except Overlapping as overlapping:
            raise Declined(
                format_html(
                    "“{}” was not run again because {} is still running. Wait until it ends, or choose "
                    "another overlap policy.",
                    execution,
                    execution_link(overlapping.blocked_by),
                )
            ) from overlapping
        except Refused as refused:
            raise Declined(str(refused)) from refused
        if started is None:
            return Done(f"The retry of “{execution}” is waiting for another execution to end.")
        return Done(f"“{started}” has started.", execution_url(started.pk))


class RunAgain(Retry):
    name, label = "again", "Run again"
    question = "Start a new execution of the whole plan, for the same scheduled time?"
    whole = True

    def applies(self, execution: Execution) -> bool:
        return execution.status != Execution.Status.IN_PROGRESS


class CancelTask(Operation[WorkerTask]):
    name, label = "cancel", "Cancel"
    permission = permissions.RUN
    question = (
        "Cancel this job or execution? Waiting tasks will not start, and running tasks will be asked to "
        "stop. Clean-up steps will still run."
    )

    def about(self, task: WorkerTask) -> str:
        if task.execution is None:
            return "a single job"
        return f"the whole execution {task.execution_id}: {cancelled_tasks(task.execution)}"

    def perform(
        self, task: WorkerTask, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        job = Job.find(task.key) if task.execution is None else None
        target = task.execution or job
        if target is not None and target.cancel(initiator=initiator, now=now):
            return Done(f"“{task.execution or task}” is being cancelled.", queue_url())
        # Several tasks of one execution may have been selected: cancelling the first cancels all.
        mine = Execution.objects.filter(cancel_requested_at=now)
        if task.execution is not None and mine.filter(pk=task.execution.pk).exists():
            return Done(f"“{task}” is being cancelled together with “{task.execution}”.", queue_url())
        raise Declined(f"“{task}” has already ended.")


def ending_tasks(execution: Execution) -> str:
    """Describe which tasks would end if the execution were terminated."""
    return _told(list(execution.tasks.values_list("status", flat=True)))


def cancelled_tasks(execution: Execution) -> str:
    """Describe which tasks a cancellation would end, and which clean-up steps would still run."""
    kept = execution.clean_up_tasks()
    ended = execution.tasks.exclude(pk__in=[pk for pk, _ in kept])
    told = _told(list(ended.values_list("status", flat=True)))
    return f"{told}; {clean_up_words([name for _, name in kept])}" if kept else told


def clean_up_words(names: Sequence[str]) -> str:
    return f"clean-up will still run: {', '.join(f'“{name}”' for name in names)}"


def _told(statuses: Sequence[str]) -> str:
    running = statuses.count(WorkerTask.Status.PROCESSING)
    waiting = len(statuses) - running
    told = [f"{running} {'task is' if running == 1 else 'tasks are'} running"] if running else []
    told += [f"{waiting} {'task' if waiting == 1 else 'tasks'} will not start"] if waiting else []
    return ", ".join(told) or "no tasks left"


class WaitingTaskOperation(Operation[WorkerTask]):
    """An operation on a task that has not started."""

    permission = permissions.RUN
    why_not = "has started in the meantime"
    done: str

    def applies(self, task: WorkerTask) -> bool:
        return task.status != WorkerTask.Status.PROCESSING

    def perform(
        self, task: WorkerTask, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not self.change(task, answers, initiator, now):
            raise Declined(f"“{task}” {self.why_not}: nothing was changed.")
        return Done(f"“{task}” {self.done}.")

    @abstractmethod
    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        """Change the task; return False if it was not changed, for the reason in `why_not`."""


class MoveToFront(WaitingTaskOperation):
    name, label = "front", "Move to the front"
    done = "was moved ahead of all other tasks with the same pool and priority"
    question = "Move this task ahead of all other tasks with the same pool and priority?"

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.move_to_front(initiator=by, now=now)


class MoveToBack(WaitingTaskOperation):
    name, label = "back", "Move to the back"
    done = "was moved behind all other tasks with the same pool and priority"
    question = (
        "Move this task behind all other tasks with the same pool and priority? Tasks that are queued later "
        "will start before it as well."
    )

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.move_to_back(initiator=by, now=now)


class PriorityForm(forms.Form):
    priority = forms.IntegerField(
        min_value=-MOST_PRIORITY,
        max_value=MOST_PRIORITY,
        help_text="Tasks with a higher priority start first. The default is 0.",
    )


class Prioritise(WaitingTaskOperation):
    name, label, form = "prioritise", "Change priority", PriorityForm
    done = "has a new priority"
    question = "Change the priority of this task? In each pool, tasks with a higher priority start first."

    def about(self, task: WorkerTask) -> str:
        return f"current priority {task.priority}"

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.prioritise(answers["priority"], initiator=by, now=now)


class Hasten(WaitingTaskOperation):
    name, label = "hasten", "Start without waiting"
    why_not = "is not delayed"
    done = "is no longer delayed"
    question = (
        "Start this task without further delay? It will no longer wait for its start time or for its retry "
        "delay."
    )

    def applies(self, task: WorkerTask) -> bool:
        is_queued = task.status == WorkerTask.Status.QUEUED
        return is_queued and task.is_delayed and task.begun_at is None

    def change(self, task: WorkerTask, answers: dict[str, Any], by: Initiator, now: datetime) -> bool:
        return task.hasten(initiator=by, now=now)


class RetryJob(Operation[Activity]):
    name, label = "retry", "Retry"
    permission = permissions.RUN
    question = (
        "Queue another attempt of this job? The job will again have its full number of automatic retries."
    )

    def applies(self, activity: Activity) -> bool:
        return activity.is_final and "step" in (activity.details or {}) and not activity.retries.exists()

    def perform(
        self, activity: Activity, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        job = Job.find(activity.task_key) if activity.task_key else None
        if job is None:
            raise Declined(f"“{activity.target_name}” is part of an execution. Retry the execution instead.")
        try:
            task = job.retry(initiator=initiator, now=now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        return Done(f"“{activity.target_name}” was queued again.", task.get_absolute_url())


class RunTemplate(Operation[TaskTemplate]):
    name, label, form = "run", "Run now", OnceForm
    permission = permissions.RUN
    question = "Queue a single job with the current settings of this template?"

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
        return Done(f"Queued a job from the template “{template}”.", job.activity.get_absolute_url())


def execution_url(pk: int | None) -> str:
    return reverse("web:execution", args=[pk])


def execution_link(pk: int | None) -> Any:
    return format_html('<a href="{}">execution {}</a>', execution_url(pk), pk)


def queue_url() -> str:
    return reverse("web:queue")


class RunForm(OnceForm):
    overlap = forms.ChoiceField(
        label="If an execution is already running",
        required=False,
        choices=[("", "Use the schedule's overlap policy"), *Overlap.choices],
    )
    at = WallTime(
        label="Nominal time",
        required=False,
        help_text="The time that this execution stands for. Leave empty to use the current time. {clock}",
    )


class ReasonForm(forms.Form):
    reason = forms.CharField(
        required=False, max_length=1000, widget=forms.TextInput(attrs={"class": "vTextField"})
    )


class RunNow(ScheduleOperation):
    name, label, form = "run", "Run now", RunForm
    question = "Start an execution of this schedule now? This also works while the schedule is paused."

    def change(self, schedule: Schedule, answers: dict[str, Any], by: Initiator, now: datetime) -> Done:
        at = instant(schedule, answers["at"]) if answers["at"] else None
        try:
            occurrence = manual_runs.trigger(
                schedule, initiator=by, now=now, at=at, key=answers["key"], overlap=answers["overlap"]
            )
        except manual_runs.Overlapping as overlapping:
            raise Declined(
                format_html(
                    "“{}” was not started because {} is still running. Wait until it ends, or choose another "
                    "overlap policy.",
                    schedule,
                    execution_link(overlapping.blocked_by),
                )
            ) from overlapping
        started = Execution.objects.filter(occurrence=occurrence).only("pk").first()
        if started is None:
            return Done(
                f"The run of “{schedule}” is waiting for another execution to end.",
                schedule.get_absolute_url(),
            )
        return Done(f"“{schedule}” has started.", started.get_absolute_url())

    def about(self, schedule: Schedule) -> str:
        return schedule.get_overlap_display()


class CancelRunning(ScheduleOperation):
    name, label, form = "cancel", "Cancel running", ReasonForm
    question = (
        "Cancel all running executions of this schedule? Running steps will be asked to stop, and no further "
        "steps will start, except for clean-up steps (steps that always run)."
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
            raise Declined(f"“{schedule}” has no running executions.")
        count = "1 execution is" if len(asked) == 1 else f"{len(asked)} executions are"
        return Done(f"“{schedule}”: {count} being cancelled.")


class Cancel(Operation[Execution]):
    name, label, form = "cancel", "Cancel", ReasonForm
    permission = permissions.RUN
    question = (
        "Cancel this execution? Running steps will be asked to stop, and no further steps will start, except "
        "for clean-up steps (steps that always run)."
    )

    def applies(self, execution: Execution) -> bool:
        return execution.status == Execution.Status.IN_PROGRESS and not execution.is_cancelling

    def about(self, execution: Execution) -> str:
        return cancelled_tasks(execution)

    def perform(
        self, execution: Execution, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not execution.cancel(initiator=initiator, now=now, reason=answers["reason"]):
            raise Declined(f"“{execution}” has already ended.")
        return Done(f"“{execution}” is being cancelled.")


class Terminate(Operation[Execution]):
    name, label, form, is_final = "terminate", "Terminate", ReasonForm, True
    permission = permissions.RUN
    question = (
        "Terminate this execution? The execution will end immediately. Running steps will be stopped, their "
        "remaining output will not be recorded, and clean-up steps will not run."
    )

    def applies(self, execution: Execution) -> bool:
        return execution.status == Execution.Status.IN_PROGRESS

    def about(self, execution: Execution) -> str:
        return ending_tasks(execution)

    def perform(
        self, execution: Execution, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not execution.terminate(initiator=initiator, now=now, reason=answers["reason"]):
            raise Declined(f"“{execution}” has already ended.")
        return Done(f"“{execution}” was terminated.")


class Release(Operation[Reservation]):
    name, label, form, is_final = "release", "Release", ReasonForm, True
    permission = permissions.RUN
    question = (
        "Release this seat immediately? The direct request that holds the seat, or is waiting for it, will "
        "fail. If its step is running, the step will be asked to stop."
    )

    def applies(self, reservation: Reservation) -> bool:
        return reservation.released_at is None

    def perform(
        self, reservation: Reservation, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not reservation.free(initiator=initiator, now=now, reason=answers["reason"]):
            raise Declined(f"The seat reserved in pool “{reservation.pool}” was already released.")
        return Done(f"The seat reserved in pool “{reservation.pool}” was released.")


class DeleteLimit(Removal):
    permission, list_name = "execution.delete_limit", "web:limits"
    question = (
        "Delete this limit? Tasks that are waiting for this limit will be able to start, unless another "
        "limit is full."
    )


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
