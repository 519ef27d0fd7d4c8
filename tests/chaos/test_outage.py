"""The database is away for two lease times and comes back: nothing that still ran is failed."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from activities import clock
from execution.models import Chore, Worker
from tests.base import start, step, step_statuses
from tests.conftest import server
from tests.fleet import Fleet, descendants, is_at_rest, tell
from tests.invariants import Numbers, read_ledger, violations
from tests.settings import TEST_DB
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = 2.0
AWAY_SECONDS = 2 * LEASE_SECONDS


@contextmanager
def stopped_server() -> Iterator[None]:
    """As after a power cut: no goodbye to anybody."""
    connection.close()
    server.process.send_signal(signal.SIGQUIT)
    server.process.wait(30)
    try:
        yield
    finally:
        server.start()


@contextmanager
def frozen_server() -> Iterator[None]:
    """Connections stay open, and nobody answers."""
    pids = [server.process.pid, *descendants(server.process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def locked_database() -> Iterator[None]:
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


OUTAGES = {"sqlite": [locked_database], "postgres": [stopped_server, frozen_server]}


@pytest.mark.parametrize("outage", OUTAGES[TEST_DB])
def test_what_still_ran_completes(
    outage: Callable[[], AbstractContextManager[None]],
    ledger: Path,
    make_fleet: Callable[..., Fleet],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with make_fleet(JIM_LEASE_SECONDS=str(LEASE_SECONDS)) as fleet:
        schedulers = [fleet.start_scheduler() for _ in range(2)]
        member = fleet.worker("--threads", "4", "--processes", "2")
        for scheduler in schedulers:
            scheduler.wait_until_ready()
        worker = member.worker
        execution = start(*long_steps(ledger), now=clock.now())
        wait_until(lambda: len(read_ledger(ledger)) == 4)
        with outage():
            time.sleep(AWAY_SECONDS)
            member.freeze()
        # The recoverers are back first: they see an expired lease, and must not believe it.
        back_at = clock.now()
        wait_until(lambda: Chore.objects.filter(name="tick", last_run_at__gt=back_at).exists())
        member.thaw()
        wait_until(is_at_rest, seconds=30)
        fleet.stop()
    tell(f"{outage.__name__} for {AWAY_SECONDS:g} s: {Numbers.load()}", capsys)
    assert set(map(tuple, step_statuses(execution).values())) == {("complete",)}
    assert violations(ledger) == []
    assert list(Worker.objects.values_list("pk", "status")) == [(worker.pk, "gone")]


def long_steps(ledger: Path) -> list[dict[str, Any]]:
    """Some end while the database is away, some so late that a hasty recoverer has had its chance."""
    plan = [step("next", 1, "note", kwargs={"ledger": str(ledger)})]
    for when, seconds in (("during", AWAY_SECONDS * 0.75), ("after", AWAY_SECONDS + 2 * LEASE_SECONDS)):
        kwargs = {"ledger": str(ledger), "seconds": seconds}
        plan.append(step(f"{when} in a thread", 0, "note", kwargs=kwargs))
        plan.append(step(f"{when} in a child", 0, "note", kwargs=kwargs, isolation="process"))
    return plan
