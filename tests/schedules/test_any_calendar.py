"""Many calendars asked as one say what each of them says."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.spec.compiled_exclusions import AnyCalendar
from schedules.spec.structured import Structured
from schedules.spec.wall_calendar import DAY

FIELDS = {
    "second": ["0", "*", "0-29"],
    "minute": ["0", "*/7", "30"],
    "hour": ["0", "9-17", "23"],
    "day_of_month": ["1", "L", "28-31", "13,L"],
    "month": ["2", "1-6", "12"],
    "day_of_week": ["mon", "sat-sun", "fri#2", "fri#5", "L5", "mon,L1"],
    "year": ["2028", "2026-2030", "2999"],
}
items = st.fixed_dictionaries({}, optional={name: st.sampled_from(texts) for name, texts in FIELDS.items()})
WALLS = st.integers(0, int(datetime(2999, 12, 31, tzinfo=UTC).timestamp()))
FEBRUARY = int(datetime(2028, 2, 10, tzinfo=UTC).timestamp())


def _compiled(item: dict[str, str]) -> Structured | None:
    try:
        return Structured.parse("exclude", item, is_exclusion=True)
    except ValueError:
        return None  # some never match, and are refused


@settings(max_examples=50)
@given(
    chosen=st.lists(items.map(_compiled).filter(bool), max_size=40),
    wall=WALLS,
    days=st.integers(0, 40),
)
def test_each_of_those_that_match_in_their_order(chosen: list[Structured], wall: int, days: int) -> None:
    calendars = list(dict.fromkeys(each.calendar for each in chosen))
    asked = AnyCalendar(calendars)
    for at in (wall, wall // DAY * DAY, FEBRUARY + days * DAY):
        assert list(asked.matching(at)) == [each for each in calendars if each.matches(at)]
