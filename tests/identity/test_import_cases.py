"""What full and delta imports make of the objects of a system, and when they fail instead of guessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from identity.connectors.connector import ConnectorError, Problem
from identity.models import Account, ConnectedSystem
from identity.values import Attributes
from tests.base import fresh

from .memory import Objects
from .world import (
    DELTA_IMPORT,
    DELTA_SYNC,
    FULL_IMPORT,
    FULL_SYNC,
    System,
    counts,
    identities,
    identity_type,
    items,
    rule,
)

pytestmark = pytest.mark.django_db

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 1000])
NAMES = {"1": "Ada", "2": "Bea", "3": "Cai", "4": "Dee", "5": "Eve"}
ALL_PRESENT = dict.fromkeys(NAMES, "present")


class RepeatedObjects(Objects):
    """Objects of a faulty system, which reports some of them a second time."""

    def __init__(self, objects: Objects, again: Mapping[str, Attributes]) -> None:
        super().__init__(objects)
        self.again = {("person", external_id): attrs for external_id, attrs in again.items()}

    def items(self) -> Any:
        return [*super().items(), *self.again.items()]


def imported() -> System:
    """Return a system with five people that have been imported."""
    hr = System("HR")
    for external_id, first in NAMES.items():
        hr.put(external_id, first=first)
    assert hr.run(FULL_IMPORT).status == "complete"
    return hr


def statuses(system: System) -> dict[str | None, str]:
    return {external_id: each.status for external_id, each in system.accounts().items()}


def dirty(system: System) -> set[str | None]:
    return {external_id for external_id, each in system.accounts().items() if each.is_dirty}


def fails_before_page(system: System, number: int) -> None:
    pages = iter(range(1, number))

    def before_page() -> None:
        if next(pages, None) is None:
            raise ConnectorError("the connection was lost")

    system.store.before_page = before_page


# What is new, changed, the same or gone


@PAGE_SIZES
def test_a_full_import_adds_updates_and_finds_the_absent(page_size: int) -> None:
    hr = imported()
    hr.run(FULL_SYNC)
    hr.change("1", first="Ann")
    hr.drop("3")
    hr.put("6", first="Fay")

    run = hr.run(FULL_IMPORT, page_size=page_size)

    assert run.status == "complete"
    assert counts(run) == {"added": 1, "updated": 1, "absent": 1, "unchanged": 3}
    assert sorted(items(run)) == [("1", "updated", ""), ("3", "absent", ""), ("6", "added", "")]
    assert statuses(hr) == {**ALL_PRESENT, "3": "obsolete", "6": "present"}
    assert dirty(hr) == {"1", "3", "6"}
    assert hr.account("1").attrs == {"id": "1", "first": "Ann"}
    assert hr.account("6").attrs == {"id": "6", "first": "Fay"}
    assert hr.account("3").attrs == {"id": "3", "first": "Cai"}


def test_an_item_says_what_changed_and_where_it_was_read() -> None:
    hr = imported()
    hr.change("2", first=None, last="Bell")
    hr.put("6", first="Fay")

    run = hr.run(FULL_IMPORT)

    found = {each.name: each for each in run.items.all()}
    assert found["2"].data == {"first": ["Bea", None], "last": [None, "Bell"]}
    assert found["6"].data == {"id": [None, "6"], "first": [None, "Fay"]}
    assert (found["6"].object, found["6"].external_id) == (f"account:{hr.account('6').pk}", "6")
    assert found["6"].message == "object 6"
    assert hr.account("6").source == {"activity": run.pk, "place": "object 6"}


@PAGE_SIZES
def test_objects_that_did_not_change_are_only_counted(page_size: int) -> None:
    hr = imported()
    hr.run(FULL_SYNC)

    run = hr.run(FULL_IMPORT, page_size=page_size)

    assert (run.status, counts(run), items(run)) == ("complete", {"unchanged": 5}, [])
    assert dirty(hr) == set()


@PAGE_SIZES
def test_a_delta_import_takes_only_what_changed(page_size: int) -> None:
    hr = imported()
    hr.run(FULL_SYNC)
    hr.change("1", first="Ann")
    hr.drop("3")
    hr.put("6", first="Fay")

    run = hr.run(DELTA_IMPORT, page_size=page_size)

    assert run.status == "complete"
    assert counts(run) == {"added": 1, "updated": 1, "absent": 1}
    assert sorted(items(run)) == [("1", "updated", ""), ("3", "absent", ""), ("6", "added", "")]
    assert statuses(hr) == {**ALL_PRESENT, "3": "obsolete", "6": "present"}
    assert dirty(hr) == {"1", "3", "6"}


def test_a_delta_import_continues_where_the_last_import_ended() -> None:
    hr = imported()
    hr.change("1", first="Ann")
    hr.run(DELTA_IMPORT)
    hr.change("2", first="Bo")

    run = hr.run(DELTA_IMPORT)

    assert (counts(run), items(run)) == ({"updated": 1}, [("2", "updated", "")])
    assert counts(hr.run(DELTA_IMPORT)) == {}


def test_a_delta_import_ignores_the_deletion_of_an_object_that_was_never_imported() -> None:
    hr = imported()
    hr.put("6", first="Fay")
    known = {external_id: attrs for (_, external_id), attrs in hr.store.objects.items()}
    ConnectedSystem.objects.filter(pk=hr.row.pk).update(watermark={"objects": known})
    hr.drop("6")

    run = hr.run(DELTA_IMPORT)

    assert (run.status, counts(run), items(run)) == ("complete", {}, [])
    assert statuses(hr) == ALL_PRESENT


def test_an_account_that_is_still_to_be_created_is_not_absent() -> None:
    hr, ad = imported(), System("AD")
    people = identity_type()
    rule("in", hr, people, {"id": "id"})
    rule("out", ad, people, {"id": "id"})
    hr.run(FULL_SYNC)
    ad.put("99")

    run = ad.run(FULL_IMPORT)

    assert counts(run) == {"added": 1}
    assert statuses(ad) == {**dict.fromkeys(NAMES, "provisioning"), "99": "present"}


@pytest.mark.parametrize("again", [FULL_IMPORT, DELTA_IMPORT])
def test_an_object_that_returns_before_a_synchronisation_keeps_its_identity(again: str) -> None:
    hr, people = imported(), identity_type(deletion="last_connector")
    rule("in", hr, people, {"id": "id", "first": "first"})
    hr.run(FULL_SYNC)
    before = hr.account("3")
    hr.drop("3")
    hr.run(FULL_IMPORT)
    hr.put("3", first="Cai")

    run = hr.run(again)

    after = hr.account("3")
    assert (after.pk, after.identity_id, after.join) == (before.pk, before.identity_id, "projected")
    assert (after.status, after.is_dirty) == ("present", True)
    assert items(run) == [("3", "added", "")]
    assert counts(hr.run(DELTA_SYNC)) == {"unchanged": 1}
    assert identities()["3"].delete_after is None


# The same id twice


@pytest.mark.parametrize(
    "again",
    [
        pytest.param({"first": "Ann"}, id="case 44: another object"),
        pytest.param({"first": "Ada"}, id="case 44: the same object"),
    ],
)
def test_repeated_objects_are_not_imported(again: Attributes) -> None:
    hr = System("HR")
    hr.put("1", first="Ada")
    hr.put("2", first="Bea")
    hr.store.objects = RepeatedObjects(hr.store.objects, {"1": {"id": "1", **again}})

    run = hr.run(FULL_IMPORT)

    assert (run.status, counts(run)) == ("complete_with_warning", {"added": 1, "failed": 2})
    assert items(run).count(("1", "", "duplicate_object")) == 2
    assert statuses(hr) == {"2": "present"}


@pytest.mark.parametrize(
    ("page_size", "expected"),
    [
        pytest.param(1000, {"unchanged": 4, "failed": 2}, id="case 44: on one page"),
        pytest.param(5, {"unchanged": 5, "failed": 1}, id="case 44: on two pages"),
    ],
)
def test_a_known_account_stays_present_if_its_object_is_repeated(
    page_size: int, expected: dict[str, int]
) -> None:
    hr = imported()
    hr.store.objects = RepeatedObjects(hr.store.objects, {"1": {"id": "1", "first": "Ann"}})

    run = hr.run(FULL_IMPORT, page_size=page_size)

    assert (run.status, counts(run)) == ("complete_with_warning", expected)
    assert {error_type for _, _, error_type in items(run)} == {"duplicate_object"}
    assert statuses(hr) == ALL_PRESENT
    assert hr.account("1").attrs == {"id": "1", "first": "Ada"}


@PAGE_SIZES
def test_in_a_delta_import_the_last_of_repeated_objects_wins(page_size: int) -> None:
    hr = imported()
    hr.change("1", first="Ann")
    hr.store.objects = RepeatedObjects(hr.store.objects, {"1": {"id": "1", "first": "Amy"}})

    run = hr.run(DELTA_IMPORT, page_size=page_size)

    assert run.status == "complete"
    assert hr.account("1").attrs == {"id": "1", "first": "Amy"}


# Objects that cannot be read

NO_ID = Problem("person", "line 7", "missing_external_id", "the column “id” is empty")
BAD_VALUE = Problem("person", "line 3", "bad_value", "ends: “soon” is not a date", external_id="3")


@pytest.mark.parametrize("run_type", [FULL_IMPORT, DELTA_IMPORT])
@pytest.mark.parametrize(
    ("problem", "item"),
    [
        pytest.param(NO_ID, ("line 7", "", "missing_external_id"), id="without an id"),
        pytest.param(BAD_VALUE, ("3", "", "bad_value"), id="with an id"),
    ],
)
def test_an_object_that_cannot_be_read_is_an_item(
    run_type: str, problem: Problem, item: tuple[str, str, str]
) -> None:
    hr = imported()
    hr.store.problems = [problem]
    hr.change("1", first="Ann")

    run = hr.run(run_type)

    assert run.status == "complete_with_warning"
    assert counts(run)["failed"] == 1
    assert sorted(items(run)) == sorted([("1", "updated", ""), item])
    assert run.items.get(error_type=problem.error_type).message == f"{problem.place}: {problem.message}"


@pytest.mark.parametrize(
    ("problem", "absent"),
    [
        pytest.param(NO_ID, set(), id="it might be any object"),
        pytest.param(BAD_VALUE, {"4"}, id="it is this object"),
    ],
)
def test_what_cannot_be_read_is_not_absent(problem: Problem, absent: set[str]) -> None:
    hr = imported()
    hr.store.problems = [problem]
    hr.drop("3", "4")

    run = hr.run(FULL_IMPORT)

    assert run.status == "complete_with_warning"
    assert {key for key, status in statuses(hr).items() if status == "obsolete"} == absent
    assert counts(run).get("absent", 0) == len(absent)


def test_absence_is_found_again_once_all_objects_can_be_read() -> None:
    hr = imported()
    hr.store.problems = [NO_ID]
    hr.drop("4")
    hr.run(FULL_IMPORT)
    hr.store.problems = []

    assert counts(hr.run(FULL_IMPORT)) == {"absent": 1, "unchanged": 4}


# Inputs from which nothing may be concluded


def is_empty(hr: System) -> None:
    hr.store.objects.clear()


def is_cut_off(hr: System) -> None:
    hr.put("1", first="Ann")
    hr.drop("5")
    fails_before_page(hr, 2)


@pytest.mark.parametrize(
    ("run_type", "happens", "message"),
    [
        pytest.param(FULL_IMPORT, is_empty, "The input has no objects", id="case 40: empty"),
        pytest.param(FULL_IMPORT, is_cut_off, "the connection was lost", id="case 43: cut off"),
        pytest.param(DELTA_IMPORT, is_cut_off, "the connection was lost", id="a delta is cut off"),
    ],
)
def test_an_import_fails_and_takes_nothing_for_absent(
    run_type: str, happens: Callable[[System], None], message: str
) -> None:
    hr = imported()
    watermark = fresh(hr.row).watermark
    happens(hr)

    run = hr.run(run_type, page_size=1)

    assert run.status == "failed_with_error"
    assert run.error.startswith(message)
    assert statuses(hr) == ALL_PRESENT
    assert fresh(hr.row).watermark == watermark


def test_the_pages_before_a_failure_stay() -> None:
    hr = imported()
    for external_id in NAMES:
        hr.change(external_id, last="Bell")
    fails_before_page(hr, 3)

    run = hr.run(FULL_IMPORT, page_size=2)

    assert run.status == "failed_with_error"
    assert [name for name, _, _ in items(run)] == ["1", "2", "3", "4"]
    assert {key for key, each in hr.accounts().items() if "last" in each.attrs} == {"1", "2", "3", "4"}


def test_a_delta_import_after_a_failure_reads_everything_since_the_last_complete_import() -> None:
    hr = imported()
    hr.change("1", first="Ann")
    hr.change("2", first="Bo")
    fails_before_page(hr, 2)
    hr.run(DELTA_IMPORT, page_size=1)
    hr.store.before_page = lambda: None

    run = hr.run(DELTA_IMPORT)

    assert (run.status, counts(run)) == ("complete", {"unchanged": 1, "updated": 1})
    assert {key: each.attrs["first"] for key, each in hr.accounts().items()} == {
        **NAMES,
        "1": "Ann",
        "2": "Bo",
    }


def test_a_system_that_never_had_objects_may_be_empty() -> None:
    hr = System("HR")

    run = hr.run(FULL_IMPORT)

    assert (run.status, counts(run)) == ("complete", {})


def test_a_delta_import_without_changes_is_complete() -> None:
    hr = imported()

    run = hr.run(DELTA_IMPORT)

    assert (run.status, counts(run)) == ("complete", {})
    assert statuses(hr) == ALL_PRESENT


def never_imported() -> System:
    hr = System("HR")
    hr.put("1")
    return hr


def without_watermark() -> System:
    hr = imported()
    ConnectedSystem.objects.filter(pk=hr.row.pk).update(watermark={})
    return hr


@pytest.mark.parametrize("system", [never_imported, without_watermark])
def test_a_delta_import_without_a_watermark_fails_and_asks_for_a_full_import(
    system: Callable[[], System],
) -> None:
    hr = system()
    before = statuses(hr)

    run = hr.run(DELTA_IMPORT)

    assert run.status == "failed_with_error"
    assert "un a full import" in run.error
    assert statuses(hr) == before


# The outcome of a run, and its items


def test_one_bad_object_among_a_hundred_unchanged_ones_is_a_warning() -> None:
    hr = System("HR")
    for number in range(100):
        hr.put(f"{number:03}", first="Ada")
    hr.run(FULL_IMPORT)
    hr.store.problems = [NO_ID]

    run = hr.run(FULL_IMPORT)

    assert (run.status, counts(run)) == ("complete_with_warning", {"unchanged": 100, "failed": 1})
    assert items(run) == [("line 7", "", "missing_external_id")]
    assert (run.items_total, run.items_failed) == (101, 1)


@pytest.mark.parametrize("known", [0, 5])
def test_an_import_in_which_every_object_is_bad_fails(known: int) -> None:
    hr = imported() if known else System("HR")
    hr.store.objects.clear()
    hr.store.problems = [NO_ID, NO_ID]

    run = hr.run(FULL_IMPORT)

    assert run.status == "failed_with_error"
    assert (run.items_total, run.items_failed) == (2, 2)
    assert Account.objects.filter(status="present").count() == known


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("changes", [("1", "updated", ""), ("3", "", "bad_value"), ("6", "added", "")]),
        ("errors", [("3", "", "bad_value")]),
    ],
)
def test_the_profile_decides_whether_changes_become_items(
    setting: str, expected: list[tuple[str, str, str]]
) -> None:
    hr = imported()
    hr.change("1", first="Ann")
    hr.put("6", first="Fay")
    hr.drop("3")
    hr.store.problems = [BAD_VALUE]

    run = hr.run(FULL_IMPORT, items=setting)

    assert sorted(items(run)) == expected
    assert counts(run) == {"added": 1, "updated": 1, "unchanged": 3, "failed": 1}
