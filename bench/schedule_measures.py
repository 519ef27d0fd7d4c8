"""Measurements of schedules: next times, missed times and backfills."""

from __future__ import annotations

import gc
import os
import statistics
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

from database import clock
from execution.loops.running import run_until_signal
from execution.loops.scheduler import is_due, tick
from schedules.models import Backfill
from schedules.spec import Spec

from .catalogue import Sizes
from .crew import Crew
from .load import (
    BY,
    ask_for_backfill,
    create_backfilled,
    create_live,
    create_schedules,
    expect,
    expect_all_started,
    expect_settled,
    is_over,
    lags,
    live_occurrences,
    make_missed,
    settle,
    step,
)
from .processes import peak_megabytes, resident_megabytes
from .results import Reading

LONDON = {"time_zone": "Europe/London"}
HOLIDAYS = {"holidays": "GB", "subdivision": "ENG"}
COMMON: dict[str, dict[str, Any]] = {
    "cron": {"cron": ["30 9 * * mon-fri"]} | LONDON,
    "interval": {"every": ["15m"]},
    "holidays": {"cron": ["0 6 * * *"], "exclude": [{"day_of_week": "sat,sun"}, HOLIDAYS]} | LONDON,
    "window": {"patterns": [{"every": "25m", "from": "09:00", "until": "17:30", "weekdays": "mon-fri"}]}
    | LONDON,
    "mixed": {
        "cron": ["0 9 * * mon-fri", "0 12 1 * *"],
        "every": [{"every": "6h", "offset": "5m"}],
        "calendars": [{"hour": "22", "day_of_month": "1-7", "day_of_week": "mon"}],
        "patterns": [{"times": ["09:00", "12:30"], "weekdays": "tue,thu"}],
        "exclude": [HOLIDAYS, {"dates": "2026-12-24/2027-01-02"}],
    }
    | LONDON,
}
START = datetime(2026, 1, 1, tzinfo=UTC)
YEAR_SECONDS = 365 * 86_400
PASSES = 5
WARM_UPS = 100
LIVE = 20


def next_time(sizes: Sizes) -> list[Reading]:
    """Measure the next time of some common specs, one by one; the target figure applies to the slowest."""
    specs = {name: Spec.parse(data) for name, data in COMMON.items()}
    times = {name: _next_microseconds(spec, sizes.next_times) for name, spec in specs.items()}
    return [
        Reading("next_time", max(times.values()), "us"),
        *(Reading(f"next_time_{name}", microseconds, "us") for name, microseconds in times.items()),
        Reading("next_time_memory", _growth_kilobytes(specs["mixed"], sizes.next_times), "KiB"),
    ]


def settle_missed(sizes: Sizes) -> list[Reading]:
    """Measure the ticks in which a scheduler catches up with the times that it missed."""
    now = clock.now().replace(second=0, microsecond=0)
    create_schedules(sizes.missed_schedules, steps=[step()])
    tick(now)
    make_missed(sizes.missed_times, now=now)
    settle()
    seconds, megabytes = run_until_signal(CatchingUp(now))
    expect_settled(sizes.missed_schedules, times=sizes.missed_times)
    return [Reading("settle_missed", seconds, "s"), Reading("settle_missed_memory", megabytes, "MB")]


def backfill_live(sizes: Sizes) -> list[Reading]:
    """Measure how late schedules start during a backfill, both the backfilled schedule and others."""
    with Crew() as crew:
        crew.scheduler()
        crew.worker()
        schedules = [*create_live(LIVE), create_backfilled(sizes.live_seconds)]
        since = clock.now()
        backfill = ask_for_backfill(schedules[-1], times=sizes.backfill)
        crew.wait(lambda: backfill.progress().started)
        rate = _started_per_second(backfill, seconds=sizes.live_seconds)
        until = clock.now()
        expect(Backfill.objects.open().count(), 1, "backfills that still go on")
        live = live_occurrences(since, until)
        planned = sum(len(schedule.compiled_spec.times(since, until)) for schedule in schedules)
        crew.wait(lambda: is_over(live, planned), every=0.05)
        backfill.cancel(initiator=BY, now=clock.now())
    expect_all_started(live, planned)
    return [Reading("backfill_live", max(lags(live)), "s"), Reading("backfill_live_rate", rate, "times/s")]


class CatchingUp:
    """A loop of ticks that ends when nothing is due any more.

    `run_until_signal` runs the loop as it runs a scheduler, with the same settings of the database connection
    and the garbage collector.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now

    def run(self) -> tuple[float, float]:
        """Tick until nothing is due; return the seconds, and the largest additional memory in megabytes."""
        pid = os.getpid()
        before, began = resident_megabytes(pid), time.perf_counter()
        while is_due(self.now):
            tick(self.now)
        return time.perf_counter() - began, peak_megabytes(pid) - before

    def stop(self) -> None:
        """Exit at once, because a tick cannot be interrupted and the result is not needed any more."""
        os._exit(1)


def _next_microseconds(spec: Spec, count: int) -> float:
    """Return the microseconds that a call of `spec.next` takes, for instants spread over a year.

    A first pass that is not measured fills the caches of holidays and clock changes.
    """
    golden = 0.618034
    instants = [START + timedelta(seconds=int(number * golden % 1 * YEAR_SECONDS)) for number in range(count)]
    times = []
    for _ in range(1 + PASSES):
        began = time.perf_counter()
        for instant in instants:
            spec.next(instant)
        times.append(1e6 * (time.perf_counter() - began) / count)
    return statistics.median(times[1:])


def _growth_kilobytes(spec: Spec, count: int) -> float:
    """Return how much the memory grows in `count` calls of `spec.next`, each from the result of the last."""
    at = _after(spec, START, WARM_UPS)
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    _after(spec, at, count)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / 1024


def _after(spec: Spec, at: datetime, count: int) -> datetime:
    for _ in range(count):
        following = spec.next(at)
        assert following
        at = following
    return at


def _started_per_second(backfill: Backfill, *, seconds: float) -> float:
    before, began = backfill.progress().started, time.monotonic()
    time.sleep(seconds)
    started = backfill.progress().started - before
    if not started:
        raise RuntimeError(f"the backfill has started nothing for {seconds:g} s")
    return started / (time.monotonic() - began)
