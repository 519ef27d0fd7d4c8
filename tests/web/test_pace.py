from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.base import NOW, seconds
from web.pace import pace

COUNTS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("done", "total", "after", "expected"),
    [
        (1_200, 100_000, 1.4, "857/s · about 2 min left"),
        (40_000, 100_000, 2, "20,000/s · a few seconds left"),
        (50, 100, 100, "30/min · about 2 min left"),
        (100, 400, 20, "5.0/s · about 1 min left"),
        (10, 30, 10, "1.0/s · about 20 s left"),
        (1, 2, 59.7, "1.0/min · about 1 min left"),
        (30, 40, 60, "30/min · about 20 s left"),
        (1, 11, 1_800, "2.0/h · about 5 h left"),
        (1_000, 1_000_000, 100, "10/s · about 1 d 3 h left"),
        (1, 2**63 - 1, 1, "1.0/s"),
        (700, None, 2, "350/s"),
        (700, 0, 2, "350/s"),
        (100, 100, 10, "10/s"),
        (120, 100, 10, "12/s"),
        (0, 100, 10, ""),
        (-5, 100, 10, ""),
        (5, 100, 0, ""),
        (5, 100, -3, ""),
    ],
)
def test_the_rate_is_the_average_so_far_and_the_rest_takes_as_long_in_proportion(
    done: int, total: int | None, after: float, expected: str
) -> None:
    assert pace(done, total, since=NOW, now=NOW + seconds(after)) == expected


@given(COUNTS, st.none() | COUNTS, st.floats(-(10**9), 10**9))
def test_whatever_a_step_says_has_a_pace_or_none(done: int, total: int | None, after: float) -> None:
    words = pace(done, total, since=NOW, now=NOW + seconds(after))
    assert bool(words) == (done > 0 and seconds(after) > seconds(0))
    assert ("left" in words) <= (total is not None and total > done)
