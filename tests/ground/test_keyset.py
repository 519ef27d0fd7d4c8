from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Q

from activities.models import Activity
from database.batched import together
from database.keyset import Part, first_since, look_among, look_back, read_page
from tests.base import NOW, SOMEBODY

pytestmark = pytest.mark.django_db
ODD = Q(target_name="odd")
SHORT: dict[str, Any] = {"count": 2, "by": "created_at", "reach": 3}
Read = Callable[[int | None], Part[Activity]]


@pytest.fixture
def made() -> list[int]:
    """Eleven of them, a minute apart, every other one odd."""
    rows = [
        Activity(
            target_type="schedule",
            target_id=str(number),
            target_name="odd" if number % 2 else "even",
            initiator_type=SOMEBODY.type,
            status=Activity.Status.COMPLETE,
            created_at=NOW + timedelta(minutes=number),
        )
        for number in range(11)
    ]
    return [row.pk for row in Activity.objects.bulk_create(rows)]


def odd() -> Any:
    return Activity.objects.filter(ODD)


WAYS: dict[str, tuple[bool, Read]] = {
    "an index has them": (False, lambda at: read_page(odd(), after=at, count=2)),
    "the oldest first": (True, lambda at: read_page(odd(), after=at, count=2, oldest_first=True)),
    "looked for by id": (False, lambda at: look_back(odd(), after=at, **SHORT)),
    "looked for by row": (False, lambda at: look_among(Activity.objects.all(), ODD, after=at, **SHORT)),
}


@pytest.mark.parametrize(("oldest_first", "read"), WAYS.values(), ids=WAYS)
def test_the_parts_together_are_the_whole_list(made: list[int], oldest_first: bool, read: Read) -> None:
    found, part = [], read(None)
    while True:
        assert len(part.rows) <= 2
        found += [row.pk for row in part.rows]
        if part.next is None:
            break
        part = read(part.next)
    assert part.reached_at is None
    assert found == sorted(made[1::2], reverse=not oldest_first)


def test_a_part_that_is_not_full_says_how_far_back_it_looked(made: list[int]) -> None:
    part = look_back(odd().filter(pk=made[1]), **SHORT)
    assert (part.rows, part.next, part.reached_at) == ([], made[8], NOW + timedelta(minutes=7))


def test_times_say_where_to_begin_and_to_end(made: list[int]) -> None:
    at = NOW + timedelta(hours=1)
    nothing = look_back(odd(), count=2, by="created_at", reach=100, since=at)
    later = look_back(odd(), count=9, by="created_at", reach=100, until=NOW - timedelta(hours=1))
    assert (nothing, later) == (Part([]), Part([]))


def test_the_first_row_since_a_time_is_found_by_halves(made: list[int]) -> None:
    def first(minutes: float) -> int:
        [[[pk]]] = together(first_since(Activity, "created_at", NOW + timedelta(minutes=minutes)))
        return int(pk)

    for number, pk in enumerate(made):
        assert (first(number), first(number - 0.01)) == (pk, pk)
    assert first(1000) == made[-1] + 1
