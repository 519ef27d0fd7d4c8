"""Schedulers and workers are killed and frozen at random while schedules run; in the end it all adds up."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest
from django.db import connection

from database import clock
from execution.models import Execution, Limit, Worker, WorkerTask
from tests.base import SOMEBODY, enqueue, make_schedule, step
from tests.fleet import Fleet, Member, come_to_rest, deadlocks, tell
from tests.invariants import Numbers, violations
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(0)]

SEED = int(os.environ.get("CHAOS_SEED") or 20261116)
LEASE_SECONDS = 3.0
FROZEN_SECONDS = LEASE_SECONDS * 2
DEEDS = {
    "kill a worker": 13,
    "kill a scheduler": 5,
    "freeze a worker": 2,
    "freeze a scheduler": 1,
    "cancel": 4,
}
DEEDS_AMONG_JOBS = {"kill a worker": 6, "freeze a worker": 2}
JOBS_AT_ONCE = 400
EXECUTIONS = 120
ONE_AT_A_TIME = {
    "skip": "2s",
    "buffer_one": "2s",
    "buffer_all": "5s",
    "cancel_other": "5s",
    "terminate_other": "5s",
}
MEANT_TO_FAIL = "RuntimeError: attempt 1 was meant to fail"


def test_nothing_is_lost_and_nothing_happens_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(f"CHAOS_SEED={SEED}", capsys)
    ledger = tmp_path / "ledger"
    define_load(ledger)
    before = deadlocks()
    with Fleet(tmp_path, JIM_LEASE_SECONDS=str(LEASE_SECONDS)) as fleet:
        chaos = Chaos(fleet)
        chaos.reign()
        wait_until(lambda: Execution.objects.count() >= EXECUTIONS)
        come_to_rest()
        fleet.stop()
    numbers = Numbers.load()
    tell(f"chaos on {connection.vendor}: {dict(chaos.done)} in {chaos.seconds:.0f} s; {numbers}", capsys)
    assert violations(ledger, freezes=fleet.freezes) == []
    assert chaos.done == DEEDS
    assert set(numbers.executions) <= {"completed", "failed", "cancelled"}
    assert set(numbers.reruns) <= {"worker lost", "worker lost its lease", MEANT_TO_FAIL}
    assert numbers.reruns["worker lost"] > 0
    lost_too_often = Execution.objects.filter(status="failed", error__contains="crash loop")
    assert lost_too_often.count() == numbers.executions.get("failed", 0)
    assert not Worker.objects.alive().exists()
    assert deadlocks() == before


def test_a_limit_holds_while_its_places_are_handed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quick jobs of one kind: each takes the place of one that ended, until who holds the places is hit."""
    tell(f"CHAOS_SEED={SEED}", capsys)
    ledger = tmp_path / "ledger"
    Limit.objects.define("resource:crm", 3, initiator=SOMEBODY, now=clock.now())
    with Fleet(tmp_path, JIM_LEASE_SECONDS=str(LEASE_SECONDS)) as fleet:
        chaos = ChaosAmongJobs(fleet, ledger)
        chaos.reign(DEEDS_AMONG_JOBS)
        come_to_rest()
        fleet.stop()
    numbers = Numbers.load()
    tell(f"jobs on {connection.vendor}: {dict(chaos.done)} in {chaos.seconds:.0f} s; {numbers}", capsys)
    assert violations(ledger, job_keys=chaos.keys, freezes=fleet.freezes) == []
    assert chaos.done == DEEDS_AMONG_JOBS
    assert set(numbers.reruns) <= {"worker lost", "worker lost its lease"}
    assert numbers.reruns["worker lost"] > 0


def define_load(ledger: Path) -> None:
    """Two hundred executions a minute that may overlap, and some that never may; three groups each.

    All are due at the same instants, so what has a limit waits for it each time.
    """
    now = clock.now()
    Limit.objects.define("resource:crm", 3, initiator=SOMEBODY, now=now)
    for number in range(20):
        plan = steps(ledger, 0.2, isolation="thread" if number % 4 else "process")
        make_schedule(*plan, now=now, spec={"every": ["6s"]}, overlap="allow_all")
    for overlap, every in ONE_AT_A_TIME.items():
        make_schedule(*steps(ledger, 0.3), now=now, spec={"every": [every]}, overlap=overlap)


def steps(ledger: Path, seconds: float, isolation: str = "thread") -> list[dict[str, object]]:
    kwargs = {"ledger": str(ledger), "seconds": seconds}
    pool = "children" if isolation == "process" else "default"
    return [
        step("a", 0, "note", kwargs=kwargs, resources=["crm"]),
        step("b", 0, "note", kwargs=kwargs, isolation=isolation, pool=pool),
        step("c", 1, "note_and_fail", kwargs={"ledger": str(ledger)}, max_retries=1, retry_seconds=1),
        step("d", 1, "note", kwargs=kwargs | {"deaf": True}),
        step("e", 2, "note", kwargs=kwargs, resources=["crm"]),
    ]


class Chaos:
    """Replaces what it kills. What it does, and to whom, is the same in every run; when it hits is not."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.random = random.Random(SEED)
        self.done: Counter[str] = Counter()
        self.seconds = 0.0
        self.thawing: threading.Timer | None = None
        self.schedulers = [fleet.start_scheduler() for _ in range(2)]
        # Only one of them has children: a nursery is one more process that takes its time to start.
        self.workers = [self.start_worker(pools) for pools in ("default", "default", "default,children")]

    def reign(self, wanted: Mapping[str, int] = DEEDS) -> None:
        began = time.monotonic()
        deeds = [deed for deed, times in wanted.items() for _ in range(times)]
        self.random.shuffle(deeds)
        for deed in deeds:
            time.sleep(self.random.uniform(0.5, 2.0))
            assert [member.said for member in self.fleet.members if member.has_crashed] == []
            self.do(deed)
            self.done[deed] += 1
        if self.thawing is not None:
            self.thawing.join()
        self.seconds = time.monotonic() - began

    def do(self, deed: str) -> None:
        match deed:
            case "kill a worker":
                victim = self.victim(self.workers)
                victim.kill()
                self.workers[self.workers.index(victim)] = self.start_worker(victim.arguments[-1])
            case "kill a scheduler":
                victim = self.victim(self.schedulers)
                victim.kill()
                self.schedulers[self.schedulers.index(victim)] = self.fleet.start_scheduler()
            case "freeze a worker":
                self.freeze(self.victim(self.workers))
            case "freeze a scheduler":
                self.freeze(self.victim(self.schedulers))
            case "cancel":
                running = wait_until(lambda: list(Execution.objects.in_progress().order_by("pk")))
                self.random.choice(running).cancel(initiator=SOMEBODY, now=clock.now())

    def victim(self, members: list[Member]) -> Member:
        """One that works: killing what still loads its code, or cannot move, would prove nothing."""
        return self.random.choice(wait_until(lambda: self.working(members)))

    def working(self, members: list[Member]) -> list[Member]:
        return [member for member in members if member.is_ready and not member.is_frozen]

    def freeze(self, member: Member) -> None:
        """One at a time. By a thread of its own, as it may hold the lock that everybody here waits for."""
        if self.thawing is not None:
            self.thawing.join()
        member.freeze()
        self.thawing = threading.Timer(FROZEN_SECONDS, member.thaw)
        self.thawing.start()

    def start_worker(self, pools: str) -> Member:
        return self.fleet.start_worker("--threads", "8", "--processes", "2", "--pools", pools)


class ChaosAmongJobs(Chaos):
    """Hits only workers that have something in process, of which there is always more."""

    def __init__(self, fleet: Fleet, ledger: Path) -> None:
        super().__init__(fleet)
        self.keys: dict[UUID, str] = {}
        kwargs = {"ledger": str(ledger), "seconds": 0.02}
        self.jobs = [step("job", 0, "note", kwargs=kwargs, resources=["crm"])] * JOBS_AT_ONCE

    def working(self, members: list[Member]) -> list[Member]:
        if not WorkerTask.objects.queued().exists():
            self.keys |= {task.key: task.limit_keys for task in enqueue(*self.jobs, now=clock.now())}
        busy = set(WorkerTask.objects.processing().values_list("worker__pid", flat=True))
        return [member for member in super().working(members) if member.pid in busy]
