from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import Q
from django.urls import reverse

from activities.models import Activity
from activities.signals import Event as Notice
from activities.signals import noticed
from execution.queue.concurrency import limit_keys
from operations.initiator import Initiator
from schedules.models import Refused, Step
from text.clean import clean_json, clean_text
from workflows import failures, words
from workflows.definition import Prepared
from workflows.errors import Superseded
from workflows.failures import PHASES, Beginning, Phase, Status, Stop, Tries

from .commit import Commit, move_handler
from .event import Event, Topic
from .handler import Handler, Subscription
from .run_queryset import RunQuerySet
from .workflow import Workflow

ERROR_CHARS = 8_000
MOST_NEIGHBOURS = 50
LARGE = ("snapshot", "prepare_result", "mutation_result")
TRIES = ("transient", "reconciled", "crashes", "fixes")


class Run(models.Model):
    """One attempt of one handler. Its phase only moves forward; its status is independent of the phase."""

    class Effect(models.TextChoices):
        """The outcome of the mutation; empty if no mutation was attempted."""

        IN_FLIGHT = "in_flight", "Outcome unknown"
        APPLIED = "applied"
        FAILED = "failed", "Did not happen"
        SKIPPED = "skipped"

    key = models.UUIDField(
        unique=True,
        help_text="The key of the run's task. A new mutation uses the same key as its idempotency key.",
    )
    workflow = models.ForeignKey(Workflow, models.CASCADE, related_name="runs", db_index=False)
    handler = models.ForeignKey(Handler, models.CASCADE, related_name="runs")
    retry_of = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="retries")
    phase = models.CharField(max_length=10, choices=[(each, each) for each in Phase])
    status = models.CharField(
        max_length=24, choices=[(each, each) for each in Status], default=Status.ACTIVE.value
    )
    effect = models.CharField(max_length=10, choices=Effect.choices, blank=True)
    mutation_key = models.UUIDField(
        null=True,
        blank=True,
        help_text="The idempotency key of the mutation. Null if no mutation was attempted.",
    )
    snapshot = models.JSONField(
        default=dict,
        blank=True,
        help_text="For each topic, its last event and the consumer's cursor when the run began.",
    )
    prepare_result = models.JSONField(null=True, blank=True)
    mutation_result = models.JSONField(null=True, blank=True)
    summary = models.CharField(max_length=500, blank=True)
    error = models.TextField(blank=True)
    error_type = models.CharField(max_length=100, blank=True)
    note = models.CharField(
        max_length=1000, blank=True, help_text="The note that a person left when resolving the run."
    )
    is_approved = models.BooleanField(default=False)
    transient = models.PositiveIntegerField(default=0)
    reconciled = models.PositiveIntegerField(default=0)
    crashes = models.PositiveIntegerField(default=0)
    fixes = models.PositiveIntegerField(default=0)
    code_version = models.CharField(max_length=100)
    due_at = models.DateTimeField(null=True, blank=True, help_text="When the next attempt begins.")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(
        null=True, blank=True, help_text="When the run was committed, or when the next attempt began."
    )

    objects = RunQuerySet.as_manager()

    class Meta:
        default_permissions = ("view",)
        constraints = [
            # At most one run of a workflow is active, and none starts while one is stuck.
            models.UniqueConstraint(fields=["workflow"], name="run_open", condition=Q(settled_at=None)),
        ]
        indexes = [
            models.Index(fields=["workflow", "-id"], name="run_of_workflow"),
            models.Index(fields=["settled_at"], name="run_settled", condition=Q(settled_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.handler} #{self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("web:run", args=[self.pk])

    @property
    def is_active(self) -> bool:
        return self.status == Status.ACTIVE

    @property
    def is_stuck(self) -> bool:
        return self.settled_at is None and not self.is_active

    @property
    def tries(self) -> Tries:
        return Tries(*(getattr(self, name) for name in TRIES))

    @property
    def is_empty(self) -> bool:
        """Return whether the run reserved no events."""
        return not (self.prepare_result or {}).get("reserve")

    def chain(self) -> list[Run]:
        """Return the attempts at the same work, including this one, oldest first.

        At most MOST_NEIGHBOURS attempts before and after this one are returned. No other run of the workflow
        starts between two of these attempts, so they are neighbours.
        """
        near = Run.objects.filter(workflow=self.workflow_id).defer(*LARGE)
        before = near.filter(pk__lt=self.pk).order_by("-pk")[:MOST_NEIGHBOURS]
        after = near.filter(pk__gt=self.pk).order_by("pk")[:MOST_NEIGHBOURS]
        runs = [self]
        for run in before:
            if runs[0].retry_of_id != run.pk:
                break
            runs.insert(0, run)
        for run in after:
            if run.retry_of_id != runs[-1].pk:
                break
            runs.append(run)
        return runs

    def activity(self) -> Activity | None:
        return Activity.objects.filter(task_key=self.key, attempt=1).first()

    def _line(self) -> dict[str, Any]:
        """Return the plan line of the run's task. The task has no retries, because a retry is a new run."""
        workflow, handler = self.handler.workflow, self.handler
        step = Step(
            name=f"{workflow.title}: {handler}"[:200],
            step_type="handler",
            config={"workflow": workflow.slug, "handler": handler.name},
            pool=workflow.pool,
            timeout_seconds=handler.timeout_seconds,
            max_retries=0,
            on_crash=Step.OnCrash.FAIL,
        )
        line = step.as_json() | {"line": 0, "key": str(self.key), "isolation": "thread"}
        return line | {"schedule": "", "nominal_at": None, "limit_keys": limit_keys(line)}

    def start(self, now: datetime) -> None:
        """Record that a worker has started the run, and the last event of each topic at this time.

        Events published from now on count as unseen. A run that continues with what an earlier attempt
        prepared keeps that attempt's snapshot.
        """
        if self.phase == Phase.PREPARING:
            topics = Subscription.objects.filter(handler=self.handler_id)
            found = topics.values_list("topic", "topic__last_seq", "cursor")
            self.snapshot = {str(pk): [seq, cursor] for pk, seq, cursor in found}
        self._write(now, snapshot=self.snapshot, started_at=now)

    def reach(self, phase: Phase, *, now: datetime, **checkpoint: Any) -> None:
        """Move to a later phase and store its checkpoint; raise Superseded if the run is not active."""
        before = PHASES[: PHASES.index(phase)]
        self._write(now, before=before, phase=phase, **checkpoint)

    def _write(self, now: datetime, *, before: Sequence[str] = PHASES, **values: Any) -> None:
        mine = Run.objects.active().filter(pk=self.pk, phase__in=before)
        if not mine.update(updated_at=now, **values):
            raise Superseded(f"run {self.pk} no longer belongs to this worker")
        for name, value in values.items():
            setattr(self, name, value)

    def reach_prepared(self, prepared: Prepared, *, now: datetime) -> bool:
        """Store what was prepared and reserve the chosen events.

        If one of the events is no longer pending, store nothing and return False.
        """
        ids = [each.id for each in prepared.reserve]
        topics = [int(pk) for pk in self.snapshot]
        with transaction.atomic():
            if ids:
                # Lock the topics: a publication of pending events updates the same rows in another order.
                list(Topic.objects.filter(pk__in=topics).lock().values_list("pk"))
            self.reach(
                Phase.PREPARED,
                now=now,
                prepare_result={
                    "reserve": ids,
                    "data": clean_json(prepared.data),
                    "wake_at": _as_text(prepared.wake_at),
                    "title": clean_text(prepared.title)[:500],
                },
            )
            if ids and Event.objects.reserve(ids, run_id=self.pk, topics=topics) != len(set(ids)):
                transaction.set_rollback(True)
                self.phase, self.prepare_result = Phase.PREPARING, None
                return False
        return True

    def reach_mutating(self, *, now: datetime) -> None:
        """Record the mutation and its key before the mutation is made, so that a crash leaves a trace."""
        key = self.mutation_key or self.key
        self.reach(Phase.MUTATING, now=now, effect=Run.Effect.IN_FLIGHT, mutation_key=key)

    def reach_mutated(self, result: Any, *, now: datetime) -> None:
        self.reach(Phase.MUTATED, now=now, effect=Run.Effect.APPLIED, mutation_result=clean_json(result))

    def commit(self, commit: Commit, *, now: datetime) -> str:
        """Publish events, store the state and settle the run in one transaction.

        Return a notice if the run's `wake_at` was changed or ignored, otherwise an empty string.
        """
        with transaction.atomic():
            causes = (self.prepare_result or {}).get("reserve", [])
            Topic.objects.publish(
                commit.publications, now=now, run_id=self.pk, causes=causes, awaken=[self.workflow_id]
            )
            self.reach(
                Phase.COMMITTED,
                now=now,
                status=Status.COMMITTED,
                summary=clean_text(commit.summary)[:500],
                finished_at=now,
                settled_at=now,
            )
            skipped = self.effect == Run.Effect.SKIPPED
            self.reserved.all().settle(Event.Status.SKIPPED if skipped else Event.Status.CONSUMED, now=now)
            return move_handler(self, commit.state, now=now)

    def stop(
        self, stop: Stop, error: BaseException | str, *, now: datetime, effect: str | None = None
    ) -> bool:
        """Pause or fail the run, which stays in its phase; return False if it is no longer active."""
        text = error if isinstance(error, str) else failures.error_text(error)
        kind = "" if isinstance(error, str) else type(error).__name__
        values: dict[str, Any] = {
            "status": stop.status,
            "due_at": stop.due_at,
            "error": clean_text(text)[:ERROR_CHARS],
            "error_type": kind[:100],
            "finished_at": now,
            "updated_at": now,
            **{name: getattr(stop.tries, name) for name in TRIES},
        }
        if effect is not None:
            values["effect"] = effect
        with transaction.atomic():
            list(Workflow.objects.filter(pk=self.workflow_id).lock().values_list("pk"))
            if stop.status == Status.FAILED_LOGIC and self._has_new_code():
                values["due_at"] = now
            if not Run.objects.active().filter(pk=self.pk).update(**values):
                return False
            self.refresh_from_db()
            Workflow.objects.awaken([self.workflow_id], now=now)
            if self.due_at is None:
                noticed.send(Run, events=[Notice("workflow.stuck", now, data=self._notice_data(now))])
        return True

    def _has_new_code(self) -> bool:
        """Return whether new code was deployed since the run was created."""
        deployed = Handler.objects.deployed().filter(pk=self.handler_id)
        return deployed.exclude(code_version=self.code_version).exists()

    def _notice_data(self, now: datetime) -> dict[str, Any]:
        return {
            "run_id": self.pk,
            "workflow": self.workflow.slug,
            "title": self.workflow.title,
            "handler": self.handler.name,
            "status": self.status,
            "phase": self.phase,
            "error": self.error,
            "issue": words.issue(self.workflow, self, now),
            "created_at": self.created_at,
        }

    def crash(self, why: str, *, now: datetime) -> bool:
        """Stop a run that no worker is performing; return False if the run is no longer active.

        The reset rules (see `failures.following`) say where the run's next attempt begins.
        """
        end = failures.stop(Status.CRASHED, self.tries, can_reconcile=False, now=now)
        if end.status == Status.FAILED_INTERNAL:
            why = f"{why}: crash loop, {end.tries.crashes} workers were lost"
        return self.stop(end, why, now=now)

    def follow(self, *, now: datetime) -> Run:
        """Settle this run, and add and return its next attempt. The caller holds the workflow's lock."""
        beginning = self.beginning
        Run.objects.filter(pk=self.pk, settled_at=None).update(settled_at=now, due_at=None, updated_at=now)
        following = Run(handler=self.handler, retry_of=self, phase=beginning.phase)
        # The approval covers only the prepared result: an attempt that prepares again must ask again.
        following.is_approved = self.is_approved and self.status == Status.PAUSED_APPROVAL
        following.note = self.note
        for name in TRIES:
            setattr(following, name, getattr(self, name))
        if beginning.keeps:
            for name in ("snapshot", "prepare_result", "mutation_result", "mutation_key"):
                setattr(following, name, getattr(self, name))
            following.effect = "" if beginning.phase == Phase.PREPARED else self.effect
        run = Run.objects.add(following, now=now)
        if beginning.keeps:
            self.reserved.filter(status=Event.Status.RESERVED).update(reserved_by=run)
        else:
            self._release_events(now)
        return run

    @property
    def is_without_code(self) -> bool:
        """Return whether the run is stuck, its handler was removed, and no mutation is in flight."""
        return self.is_stuck and self.handler.is_stopped and self.effect != Run.Effect.IN_FLIGHT

    def settle_without_code(self, *, now: datetime) -> None:
        """Settle the run without a next attempt. The caller holds the workflow's lock."""
        Run.objects.filter(pk=self.pk, settled_at=None).update(settled_at=now, due_at=None, updated_at=now)
        if self.effect == Run.Effect.APPLIED:
            self.reserved.all().settle(Event.Status.CONSUMED, now=now)
        elif self.effect == Run.Effect.SKIPPED:
            self.reserved.all().settle(Event.Status.SKIPPED, now=now)
        else:
            self._release_events(now)

    def _release_events(self, now: datetime) -> None:
        """Make the run's reserved events pending again, and let new consumers of their topics see them."""
        topics = set(self.reserved.filter(status=Event.Status.RESERVED).values_list("topic", flat=True))
        if not topics:
            return
        self.reserved.all().release()
        others = Subscription.objects.filter(topic__in=topics).exclude(handler=self.handler_id)
        workflows = set(others.values_list("handler__workflow", flat=True))
        others.rewind()
        # In a separate transaction: two workflows are never locked one after the other.
        transaction.on_commit(
            lambda: Workflow.objects.awaken(workflows - {self.workflow_id}, now=now), robust=True
        )

    @property
    def beginning(self) -> Beginning:
        return failures.following(
            phase=Phase(self.phase),
            effect=self.effect,  # type: ignore[arg-type]
            is_approved=self.is_approved and self.status == Status.PAUSED_APPROVAL,
        )

    def approve(self, note: str, *, initiator: Initiator, now: datetime) -> None:
        self._resolve("approve", note, {"is_approved": True}, (Status.PAUSED_APPROVAL,), initiator, now)

    def reject(self, note: str, *, initiator: Initiator, now: datetime) -> None:
        """Skip the mutation and continue with `next`; pause the workflow if there is nothing to skip."""
        if self.may_skip:
            skipped = {"effect": Run.Effect.SKIPPED}
            self._resolve("reject", note, skipped, (Status.PAUSED_APPROVAL,), initiator, now)
            return
        with transaction.atomic():
            list(Workflow.objects.filter(pk=self.workflow_id).lock().values_list("pk"))
            if not self._unchanged((Status.PAUSED_APPROVAL,)).update(note=note[:1000], updated_at=now):
                raise self._not_resolvable()
            Activity.objects.record("reject", self, initiator=initiator, now=now, message=note)
            if not self.workflow.pause(f"Rejected: {note}".strip(), initiator=initiator, now=now):
                raise Refused(
                    f"“{self.workflow}” is not active. Resume the workflow before you reject run {self.pk}."
                )

    def retry(self, note: str, *, initiator: Initiator, now: datetime) -> None:
        """Resolve the run by beginning its next attempt now."""
        self._resolve("retry", note, {}, STUCK, initiator, now)

    def reconcile(
        self, happened: bool, note: str, *, result: Any = None, initiator: Initiator, now: datetime
    ) -> None:
        """Resolve the run after a person found out whether its mutation happened, and with which result."""
        values: dict[str, Any] = {"effect": Run.Effect.APPLIED if happened else Run.Effect.FAILED}
        if happened:
            values["mutation_result"] = clean_json(result)
        operation = "happened" if happened else "did_not_happen"
        if self.effect != Run.Effect.IN_FLIGHT:
            raise Refused(
                f"Run {self.pk} has no mutation whose outcome is unknown, so there is nothing to decide."
            )
        self._resolve(operation, note, values, STUCK, initiator, now)

    def skip(self, note: str, *, initiator: Initiator, now: datetime) -> None:
        """Skip the mutation and its events, and continue with `next`."""
        if not self.may_skip:
            raise Refused(
                f"Run {self.pk} cannot be skipped: it has reserved no events, or its mutation was already "
                "applied or skipped. Retry the run instead."
            )
        self._resolve("skip", note, {"effect": Run.Effect.SKIPPED}, STUCK, initiator, now)

    def _not_resolvable(self) -> Refused:
        return Refused(
            f"Run {self.pk} has changed: it was already resolved, or needs a different decision. "
            "Reload and try again."
        )

    @property
    def may_skip(self) -> bool:
        return not self.is_empty and self.effect not in (Run.Effect.APPLIED, Run.Effect.SKIPPED)

    def _resolve(
        self,
        operation: str,
        note: str,
        values: dict[str, Any],
        statuses: Sequence[Status],
        initiator: Initiator,
        now: datetime,
    ) -> None:
        """Resolve a stuck run and reset its failure counts; raise Refused if it was already resolved."""
        with transaction.atomic():
            list(Workflow.objects.filter(pk=self.workflow_id).lock().values_list("pk"))
            values |= dict.fromkeys(TRIES, 0)
            resolved = self._unchanged(statuses).update(
                due_at=now, updated_at=now, note=note[:1000], **values
            )
            if not resolved:
                raise self._not_resolvable()
            Activity.objects.record(operation, self, initiator=initiator, now=now, message=note)
            Workflow.objects.awaken([self.workflow_id], now=now)
        self.refresh_from_db()

    def _unchanged(self, statuses: Sequence[Status]) -> RunQuerySet:
        """Return a query that finds this run only if it is stuck and has not changed since it was read."""
        stuck = Run.objects.stuck().filter(pk=self.pk, status__in=statuses)
        return stuck.filter(effect=self.effect, updated_at=self.updated_at)

    def fix(self, *, now: datetime) -> bool:
        """Make the next attempt due now, after a fix; return False if the run no longer needs one."""
        with transaction.atomic():
            list(Workflow.objects.filter(pk=self.workflow_id).lock().values_list("pk"))
            mine = Run.objects.stuck().filter(pk=self.pk, status=Status.FAILED_LOGIC, due_at=None)
            fixed = mine.update(due_at=now, fixes=models.F("fixes") + 1, updated_at=now)
            if fixed:
                Workflow.objects.awaken([self.workflow_id], now=now)
        return bool(fixed)

    def reconcile_stop(self, tries: Tries, *, now: datetime) -> Stop:
        """Return how the run stops after `reconcile` could not tell whether the mutation happened."""
        more = replace(tries, reconciled=tries.reconciled + 1)
        return failures.stop(Status.PAUSED_RECONCILIATION, more, can_reconcile=True, now=now)


STUCK = (
    Status.PAUSED_TRANSIENT,
    Status.PAUSED_APPROVAL,
    Status.PAUSED_RECONCILIATION,
    Status.FAILED_LOGIC,
    Status.FAILED_INTERNAL,
    Status.CRASHED,
)


def _as_text(wake_at: object) -> object:
    """Return `wake_at` as a string to store, or None. An invalid value is kept for a notice about it."""
    if isinstance(wake_at, datetime):
        return wake_at.isoformat()
    return wake_at if wake_at is None or isinstance(wake_at, str) else repr(wake_at)
