from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime

import pytest

from tests.base import NOW, seconds
from tests.webhooks.base import tried
from webhooks.events import is_newly_failing
from webhooks.tries import is_hopeless, next_try

HOUR = 3_600


@pytest.mark.parametrize(("left", "delay"), [(5, 5), (4, 30), (3, 300), (2, HOUR), (1, 6 * HOUR), (0, None)])
def test_the_table_of_six_tries(left: int, delay: int | None) -> None:
    at = next_try(tried(500), left=left, now=NOW)
    assert at == (None if delay is None else NOW + seconds(delay))
    assert next_try(tried(410), left=left, now=NOW) is None, "who is gone is not tried again"


@pytest.mark.parametrize(
    ("status", "asked", "left", "delay"),
    [
        (429, "17", 5, 17),
        (503, "17", 5, 17),
        (429, "1", 5, 5),
        (429, "999999", 5, HOUR),
        (429, "999999", 1, 6 * HOUR),
        (429, format_datetime(NOW + seconds(120), usegmt=True), 5, 120),
        (429, format_datetime(NOW - seconds(120), usegmt=True), 5, 5),
        (429, "soon", 5, 5),
        (429, "-5", 5, 5),
        (500, "17", 5, 5),
    ],
)
def test_who_asks_for_time_gets_it_within_bounds(status: int, asked: str, left: int, delay: int) -> None:
    assert next_try(tried(status, retry_after=asked), left=left, now=NOW) == NOW + seconds(delay)


@pytest.mark.parametrize(
    ("failures", "silent", "hopeless"),
    [
        (10, timedelta(days=3), True),
        (9, timedelta(days=30), False),
        (1_000, timedelta(days=2, hours=23), False),
    ],
)
def test_nobody_is_given_up_for_a_bad_day(failures: int, silent: timedelta, hopeless: bool) -> None:
    assert is_hopeless(failures=failures, succeeded_at=NOW - silent, now=NOW) is hopeless


@pytest.mark.parametrize(
    ("outcomes", "new", "failures", "among", "fires"),
    [
        ("f", 1, 1, 1, True),
        ("ff", 1, 1, 1, False),
        ("fcf", 1, 1, 1, True),
        ("fff", 1, 3, 3, True),
        ("fffc", 1, 3, 3, True),
        ("ffff", 1, 3, 3, False),
        ("ffffff", 4, 3, 3, True),
        ("cfff", 1, 3, 3, False),
        ("cfff", 2, 3, 3, True),
        ("fcfcf", 1, 3, 5, True),
        ("ffcfcf", 1, 3, 5, False),
        ("", 0, 1, 1, False),
    ],
)
def test_failing_is_told_when_it_is_reached(
    outcomes: str, new: int, failures: int, among: int, fires: bool
) -> None:
    assert is_newly_failing(outcomes, new, failures=failures, among=among) is fires
