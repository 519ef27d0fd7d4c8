from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import Q
from django.urls import reverse

from activities.models import Activity
from database.wake import wake
from execution import failure
from operations.initiator import Initiator
from schedules.models import KeyReused, Occurrence, Refused, Schedule
from schedules.spec.wording import duration

from .brief import PlanField
from .execution_queryset import ExecutionQuerySet
from .start import Start


class Execution(models.Model):
    """One run of a plan. The plan is fixed when the execution starts."""

    class Status(models.TextChoices):
        IN_PROGRESS = "in_progress"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"

    ROOT_STATUS = {
        Status.COMPLETED: Activity.Status.COMPLETE,
        Status.FAILED: Activity.Status.FAILED_WITH_ERROR,
        Status.CANCELLED: Activity.Status.CANCELLED,
    }

    UNENDED = {"status": Status.IN_PROGRESS, "cancel_reason": "", "is_timed_out": False, "error": ""}

    schedule = models.ForeignKey(
        Schedule, models.PROTECT, null=True, blank=True, related_name="executions", db_index=False
    )
    schedule_name = models.CharField(max_length=200)
    occurrence = models.OneToOneField(
        Occurrence, models.SET_NULL, null=True, blank=True, related_name="execution"
    )
    source = models.CharField(max_length=8, choices=Occurrence.Source.choices, blank=True)
    activity = models.OneToOneField(Activity, models.PROTECT, related_name="execution")
    retry_of = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="retries")
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.IN_PROGRESS)
    plan = PlanField()
    on_failure = models.CharField(max_length=40, default="stop")
    current_index = models.PositiveIntegerField(default=0)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_reason = models.CharField(max_length=1000, blank=True)
    timeout_at = models.DateTimeField(null=True, blank=True)
    is_timed_out = models.BooleanField(default=False)
    deadline_at = models.DateTimeField(null=True, blank=True)
    late_noticed_at = models.DateTimeField(null=True, blank=True)
    last_result = models.JSONField(
        null=True, blank=True, help_text="The last result of the schedule at the time this execution started."
    )
    error = models.TextField(blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    accounted_at = models.DateTimeField(null=True, blank=True)

    # The lines that were passed over when the execution last advanced, each with its status and the reason.
    closed: Mapping[int, tuple[str, str]] = {}

    objects = ExecutionQuerySet.as_manager()

    class Meta:
        # If several indexes fit, SQLite uses the one created last, so indexes with conditions come last.
        indexes = [
            models.Index(fields=["schedule", "-id"], name="execution_of_schedule"),
            models.Index(fields=["schedule"], name="execution_active", condition=Q(status="in_progress")),
            models.Index(
                fields=["schedule"],
                name="execution_unaccounted",
                condition=Q(accounted_at=None) & ~Q(status="in_progress"),
            ),
            models.Index(
                fields=["finished_at"], name="execution_finished", condition=Q(finished_at__isnull=False)
            ),
            models.Index(
                fields=["timeout_at"],
                name="execution_timeout",
                condition=Q(status="in_progress", timeout_at__isnull=False, cancel_requested_at=None),
            ),
            models.Index(
                fields=["deadline_at"],
                name="execution_deadline",
                condition=Q(status="in_progress", deadline_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_name} #{self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("web:execution", args=[self.pk])

    @property
    def is_cancelling(self) -> bool:
        return self.status == self.Status.IN_PROGRESS and self.cancel_requested_at is not None

    @property
    def state(self) -> str:
        """Return the status, or “cancelling” while the execution is being cancelled."""
        return "cancelling" if self.is_cancelling else self.status

    @property
    def is_partial(self) -> bool:
        return Execution.objects.partial().filter(pk=self.pk).exists()

    def group(self, index: int | None) -> list[dict[str, Any]]:
        return [step for step in self.plan["steps"] if step["index"] == index]

    def is_late(self, now: datetime) -> bool:
        """Return whether the execution runs, or ran, past its deadline."""
        return self.deadline_at is not None and self.deadline_at < (self.finished_at or now)

    def neighbours(self) -> tuple[int | None, int | None]:
        """Return the ids of the schedule's executions before and after this one; None where there is none."""
        if self.schedule_id is None:
            return None, None
        same = Execution.objects.filter(schedule=self.schedule_id).values_list("pk", flat=True)
        before = same.filter(pk__lt=self.pk).order_by("-pk").first()
        return before, same.filter(pk__gt=self.pk).order_by("pk").first()

    def time_out(self, *, now: datetime) -> bool:
        """Stop the execution like a cancel, but count it as failed; return False if it had already ended."""
        return self.cancel(
            initiator=Initiator.system("timeout"), now=now, reason=self._timeout_words(), timed_out=True
        )

    @property
    def timeout_seconds(self) -> int | None:
        if self.timeout_at is None:
            return None
        return round((self.timeout_at - self.started_at).total_seconds())

    def _timeout_words(self) -> str:
        assert self.timeout_seconds is not None
        return f"Timed out after {duration(self.timeout_seconds)}."

    def cancel(
        self, *, initiator: Initiator, now: datetime, reason: str = "", timed_out: bool = False
    ) -> bool:
        """Ask running steps to stop, and start only clean-up steps from now on.

        Return False if the execution had already ended.
        """
        from .task import WorkerTask

        with transaction.atomic():
            execution = Execution.objects.lock().in_progress().filter(pk=self.pk).first()
            if execution is None:
                return False
            if execution.cancel_requested_at is not None:
                return True
            execution.cancel_requested_at, execution.cancel_reason = now, reason[:1000]
            execution.is_timed_out = timed_out
            execution.save(update_fields=["cancel_requested_at", "cancel_reason", "is_timed_out"])
            kept = execution.clean_up(is_failure=timed_out)
            WorkerTask.objects.filter(execution=execution).cancel(now=now, kept=kept)
            Activity.objects.record("cancel", execution, initiator=initiator, now=now, message=reason)
            Execution.objects.advance([execution], now=now)
            wake("jim_tasks")
        return True

    def clean_up(self, *, is_failure: bool = False) -> list[int]:
        """Return the numbers of the plan lines that still run after a cancel or, if `is_failure`, a timeout.

        Return an empty list if the plan is damaged.
        """
        try:
            return failure.clean_up(self.plan["steps"], is_failure=is_failure)
        except (AttributeError, KeyError, TypeError):
            return []

    def clean_up_tasks(self) -> list[tuple[int, str]]:
        """Return the ids and names of the tasks that would still run after a cancel, in order."""
        rows = self.tasks.filter(line__in=self.clean_up())
        return list(rows.order_by("step_index", "line").values_list("pk", "name"))

    def terminate(self, *, initiator: Initiator, now: datetime, reason: str = "") -> bool:
        """End the execution immediately, without clean-up; return False if it had already ended.

        The rows of its tasks are deleted, so that workers that still run these tasks can store nothing more.
        """
        from .task import WorkerTask

        with transaction.atomic():
            execution = Execution.objects.lock().in_progress().filter(pk=self.pk).first()
            if execution is None:
                return False
            execution.cancel_requested_at = execution.cancel_requested_at or now
            execution.cancel_reason = reason[:1000] or execution.cancel_reason
            execution.save(update_fields=["cancel_requested_at", "cancel_reason"])
            tasks = WorkerTask.objects.filter(execution=execution)
            # Steps that postponed themselves have begun as well.
            running = Activity.objects.open().filter(parent=execution.activity_id, executed_at__isnull=False)
            # Locked first, as a worker may be releasing the tasks or writing their output.
            list(tasks.lock().values_list("pk"))
            list(running.lock().values_list("pk"))
            tasks.delete()
            running.close(status=Activity.Status.CANCELLED, message="Terminated.", now=now)
            Activity.objects.record("terminate", execution, initiator=initiator, now=now, message=reason)
            Execution.objects.advance([execution], now=now)
            wake("jim_tasks")
        return True

    def retry(
        self, *, initiator: Initiator, now: datetime, whole: bool = False, key: str = "", overlap: str = ""
    ) -> Execution | None:
        """Start a new execution that repeats the steps that did not succeed or, if `whole`, all steps.

        Return None if the new execution has to wait until another one ends. A repeated request with the same
        `key` does not start another execution.
        """
        from execution.loops.manual_runs import trigger

        if self.status == self.Status.IN_PROGRESS:
            raise Refused(f"“{self}” is still running: cancel it first, or wait until it ends.")
        start = self.start_again(initiator=initiator, whole=whole)
        if self.schedule is None:
            return self._retry_group(start, initiator=initiator, now=now, whole=whole, key=key)
        occurrence = trigger(
            self.schedule,
            initiator=initiator,
            now=now,
            at=self.nominal_at,
            key=key,
            overlap=overlap,
            retry_of=self.pk,
            whole=whole,
        )
        return Execution.objects.filter(occurrence=occurrence).first()

    def _retry_group(
        self, start: Start, *, initiator: Initiator, now: datetime, whole: bool, key: str
    ) -> Execution:
        """Retry a group of jobs; if `key` was used before, return the execution that was started then.

        The key is stored in the activity of the request, because a group has no occurrence in which to store
        it.
        """
        with transaction.atomic():
            list(Execution.objects.lock().filter(pk=self.pk).values_list("pk"))
            records = Activity.objects.filter(operation="retry", target_type="execution", target_id=self.pk)
            told = records.filter(details__key=key).values_list("details__execution", "details__whole")
            known = dict(told) if key else {}
            if execution := self.retries.filter(pk__in=known).first():
                if known[execution.pk] != whole:
                    raise KeyReused(key)
                return execution
            [pk] = Execution.objects.start([start], now=now)
            details = {"key": key, "whole": whole, "execution": pk}
            Activity.objects.record("retry", self, initiator=initiator, now=now, details=details)
        return Execution.objects.get(pk=pk)

    def start_again(self, *, initiator: Initiator, whole: bool) -> Start:
        last: dict[int | None, Activity] = {}
        for activity in Activity.objects.filter(parent=self.activity_id).order_by("attempt"):
            last[activity.line] = activity
        kept = [] if whole else [activity for activity in last.values() if _may_be_kept(activity)]
        try:
            start = Start.again(self, initiator=initiator, last=kept)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refused(f"“{self}” cannot be run again, because its stored plan cannot be read.") from error
        if all("reused" in line or line["run_if"] == "failure" for line in start.lines):
            raise Refused(f"All steps of “{self}” succeeded. To repeat them, run the whole execution again.")
        return start

    @property
    def nominal_at(self) -> datetime | None:
        """Return the nominal time: the time that this execution stands for."""
        if self.occurrence is not None:
            return self.occurrence.nominal_at
        told = self.plan["steps"][0].get("nominal_at")
        return datetime.fromisoformat(told) if told else None


def _may_be_kept(activity: Activity) -> bool:
    """Return whether a retry can reuse this step: it succeeded, found nothing to do, or was reused itself."""
    was_kept = "reused" in (activity.details or {})
    found_nothing = activity.status == Activity.Status.SKIPPED and activity.executed_at is not None
    return was_kept or activity.status in failure.SUCCEEDED or found_nothing
