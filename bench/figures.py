"""The target figures for the speed and memory use of JIM, and how to judge whether they are met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .results import JIM, Key, Results

DJANGO_Q2 = "django-q2 ORM/PG"
DJANGO_Q2_SQLITE = "django-q2 ORM/SQLite"
DJANGO_Q2_SCHEDULES = "django-q2 schedules/PG"
CELERY = "celery Redis safe"
PROCRASTINATE = "procrastinate async"
PGQUEUER = "pgqueuer"
HUEY_SQLITE = "huey SQLite"


@dataclass(frozen=True)
class Figure:
    """A target for one metric: a number, or a multiple of another metric (`of`).

    Without a limit, the two metrics are only compared.
    """

    metric: str
    database: Literal["sqlite", "postgres"]
    sense: Literal["at least", "at most"]
    limit: float | None
    of: Key | None = None
    note: str = ""

    @property
    def key(self) -> Key:
        return Key(self.metric, self.database)

    def judge(self, results: Results) -> Verdict | None:
        """Return the verdict, or None if this metric or the one that it is compared with was not measured."""
        if self.key not in results or (self.of is not None and self.of not in results):
            return None
        mine = results.value(self.key)
        other = results.value(self.of) if self.of is not None else 1.0
        if mine is None or other is None:
            return Verdict(self, mine, other if self.of else None, None)
        if self.limit is None:
            return Verdict(self, mine, other, None)
        bound = self.limit * other
        is_met = mine >= bound if self.sense == "at least" else mine <= bound
        return Verdict(self, mine, other if self.of else None, is_met)


@dataclass(frozen=True)
class Verdict:
    figure: Figure
    mine: float | None
    other: float | None
    is_met: bool | None

    @property
    def ratio(self) -> float | None:
        return self.mine / self.other if self.mine is not None and self.other else None


def drain_of(peer: str, database: str) -> Key:
    return Key("drain", database, peer)


FIGURES = (
    Figure("drain", "postgres", "at least", 20, drain_of(DJANGO_Q2, "postgres")),
    Figure("drain", "postgres", "at least", 10, drain_of(CELERY, "redis")),
    Figure("drain", "postgres", "at least", 10, drain_of(PROCRASTINATE, "postgres")),
    Figure("drain", "postgres", "at least", 0.5, drain_of(PGQUEUER, "postgres")),
    Figure("drain", "postgres", "at least", 1, drain_of(PGQUEUER, "postgres"), note="stretch"),
    Figure("drain", "sqlite", "at least", 3, drain_of(HUEY_SQLITE, "sqlite")),
    Figure("drain", "sqlite", "at least", 8, drain_of(DJANGO_Q2_SQLITE, "sqlite")),
    *(
        Figure("drain_limited", database, "at least", 0.6, Key("drain_seats", database), note="limit of 4")
        for database in ("postgres", "sqlite")
    ),
    Figure("drain_children", "postgres", "at least", 1, drain_of(CELERY, "redis")),
    Figure("drain_children", "sqlite", "at least", 1, drain_of(CELERY, "redis")),
    Figure("enqueue_single", "postgres", "at least", 1, Key("enqueue_single", "postgres", DJANGO_Q2)),
    Figure("enqueue_single", "sqlite", "at least", 1, Key("enqueue_single", "sqlite", DJANGO_Q2_SQLITE)),
    Figure(
        "enqueue_single_unsynced",
        "sqlite",
        "at least",
        1,
        Key("enqueue_single", "sqlite", DJANGO_Q2_SQLITE),
        note="both without waiting for the disk",
    ),
    Figure("enqueue_bulk", "postgres", "at least", 15_000),
    Figure("enqueue_bulk", "sqlite", "at least", 15_000),
    Figure("enqueue_bulk", "postgres", "at least", None, Key("enqueue_bulk", "postgres", PGQUEUER)),
    Figure("latency_p50", "postgres", "at most", 3),
    Figure("latency_p95", "postgres", "at most", 8),
    Figure("latency_p50", "sqlite", "at most", 20),
    Figure("latency_p50", "postgres", "at most", None, Key("latency_p50", "redis", CELERY)),
    Figure("latency_p50", "postgres", "at most", None, Key("latency_p50", "postgres", DJANGO_Q2)),
    Figure("chain_p50", "postgres", "at most", 20),
    Figure("chain_p50", "sqlite", "at most", 15),
    Figure("chain_p50", "postgres", "at most", None, Key("chain_p50", "redis", CELERY)),
    Figure("chain_p50", "postgres", "at most", None, Key("chain_p50", "postgres", DJANGO_Q2)),
    Figure("chain_p50", "sqlite", "at most", None, Key("chain_p50", "sqlite", HUEY_SQLITE)),
    Figure("chains_together", "postgres", "at least", 4_000),
    Figure("chains_together", "sqlite", "at least", 4_000),
    Figure("tick_100k", "postgres", "at most", 2),
    Figure("tick_100k", "sqlite", "at most", 2),
    Figure("tick_100k", "postgres", "at most", 1.5, Key("tick_1k", "postgres"), note="flat"),
    Figure("tick_100k", "sqlite", "at most", 1.5, Key("tick_1k", "sqlite"), note="flat"),
    Figure("due_one_step", "postgres", "at most", 500),
    Figure("due_six_steps", "postgres", "at most", 1_500),
    Figure("due_six_steps", "sqlite", "at most", 1_500),
    Figure(
        "due_one_step_tick",
        "postgres",
        "at most",
        None,
        Key("due_one_step_tick", "postgres", DJANGO_Q2_SCHEDULES),
    ),
    *(
        Figure(metric, database, "at most", limit)
        for metric, limit in (("idle_memory", 130), ("idle_cpu_worker", 1), ("idle_cpu_scheduler", 1))
        for database in ("postgres", "sqlite")
    ),
    Figure(
        "claim_unanalysed_p50",
        "postgres",
        "at most",
        2,
        Key("claim_analysed_p50", "postgres", JIM),
        note="stays fast",
    ),
    Figure("next_time", "sqlite", "at most", 60),
    Figure("publish_wakes_p50", "postgres", "at most", 25),
    Figure("publish_wakes_p50", "sqlite", "at most", 100),
    *(
        Figure(metric, database, "at most", 10)
        for metric in ("workflow_look", "workflow_start")
        for database in ("postgres", "sqlite")
    ),
    Figure("publish_bulk", "postgres", "at least", 5_000),
    Figure("publish_bulk", "sqlite", "at least", 5_000),
    Figure("next_time_memory", "sqlite", "at most", 64, note="no growth"),
    *(
        Figure(metric, database, "at most", limit)
        for metric, limit in (("settle_missed", 60), ("settle_missed_memory", 100), ("backfill_live", 2))
        for database in ("postgres", "sqlite")
    ),
)
