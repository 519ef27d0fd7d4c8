"""Every version of a definition can be read and compared: who, when, what."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.paginator import Paginator

from activities.models import Activity
from schedules.models import Schedule, SharedCalendar
from schedules.revisions import Change, compare
from tests.base import NOW, SOMEBODY, fresh, make_schedule, seconds, step

HOURLY = {"cron": ["0 * * * *"]}
DAILY = {"cron": ["0 3 * * *"]}


def edit(schedule: Schedule, minute: int, *, steps: Any = None, **changes: Any) -> None:
    current = fresh(schedule)
    now = NOW + seconds(60 * minute)
    current.edit(token=current.token, initiator=SOMEBODY, now=now, changes=changes, steps=steps)


def record(schedule: Schedule, operation: str, details: Any) -> None:
    """As earlier versions wrote it."""
    Activity.objects.record(operation, schedule, initiator=SOMEBODY, now=NOW, details=details)


def plan(*names: str, indexes: str = "") -> dict[str, Any]:
    places = indexes or "0123456789"
    return {"steps": [step(name, int(place)) for name, place in zip(names, places, strict=False)]}


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"name": "a"}, {"name": "a"}, []),
        ({"timeout_seconds": None}, {"timeout_seconds": 60}, ["timeout_seconds: nothing → 60"]),
        ({"spec": {"cron": ["a", "b"]}}, {"spec": {"cron": ["x", "a", "b"]}}, ["spec.cron[0]: nothing → x"]),
        ({"spec": {"cron": ["a", "b", "c"]}}, {"spec": {"cron": ["a", "c"]}}, ["spec.cron[1]: b → nothing"]),
        (
            {"spec": {"every": [{"every": "1h", "offset": "5m"}]}},
            {"spec": {"every": [{"every": "1h", "offset": "6m"}], "cron": ["a"]}},
            ["spec.every[0].offset: 5m → 6m", 'spec.cron: nothing → ["a"]'],
        ),
        (
            {"memo": {"cost centre": "7"}},
            {"memo": {"cost centre": "8", "owner": "Ada"}},
            ["memo.“cost centre”: 7 → 8", "memo.owner: nothing → Ada"],
        ),
        ({"pause_on_failure": 0}, {"pause_on_failure": False}, ["pause_on_failure: 0 → false"]),
        (
            {"calendars": {"A": ["x"], "B": ["y"]}},
            {"calendars": {"B": ["z"], "C": ["y"]}},
            ["calendars.B[0]: y → z"],
        ),
        ({"calendars": {"A": ["x"]}}, {}, []),
    ],
)
def test_two_definitions_are_compared_field_by_field(
    before: dict[str, Any], after: dict[str, Any], changes: list[str]
) -> None:
    assert [str(change) for change in compare(before, after)] == changes


def test_what_is_long_is_compared_as_a_whole_and_shown_in_part() -> None:
    before, after = list(range(600)), list(range(1, 601))
    (change,) = compare({"at": before}, {"at": after})
    assert change == Change("at", before, after)
    assert len(str(change)) < 500


class TestSteps:
    def test_a_step_is_known_by_its_name(self) -> None:
        before = {"steps": [step("Load"), step("Export", 1, kwargs={"value": 1})]}
        after = {"steps": [step("Load"), step("Export", 1, kwargs={"value": 2}, max_retries=5)]}
        assert compare(before, after) == [
            Change("steps.“Export”.config.kwargs.value", 1, 2),
            Change("steps.“Export”.max_retries", 0, 5),
        ]

    def test_one_is_added_and_one_removed(self) -> None:
        before = {"steps": [step("Load"), step("Clean", 1, "fail")]}
        after = {"steps": [step("Load"), step("Mail", 1)]}
        assert compare(before, after) == [
            Change("steps.“Clean”", before["steps"][1], None),
            Change("steps.“Mail”", None, after["steps"][1]),
        ]

    def test_one_that_is_the_same_but_for_its_name_was_renamed(self) -> None:
        renamed = compare(plan("Load", "Mail"), plan("Load", "Post"))
        assert renamed == [Change("steps.“Post”.name", "Mail", "Post")]

    def test_another_order_is_told_as_such_and_once(self) -> None:
        moved = Change("steps, in order", "“a”, then “b”, then “c”", "“b”, then “a”, then “c”")
        assert compare(plan("a", "b", "c"), plan("b", "a", "c")) == [moved]
        joined = Change("steps, in order", "“a”, then “b”", "“a” beside “b”")
        assert compare(plan("a", "b"), plan("a", "b", indexes="00")) == [joined]

    def test_what_only_makes_room_moves_no_other(self) -> None:
        inserted = step("x", 1, "talk")
        before, after = plan("a", "b"), {"steps": [step("a"), inserted, step("b", 2)]}
        assert compare(before, after) == [
            Change("steps.“b”.index", 1, 2),
            Change("steps.“x”", None, inserted),
        ]

    def test_one_that_is_moved_and_edited_shows_both(self) -> None:
        after = {"steps": [step("b"), step("a", 1, pool="night")]}
        assert compare(plan("a", "b"), after) == [
            Change("steps, in order", "“a”, then “b”", "“b”, then “a”"),
            Change("steps.“a”.pool", None, "night"),
        ]


@pytest.mark.django_db
class TestRevisions:
    def test_the_newest_comes_first_with_who_when_and_what(self) -> None:
        """Pauses are no revisions, nor are those of another schedule."""
        schedule, other = make_schedule(name="Nightly", spec=HOURLY), make_schedule()
        edit(schedule, 1, name="Daily", spec=DAILY)
        edit(schedule, 2, tags=["finance"])
        edit(other, 3, description="other")
        fresh(schedule).pause(initiator=SOMEBODY, now=NOW)
        third, second, first = fresh(schedule).revisions()
        assert [r.number for r in (first, second, third)] == [1, 2, 3]
        assert (first.operation, first.by, first.at, first.changes) == ("create", SOMEBODY, NOW, [])
        assert (first.definition["name"], first.definition["spec"]) == ("Nightly", HOURLY)
        assert (second.operation, second.at) == ("edit", NOW + seconds(60))
        assert second.definition["spec"] == DAILY
        assert [str(change) for change in second.changes] == [
            "name: Nightly → Daily",
            "spec.cron[0]: 0 * * * * → 0 3 * * *",
        ]
        assert [str(change) for change in third.changes] == ["tags[0]: nothing → finance"]
        assert Activity.objects.get(pk=third.activity_id).operation == "edit"

    def test_a_shared_calendar_that_was_edited_is_a_revision_of_those_that_use_it(self) -> None:
        by: dict[str, Any] = {"initiator": SOMEBODY}
        calendar = SharedCalendar.objects.define("Windows", [{"dates": "2026-12-24"}], now=NOW, **by)
        schedule = make_schedule(spec=HOURLY | {"exclude": [{"calendar": "Windows"}]})
        changes = {"excluded": [{"dates": "2026-12-25"}]}
        calendar.edit(token=1, changes=changes, now=NOW + seconds(60), **by)
        newest = schedule.revisions()[0]
        assert (newest.number, newest.at, newest.by) == (2, NOW + seconds(60), SOMEBODY)
        assert [str(change) for change in newest.changes] == [
            "calendars.Windows[0].dates: 2026-12-24 → 2026-12-25"
        ]
        assert newest.definition["spec"] == schedule.spec
        edit(schedule, 2, description="later")
        assert [revision.number for revision in schedule.revisions()] == [3, 2, 1]
        assert [str(change) for change in schedule.revisions()[0].changes] == ["description: nothing → later"]

    def test_what_was_recorded_before_there_were_all_fields_can_be_read_and_compared(self) -> None:
        schedule = make_schedule(name="Nightly", spec=HOURLY)
        Activity.objects.all().delete()
        old_step = {"name": "work", "index": 0, "step_type": "python", "config": {}}
        old = {"name": "Nightly", "description": "", "spec": HOURLY, "overlap": "skip", "steps": [old_step]}
        edited = old | {"spec": DAILY}
        record(schedule, "create", old)
        record(schedule, "edit", {"before": old, "after": edited})
        record(schedule, "edit", {"before": edited, "after": edited | {"tags": ["x"]}})
        newest, middle, oldest = schedule.revisions()
        assert (oldest.definition["tags"], oldest.definition["steps"][0]["max_retries"]) == ([], 3)
        assert [change.path for change in middle.changes] == ["spec.cron[0]"]
        assert [str(change) for change in newest.changes] == ["tags[0]: nothing → x"]

    def test_a_record_without_details_stops_nobody(self) -> None:
        schedule = make_schedule(name="Nightly")
        for details in (None, {}, {"before": None, "after": None}, ["damaged"]):
            record(schedule, "edit", details)
        *damaged, first = schedule.revisions()
        assert [revision.changes for revision in damaged] == [[]] * 4
        assert {revision.definition["name"] for revision in damaged} == {"Nightly"}
        assert first.definition["name"] == "Nightly"

    def test_many_are_read_in_pages(self, django_assert_num_queries: Any) -> None:
        schedule = make_schedule()
        definition = schedule.definition()
        for number in range(2, 31):
            after = definition | {"description": str(number)}
            record(schedule, "edit", {"before": definition, "after": after})
        revisions = schedule.revisions()
        with django_assert_num_queries(2):
            page = revisions[14:16]
        assert [revision.number for revision in page] == [16, 15]
        assert page[0].definition["description"] == "16"
        with django_assert_num_queries(2):
            shown = Paginator(schedule.revisions(), 5).page(6).object_list
        assert (len(shown), shown[-1].number, shown[-1].operation) == (5, 1, "create")
        assert (revisions[0].number, revisions[-1].number, revisions[5:5]) == (30, 1, [])
        with pytest.raises(IndexError):
            revisions[30]
        with pytest.raises(ValueError, match="a step other than 1"):
            revisions[::2]

    def test_the_one_in_force_at_a_time(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        edit(schedule, 10, spec=DAILY)

        def in_force(minute: int) -> Any:
            found = schedule.revisions().in_force(NOW + seconds(60 * minute))
            return found and found["spec"]

        assert [in_force(minute) for minute in (0, 1, 10, 11)] == [None, HOURLY, HOURLY, DAILY]
        # Without the first record, the next one tells what was before.
        Activity.objects.filter(operation="create").delete()
        assert in_force(1) == HOURLY
