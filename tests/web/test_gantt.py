from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.models import Activity
from tests.base import NOW, seconds
from web.gantt import AXIS, MOST_ROWS, ROW, chart


def attempt_of(
    pk: int = 1,
    status: str = "complete",
    *,
    created: float = 0,
    began: float | None = 0,
    ended: float | None = 10,
    **fields: Any,
) -> Activity:
    """Times are seconds after the start."""
    at = [None if each is None else NOW + seconds(each) for each in (created, began, ended)]
    times = dict(zip(("created_at", "executed_at", "finished_at"), at, strict=True))
    usual = {"target_name": "work", "attempt": 1, "step_index": 0, "line": 0}
    return Activity(pk=pk, status=status, **usual | times | fields)


def test_a_bar_is_as_long_as_its_attempt_and_its_wait_goes_before_it() -> None:
    drawn = chart([attempt_of(began=2.5, ended=10)], start=NOW, now=NOW + seconds(60))
    (bar,) = drawn.rows[0].bars
    assert (bar.wait_x, bar.wait_width) == (0, 25)
    assert (bar.x, bar.width) == (25, 75)
    assert (bar.tone, bar.glyph) == ("complete", "✓")
    assert bar.title == "work, attempt 1: completed · waited 2.5 s · took 7.5 s"
    assert drawn.rows[0].note == "completed · 7.5 s"
    # What runs reaches to the present.
    drawn = chart([attempt_of(status="in_progress", began=5, ended=None)], start=NOW, now=NOW + seconds(20))
    (bar,) = drawn.rows[0].bars
    assert (bar.x, bar.width, bar.tone) == (25, 75, "running")


def test_each_attempt_has_a_bar_and_its_delay_is_a_wait() -> None:
    first = attempt_of(1, "failed_with_error", began=0, ended=5)
    second = attempt_of(2, "complete", attempt=2, created=5, began=15, ended=20)
    (row,) = chart([second, first], start=NOW, now=NOW).rows
    assert [(bar.x, bar.width) for bar in row.bars] == [(0, 25), (75, 25)]
    assert (row.bars[1].wait_x, row.bars[1].wait_width) == (25, 50)
    assert row.note == "completed · 5.0 s · 2 attempts"


def test_a_later_group_waits_only_since_the_groups_before_it_ended_and_until_then_nothing_is_drawn() -> None:
    first = attempt_of(1, began=0, ended=10)
    second = attempt_of(2, line=1, step_index=1, began=12, ended=20)
    bar = chart([first, second], start=NOW, now=NOW).rows[1].bars[0]
    assert (bar.wait_x, bar.wait_width, bar.x) == (50, 10, 60)
    running = attempt_of(1, "in_progress", began=0, ended=None)
    later = attempt_of(2, "pending", line=1, step_index=1, began=None, ended=None)
    rows = chart([running, later], start=NOW, now=NOW + seconds(10)).rows
    assert (len(rows[0].bars), rows[1].bars) == (1, [])


def test_steps_of_one_group_share_a_band_and_of_very_many_steps_the_first_are_drawn() -> None:
    drawn = chart([attempt_of(n, line=n, step_index=min(n, 1)) for n in range(3)], start=NOW, now=NOW)
    assert [(band.y, band.height) for band in drawn.bands] == [(AXIS, ROW), (AXIS + ROW, 2 * ROW)]
    assert drawn.height == AXIS + 3 * ROW
    drawn = chart([attempt_of(n, line=n) for n in range(MOST_ROWS + 5)], start=NOW, now=NOW)
    assert (len(drawn.rows), drawn.left_out) == (MOST_ROWS, 5)


def test_what_did_not_run_is_a_glyph_where_that_was_decided() -> None:
    ran = attempt_of(1, "failed_with_error", began=0, ended=10)
    skipped = attempt_of(2, "skipped", line=1, step_index=1, began=None, ended=5)
    bar = chart([ran, skipped], start=NOW, now=NOW).rows[1].bars[0]
    assert (bar.x, bar.width, bar.wait_width, bar.glyph) == (50, 0, 0, "↷")


@pytest.mark.parametrize(("began", "x", "is_at_end"), [(0, 50, False), (30, 31, False), (99, 99, True)])
def test_a_glyph_is_in_its_bar_or_beside_it(began: float, x: float, is_at_end: bool) -> None:
    long = attempt_of(1, began=0, ended=100)
    short = attempt_of(2, line=1, began=began, ended=100 if began == 0 else began + 1)
    bar = chart([long, short], start=NOW, now=NOW).rows[1].bars[0]
    assert (bar.glyph_x, bar.is_at_end) == (x, is_at_end)


@pytest.mark.parametrize(
    ("length", "labels"),
    [(0.5, ["0"]), (70, ["0", "15 s", "30 s", "45 s", "1 min"]), (20 * 86_400, ["0", "5 d", "10 d", "15 d"])],
)
def test_ticks_are_at_round_times(length: float, labels: list[str]) -> None:
    drawn = chart([attempt_of(ended=length)], start=NOW, now=NOW)
    assert [tick.label for tick in drawn.ticks] == labels


moments = st.none() | st.floats(-1000, 100_000, allow_nan=False)


@given(
    st.lists(
        st.builds(
            attempt_of,
            status=st.sampled_from(["pending", "in_progress", "complete", "cancelled"]),
            line=st.integers(0, 3),
            step_index=st.integers(0, 2),
            attempt=st.integers(1, 3),
            created=st.floats(-1000, 100_000),
            began=moments,
            ended=moments,
        ),
        max_size=6,
    ),
    st.floats(0, 100_000),
)
@settings(max_examples=50)
def test_everything_stays_inside_the_drawing(attempts: list[Activity], now: float) -> None:
    drawn = chart(attempts, start=NOW, now=NOW + timedelta(seconds=now))
    for bar in (bar for row in drawn.rows for bar in row.bars):
        assert 0 <= bar.x <= bar.x + bar.width <= 100.01
        assert 0 <= bar.wait_x <= bar.wait_x + bar.wait_width <= 100.01
