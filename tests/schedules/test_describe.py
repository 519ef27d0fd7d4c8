"""All about a schedule at a glance, in a handful of statements."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings

from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
from execution.models import Execution
from schedules.description import Description
from schedules.generator import generate
from schedules.models import Backfill, Schedule
from tests.base import NOW, SOMEBODY, claim, fresh, make_schedule, make_worker, run_until_idle, seconds, step

pytestmark = pytest.mark.django_db
HOURLY = {"cron": ["0 * * * *"]}


def hours(number: float) -> datetime:
    return NOW + seconds(3600 * number)


def describe(schedule: Schedule, *, now: datetime = NOW) -> Description:
    return fresh(schedule).describe(now=now)


def pass_time(*, to: datetime, since: datetime = NOW, work: bool = True) -> None:
    """The scheduler comes by every hour, and a worker a minute later."""
    while since < to:
        since += seconds(3600)
        generate(since)
        invoke(since)
        if work:
            run_until_idle(now=since + seconds(60))


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"spec": HOURLY}, "active"),
        ({"spec": HOURLY, "paused": True}, "paused"),
        ({"spec": {}}, "by hand"),
        ({"spec": HOURLY, "remaining": 0}, "ended"),
        ({"spec": {"at": ["2026-11-16T04:00:00Z"]}}, "active"),
    ],
)
def test_its_state_as_people_see_it(fields: dict[str, Any], state: str) -> None:
    schedule = make_schedule(**fields)
    assert describe(schedule).state == state
    if "at" in fields["spec"]:
        generate(hours(1))
        assert describe(schedule).state == "ended"
    schedule.close(initiator=SOMEBODY, now=NOW)
    assert (describe(schedule).state, describe(schedule).upcoming) == ("closed", [])


def test_a_broken_one() -> None:
    schedule = make_schedule(spec=HOURLY)
    Schedule.objects.update(spec={"cron": ["0 0 * *"]})
    assert describe(schedule).state == "broken"
    generate(hours(1))
    described = describe(schedule, now=hours(1))
    assert (described.state, described.upcoming) == ("broken", [])
    assert "expected 5 fields" in described.spec_error
    assert described.sentence.startswith("Invalid spec: ")


def test_what_somebody_wrote_and_who_paused_it() -> None:
    spec = {"cron": ["0 9 * * mon-fri"], "time_zone": "Europe/London"}
    schedule = make_schedule(name="Nightly", spec=spec, tags=["finance"], memo={"owner": "Ada"})
    described = describe(schedule)
    assert (described.name, described.token, described.tags) == ("Nightly", 1, ["finance"])
    assert (described.memo, described.pause) == ({"owner": "Ada"}, None)
    assert (described.sentence, described.time_zone) == (schedule.spec_in_words, "Europe/London")
    assert (described.is_overdue, describe(schedule, now=hours(7)).is_overdue) == (False, True)
    schedule.pause(initiator=SOMEBODY, now=hours(1), until=hours(5), note="moving")
    pause = describe(schedule).pause
    assert pause is not None
    assert (pause.by, pause.since, pause.until, pause.note) == ("ada", hours(1), hours(5), "moving")


class TestExecutions:
    def test_what_started_what_did_not_and_why(self) -> None:
        failing = step("work", 0, "fail")
        schedule = make_schedule(failing, spec=HOURLY, catch_up_seconds=3600, failures_among=3)
        pass_time(to=hours(2))
        fresh(schedule).skip_next(initiator=SOMEBODY, now=hours(2))
        pass_time(since=hours(2), to=hours(5), work=False)
        generate(hours(8))
        invoke(hours(8))
        counters = describe(schedule, now=hours(8)).counters
        assert (counters.started, counters.skipped, counters.missed, counters.dropped) == (3, 4, 1, 0)
        assert counters.skipped_by_reason == {"on request": 1, "overlap": 3}
        assert (counters.failed, counters.failures_in_a_row) == (2, 2)
        assert (counters.failures_recently, counters.failures_among) == (2, 3)
        assert (counters.buffered, counters.remaining) == (0, None)

    def test_what_runs(self) -> None:
        schedule = make_schedule(spec=HOURLY, overlap="allow_all", deadline_seconds=3600)
        pass_time(to=hours(2), work=False)
        first, second = Execution.objects.order_by("pk")
        claim(make_worker(hours(2)), now=hours(2))
        first.cancel(initiator=SOMEBODY, now=hours(2))
        running = describe(schedule, now=hours(2.5)).running
        assert [(run.id, run.nominal_at, run.since) for run in running] == [
            (first.pk, hours(1), hours(1)),
            (second.pk, hours(2), hours(2)),
        ]
        assert [(run.is_late, run.is_cancelling) for run in running] == [(True, True), (False, False)]
        assert describe(schedule).results == []

    def test_the_last_ten_results_the_newest_first(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        pass_time(to=hours(12))
        results = describe(schedule, now=hours(12)).results
        assert [result.nominal_at for result in results] == [hours(n) for n in range(12, 2, -1)]
        assert {(each.outcome, each.duration) for each in results} == {("completed", timedelta(minutes=1))}

    def test_a_failure_says_why_and_the_last_result_stays(self) -> None:
        schedule = make_schedule(step("work", 0, "result"), spec=HOURLY)
        pass_time(to=hours(1))
        failing = [step("work", 0, "fail", kwargs={"message": "no disk"})]
        current = fresh(schedule)
        current.edit(token=current.token, initiator=SOMEBODY, now=hours(1.5), changes={}, steps=failing)
        trigger(fresh(schedule), initiator=SOMEBODY, now=hours(2))
        run_until_idle(now=hours(2))
        invoke(hours(2.5))
        described = describe(schedule, now=hours(2.5))
        results = [(each.outcome, each.source) for each in described.results]
        assert results == [("failed", "manual"), ("completed", "auto")]
        assert "no disk" in described.results[0].error
        assert "no disk" in described.last_failure
        assert (described.last_result, described.last_outcome) == (42, "failed")
        assert described.last_run_at == hours(2)


def test_the_next_ten_times_with_local_time_and_jitter() -> None:
    schedule = make_schedule(spec=HOURLY | {"time_zone": "America/New_York", "jitter": "10m"})
    upcoming = describe(schedule).upcoming
    assert [row.at for row in upcoming] == [hours(n) for n in range(1, 11)]
    assert upcoming[0].local.isoformat() == "2026-11-15T23:00:00-05:00"
    due = [schedule.compiled_spec.due_at(row.at, schedule.name) for row in upcoming]
    assert [row.due_at for row in upcoming] == due
    schedule.skip_next(initiator=SOMEBODY, now=NOW)
    assert [row.at for row in describe(schedule).upcoming] == [hours(n) for n in range(2, 12)]


def test_not_more_times_than_there_are_runs_left() -> None:
    schedule = make_schedule(spec=HOURLY, remaining=3)
    schedule.skip_next(initiator=SOMEBODY, now=NOW)
    times = [row.at for row in describe(schedule).upcoming]
    assert times == schedule.next_times(10, now=NOW) == [hours(n) for n in (2, 3, 4)]
    assert describe(make_schedule(spec=HOURLY, remaining=0)).upcoming == []


class TestBackfills:
    def ask(self, schedule: Schedule, **fields: Any) -> Backfill:
        return Backfill.objects.ask(
            schedule, start_at=hours(1), end_at=hours(10), initiator=SOMEBODY, now=hours(20), **fields
        )

    def test_open_ones_and_how_far_they_are(self, settings: LazySettings) -> None:
        settings.JIM_BACKFILL_SLICE = 4
        schedule = make_schedule(spec=HOURLY, paused=True, remaining=7)
        asked = self.ask(schedule, overlap="allow_all")
        assert asked.generate(hours(20)) == 4
        described = describe(schedule, now=hours(20))
        (progress,) = described.backfills
        assert (progress.id, progress.start_at, progress.end_at) == (asked.pk, hours(1), hours(10))
        assert (progress.which, progress.overlap, progress.by) == ("missing", "allow_all", "ada")
        assert (progress.total, progress.passed, progress.added, progress.waiting) == (10, 4, 4, 4)
        assert (described.counters.buffered, described.counters.remaining) == (4, 7)

    def test_one_whose_last_times_still_wait_is_not_over_yet(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        asked = self.ask(schedule)
        while asked.generate(hours(20)):
            pass
        assert fresh(asked).status == "done"
        assert [progress.waiting for progress in describe(schedule, now=hours(20)).backfills] == [10]
        asked.cancel(initiator=SOMEBODY, now=hours(20))
        assert describe(schedule, now=hours(20)).backfills == []


def test_all_of_it_can_be_sent_as_json() -> None:
    schedule = make_schedule(spec=HOURLY | {"time_zone": "Europe/London"}, overlap="allow_all")
    pass_time(to=hours(1))
    pass_time(since=hours(1), to=hours(2), work=False)
    sent = json.loads(json.dumps(describe(schedule, now=hours(2)).as_json()))
    assert sent["name"] == schedule.name
    assert sent["results"][0]["nominal_at"] == "2026-11-16T04:00:00Z"
    assert sent["results"][0]["duration"] == 60
    assert sent["running"][0]["since"] == "2026-11-16T05:00:00Z"
    at = "2026-11-16T06:00:00"
    assert sent["upcoming"][0] == {"at": f"{at}Z", "local": f"{at}+00:00", "due_at": f"{at}Z", "note": ""}
    assert sent["counters"]["started"] == 2


def test_it_takes_as_many_statements_however_much_there_is(django_assert_num_queries: Any) -> None:
    empty, full = make_schedule(spec=HOURLY), make_schedule(spec=HOURLY, overlap="allow_all")
    for _ in range(12):
        trigger(full, initiator=SOMEBODY, now=NOW)
    run_until_idle(now=NOW)
    for _ in range(3):
        trigger(full, initiator=SOMEBODY, now=NOW)
    empty, full = fresh(empty), fresh(full)
    for schedule in (empty, full):
        with django_assert_num_queries(4):
            schedule.describe(now=NOW)
    full.pause(initiator=SOMEBODY, now=NOW)
    with django_assert_num_queries(5):
        full.describe(now=NOW)
