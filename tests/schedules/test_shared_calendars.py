"""Shared calendars: one edit moves the times of every schedule that uses it, or of none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from schedules.generator import generate
from schedules.models import Conflict, Occurrence, Refused, Schedule, SharedCalendar, timetable
from schedules.spec import timeline
from tests.base import NOW, SOMEBODY, everything, fates, fresh, make_schedule, seconds

pytestmark = pytest.mark.django_db
# NOW is a Monday, 03:00 UTC.
MONDAY, TUESDAY = {"dates": "2026-11-16"}, {"dates": "2026-11-17"}
HOURLY_BUT = {"cron": ["0 * * * *"], "exclude": [{"calendar": "days off"}]}
YEARS = {"dates": "2020-01-01/2099-12-31"}


def hours(number: float) -> datetime:
    return NOW + seconds(3600 * number)


def define(name: str = "days off", *excluded: Any, **fields: Any) -> SharedCalendar:
    return SharedCalendar.objects.define(name, list(excluded), initiator=SOMEBODY, now=NOW, **fields)


def edit(calendar: SharedCalendar, *excluded: Any, now: datetime = NOW, token: int | None = None) -> None:
    changes = {"excluded": list(excluded)}
    calendar.edit(token=token or calendar.token, changes=changes, initiator=SOMEBODY, now=now)


def remove(calendar: SharedCalendar) -> None:
    calendar.remove(initiator=SOMEBODY, now=NOW)


def close(schedule: Schedule) -> None:
    schedule.close(initiator=SOMEBODY, now=NOW)


class TestDefine:
    def test_it_is_kept_in_its_canonical_form_and_on_record(self) -> None:
        dates, weekend = {"dates": "2026-12-25/2026-12-25"}, {"day_of_week": [6, 7]}
        calendar = fresh(define(" Cafe\u0301 ", dates, weekend, description=" x\r\ny "))
        assert (calendar.name, calendar.description, calendar.token) == ("Café", "x\ny", 1)
        assert calendar.excluded == [{"dates": "2026-12-25"}, {"day_of_week": "6,7"}]
        made = Activity.objects.get(operation="create")
        assert (made.target_type, made.target_id, made.target_name) == (
            "sharedcalendar",
            str(calendar.pk),
            "Café",
        )
        assert (made.initiator_name, made.finished_at) == ("ada", NOW)
        assert made.details == {"name": "Café", "excluded": calendar.excluded, "description": "x\ny"}

    @pytest.mark.parametrize(
        ("name", "excluded", "wrong", "words"),
        [
            ("", [], "name", "cannot be blank"),
            ("x" * 101, [], "name", "at most 100 characters"),
            ("TAKEN", [], "name", "A calendar with this name already exists"),
            ("x", {}, "excluded", "expected a list"),
            ("x", [{"holidays": "Atlantis"}], "excluded", "'Atlantis' is n"),
            ("x", [{"comment": "all of it"}], "excluded", "every time"),
            ("x", [{"calendar": "other"}], "excluded", "cannot refer to another calendar"),
            ("x", [{"dates": NOW}], "excluded", "expected text"),
            ("x", [MONDAY] * 1001, "excluded", "1,001 entries are too many"),
        ],
    )
    def test_nothing_is_saved_if_anything_is_wrong(
        self, name: str, excluded: Any, wrong: str, words: str
    ) -> None:
        define("taken")
        before = everything()
        with pytest.raises(ValidationError) as error:
            SharedCalendar.objects.define(name, excluded, initiator=SOMEBODY, now=NOW)
        ((field, (told, *_)),) = error.value.message_dict.items()
        assert (field.replace("__all__", "name"), words in told) == (wrong, True), told
        assert everything() == before


class TestUse:
    def test_a_schedule_keeps_what_its_calendars_exclude(self) -> None:
        define("days off", MONDAY)
        define("unused", TUESDAY)
        schedule = make_schedule(spec=HOURLY_BUT)
        assert schedule.calendars == {"days off": [MONDAY]}
        assert [str(calendar) for calendar in schedule.shared_calendars.all()] == ["days off"]
        assert schedule.next_run_at == hours(21)

    def test_one_that_does_not_exist_is_refused_with_advice(self) -> None:
        for others, words in (
            ([], "create it first: none exist yet"),
            (["UK", "US"], "choose one of: UK, US"),
            (["Days Off!"], "did you mean Days Off!?"),
        ):
            for name in others:
                define(name)
            with pytest.raises(ValidationError) as error:
                make_schedule(spec=HOURLY_BUT)
            told = f"unknown calendar 'days off'; {words}"
            assert error.value.message_dict == {"spec.exclude": [told]}
        for name in ("a\x00b", "x" * 5000, "", "\ud800"):
            with pytest.raises(ValidationError, match="unknown calendar"):
                make_schedule(spec={"every": ["1h"], "exclude": [{"calendar": name}]})

    def test_a_new_spec_takes_up_and_drops_calendars(self) -> None:
        calendar, without = define("days off", MONDAY), {"cron": ["0 * * * *"]}
        schedule = make_schedule(spec=without)
        for spec, users, kept, at in ((HOURLY_BUT, [schedule], [MONDAY], 21), (without, [], None, 1)):
            schedule.edit(token=fresh(schedule).token, changes={"spec": spec}, initiator=SOMEBODY, now=NOW)
            assert (calendar.used_by(), fresh(schedule).next_run_at) == (users, hours(at))
            assert fresh(schedule).calendars.get("days off") == kept


class TestEdit:
    def test_the_times_of_the_schedules_that_use_it_move(self) -> None:
        calendar = define("days off", TUESDAY)
        schedule, other = make_schedule(spec=HOURLY_BUT), make_schedule(spec={"cron": ["0 * * * *"]})
        paused = make_schedule(spec=HOURLY_BUT, paused=True)
        edit(calendar, MONDAY, now=hours(2.5))
        for each in (schedule, paused):
            assert fresh(each).calendars == {"days off": [MONDAY]}
            assert (fresh(each).processed_until, fresh(each).next_run_at) == (hours(2.5), hours(21))
            assert fresh(each).token == 2
        assert fresh(paused).status == "paused"
        assert (fresh(other).token, fresh(other).next_run_at) == (1, hours(1))
        assert (fresh(calendar).token, fresh(calendar).excluded) == (2, [MONDAY])

    def test_times_that_were_due_before_it_are_not_lost(self) -> None:
        """Those up to now are the old calendar's, whether a scheduler ran or not."""
        calendar = define("days off", TUESDAY)
        schedule = make_schedule(spec=HOURLY_BUT)
        generate(hours(1))
        edit(calendar, MONDAY, now=hours(3))
        generate(hours(30))
        times = Occurrence.objects.filter(schedule=schedule).order_by("nominal_at")
        found = [at for at in times.values_list("nominal_at", flat=True) if at < hours(22)]
        assert found == [hours(1), hours(2), hours(3), hours(21)]

    def test_what_somebody_skipped_and_what_the_buffer_drops_meanwhile_is_counted(
        self, settings: Any
    ) -> None:
        settings.JIM_BUFFER_LIMIT = 2
        calendar = define("days off", TUESDAY)
        schedule = make_schedule(spec=HOURLY_BUT)
        schedule.skip_next(initiator=SOMEBODY, now=NOW)
        edit(calendar, MONDAY, now=hours(6))
        assert [status for status, _ in fates(schedule)] == ["skipped", *["dropped"] * 3, *["pending"] * 2]
        schedule = fresh(schedule)
        assert (schedule.skips, schedule.skipped_reasons) == ({}, {"on request": 1})
        assert schedule.dropped_count == 3

    def test_it_is_on_record_for_the_calendar_and_for_each_schedule(self) -> None:
        calendar = define("days off", TUESDAY)
        schedule = make_schedule(name="Nightly", spec=HOURLY_BUT)
        edit(calendar, MONDAY)
        of_schedule, of_calendar = Activity.objects.filter(operation="edit").order_by("pk")
        assert (of_schedule.target_type, of_schedule.target_id) == ("schedule", str(schedule.pk))
        assert of_schedule.message == "The calendar “days off” was edited."
        assert of_schedule.details == {
            "before": {"calendars": {"days off": [TUESDAY]}},
            "after": {"calendars": {"days off": [MONDAY]}},
        }
        assert (of_calendar.target_type, of_calendar.target_name) == ("sharedcalendar", "days off")
        assert of_calendar.details == {
            "before": {"excluded": [TUESDAY], "description": ""},
            "after": {"excluded": [MONDAY], "description": ""},
        }
        assert (of_schedule.initiator_name, of_calendar.initiator_name) == ("ada", "ada")

    def test_a_new_description_touches_no_schedule_and_nothing_a_closed_one(self) -> None:
        calendar = define("days off", MONDAY)
        schedule = make_schedule(spec=HOURLY_BUT)
        before = everything()["Schedule"]
        calendar.edit(token=1, changes={"description": "Ask Ada"}, initiator=SOMEBODY, now=hours(5))
        assert (fresh(calendar).description, fresh(calendar).token) == ("Ask Ada", 2)
        assert everything()["Schedule"] == before
        close(schedule)
        before = everything()["Schedule"]
        edit(fresh(calendar), YEARS)
        assert everything()["Schedule"] == before

    def test_only_what_the_schedule_names_is_replaced(self) -> None:
        define("a", MONDAY)
        b = define("b", TUESDAY)
        both = [{"calendar": "a"}, {"calendar": "b"}]
        schedule = make_schedule(spec={"cron": ["0 * * * *"], "exclude": both})
        assert schedule.next_run_at == hours(45)
        edit(b)
        assert fresh(schedule).calendars == {"a": [MONDAY], "b": []}
        assert fresh(schedule).next_run_at == hours(21)

    def test_one_that_has_ended_already_is_in_nobodys_way(self) -> None:
        calendar = define("days off", TUESDAY)
        spec = {"at": ["2026-11-16T04:00:00Z"], "exclude": [{"calendar": "days off"}]}
        schedule = make_schedule(spec=spec)
        generate(hours(1))
        edit(calendar, YEARS, now=hours(2))
        assert (fresh(schedule).next_run_at, fresh(schedule).token) == (None, 2)

    def test_a_broken_schedule_is_in_nobodys_way_and_may_be_mended(self) -> None:
        calendar = define("days off", TUESDAY)
        broken, mended = (make_schedule(spec=HOURLY_BUT) for _ in range(2))
        nonsense = {"cron": ["x"], "exclude": HOURLY_BUT["exclude"]}
        Schedule.objects.filter(pk=broken.pk).update(spec=nonsense, spec_error="?", next_run_at=None)
        Schedule.objects.filter(pk=mended.pk).update(
            calendars={"days off": "?"}, spec_error="?", next_run_at=None
        )
        edit(calendar, MONDAY)
        assert fresh(broken).spec_error.startswith("cron: ")
        assert (fresh(broken).next_run_at, fresh(broken).calendars) == (None, {"days off": [MONDAY]})
        assert (fresh(mended).spec_error, fresh(mended).next_run_at) == ("", hours(21))
        edits = Activity.objects.filter(target_type="schedule", operation="edit")
        words = "are not recorded: the spec was invalid (?)"
        told = {each.target_id: words in each.message for each in edits}
        assert told == {str(broken.pk): False, str(mended.pk): True}


class TestRefusedEdit:
    def refused(self, error: Any, call: Callable[[], object], match: str) -> None:
        before = everything()
        with pytest.raises(error, match=match):
            call()
        assert everything() == before

    def test_a_stale_token(self) -> None:
        calendar = define("days off", MONDAY)
        edit(fresh(calendar), TUESDAY)
        stale = partial(edit, calendar, MONDAY, token=1)
        self.refused(Conflict, stale, "calendar was changed in the meantime")
        stale = partial(calendar.remove, initiator=SOMEBODY, now=NOW, token=1)
        self.refused(Conflict, stale, "calendar was changed in the meantime")

    def test_a_deleted_calendar(self) -> None:
        calendar = define()
        remove(fresh(calendar))
        self.refused(Refused, partial(edit, calendar, MONDAY), "“days off” was deleted in the meantime")

    @pytest.mark.parametrize("changes", [{"excluded": "x"}, {"name": "other"}, {"token": 7}])
    def test_what_is_wrong(self, changes: dict[str, Any]) -> None:
        calendar = define()
        call = partial(calendar.edit, token=1, changes=changes, initiator=SOMEBODY, now=NOW)
        self.refused(ValidationError, call, next(iter(changes)))

    def test_schedules_that_would_have_no_time_left_are_named(self) -> None:
        calendar = define()
        spec = {"at": ["2026-11-17T09:00:00Z"], "exclude": [{"calendar": "days off"}]}
        make_schedule(name="untouched", spec=HOURLY_BUT)
        for number in range(6):
            make_schedule(name=f"once {number}", spec=spec)
        words = (
            "“once 0”, “once 1”, “once 2”, “once 3”, “once 4” and 1 more would have no scheduled times left"
        )
        self.refused(Refused, partial(edit, calendar, TUESDAY), words)

    def test_a_schedule_whose_spec_would_break_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "CANDIDATES", 500)
        calendar = define()
        make_schedule(name="Tireless", spec={"every": ["2s"], "exclude": [{"calendar": "days off"}]})
        words = "The spec of “Tireless” would break: exclude: no scheduled times are left"
        self.refused(Refused, partial(edit, calendar, {"second": "*/2"}), words)

    def test_a_schedule_whose_times_would_come_too_close_together_is_named(self, settings: Any) -> None:
        settings.JIM_MINIMUM_INTERVAL_SECONDS = 60
        calendar = define("days off", {"second": "30"})
        make_schedule(name="Hasty", spec={"every": ["30s"], "exclude": [{"calendar": "days off"}]})
        self.refused(Refused, partial(edit, calendar), r"The spec of “Hasty” would break: every: .* are 30s")

    def test_a_schedule_that_is_far_behind_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timetable, "TIMES_PER_PASS", 2)
        monkeypatch.setattr(timetable, "EDIT_PASSES", 2)
        calendar = define()
        make_schedule(name="Behind", spec=HOURLY_BUT)
        late = partial(edit, calendar, TUESDAY, now=hours(6))
        self.refused(Refused, late, "“Behind” is catching up with times that have passed. Try again")


class TestRemove:
    def test_it_stays_while_open_schedules_use_it_and_leaves_its_record(self) -> None:
        calendar = define("days off", MONDAY)
        schedules = [make_schedule(name=f"user {number}", spec=HOURLY_BUT) for number in range(7)]
        schedules[6].pause(initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match=r"is used by “user 0”, .*, “user 4” and 2 more\. Change or close"):
            remove(calendar)
        for schedule in schedules:
            close(schedule)
        remove(calendar)
        assert not SharedCalendar.objects.exists()
        assert fresh(schedules[0]).compiled_spec.calendar_names == ("days off",)
        gone = Activity.objects.get(operation="delete")
        assert (gone.target_name, gone.details) == ("days off", {"excluded": [MONDAY], "description": ""})


class TestWords:
    def test_it_says_what_it_leaves_out_also_when_it_is_broken(self) -> None:
        assert define("nothing").describe() == "Nothing"
        told = define("x", MONDAY, {"holidays": "GB"}).describe()
        assert told == "16 November 2026 and public holidays (United Kingdom)"
        broken = SharedCalendar(name="x", excluded=[{"holidays": "XX"}])
        assert broken.describe().startswith("Invalid calendar: 'XX' is n")
        assert broken.upcoming_dates(2026) == []

    def test_the_dates_of_a_year_have_names(self) -> None:
        freeze = {"dates": "2026-12-30/2027-01-02", "comment": "freeze"}
        calendar = define("x", {"holidays": "GB", "subdivision": "ENG"}, freeze, {"day_of_week": "sun"})
        dates = calendar.upcoming_dates(2027)
        assert dates[:3] == [
            (date(2027, 1, 1), "New Year's Day"),
            (date(2027, 1, 1), "freeze"),
            (date(2027, 1, 2), "freeze"),
        ]
        assert (date(2027, 5, 3), "May Day") in dates
        assert {day.year for day, _ in dates} == {2027}

    def test_days_that_a_rule_leaves_out_as_a_whole_are_known(self) -> None:
        between = {"day_of_month": "27-28", "month": "dec", "comment": "closed"}
        night = {"hour": "22-23", "day_of_week": "mon"}
        calendar = define("x", between, night, {"dates": "2027-01-01"})
        found = [(date(2027, 12, 27), "closed"), (date(2027, 12, 28), "closed")]
        assert calendar.matching_days(2027) == found
        assert len(define("y", {"day_of_week": "sat,sun"}).matching_days(2027)) == 104


def test_many_schedules_are_all_moved_with_as_many_statements_as_few() -> None:
    calendar, counts = define("days off", TUESDAY), []
    for number, excluded in ((2, MONDAY), (10, TUESDAY)):
        for _ in range(number):
            make_schedule(spec=HOURLY_BUT)
        with CaptureQueriesContext(connection) as queries:
            edit(calendar, excluded)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    edit(calendar, MONDAY, now=hours(1))
    moved = Schedule.objects.filter(processed_until=hours(1), next_run_at=hours(21))
    edits = Activity.objects.filter(operation="edit", target_type="schedule", created_at=hours(1))
    assert moved.filter(calendars={"days off": [MONDAY]}).count() == edits.count() == 12
