"""The checker has teeth: whatever is planted in the tables of a healthy world, it finds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F, QuerySet

from activities.models import Activity
from execution.invoker import trigger
from execution.models import Execution, Job, Limit, Worker, WorkerTask
from execution.scheduler import is_due, tick
from schedules.models import Backfill, Occurrence, Overlap, Schedule
from tests.base import NOW, SOMEBODY, break_down, claim, end, make_schedule, make_worker, seconds, step
from tests.invariants import violations

pytestmark = pytest.mark.django_db

EVERY_MINUTE = {"every": ["1m"]}
END = NOW + seconds(300)
LATER = seconds(60)
BY: dict[str, Any] = {"initiator": SOMEBODY}


def live_five_minutes() -> None:
    """Schedules of all kinds, with executions that take up to two minutes; then all comes to rest."""
    for policy in Overlap.values:
        make_schedule(name=policy, spec=EVERY_MINUTE, overlap=policy)
    make_schedule(step("failing"), name="failing", spec=EVERY_MINUTE)
    make_schedule(name="late", spec={"every": ["20s"]}, catch_up_seconds=0)
    cron = make_schedule(name="cron", spec={"cron": ["*/2 * * * *"]})
    limited = make_schedule(name="limited", spec=EVERY_MINUTE, overlap="allow_all")
    limited.edit(token=1, **BY, now=NOW, changes={"remaining": 3})
    Limit.objects.define("resource:crm", 1, **BY, now=NOW)
    make_schedule(step("crm", resources=["crm"]), name="crm", spec=EVERY_MINUTE, overlap="allow_all")
    paused = make_schedule(name="paused", spec=EVERY_MINUTE)
    worker = make_worker(END)
    for minute in range(1, 5):
        now = NOW + seconds(60 * minute)
        tick(now)
        if minute == 2:
            paused.pause(**BY, now=now + seconds(30))
            trigger(limited, **BY, now=now, key="k")
            cron.edit(token=1, **BY, now=now, changes={"spec": {"cron": ["1-59/2 * * * *"]}})
            Backfill.objects.ask(limited, start_at=NOW - seconds(300), end_at=NOW, **BY, now=now)
        if minute % 2 == 0:
            work(worker, now)
    while is_due(END) or WorkerTask.objects.exists():
        tick(END)
        work(worker, END)


def work(worker: Worker, now: datetime) -> None:
    for task in claim(worker, now=now):
        (break_down if task.name == "failing" else end)(worker, task, now=now)


def plant(rows: QuerySet[Any], **values: object) -> Callable[[], None]:
    """Writes this into the last of the rows."""

    def write() -> None:
        newest = rows.order_by("pk").last()
        assert newest is not None
        rows.filter(pk=newest.pk).update(**values)

    return write


def of(schedule: str, **values: object) -> Callable[[], None]:
    return plant(Schedule.objects.filter(name=schedule), **values)


def occurrences(schedule: str, **filters: object) -> QuerySet[Occurrence]:
    return Occurrence.objects.filter(schedule__name=schedule, **filters)


def executions(schedule: str, **filters: object) -> QuerySet[Execution]:
    return Execution.objects.filter(schedule__name=schedule, **filters)


def changes(schedule: str, operation: str) -> QuerySet[Activity]:
    return Activity.objects.filter(target_name=schedule, operation=operation)


def attempts_of(schedule: str) -> QuerySet[Activity]:
    return Activity.objects.filter(parent__execution__schedule__name=schedule)


def copy(rows: QuerySet[Any], **values: object) -> Callable[[], None]:
    """Adds a row like the last of these."""

    def add() -> None:
        row = rows.order_by("pk").last()
        assert row is not None
        row.pk = None
        for name, value in values.items():
            setattr(row, name, value)
        row.save(force_insert=True)

    return add


def remove(rows: QuerySet[Any]) -> Callable[[], None]:
    def delete() -> None:
        assert rows.delete()[0]

    return delete


SKIPPED = occurrences("skip", status="skipped")
PLANTED: dict[str, list[Callable[[], None]]] = {
    "every_nominal_time_occurs_once": [
        remove(SKIPPED),
        copy(SKIPPED, nominal_at=NOW + seconds(90), key="auto/2026-11-16T03:01:30Z"),
        copy(SKIPPED, key="auto/again"),
        plant(changes("skip", "create"), created_at=NOW - LATER),
        plant(changes("cron", "edit"), created_at=NOW + seconds(250)),
        of("buffer_one", processed_until=END + LATER),
    ],
    "the_cursor_only_moves_on": [
        of("skip", next_run_at=END + 2 * LATER),
        of("skip", next_run_at=None),
        of("skip", next_run_at=END),
        of("cron", next_run_at=END),
        of("skip", status="closed"),
        of("skip", spec_error="broken"),
        of("skip", processed_until=NOW + LATER),
        of("skip", processed_until=None),
        plant(occurrences("skip"), nominal_at=NOW, key="auto/2026-11-16T03:00:00Z"),
    ],
    "keys_name_their_time": [
        plant(SKIPPED, nominal_at=F("nominal_at") + LATER),
        plant(SKIPPED, source="manual"),
        plant(occurrences("limited", source="backfill"), backfill=None),
    ],
    "every_request_occurs_once": [
        copy(changes("limited", "trigger")),
        plant(SKIPPED, source="manual", key="manual/new"),
        copy(occurrences("limited", source="manual"), key="manual/k again"),
    ],
    "every_occurrence_has_one_fate": [
        plant(executions("skip"), occurrence=None),
        plant(SKIPPED, status="started"),
        plant(occurrences("skip", status="started"), status="pending"),
    ],
    "every_fate_is_explained": [
        plant(SKIPPED, reason=""),
        plant(SKIPPED, reason="a whim"),
        plant(SKIPPED, status="missed"),
        plant(occurrences("late", status="missed"), reason="overlap"),
        plant(SKIPPED, settled_at=None),
    ],
    "whoever_blocked_was_running": [
        plant(SKIPPED, blocked_by=None),
        plant(SKIPPED, blocked_by=-1),
        plant(SKIPPED, settled_at=END + LATER),
    ],
    "nobody_starts_too_late_or_is_missed_too_soon": [
        plant(occurrences("late", status="started"), planned_at=NOW),
        plant(occurrences("late", status="missed"), planned_at=F("settled_at")),
        plant(occurrences("late", status="missed"), kept_at=NOW),
        plant(occurrences("skip", status="started"), planned_at=END + LATER),
        plant(occurrences("buffer_all", kept_at__isnull=False), kept_at=END + timedelta(days=2)),
    ],
    "only_allow_all_runs_side_by_side": [
        plant(executions("skip"), started_at=NOW + seconds(90)),
        plant(executions("buffer_all"), started_at=NOW + seconds(90)),
        plant(executions("cancel_other"), started_at=NOW + seconds(90)),
        plant(executions("terminate_other"), started_at=NOW + seconds(90)),
        plant(Activity.objects.filter(parent__execution__schedule__name="buffer_one"), executed_at=NOW),
    ],
    "at_most_one_is_buffered": [
        plant(occurrences("buffer_one", kept_at__isnull=False), kept_at=NOW + LATER),
        plant(occurrences("buffer_one", reason="superseded"), settled_at=END, kept_at=NOW + LATER),
    ],
    "buffered_times_start_in_order": [
        plant(occurrences("buffer_all", status="started"), nominal_at=NOW),
        plant(occurrences("limited", source="backfill"), nominal_at=NOW - timedelta(days=1)),
    ],
    "only_a_full_buffer_drops": [
        plant(SKIPPED, status="dropped", reason="buffer full"),
        plant(occurrences("limited", source="manual"), status="dropped"),
    ],
    "nothing_starts_by_itself_in_a_pause": [
        plant(changes("paused", "pause"), created_at=NOW),
        plant(executions("paused"), started_at=NOW + seconds(200)),
    ],
    "counters_say_what_the_rows_say": [
        of("skip", started_count=F("started_count") + 1),
        of("skip", skipped_count=F("skipped_count") - 1),
        of("skip", skipped_reasons={"superseded": 2}),
        of("late", missed_count=0),
        of("late", dropped_count=1),
        of("skip", last_run_at=NOW),
    ],
    "outcomes_say_what_the_executions_say": [
        of("failing", failed_count=0),
        of("failing", failures_in_a_row=0),
        of("failing", recent_outcomes="c"),
        of("skip", recent_outcomes=""),
        of("skip", last_outcome="failed"),
        plant(executions("skip"), status="failed"),
    ],
    "automatic_starts_use_up_what_remains": [
        of("limited", remaining=1),
        of("limited", remaining=None),
    ],
    "backfills_add_each_time_once": [
        plant(Backfill.objects.all(), added_count=1),
        plant(Backfill.objects.all(), passed_count=1),
        plant(Backfill.objects.all(), start_at=NOW - seconds(400)),
        plant(Backfill.objects.all(), finished_at=None),
        remove(occurrences("limited", source="backfill")),
    ],
    "nothing_is_left_open": [
        plant(Backfill.objects.all(), status="open"),
        plant(executions("skip"), status="in_progress"),
        plant(executions("skip"), accounted_at=None),
        plant(SKIPPED, status="pending"),
    ],
    "nothing_is_overdue": [
        of("skip", next_run_at=END),
        of("paused", paused_until=END),
        plant(SKIPPED, status="pending", due_at=END),
        plant(Backfill.objects.all(), status="open", slice_at=END),
        plant(executions("skip"), status="in_progress", timeout_at=END),
    ],
    "limits_are_kept": [
        plant(attempts_of("crm"), executed_at=NOW + seconds(119)),
        plant(attempts_of("crm"), executed_at=NOW + seconds(100), finished_at=NOW + seconds(400)),
        plant(changes("resource:crm", "create"), details={"size": 0}),
    ],
    "executions_tell_the_truth": [
        plant(executions("skip"), status="failed"),
        plant(executions("failing"), status="completed"),
        plant(executions("skip"), status="cancelled"),
        plant(executions("skip"), cancel_requested_at=NOW),
    ],
}


@pytest.mark.parametrize("most", [1, pytest.param(None, marks=pytest.mark.long)], ids=["one each", "all"])
def test_what_is_planted_is_found(most: int | None) -> None:
    live_five_minutes()
    assert violations(now=END, moment=timedelta(0)) == []
    missed = [
        f"{rule} {number}"
        for rule, planted in PLANTED.items()
        for number, write in enumerate(planted[:most])
        if rule not in found_after(write)
    ]
    assert missed == []


def found_after(write: Callable[[], None]) -> set[str]:
    """The rules that are broken then."""
    with transaction.atomic():
        write()
        found = {text.split(":")[0] for text in violations(now=END, moment=timedelta(0))}
        transaction.set_rollback(True)
    return found


def test_what_people_do_once_more_is_no_violation() -> None:
    group = Execution.objects.submit("Group", [step("a"), step("b", 1)], **BY, now=NOW)
    worker = make_worker()
    end(worker, *claim(worker))
    break_down(worker, *claim(worker))
    Execution.objects.get(pk=group.pk).retry(**BY, now=NOW)
    end(worker, *claim(worker))
    [key] = WorkerTask.objects.enqueue([step("job")], **BY, now=NOW)
    for verb in ("cancel", "retry"):
        getattr(Job.find(key), verb)(**BY, now=NOW)
    end(worker, *claim(worker))
    assert violations(now=NOW) == []
