"""Every nominal time becomes exactly one occurrence, whatever happens around it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from django.db import OperationalError

from execution.loops.invoker import invoke
from operations.initiator import Initiator
from schedules import generator
from schedules.generator import end_snoozes, fill, generate
from schedules.models import Occurrence, Schedule, timetable
from schedules.overlap import MISSED
from schedules.spec import timeline
from tests.base import NOW, SOMEBODY, everything, fates, fresh, make_schedule, seconds
from tests.refusing import database_that_refuses
from tests.timeline import minutes

pytestmark = pytest.mark.django_db
EVERY_MINUTE = {"cron": ["* * * * *"]}


def times(schedule: Schedule) -> list[datetime]:
    return list(schedule.occurrences.order_by("nominal_at").values_list("nominal_at", flat=True))


class TestGenerate:
    def test_an_occurrence_is_known_by_its_nominal_time(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE, name="Nightly")
        generate(minutes(1.5))
        occurrence = Occurrence.objects.get()
        assert (occurrence.key, occurrence.source) == ("auto/2026-11-16T03:01:00Z", "auto")
        assert (occurrence.nominal_at, occurrence.due_at) == (minutes(1), minutes(1))
        assert occurrence.initiator == Initiator("schedule", str(schedule.pk), "Nightly")

    def test_a_cursor_or_clock_that_goes_back_loses_and_doubles_nothing(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        for at in (3, 1, 2, 4):
            generate(minutes(at))
        assert times(schedule) == [minutes(n) for n in range(1, 5)]
        Schedule.objects.update(processed_until=NOW, next_run_at=minutes(1))
        generate(minutes(6))
        assert times(schedule) == [minutes(n) for n in range(1, 7)]

    def test_thousands_of_missed_times_come_in_passes_and_none_is_lost(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timetable, "TIMES_PER_PASS", 10)
        far, near = make_schedule(spec=EVERY_MINUTE), make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.filter(pk=near.pk).update(processed_until=minutes(46), next_run_at=minutes(47))
        generate(minutes(47))
        assert times(far) == [minutes(n) for n in range(1, 48)]
        assert times(near) == [minutes(47)]

    def test_one_that_is_far_behind_holds_up_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A tick leaves most of its times to the next ones, and starts what is on time."""
        monkeypatch.setattr(timetable, "TIMES_PER_PASS", 10)
        monkeypatch.setattr(generator, "OCCURRENCES_PER_PASS", 9)
        far = [make_schedule(spec=EVERY_MINUTE) for _ in range(4)]
        near = make_schedule(spec={"at": [minutes(70).isoformat()]})
        generate(minutes(70))
        assert times(near) == [minutes(70)]
        assert sum(len(times(schedule)) for schedule in far) == 10 * generator.PASSES_PER_TICK < 280
        for _ in range(100):
            if not Schedule.objects.due(minutes(70)).exists():
                break
            generate(minutes(70))
        assert [len(times(schedule)) for schedule in far] == [70] * 4

    def test_the_cursor_moves_for_what_will_be_skipped_too(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        for at in (1, 2):
            generate(minutes(at))
            invoke(minutes(at))
        assert [status for status, _ in fates(schedule)] == ["started", "skipped"]
        assert (fresh(schedule).processed_until, fresh(schedule).next_run_at) == (minutes(2), minutes(3))


class TestTheCatchUpWindow:
    def test_what_came_too_late_is_missed_and_fills_no_buffer(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 3
        schedule = make_schedule(spec=EVERY_MINUTE, catch_up_seconds=120)
        generate(minutes(7))
        assert fates(schedule) == [("missed", MISSED)] * 4 + [("pending", "")] * 3
        assert set(schedule.occurrences.filter(status="missed").values_list("settled_at")) == {(minutes(7),)}
        assert (fresh(schedule).missed_count, fresh(schedule).dropped_count) == (4, 0)

    def test_what_comes_while_it_is_paused_is_measured_at_the_resume(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE, catch_up_seconds=0, paused=True)
        generate(minutes(2))
        assert fates(schedule) == [("pending", "")] * 2


class TestASearchThatGivesUp:
    """Every second of 2026, and from then on nothing but exclusions."""

    SPEC: ClassVar = {
        "cron": ["* * * * * * *"],
        "exclude": [{"year": "2027-2100", "second": "0-58"}, {"year": "2027-2100", "second": 59}],
    }
    BEFORE = datetime(2026, 12, 31, 23, 59, 50, tzinfo=UTC)

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "CANDIDATES", 1_000)

    @pytest.mark.parametrize("later", [15, 3_600])
    def test_what_was_found_before_stands(self, later: int) -> None:
        schedule = make_schedule(spec=self.SPEC, now=self.BEFORE)
        generate(self.BEFORE + seconds(later))
        assert times(schedule) == [self.BEFORE + seconds(n) for n in range(1, 10)]
        schedule = fresh(schedule)
        assert (schedule.next_run_at, "no scheduled times are left" in schedule.spec_error) == (None, True)

    def test_it_can_be_closed_and_edited(self) -> None:
        now = self.BEFORE + seconds(3_600)
        closed, edited = (make_schedule(spec=self.SPEC, now=self.BEFORE) for _ in range(2))
        closed.close(initiator=SOMEBODY, now=now)
        edited.edit(token=1, initiator=SOMEBODY, now=now, changes={"spec": {"every": ["1h"]}})
        assert (len(times(closed)), len(times(edited))) == (9, 9)


class TestABadScheduleStopsNobody:
    def test_a_broken_spec_is_marked_and_the_others_go_on(self) -> None:
        """It keeps its cursor, so that nothing is pretended."""
        good, bad, worse = (make_schedule(spec=EVERY_MINUTE) for _ in range(3))
        Schedule.objects.filter(pk=bad.pk).update(spec={"cron": ["0 0 * *"]})
        Schedule.objects.filter(pk=worse.pk).update(spec=["not", "an", "object"])
        generate(minutes(1))
        assert "got 4" in fresh(bad).spec_error
        for each in (bad, worse):
            assert (fresh(each).next_run_at, fresh(each).status) == (None, "active")
            assert (fresh(each).processed_until, times(each)) == (NOW, [])
        assert times(good) == [minutes(1)]
        before = everything()["Schedule"]
        generate(minutes(1))
        assert everything()["Schedule"] == before

    def test_one_whose_occurrences_the_database_refuses_is_marked_and_the_others_go_on(self) -> None:
        bad, *others = (make_schedule(spec=EVERY_MINUTE, name=name) for name in ("Bad", "b", "c", "d"))
        refused = "NEW.initiator_name = 'Bad'"
        with database_that_refuses(refused, table="schedules_occurrence", event="INSERT"):
            generate(minutes(2))
        assert "this row is refused" in fresh(bad).spec_error
        assert times(bad) == []
        for schedule in others:
            assert times(schedule) == [minutes(1), minutes(2)]

    def test_trouble_that_may_pass_takes_no_schedule_out_of_the_clockwork(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        trouble = database_that_refuses(
            "1 = 1", table="schedules_occurrence", event="INSERT", error="trouble"
        )
        with trouble, pytest.raises(OperationalError):
            generate(minutes(2))
        assert fresh(schedule).spec_error == ""
        generate(minutes(2))
        assert times(schedule) == [minutes(1), minutes(2)]


def test_the_buffer_holds_a_thousand() -> None:
    schedule = make_schedule(spec={"every": ["1s"]}, paused=True)
    generate(NOW + seconds(1_200))
    told = [status for status, _ in fates(schedule)]
    assert told == ["dropped"] * 200 + ["pending"] * 1_000


def test_a_pause_without_an_end_stays() -> None:
    schedule = make_schedule()
    schedule.pause(initiator=SOMEBODY, now=NOW)
    end_snoozes(NOW + timedelta(days=1_000))
    assert fresh(schedule).status == "paused"


class TestFill:
    """Schedules that came into the database without a next time."""

    def test_one_that_is_due_is_never_moved(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        fill(minutes(30))
        assert fresh(schedule).next_run_at == minutes(1)

    def test_a_broken_one_is_marked_and_the_others_are_filled(self) -> None:
        bad, good = make_schedule(spec=EVERY_MINUTE), make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.update(processed_until=None, next_run_at=None)
        Schedule.objects.filter(pk=bad.pk).update(spec={"cron": 7})
        fill(NOW)
        assert fresh(bad).spec_error
        assert (fresh(bad).next_run_at, fresh(good).next_run_at) == (None, minutes(1))
