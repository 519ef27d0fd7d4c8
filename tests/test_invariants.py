"""The checker has teeth: whatever is planted in the tables of a healthy world, it finds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F, QuerySet

from activities.models import Activity
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import is_due, tick
from execution.models import Execution, Job, Limit, Worker, WorkerTask
from schedules.models import Backfill, Occurrence, Overlap, Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    make_schedule,
    make_worker,
    seconds,
    start,
    step,
)
from tests.invariants import Freeze, violations

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


def executions(schedule: str) -> QuerySet[Execution]:
    return Execution.objects.filter(schedule__name=schedule)


def attempts_of(schedule: str) -> QuerySet[Activity]:
    return Activity.objects.filter(parent__execution__schedule__name=schedule)


SKIPPED = occurrences("skip", status="skipped")
# By rule: what breaks it.
PLANTED: dict[str, Callable[[], None]] = {
    "every_nominal_time_occurs_once": plant(SKIPPED, nominal_at=NOW + seconds(90)),
    "the_cursor_only_moves_on": of("skip", next_run_at=END + 2 * LATER),
    "keys_name_their_time": plant(SKIPPED, nominal_at=F("nominal_at") + LATER),
    "every_request_occurs_once": plant(SKIPPED, source="manual", key="manual/new"),
    "every_occurrence_has_one_fate": plant(executions("skip"), occurrence=None),
    "every_fate_is_explained": plant(SKIPPED, reason="a whim"),
    "whoever_blocked_was_running": plant(SKIPPED, blocked_by=None),
    "nobody_starts_too_late_or_is_missed_too_soon": plant(
        occurrences("late", status="started"), planned_at=NOW
    ),
    "only_allow_all_runs_side_by_side": plant(executions("skip"), started_at=NOW + seconds(90)),
    "at_most_one_is_buffered": plant(occurrences("buffer_one", kept_at__isnull=False), kept_at=NOW + LATER),
    "buffered_times_start_in_order": plant(occurrences("buffer_all", status="started"), nominal_at=NOW),
    "only_a_full_buffer_drops": plant(SKIPPED, status="dropped", reason="buffer full"),
    "nothing_starts_by_itself_in_a_pause": plant(executions("paused"), started_at=NOW + seconds(200)),
    "counters_say_what_the_rows_say": of("skip", skipped_count=F("skipped_count") - 1),
    "outcomes_say_what_the_executions_say": of("failing", failures_in_a_row=0),
    "automatic_starts_use_up_what_remains": of("limited", remaining=1),
    "backfills_add_each_time_once": plant(Backfill.objects.all(), added_count=1),
    "nothing_is_left_open": plant(executions("skip"), accounted_at=None),
    "nothing_is_overdue": of("skip", next_run_at=END),
    "limits_are_kept": plant(attempts_of("crm"), executed_at=NOW + seconds(119)),
    "executions_tell_the_truth": plant(executions("skip"), status="failed"),
    "attempts_follow_each_other": plant(attempts_of("skip"), attempt=2),
    "times_are_in_order": plant(attempts_of("skip"), finished_at=NOW - LATER),
    "only_the_dead_lose_their_tasks": plant(attempts_of("failing"), error="worker lost"),
}


def test_what_is_planted_is_found() -> None:
    live_five_minutes()
    assert violations(now=END, moment=timedelta(0)) == []
    assert [rule for rule, write in PLANTED.items() if rule not in found_after(write)] == []


def found_after(write: Callable[[], None]) -> set[str]:
    """The rules that are broken then."""
    with transaction.atomic():
        write()
        found = {text.split(":")[0] for text in violations(now=END, moment=timedelta(0))}
        transaction.set_rollback(True)
    return found


@pytest.mark.parametrize(
    ("message", "frozen", "is_found"),
    [
        ("", [], True),
        ("Terminated.", [], False),
        ("", [(1, -1, 1)], False),
        ("", [(2, -1, 1)], True),
        ("", [(1, 0.5, 1), (1, -20, -10)], True),
    ],
    ids=["late", "terminated", "frozen before its end", "another was frozen", "frozen at other times"],
)
def test_a_start_after_the_end_is_found_in_the_ledger(
    tmp_path: Path, message: str, frozen: list[tuple[int, float, float]], is_found: bool
) -> None:
    start(now=NOW)
    worker = make_worker(NOW)
    end(worker, *claim(worker, now=NOW), now=NOW)
    attempts = Activity.objects.exclude(task_key=None)
    attempts.update(message=message)
    mark = f"{attempts.get().task_key} 1 1 {(NOW + seconds(1)).timestamp()}"
    (tmp_path / "ledger").write_text(f"start {mark}\nend {mark}\n")
    at = NOW.timestamp()
    freezes = [Freeze(pid, at + since, at + until) for pid, since, until in frozen]
    rules = {text.partition(":")[0] for text in violations(tmp_path / "ledger", freezes=freezes)}
    assert ("nothing_starts_after_its_end" in rules) is is_found


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
