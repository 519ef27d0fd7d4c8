"""Schedule states: running, paused, closed; and what becomes of times that nobody could start."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.loops.scheduler import next_due, tick
from execution.models import Execution
from schedules.generator import generate
from schedules.models import Refused, Schedule
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, run_until_idle
from tests.timeline import Timeline, counters, ledger, minute, minutes

pytestmark = pytest.mark.django_db
EVERY_FIVE = {"every": ["5m"]}
HOURLY = {"every": ["1h"]}
TWO_HOURS = 2 * 60
EVERY_TIME = tuple(range(5, TWO_HOURS + 1, 5))
POLICIES = ("skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all")


class TestPaused:
    def test_the_generator_goes_on_and_the_invoker_starts_nothing(self) -> None:
        """It can still be described and updated."""
        schedule = make_schedule(spec=EVERY_FIVE)
        timeline = Timeline()
        timeline.pass_to(7)
        pause(schedule, at=7, note="audit")
        timeline.pass_to(15)
        schedule.edit(token=2, initiator=SOMEBODY, now=minutes(16), changes={"spec": HOURLY})
        timeline.pass_to(60)
        waiting = dict.fromkeys((10, 15, 60), "pending")
        assert ledger(schedule) == {5: "started 5, completed 7"} | waiting
        after = fresh(schedule)
        assert (after.status, after.pause_note, after.paused_at) == ("paused", "audit", minutes(7))
        assert (after.token, after.next_run_at) == (3, minutes(120))

    @pytest.mark.parametrize("overlap", POLICIES)
    def test_no_policy_starts_or_stops_anything(self, overlap: str) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap=overlap)
        timeline = Timeline([7])
        timeline.pass_to(6)
        pause(schedule, at=6)
        timeline.pass_to(15)
        assert ledger(schedule) == {5: "started 5, completed 12", 10: "pending", 15: "pending"}

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

    def test_one_that_is_planned_a_little_later_because_of_its_jitter_waits_too(self) -> None:
        """Pausing and resuming between its nominal and its planned time loses nothing."""
        schedule = make_schedule(spec=HOURLY | {"jitter": "30m"}, name="Spread", catch_up_seconds=0)
        tick(minutes(60))
        planned = schedule.occurrences.get().planned_at
        pause(schedule, at=60)
        assert next_due(minutes(60)) == minutes(120)
        resume(schedule, at=60.1)
        assert planned > minutes(60.1)
        tick(minutes(60.1))
        assert ledger(schedule) == {60: "pending"}
        pause(schedule, at=60.2)
        tick(planned)
        assert ledger(schedule) == {60: "pending"}
        resume(schedule, at=60.3)
        tick(planned)
        assert Execution.objects.get().started_at == planned

    def test_a_note_that_is_too_long_or_an_end_in_the_past_is_refused_by_name(self) -> None:
        schedule = make_schedule()
        for field, asked in (("note", {"note": "x" * 1001}), ("until", {"until": 5})):
            with pytest.raises(ValidationError) as refused:
                pause(schedule, at=5, **asked)
            assert set(refused.value.message_dict) == {field}
        assert fresh(schedule).status == "active"


class TestResume:
    def test_one_that_is_not_paused_cannot_be_resumed(self) -> None:
        schedule = make_schedule()
        before = everything()
        with pytest.raises(Refused, match="not paused"):
            resume(schedule, at=1)
        assert everything() == before

    def test_the_window_is_measured_at_the_resume_and_never_again(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all", catch_up_seconds=600)
        pause(schedule)
        tick(minutes(20))
        resume(schedule, at=21)
        tick(minutes(120))  # nobody was there to look at them sooner
        fates = ledger(schedule)
        missed = "missed: later than the catch-up window"
        assert [fates[at] for at in (5, 10, 25)] == [missed] * 3
        assert (fates[15], fates[20]) == ("started 120", "pending: overlap")

    def test_also_if_the_scheduler_was_down_while_it_was_paused(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=600, overlap="allow_all")
        pause(schedule, at=2)
        resume(schedule, at=32)
        tick(minutes(TWO_HOURS))
        assert tuple(ledger(schedule)) == EVERY_TIME
        assert started(schedule) == [25, 30, 110, 115, 120]

    def test_without_catch_up_everything_is_discarded_and_counted(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="allow_all")
        pause(schedule)
        tick(minutes(12))
        resume(schedule, at=22, discard=True)
        tick(minutes(25))
        discarded = dict.fromkeys((5, 10, 15, 20), "skipped: discarded")
        assert ledger(schedule) == discarded | {25: "started 25"}
        assert counters(schedule) == {"started": 1, "skipped": {"discarded": 4}}


class TestSnooze:
    def test_it_resumes_by_itself_with_catch_up(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all", catch_up_seconds=None)
        pause(schedule, until=12, note="release")
        assert next_due(minutes(11)) == minutes(12)
        timeline = Timeline()
        timeline.pass_to(11)
        assert (fresh(schedule).status, ledger(schedule)) == ("paused", {5: "pending", 10: "pending"})
        timeline.pass_to(15)
        assert ledger(schedule) == {5: "started 12, completed 14", 10: "started 14", 15: "pending: overlap"}
        after = fresh(schedule)
        assert (after.status, after.paused_until, after.pause_note) == ("active", None, "")
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

    @pytest.mark.parametrize("overlap", POLICIES)
    @pytest.mark.parametrize(("window", "missed"), [(3600, 11), (None, 0)], ids=["an hour", "no window"])
    def test_what_is_inside_the_window_is_settled_by_the_policy(
        self, window: int | None, missed: int, overlap: str
    ) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=window, overlap=overlap)
        tick(minutes(TWO_HOURS))
        assert tuple(ledger(schedule)) == EVERY_TIME
        inside = list(EVERY_TIME[missed:])
        starts, waiting = {
            "skip": (inside[:1], []),
            "buffer_one": (inside[:1], inside[-1:]),
            "buffer_all": (inside[:1], inside[1:]),
            "cancel_other": (inside[-1:], []),
            "terminate_other": (inside[-1:], []),
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
        before = everything()
        tick(minutes(TWO_HOURS))
        assert everything() == before

    def test_ten_seconds_late_is_on_time_without_any_window(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, catch_up_seconds=0)
        tick(minutes(5) + timedelta(seconds=10))
        run_until_idle(now=minutes(6))
        tick(minutes(10) + timedelta(seconds=11))
        fates = [fate.partition(":")[0] for fate in ledger(schedule).values()]
        assert fates == ["started 5, completed 6", "missed"]


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

    def test_running_executions_go_on_history_stays_and_the_name_is_free(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, name="Nightly")
        timeline = Timeline([20])
        timeline.pass_to(6)
        schedule.close(initiator=SOMEBODY, now=minutes(7))
        again = make_schedule(name="Nightly")
        timeline.pass_to(30)
        assert (ledger(schedule), ledger(again)) == ({5: "started 5, completed 25"}, {})
        after = fresh(schedule)
        assert (after.name, after.status, after.last_outcome) == ("Nightly", "closed", "completed")


class TestAll:
    def test_only_those_paused_together_are_resumed_together(self) -> None:
        before, together, apart, anew, closed = (make_schedule(spec=EVERY_FIVE) for _ in range(5))
        pause(before, note="for a reason of its own")
        closed.close(initiator=SOMEBODY, now=NOW)
        assert Schedule.objects.pause_all(initiator=SOMEBODY, now=minutes(1), note="power cut") == 3
        assert (fresh(together).status, fresh(together).pause_note) == ("paused", "power cut")
        pause(apart, at=2, note="keep this one")
        resume(anew, at=2)
        pause(anew, at=2)
        tick(minutes(5))
        assert not Execution.objects.exists()
        assert Schedule.objects.resume_all(initiator=SOMEBODY, now=minutes(6)) == 1
        states = [fresh(schedule).status for schedule in (before, together, apart, anew, closed)]
        assert states == ["paused", "active", "paused", "paused", "closed"]
        assert fresh(before).pause_note == "for a reason of its own"

    @pytest.mark.parametrize(("discard", "fate"), [(False, "started 6"), (True, "skipped: discarded")])
    def test_a_selection_with_and_without_catch_up(self, discard: bool, fate: str) -> None:
        finance, other = make_schedule(spec=EVERY_FIVE, tags=["finance"]), make_schedule()
        chosen = Schedule.objects.tagged("finance")
        assert chosen.pause_all(initiator=SOMEBODY, now=NOW, until=lambda each: minutes(60)) == 1
        assert fresh(finance).paused_until == minutes(60)
        assert [fresh(finance).status, fresh(other).status] == ["paused", "active"]
        generate(minutes(5))
        assert chosen.resume_all(initiator=SOMEBODY, now=minutes(6), discard=discard) == 1
        tick(minutes(6))
        assert ledger(finance) == {5: fate}

    def test_a_resume_ends_the_pauses_of_the_same_selection_and_no_others(self) -> None:
        finance, both, other = (make_schedule(tags=tags) for tags in (["finance"], ["finance", "eu"], []))
        rounds: tuple[tuple[str, ...], ...] = (("eu",), ("finance",), ())
        for tags in rounds:
            asked = Schedule.objects.tagged(*tags)
            assert asked.pause_all(initiator=SOMEBODY, now=NOW, note=f"for {tags}", tags=tags) == 1
        assert [fresh(each).pause_note for each in (both, finance, other)] == [
            f"for {tags}" for tags in rounds
        ]
        for tags, ended in zip(rounds[::-1], (other, finance, both), strict=True):
            asked = Schedule.objects.tagged(*tags)
            assert asked.resume_all(initiator=SOMEBODY, now=minutes(1), tags=tags) == 1
            assert fresh(ended).status == "active"


def pause(schedule: Schedule, *, at: float = 0, note: str = "", until: float | None = None) -> None:
    end = None if until is None else minutes(until)
    schedule.pause(initiator=SOMEBODY, now=minutes(at), note=note, until=end)


def resume(schedule: Schedule, *, at: float, discard: bool = False) -> None:
    schedule.resume(initiator=SOMEBODY, now=minutes(at), discard=discard)


def started(schedule: Schedule) -> list[int]:
    """The nominal times that were started, in minutes."""
    rows = schedule.occurrences.filter(status="started").order_by("nominal_at")
    return [minute(occurrence.nominal_at) for occurrence in rows]
