"""When a consumer may ask to be woken."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from tests.base import NOW, seconds
from workflows.decision import clamp_wake_at

LEAST, MOST = timedelta(seconds=30), timedelta(hours=24)
FIRST = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
LAST = datetime.max.replace(tzinfo=timezone(-timedelta(hours=12)))

WISHES: list[tuple[object, timedelta | None, str]] = [
    (None, None, ""),
    (NOW + seconds(30), LEAST, ""),
    (NOW + seconds(30.000001), seconds(30.000001), ""),
    (NOW + seconds(29.999999), LEAST, "too soon; the consumer wakes 0:00:30 from now"),
    (NOW - timedelta(days=900), LEAST, "too soon"),
    (NOW + MOST, MOST, ""),
    (NOW + MOST + seconds(0.000001), MOST, "too late; the consumer wakes 1 day, 0:00:00 from now"),
    (FIRST, LEAST, "too soon"),
    (LAST, MOST, "too late"),
    ("2026-11-16T04:00:00Z", timedelta(hours=1), ""),
    ("2026-11-16T04:00:00.250+00:00", seconds(3600.25), ""),
    (datetime(2026, 11, 16, 5, 0, tzinfo=ZoneInfo("Europe/Berlin")), timedelta(hours=1), ""),
    (
        "2026-11-16T04:00:00",
        None,
        "'2026-11-16T04:00:00' was ignored: it must be a datetime with a time zone",
    ),
    ("soon", None, "must be a datetime with a time zone"),
    (NOW.replace(tzinfo=None), None, "must be a datetime with a time zone"),
    (NOW.timestamp() + 60, None, "must be a datetime with a time zone"),
]


@pytest.mark.parametrize(("wish", "after", "notice"), WISHES, ids=[repr(row[0]) for row in WISHES])
def test_what_is_granted(wish: object, after: timedelta | None, notice: str) -> None:
    at, told = clamp_wake_at(wish, now=NOW, least=LEAST, most=MOST)
    assert at == (None if after is None else NOW + after)
    assert (notice in told) if notice else told == ""
