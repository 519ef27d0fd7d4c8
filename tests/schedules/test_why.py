"""“Why did it not run at 03:00?” has an answer, whatever the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.conf import LazySettings

from execution.loops.housekeeping import prune_history, prune_occurrences
from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.models import Execution
from schedules.generator import generate
from schedules.models import Backfill, Occurrence, Schedule, SharedCalendar
from tests.base import NOW, SOMEBODY, fresh, make_schedule, run_until_idle, seconds, step

pytestmark = pytest.mark.django_db
HOURLY = {"cron": ["0 * * * *"]}
LONDON = {"time_zone": "Europe/London"}


def hours(number: float) -> datetime:
    return NOW + seconds(3600 * number)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def why(schedule: Schedule, at: datetime, *, now: datetime) -> str:
    return fresh(schedule).why(at, now=now).sentence


def edit(schedule: Schedule, *, now: datetime, **changes: Any) -> None:
    current = fresh(schedule)
    current.edit(token=current.token, initiator=SOMEBODY, now=now, changes=changes)


def pass_time(*, to: datetime, since: datetime = NOW, step: float = 1) -> None:
    """The scheduler comes by every hour; what it starts goes on."""
    while since < to:
        since = min(since + seconds(3600 * step), to)
        generate(since)
        invoke(since)


def last_execution() -> Execution:
    return Execution.objects.latest("pk")


class TestItRan:
    def test_it_is_told_from_its_start_until_nothing_is_known_any_more(self) -> None:
        schedule = make_schedule(spec=HOURLY, deadline_seconds=600)
        pass_time(to=hours(1) + seconds(2), step=2)
        execution = last_execution()
        start = f"Running: execution {execution.pk} started at 04:00:02 and has not ended yet"
        assert why(schedule, hours(1), now=hours(1) + seconds(5)) == f"{start}."
        assert why(schedule, hours(1), now=hours(2)) == f"{start}; it should have ended by 04:10:02."
        run_until_idle(now=hours(1) + seconds(63))
        answer = fresh(schedule).why(hours(1), now=hours(2))
        assert answer.sentence == (
            f"Ran: execution {execution.pk} started at 04:00:02 and completed after 1 min 1 s."
        )
        assert str(answer) == f"04:00 on 16 November 2026, UTC. {answer.sentence}"
        assert (answer.execution_id, answer.occurrence) == (execution.pk, execution.occurrence)
        assert answer.as_json() == {
            "at": "2026-11-16T04:00:00Z",
            "local": "04:00 on 16 November 2026, UTC",
            "sentence": answer.sentence,
            "occurrence": Occurrence.objects.get().pk,
            "execution": execution.pk,
        }
        later = hours(24 * 91)
        invoke(hours(1) + seconds(63))
        prune_history(later)
        assert why(schedule, hours(1), now=later) == (
            "Ran: started at 04:00:02. The record of the execution was deleted, because the history is kept "
            "for only 90 days."
        )
        prune_occurrences(later)
        Schedule.objects.update(processed_until=later)
        assert why(schedule, hours(1), now=later) == (
            "The record of this time was deleted, because the history is kept for only 90 days."
        )

    def test_one_that_failed_or_was_cancelled_says_why(self) -> None:
        schedule = make_schedule(step("work", 0, "fail"), spec=HOURLY)
        pass_time(to=hours(1))
        run_until_idle(now=hours(1) + seconds(5))
        failed = last_execution()
        assert "it broke" in failed.error
        pass_time(since=hours(1), to=hours(2))
        last_execution().cancel(initiator=SOMEBODY, now=hours(2) + seconds(60), reason="wrong data")
        assert why(schedule, hours(1), now=hours(3)) == (
            f"Ran: execution {failed.pk} started at 04:00 and failed after 5.0 s: {failed.error.rstrip('.')}."
        )
        assert why(schedule, hours(2), now=hours(3)).endswith("was cancelled after 1 min: wrong data.")

    def test_one_that_was_caught_up_says_how_late_it_was(self) -> None:
        schedule = make_schedule(spec={"at": ["2026-11-16T04:00:00Z"]})
        pass_time(to=hours(3.5), step=3.5)
        run_until_idle(now=hours(3.5))
        assert "started at 06:30, 2 h 30 min late, and completed" in why(schedule, hours(1), now=hours(4))

    def test_its_jitter_is_told_before_while_and_after_it_holds_it_back(self) -> None:
        schedule = make_schedule(spec=HOURLY | {"jitter": "30m"}, name="Jittered")
        due = schedule.compiled_spec.due_at(hours(1), "Jittered")
        assert hours(1) < due < hours(1.5)
        delayed = f"Will run at {due:%H:%M:%S}, after a random delay (jitter)."
        assert why(schedule, hours(1), now=NOW) == delayed
        pass_time(to=hours(1))
        waiting = f"Waiting: jitter delays the start until {due:%H:%M:%S}."
        assert why(schedule, hours(1), now=hours(1)) == waiting
        invoke(due)
        started = f"started at {due:%H:%M:%S}, delayed by jitter, and"
        assert started in why(schedule, hours(1), now=hours(2))

    def test_runs_by_hand_and_backfills_are_told_beside_the_fate_of_the_time_itself(self) -> None:
        schedule = make_schedule(spec=HOURLY, catch_up_seconds=0)
        pass_time(to=hours(2.5), step=2.5)
        trigger(schedule, initiator=SOMEBODY, now=hours(3), at=hours(1))
        asked = Backfill.objects.ask(
            schedule, start_at=hours(2), end_at=hours(2), initiator=SOMEBODY, now=hours(3)
        )
        asked.generate(hours(3))
        invoke(hours(3))
        answer, execution = fresh(schedule).why(hours(1), now=hours(3)), last_execution().pk
        missed, by_hand = answer.sentence.split(". ", 1)
        assert missed.startswith("Missed")
        assert by_hand == (
            f"Manual run by ada. Running: execution {execution} started at 06:00 and has not ended yet."
        )
        automatic = Occurrence.objects.get(source="auto", nominal_at=hours(1))
        assert (answer.occurrence, answer.execution_id) == (automatic, execution)
        assert why(schedule, hours(2), now=hours(3)).endswith(
            f" Backfill requested by ada. Waiting for execution {execution}, which started at 06:00."
        )
        asked.cancel(initiator=SOMEBODY, now=hours(3.5))
        assert why(schedule, hours(2), now=hours(4)).endswith(
            " Backfill requested by ada. Cancelled: the backfill was cancelled by ada at 06:30."
        )


class TestItWasSkippedMissedDroppedOrCancelled:
    def test_the_execution_in_its_way_is_named_also_when_it_is_gone(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        pass_time(to=hours(2))
        blocker = last_execution().pk
        assert why(schedule, hours(2), now=hours(2)) == (
            f"Skipped: execution {blocker}, which had started at 04:00, was still running."
        )
        Execution.objects.update(schedule=None)
        assert why(schedule, hours(2), now=hours(2)) == (f"Skipped: execution {blocker} was still running.")

    def test_of_several_due_at_once_the_one_that_started_is_named(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        pass_time(to=hours(3), step=3)
        assert why(schedule, hours(2), now=hours(3)) == (
            f"Skipped: several runs were due together, and execution {last_execution().pk} "
            "was started instead, for 04:00."
        )

    def test_a_superseded_one_names_its_successor_if_that_is_no_further_than_the_buffer(
        self, settings: LazySettings
    ) -> None:
        schedule = make_schedule(spec=HOURLY, overlap="buffer_one")
        pass_time(to=hours(2))
        pass_time(since=hours(2), to=hours(5), step=3)
        running = f"while execution {last_execution().pk} was still running"
        for hour in (2, 3, 4):
            said = why(schedule, hours(hour), now=hours(5))
            assert said == f"Skipped: replaced by the run of 08:00, {running}."
        settings.JIM_BUFFER_LIMIT = 1
        assert "replaced by a newer run, while" in why(schedule, hours(2), now=hours(5))
        assert "replaced by the run of 08:00, while" in why(schedule, hours(3), now=hours(5))

    def test_on_request(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        schedule.skip_next(initiator=SOMEBODY, now=NOW)
        for now in (NOW, hours(1)):
            assert why(schedule, hours(1), now=now) == "Will be skipped on request from ada."
        pass_time(to=hours(1))
        assert why(schedule, hours(1), now=hours(1)) == "Skipped on request from ada."

    def test_without_runs_left(self) -> None:
        schedule = make_schedule(spec=HOURLY, remaining=1)
        pass_time(to=hours(2))
        assert why(schedule, hours(2), now=hours(2)) == "Skipped: the schedule had no runs left."
        assert why(schedule, hours(3), now=hours(2)) == "Will not run: the schedule has no runs left."

    def test_any_other_reason_is_told_as_it_is(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        schedule.steps.all().delete()
        pass_time(to=hours(1))
        assert why(schedule, hours(1), now=hours(2)) == "Skipped: the schedule has no steps."

    def test_what_came_while_it_was_paused(self) -> None:
        discarded, missed, closed = (
            make_schedule(spec=HOURLY, catch_up_seconds=3600, paused=True) for _ in range(3)
        )
        pass_time(to=hours(3))
        fresh(discarded).resume(initiator=SOMEBODY, now=hours(3), discard=True)
        fresh(missed).resume(initiator=SOMEBODY, now=hours(3))
        fresh(closed).close(initiator=SOMEBODY, now=hours(3))
        assert [why(each, hours(1), now=hours(4)) for each in (discarded, missed, closed)] == [
            "Skipped: the schedule was resumed by ada at 06:00, and times that passed during the pause "
            "were discarded.",
            "Missed: the schedule was paused until 06:00, 2 h after this time; the catch-up window is 1 h.",
            "Cancelled: the schedule was closed by ada at 06:00.",
        ]

    def test_missed_says_how_late_the_scheduler_was_and_the_window_of_then(self) -> None:
        schedule = make_schedule(spec=HOURLY, catch_up_seconds=3600)
        pass_time(to=hours(3), step=3)
        edit(schedule, now=hours(4), catch_up_seconds=86_400)
        assert why(schedule, hours(1), now=hours(5)) == (
            "Missed: the scheduler reached this time at 06:00, 2 h late; the catch-up window is 1 h."
        )

    def test_dropped_says_how_many_may_wait(self, settings: LazySettings) -> None:
        settings.JIM_BUFFER_LIMIT = 2
        schedule = make_schedule(spec=HOURLY, paused=True)
        pass_time(to=hours(3))
        assert why(schedule, hours(1), now=hours(3)) == (
            "Dropped: more than 2 runs were waiting, so the oldest were discarded."
        )


class TestItIsWaiting:
    def test_for_its_paused_schedule(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        schedule.pause(initiator=SOMEBODY, now=hours(0.5), note="new server", until=hours(24))
        pass_time(to=hours(1))
        assert why(schedule, hours(1), now=hours(1)) == (
            "Waiting: the schedule is paused since 03:30 until 03:00 on 17 November 2026 by ada "
            "(“new server”)."
        )

    def test_for_one_that_paused_itself_the_note_says_all(self) -> None:
        schedule = make_schedule(step("work", 0, "fail"), spec=HOURLY, pause_on_failure=True)
        pass_time(to=hours(1))
        run_until_idle(now=hours(1))
        pass_time(since=hours(1), to=hours(2))
        said = why(schedule, hours(2), now=hours(2))
        assert said.startswith("Waiting: the schedule is paused since ")
        assert " (“Paused automatically. The last execution failed: " in said
        assert " by pause on failure" not in said

    def test_for_a_running_execution_and_for_those_before_it(self) -> None:
        schedule = make_schedule(spec=HOURLY, overlap="buffer_all")
        pass_time(to=hours(4))
        waiting = f"Waiting for execution {last_execution().pk}, which started at 04:00"
        assert why(schedule, hours(2), now=hours(4)) == f"{waiting}."
        assert why(schedule, hours(4), now=hours(4)) == f"{waiting}; 2 earlier runs will start first."
        last_execution().cancel(initiator=SOMEBODY, now=hours(4))
        invoke(hours(4))
        assert why(schedule, hours(3), now=hours(4)) == (
            f"Waiting for execution {last_execution().pk}, which started at 07:00."
        )

    def test_for_the_invoker(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        generate(hours(1))
        assert (
            why(schedule, hours(1), now=hours(1)) == "Due now: the scheduler will start this run in a moment."
        )
        assert why(schedule, hours(1), now=hours(1.5)) == (
            "Due for 30 min, but not started yet: check that a scheduler is running."
        )


class TestItIsToCome:
    def test_it_will_run_whatever_the_fraction_of_its_second(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        answer = schedule.why(hours(5) + seconds(0.999), now=NOW)
        assert (answer.sentence, answer.occurrence, answer.execution_id) == ("Will run.", None, None)

    def test_while_paused_it_will_wait_unless_the_pause_ends_before(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        schedule.pause(initiator=SOMEBODY, now=NOW, until=hours(3), note="moving")
        assert why(schedule, hours(2), now=NOW) == (
            "Will wait: the schedule is paused since 03:00 until 06:00 by ada (“moving”)."
        )
        assert why(schedule, hours(3), now=NOW) == "Will run."

    def test_when_runs_are_limited_the_earlier_times_use_them_up(self) -> None:
        schedule = make_schedule(spec=HOURLY, remaining=2)
        schedule.skip_next(initiator=SOMEBODY, now=NOW)
        assert [why(schedule, hours(n), now=NOW) for n in (1, 2, 3, 4)] == [
            "Will be skipped on request from ada.",
            "Will run.",
            "Will run.",
            "Will not run: the schedule has 2 runs left, which earlier times will use up.",
        ]


class TestThereIsNoSuchTime:
    @pytest.mark.parametrize(
        ("spec", "asked", "said"),
        [
            (
                HOURLY,
                "11-16T05:30",
                "The schedule does not run at this time: no rule matches this time; the nearest times are ",
            ),
            (
                {},
                "11-16T05:30",
                "This schedule has no scheduled times; it runs only when started by hand or by an event.",
            ),
            (
                HOURLY | {"start_at": "2026-12-01"},
                "11-20T05:00",
                "The schedule does not run at this time: this is before the",
            ),
            (
                HOURLY | {"end_at": "2026-11-30"},
                "12-01T05:00",
                "The schedule does not run at this time: this is after the end of the schedule, ",
            ),
            (HOURLY | {"exclude": [{"dates": "2026-12-25"}]}, "12-25T05:00", "Excluded: 25 December"),
        ],
    )
    def test_the_spec_says_why(self, spec: dict[str, Any], asked: str, said: str) -> None:
        assert why(make_schedule(spec=spec), at(f"2026-{asked}"), now=NOW).startswith(said)

    def test_before_it_was_made(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        made = "The schedule did not exist yet: ada created it at 03:00"
        assert why(schedule, hours(-2), now=hours(1)) == f"{made}."
        assert why(schedule, hours(-24), now=hours(1)) == f"{made} on 16 November 2026."
        assert why(schedule, NOW, now=hours(1)) == f"{made}."

    def test_after_it_was_closed(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        schedule.close(initiator=SOMEBODY, now=hours(1.5))
        assert why(schedule, hours(2), now=hours(48)) == "The schedule is closed: ada closed it at 04:30."
        assert why(schedule, hours(1.25), now=hours(48)).startswith(
            "The schedule does not run at this time: "
        )

    def test_the_spec_in_force_at_that_time_decides(self) -> None:
        schedule = make_schedule(spec={"cron": ["30 * * * *"]})
        pass_time(to=hours(2))
        edit(schedule, now=hours(2), spec=HOURLY)
        pass_time(since=hours(2), to=hours(3))
        nearest = (
            "The schedule does not run at this time: no rule matches this time; the nearest times are "
            "16 November 2026"
        )
        assert why(schedule, hours(1), now=hours(3)) == (
            f"{nearest} 03:30 and 16 November 2026 04:30. "
            "The spec was different then: “At minute 30 past every hour, UTC”."
        )
        assert why(schedule, hours(0.5), now=hours(3)).startswith("Running: ")
        assert why(schedule, hours(2.5), now=hours(3)) == f"{nearest} 05:00 and 16 November 2026 06:00."

    def test_a_shared_calendar_as_it_was_at_that_time_decides(self) -> None:
        by: dict[str, Any] = {"initiator": SOMEBODY}
        calendar = SharedCalendar.objects.define("Windows", [{"dates": "2026-11-17"}], now=NOW, **by)
        schedule = make_schedule(spec=HOURLY | {"exclude": [{"calendar": "Windows"}]})
        pass_time(to=hours(46), step=46)
        calendar.edit(token=1, changes={"excluded": [{"dates": "2026-11-30"}]}, now=hours(46), **by)
        said = why(schedule, hours(26), now=hours(47))
        assert said.startswith("Excluded: 17 November 2026 is ")
        assert "Windows" in said
        assert why(schedule, at("2026-11-30T05:00"), now=hours(47)).startswith("Excluded: 30 November")


class TestNoRecordOfIt:
    def test_the_scheduler_has_not_come_to_it_yet(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        assert why(schedule, hours(1), now=hours(1) + seconds(3)) == (
            "Due now: the scheduler will process this time in a moment."
        )
        assert why(schedule, hours(1), now=hours(3)) == (
            "The scheduler is 2 h late: it is either catching up or not running. "
            "Times up to 03:00 have been processed."
        )

    def test_it_came_while_the_spec_could_not_be_read(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        Schedule.objects.update(spec={"cron": ["0 0 * *"]})
        generate(hours(1))
        for hour in (1, 5):
            said = why(schedule, hours(hour), now=hours(2))
            assert said.startswith("The spec is invalid: ")
            assert said.endswith(" The schedule does not run until you correct the spec.")
        edit(schedule, now=hours(3), spec=HOURLY)
        assert why(schedule, hours(1), now=hours(3)) == (
            "This is one of the schedule's times, but it was not recorded: the spec was invalid then, "
            "or the record was deleted."
        )


class TestTheClock:
    """Europe/London: on 29 March 2026 01:00 to 02:00 does not exist, on 25 October 2026 it comes twice."""

    MARCH, OCTOBER = at("2026-03-28T12:00"), at("2026-10-24T12:00")

    def test_a_time_without_a_zone_is_read_on_the_schedules_clock(self) -> None:
        spec = {"cron": ["0 9 * * *"], "time_zone": "America/New_York"}
        schedule = make_schedule(spec=spec)
        answer = schedule.why(datetime.fromisoformat("2026-11-16T09:00"), now=NOW)
        assert (answer.at, answer.sentence) == (at("2026-11-16T14:00"), "Will run.")
        assert answer.local == "09:00 on 16 November 2026, America/New_York"
        assert answer == schedule.why(at("2026-11-16T14:00"), now=NOW)

    def test_a_time_that_the_clocks_leave_out(self) -> None:
        schedule = make_schedule(spec={"cron": ["30 1 * * *"], **LONDON}, now=self.MARCH)
        gap = (
            "This time does not exist: the clocks in Europe/London go from 01:00 to 02:00 on 29 March 2026: "
            "01:30 does not exist on that day, so the run takes place at 02:00."
        )
        asked = datetime.fromisoformat("2026-03-29T01:30")
        answer = schedule.why(asked, now=self.MARCH)
        assert (answer.local, answer.sentence) == ("01:30 on 29 March 2026, Europe/London", gap)
        tick(at("2026-03-29T01:00"), recovering=False)
        run_until_idle(now=at("2026-03-29T01:00"))
        answer = fresh(schedule).why(asked, now=at("2026-03-29T02:00"))
        pk = last_execution().pk
        assert answer.sentence == (
            f"{gap} The next time on the clock is 02:00. "
            f"Ran: execution {pk} started at 02:00 and completed after 0 ms."
        )
        assert answer.execution_id == pk

    @pytest.mark.parametrize("fold", [0, 1])
    def test_what_no_rule_wanted_in_the_gap(self, fold: int) -> None:
        schedule = make_schedule(spec={"cron": ["0 9 * * *"], **LONDON}, now=self.MARCH)
        asked = datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/London"), fold=fold)
        assert why(schedule, asked, now=self.MARCH) == (
            "This time does not exist: the clocks in Europe/London go from 29 March 2026 01:00 "
            "to 29 March 2026 02:00."
        )

    def test_a_time_that_comes_twice_is_told_with_its_offset(self) -> None:
        schedule = make_schedule(spec={"at": ["2026-10-25T01:30:00Z"], **LONDON}, now=self.OCTOBER)
        tick(at("2026-10-25T01:30"), recovering=False)
        answer = fresh(schedule).why(datetime.fromisoformat("2026-10-25T01:30"), now=at("2026-10-25T02:00"))
        assert answer.at == at("2026-10-25T01:30")
        assert answer.local == "01:30 GMT on 25 October 2026, Europe/London"
        assert "started at 01:30 GMT and has not ended yet" in answer.sentence

    @pytest.mark.parametrize("asked", [datetime.min, datetime.max, datetime(1, 1, 1, tzinfo=UTC)])  # noqa: DTZ901
    def test_the_ends_of_time(self, asked: datetime) -> None:
        assert why(make_schedule(spec=HOURLY), asked, now=NOW).startswith(
            "The schedule does not run at this time: "
        )

    @pytest.mark.parametrize("year", [1970, 2999])
    def test_the_first_and_the_last_year_have_times(self, year: int) -> None:
        for asked in (datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, 23, 59, 59)):  # noqa: DTZ001
            assert "have times from" not in why(make_schedule(spec=HOURLY | LONDON), asked, now=NOW)

    def test_a_broken_schedule_without_a_readable_zone_answers_in_utc(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        for spec in ({"time_zone": "Mars/Olympus"}, ["no", "object"], {"time_zone": 7}):
            Schedule.objects.update(spec=spec)
            answer = fresh(schedule).why(datetime.fromisoformat("2026-11-16T04:30"), now=NOW)
            assert answer.local == "04:30 on 16 November 2026, UTC"
            assert answer.sentence.startswith("The spec is invalid: ")


def test_an_answer_takes_few_statements(django_assert_max_num_queries: Any) -> None:
    schedule = make_schedule(spec=HOURLY, catch_up_seconds=3600)
    pass_time(to=hours(30), step=30)
    schedule = fresh(schedule)
    for asked in (hours(1), hours(30), hours(1.5), hours(-1), hours(40)):
        with django_assert_max_num_queries(6):
            schedule.why(asked, now=hours(30) + timedelta(minutes=1))
