from __future__ import annotations

from datetime import timedelta

import pytest

from tests.base import NOW
from text.words import distance, span


@pytest.mark.parametrize(
    ("length", "told"),
    [
        (timedelta(milliseconds=84), "84 ms"),
        (timedelta(seconds=4, milliseconds=50), "4.0 s"),
        (timedelta(seconds=34, milliseconds=900), "34 s"),
        (timedelta(minutes=25, seconds=33), "25 min 33 s"),
        (timedelta(hours=2), "2 h"),
        (timedelta(hours=2, seconds=7), "2 h"),
        (timedelta(days=50, seconds=15), "50 d"),
        (timedelta(days=9, minutes=43), "9 d"),
        (timedelta(days=12, hours=5, minutes=43), "12 d 5 h"),
    ],
)
def test_a_duration_is_told_in_its_largest_unit_and_the_next(length: timedelta, told: str) -> None:
    assert span(length) == told


@pytest.mark.parametrize(
    ("away", "told"),
    [
        (timedelta(milliseconds=-300), "now"),
        (timedelta(seconds=-42), "42 s ago"),
        (timedelta(minutes=9, seconds=30), "in 9 min 30 s"),
        (timedelta(minutes=-25, seconds=-33), "25 min ago"),
        (timedelta(hours=-1, minutes=-13), "1 h 13 min ago"),
        (timedelta(hours=23, minutes=15), "in 23 h"),
        (timedelta(days=5, hours=23), "in 5 d 23 h"),
        (timedelta(days=-120, seconds=-24), "120 d ago"),
    ],
)
def test_what_is_far_away_is_told_in_one_unit(away: timedelta, told: str) -> None:
    assert distance(NOW + away, now=NOW) == told
