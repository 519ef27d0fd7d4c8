"""Jitter: the same schedule and time always give the same delay, and many give delays that spread evenly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings

from schedules.generator import generate
from schedules.models.occurrence import named_time
from schedules.previews import preview
from schedules.spec import Spec
from tests.base import SOMEBODY, fresh, make_schedule
from tests.commands import told

NOMINAL = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
SIXTEEN_MINUTES = timedelta(minutes=16)
DRAWS = 4000
BUCKETS = 16
# The value that evenly spread draws exceed once in a thousand series, with 15 degrees of freedom.
CHI_SQUARE_LIMIT = 37.70


def every_hour(**others: object) -> Spec:
    return Spec.parse({"every": ["1h"], "jitter": "16m", **others})


def hours(count: int) -> list[datetime]:
    return [NOMINAL + n * timedelta(hours=1) for n in range(count)]


def chi_square(delays: Iterable[timedelta], span: timedelta = SIXTEEN_MINUTES) -> float:
    """How far the draws are from an equal share for each of the buckets."""
    counts = Counter(int(delay / span * BUCKETS) for delay in delays)
    assert set(counts) <= set(range(BUCKETS))
    share = counts.total() / BUCKETS
    return sum((counts[bucket] - share) ** 2 / share for bucket in range(BUCKETS))


def test_the_instant_counts_and_not_the_zone_it_is_written_in() -> None:
    elsewhere = ZoneInfo("Asia/Kolkata")
    for at in hours(20):
        due = every_hour().due_at(at, "nightly")
        assert due == every_hour(time_zone="Asia/Kolkata").due_at(at.astimezone(elsewhere), "nightly")


@pytest.mark.live
def test_another_process_gives_the_same_delay() -> None:
    asked = [at.isoformat() for at in hours(50)]
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [every_hour().due_at(at, "nightly").isoformat() for at in hours(50)]


@pytest.mark.parametrize(("jitter", "limit"), [("0s", 1), ("1s", 1), ("5m", 300), ("59m", 3540)])
def test_is_less_than_the_jitter(jitter: str, limit: int) -> None:
    spec = every_hour(jitter=jitter)
    assert all(at <= spec.due_at(at, "nightly") < at + timedelta(seconds=limit) for at in hours(1000))


def test_comes_before_the_next_nominal_time() -> None:
    rules = {"cron": ["*/10 * * * *", "7 * * * *"], "every": ["45s"], "exclude": [{"minute": "20-40"}]}
    spec = Spec.parse({**rules, "jitter": "2h"})
    nominal = spec.times(NOMINAL, NOMINAL + timedelta(hours=12))
    assert len(nominal) > 500
    for at, following in pairwise(nominal):
        assert at <= spec.due_at(at, "nightly") < following


def test_the_last_time_has_all_of_the_jitter_even_beyond_the_end() -> None:
    """The end is asked about the nominal time."""
    spec = Spec.parse({"every": ["1m"], "jitter": "16m", "end_at": NOMINAL.isoformat()})
    due = [spec.due_at(NOMINAL, f"schedule {n}") for n in range(100)]
    assert spec.next(NOMINAL) is None
    assert NOMINAL + timedelta(minutes=14) < max(due) < NOMINAL + SIXTEEN_MINUTES


def test_delays_spread_evenly() -> None:
    """Nothing here is left to chance: the seeds are fixed, so a figure that passes once passes always."""
    spec, often = every_hour(), Spec.parse({"every": ["64s"], "jitter": "1h"})
    nightly = [spec.due_at(at, "nightly") - at for at in hours(DRAWS)]
    weekly = [spec.due_at(at, "weekly") - at for at in hours(DRAWS)]
    [soon] = often.times(NOMINAL, NOMINAL + timedelta(seconds=64))
    names = [f"schedule {n}" for n in range(DRAWS)]
    spread = {
        "one schedule over many times": chi_square(nightly),
        "many schedules at one time": chi_square([spec.due_at(NOMINAL, name) - NOMINAL for name in names]),
        "two schedules do not move together": chi_square(
            [(one - other) % SIXTEEN_MINUTES for one, other in zip(nightly, weekly, strict=True)]
        ),
        "a time says nothing about the following one": chi_square(
            [(after - before) % SIXTEEN_MINUTES for before, after in pairwise(nightly)]
        ),
        # Delays that were cut off where the next nominal time comes first would gather at the end.
        "up to the next nominal time": chi_square(
            [often.due_at(soon, name) - soon for name in names], timedelta(seconds=64)
        ),
    }
    assert {what: figure for what, figure in spread.items() if figure >= CHI_SQUARE_LIMIT} == {}


ASK = """
import json, sys
from datetime import datetime
from schedules.spec import Spec
spec = Spec.parse({"every": ["1h"], "jitter": "16m"})
times = [datetime.fromisoformat(text) for text in json.load(sys.stdin)]
print(json.dumps([spec.due_at(at, "nightly").isoformat() for at in times]))
"""


@pytest.mark.django_db
def test_a_schedule_that_is_renamed_keeps_its_delays_wherever_they_are_shown() -> None:
    spec = {"every": ["1h"], "jitter": "16m"}
    before = [row.due_at for row in preview(spec, count=3, now=NOMINAL, seed="Nightly").upcoming]
    schedule = make_schedule(spec=spec, name="Nightly", now=NOMINAL)
    for name in ("Weekly", "Daily", "Nightly", "Hourly"):
        schedule.edit(token=fresh(schedule).token, initiator=SOMEBODY, now=NOMINAL, changes={"name": name})
        schedule = fresh(schedule)
        edited = preview(spec, count=3, now=NOMINAL, seed=schedule.jitter_seed, instead_of=schedule)
        assert [row.due_at for row in edited.upcoming] == before
        assert [row.due_at for row in schedule.upcoming(3, now=NOMINAL)] == before
        listed = told("nexttimes", name, "--count", "3", "--after", named_time(NOMINAL))["times"]
        assert [row["due_at"] for row in listed] == [named_time(at) for at in before]
        assert f"{before[0]:%H:%M:%S}" in schedule.why(NOMINAL + timedelta(hours=1), now=NOMINAL).sentence
    generate(NOMINAL + timedelta(hours=3))
    assert list(schedule.occurrences.order_by("pk").values_list("planned_at", flat=True)) == before
