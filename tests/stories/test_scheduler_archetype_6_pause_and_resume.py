"""Schedule states: running, paused, closed; and what becomes of times that nobody could start."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.models import Execution
from execution.scheduler import is_due, next_due, tick
from schedules.generator import generate
from schedules.models import Refused, Schedule
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, run_until_idle, start, step
from tests.timeline import Timeline, counters, ledger, minute, minutes

pytestmark = pytest.mark.django_db
EVERY_FIVE = {"every": ["5m"]}
HOURLY = {"every": ["1h"]}
TWO_HOURS = 2 * 60
POLICIES = ("skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all")


class TestPaused:
    def test_the_generator_goes_on_and_the_invoker_starts_nothing(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        timeline = Timeline()
        timeline.pass_to(7)
        pause(schedule, at=7, note="audit")
        timeline.pass_to(20)
        assert ledger(schedule) == {5: "started 5, completed 7", 10: "pending", 15: "pending", 20: "pending"}
        assert fresh(schedule).next_run_at == minutes(25)

    def test_running_executions_go_on_to_their_end(self) -> None:
        execution = start(step("a"), step("b", 1))
        assert execution.schedule is not None
        pause(execution.schedule, at=1)
        assert run_until_idle(now=minutes(2)) == ["a", "b"]
        assert fresh(execution).status == "completed"
        tick(minutes(3))
        assert fresh(execution.schedule).last_outcome == "completed"

    def test_what_waited_for_a_running_execution_goes_on_waiting(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all")
        timeline = Timeline([6])
        timeline.pass_to(10)
        pause(schedule, at=10)
        timeline.pass_to(14)
        assert ledger(schedule) == {5: "started 5, completed 11", 10: "pending: overlap"}
        resume(schedule, at=14)
        timeline.settle()
        assert ledger(schedule)[10] == "started 14"

    @pytest.mark.parametrize("overlap", POLICIES)
    def test_no_policy_starts_or_stops_anything(self, overlap: str) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap=overlap)
        timeline = Timeline([7])
        timeline.pass_to(6)
        pause(schedule, at=6)
        timeline.pass_to(15)
        assert ledger(schedule)[5] == "started 5, completed 12"
        assert Execution.objects.count() == 1

    def test_one_that_is_planned_a_little_later_because_of_its_jitter_waits_too(self) -> None:
        schedule = make_schedule(spec=HOURLY | {"jitter": "30m"}, name="Spread")
        tick(minutes(60))
        pause(schedule, at=60)
        assert next_due(minutes(60)) == minutes(120)
        tick(minutes(95))
        assert ledger(schedule) == {60: "pending"}

    def test_nobody_keeps_looking_at_what_waits(self) -> None:
        schedule = make_schedule(spec=HOURLY, overlap="buffer_all")
        generate(minutes(60))
        assert is_due(minutes(60))
        pause(schedule, at=60)
        assert not is_due(minutes(61))
        tick(minutes(120))
        assert not is_due(minutes(121))

    def test_it_can_still_be_described_and_updated(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        pause(schedule, note="audit")
        tick(minutes(10))
        schedule.edit(token=2, initiator=SOMEBODY, now=minutes(11), changes={"spec": HOURLY})
        tick(minutes(60))
        after = fresh(schedule)
        assert (after.status, after.pause_note, after.token) == ("paused", "audit", 3)
        assert ledger(schedule) == {5: "pending", 10: "pending", 60: "pending"}

    def test_a_note_says_why_and_who_and_when_is_on_record(self) -> None:
        schedule = make_schedule()
        pause(schedule, at=3, note="audit until Friday")
        assert (fresh(schedule).pause_note, fresh(schedule).paused_at) == ("audit until Friday", minutes(3))
        record = Activity.objects.get(operation="pause")
        assert (record.initiator_name, record.message) == ("ada", "audit until Friday")

    def test_a_note_that_is_too_long_or_an_end_in_the_past_is_refused_by_name(self) -> None:
        schedule = make_schedule()
        for field, asked in (("note", {"note": "x" * 1001}), ("until", {"until": 5})):
            with pytest.raises(ValidationError) as refused:
                pause(schedule, at=5, **asked)
            assert set(refused.value.message_dict) == {field}
        assert fresh(schedule).status == "running"


class TestResume:
    def test_one_that_is_not_paused_cannot_be_resumed(self) -> None:
        schedule = make_schedule()
        before = everything()
        with pytest.raises(Refused, match="not paused"):
            resume(schedule, at=1)
        assert everything() == before

    @pytest.mark.parametrize(
        ("overlap", "told"),
        [
            ("skip", {20: "started 62", 25: "skipped: overlap", 60: "skipped: overlap"}),
            ("buffer_one", {20: "started 62", 25: "skipped: superseded", 60: "pending: overlap"}),
            ("buffer_all", {20: "started 62", 25: "pending: overlap", 60: "pending: overlap"}),
            ("cancel_other", {20: "skipped: superseded", 25: "skipped: superseded", 60: "started 62"}),
            ("terminate_other", {20: "skipped: superseded", 25: "skipped: superseded", 60: "started 62"}),
            ("allow_all", {20: "started 62", 25: "started 62", 60: "started 62"}),
        ],
    )
    def test_what_piled_up_settles_by_catch_up_window_and_overlap_policy(
        self, overlap: str, told: dict[int, str]
    ) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap=overlap, catch_up_seconds=45 * 60)
        pause(schedule)
        tick(minutes(61))
        resume(schedule, at=62)
        tick(minutes(62))
        fates = ledger(schedule)
        assert list(fates) == list(range(5, 65, 5))
        assert {at: fates[at] for at in (5, 10, 15)} == dict.fromkeys(
            (5, 10, 15), "missed: later than the catch-up window"
        )
        assert {at: fates[at] for at in told} == told

    def test_the_window_is_measured_at_the_resume_and_never_again(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all", catch_up_seconds=600)
        pause(schedule)
        tick(minutes(20))
        resume(schedule, at=21)
        tick(minutes(120))  # nobody was there to look at them sooner
        fates = ledger(schedule)
        missed = "missed: later than the catch-up window"
        assert [fates[5], fates[10], fates[15], fates[20]] == [
            missed,
            missed,
            "started 120",
            "pending: overlap",
        ]
        assert fates[25] == missed

    def test_without_catch_up_everything_is_discarded_and_counted(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="allow_all")
        pause(schedule)
        tick(minutes(12))
        resume(schedule, at=22, discard=True)
        tick(minutes(25))
        discarded = dict.fromkeys((5, 10, 15, 20), "skipped: discarded")
        assert ledger(schedule) == discarded | {25: "started 25"}
        assert counters(schedule) == {"started": 1, "skipped": {"discarded": 4}}

    def test_pausing_and_resuming_between_the_nominal_and_the_planned_time_loses_nothing(self) -> None:
        schedule = make_schedule(spec=HOURLY | {"jitter": "30m"}, name="Spread", catch_up_seconds=0)
        tick(minutes(60))
        planned = schedule.occurrences.get().planned_at
        pause(schedule, at=60)
        resume(schedule, at=60.1)
        assert planned > minutes(60.1)
        tick(minutes(60.1))
        assert ledger(schedule) == {60: "pending"}
        tick(planned)
        assert Execution.objects.get().started_at == planned

    def test_pausing_twice_in_a_row_and_resuming_once(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        pause(schedule, at=1, note="first")
        tick(minutes(5))
        pause(schedule, at=6, note="second")
        assert fresh(schedule).pause_note == "second"
        resume(schedule, at=7)
        tick(minutes(7))
        assert (fresh(schedule).pause_note, ledger(schedule)) == ("", {5: "started 7"})


class TestSnooze:
    def test_it_resumes_by_itself_with_catch_up(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all", catch_up_seconds=None)
        pause(schedule, until=12, note="release")
        assert next_due(minutes(11)) == minutes(12)
        timeline = Timeline()
        timeline.pass_to(11)
        assert (fresh(schedule).status, ledger(schedule)) == ("paused", {5: "pending", 10: "pending"})
        timeline.pass_to(16)
        assert ledger(schedule) == {
            5: "started 12, completed 14",
            10: "started 14, completed 16",
            15: "started 16",
        }
        after = fresh(schedule)
        assert (after.status, after.paused_until, after.pause_note) == ("running", None, "")
        record = Activity.objects.get(operation="resume")
        assert (record.initiator_type, record.initiator_name) == ("system", "snooze")

    @pytest.mark.parametrize("verb", ["resume", "close"])
    def test_resuming_or_closing_sooner_ends_it(self, verb: str) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        pause(schedule, until=60)
        getattr(schedule, verb)(initiator=SOMEBODY, now=minutes(7))
        if verb == "resume":
            pause(schedule, at=8)
        tick(minutes(61))
        assert fresh(schedule).status == ("paused" if verb == "resume" else "closed")


class TestCatchUpAfterDowntime:
    """Nobody ticks for two hours: 24 times of an interval of five minutes."""

    EVERY_TIME = tuple(range(5, TWO_HOURS + 1, 5))

    def two_hours_later(self, window: int | None, overlap: str = "skip") -> Schedule:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=window, overlap=overlap)
        tick(minutes(TWO_HOURS))
        assert tuple(ledger(schedule)) == self.EVERY_TIME
        assert Counter(o.key for o in schedule.occurrences.all()).most_common(1)[0][1] == 1
        return schedule

    @pytest.mark.parametrize("overlap", POLICIES)
    @pytest.mark.parametrize(
        ("window", "missed"), [(0, 23), (3600, 11), (None, 0)], ids=["window 0", "an hour", "no window"]
    )
    def test_what_is_inside_the_window_is_settled_by_the_policy(
        self, window: int | None, missed: int, overlap: str
    ) -> None:
        schedule = self.two_hours_later(window, overlap)
        inside = list(self.EVERY_TIME[missed:])
        first, last = inside[:1], inside[-1:]
        starts, waiting = {
            "skip": (first, []),
            "buffer_one": (first, last if last != first else []),
            "buffer_all": (first, inside[1:]),
            "cancel_other": (last, []),
            "terminate_other": (last, []),
            "allow_all": (inside, []),
        }[overlap]
        assert started(schedule) == starts
        pending = schedule.occurrences.pending().order_by("nominal_at")
        assert [minute(o.nominal_at) for o in pending] == waiting
        counted = counters(schedule)
        assert (counted["started"], counted.get("missed", 0)) == (len(starts), missed)
        reason = "overlap" if overlap == "skip" else "superseded"
        others = len(inside) - len(starts) - len(waiting)
        assert counted.get("skipped", {}) == ({reason: others} if others else {})

    def test_ten_seconds_late_is_on_time_without_any_window(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=0)
        tick(minutes(5) + timedelta(seconds=10))
        run_until_idle(now=minutes(6))
        tick(minutes(10) + timedelta(seconds=11))
        assert [fate.split(":")[0] for fate in ledger(schedule).values()] == [
            "started 5, completed 6",
            "missed",
        ]

    def test_a_second_tick_changes_nothing(self) -> None:
        self.two_hours_later(3600)
        before = everything()
        tick(minutes(TWO_HOURS))
        assert everything() == before

    def test_down_and_paused_together(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=3600, overlap="allow_all")
        pause(schedule, at=2)
        resume(schedule, at=TWO_HOURS)
        tick(minutes(TWO_HOURS))
        assert tuple(ledger(schedule)) == self.EVERY_TIME
        assert started(schedule) == list(range(60, 121, 5))

    def test_what_came_while_paused_is_measured_at_the_resume_though_the_scheduler_was_down(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=600, overlap="allow_all")
        pause(schedule, at=2)
        resume(schedule, at=32)
        tick(minutes(TWO_HOURS))
        assert started(schedule) == [25, 30, 110, 115, 120]


class TestClosed:
    def test_nothing_is_generated_or_executed_any_more(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        pause(schedule)
        tick(minutes(7))
        schedule.close(initiator=SOMEBODY, now=minutes(12))
        tick(minutes(60))
        assert ledger(schedule) == {5: "cancelled: closed", 10: "cancelled: closed"}
        assert fresh(schedule).next_run_at is None
        assert not Execution.objects.exists()

    def test_running_executions_go_on_and_are_counted(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        timeline = Timeline([20])
        timeline.pass_to(6)
        schedule.close(initiator=SOMEBODY, now=minutes(7))
        timeline.pass_to(30)
        assert ledger(schedule) == {5: "started 5, completed 25"}
        assert (fresh(schedule).status, fresh(schedule).last_outcome) == ("closed", "completed")

    def test_history_and_name_stay_and_the_name_is_free(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, name="Nightly")
        Timeline().pass_to(6)
        schedule.close(initiator=SOMEBODY, now=minutes(7))
        again = make_schedule(name="Nightly")
        assert (fresh(schedule).name, len(ledger(schedule)), ledger(again)) == ("Nightly", 1, {})


class TestAll:
    def test_all_that_run_are_paused_with_one_note(self) -> None:
        schedules = [make_schedule(spec=EVERY_FIVE) for _ in range(3)]
        assert Schedule.objects.pause_all(initiator=SOMEBODY, now=NOW, note="power cut") == 3
        tick(minutes(5))
        assert {(fresh(s).status, fresh(s).pause_note) for s in schedules} == {("paused", "power cut")}
        assert not Execution.objects.exists()

    def test_only_those_paused_together_are_resumed_together(self) -> None:
        before, together, apart, closed = (make_schedule(spec=EVERY_FIVE) for _ in range(4))
        pause(before, note="for a reason of its own")
        closed.close(initiator=SOMEBODY, now=NOW)
        assert Schedule.objects.pause_all(initiator=SOMEBODY, now=minutes(1)) == 2
        pause(apart, at=2, note="keep this one")
        assert Schedule.objects.resume_all(initiator=SOMEBODY, now=minutes(3)) == 1
        assert [fresh(s).status for s in (before, together, apart, closed)] == [
            "paused",
            "running",
            "paused",
            "closed",
        ]
        assert fresh(before).pause_note == "for a reason of its own"

    def test_one_that_was_resumed_and_paused_by_itself_meanwhile_stays_paused(self) -> None:
        schedule = make_schedule()
        Schedule.objects.pause_all(initiator=SOMEBODY, now=NOW)
        resume(schedule, at=1)
        pause(schedule, at=2)
        assert Schedule.objects.resume_all(initiator=SOMEBODY, now=minutes(3)) == 0
        assert fresh(schedule).status == "paused"

    def test_a_selection_may_be_paused_and_resumed(self) -> None:
        finance, other = make_schedule(tags=["finance"]), make_schedule()
        assert Schedule.objects.tagged("finance").pause_all(initiator=SOMEBODY, now=NOW) == 1
        assert [fresh(finance).status, fresh(other).status] == ["paused", "running"]
        assert Schedule.objects.tagged("finance").resume_all(initiator=SOMEBODY, now=minutes(1)) == 1

    @pytest.mark.parametrize(("discard", "fate"), [(False, "started 6"), (True, "skipped: discarded")])
    def test_with_and_without_catch_up(self, discard: bool, fate: str) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        Schedule.objects.pause_all(initiator=SOMEBODY, now=NOW)
        generate(minutes(5))
        Schedule.objects.resume_all(initiator=SOMEBODY, now=minutes(6), discard=discard)
        tick(minutes(6))
        assert ledger(schedule) == {5: fate}


def pause(schedule: Schedule, *, at: float = 0, note: str = "", until: float | None = None) -> None:
    end = None if until is None else minutes(until)
    schedule.pause(initiator=SOMEBODY, now=minutes(at), note=note, until=end)


def resume(schedule: Schedule, *, at: float, discard: bool = False) -> None:
    schedule.resume(initiator=SOMEBODY, now=minutes(at), discard=discard)


def started(schedule: Schedule) -> list[int]:
    """The nominal times that were started, in minutes."""
    rows = schedule.occurrences.filter(status="started").order_by("nominal_at")
    return [minute(occurrence.nominal_at) for occurrence in rows]
