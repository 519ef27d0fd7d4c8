"""Every nominal time becomes exactly one occurrence, whatever happens around it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from django.db import OperationalError

from execution.invoker import invoke
from execution.models import Execution
from schedules import generator
from schedules.generator import end_snoozes, fill, generate
from schedules.models import Occurrence, Schedule
from schedules.models import schedule as schedule_module
from schedules.overlap import MISSED
from schedules.spec import timeline
from tests.base import NOW, SOMEBODY, everything, fates, fresh, make_schedule, seconds
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db
EVERY_MINUTE = {"cron": ["* * * * *"]}


def minutes(number: float) -> datetime:
    return NOW + seconds(60 * number)


def times(schedule: Schedule) -> list[datetime]:
    return list(schedule.occurrences.order_by("nominal_at").values_list("nominal_at", flat=True))


class TestGenerate:
    def test_an_occurrence_is_known_by_its_nominal_time(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE, name="Nightly")
        generate(minutes(1.5))
        occurrence = Occurrence.objects.get()
        assert (occurrence.key, occurrence.source) == ("auto/2026-11-16T03:01:00Z", "auto")
        assert (occurrence.nominal_at, occurrence.due_at) == (minutes(1), minutes(1))
        assert (occurrence.initiator.type, occurrence.initiator.id, occurrence.initiator.name) == (
            "schedule",
            str(schedule.pk),
            "Nightly",
        )

    def test_a_cursor_that_was_set_back_makes_no_doubles(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        generate(minutes(5))
        Schedule.objects.update(processed_until=NOW, next_run_at=minutes(1))
        generate(minutes(6))
        assert times(schedule) == [minutes(n) for n in range(1, 7)]

    def test_a_clock_that_goes_back_loses_and_doubles_nothing(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        for at in (3, 1, 2, 4):
            generate(minutes(at))
        assert times(schedule) == [minutes(n) for n in range(1, 5)]

    def test_thousands_of_missed_times_come_in_passes_and_none_is_lost(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schedule_module, "TIMES_PER_PASS", 10)
        far, near = make_schedule(spec=EVERY_MINUTE), make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.filter(pk=near.pk).update(processed_until=minutes(46), next_run_at=minutes(47))
        generate(minutes(47))
        assert times(far) == [minutes(n) for n in range(1, 48)]
        assert times(near) == [minutes(47)]

    def test_one_that_is_far_behind_holds_up_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A tick leaves most of its times to the next ones, and starts what is on time."""
        monkeypatch.setattr(schedule_module, "TIMES_PER_PASS", 10)
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

    def test_a_pass_takes_at_most_a_thousand_times_of_one_schedule(self) -> None:
        schedule = make_schedule(spec={"every": ["1s"]})
        assert len(fresh(schedule).generate(NOW + seconds(5_000))) == 1_000

    def test_the_cursor_moves_for_what_will_be_skipped_too(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        for at in (1, 2, 3):
            generate(minutes(at))
            invoke(minutes(at))
        assert [status for status, _ in fates(schedule)] == ["started", "skipped", "skipped"]
        assert fresh(schedule).next_run_at == minutes(4)
        assert fresh(schedule).processed_until == minutes(3)


class TestTheCatchUpWindow:
    def test_what_came_too_late_is_missed_and_fills_no_buffer(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 3
        schedule = make_schedule(spec=EVERY_MINUTE, catch_up_seconds=120)
        generate(minutes(7))
        assert fates(schedule) == [("missed", MISSED)] * 4 + [("pending", "")] * 3
        schedule = fresh(schedule)
        assert (schedule.missed_count, schedule.dropped_count) == (4, 0)
        assert set(schedule.occurrences.exclude(status="pending").values_list("settled_at")) == {
            (minutes(7),)
        }

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
        assert (schedule.next_run_at, "leaves nothing" in schedule.spec_error) == (None, True)

    def test_it_can_be_closed_and_edited(self) -> None:
        now = self.BEFORE + seconds(3_600)
        closed, edited = (make_schedule(spec=self.SPEC, now=self.BEFORE) for _ in range(2))
        closed.close(initiator=SOMEBODY, now=now)
        edited.edit(token=1, initiator=SOMEBODY, now=now, changes={"spec": {"every": ["1h"]}})
        assert (len(times(closed)), len(times(edited))) == (9, 9)


class TestABadScheduleStopsNobody:
    def test_a_broken_spec_is_marked_and_the_others_go_on(self) -> None:
        bad = make_schedule(spec=EVERY_MINUTE)
        good = make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.filter(pk=bad.pk).update(spec={"cron": ["0 0 * *"]})
        generate(minutes(1))
        assert "5 fields expected, got 4" in fresh(bad).spec_error
        assert (fresh(bad).next_run_at, fresh(bad).status) == (None, "running")
        assert times(good) == [minutes(1)]
        before = everything()["Schedule"]
        generate(minutes(1))
        assert everything()["Schedule"] == before

    def test_a_broken_one_keeps_its_cursor_so_that_nothing_is_pretended(self) -> None:
        bad = make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.update(spec=["not", "an", "object"])
        generate(minutes(10))
        assert fresh(bad).processed_until == NOW
        assert times(bad) == []

    def test_one_whose_occurrences_the_database_refuses_is_marked_and_the_others_go_on(self) -> None:
        bad = make_schedule(spec=EVERY_MINUTE, name="Bad")
        others = [make_schedule(spec=EVERY_MINUTE) for _ in range(3)]
        with database_that_refuses(
            "NEW.initiator_name = 'Bad'", table="schedules_occurrence", event="INSERT"
        ):
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


class TestBuffer:
    def test_the_buffer_holds_a_thousand(self) -> None:
        schedule = make_schedule(spec={"every": ["1s"]}, paused=True)
        generate(NOW + seconds(1_200))
        assert schedule.occurrences.pending().count() == 1_000
        assert schedule.occurrences.filter(status=Occurrence.Status.DROPPED).count() == 200
        kept = schedule.occurrences.pending().order_by("nominal_at").first()
        assert kept is not None
        assert kept.nominal_at == NOW + seconds(201)

    def test_so_it_is_for_one_that_was_down_for_long(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 3
        schedule = make_schedule(spec=EVERY_MINUTE)
        generate(minutes(5))
        assert [status for status, _ in fates(schedule)] == ["dropped"] * 2 + ["pending"] * 3


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
        Schedule.objects.filter(pk=bad.pk).update(spec={"cron": 7})
        self.unfilled(bad)
        self.unfilled(good)
        fill(NOW)
        assert fresh(bad).spec_error
        assert fresh(bad).next_run_at is None
        assert fresh(good).next_run_at == minutes(1)
        assert not Execution.objects.exists()

    def unfilled(self, schedule: Schedule) -> Schedule:
        Schedule.objects.filter(pk=schedule.pk).update(processed_until=None, next_run_at=None)
        return schedule
