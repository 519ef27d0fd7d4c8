"""Limits and beginnings: runs left, times left out, timeouts, failures, buffers, tags."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import next_due, tick
from execution.models import Execution, WorkerTask
from schedules.models import Refused, Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    everything,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    start,
)
from tests.timeline import Timeline, counters, ledger, minutes

pytestmark = pytest.mark.django_db
EVERY_FIVE = {"every": ["5m"]}
SPREAD = {"every": ["1h"], "jitter": "30m"}


class TestRunsLeft:
    def test_each_automatic_start_uses_one_up_until_there_are_no_more_or_more_are_given(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, remaining=1)
        trigger(schedule, initiator=SOMEBODY, now=minutes(1))
        run_until_idle(now=minutes(1))
        assert fresh(schedule).remaining == 1, "manual runs use none up"
        timeline = Timeline()
        timeline.pass_to(10)
        assert trigger(schedule, initiator=SOMEBODY, now=minutes(11)).status == "started"
        assert fresh(schedule).remaining == 0
        edit(schedule, at=14, remaining=1)
        timeline.pass_to(15)
        assert ledger(schedule) == {
            5: "started 5, completed 7",
            10: "skipped: no runs left",
            15: "started 15",
        }
        assert counters(schedule) == {"started": 4, "skipped": {"no runs left": 1}}

    def test_what_is_skipped_missed_or_left_out_uses_none_up(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, remaining=3, catch_up_seconds=0)
        skip_next(schedule)
        Timeline([7]).pass_to(15)
        tick(minutes(27))
        fates = [fate.partition(":")[0] for fate in ledger(schedule).values()]
        assert fates == ["skipped", "started 10", "skipped", "missed", "missed"]
        assert fresh(schedule).remaining == 2

    def test_the_next_times_are_no_more_than_are_left(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, remaining=2)
        assert schedule.next_times(10, now=NOW) == [minutes(5), minutes(10)]
        skip_next(schedule)
        assert schedule.next_times(10, now=NOW) == [minutes(10), minutes(15)]


class TestSkipNext:
    def test_the_next_time_is_recorded_as_skipped_when_it_comes_unless_it_was_taken_back(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        first, second = skip_next(schedule), skip_next(schedule)
        assert (first, second) == (minutes(5), minutes(10))
        schedule.unskip(first, initiator=SOMEBODY, now=NOW)
        assert schedule.next_times(2, now=NOW) == [first, minutes(15)]
        with pytest.raises(Refused, match=r"at Mon 2026-11-16 03:05:00 UTC is not marked to be skipped"):
            schedule.unskip(first, initiator=SOMEBODY, now=NOW)
        Timeline().pass_to(10)
        assert ledger(schedule) == {5: "started 5, completed 7", 10: "skipped: on request from ada"}
        assert counters(schedule) == {"started": 1, "skipped": {"on request": 1}}
        assert fresh(schedule).skips == {}
        with pytest.raises(Refused, match="has already passed"):
            schedule.unskip(second, initiator=SOMEBODY, now=minutes(11))
        records = Activity.objects.filter(operation__in=["skip", "unskip"]).order_by("pk")
        assert [(r.operation, r.initiator_name, r.details) for r in records] == [
            (verb, "ada", {"at": f"{at:%Y-%m-%dT%H:%M:%SZ}"})
            for verb, at in (("skip", first), ("skip", second), ("unskip", first))
        ]

    def test_one_that_has_come_but_waits_for_its_jitter_is_the_next(self) -> None:
        schedule = make_schedule(spec=SPREAD, name="Spread")
        tick(minutes(60))
        assert schedule.occurrences.get().planned_at > minutes(60)
        assert skip_next(schedule, at=60) == minutes(60)
        assert ledger(schedule) == {60: "skipped: on request from ada"}
        assert counters(schedule) == {"skipped": {"on request": 1}}
        assert skip_next(schedule, at=60) == minutes(120)

    def test_one_whose_time_has_come_is_not_the_next_even_if_nobody_has_looked_at_it_yet(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        assert skip_next(schedule, at=6) == minutes(10)
        tick(minutes(6))
        assert ledger(schedule) == {5: "started 6"}

    def test_also_while_paused(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="allow_all", paused=True)
        skip_next(schedule)
        tick(minutes(10))
        schedule.resume(initiator=SOMEBODY, now=minutes(11))
        tick(minutes(11))
        assert ledger(schedule) == {5: "skipped: on request from ada", 10: "started 11"}

    def test_one_that_is_left_out_because_of_an_old_spec_does_not_outlive_it(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        skip_next(schedule)
        edit(schedule, at=1, spec={"every": ["7m"]})
        tick(minutes(30))
        assert fresh(schedule).skips == {}
        assert all("request" not in fate for fate in ledger(schedule).values())

    @pytest.mark.parametrize("spec", [{}, {"at": [minutes(5).isoformat()]}], ids=["by hand", "ended"])
    def test_without_a_next_time_there_is_nothing_to_skip(self, spec: dict[str, Any]) -> None:
        schedule = make_schedule(spec=spec)
        tick(minutes(5))
        before = everything()
        with pytest.raises(Refused, match="no upcoming run"):
            skip_next(schedule, at=6)
        assert everything() == before


class TestBeginnings:
    @pytest.mark.parametrize("paused", [False, True])
    def test_created_with_a_first_run_even_if_it_is_paused_with_a_note(self, paused: bool) -> None:
        note = "until the contract is signed" if paused else ""
        schedule = make_schedule(spec=EVERY_FIVE, paused=paused, note=note, run_at_once=True)
        assert (schedule.status, schedule.pause_note) == ("paused" if paused else "active", note)
        assert (schedule.paused_at, schedule.token) == (NOW if paused else None, 1)
        timeline = Timeline()
        timeline.settle()
        timeline.pass_to(5)
        assert ledger(schedule, source="manual") == {0: "started 0, completed 2"}
        assert ledger(schedule) == {5: "pending" if paused else "started 5"}

    def test_nothing_is_created_if_anything_is_wrong(self) -> None:
        refused({"note"}, spec=EVERY_FIVE, paused=True, note="x" * 1001, run_at_once=True)


class TestTimeout:
    def test_an_execution_that_takes_too_long_is_stopped_and_has_failed(self) -> None:
        """What waited for it starts after it."""
        schedule = make_schedule(spec=EVERY_FIVE, timeout_seconds=360, overlap="buffer_all")
        timeline = Timeline([60])
        timeline.pass_to(10)
        assert next_due(minutes(10)) == minutes(11)
        assert Execution.objects.get().state == "in_progress"
        timeline.pass_to(11)
        execution = Execution.objects.get()
        assert (execution.state, execution.cancel_reason) == ("cancelling", "Timed out after 6m.")
        timeline.pass_to(12)
        assert ledger(schedule) == {5: "started 5, failed 12", 10: "started 12"}
        assert fresh(execution).error == "Timed out after 6m."
        assert fresh(execution.activity).status == "failed_with_error"
        assert counters(schedule) == {"started": 2, "failed": 1}

    def test_what_has_not_begun_yet_ends_at_once(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, timeout_seconds=120)
        tick(minutes(5))
        tick(minutes(7))
        assert ledger(schedule) == {5: "started 5, failed 7"}
        assert not WorkerTask.objects.exists()

    def test_one_that_somebody_cancelled_before_stays_cancelled(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, timeout_seconds=120)
        timeline = Timeline([60])
        timeline.pass_to(6)
        Execution.objects.get().cancel(initiator=SOMEBODY, now=minutes(6.9))
        timeline.pass_to(9)
        assert ledger(schedule) == {5: "started 5, cancelled 7"}
        assert counters(schedule) == {"started": 1}

    def test_a_new_timeout_holds_for_new_executions(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, timeout_seconds=600)
        timeline = Timeline([60])
        timeline.pass_to(6)
        edit(schedule, at=6, timeout_seconds=60)
        timeline.pass_to(14)
        assert ledger(schedule)[5] == "started 5"

    def test_of_many_the_next_tick_stops_the_rest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        woken: list[str] = []
        monkeypatch.setattr("execution.loops.scheduler.TIMEOUTS_PER_TICK", 2)
        monkeypatch.setattr("execution.loops.scheduler.wake", woken.append)
        for _ in range(3):
            start(timeout_seconds=60)
        tick(minutes(2))
        assert (Execution.objects.overtime(minutes(2)).count(), woken) == (1, ["jim_schedules"])
        tick(minutes(2))
        assert (Execution.objects.overtime(minutes(2)).count(), woken) == (0, ["jim_schedules"])


class TestPauseOnFailure:
    """How many failures of how many it takes, and what the note says: in the tests of alerts."""

    def test_it_pauses_itself_and_what_is_due_in_the_same_moment_waits_already(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, pause_on_failure=True, overlap="buffer_all")
        worker = make_worker()
        tick(minutes(5))
        (task,) = claim(worker, now=minutes(5))
        tick(minutes(10))
        break_down(worker, task, now=minutes(15))
        tick(minutes(15))
        assert ledger(schedule) == {5: "started 5, failed 15", 10: "pending: overlap", 15: "pending"}
        assert fresh(schedule).status == "paused"
        record = Activity.objects.get(operation="pause")
        assert (record.initiator_type, record.initiator_name) == ("system", "pause on failure")

    def test_a_failure_that_ended_just_before_a_success_still_counts(self) -> None:
        fields: dict[str, Any] = {"pause_on_failure": True, "failures_to_pause": 2, "failures_among": 3}
        schedule = make_schedule(spec=EVERY_FIVE, overlap="allow_all", **fields)
        worker = make_worker()
        for at in (5, 10, 15):
            tick(minutes(at))
        first, second, third = sorted(claim(worker, now=minutes(15)), key=lambda task: task.execution_id or 0)
        break_down(worker, first, now=minutes(16))
        break_down(worker, second, now=minutes(17))
        end(worker, third, now=minutes(18))
        tick(minutes(19))
        assert (fresh(schedule).recent_outcomes, fresh(schedule).status) == ("cff", "paused")


class TestBuffer:
    """The setting JIM_BUFFER_LIMIT: how many occurrences of one schedule may wait."""

    def test_a_full_one_drops_its_oldest_automatic_occurrences_and_counts_them(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 3
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all")
        timeline = Timeline([28])
        timeline.pass_to(32)
        waiting = dict.fromkeys((20, 25, 30), "pending: overlap")
        dropped = dict.fromkeys((10, 15), "dropped: buffer full")
        assert ledger(schedule) == {5: "started 5"} | dropped | waiting
        assert counters(schedule) == {"started": 1, "dropped": 2}
        timeline.pass_to(33)
        assert ledger(schedule)[20] == "started 33"

    def test_what_a_pause_an_edit_or_a_resume_leaves_is_dropped_as_well(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 4
        schedule = make_schedule(spec=EVERY_FIVE, overlap="allow_all", paused=True)
        tick(minutes(20))
        edit(schedule, at=32, spec={"every": ["10m"]})
        assert schedule.occurrences.pending().count() == 4
        assert counters(schedule) == {"dropped": 2}
        schedule.resume(initiator=SOMEBODY, now=minutes(51))
        tick(minutes(51))
        assert list(ledger(schedule).values()) == ["dropped: buffer full"] * 4 + ["started 51"] * 4

    def test_manual_ones_are_never_dropped(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 3
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all")
        timeline = Timeline([60])
        timeline.pass_to(6)
        for at in range(6, 9):
            trigger(schedule, initiator=SOMEBODY, now=minutes(at))
        timeline.pass_to(16)
        assert ledger(schedule, source="manual") == dict.fromkeys((6, 7, 8), "pending: overlap")
        assert ledger(schedule) == {5: "started 5", 10: "dropped: buffer full", 15: "dropped: buffer full"}

    def test_no_more_manual_ones_are_taken_than_may_wait(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 2
        schedule = make_schedule(overlap="buffer_all")
        for at in range(3):
            trigger(schedule, initiator=SOMEBODY, now=minutes(at))
        with pytest.raises(Refused, match=r"2 runs of .* are already waiting, which is the maximum"):
            trigger(schedule, initiator=SOMEBODY, now=minutes(3))
        waiting = dict.fromkeys((1, 2), "pending: overlap")
        assert ledger(schedule, source="manual") == {0: "started 0"} | waiting
        trigger(schedule, initiator=SOMEBODY, now=minutes(4), overlap="allow_all")


class TestMinimumInterval:
    """The setting JIM_MINIMUM_INTERVAL_SECONDS: how close together the times of a schedule may be."""

    @pytest.mark.parametrize(
        "spec", [{"every": ["1m"]}, {"every": ["10m", {"every": "10m", "offset": "2m"}]}], ids=["one", "two"]
    )
    def test_closer_ones_are_refused(self, spec: dict[str, Any], settings: Any) -> None:
        settings.JIM_MINIMUM_INTERVAL_SECONDS = 300
        assert "at least 5m" in refused({"spec.every"}, spec=spec)
        assert make_schedule(spec=EVERY_FIVE).next_run_at == minutes(5)

    def test_one_that_was_there_before_goes_on_and_may_be_edited_otherwise(self, settings: Any) -> None:
        schedule = make_schedule(spec={"every": ["1m"]})
        settings.JIM_MINIMUM_INTERVAL_SECONDS = 300
        edit(schedule, at=0.5, description="still every minute")
        tick(minutes(1))
        assert ledger(schedule) == {1: "started 1"}


class TestTagsAndMemo:
    def test_tags_are_tidied_and_found(self) -> None:
        both = make_schedule(tags=["nightly", " finance ", "nightly", ""])
        one = make_schedule(tags=["finance"])
        assert both.tags == ["finance", "nightly"]
        assert set(Schedule.objects.tagged("finance")) == {both, one}
        assert list(Schedule.objects.tagged("finance", "nightly")) == [both]
        assert list(Schedule.objects.tagged("fin")) == []
        edit(both, tags=["nightly", "hr"])
        edit(both, description="nothing about tags")
        found = {tag: list(Schedule.objects.tagged(tag)) for tag in ("finance", "nightly", "hr")}
        assert found == {"finance": [one], "nightly": [both], "hr": [both]}

    @pytest.mark.parametrize("field", ["tags", "memo"])
    def test_what_is_wrong_is_refused_by_name(self, field: str) -> None:
        for value in WRONG[field]:
            refused({field}, **{field: value})


WRONG: dict[str, list[Any]] = {
    "tags": ["finance", [7], ["x" * 51], ["a,b"], ["a\nb"], [f"t{n}" for n in range(51)]],
    "memo": [
        ["owner"],
        {"owner": 7},
        {"": "Ada"},
        {"owner": "x" * 1001},
        {"owner": "a\x00b"},
        {"owner": "a\ud800b"},
        {"a\ud800b": ""},
        {f"n{n}": "" for n in range(51)},
    ],
}


def refused(fields: set[str], **asked: Any) -> str:
    """It is not created, because of these fields; what is said of them."""
    before = everything()
    with pytest.raises(ValidationError) as told:
        make_schedule(**asked)
    assert set(told.value.message_dict) == fields, asked
    assert everything() == before
    return str(told.value)


def edit(schedule: Schedule, *, at: float = 0, **changes: Any) -> None:
    schedule.edit(token=fresh(schedule).token, initiator=SOMEBODY, now=minutes(at), changes=changes)


def skip_next(schedule: Schedule, *, at: float = 0) -> datetime:
    return schedule.skip_next(initiator=SOMEBODY, now=minutes(at))
