"""Processes of every kind are killed and frozen, connections cut and the database restarted, for a while.

Clients go on all the time. When it is over, what they were told, the tables, the ledger of the steps and the
process table must agree. CHAOS_SECONDS says for how long; `make chaos` takes ten minutes per database.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import InterfaceError, OperationalError, connection

from database import clock
from execution.models import Limit, Worker
from tests.api.serving import token_of
from tests.base import SOMEBODY, make_schedule, step
from tests.chaos.clients import Client, broken_promises, kinds_of_requests
from tests.chaos.conftest import PROGRAMS
from tests.chaos.test_kills import SEED, Chaos, steps
from tests.chaos.test_outage import stopped_server
from tests.fleet import Fleet, Member, Process, Website, come_to_rest, deadlocks, processes_in, tell
from tests.invariants import Numbers, violations
from tests.settings import TEST_DB
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(0)]

SECONDS = float(os.environ.get("CHAOS_SECONDS") or 30)
LEASE_SECONDS = 6.0
FROZEN_SECONDS = LEASE_SECONDS * 1.5
LOCKED_SECONDS = 4.0
FAULTS = {
    "kill a worker": 5,
    "kill a scheduler": 2,
    "kill a web server": 5,
    "freeze a worker": 2,
    "freeze a scheduler": 1,
    "freeze a web server": 1,
    "freeze a worker and its children, and kill it": 2,
    "cancel": 2,
}
FAULTS_OF_THE_DATABASE = {
    "sqlite": {"lock the database": 1},
    "postgres": {"cut all connections": 2, "restart the database": 1},
}
T = TypeVar("T")


def test_what_was_promised_is_kept(tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.JIM_EXECUTABLE_FOLDERS = [PROGRAMS]
    tell(f"CHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g}", capsys)
    ledger = tmp_path / "ledger"
    token = token_of("Administrator")
    kinds = kinds_of_requests(str(ledger), define_load(ledger))
    before = deadlocks()
    env = {
        "JIM_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
        "JIM_API_PER_MINUTE": "1000000",
        "JIM_EXECUTABLE_FOLDERS": str(PROGRAMS),
    }
    with Fleet(tmp_path, **env) as fleet:
        storm = Storm(fleet)
        addresses = [web.address for web in storm.webs]
        clients = [Client(f"client-{number}", SEED, addresses, token, kinds) for number in range(3)]
        for client in clients:
            client.start()
        storm.rage(SECONDS)
        for client in clients:
            client.is_enough.set()
        wait_until(lambda: not any(client.is_alive() for client in clients))
        took = storm.settle()
        fleet.stop()
        noticed = [*storm.left(), *storm.tracebacks()]
    promises = [promise for client in clients for promise in client.promises]
    statuses = sum((client.statuses for client in clients), Counter[int]())
    told = f"{dict(storm.done)}; {len(promises)} promises, answers {dict(statuses)}"
    tell(f"storm on {connection.vendor}: {told}; at rest after {took:.0f} s; {Numbers.load()}", capsys)
    found = [*violations(ledger, freezes=fleet.freezes), *broken_promises(promises), *noticed]
    assert not found, "\n".join(found)
    assert statuses[500] == 0
    assert not Worker.objects.alive().exists()
    wait_until(lambda: not processes_in(tmp_path))
    assert deadlocks() == before


def define_load(ledger: Path) -> int:
    """Schedules of some kinds; the number of the one that clients may run."""
    now = clock.now()
    Limit.objects.define("resource:crm", 3, initiator=SOMEBODY, now=now)
    for isolation in ("thread", "thread", "process"):
        plan = steps(ledger, 0.2, isolation=isolation)
        make_schedule(*plan, now=now, spec={"every": ["6s"]}, overlap="allow_all")
    for overlap in ("skip", "buffer_one", "cancel_other", "terminate_other"):
        make_schedule(*steps(ledger, 0.3), now=now, spec={"every": ["5s"]}, overlap=overlap)
    family = {"argv": [str(PROGRAMS / "family"), str(ledger.parent), "away"]}
    program = {"name": "family", "index": 0, "step_type": "executable", "config": family}
    retried = program | {"timeout_seconds": 3, "max_retries": 1, "retry_seconds": 0}
    make_schedule(retried, now=now, spec={"every": ["10s"]}, overlap="skip")
    note = step("noted", 0, "note", kwargs={"ledger": str(ledger)})
    return int(make_schedule(note, now=now, spec={}, overlap="allow_all").pk)


class Storm(Chaos):
    """What it does, and to whom, is chosen by the seed; how much of it there is time for is not."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.webs = [fleet.start_web() for _ in range(2)]
        self.doomed: list[Process] = []
        fleet.stack.callback(self.end_what_is_left)

    def rage(self, seconds: float) -> None:
        faults = FAULTS | FAULTS_OF_THE_DATABASE[TEST_DB]
        names, weights = list(faults), list(faults.values())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self.random.uniform(0.2, 1.5))
            assert [member.said for member in self.fleet.members if member.has_crashed] == []
            [fault] = self.random.choices(names, weights)
            insist(partial(self.do, fault))
            self.done[fault] += 1
        if self.thawing is not None:
            self.thawing.join()

    def do(self, deed: str) -> None:
        match deed:
            case "kill a web server":
                self.web().restart()
            case "freeze a web server":
                self.freeze(self.web())
            case "freeze a worker and its children, and kill it":
                self.freeze_and_kill(self.victim(self.workers))
            case "cut all connections":
                cut_connections()
            case "restart the database":
                with stopped_server():
                    pass
            case "lock the database":
                lock_database()
            case "kill a worker":
                victim = self.victim(self.workers)
                self.doomed += Process.tree(victim.pid)
                self.replace(victim)
            case _:
                super().do(deed)

    def web(self) -> Website:
        return self.random.choice(wait_until(lambda: [web for web in self.webs if web.is_ready]))

    def freeze_and_kill(self, victim: Member) -> None:
        tree = Process.tree(victim.pid)
        for process in tree:
            process.signal(signal.SIGSTOP)
        # What it started before it stopped.
        self.doomed += tree + [each for each in Process.tree(victim.pid) if each not in tree]
        self.replace(victim)

    def replace(self, victim: Member) -> None:
        victim.kill()
        self.workers[self.workers.index(victim)] = self.start_worker(victim.arguments[-1])

    def freeze(self, member: Member | Website) -> None:
        if self.thawing is not None:
            self.thawing.join()
        member.freeze()
        self.thawing = threading.Timer(FROZEN_SECONDS, member.thaw)
        self.thawing.start()

    def left(self) -> list[str]:
        """Processes of killed workers that did not die with them, once they had time to."""
        with suppress(AssertionError):
            wait_until(lambda: not self._alive())
        return [f"{process} outlived its worker" for process in self._alive()]

    def _alive(self) -> list[Process]:
        return [process for process in self.doomed if process.is_alive]

    def end_what_is_left(self) -> None:
        """A failed test must not leave it to the machine either."""
        for process in self._alive():
            process.signal(signal.SIGKILL)

    def settle(self) -> float:
        """Let everything come to its end; how long that took."""
        began = time.monotonic()
        come_to_rest()
        return time.monotonic() - began

    def tracebacks(self) -> list[str]:
        said = [member.said for member in self.fleet.members] + [web.said for web in self.webs]
        return [text[text.index("Traceback") - 500 :][:3000] for text in said if "Traceback" in text]


def insist(call: Callable[[], T]) -> T:
    """Repeat what fails because the database was just restarted or is locked: that is not its fault."""
    for _ in range(20):
        try:
            return call()
        except (OperationalError, InterfaceError):
            connection.close()
    return call()


def cut_connections() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def lock_database() -> None:
    """As a backup or a person at a prompt does."""
    name = connection.settings_dict["NAME"]
    with closing(sqlite3.connect(name, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED_SECONDS)
