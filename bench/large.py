"""Fills a database with as many rows as a team has after years of use.

PostgreSQL generates the rows, because running that much work would take weeks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.db import connection

from database import clock
from execution.loops.manual_runs import trigger
from execution.models import Execution, Limit, Worker, WorkerTask
from operations.initiator import Initiator
from schedules.models import Backfill, Schedule, SharedCalendar, TaskTemplate
from webhooks.models import Endpoint
from workflows.definition import Definitions
from workflows.deployment import deploy
from workflows.models import Handler, Topic

from .large_sizes import STEPS, Large

BY = Initiator.system("bench")
# The ids up to this one are left to the activities that record the definitions.
BEFORE = 1_000
STEP: dict[str, Any] = {
    "step_type": "python",
    "config": {"function": "bench.jobs.noop", "isolation": "thread"},
    "max_retries": 2,
}
TEMPLATE = {"step_type": STEP["step_type"], "config": STEP["config"]}
# As in real installations, most executions succeed, and every other outcome occurs.
STATUS = (
    """(CASE WHEN {n} %% 20 = 7 THEN 'failed' WHEN {n} %% 50 = 9 THEN 'cancelled' ELSE 'completed' END)"""
)
ENDING = """(CASE WHEN {n} %% 20 = 7 THEN 'failed_with_error' WHEN {n} %% 50 = 9 THEN 'cancelled'
    WHEN {n} %% 33 = 5 THEN 'complete_with_warning' WHEN {n} %% 41 = 3 THEN 'skipped' ELSE 'complete' END)"""


def fill(size: Large) -> None:
    """Fill the empty database with rows, as many as `size` says."""
    first = _define()
    _copy_schedules(first, size.schedules)
    _add_history(size)
    _add_output(size)
    _add_deliveries(size)
    _add_work(size)
    _add_runs(size)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _define() -> Schedule:
    now = clock.now()
    SharedCalendar.objects.define("Closing days", [{"dates": "2026-12-24/2026-12-31"}], initiator=BY, now=now)
    Limit.objects.define("pool:default", 20, initiator=BY, now=now)
    TaskTemplate.objects.define(name="Large", **TEMPLATE, initiator=BY, now=now)
    Worker.objects.register(id=uuid4(), pools=[], seats=8, now=now)
    steps = [{**STEP, "name": f"step {n}", "index": n // 3} for n in range(STEPS)]
    return Schedule.objects.define(
        name="Large 1",
        steps=steps,
        spec={"cron": ["*/30 6-20 * * *"], "time_zone": "Europe/Berlin"},
        tags=["large", "first"],
        initiator=BY,
        now=now,
    )


def _copy_schedules(first: Schedule, count: int) -> None:
    """Copy the schedule under other names; every tenth copy is paused, and every seventh has failed."""
    own = ("id", "name", "status", "pause_note", "last_outcome", "next_run_at", "started_count")
    same = ", ".join(str(field.column) for field in Schedule._meta.concrete_fields if field.column not in own)
    _run(
        f"""INSERT INTO schedules_schedule (id, name, status, pause_note, last_outcome, next_run_at,
            started_count, {same})
        SELECT {first.pk} + n, 'Large ' || (n + 1), CASE WHEN n %% 10 = 0 THEN 'paused' ELSE 'active' END,
            CASE WHEN n %% 10 = 0 THEN 'Maintenance' ELSE '' END,
            CASE WHEN n %% 7 = 0 THEN 'failed' ELSE 'completed' END,
            now() + n * interval '1 minute', 20, {same}
        FROM schedules_schedule, generate_series(1, %s) n WHERE id = %s""",
        [count - 1, first.pk],
    )
    for table, skipped in (
        ("schedules_step", ("id", "schedule_id")),
        ("schedules_tag", ("id", "schedule_id")),
    ):
        with connection.cursor() as cursor:
            columns = [
                column.name for column in connection.introspection.get_table_description(cursor, table)
            ]
        kept = ", ".join(name for name in columns if name not in skipped)
        _run(
            f"""INSERT INTO {table} (schedule_id, {kept})
            SELECT schedule_id + n, {kept} FROM {table}, generate_series(1, %s) n WHERE schedule_id = %s""",
            [count - 1, first.pk],
        )
    _restart("schedules_schedule")


def _add_history(size: Large) -> None:
    """Add executions over the last 90 days; the newest ones have the highest ids."""
    [(first, plan)] = _plan()
    began = f"(now() - (({size.executions} - n) * interval '90 days' / {size.executions}))"
    schedule = f"({first} + n %% {size.schedules})"
    root = f"({BEFORE} + n)"
    _run(
        f"""INSERT INTO schedules_occurrence (id, schedule_id, source, key, nominal_at, planned_at, due_at,
            overlap, status, reason, initiator_type, initiator_id, initiator_name, created_at, settled_at,
            is_whole)
        SELECT n, {schedule}, 'auto', 'auto/' || n, {began}, {began}, {began}, '',
            'started', '', 'schedule', '1', 'Large', {began}, {began}, false FROM generate_series(1, %s) n""",
        [size.executions],
    )
    _run(
        f"""INSERT INTO activities_activity (id, status, operation, target_type, target_id, target_name,
            initiator_type, initiator_id, initiator_name, attempt, created_at, executed_at, finished_at,
            message, error, traceback, items_total, items_failed, permanently_failed)
        SELECT {root}, {ENDING.format(n="n")}, 'run', 'schedule', {schedule}, 'Large', 'schedule', {schedule},
            'Large', 1, {began}, {began}, {began} + interval '40 s', '', '', '', 0, 0, false
        FROM generate_series(1, %s) n""",
        [size.executions],
    )
    _restart("activities_activity")
    _run(
        f"""INSERT INTO activities_activity (status, operation, target_type, target_id, target_name,
            initiator_type, initiator_id, initiator_name, parent_id, task_key, attempt, step_index, line,
            created_at, executed_at, finished_at, message, error, traceback, items_total, items_failed,
            permanently_failed)
        SELECT {ENDING.format(n="(n + s)")}, 'run', 'step', '', 'step ' || s, 'schedule', {schedule},
            'Large', {root}, gen_random_uuid(), 1, s / 3, s, {began}, {began} + s * interval '4 s',
            {began} + (s * 4 + 3) * interval '1 s', 'message of ' || n, '', '', 0, 0, false
        FROM generate_series(1, %s) n, generate_series(0, {STEPS - 1}) s""",
        [size.executions],
    )
    _run(
        f"""INSERT INTO execution_execution (id, schedule_id, schedule_name, status, plan, current_index,
            cancel_reason, error, started_at, finished_at, accounted_at, activity_id, occurrence_id,
            is_timed_out, source, on_failure)
        SELECT n, {schedule}, 'Large', {STATUS.format(n="n")}, %s::jsonb, 2, '', '', {began},
            {began} + interval '40 s', {began} + interval '40 s', {root}, n, false, 'auto', 'stop'
        FROM generate_series(1, %s) n""",
        [plan, size.executions],
    )
    for table in ("schedules_occurrence", "execution_execution"):
        _restart(table)


def _add_runs(size: Large) -> None:
    """Add as many workflow runs as executions, and twice as many events; every hundredth event is pending."""
    from .flows.workflows import Switchboard

    deploy(Definitions.of([Switchboard]), initiator=BY, now=clock.now())
    topic, handler = Topic.objects.get(slug="calls"), Handler.objects.get()
    ago = f"(now() - (({size.executions} - n) * interval '90 days' / {size.executions}))"
    _run(
        f"""INSERT INTO workflows_run (key, workflow_id, handler_id, phase, status, effect, snapshot, summary,
            error, error_type, note, is_approved, transient, reconciled, crashes, fixes, code_version,
            created_at, started_at, updated_at, finished_at, settled_at)
        SELECT gen_random_uuid(), {handler.workflow_id}, {handler.pk}, 'committed', 'committed', 'applied',
            '{{}}', 'Consumed 2 events', '', '', '', false, 0, 0, 0, 0, %s, {ago}, {ago}, {ago}, {ago}, {ago}
        FROM generate_series(1, %s) n""",
        [handler.code_version, size.executions],
    )
    _run(
        f"""INSERT INTO workflows_event (topic_id, seq, message_id, title, payload, status, published_by,
            caused_by, attempt, created_at, settled_at)
        SELECT {topic.pk}, n, 'call-' || n, 'Call ' || n, '{{"number": 7}}',
            CASE WHEN n %% 100 = 0 THEN 'pending' ELSE 'consumed' END, '', '[]', 1, now(),
            CASE WHEN n %% 100 = 0 THEN NULL ELSE now() END
        FROM generate_series(1, %s) n""",
        [2 * size.executions],
    )
    Topic.objects.filter(pk=topic.pk).update(last_seq=2 * size.executions)


def _plan() -> list[tuple[int, str]]:
    """Return one pair: the id of the first schedule, and the plan of an execution as JSON.

    JIM starts an execution to make the plan; the execution is then deleted.
    """
    schedule = Schedule.objects.get(name="Large 1")
    occurrence = trigger(schedule, initiator=BY, now=clock.now())
    execution = Execution.objects.get(occurrence=occurrence)
    with connection.cursor() as cursor:
        cursor.execute("SELECT plan::text FROM execution_execution WHERE id = %s", [execution.pk])
        [plan] = cursor.fetchone()
        cursor.execute("TRUNCATE execution_execution, schedules_occurrence CASCADE")
        cursor.execute("DELETE FROM activities_activity WHERE operation = 'run'")
    return [(schedule.pk, plan)]


def _add_output(size: Large) -> None:
    """Add twenty lines of output to each of the newest steps."""
    _run(
        """INSERT INTO activities_outputline (activity_id, number, stream, text, written_at)
        SELECT a.id, n, 'stdout', 'line ' || n || ' of what it said', a.executed_at
        FROM (SELECT id, executed_at FROM activities_activity ORDER BY id DESC LIMIT %s / 20) a,
            generate_series(1, 20) n""",
        [size.lines],
    )


def _add_deliveries(size: Large) -> None:
    endpoint, _ = Endpoint.objects.define(
        name="Large",
        url="https://example.com/hook",
        kinds=["execution.failed"],
        initiator=BY,
        now=clock.now(),
    )
    _run(
        """INSERT INTO webhooks_delivery (endpoint_id, key, kind, body, status, created_at, ended_at, tries,
            tries_left, note, log)
        SELECT %s, gen_random_uuid(), 'execution.failed', '{}', 'delivered', at, at, 1, 4, '', '[]'
        FROM (SELECT now() - (%s - n) * interval '1 minute' AS at FROM generate_series(1, %s) n) AS times""",
        [endpoint.pk, size.deliveries, size.deliveries],
    )


def _add_work(size: Large) -> None:
    now = clock.now()
    first = Schedule.objects.get(name="Large 1")
    start_at = now - timedelta(days=2)
    Backfill.objects.ask(first, start_at=start_at, end_at=now, which="all", initiator=BY, now=now)
    job = {**STEP, "name": "job"}
    WorkerTask.objects.enqueue([job] * size.jobs, initiator=BY, now=now)
    for number in range(size.running):
        steps = [{**STEP, "name": f"step {n}", "index": n // 3} for n in range(STEPS)]
        Execution.objects.submit(f"Group {number}", steps, initiator=BY, now=now)


def _run(sql: str, params: list[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def _restart(table: str) -> None:
    """Let the sequence of ids of the table continue after the highest id in use."""
    _run(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}) + 1)", [])
