"""The past times of a range: asked for, looked at beforehand, generated in slices, cancelled."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import OperationalError, connection
from pytest_django import DjangoAssertNumQueries

from activities.models import Activity
from database import clock
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import is_due, tick
from execution.models import Execution
from schedules import generator
from schedules.generator import backfill, generate
from schedules.models import Backfill, Occurrence, Refused, Schedule
from schedules.models import backfill as backfill_module
from schedules.models.backfill import Progress, Survey
from schedules.operations import BackfillForm
from tests.api.calling import Caller
from tests.base import (
    NOW,
    SOMEBODY,
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
from tests.timeline import minutes

pytestmark = pytest.mark.django_db
EVERY_MINUTE = {"cron": ["* * * * *"]}
EVERY_SECOND = {"every": ["1s"]}
DAY = 24 * 60
# A savepoint (BEGIN and COMMIT in real life), the locked schedule, the backfill, what is pending, how many
# are open, the new rows, the cursor.
SLICE = 8
FAILED = {"failed", "completed, failed", "failed, gone"}


@pytest.fixture
def schedule() -> Schedule:
    return make_schedule(spec=EVERY_MINUTE, name="Nightly")


@pytest.fixture(autouse=True)
def plenty_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not decide how many backfills have their turn in a tick."""
    monkeypatch.setattr(generator, "BACKFILL_SECONDS", 60)


def ask(schedule: Schedule, start: float = -10, end: float = -1, **fields: Any) -> Backfill:
    """For the times between two minutes, as seen from now."""
    given: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW, "which": "all"} | fields
    return Backfill.objects.ask(schedule, start_at=minutes(start), end_at=minutes(end), **given)


def survey(schedule: Schedule, start: float, end: float, **fields: Any) -> Survey:
    given: dict[str, Any] = {"start_at": minutes(start), "end_at": minutes(end), "now": NOW}
    return Backfill.objects.survey(schedule, **given | {"which": "all"} | fields)


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
            (-100 * DAY, -100 * DAY, [-100 * DAY]),
        ],
    )
    def test_the_range_includes_both_its_ends(
        self, schedule: Schedule, start: float, end: float, expected: list[float]
    ) -> None:
        asked = ask(schedule, start, end)
        assert asked.total == len(expected)
        asked.generate(NOW)
        assert times(asked) == [minutes(number) for number in expected]

    def test_it_keeps_and_records_who_asked_for_what_and_leaves_the_definition_alone(
        self, schedule: Schedule
    ) -> None:
        before = fresh(schedule).token
        asked = fresh(ask(schedule, -10, -1, which="missing", overlap="allow_all"))
        assert (asked.status, asked.which, asked.overlap) == ("open", "missing", "allow_all")
        assert (asked.total, asked.passed_count, asked.added_count) == (10, 0, 0)
        assert (asked.initiator, asked.created_at, asked.slice_at) == (SOMEBODY, NOW, NOW)
        activity = Activity.objects.get(operation="backfill")
        assert (activity.target_type, activity.target_id) == ("schedule", str(schedule.pk))
        assert (activity.initiator_name, activity.details) == (
            "ada",
            {
                "backfill": asked.pk,
                "start_at": "2026-11-16T02:50:00Z",
                "end_at": "2026-11-16T02:59:00Z",
                "which": "missing",
                "overlap": "allow_all",
                "total": 10,
                "chosen": 10,
            },
        )
        assert fresh(schedule).token == before

    def test_a_paused_schedule_can_be_backfilled_and_a_later_edit_does_not_change_its_times(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE, paused=True)
        asked = ask(schedule, -3, -1)
        schedule.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"spec": {"cron": ["0 0 1 1 *"]}})
        tick(NOW)
        assert statuses(asked) == {"started": 1, "pending": 2}
        assert times(asked) == [minutes(-3), minutes(-2), minutes(-1)]

    @pytest.mark.parametrize(
        ("start", "end", "fields", "field", "words"),
        [
            (-1, -2, {}, "end_at", "ends before it starts"),
            (-1, 0.01, {}, "end_at", "ends in the future"),
            (-2, -1, {"which": "some"}, "which", "'some' is not a valid choice"),
            (-2, -1, {"overlap": "never"}, "overlap", "'never' is not a valid choice"),
            (-0.9, -0.1, {}, "end_at", "no scheduled times in this range"),
            (
                -3,
                -1,
                {"which": "failed"},
                "which",
                "This backfill would not start any runs. Scheduled times in the range: 3 (3 never executed). "
                "Choose another range, or “All times”.",
            ),
            (-40_000_000, -1, {}, "start_at", "Choose a start in 1970 or later."),
            (
                -90 * DAY - 1,
                -1,
                {"which": "failed"},
                "start_at",
                "Choose a start of Tue 2026-08-18 04:00:00",
            ),
        ],
    )
    def test_a_wrong_range_is_refused_by_field(
        self, schedule: Schedule, start: float, end: float, fields: dict[str, str], field: str, words: str
    ) -> None:
        before = everything()
        with pytest.raises(ValidationError) as refused:
            ask(schedule, start, end, **fields)
        ((wrong, (told,)),) = refused.value.message_dict.items()
        assert (wrong, words in told) == (field, True), told
        assert everything() == before

    def test_too_many_times_are_refused_with_their_number(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backfill_module, "MOST_TIMES", 1_000)
        assert ask(schedule, -1_000, -1).total == 1_000
        with pytest.raises(ValidationError, match="scheduled times: choose a shorter range"):
            ask(schedule, -1_001, -1)
        with pytest.raises(
            ValidationError, match=r"about 8,645,000 scheduled times: .* with at most 1,000 times"
        ):
            ask(make_schedule(spec=EVERY_SECOND), -100 * DAY, 0)

    def test_a_schedule_that_has_no_times_to_start_is_refused(self, schedule: Schedule) -> None:
        with pytest.raises(Refused, match="“By hand” has no scheduled times"):
            ask(make_schedule(spec={}, name="By hand"))
        Schedule.objects.filter(pk=schedule.pk).update(spec={"cron": ["0 0 * *"]})
        with pytest.raises(Refused, match="The spec of “Nightly” is invalid: cron: "):
            ask(schedule)
        fresh(schedule).close(initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match="“Nightly” is closed: it can no longer be run"):
            ask(schedule)

    def test_a_schedule_has_so_many_open_backfills_at_most(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backfill_module, "MOST_OPEN", 3)
        first, *_ = [ask(schedule) for _ in range(3)]
        with pytest.raises(
            Refused, match="“Nightly” has 3 open backfills, which is the maximum: wait until one"
        ):
            ask(schedule)
        first.cancel(initiator=SOMEBODY, now=NOW)
        ask(schedule)
        assert ask(make_schedule(spec=EVERY_MINUTE)).status == "open"

    def test_times_that_change_while_they_are_counted_are_looked_at_again(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = Backfill.survey

        def count_while_somebody_edits(draft: Backfill, *, limit: int) -> Any:
            schedule.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"spec": {"cron": ["0 * * * *"]}})
            return count(draft, limit=limit)

        monkeypatch.setattr(Backfill, "survey", count_while_somebody_edits)
        with pytest.raises(Refused, match="The scheduled times of “Nightly” have just changed"):
            ask(schedule)
        assert not Backfill.objects.exists()


class TestSurvey:
    def test_it_counts_the_times_and_names_the_first_and_the_last(
        self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also those of several looks together; an empty range is an answer."""
        before = everything()
        for per_look in (1_000, 7):
            monkeypatch.setattr(backfill_module, "TIMES_PER_LOOK", per_look)
            found = survey(schedule, -60, -1, limit=10)
            assert (found.total, found.chosen, found.left_out) == (60, 60, {})
            assert found.times == [minutes(number) for number in range(-60, -50)]
            assert found.last == minutes(-1)
        nothing = survey(schedule, -0.9, -0.1)
        assert (nothing.total, nothing.chosen, nothing.times, nothing.last) == (0, 0, [], None)
        assert everything() == before

    def test_memory_stays_flat(self) -> None:
        schedule = make_schedule(spec=EVERY_SECOND)
        survey(schedule, -10, 0)
        tracemalloc.start()
        assert survey(schedule, -300, 0).total == 18_001
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 300_000


class TestWhich:
    """Every minute has a history of its own; each backfill chooses by it."""

    HISTORIES = (
        *("none", "completed", "failed", "failed, completed", "completed, failed", "running", "cancelled"),
        *("pending", "failed, pending", "skipped", "gone", "failed, gone"),
    )

    @pytest.mark.parametrize(
        ("which", "chosen", "left_out"),
        [
            ("all", {*HISTORIES}, {}),
            ("missing", {"none", "skipped"}, {"already executed": 8, "already waiting": 2}),
            ("failed", FAILED, {"never executed": 2, "did not fail last time": 5, "already waiting": 2}),
        ],
    )
    def test_which_times(
        self, schedule: Schedule, which: str, chosen: set[str], left_out: dict[str, int]
    ) -> None:
        for place, history in enumerate(self.HISTORIES):
            for part in history.split(", "):
                happen(schedule, minutes(place - 20), part)
        found = survey(schedule, -20, -9, which=which, limit=100)
        expected = [minutes(place - 20) for place, what in enumerate(self.HISTORIES) if what in chosen]
        assert (found.total, found.chosen, found.times) == (12, len(chosen), expected)
        assert found.left_out == left_out
        asked = ask(schedule, -20, -9, which=which)
        assert asked.generate(NOW) == len(chosen)
        assert times(asked) == expected
        assert (fresh(asked).passed_count, fresh(asked).added_count) == (12, len(chosen))

    def test_what_is_forgotten_before_its_turn_comes_is_left_out(self, schedule: Schedule) -> None:
        asked = ask(schedule, -90 * DAY, -90 * DAY + 3, which="missing")
        assert asked.generate(minutes(2)) == 2
        assert times(asked) == [minutes(-90 * DAY + 2), minutes(-90 * DAY + 3)]
        assert (fresh(asked).passed_count, fresh(asked).added_count) == (4, 2)

    def test_the_same_request_twice_starts_a_missing_time_once(self, schedule: Schedule) -> None:
        first, second = ask(schedule, -3, -1, which="missing"), ask(schedule, -3, -1, which="missing")
        backfill(NOW)
        assert (statuses(first), statuses(second)) == ({"pending": 3}, {})
        assert fresh(second).status == "done"

    def test_the_histories_of_another_schedule_do_not_count(self, schedule: Schedule) -> None:
        happen(schedule, minutes(-1), "completed")
        assert survey(make_schedule(spec=EVERY_MINUTE), -2, -1, which="missing").chosen == 2


def happen(schedule: Schedule, at: datetime, what: str) -> None:
    """Something stands for that time."""
    if what in ("pending", "skipped", "gone"):
        occurrence = Occurrence.manual(schedule, initiator=SOMEBODY, now=NOW, at=at)
        occurrence.status = "started" if what == "gone" else what
        occurrence.due_at, occurrence.planned_at = None, minutes(60)
        occurrence.save()
    elif what != "none":
        occurrence = trigger(schedule, initiator=SOMEBODY, now=NOW, at=at, overlap="allow_all")
        execution, worker = Execution.objects.get(occurrence=occurrence), make_worker()
        if what == "cancelled":
            execution.cancel(initiator=SOMEBODY, now=NOW)
        elif (tasks := claim(worker)) and what != "running":
            end(worker, *tasks, status="complete" if what == "completed" else "failed_with_error")
        assert fresh(execution).status == {"running": "in_progress"}.get(what, what)


class TestGenerate:
    @pytest.mark.parametrize(
        ("size", "slices"),
        [(4, [("open", 4, -7), ("open", 8, -3), ("done", 10, -1)]), (5, [("open", 5, -6), ("done", 10, -1)])],
    )
    def test_a_slice_is_no_longer_than_the_setting_says_and_the_last_time_ends_it(
        self, schedule: Schedule, settings: Any, size: int, slices: list[tuple[str, int, int]]
    ) -> None:
        settings.JIM_BACKFILL_SLICE = size
        asked = ask(schedule, -10, -1)
        for status, count, until in slices:
            assert 0 < asked.generate(NOW) <= size
            now = fresh(asked)
            assert (now.status, now.passed_count, now.added_count) == (status, count, count)
            assert now.processed_until == minutes(until)
        assert asked.generate(NOW) == 0
        assert (fresh(asked).finished_at, fresh(asked).slice_at) == (NOW, None)
        assert times(asked) == [minutes(number) for number in range(-10, 0)]

    def test_an_occurrence_is_known_by_its_backfill_and_its_time(self, schedule: Schedule) -> None:
        """It stands beside the automatic one of the same time."""
        generate(minutes(1))
        asked = ask(schedule, 1, 1, overlap="allow_all", now=minutes(2))
        asked.generate(minutes(3))
        occurrence = asked.occurrences.get()
        assert occurrence.key == f"backfill/{asked.pk}/2026-11-16T03:01:00Z"
        assert (occurrence.source, occurrence.overlap) == ("backfill", "allow_all")
        assert (occurrence.nominal_at, occurrence.due_at) == (minutes(1), minutes(3))
        assert occurrence.initiator == SOMEBODY
        assert schedule.occurrences.filter(nominal_at=minutes(1)).count() == 2

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

    @pytest.mark.parametrize(("size", "which", "queries"), [(1, "all", SLICE), (100, "missing", SLICE + 1)])
    def test_a_slice_is_a_handful_of_statements_and_one_more_to_look_at_histories(
        self,
        schedule: Schedule,
        settings: Any,
        django_assert_num_queries: DjangoAssertNumQueries,
        size: int,
        which: str,
        queries: int,
    ) -> None:
        settings.JIM_BACKFILL_SLICE = size
        asked = ask(schedule, -500, -1, which=which)
        with django_assert_num_queries(queries):
            assert asked.generate(NOW) == size

    def test_without_an_open_one_a_tick_asks_once(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        with django_assert_num_queries(1):
            backfill(NOW)


class TestRoom:
    @pytest.fixture(autouse=True)
    def small(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT, settings.JIM_BACKFILL_SLICE = 40, 8

    def fill(self, *, now: datetime = NOW) -> None:
        while Backfill.objects.due(now).exists():
            backfill(now)

    def test_it_takes_half_of_the_buffer_and_goes_on_when_half_of_that_is_settled(
        self, schedule: Schedule
    ) -> None:
        asked = ask(schedule, -100, -1)
        self.fill()
        assert statuses(asked) == {"pending": 20}
        assert (fresh(asked).status, fresh(asked).slice_at) == ("open", None)
        assert not is_due(NOW - seconds(1))
        assert asked.generate(NOW) == 0
        settle(asked, 9)
        assert fresh(asked).slice_at is None
        settle(asked, 1, now=minutes(1))
        assert fresh(asked).slice_at == minutes(1)
        self.fill(now=minutes(1))
        assert statuses(asked) == {"skipped": 10, "pending": 20}

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
        self, schedule: Schedule, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        asked = ask(schedule, -100, -1)
        self.fill()
        with django_assert_num_queries(1):
            Backfill.objects.make_room([schedule.pk], now=NOW)
        Occurrence.objects.pending().settle("skipped", reason="overlap", now=NOW)
        with django_assert_num_queries(2 if connection.vendor == "postgresql" else 1):
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

    def test_a_live_time_of_its_own_schedule_goes_before_what_waits(self, schedule: Schedule) -> None:
        asked = ask(schedule, -40, -1)
        tick(NOW)
        assert statuses(asked) == {"started": 1, "pending": 39}
        tick(minutes(1))
        run_until_idle(now=minutes(1) + seconds(1))
        tick(minutes(1) + seconds(1))
        assert schedule.occurrences.automatic().get().status == "started"

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
        asked, now = ask(schedule, -1_000, -1), NOW
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
        activity = Activity.objects.get(operation="cancel_backfill")
        assert (activity.target_id, activity.message) == (str(schedule.pk), "A mistake.")
        assert activity.details == {"backfill": asked.pk, "stopped": 2}
        assert Execution.objects.get().status == "in_progress"
        tick(minutes(1))
        assert asked.occurrences.count() == 3
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

    @pytest.fixture
    def bad(self, schedule: Schedule) -> Backfill:
        """It has its turn before the good one."""
        bad = ask(schedule, -1_000, -1)
        Backfill.objects.filter(pk=bad.pk).update(slice_at=minutes(-1))
        return bad

    def test_a_spec_that_cannot_be_read_any_more_cancels_it(
        self, good: Backfill, bad: Backfill, caplog: pytest.LogCaptureFixture
    ) -> None:
        Backfill.objects.filter(pk=bad.pk).update(spec={"cron": ["0 0 * *"]})
        backfill(NOW)
        assert fresh(bad).status == "cancelled"
        assert fresh(bad).reason.startswith("The backfill cannot continue: cron: ")
        activity = Activity.objects.get(operation="cancel_backfill")
        assert (activity.initiator_type, activity.message) == ("system", fresh(bad).reason)
        assert f"backfill {bad.pk} cannot go on" in caplog.text
        assert (fresh(good).status, len(times(good))) == ("done", 3)

    def test_one_whose_occurrences_the_database_refuses_is_cancelled(
        self, good: Backfill, bad: Backfill
    ) -> None:
        refused = f"NEW.backfill_id = {bad.pk}"
        with database_that_refuses(refused, table="schedules_occurrence", event="INSERT"):
            backfill(NOW)
        assert (fresh(bad).status, times(bad)) == ("cancelled", [])
        assert "this row is refused" in fresh(bad).reason
        assert len(times(good)) == 3

    def test_one_that_cannot_even_be_cancelled_is_left_alone(
        self, good: Backfill, bad: Backfill, caplog: pytest.LogCaptureFixture
    ) -> None:
        with database_that_refuses(f"NEW.id = {bad.pk}", table="schedules_backfill"):
            backfill(NOW)
        assert f"backfill {bad.pk} can neither go on nor be cancelled" in caplog.text
        assert (fresh(bad).status, times(bad)) == ("open", [])
        assert len(times(good)) == 3


def test_it_tells_how_far_it_is(
    schedule: Schedule, settings: Any, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    settings.JIM_BACKFILL_SLICE = 6
    happen(schedule, minutes(-10), "completed")
    asked = ask(schedule, -10, -1, which="missing", overlap="buffer_all")
    assert fresh(asked).progress() == (10, 0, 0, 0, 0, 0, 0)
    tick(NOW)
    asked.occurrences.filter(nominal_at=minutes(-6)).settle("cancelled", reason="x", now=NOW)
    run_until_idle()
    tick(NOW)
    current = Backfill.objects.select_related("schedule").get(pk=asked.pk)
    with django_assert_num_queries(2):
        progress = current.progress()
    assert progress == Progress(total=10, passed=10, added=9, waiting=6, started=2, running=1, not_started=1)
    assert progress.settled == 3
    # What runs of another one is no part of it.
    other = ask(schedule, -15, -1)
    tick(NOW)
    assert (fresh(other).progress().running, fresh(other).progress().waiting) == (0, 6)


def test_old_ones_are_pruned_after_their_occurrences(schedule: Schedule) -> None:
    old, still_known, unfinished = ask(schedule), ask(schedule), ask(schedule, -1_000, -1)
    for each in (old, still_known, unfinished):
        each.generate(NOW)
    old.occurrences.all().delete()
    assert Backfill.objects.prune(before=NOW, limit=10) == 0
    assert Backfill.objects.prune(before=NOW + timedelta(days=1), limit=10) == 1
    assert set(Backfill.objects.all()) == {still_known, unfinished}


def test_every_face_has_the_models_defaults(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has run is not run again unless somebody asks for it."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    usual = {name: getattr(Backfill(), name) for name in ("which", "overlap")}
    assert usual == {"which": "missing", "overlap": "buffer_all"}
    assert {name: BackfillForm().fields[name].initial for name in usual} == usual
    between = {"start_at": minutes(-10).isoformat(), "end_at": minutes(-1).isoformat()}
    made = Caller("Operator").post(f"schedules/{schedule.pk}/backfills", between).json()["backfill"]
    given = [f"--from={minutes(-10).isoformat()}", f"--to={minutes(-1).isoformat()}"]
    call_command("backfill", "Nightly", *given, stdout=StringIO())
    asked = Backfill.objects.ask(
        schedule, start_at=minutes(-10), end_at=minutes(-1), initiator=SOMEBODY, now=NOW
    )
    for each in (Backfill.objects.get(pk=made), Backfill.objects.get(pk=made + 1), asked):
        assert (each.which, each.overlap) == ("missing", "buffer_all")
