"""Chores, done once for all processes: what is old goes, what lives stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections

from activities.models import Activity, ActivityItem, OutputLine
from execution.loops import housekeeping
from execution.loops.housekeeping import keep_house
from execution.loops.invoker import invoke
from execution.models import Chore, Execution, Worker, WorkerTask
from schedules.generator import generate
from schedules.models import Occurrence
from tests.base import NOW, claim, enqueue, fresh, make_schedule, make_worker, run_until_idle, start, step

pytestmark = pytest.mark.django_db


def days(number: float) -> timedelta:
    return timedelta(days=number)


def ended(at: datetime, *steps: dict[str, Any]) -> Execution:
    """An execution that ran at this time, and is accounted."""
    execution = start(*(steps or [step("a", 0, "talk")]), now=at)
    run_until_idle(now=at)
    invoke(at)
    return fresh(execution)


class TestOnceForAll:
    def test_the_first_who_asks_does_it_and_nobody_else_until_the_time_is_over(self) -> None:
        hour = timedelta(hours=1)
        assert Chore.objects.take("dishes", every=hour, now=NOW)
        assert not Chore.objects.take("dishes", every=hour, now=NOW)
        assert Chore.objects.take("laundry", every=hour, now=NOW)
        assert not Chore.objects.take("dishes", every=hour, now=NOW + hour * 0.99)
        assert Chore.objects.take("dishes", every=hour, now=NOW + hour)

    @pytest.mark.django_db(transaction=True)
    def test_of_many_who_ask_at_the_same_moment_one_does_it(self) -> None:
        def ask(_: int) -> bool:
            try:
                return Chore.objects.take("dishes", every=timedelta(hours=1), now=NOW)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(8) as workers:
            assert sorted(workers.map(ask, range(8))) == [False] * 7 + [True]

    def test_a_chore_goes_on_in_small_batches_and_one_that_fails_stops_no_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = [housekeeping.BATCH, housekeeping.BATCH, 3, 0]
        monkeypatch.setattr(housekeeping, "duties", [])
        housekeeping.register("broken", every=timedelta(hours=1), once=lambda now: 1 // 0)
        housekeeping.register("eat", every=timedelta(hours=1), once=lambda now: left.pop(0))
        while keep_house(NOW):
            pass
        assert left == [0]


class TestHistory:
    def test_executions_go_with_all_that_belongs_to_them_after_90_days_and_younger_ones_stay(self) -> None:
        """A chain of retries goes as a whole."""
        old = ended(NOW, step("a", 0, "talk"), step("b", 0, "fail", max_retries=2, retry_seconds=0))
        young = ended(NOW + days(60), step())
        assert Activity.objects.filter(parent=old.activity_id).count() == 4
        keep_house(NOW + days(90))
        assert Execution.objects.filter(pk=old.pk).exists()
        keep_house(NOW + days(91))
        assert list(Execution.objects.all()) == [young]
        runs = Activity.objects.filter(operation=Activity.RUN).values_list("pk", "parent")
        assert {parent or pk for pk, parent in runs} == {young.activity_id}
        assert not OutputLine.objects.exists()
        assert not ActivityItem.objects.exists()
        assert old.schedule is not None
        assert fresh(old.schedule).started_count == 1

    def test_what_still_runs_stays_however_old(self) -> None:
        running = start(step("a"), step("b", 1))
        worker = make_worker()
        claim(worker)
        keep_house(NOW + days(1_000))
        assert fresh(running).status == Execution.Status.IN_PROGRESS
        assert WorkerTask.objects.count() == Activity.objects.filter(parent=running.activity_id).count() == 2

    def test_what_nobody_has_accounted_yet_stays(self) -> None:
        execution = start()
        run_until_idle()
        keep_house(NOW + days(1_000))
        assert Execution.objects.filter(pk=execution.pk).exists()

    def test_jobs_without_an_execution_go_too(self, settings: Any) -> None:
        settings.JIM_RETENTION_DAYS = 7
        _, open_ = enqueue(step("done"), step("open") | {"available_at": NOW + days(1)})
        run_until_idle()
        keep_house(NOW + days(8))
        assert list(Activity.objects.all()) == [open_.activity]
        assert WorkerTask.objects.get() == open_


class TestItems:
    @pytest.fixture
    def activity(self) -> Activity:
        """An administrative record, which is kept much longer than its items."""
        make_schedule()
        return Activity.objects.get(operation="create")

    @staticmethod
    def add(activity: Activity, count: int, *, at: datetime) -> None:
        fields: dict[str, Any] = {"activity": activity, "name": "x", "outcome": "ok", "created_at": at}
        ActivityItem.objects.bulk_create(ActivityItem(**fields) for _ in range(count))

    def test_they_go_after_90_days_and_younger_ones_stay(self, activity: Activity) -> None:
        self.add(activity, 2, at=NOW)
        self.add(activity, 3, at=NOW + days(60))
        keep_house(NOW + days(90))
        assert ActivityItem.objects.count() == 5
        keep_house(NOW + days(91))
        assert set(ActivityItem.objects.values_list("created_at", flat=True)) == {NOW + days(60)}
        assert list(Activity.objects.all()) == [activity]

    def test_millions_of_them_go_in_portions(
        self, activity: Activity, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(housekeeping, "ITEMS_AT_ONCE", 600)
        self.add(activity, 1_500, at=NOW)
        left = []
        while keep_house(NOW + days(91)):
            left.append(ActivityItem.objects.count())
        assert (left, ActivityItem.objects.count()) == ([900, 300], 0)

    def test_they_go_before_their_activities(self) -> None:
        """To delete an activity together with millions of items would take too long."""
        names = [duty.name for duty in housekeeping.duties]
        assert names.index("items") + 1 == names.index("history")


def test_settled_occurrences_go_after_90_days_and_pending_ones_stay() -> None:
    make_schedule(spec={"cron": ["* * * * *"]})
    make_schedule(spec={"cron": ["* * * * *"]}, paused=True)
    generate(NOW + timedelta(minutes=3))
    invoke(NOW + timedelta(minutes=3))
    keep_house(NOW + days(91))
    assert set(Occurrence.objects.values_list("status", flat=True)) == {"started", "pending"}
    run_until_idle(now=NOW + days(91))
    invoke(NOW + days(91))
    keep_house(NOW + days(182))
    assert list(Occurrence.objects.values_list("status", flat=True)) == ["pending"] * 3


class TestTheRest:
    def test_administrative_records_stay_ten_years(self) -> None:
        make_schedule()
        keep_house(NOW + days(3_649))
        assert Activity.objects.filter(operation="create").exists()
        keep_house(NOW + days(3_651))
        assert not Activity.objects.exists()

    def test_ended_workers_go_after_a_day_unless_their_tasks_are_not_recovered_yet(self) -> None:
        gone, dead, living, holder = (make_worker() for _ in range(4))
        start()
        claim(holder)
        gone.stop(NOW)
        Worker.objects.filter(pk__in=[dead.pk, holder.pk]).bury(now=NOW)
        keep_house(NOW + days(0.9))
        assert Worker.objects.count() == 4
        keep_house(NOW + days(1.5))
        assert set(Worker.objects.all()) == {living, holder}
