"""What people may ask of executions, of what waits in the queue and of jobs that have ended."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils.html import format_html

from activities.models import Activity
from execution.loops.invoker import Overlapping
from operations.initiator import Initiator
from operations.operation import Declined, Done, Operation
from schedules import permissions
from schedules.models import Overlap, Refused, TaskTemplate

from .models import Execution, Job, WorkerTask
from .models.task import MOST_PRIORITY


class RetryForm(forms.Form):
    # A page that is sent twice asks twice for the same retry.
    key = forms.CharField(max_length=64, widget=forms.HiddenInput, initial=uuid.uuid4)
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

    def applies(self, task: WorkerTask) -> bool:
        return task.status != WorkerTask.Status.PROCESSING

    def perform(
        self, task: WorkerTask, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not self.change(task, answers, initiator, now):
            raise Declined(f"“{task}” has been started meanwhile: nothing was changed.")
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
    question = (
        "It waits for its time: the delay before a retry, or the time that it was queued for. End that?"
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


class RunTemplateForm(forms.Form):
    # A page that is sent twice asks twice for the same job.
    key = forms.CharField(max_length=64, widget=forms.HiddenInput, initial=uuid.uuid4)


class RunTemplate(Operation[TaskTemplate]):
    name, label, form = "run", "Run now", RunTemplateForm
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
