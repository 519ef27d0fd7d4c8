"""Queries and operations on many executions at once."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connection, models, transaction
from django.db.models import Count, Exists, OuterRef, Q, Subquery

from activities.models import Activity
from activities.signals import Event, listener_condition, noticed
from database.statements import (
    AWAY,
    among,
    fetch,
    insert_each,
    instant,
    literal,
    planned_once,
    update_each,
)
from database.wake import wake
from execution import failure
from operations.initiator import Initiator
from schedules import permissions

from .adhoc import Mode, check_own_steps, checked_group
from .advance import advance
from .brief import whole_plan
from .planned import add
from .start import Start

if TYPE_CHECKING:
    from .execution import Execution

logger = logging.getLogger(__name__)

RECOVERED_PER_PASS = 100
# The columns that are needed to advance an execution, in the order of the model's fields, as `from_db`
# requires.
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
# How many parsed plans a process caches, and the length in characters up to which it caches a plan.
PLANS, PLAN_SIZE = 256, 16_384


class Accounted(NamedTuple):
    """An execution that ended, with the results of its last steps."""

    schedule_id: int
    status: str
    error: str
    results: dict[str, Any]

    @property
    def result(self) -> Any:
        """Return the result of the last step or, if several steps come last, their results by name."""
        found = list(self.results.values())
        return found[0] if len(found) == 1 else self.results or None


class Around(NamedTuple):
    id: int
    schedule_id: int
    source: str
    is_cancelling: bool
    is_running: bool
    changed_at: datetime
    """When the execution ended or, while it runs, when it started."""


class ExecutionQuerySet(models.QuerySet["Execution"]):
    def in_progress(self) -> ExecutionQuerySet:
        return self.filter(status=literal(self.model.Status.IN_PROGRESS))

    def unaccounted(self) -> ExecutionQuerySet:
        return self.filter(accounted_at=None, schedule__isnull=False).exclude(
            status=literal(self.model.Status.IN_PROGRESS)
        )

    def stuck(self) -> ExecutionQuerySet:
        """Keep the running executions that nothing would advance: they have no queued or processing tasks."""
        from .task import WorkerTask

        live = WorkerTask.objects.live().filter(execution=OuterRef("pk"))
        return self.in_progress().filter(~Exists(live))

    def partial(self) -> ExecutionQuerySet:
        """Keep the executions that failed although some of their steps succeeded."""
        succeeded = Activity.objects.filter(parent=OuterRef("activity"), status__in=failure.SUCCEEDED)
        return self.filter(Exists(succeeded), status=self.model.Status.FAILED)

    def overtime(self, now: datetime) -> ExecutionQuerySet:
        """Keep the running executions that have passed their timeout and have not been asked to stop yet."""
        return self.in_progress().filter(timeout_at__lte=now, cancel_requested_at=None)

    def late(self, now: datetime) -> ExecutionQuerySet:
        """Keep the executions that are still running after their deadline."""
        return self.in_progress().filter(deadline_at__lt=now)

    def newly_late(self, now: datetime) -> ExecutionQuerySet:
        return self.in_progress().filter(deadline_at__lte=now, late_noticed_at=None)

    def with_progress(self) -> ExecutionQuerySet:
        """Annotate executions with `groups`, `groups_reached` and `has_successes`, without reading plans."""
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

    def lock_and_read(self, ids: Sequence[int]) -> list[Execution]:
        """Lock executions in id order, and read only the columns that are needed to advance them."""
        theirs, params = among("id", ids)
        locking = "FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""
        sql = f"SELECT {', '.join(HELD)} FROM execution_execution WHERE {theirs} ORDER BY id {locking}"
        return [
            self.model.from_db(self.db, HELD, (*row[:4], _plan(row[4]), *row[5:11], instant(row[11])))
            for row in fetch(sql, params)
        ]

    def start(self, starts: Sequence[Start], *, now: datetime) -> list[int]:
        """Insert executions with their tasks and activities, in a handful of statements.

        Return the ids of the executions in the order of `starts`.
        """
        with planned_once():
            roots = Activity.objects.add(
                Start.ROOT, [start.root for start in starts], status=Activity.Status.IN_PROGRESS, now=now
            )
        for start in starts:
            start.note(now)
        rows = [(*start.execution(now), root) for start, root in zip(starts, roots, strict=True)]
        same = self.model.UNENDED | {"started_at": now}
        with planned_once():
            fields, told = (*Start.EXECUTION, "activity"), f"id, activity_id, {listener_condition()}"
            inserted = insert_each(self.model, fields, rows, same=same, returning=told)
        by_root = {root: pk for pk, root, _ in inserted}
        pairs = list(zip(starts, roots, strict=True))
        add([task for start, root in pairs for task in start.planned(by_root[root], root)], now=now)
        self._notice(
            "execution.started", by_root.values(), now, is_heard=any(heard for _, _, heard in inserted)
        )
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
        may: permissions.May = permissions.anything,
    ) -> Execution:
        """Start a group of jobs, and return its execution.

        With the `mode` “sequential”, the jobs run one after the other; with “parallel”, side by side; with
        “steps”, in the order of their indexes.
        """
        check_own_steps(steps, may)
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
        """Start the next group of each execution whose current group has ended, or end that execution.

        The executions must be locked. Return the ids of the tasks that are now queued. A caller that does not
        claim these tasks must wake the workers.
        """
        return advance(self.model, executions, now=now)

    def notice_late(self, *, now: datetime, limit: int) -> int:
        late = list(self.newly_late(now).order_by("deadline_at").values_list("pk", flat=True)[:limit])
        if not late:
            return 0
        with transaction.atomic():
            fields, rows = ("late_noticed_at",), [(pk, now) for pk in sorted(late)]
            where = "t.status = 'in_progress' AND t.late_noticed_at IS NULL"
            self._notice("execution.late", update_each(self.model, fields, rows, where=where), now)
        return len(late)

    def account(self, schedule_ids: Sequence[int], *, now: datetime) -> list[Accounted]:
        """Mark ended executions as counted by their schedules; return those that were not marked before.

        They are returned in the order in which they ended.
        """
        theirs, params = among("e.schedule_id", schedule_ids)
        rows = fetch(
            "SELECT e.id, e.schedule_id, e.status, e.error, a.target_name, a.result "
            "FROM execution_execution e LEFT JOIN activities_activity a ON a.parent_id = e.activity_id "
            "AND a.step_index = e.current_index AND a.result IS NOT NULL AND e.status = 'completed' "
            "AND a.status IN ('complete', 'complete_with_warning', 'complete_with_error') "
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
            update_each(self.model, fields, [(pk, now) for pk in sorted(ended)], where=guard)
        return list(ended.values())

    def around(self, schedule_ids: Sequence[int], *, now: datetime) -> list[Around]:
        """Return the running executions of these schedules, and all executions that ended after `now`.

        Those that ended can belong to other schedules, which the caller must ignore.
        """
        theirs, params = among("schedule_id", schedule_ids)
        rows = fetch(
            "SELECT id, schedule_id, source, cancel_requested_at IS NOT NULL, true, started_at "
            f"FROM execution_execution WHERE status = 'in_progress' AND {theirs} UNION ALL "
            "SELECT id, schedule_id, source, false, false, finished_at FROM execution_execution "
            "WHERE finished_at IS NOT NULL AND finished_at > %s",
            [*params, connection.ops.adapt_datetimefield_value(now)],
        )
        # Sorted here, as SQLite would otherwise scan all executions in the order of their ids.
        return [
            Around(pk, schedule, source, bool(is_cancelling), bool(is_running), instant(at))
            for pk, schedule, source, is_cancelling, is_running, at in sorted(rows, key=itemgetter(0))
        ]

    def recover(self, *, now: datetime) -> int:
        """Advance or end stuck executions; return how many there were.

        How the steps of these executions ended is read from the activities, because the tasks are gone.
        """
        stuck = list(self.stuck().values_list("pk", flat=True)[:RECOVERED_PER_PASS])
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
        """Delete up to `limit` executions that ended before this time, with their activities and output.

        Executions that their schedule has not counted yet are kept. Return how many were deleted.
        """
        old = list(
            self.filter(Q(accounted_at__isnull=False) | Q(schedule=None), finished_at__lt=before)
            .order_by("finished_at")
            .values_list("pk", "activity_id")[:limit]
        )
        with transaction.atomic():
            self.filter(pk__in=[pk for pk, _ in old]).delete()
            Activity.objects.filter(pk__in=[root for _, root in old]).delete()
        return len(old)

    def _notice(self, kind: str, ids: Iterable[int], now: datetime, *, is_heard: bool = True) -> None:
        events = [Event(kind, now, data={"execution_id": pk}) for pk in ids]
        noticed.send(self.model, events=events, is_heard=is_heard)


def _plan(text: str) -> Any:
    """Parse a plan. Parsed plans are cached if they are short, as a plan never changes."""
    return kept_plan(text) if len(text) <= PLAN_SIZE else whole_plan(_loaded(text))


@lru_cache(maxsize=PLANS)
def kept_plan(text: str) -> Any:
    return whole_plan(_loaded(text))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # treated as a plan that cannot be read
