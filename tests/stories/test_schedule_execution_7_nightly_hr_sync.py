"""Example: "Nightly HR Sync", sequential and parallel steps, with its timeline of eleven points."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from activities.models import Activity
from execution.loops.scheduler import tick
from execution.models import Execution, WorkerTask
from schedules.models import Schedule
from tests.base import NOW, claim, end, fresh, make_schedule, make_worker, queue, seconds, step, step_statuses
from tests.loops import work_until_idle

pytestmark = pytest.mark.django_db(transaction=True)

IMPORT, SYNC = "HR System - Full Import", "HR System - Full Sync"
AD_EXPORT, LDAP_EXPORT = "AD - Export", "LDAP - Export"
AD_CONFIRM, LDAP_CONFIRM = "AD - Confirming Import", "LDAP - Confirming Import"
NIGHTLY = {"cron": ["0 3 * * *"]}
EVENING = NOW - seconds(3600)


def nightly_hr_sync() -> Schedule:
    """Parallel steps wait for each other to begin: one after the other, they would never end."""
    return make_schedule(
        step(IMPORT, 0),
        step(SYNC, 1),
        step(AD_EXPORT, 2, "meet", kwargs={"other": LDAP_EXPORT}),
        step(LDAP_EXPORT, 2, "meet", kwargs={"other": AD_EXPORT}),
        step(AD_CONFIRM, 3, "meet", kwargs={"other": LDAP_CONFIRM}),
        step(LDAP_CONFIRM, 3, "meet", kwargs={"other": AD_CONFIRM}),
        name="Nightly HR Sync",
        spec=NIGHTLY,
        now=EVENING,
    )


def test_the_timeline() -> None:
    nightly_hr_sync()
    worker = make_worker()
    indexes: list[int] = []

    def now_at() -> int:
        """Where the execution is; every place is noted, to count the advances in the end."""
        indexes.append(Execution.objects.get().current_index)
        return indexes[-1]

    # 1. Scheduler creates execution, queues ALL 6 tasks.
    tick(NOW)
    execution = Execution.objects.get()
    assert execution.status == Execution.Status.IN_PROGRESS
    later = (SYNC, AD_EXPORT, LDAP_EXPORT, AD_CONFIRM, LDAP_CONFIRM)
    assert queue(execution) == {IMPORT: "queued"} | dict.fromkeys(later, "waiting")
    assert now_at() == 0

    # 2. Worker picks up index 0 task, executes Full Import.
    (full_import,) = claim(worker)
    assert full_import.name == IMPORT
    assert step_statuses(execution)[IMPORT] == ["in_progress"]

    # 3. Worker completes → advance → transitions index 1 to Queued.
    end(worker, full_import)
    assert queue(execution)[SYNC] == "queued"
    assert now_at() == 1

    # 4. Worker picks up index 1 task, executes Full Sync.
    (full_sync,) = claim(worker)
    assert full_sync.name == SYNC

    # 5. Worker completes → advance → transitions index 2 (2 tasks) to Queued.
    end(worker, full_sync)
    assert queue(execution) == {
        AD_EXPORT: "queued",
        LDAP_EXPORT: "queued",
        AD_CONFIRM: "waiting",
        LDAP_CONFIRM: "waiting",
    }
    assert now_at() == 2

    # 6. Worker dispatches BOTH index 2 tasks in parallel (AD Export + LDAP Export).
    ad_export, ldap_export = claim(worker)
    assert {ad_export.name, ldap_export.name} == {AD_EXPORT, LDAP_EXPORT}

    # 7. First export completes → remaining count > 0, wait.
    end(worker, ad_export)
    assert queue(execution) == {LDAP_EXPORT: "processing", AD_CONFIRM: "waiting", LDAP_CONFIRM: "waiting"}
    assert now_at() == 2

    # 8. Second export completes → advance → transitions index 3 to Queued.
    end(worker, ldap_export)
    assert queue(execution) == {AD_CONFIRM: "queued", LDAP_CONFIRM: "queued"}
    assert now_at() == 3

    # 9. Worker dispatches BOTH index 3 tasks in parallel.
    confirming = claim(worker)
    assert {task.name for task in confirming} == {AD_CONFIRM, LDAP_CONFIRM}

    # 10. Both confirming imports complete → no more steps.
    end(worker, *confirming, now=NOW + seconds(600))
    assert queue(execution) == {}
    assert now_at() == 3

    # 11. Execution marked Completed.
    assert (fresh(execution).status, fresh(execution).finished_at) == ("completed", NOW + seconds(600))
    assert [index for index, _ in groupby(indexes)] == [0, 1, 2, 3]


def test_a_worker_runs_it_from_end_to_end_one_group_after_the_other() -> None:
    schedule = nightly_hr_sync()
    tick(NOW)
    work_until_idle(threads=6)
    execution = Execution.objects.get()
    assert execution.status == Execution.Status.COMPLETED
    assert set(map(tuple, step_statuses(execution).values())) == {("complete",)}
    assert not WorkerTask.objects.exists()
    assert (fresh(schedule).last_outcome, fresh(schedule).started_count) == ("completed", 1)
    assert fresh(schedule).next_run_at == NOW + seconds(86_400)
    steps: Any = Activity.objects.exclude(step_index=None)
    for index in (1, 2, 3):
        begun = min(activity.executed_at for activity in steps.filter(step_index=index))
        assert begun >= max(activity.finished_at for activity in steps.filter(step_index=index - 1))
