"""The past times of a range: asked for, looked at beforehand, generated in slices, cancelled."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection

from activities.models import Activity
from execution.invoker import trigger
from execution.models import Execution
from execution.scheduler import is_due, tick
from schedules import generator
from schedules.generator import backfill, generate
from schedules.models import Backfill, Occurrence, Refused, Schedule
from schedules.models import backfill as backfill_module
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
    seconds,
)
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db
EVERY_MINUTE = {"cron": ["* * * * *"]}
EVERY_SECOND = {"every": ["1s"]}
Pinned = Callable[[int], AbstractContextManager[object]]
DAY = 24 * 60
UNKNOWN = (
    "What became of a time is known for 90 days: choose a start from Tue 2026-08-18 04:00:00 UTC on, "
    "or “All times”."
)
# A savepoint (BEGIN and COMMIT in real life), the locked schedule, the backfill, what is pending, how many
# are open, the new rows, the cursor.
SLICE = 8


@pytest.fixture
def schedule() -> Schedule:
    return make_schedule(spec=EVERY_MINUTE, name="Nightly")


@pytest.fixture
def pinned(django_assert_num_queries: Pinned) -> Pinned:
    return django_assert_num_queries


@pytest.fixture(autouse=True)
def plenty_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not decide how many backfills have their turn in a tick."""
    monkeypatch.setattr(generator, "BACKFILL_SECONDS", 60)


def minutes(number: float) -> datetime:
    return NOW + seconds(60 * number)


def ask(schedule: Schedule, start: float = -10, end: float = -1, **fields: Any) -> Backfill:
    """For the times between two minutes, as seen from now."""
    given: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW} | fields
    return Backfill.objects.ask(schedule, start_at=minutes(start), end_at=minutes(end), **given)


def times(backfill: Backfill) -> list[datetime]:
    return list(backfill.occurrences.order_by("nominal_at").values_list("nominal_at", flat=True))


def statuses(backfill: Backfill) -> dict[str, int]:
    return dict(Counter(backfill.occurrences.values_list("status", flat=True)))


def settle(backfill: Backfill, count: int, *, now: datetime = NOW) -> None:
    """As the invoker does it."""
    some = list(backfill.occurrences.pending().order_by("nominal_at").values_list("pk", flat=True)[:count])
    Occurrence.objects.filter(pk__in=some).settle("skipped", reason="overlap", now=now)
    Backfill.objects.make_room([backfill.schedule_id], now=now)


class TestAsk:
    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (-3, -1, [-3, -2, -1]),
            (-3.01, -0.99, [-3, -2, -1]),
            (-2.99, -1.01, [-2]),
            (-2, -2, [-2]),
            (-1, 0, [-1, 0]),
        ],
    )
    def test_the_range_includes_both_its_ends(
        self, schedule: Schedule, start: float, end: float, expected: list[float]
    ) -> None:
        asked = ask(schedule, start, end)
        assert asked.total == len(expected)
        asked.generate(NOW)
        assert times(asked) == [minutes(number) for number in expected]

    def test_it_keeps_who_asked_for_what(self, schedule: Schedule) -> None:
        asked = fresh(ask(schedule, -10, -1, which="missing", overlap="allow_all"))
        assert (asked.status, asked.which, asked.overlap) == ("open", "missing", "allow_all")
        assert (asked.total, asked.passed_count, asked.added_count) == (10, 0, 0)
        assert (asked.initiator, asked.created_at, asked.slice_at) == (SOMEBODY, NOW, NOW)

    def test_it_is_recorded_and_leaves_the_definition_alone(self, schedule: Schedule) -> None:
        before = fresh(schedule).token
        asked = ask(schedule, -10, -1)
        activity = Activity.objects.get(operation="backfill")
        assert (activity.target_type, activity.target_id) == ("schedule", str(schedule.pk))
        assert (activity.initiator_name, activity.details) == (
            "ada",
            {
                "backfill": asked.pk,
                "start_at": "2026-11-16T02:50:00Z",
                "end_at": "2026-11-16T02:59:00Z",
                "which": "all",
                "overlap": "buffer_all",
                "total": 10,
                "chosen": 10,
            },
        )
        assert fresh(schedule).token == before

    def test_a_later_edit_does_not_change_its_times(self, schedule: Schedule) -> None:
        asked = ask(schedule, -3, -1)
        schedule.edit(
            token=schedule.token, initiator=SOMEBODY, now=NOW, changes={"spec": {"cron": ["0 0 1 1 *"]}}
        )
        asked.generate(NOW)
        assert times(asked) == [minutes(-3), minutes(-2), minutes(-1)]

    def test_a_paused_schedule_can_be_backfilled(self) -> None:
        asked = ask(make_schedule(spec=EVERY_MINUTE, paused=True), -3, -1)
        tick(NOW)
        assert statuses(asked) == {"started": 1, "pending": 2}

    @pytest.mark.parametrize(
        ("start", "end", "fields", "expected"),
        [
            (-1, -2, {}, {"end_at": ["The range ends before it starts: choose a later end."]}),
            (-1, 0.01, {}, {"end_at": ["The range ends in the future: choose an end that has passed."]}),
            (-2, -1, {"which": "some"}, {"which": ["Value 'some' is not a valid choice."]}),
            (-2, -1, {"overlap": "never"}, {"overlap": ["Value 'never' is not a valid choice."]}),
            (-0.9, -0.1, {}, {"end_at": ["The schedule has no time in this range: choose another range."]}),
            (
                -3,
                -1,
                {"which": "failed"},
                {"which": ["Nothing is left to do among 3 times: 3 never executed."]},
            ),
            (-40_000_000, -1, {}, {"start_at": ["Choose a start in 1970 or later."]}),
            (-90 * DAY - 1, -1, {"which": "missing"}, {"start_at": [UNKNOWN]}),
            (-90 * DAY - 1, -1, {"which": "failed"}, {"start_at": [UNKNOWN]}),
        ],
    )
    def test_a_wrong_range_is_refused_by_field(
        self,
        schedule: Schedule,
        start: float,
        end: float,
        fields: dict[str, str],
        expected: dict[str, list[str]],
    ) -> None:
        before = everything()
        with pytest.raises(ValidationError) as refused:
            ask(schedule, start, end, **fields)
        assert refused.value.message_dict == expected
        assert everything() == before

    def test_too_many_times_are_refused_with_their_number(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backfill_module, "MOST_TIMES", 1_000)
        assert ask(schedule, -1_000, -1).total == 1_000
        with pytest.raises(ValidationError, match="times are too many at once"):
            ask(schedule, -1_001, -1)
        with pytest.raises(ValidationError) as refused:
            ask(make_schedule(spec=EVERY_SECOND), -100 * DAY, 0)
        words = "About 8,645,000 times are too many at once: choose a shorter range, with at most 1,000."
        assert refused.value.message_dict == {"end_at": [words]}

    def test_a_schedule_that_has_no_times_to_start_is_refused(self, schedule: Schedule) -> None:
        with pytest.raises(Refused, match="“By hand” has no times of its own"):
            ask(make_schedule(spec={}, name="By hand"))
        Schedule.objects.filter(pk=schedule.pk).update(spec={"cron": ["0 0 * *"]})
        with pytest.raises(Refused, match="The spec of “Nightly” is broken: cron: "):
            ask(schedule)
        fresh(schedule).close(initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match="“Nightly” is closed: it cannot be run any more"):
            ask(schedule)

    def test_a_schedule_has_so_many_open_backfills_at_most(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backfill_module, "MOST_OPEN", 3)
        first, *_ = [ask(schedule) for _ in range(3)]
        with pytest.raises(Refused, match="“Nightly” has 3 open backfills: wait until one is done, or"):
            ask(schedule)
        first.cancel(initiator=SOMEBODY, now=NOW)
        ask(schedule)
        assert ask(make_schedule(spec=EVERY_MINUTE)).status == "open"

    def test_times_that_change_while_they_are_counted_are_looked_at_again(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = Backfill._survey

        def count_while_somebody_edits(draft: Backfill, *, limit: int) -> Any:
            editor = Schedule.objects.get(pk=schedule.pk)
            editor.edit(
                token=editor.token, initiator=SOMEBODY, now=NOW, changes={"spec": {"cron": ["0 * * * *"]}}
            )
            return count(draft, limit=limit)

        monkeypatch.setattr(Backfill, "_survey", count_while_somebody_edits)
        with pytest.raises(Refused, match="The times of “Nightly” have just been changed"):
            ask(schedule)
        assert not Backfill.objects.exists()


class TestSurvey:
    def survey(self, schedule: Schedule, start: float, end: float, **fields: Any) -> Any:
        given = {"start_at": minutes(start), "end_at": minutes(end), "now": NOW} | fields
        return Backfill.objects.survey(schedule, **given)

    def test_it_counts_the_times_and_names_the_first_and_the_last(self, schedule: Schedule) -> None:
        before = everything()
        survey = self.survey(schedule, -60, -1, limit=3)
        assert (survey.total, survey.chosen, survey.left_out) == (60, 60, {})
        assert survey.times == [minutes(-60), minutes(-59), minutes(-58)]
        assert survey.last == minutes(-1)
        assert everything() == before

    def test_an_empty_range_is_an_answer(self, schedule: Schedule) -> None:
        survey = self.survey(schedule, -0.9, -0.1)
        assert (survey.total, survey.chosen, survey.times, survey.last) == (0, 0, [], None)

    def test_a_wrong_range_is_refused_as_when_asked(self, schedule: Schedule) -> None:
        with pytest.raises(ValidationError, match="ends before it starts"):
            self.survey(schedule, -1, -2)

    def test_times_of_several_looks_are_put_together(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backfill_module, "TIMES_PER_LOOK", 7)
        survey = self.survey(schedule, -60, -1, limit=10)
        assert (survey.total, survey.last) == (60, minutes(-1))
        assert survey.times == [minutes(number) for number in range(-60, -50)]

    def test_memory_stays_flat(self) -> None:
        schedule = make_schedule(spec=EVERY_SECOND)
        self.survey(schedule, -10, 0)
        tracemalloc.start()
        survey = self.survey(schedule, -300, 0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert survey.total == 18_001
        assert peak < 300_000


class TestWhich:
    """Every minute has a history of its own; each backfill chooses by it."""

    HISTORIES = (
        *("none", "completed", "failed", "failed, completed", "completed, failed", "running", "cancelled"),
        *("pending", "failed, pending", "skipped", "gone", "failed, gone"),
    )

    @pytest.fixture
    def past(self, schedule: Schedule) -> dict[str, datetime]:
        """The times, by what happened to them."""
        past = {history: minutes(place - 20) for place, history in enumerate(self.HISTORIES)}
        for history, at in past.items():
            for part in history.split(", "):
                if part != "none":
                    happen(schedule, at, part)
        return past

    @pytest.mark.parametrize(
        ("which", "chosen", "left_out"),
        [
            ("all", set(HISTORIES), {}),
            ("missing", {"none", "skipped"}, {"executed already": 8, "waiting already": 2}),
            (
                "failed",
                {"failed", "completed, failed", "failed, gone"},
                {"never executed": 2, "not failed at last": 5, "waiting already": 2},
            ),
        ],
    )
    def test_which_times(
        self,
        schedule: Schedule,
        past: dict[str, datetime],
        which: str,
        chosen: set[str],
        left_out: dict[str, int],
    ) -> None:
        first, last = min(past.values()), max(past.values())
        survey = Backfill.objects.survey(
            schedule, start_at=first, end_at=last, which=which, now=NOW, limit=100
        )
        expected = sorted(past[history] for history in chosen)
        assert (survey.total, survey.chosen, survey.times) == (12, len(chosen), expected)
        assert survey.left_out == left_out
        asked = Backfill.objects.ask(
            schedule, start_at=first, end_at=last, which=which, initiator=SOMEBODY, now=NOW
        )
        assert asked.generate(NOW) == len(chosen)
        assert times(asked) == expected
        assert (fresh(asked).passed_count, fresh(asked).added_count) == (12, len(chosen))

    @pytest.mark.parametrize(("which", "start"), [("all", -100 * DAY), ("missing", -90 * DAY)])
    def test_a_start_that_is_far_enough(self, schedule: Schedule, which: str, start: float) -> None:
        asked = Backfill.objects.survey(
            schedule, start_at=minutes(start), end_at=minutes(start + 2), which=which, now=NOW
        )
        assert asked.chosen == 3

    def test_what_is_forgotten_before_its_turn_comes_is_left_out(self, schedule: Schedule) -> None:
        asked = Backfill.objects.ask(
            schedule,
            start_at=minutes(-90 * DAY),
            end_at=minutes(-90 * DAY + 3),
            which="missing",
            initiator=SOMEBODY,
            now=NOW,
        )
        assert asked.generate(minutes(2)) == 2
        assert times(asked) == [minutes(-90 * DAY + 2), minutes(-90 * DAY + 3)]
        assert (fresh(asked).passed_count, fresh(asked).added_count) == (4, 2)

    def test_the_same_request_twice_starts_a_missing_time_once(self, schedule: Schedule) -> None:
        first, second = ask(schedule, -3, -1, which="missing"), ask(schedule, -3, -1, which="missing")
        backfill(NOW)
        assert (statuses(first), statuses(second)) == ({"pending": 3}, {})
        assert fresh(second).status == "done"

    def test_the_histories_of_another_schedule_do_not_count(self, schedule: Schedule) -> None:
        other = make_schedule(spec=EVERY_MINUTE)
        happen(schedule, minutes(-1), "completed")
        asked = ask(other, -2, -1, which="missing")
        assert asked.generate(NOW) == 2

    def test_a_slice_looks_at_all_its_times_with_one_query(self, schedule: Schedule, pinned: Pinned) -> None:
        asked = ask(schedule, -500, -1, which="missing")
        with pinned(SLICE + 1):
            assert asked.generate(NOW) == 100


def happen(schedule: Schedule, at: datetime, what: str) -> None:
    """Something stands for that time."""
    if what in ("pending", "skipped", "gone"):
        status = "started" if what == "gone" else what
        occurrence = Occurrence.manual(schedule, initiator=SOMEBODY, now=NOW, at=at)
        occurrence.status, occurrence.due_at, occurrence.planned_at = status, None, minutes(60)
        occurrence.save()
        return
    occurrence = trigger(schedule, initiator=SOMEBODY, now=NOW, at=at, overlap="allow_all")
    execution = Execution.objects.get(occurrence=occurrence)
    worker = make_worker()
    if what == "completed":
        end(worker, *claim(worker))
    elif what == "failed":
        break_down(worker, *claim(worker), can_retry=False)
    elif what == "cancelled":
        execution.cancel(initiator=SOMEBODY, now=NOW)
    else:
        claim(worker)
    assert fresh(execution).status == {"running": "in_progress"}.get(what, what)


class TestGenerate:
    def test_a_slice_is_no_longer_than_the_setting_says(self, schedule: Schedule, settings: Any) -> None:
        settings.JIM_BACKFILL_SLICE = 4
        asked = ask(schedule, -10, -1)
        seen = []
        for expected in (4, 4, 2, 0):
            assert asked.generate(NOW) == expected
            now = fresh(asked)
            seen.append((now.status, now.passed_count, now.added_count, now.processed_until))
        assert seen == [
            ("open", 4, 4, minutes(-7)),
            ("open", 8, 8, minutes(-3)),
            ("done", 10, 10, minutes(-1)),
            ("done", 10, 10, minutes(-1)),
        ]
        assert (fresh(asked).finished_at, fresh(asked).slice_at) == (NOW, None)
        assert times(asked) == [minutes(number) for number in range(-10, 0)]

    def test_it_is_done_with_its_last_time_not_a_slice_later(self, schedule: Schedule, settings: Any) -> None:
        settings.JIM_BACKFILL_SLICE = 5
        asked = ask(schedule, -5, -1)
        asked.generate(NOW)
        assert fresh(asked).status == "done"

    def test_an_occurrence_is_known_by_its_backfill_and_its_time(self, schedule: Schedule) -> None:
        asked = ask(schedule, -1, -1, overlap="allow_all")
        asked.generate(NOW + seconds(5))
        occurrence = asked.occurrences.get()
        assert occurrence.key == f"backfill/{asked.pk}/2026-11-16T02:59:00Z"
        assert (occurrence.source, occurrence.overlap) == ("backfill", "allow_all")
        assert (occurrence.nominal_at, occurrence.due_at) == (minutes(-1), NOW + seconds(5))
        assert occurrence.initiator == SOMEBODY

    def test_it_stands_beside_the_automatic_one_of_the_same_time(self, schedule: Schedule) -> None:
        generate(minutes(1))
        asked = ask(schedule, 1, 1, now=minutes(2))
        asked.generate(minutes(2))
        assert [o.source for o in schedule.occurrences.filter(nominal_at=minutes(1)).order_by("pk")] == [
            "auto",
            "backfill",
        ]

    def test_a_cursor_that_was_set_back_makes_no_doubles(self, schedule: Schedule, settings: Any) -> None:
        settings.JIM_BACKFILL_SLICE = 4
        asked = ask(schedule, -10, -1)
        asked.generate(NOW)
        Backfill.objects.update(processed_until=minutes(-11))
        while fresh(asked).status == "open":
            asked.generate(NOW)
        assert times(asked) == [minutes(number) for number in range(-10, 0)]

    def test_rows_and_cursor_move_together_or_not_at_all(self, schedule: Schedule) -> None:
        asked = ask(schedule, -10, -1)
        trouble = database_that_refuses("1 = 1", table="schedules_backfill", event="UPDATE", error="trouble")
        with trouble, pytest.raises(OperationalError):
            backfill(NOW)
        assert (times(asked), fresh(asked).passed_count) == ([], 0)
        backfill(NOW)
        assert (len(times(asked)), fresh(asked).status) == (10, "done")

    @pytest.mark.parametrize("slice_size", [1, 100])
    def test_a_slice_is_a_handful_of_statements(
        self, schedule: Schedule, settings: Any, slice_size: int, pinned: Pinned
    ) -> None:
        settings.JIM_BACKFILL_SLICE = slice_size
        asked = ask(schedule, -500, -1)
        with pinned(SLICE):
            assert asked.generate(NOW) == slice_size

    def test_without_an_open_one_a_tick_asks_once(self, pinned: Pinned) -> None:
        with pinned(1):
            backfill(NOW)


class TestRoom:
    @pytest.fixture(autouse=True)
    def small(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT, settings.JIM_BACKFILL_SLICE = 40, 8

    def fill(self, *, now: datetime = NOW) -> None:
        while Backfill.objects.due(now).exists():
            backfill(now)

    def test_it_takes_half_of_the_buffer_and_then_waits(self, schedule: Schedule) -> None:
        asked = ask(schedule, -100, -1)
        self.fill()
        assert statuses(asked) == {"pending": 20}
        assert (fresh(asked).status, fresh(asked).slice_at) == ("open", None)
        assert not is_due(NOW - seconds(1))
        assert asked.generate(NOW) == 0

    def test_it_goes_on_when_half_of_that_has_been_settled(self, schedule: Schedule) -> None:
        asked = ask(schedule, -100, -1)
        self.fill()
        settle(asked, 9)
        assert fresh(asked).slice_at is None
        settle(asked, 1, now=minutes(1))
        assert fresh(asked).slice_at == minutes(1)
        self.fill(now=minutes(1))
        assert statuses(asked) == {"skipped": 10, "pending": 20}

    def test_in_the_end_every_time_had_its_turn_and_nothing_was_dropped(
        self, schedule: Schedule, settings: Any
    ) -> None:
        settings.JIM_BUFFER_LIMIT = 16
        asked = ask(schedule, -40, -1)
        most = 0
        while fresh(asked).status == "open":
            backfill(NOW)
            most = max(most, asked.occurrences.pending().count())
            settle(asked, 5)
        assert (most, times(asked)) == (8, [minutes(number) for number in range(-40, 0)])

    def test_several_share_the_room_of_their_schedule(self, schedule: Schedule) -> None:
        several = [ask(schedule, -100, -1) for _ in range(4)]
        another = ask(make_schedule(spec=EVERY_MINUTE), -100, -1)
        self.fill()
        assert [statuses(each) for each in several] == [{"pending": 5}] * 4
        assert statuses(another) == {"pending": 20}

    def test_a_later_one_has_its_part_as_soon_as_there_is_room(self, schedule: Schedule) -> None:
        early = ask(schedule, -100, -1)
        self.fill()
        late = ask(schedule, -100, -1)
        self.fill()
        assert statuses(late) == {}
        settle(early, 10)
        self.fill()
        assert (statuses(early), statuses(late)) == ({"skipped": 10, "pending": 10}, {"pending": 10})

    def test_what_one_that_is_done_left_pending_takes_room_too(self, schedule: Schedule) -> None:
        done, waiting = ask(schedule, -16, -1), ask(schedule, -100, -1)
        self.fill()
        settle(done, 10)
        self.fill()
        assert fresh(done).status == "done"
        assert done.occurrences.pending().count() + waiting.occurrences.pending().count() == 20

    def test_the_smallest_buffer_has_room_for_one(self, schedule: Schedule, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 2
        several = [ask(schedule, -3, -1) for _ in range(2)]
        for _ in range(6):
            self.fill()
            assert schedule.occurrences.pending().count() == 1
            for each in several:
                settle(each, 1)
        assert [statuses(each) for each in several] == [{"skipped": 3}] * 2

    def test_to_look_for_room_is_one_statement_and_to_tell_of_it_another(
        self, schedule: Schedule, pinned: Pinned
    ) -> None:
        asked = ask(schedule, -100, -1)
        self.fill()
        with pinned(1):
            Backfill.objects.make_room([schedule.pk], now=NOW)
        Occurrence.objects.pending().settle("skipped", reason="overlap", now=NOW)
        with pinned(2 if connection.vendor == "postgresql" else 1):
            Backfill.objects.make_room([schedule.pk], now=NOW)
        assert fresh(asked).slice_at == NOW

    @pytest.mark.parametrize("overlap", Schedule.Overlap.values)
    def test_it_comes_to_its_end_with_every_policy(
        self, schedule: Schedule, settings: Any, overlap: str
    ) -> None:
        settings.JIM_BUFFER_LIMIT = 8
        asked, now = ask(schedule, -10, -1, overlap=overlap), NOW
        for _ in range(40):
            tick(now := now + seconds(0.1))
            run_until_idle(now=now)
            if fresh(asked).status == "done" and not asked.occurrences.pending().exists():
                break
        assert fresh(asked).added_count == sum(statuses(asked).values()) == 10
        started = statuses(asked)["started"]
        assert started == 10 if overlap in ("buffer_all", "allow_all") else 1 <= started < 10


class TestTick:
    def test_live_times_start_in_the_same_tick_as_a_slice_of_ten_thousand(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        live = [make_schedule(spec=EVERY_MINUTE) for _ in range(3)]
        asked = ask(schedule, -10_000, -1)
        tick(minutes(1))
        assert asked.occurrences.count() == 100
        for each in (schedule, *live):
            (occurrence,) = each.occurrences.automatic()
            assert (occurrence.status, occurrence.settled_at) == ("started", minutes(1))

    def test_a_live_time_of_its_own_schedule_goes_before_what_waits(
        self, schedule: Schedule, settings: Any
    ) -> None:
        settings.JIM_BACKFILL_SLICE = 10
        asked = ask(schedule, -1_000, -1)
        for number in range(4):
            tick(NOW + seconds(number))
        assert statuses(asked) == {"started": 1, "pending": 39}
        tick(minutes(1))
        run_until_idle(now=minutes(1) + seconds(1))
        tick(minutes(1) + seconds(1))
        (live,) = schedule.occurrences.automatic()
        assert live.status == "started"

    @pytest.mark.parametrize(("allowed", "expected"), [(60, [20, 20, 20]), (0, [10, 5, 5])])
    def test_each_has_one_slice_in_a_tick_and_slow_ones_take_turns(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch, allowed: float, expected: list[int]
    ) -> None:
        """So that what is due now waits for a moment only."""
        monkeypatch.setattr(generator, "BACKFILL_SECONDS", allowed)
        settings.JIM_BACKFILL_SLICE = 5
        several = [ask(make_schedule(spec=EVERY_MINUTE), -100, -1) for _ in range(3)]
        for number in range(4):
            backfill(NOW + seconds(number))
        assert [each.occurrences.count() for each in several] == expected

    def test_a_waiting_one_makes_no_tick_due(self, schedule: Schedule, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT, settings.JIM_BACKFILL_SLICE = 100, 10
        asked = ask(schedule, -1_000, -1)
        now = NOW
        while is_due(now):
            tick(now := now + seconds(1))
        assert (statuses(asked), fresh(asked).slice_at) == ({"started": 1, "pending": 50}, None)
        assert now < NOW + seconds(10)


class TestCancel:
    def test_nothing_more_starts_and_what_runs_goes_on(self, schedule: Schedule, settings: Any) -> None:
        settings.JIM_BACKFILL_SLICE = 3
        asked = ask(schedule, -10, -1)
        tick(NOW)
        assert asked.cancel(initiator=SOMEBODY, now=minutes(1), reason="A mistake.")
        assert statuses(asked) == {"started": 1, "cancelled": 2}
        assert set(asked.occurrences.filter(status="cancelled").values_list("reason", "settled_at")) == {
            ("backfill cancelled", minutes(1))
        }
        cancelled = fresh(asked)
        assert (cancelled.status, cancelled.reason) == ("cancelled", "A mistake.")
        assert (cancelled.finished_at, cancelled.slice_at) == (minutes(1), None)
        assert Execution.objects.get().status == "in_progress"
        tick(minutes(1))
        assert asked.occurrences.count() == 3

    def test_it_is_recorded_and_a_second_time_there_is_nothing_to_stop(self, schedule: Schedule) -> None:
        asked = ask(schedule)
        assert asked.cancel(initiator=SOMEBODY, now=NOW, reason="A mistake.")
        activity = Activity.objects.get(operation="cancel_backfill")
        assert (activity.target_id, activity.message) == (str(schedule.pk), "A mistake.")
        assert activity.details == {"backfill": asked.pk, "stopped": 0}
        before = everything()
        assert not asked.cancel(initiator=SOMEBODY, now=minutes(1))
        assert everything() == before

    def test_what_a_done_one_left_waiting_can_still_be_stopped(self, schedule: Schedule) -> None:
        asked = ask(schedule, -10, -1)
        tick(NOW)
        assert fresh(asked).status == "done"
        assert asked.cancel(initiator=SOMEBODY, now=NOW)
        assert (fresh(asked).status, statuses(asked)) == ("done", {"started": 1, "cancelled": 9})
        assert not asked.cancel(initiator=SOMEBODY, now=NOW)

    def test_it_makes_room_for_the_others(self, schedule: Schedule, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 20
        one, other = ask(schedule, -100, -1), ask(schedule, -100, -1)
        while Backfill.objects.due(NOW).exists():
            backfill(NOW)
        assert (statuses(one), statuses(other)) == ({"pending": 5}, {"pending": 5})
        one.cancel(initiator=SOMEBODY, now=NOW)
        backfill(NOW)
        assert statuses(other) == {"pending": 10}

    def test_to_close_the_schedule_cancels_its_backfills(self, schedule: Schedule) -> None:
        asked, done = ask(schedule, -1_000, -1), ask(schedule, -1, -1)
        backfill(NOW)
        schedule.close(initiator=SOMEBODY, now=minutes(1))
        assert (fresh(asked).status, fresh(done).status) == ("cancelled", "done")
        assert fresh(asked).reason == "The schedule was closed."
        assert (statuses(asked), statuses(done)) == ({"cancelled": 100}, {"cancelled": 1})
        tick(minutes(2))
        assert asked.occurrences.count() == 100


class TestABadOneStopsNobody:
    @pytest.fixture
    def good(self) -> Backfill:
        return ask(make_schedule(spec=EVERY_MINUTE), -3, -1)

    def test_a_spec_that_cannot_be_read_any_more_cancels_it(
        self, schedule: Schedule, good: Backfill, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad = ask(schedule, -1_000, -1)
        Backfill.objects.filter(pk=bad.pk).update(spec={"cron": ["0 0 * *"]}, slice_at=minutes(-1))
        backfill(NOW)
        assert fresh(bad).status == "cancelled"
        assert fresh(bad).reason.startswith("It cannot go on: cron: ")
        activity = Activity.objects.get(operation="cancel_backfill")
        assert (activity.initiator_type, activity.message) == ("system", fresh(bad).reason)
        assert f"backfill {bad.pk} cannot go on" in caplog.text
        assert (fresh(good).status, len(times(good))) == ("done", 3)

    def test_one_whose_occurrences_the_database_refuses_is_cancelled(
        self, schedule: Schedule, good: Backfill
    ) -> None:
        bad = ask(schedule, -1_000, -1)
        Backfill.objects.filter(pk=bad.pk).update(slice_at=minutes(-1))
        with database_that_refuses(
            f"NEW.backfill_id = {bad.pk}", table="schedules_occurrence", event="INSERT"
        ):
            backfill(NOW)
        assert (fresh(bad).status, times(bad)) == ("cancelled", [])
        assert "this row is refused" in fresh(bad).reason
        assert len(times(good)) == 3

    def test_one_that_cannot_even_be_cancelled_is_left_alone(
        self, schedule: Schedule, good: Backfill, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad = ask(schedule, -1_000, -1)
        Backfill.objects.filter(pk=bad.pk).update(slice_at=minutes(-1))
        with database_that_refuses(f"NEW.id = {bad.pk}", table="schedules_backfill"):
            backfill(NOW)
        assert f"backfill {bad.pk} can neither go on nor be cancelled" in caplog.text
        assert (fresh(bad).status, times(bad)) == ("open", [])
        assert len(times(good)) == 3


class TestProgress:
    def test_it_tells_how_far_it_is(self, schedule: Schedule, settings: Any, pinned: Pinned) -> None:
        settings.JIM_BACKFILL_SLICE = 6
        happen(schedule, minutes(-10), "completed")
        asked = ask(schedule, -10, -1, which="missing", overlap="buffer_all")
        assert fresh(asked).progress() == (10, 0, 0, 0, 0, 0, 0)
        tick(NOW)
        asked.occurrences.filter(nominal_at=minutes(-6)).settle("cancelled", reason="x", now=NOW)
        run_until_idle()
        tick(NOW)
        current = Backfill.objects.select_related("schedule").get(pk=asked.pk)
        with pinned(2):
            progress = current.progress()
        assert progress._asdict() == {
            "total": 10,
            "passed": 10,
            "added": 9,
            "waiting": 6,
            "started": 2,
            "running": 1,
            "not_started": 1,
        }
        assert progress.settled == 3

    def test_what_runs_is_told_apart(self, schedule: Schedule) -> None:
        asked, other = ask(schedule, -30, -16, overlap="allow_all"), ask(schedule, -15, -1)
        tick(NOW)
        progress = fresh(asked).progress()
        assert (progress.started, progress.running, progress.waiting) == (10, 10, 5)
        assert (fresh(other).progress().running, fresh(other).progress().waiting) == (0, 15)


def test_old_ones_are_pruned_after_their_occurrences(schedule: Schedule) -> None:
    old, still_known, unfinished = ask(schedule), ask(schedule), ask(schedule, -1_000, -1)
    for each in (old, still_known, unfinished):
        each.generate(NOW)
    old.occurrences.all().delete()
    assert Backfill.objects.prune(before=NOW, limit=10) == 0
    assert Backfill.objects.prune(before=NOW + timedelta(days=1), limit=10) == 1
    assert set(Backfill.objects.all()) == {still_known, unfinished}
