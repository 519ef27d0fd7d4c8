"""The rows that a measurement adds to the database, and the checks that all work was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, Sum

from activities.models import Activity
from database import clock
from database.wake import wake
from execution.models import Execution, WorkerTask
from operations.initiator import Initiator
from schedules.models import Backfill, Occurrence, Schedule, Step
from schedules.models.occurrence import OccurrenceQuerySet

from .jobs import marks

BY = Initiator.system("bench")
BULK = 1_000
CHAIN = {"a": 0, "b": 1, "c": 2, "d": 2, "e": 3, "f": 3}
LAST = ("e", "f")


def enqueue(steps: Iterable[dict[str, Any]]) -> None:
    WorkerTask.objects.enqueue(steps, initiator=BY, now=clock.now())


def enqueue_many(tasks: int, *, function: str = "noop", isolation: str = "thread") -> None:
    for start in range(0, tasks, BULK):
        enqueue([step(function, isolation=isolation)] * min(BULK, tasks - start))


def step(function: str = "noop", args: Sequence[Any] = (), *, isolation: str = "thread") -> dict[str, Any]:
    config = {"function": f"bench.jobs.{function}", "args": list(args), "isolation": isolation}
    return {"name": function, "step_type": "python", "config": config}


def chain_steps(*, marking: bool = False) -> list[dict[str, Any]]:
    """Return the steps a → b → (c, d) → (e, f), which count their calls.

    With `marking`, the last steps, e and f, mark the time instead.
    """
    return [
        (step("mark", [LAST.index(name)]) if marking and name in LAST else step())
        | {"name": name, "index": index}
        for name, index in CHAIN.items()
    ]


def create_schedules(count: int, *, steps: Sequence[dict[str, Any]], first: int = 0) -> list[Schedule]:
    """Insert schedules that are due in about half a day.

    The rows are inserted in bulk, because `define` would take too long for the 100,000 that are needed.
    """
    now = clock.now()
    schedules = [Schedule(name=f"Schedule {n}", spec=_spec(n, now)) for n in range(first, first + count)]
    for schedule in schedules:
        schedule.restart_cursor(now)
    Schedule.objects.bulk_create(schedules, batch_size=BULK)
    lines = [Step.from_json(schedule, line) for schedule in schedules for line in steps]
    Step.objects.bulk_create(lines, batch_size=BULK)
    wake("jim_schedules")
    return schedules


def make_due(due_at: datetime) -> None:
    """Make all schedules due at this second; give each a cron line and an interval."""
    second = due_at.hour * 3600 + due_at.minute * 60 + due_at.second
    spec = _spec(0, due_at) | {"every": [{"every": 86_400, "offset": second}]}
    Schedule.objects.update(spec=spec, next_run_at=due_at, processed_until=due_at - timedelta(seconds=1))
    wake("jim_schedules")


def make_missed(times: int, *, now: datetime) -> None:
    """Make all schedules due every minute, each with `times` past times that are not recorded yet.

    All of these times can still start, because the catch-up window is unlimited.
    """
    Schedule.objects.update(
        spec={"every": ["1m"]},
        catch_up_seconds=None,
        processed_until=now - timedelta(minutes=times),
        next_run_at=now - timedelta(minutes=times - 1),
    )


def create_live(count: int) -> list[Schedule]:
    """Create schedules that start an execution every two seconds, even while another one is running."""
    return [_define(f"Live {number}", {"every": ["2s"]}, overlap="allow_all") for number in range(count)]


def create_backfilled(live_seconds: float) -> Schedule:
    """Create a schedule that is due every minute, and every two seconds during the first `live_seconds`.

    The schedule starts one execution at a time.
    """
    began = clock.now().replace(microsecond=0)
    live = [began + timedelta(seconds=seconds) for seconds in range(2, int(live_seconds) + 1, 2)]
    spec = {"every": ["1m"], "at": [at.isoformat() for at in live]}
    return _define("Backfilled", spec, overlap="buffer_all")


def _define(name: str, spec: dict[str, Any], *, overlap: str) -> Schedule:
    return Schedule.objects.define(
        name=name, spec=spec, overlap=overlap, steps=[step()], initiator=BY, now=clock.now()
    )


def ask_for_backfill(schedule: Schedule, *, times: int) -> Backfill:
    """Request a backfill of the last `times` minutes, for a schedule that is due every minute."""
    now = clock.now()
    end_at = now.replace(second=0, microsecond=0)
    start_at = end_at - timedelta(minutes=times - 1)
    return Backfill.objects.ask(
        schedule, start_at=start_at, end_at=end_at, which="all", initiator=BY, now=now
    )


def live_occurrences(since: datetime, until: datetime) -> OccurrenceQuerySet:
    return Occurrence.objects.automatic().filter(planned_at__gt=since, planned_at__lte=until)


def is_over(live: OccurrenceQuerySet, planned: int) -> bool:
    """Return whether `planned` occurrences have been decided and none of their executions is running."""
    decided = live.exclude(status=Occurrence.Status.PENDING).count()
    return decided >= planned and not live.filter(execution__status="in_progress").exists()


def lags(live: OccurrenceQuerySet) -> list[float]:
    """Return the seconds between each planned time and the start of its step."""
    steps = Activity.objects.filter(parent__execution__occurrence__in=live)
    times = steps.values_list("executed_at", "parent__execution__occurrence__planned_at")
    return [(began - planned_at).total_seconds() for began, planned_at in times if began]


def _spec(number: int, now: datetime) -> dict[str, Any]:
    """Return a spec that is due once a day, in about half a day; the minute depends on `number`."""
    return {"cron": [f"{number % 60} {(now + timedelta(hours=12)).hour} * * *"]}


def settle() -> None:
    """Analyse the tables (PostgreSQL only) and write a checkpoint, as in a database that is in use."""
    if connection.vendor == "postgresql":
        execute("VACUUM ANALYZE")
        execute("CHECKPOINT")
    else:
        execute("PRAGMA wal_checkpoint(TRUNCATE)")


def execute(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise RuntimeError(f"{what}: {expected} expected, found {found}")


def expect_complete(tasks: int, *, counted: int) -> None:
    """Check that every task was completed at its first attempt, and that no task is left.

    `counted` is how many calls of functions must have been counted.
    """
    rows = Activity.objects.filter(task_key__isnull=False).values_list("status", "attempt")
    expect(dict(Counter(rows)), {("complete", 1): tasks}, "activities by status and attempt")
    expect(WorkerTask.objects.count(), 0, "tasks left")
    expect(marks.total().calls, counted, "functions called")


def expect_failed(tasks: int, *, retries: int) -> None:
    """Check that each task failed at every attempt, and failed permanently only at the last one."""
    rows = Activity.objects.filter(task_key__isnull=False, status="failed_with_error")
    found = dict(Counter(rows.values_list("attempt", "permanently_failed")))
    expected = {(attempt, attempt > retries): tasks for attempt in range(1, retries + 2)}
    expect(found, expected, "failed activities by attempt, and whether that was the last")
    expect(rows.filter(retry_of=None).count(), tasks, "chains")


def expect_completed(executions: int) -> None:
    statuses = Counter(Execution.objects.values_list("status", flat=True))
    expect(dict(statuses), {"completed": executions}, "executions by status")


def expect_started(executions: int, *, steps: int) -> None:
    statuses = Counter(Occurrence.objects.values_list("status", flat=True))
    expect(dict(statuses), {"started": executions}, "occurrences by status")
    expect(WorkerTask.objects.count(), executions * steps, "tasks")


def expect_all_started(live: OccurrenceQuerySet, planned: int) -> None:
    statuses = Counter(live.values_list("status", flat=True))
    expect(dict(statuses), {"started": planned}, "live occurrences by status")


def expect_settled(schedules: int, *, times: int) -> None:
    """Check that each schedule started one of its missed times, skipped the others and counted them all."""
    started, skipped = schedules, schedules * (times - 1)
    statuses = Occurrence.objects.order_by().values_list("status").annotate(Count("pk"))
    expect(dict(statuses), {"started": started, "skipped": skipped}, "occurrences by status")
    counted = Schedule.objects.aggregate(started=Sum("started_count"), skipped=Sum("skipped_count"))
    expect(counted, {"started": started, "skipped": skipped}, "counted on the schedules")
    expect(WorkerTask.objects.count(), started, "tasks")


def expect_never_analysed(table: str) -> None:
    if connection.vendor == "postgresql":
        looked = "last_analyze IS NULL AND last_autoanalyze IS NULL AND last_autovacuum IS NULL"
        rows = execute(f"SELECT {looked} FROM pg_stat_user_tables WHERE relname = '{table}'")
        expect(rows, [(True,)], f"{table} was never analysed")
