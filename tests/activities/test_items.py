"""Items: what a step says of one object, and how the items of an object are found again."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection

from activities.details import LONGEST, MOST_DETAILS, details_of
from activities.models import Activity, ActivityItem
from tests.base import NOW

WORKER = uuid.uuid4()


def attempt() -> Activity:
    return Activity.objects.create(
        status="in_progress",
        worker_id=WORKER,
        target_type="sync",
        target_name="Full sync",
        initiator_type="system",
        initiator_name="test",
        created_at=NOW,
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, []),
        ({}, []),
        ({"department": ["Sales", "IT"]}, ["department: Sales → IT"]),
        ({"title": [None, "Chief"], "mail": ["a@b", None]}, ["mail: a@b → none", "title: none → Chief"]),
        ({"groups": [["a", "b"], ["a"]]}, ["groups: a, b → a"]),
        ({"enabled": [True, False], "n": [1, 2.5]}, ["enabled: true → false", "n: 1 → 2.5"]),
        ({"line": 17, "note": "twice"}, ["line: 17", "note: twice"]),
        ({"candidates": ["a", "b", "c"], "one": ["a"], "no": []}, ["candidates: a, b, c", "no: ", "one: a"]),
        ({"where": {"line": 17, "of": "ü"}}, ['where: {"line": 17, "of": "ü"}']),
        (["a", "b", None], ["data: a, b, none"]),
        ("text", ["data: text"]),
    ],
)
def test_details_are_short_texts_and_two_values_are_a_change(data: object, expected: list[str]) -> None:
    assert [str(detail) for detail in details_of(data)] == expected


def test_long_values_are_cut_and_of_many_details_the_first_are_shown() -> None:
    (long,) = details_of({"photo": ["x" * LONGEST, "y" * (LONGEST + 1)]})
    assert (long.before, long.after) == ("x" * LONGEST, "y" * LONGEST + "…")
    many = {f"a{number:02}": number for number in range(MOST_DETAILS + 1)}
    *shown, rest = details_of(many)
    assert ([detail.name for detail in shown], str(rest)) == (list(many)[:MOST_DETAILS], "…: 1 more")


@pytest.mark.django_db
def test_items_that_say_no_more_than_their_outcome_have_empty_fields() -> None:
    columns = ("name", "outcome", "message", "created_at")
    ActivityItem.objects.append(columns, [(attempt().pk, "ada", "ok", "", NOW)], worker_id=WORKER)
    item = ActivityItem.objects.get()
    assert (item.change, item.error_type, item.object, item.external_id, item.data) == ("", "", "", "", None)
    assert item.details == []


@pytest.mark.django_db
class TestOfAnObject:
    def test_the_newest_come_first(self) -> None:
        ActivityItem.objects.bulk_create(
            ActivityItem(activity=activity, name=name, object=name, created_at=NOW)
            for activity in (attempt(), attempt())
            for name in ("identity:1", "identity:17", "")
        )
        found = ActivityItem.objects.of_object("identity:17")
        every = ActivityItem.objects.filter(name="identity:17").order_by("-pk")
        assert [item.pk for item in found] == [item.pk for item in every]
        assert len(found) == 2
        assert not ActivityItem.objects.of_object("").exists()

    def test_an_index_finds_them(self) -> None:
        assert "item_of_object" in plan_of(ActivityItem.objects.of_object("identity:17"))


def plan_of(rows: Any) -> str:
    """How the database reads the rows, if reading all of them is no choice."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("SET LOCAL enable_sort = off")
    return str(rows.explain())
