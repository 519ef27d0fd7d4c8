"""The list of measurements and the size of each one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.installation import CannotMeasure, DatabaseName

BOTH: tuple[DatabaseName, ...] = ("sqlite", "postgres")


@dataclass(frozen=True)
class Sizes:
    single: int = 2_000
    drain: int = 20_000
    children: int = 4_000
    limited: int = 10_000
    napping: int = 10_000
    failing: int = 10_000
    latency: int = 200
    chain: int = 200
    together: int = 1_000
    ticks: tuple[int, ...] = (1_000, 10_000, 100_000)
    due: int = 1_000
    idle_seconds: float = 20.0
    # How long a worker that has just ended a task may take to become idle.
    rest_seconds: float = 1.5
    waiting: int = 100_000
    claims: int = 50
    next_times: int = 10_000
    missed_schedules: int = 1_000
    missed_times: int = 1_000
    backfill: int = 100_000
    live_seconds: float = 20.0
    wakes: int = 100
    events: int = 100_000

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Sizes:
        values = json.loads(text)
        return cls(**values | {"ticks": tuple(values["ticks"])})


QUICK = Sizes(
    single=200,
    drain=1_000,
    children=100,
    limited=500,
    napping=200,
    failing=200,
    latency=20,
    chain=20,
    together=50,
    ticks=(1_000,),
    due=100,
    idle_seconds=1.0,
    rest_seconds=0.2,
    waiting=3_000,
    claims=10,
    next_times=1_000,
    missed_schedules=50,
    missed_times=100,
    backfill=20_000,
    live_seconds=3.0,
    wakes=10,
    events=5_000,
)


@dataclass(frozen=True)
class Measure:
    """A measurement: a function with this name in bench/measures.py, and the metrics that it measures.

    Measurements without `repeats` run only in the first round, because they take long or already take the
    median of many values. A quick run has only the measurements with `is_quick`.
    """

    name: str
    topic: str
    metrics: tuple[str, ...]
    databases: tuple[DatabaseName, ...] = BOTH
    repeats: bool = True
    is_quick: bool = False


def measures(sizes: Sizes) -> list[Measure]:
    """Return all measurements in the order of the report."""
    largest = size_name(sizes.ticks[-1])
    ticks = (
        *(f"tick_{size_name(size)}" for size in sizes.ticks),
        f"tick_recovering_{largest}",
        f"scheduler_cpu_{largest}",
    )
    idle = (
        "idle_memory",
        "idle_memory_used",
        "idle_memory_used_worker",
        "idle_memory_used_scheduler",
        "idle_cpu_worker",
        "idle_cpu_scheduler",
    )
    next_times = (
        "next_time",
        *(f"next_time_{name}" for name in ("cron", "interval", "holidays", "window", "mixed")),
        "next_time_memory",
    )
    missed = ("settle_missed", "settle_missed_memory")
    backfill = ("backfill_live", "backfill_live_rate")
    claim = ("claim_unanalysed_p50", "claim_unanalysed_p95", "claim_analysed_p50")
    unsynced = "enqueue_single_unsynced"
    return [
        *(Measure(name, "enqueue", (name,), is_quick=True) for name in ("enqueue_single", "enqueue_bulk")),
        Measure(unsynced, "enqueue", (unsynced,), databases=("sqlite",)),
        Measure("drain", "drain", ("drain",), is_quick=True),
        Measure("drain_one_worker", "worker", ("drain_one_worker",), databases=("postgres",)),
        *(
            Measure(name, "limited", (name,))
            for name in ("drain_limited", "drain_seats", "drain_limited_noop", "drain_seats_noop")
        ),
        Measure("drain_failing", "failing", ("drain_failing",)),
        Measure("drain_children", "children", ("drain_children",)),
        Measure("latency", "latency", ("latency_p50", "latency_p95"), is_quick=True),
        Measure("chain", "chain", ("chain_p50", "chain_p95"), is_quick=True),
        Measure("chains_together", "together", ("chains_together",)),
        Measure("due_one_step", "due", ("due_one_step",), is_quick=True),
        *(
            Measure(name, "due", (name,))
            for name in ("due_six_steps", "due_one_step_tick", "due_six_steps_tick")
        ),
        Measure("ticks", "tick", ticks, repeats=False, is_quick=True),
        Measure("idle", "idle", idle, repeats=False),
        Measure("claim", "claim", claim, repeats=False, is_quick=True),
        # Specs do not use the database, so one database is enough.
        Measure("next_time", "next_time", next_times, databases=("sqlite",), is_quick=True),
        Measure("settle_missed", "settle_missed", missed, repeats=False, is_quick=True),
        Measure("backfill_live", "backfill_live", backfill, is_quick=True),
        Measure("publish_wakes", "workflows", ("publish_wakes_p50", "publish_wakes_p95"), is_quick=True),
        Measure("workflow_start", "workflows", ("workflow_look", "workflow_start"), repeats=False),
        Measure("publish_bulk", "workflows", ("publish_bulk",)),
    ]


def chosen(measures: Sequence[Measure], only: Sequence[str], *, quick: bool) -> list[Measure]:
    """Return the measurements with the names or topics in `only`.

    If `only` is empty, return all measurements, or the quick ones if `quick` is true.
    """
    if not only:
        return [measure for measure in measures if measure.is_quick or not quick]
    if unknown := set(only) - {word for measure in measures for word in (measure.name, measure.topic)}:
        topics = ", ".join(dict.fromkeys(measure.topic for measure in measures))
        raise CannotMeasure(
            f"there is nothing to measure called {', '.join(sorted(unknown))}; there are: {topics}"
        )
    return [measure for measure in measures if {measure.name, measure.topic} & set(only)]


def size_name(size: int) -> str:
    return f"{size // 1000}k"


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
