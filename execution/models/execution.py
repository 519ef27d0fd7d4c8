from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connection, models, transaction
from django.db.models import Count, Exists, OuterRef, Q, Subquery
from django.urls import reverse

from activities.models import Activity, Ending
from activities.signals import Event, noticed, somebody_listens
from database.statements import (
    AWAY,
    among,
    fetch,
    hidden,
    insert_each,
    instant,
    literal,
    planned_once,
    update_each,
    write,
)
from database.wake import wake
from execution import failure
from operations.initiator import Initiator
from schedules.models import Occurrence, Refused, Schedule
from schedules.spec.wording import duration

from .adhoc import Mode, checked_group
from .brief import PlanField, whole_plan
from .planned import add
from .start import Start

logger = logging.getLogger(__name__)


# In the order of the model's fields, as `from_db` wants it.
HELD = (
    "id",
    "schedule_id",
    "activity_id",
    "status",
    "plan",
    "on_failure",
    "current_index",
    "cancel_requested_at",
    "cancel_reason",
    "is_timed_out",
    "error",
    "started_at",
)


# So many executions that are under way in a worker, a few kB each; longer plans are read anew.
PLANS, PLAN_SIZE = 256, 16_384

# One round trip for what takes three statements. The array keeps the plan right on tables without statistics.
MOVE = f"""
    WITH v AS (
        SELECT (x->>0)::bigint AS id, (x->>1)::int AS current_index FROM jsonb_array_elements(%s) AS given(x)
    ), moved AS (
        UPDATE execution_execution e SET current_index = v.current_index FROM v WHERE e.id = v.id
    ), released AS (
        UPDATE execution_workertask t SET status = 'queued', available_at = %s FROM v
        WHERE t.execution_id = {hidden("bigint")} AND t.execution_id = v.id AND t.step_index = v.current_index
            AND t.status = 'waiting'
        RETURNING t.id
    )
    SELECT id FROM released
"""


class Accounted(NamedTuple):
    """An execution that ended, with the results of its last steps."""

    schedule_id: int
    status: str
    error: str
    results: dict[str, Any]

    @property
    def result(self) -> Any:
        """That of its last step; where several are last, theirs by name."""
        found = list(self.results.values())
        return found[0] if len(found) == 1 else self.results or None


class Around(NamedTuple):
    id: int
    schedule_id: int
    source: str
    is_cancelling: bool
    is_running: bool
    changed_at: datetime
    """When it ended, or else when it started."""


class Standing(NamedTuple):
    """Whether any task is live, the first index that waits, and the last attempts of the current group."""

    is_live: bool
    following: int | None
    last: dict[int | None, failure.Last]


class ExecutionQuerySet(models.QuerySet["Execution"]):
    def in_progress(self) -> ExecutionQuerySet:
        return self.filter(status=literal(Execution.Status.IN_PROGRESS))

    def unaccounted(self) -> ExecutionQuerySet:
        return self.filter(accounted_at=None, schedule__isnull=False).exclude(
            status=literal(Execution.Status.IN_PROGRESS)
        )

    def stuck(self) -> ExecutionQuerySet:
        """In progress, and nobody will ever move them: no task is queued or processing."""
        from .task import WorkerTask

        live = WorkerTask.objects.live().filter(execution=OuterRef("pk"))
        return self.in_progress().filter(~Exists(live))

    def partial(self) -> ExecutionQuerySet:
        """Those that failed although some of their steps succeeded."""
        succeeded = Activity.objects.filter(parent=OuterRef("activity"), status__in=failure.SUCCEEDED)
        return self.filter(Exists(succeeded), status=Execution.Status.FAILED)

    def with_progress(self) -> ExecutionQuerySet:
        """`groups`, `groups_reached` and `has_successes`, counted on an index: a list needs no plans."""
        parts = Activity.objects.filter(parent=OuterRef("activity")).order_by().values("parent")
        reached = parts.filter(step_index__lte=OuterRef("current_index"))
        counted = Count("step_index", distinct=True)
        return self.defer("plan", "last_result", "schedule__last_result").annotate(
            groups=Subquery(parts.annotate(count=counted).values("count")),
            groups_reached=Subquery(reached.annotate(count=counted).values("count")),
            has_successes=Exists(parts.filter(status__in=failure.SUCCEEDED)),
        )

    def lock(self, *, skip_locked: bool = False) -> ExecutionQuerySet:
        return self.select_for_update(of=("self",), no_key=True, skip_locked=skip_locked).order_by("pk")

    def hold(self, ids: Sequence[int]) -> list[Execution]:
        """Locked, by id, with no more than it takes to advance them: there are thousands in a second."""
        theirs, params = among("id", ids)
        locking = "FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""
        sql = f"SELECT {', '.join(HELD)} FROM execution_execution WHERE {theirs} ORDER BY id {locking}"
        return [
            Execution.from_db(self.db, HELD, (*row[:4], _plan(row[4]), *row[5:11], instant(row[11])))
            for row in fetch(sql, params)
        ]

    def start(self, starts: Sequence[Start], *, now: datetime) -> list[int]:
        """Executions, root activities, all tasks and their activities, in a handful of statements.

        Returns the executions in the same order.
        """
        with planned_once():
            roots = Activity.objects.add(
                Start.ROOT, [start.root for start in starts], status=Activity.Status.IN_PROGRESS, now=now
            )
        for start in starts:
            start.note(now)
        rows = [(*start.execution(now), root) for start, root in zip(starts, roots, strict=True)]
        same = Execution.UNENDED | {"started_at": now}
        with planned_once():
            fields, told = (*Start.EXECUTION, "activity"), f"id, activity_id, {somebody_listens()}"
            inserted = insert_each(Execution, fields, rows, same=same, returning=told)
        by_root = {root: pk for pk, root, _ in inserted}
        pairs = list(zip(starts, roots, strict=True))
        add([task for start, root in pairs for task in start.planned(by_root[root], root)], now=now)
        _notice("execution.started", by_root.values(), now, is_heard=any(heard for _, _, heard in inserted))
        Activity.objects.record_ended([a for start, root in pairs for a in start.ended(root, now)])
        return [by_root[root] for root in roots]

    def submit(
        self,
        name: str,
        steps: Sequence[Mapping[str, Any]],
        *,
        initiator: Initiator,
        now: datetime,
        mode: Mode = "steps",
        on_failure: str = "stop",
        timeout_seconds: int | None = None,
    ) -> Execution:
        """A group of jobs without a schedule: one after the other, side by side, or by their indexes."""
        checked = checked_group(
            name, steps, mode=mode, on_failure=on_failure, timeout_seconds=timeout_seconds
        )
        start = Start.group(
            name.strip(),
            checked,
            on_failure=on_failure,
            initiator=initiator,
            timeout_seconds=timeout_seconds,
            now=now,
        )
        with transaction.atomic():
            [pk] = self.start([start], now=now)
        return self.get(pk=pk)

    def advance(self, executions: Iterable[Execution], *, now: datetime) -> list[int]:
        """Moves on those of these locked executions whose group is done.

        Returns the tasks that wait no longer: whoever does not claim them itself tells the workers.
        """
        running = [e for e in executions if e.status == Execution.Status.IN_PROGRESS]
        standings = self._standings(running) if running else {}
        moving: list[Execution] = []
        ending: list[Execution] = []
        for execution in running:
            standing = standings[execution.pk]
            if not standing.is_live:
                is_over = execution._judge(standing.last, standing.following)
                (ending if is_over else moving).append(execution)
        released = self._move(moving, now=now) if moving else []
        self._end(ending, now=now)
        return released

    def overtime(self, now: datetime) -> ExecutionQuerySet:
        """Those that have taken longer than their schedule allows, and were not asked to stop yet."""
        return self.in_progress().filter(timeout_at__lte=now, cancel_requested_at=None)

    def late(self, now: datetime) -> ExecutionQuerySet:
        """Still running after their deadline."""
        return self.in_progress().filter(deadline_at__lt=now)

    def newly_late(self, now: datetime) -> ExecutionQuerySet:
        return self.in_progress().filter(deadline_at__lte=now, late_noticed_at=None)

    def notice_late(self, *, now: datetime, limit: int) -> int:
        late = list(self.newly_late(now).order_by("deadline_at").values_list("pk", flat=True)[:limit])
        if not late:
            return 0
        with transaction.atomic():
            fields, rows = ("late_noticed_at",), [(pk, now) for pk in sorted(late)]
            where = "t.status = 'in_progress' AND t.late_noticed_at IS NULL"
            _notice("execution.late", update_each(Execution, fields, rows, where=where), now)
        return len(late)

    def account(self, schedule_ids: Sequence[int], *, now: datetime) -> list[Accounted]:
        """What has ended since the last time, in the order of its ends; once each."""
        theirs, params = among("e.schedule_id", schedule_ids)
        rows = fetch(
            "SELECT e.id, e.schedule_id, e.status, e.error, a.target_name, a.result "
            "FROM execution_execution e LEFT JOIN activities_activity a ON a.parent_id = e.activity_id "
            "AND a.step_index = e.current_index AND a.result IS NOT NULL AND e.status = 'completed' "
            "AND a.status IN ('complete', 'complete_with_warning') "
            f"WHERE e.accounted_at IS NULL AND NOT (e.status = 'in_progress') AND {theirs} "
            "ORDER BY e.finished_at, e.id, a.line",
            params,
        )
        ended: dict[int, Accounted] = {}
        for pk, schedule_id, status, error, step, result in rows:
            accounted = ended.setdefault(pk, Accounted(schedule_id, status, error, {}))
            if step is not None:
                accounted.results[step] = _loaded(result) if isinstance(result, str) else result
        if ended:
            fields, guard = ("accounted_at",), "t.accounted_at IS NULL"
            update_each(Execution, fields, [(pk, now) for pk in sorted(ended)], where=guard)
        return list(ended.values())

    def around(self, schedule_ids: Sequence[int], *, now: datetime) -> list[Around]:
        """What runs for these schedules, and whatever has ended after `now`."""
        theirs, params = among("schedule_id", schedule_ids)
        rows = fetch(
            "SELECT id, schedule_id, source, cancel_requested_at IS NOT NULL, true, started_at "
            f"FROM execution_execution WHERE status = 'in_progress' AND {theirs} UNION ALL "
            "SELECT id, schedule_id, source, false, false, finished_at FROM execution_execution "
            "WHERE finished_at IS NOT NULL AND finished_at > %s",
            [*params, connection.ops.adapt_datetimefield_value(now)],
        )
        # Put in order here: SQLite would go through all executions in the order of their ids instead.
        return [
            Around(pk, schedule, source, bool(is_cancelling), bool(is_running), instant(at))
            for pk, schedule, source, is_cancelling, is_running, at in sorted(rows, key=itemgetter(0))
        ]

    def recover(self, *, now: datetime, limit: int = 100) -> int:
        """Advances stuck executions. No tasks is no proof of success: their activities are."""
        stuck = list(self.stuck().values_list("pk", flat=True)[:limit])
        for pk in stuck:
            try:
                with transaction.atomic():
                    if self.advance(self.stuck().lock(skip_locked=True).filter(pk=pk), now=now):
                        wake("jim_tasks")
            except AWAY:
                raise
            except Exception:
                logger.exception("execution %s cannot be advanced", pk)
        return len(stuck)

    def prune(self, *, before: datetime, limit: int) -> int:
        """Ended executions with all their activities, output and items."""
        old = list(
            self.filter(Q(accounted_at__isnull=False) | Q(schedule=None), finished_at__lt=before)
            .order_by("finished_at")
            .values_list("pk", "activity_id")[:limit]
        )
        with transaction.atomic():
            self.filter(pk__in=[pk for pk, _ in old]).delete()
            Activity.objects.filter(pk__in=[root for _, root in old]).delete()
        return len(old)

    def _standings(self, executions: Sequence[Execution]) -> dict[int, Standing]:
        """What is left of each, and how its current group ended if nothing of that is live any more."""
        theirs, params = among("e.id", [e.pk for e in executions])
        tasks, _ = among("execution_id", [e.pk for e in executions])
        rows = fetch(
            "SELECT e.id, t.is_live, t.following, a.line, a.status, a.error FROM execution_execution e "
            "LEFT JOIN (SELECT execution_id, MAX(CASE WHEN status = 'waiting' THEN 0 ELSE 1 END) AS is_live, "
            "MIN(CASE WHEN status = 'waiting' THEN step_index END) AS following "
            f"FROM execution_workertask WHERE {tasks} GROUP BY execution_id) t ON t.execution_id = e.id "
            "LEFT JOIN activities_activity a ON a.parent_id = e.activity_id "
            "AND a.step_index = e.current_index AND COALESCE(t.is_live, 0) = 0 "
            f"WHERE {theirs} ORDER BY a.attempt",
            [*params, *params],
        )
        standings: dict[int, Standing] = {}
        for pk, is_live, following, line, status, error in rows:
            standing = standings.setdefault(pk, Standing(bool(is_live), following, {}))
            if status is not None:
                standing.last[line] = failure.Last(status, error)
        return standings

    def _move(self, executions: Sequence[Execution], *, now: datetime) -> list[int]:
        """Their next groups need not wait any longer."""
        if passed_over := [(e.pk, line) for e in executions for line in e.closed]:
            theirs, params = among("(execution_id, line)", passed_over)
            fetch(f"DELETE FROM execution_workertask WHERE {theirs} RETURNING id", params)
            self._close(executions, now=now)
        failing = [(e.pk, e.error, e.on_failure) for e in executions if e.error]
        if failing:
            update_each(Execution, ("error", "on_failure"), failing)
        groups = [(e.pk, e.current_index) for e in executions]
        ids = [e.pk for e in executions]
        if connection.vendor == "postgresql":
            return [pk for (pk,) in fetch(MOVE, [json.dumps(groups), now, ids])]
        update_each(Execution, ("current_index",), groups)
        theirs, params = among("(execution_id, step_index)", groups)
        released = fetch(
            "UPDATE execution_workertask SET status = 'queued', available_at = %s "
            f"WHERE status = 'waiting' AND {theirs} RETURNING id",
            [connection.ops.adapt_datetimefield_value(now), *params],
        )
        return [pk for (pk,) in released]

    def _close(self, executions: Sequence[Execution], *, now: datetime) -> None:
        """Lines of their plans that do not run: their activities say why."""
        lines: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for execution in executions:
            for line, ending in execution.closed.items():
                lines[ending].append((execution.activity_id, line))
        for (status, why), pairs in lines.items():
            Activity.objects.close_lines(pairs, status=status, message=why, now=now)

    def _end(self, executions: list[Execution], *, now: datetime) -> None:
        if not executions:
            return
        self._close(executions, now=now)
        theirs, params = among("execution_id", [e.pk for e in executions])
        write(f"DELETE FROM execution_workertask WHERE {theirs}", params)
        for status, why in (
            (Execution.Status.CANCELLED, "Not run: the execution was cancelled."),
            (Execution.Status.FAILED, failure.SOMETHING_FAILED),
        ):
            roots = [e.activity_id for e in executions if e.status == status and not e.closed]
            if roots:
                Activity.objects.filter(parent__in=roots).close(
                    status=Activity.Status.CANCELLED, message=why, now=now
                )
        update_each(
            Execution,
            ("status", "current_index", "finished_at", "error"),
            [(e.pk, e.status, e.current_index, now, e.error) for e in executions],
            where="t.status = 'in_progress'",
        )
        self._finish_roots(executions, now=now)
        ids = {e.schedule_id for e in executions if e.schedule_id is not None}
        if ids:
            transaction.on_commit(lambda: _settle_after(ids), robust=True)

    def _finish_roots(self, executions: list[Execution], *, now: datetime) -> None:
        roots = [e.activity_id for e in executions if e.status == Execution.Status.COMPLETED]
        warned = self._warned(roots) if roots else set()
        Activity.objects.finish(
            [
                Ending(
                    e.activity_id, e._root_status(e.activity_id in warned), now, e.started_at, error=e.error
                )
                for e in executions
            ]
        )

    def _warned(self, roots: Sequence[int]) -> set[int]:
        """Those of these root activities with a step whose last attempt did not go well."""
        theirs, params = among("a.parent_id", roots)
        troubled = [*Activity.FAILURES, Activity.Status.COMPLETE_WITH_WARNING]
        rows = fetch(
            f"SELECT a.parent_id FROM activities_activity a WHERE {theirs} "
            f"AND a.status IN ({', '.join(['%s'] * len(troubled))}) "
            "AND NOT EXISTS (SELECT 1 FROM activities_activity r WHERE r.retry_of_id = a.id)",
            [*params, *troubled],
        )
        return {root for (root,) in rows}


def _notice(kind: str, ids: Iterable[int], now: datetime, *, is_heard: bool = True) -> None:
    events = [Event(kind, now, data={"execution_id": pk}) for pk in ids]
    noticed.send(Execution, events=events, is_heard=is_heard)


def _plan(text: str) -> Any:
    """Read once, not in each turn of its execution; nobody changes it."""
    return kept_plan(text) if len(text) <= PLAN_SIZE else whole_plan(_loaded(text))


@lru_cache(maxsize=PLANS)
def kept_plan(text: str) -> Any:
    return whole_plan(_loaded(text))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # it is judged as a plan that cannot be read


def _may_be_kept(activity: Activity) -> bool:
    """It succeeded, or ran and found that there was nothing to do."""
    was_kept = "reused" in (activity.details or {})
    found_nothing = activity.status == Activity.Status.SKIPPED and activity.executed_at is not None
    return was_kept or activity.status in failure.SUCCEEDED or found_nothing


def _settle_after(schedule_ids: set[int]) -> None:
    """What waited for these executions need not wait for a tick. A tick repeats what is lost here."""
    from database import clock
    from execution.loops.invoker import invoke_soon

    invoke_soon(schedule_ids, now=clock.now())


class Execution(models.Model):
    """One run of a plan, frozen at its start."""

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
    last_result = models.JSONField(null=True, blank=True, help_text="Of the schedule, when this started.")
    error = models.TextField(blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    accounted_at = models.DateTimeField(null=True, blank=True)

    # Lines that were passed over when it was last judged, each with its status and why.
    closed: Mapping[int, tuple[str, str]] = {}

    objects = ExecutionQuerySet.as_manager()

    class Meta:
        # Where several would do, SQLite takes the one that was made last: those with conditions come last.
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
        """The status as people see it."""
        return "cancelling" if self.is_cancelling else self.status

    @property
    def is_partial(self) -> bool:
        return Execution.objects.partial().filter(pk=self.pk).exists()

    def group(self, index: int | None) -> list[dict[str, Any]]:
        return [step for step in self.plan["steps"] if step["index"] == index]

    def is_late(self, now: datetime) -> bool:
        """It outlives, or has outlived, its deadline."""
        return self.deadline_at is not None and self.deadline_at < (self.finished_at or now)

    def neighbours(self) -> tuple[int | None, int | None]:
        """The executions of the same schedule before and after this one."""
        if self.schedule_id is None:
            return None, None
        same = Execution.objects.filter(schedule=self.schedule_id).values_list("pk", flat=True)
        before = same.filter(pk__lt=self.pk).order_by("-pk").first()
        return before, same.filter(pk__gt=self.pk).order_by("pk").first()

    def time_out(self, *, now: datetime) -> bool:
        """It is stopped like a cancelled one, and has failed."""
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
        """What runs is asked to stop, and only clean-up starts after it. False: it has ended already."""
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
        """The lines that a cancel leaves alone; a damaged plan promises nothing."""
        try:
            return failure.clean_up(self.plan["steps"], is_failure=is_failure)
        except (AttributeError, KeyError, TypeError):
            return []

    def clean_up_tasks(self) -> list[tuple[int, str]]:
        """The ids and names of the tasks that a cancel leaves alone, in order."""
        rows = self.tasks.filter(line__in=self.clean_up())
        return list(rows.order_by("step_index", "line").values_list("pk", "name"))

    def terminate(self, *, initiator: Initiator, now: datetime, reason: str = "") -> bool:
        """Ends it at once, without clean-up; a worker that finds its row gone writes nothing more."""
        from .task import WorkerTask

        with transaction.atomic():
            execution = Execution.objects.lock().in_progress().filter(pk=self.pk).first()
            if execution is None:
                return False
            execution.cancel_requested_at = execution.cancel_requested_at or now
            execution.cancel_reason = reason[:1000] or execution.cancel_reason
            execution.save(update_fields=["cancel_requested_at", "cancel_reason"])
            tasks = WorkerTask.objects.filter(execution=execution)
            # What has been put off has begun as well.
            running = Activity.objects.open().filter(parent=execution.activity_id, executed_at__isnull=False)
            # Their worker may be giving them back, or writing what they say.
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
        """A new execution of what did not succeed in this one, or of all; None: it waits for its turn."""
        from execution.loops.invoker import trigger

        if self.status == self.Status.IN_PROGRESS:
            raise Refused(f"“{self}” is still running: cancel it first, or wait for its end.")
        start = self.start_again(initiator=initiator, whole=whole)
        if self.schedule is None:
            return self._retry_group(start, initiator=initiator, now=now, key=key)
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

    def _retry_group(self, start: Start, *, initiator: Initiator, now: datetime, key: str) -> Execution:
        """The same key asks for the same retry; without a schedule there is no occurrence to remember it."""
        with transaction.atomic():
            list(Execution.objects.lock().filter(pk=self.pk).values_list("pk"))
            records = Activity.objects.filter(operation="retry", target_type="execution", target_id=self.pk)
            known = records.filter(details__key=key).values_list("details__execution", flat=True)
            if key and (execution := self.retries.filter(pk__in=list(known)).first()):
                return execution
            [pk] = Execution.objects.start([start], now=now)
            details = {"key": key, "execution": pk}
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
            raise Refused(f"The plan of “{self}” cannot be read: it cannot be run again.") from error
        if all("reused" in line or line["run_if"] == "failure" for line in start.lines):
            raise Refused(f"All steps of “{self}” succeeded: run it again as a whole.")
        return start

    @property
    def nominal_at(self) -> datetime | None:
        """The time that it stands for."""
        if self.occurrence is not None:
            return self.occurrence.nominal_at
        told = self.plan["steps"][0].get("nominal_at")
        return datetime.fromisoformat(told) if told else None

    def _judge(self, last: dict[int | None, failure.Last], waiting: int | None) -> bool:
        """Sets where this execution goes from its finished group; True if it ends here.

        `waiting` is the first group that still has tasks.
        """
        if self.cancel_requested_at is not None:
            if waiting is not None:
                # The cancel has left nothing but clean-up.
                self.current_index = waiting
                return False
            self.status = self.Status.FAILED if self.is_timed_out else self.Status.CANCELLED
            self.error = self.cancel_reason
            return True
        try:
            following = self._following(last, waiting)
        except Exception as error:
            # A damaged plan ends its own execution, not the batch that it is judged in.
            following = failure.Following(None, f"The plan cannot be read: {error!r}", self.on_failure)
        self.error, self.closed = following.error, following.closed
        self.on_failure = following.on_failure
        if following.index is None:
            self.status = self.Status.FAILED if self.error else self.Status.COMPLETED
            if not self.error:
                self._pass_kept()
            return True
        self.current_index = following.index
        return False

    def _pass_kept(self) -> None:
        """What a retry kept of the groups after the last one that it ran is done as well."""
        kept = [step["index"] for step in self.plan["steps"] if step.get("reused")]
        self.current_index = max([self.current_index, *kept])

    def _following(self, last: dict[int | None, failure.Last], waiting: int | None) -> failure.Following:
        plan = self.plan["steps"]
        later = [s for s in plan if s["index"] > self.current_index and not s.get("reused")]
        upcoming = min((step["index"] for step in later), default=None)
        if upcoming != waiting:
            lost = [step for step in later if step["index"] == upcoming]
            reason = failure.stopping_reason(self.group(self.current_index), last)
            return failure.Following(None, reason or failure.stopping_reason(lost, {}), self.on_failure)
        return failure.following(
            plan, index=self.current_index, last=last, error=self.error, on_failure=self.on_failure
        )

    def _root_status(self, warned: bool) -> str:
        return Activity.Status.COMPLETE_WITH_WARNING if warned else self.ROOT_STATUS[self.Status(self.status)]
