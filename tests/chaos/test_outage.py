"""The database is away, for two lease times as it seems, and comes back: nothing that still ran is failed."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from database import clock
from execution.models import Chore, Worker
from tests import away
from tests.base import fresh, start, step, step_statuses
from tests.conftest import server
from tests.fleet import LONG_LEASE_SECONDS, Fleet, Member, descendants, is_at_rest, tell
from tests.invariants import Numbers, read_ledger, violations
from tests.settings import TEST_DB
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

# Long enough to be noticed; that leases end meanwhile is written.
AWAY_SECONDS = 2


@contextmanager
def stopped_server() -> Iterator[None]:
    """As after a power cut: no goodbye to anybody."""
    connection.close()
    server.process.send_signal(signal.SIGQUIT)
    server.process.wait(PATIENCE_SECONDS)
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
    tmp_path: Path,
    ledger: Path,
    make_fleet: Callable[..., Fleet],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with make_fleet(JIM_LEASE_SECONDS=str(LONG_LEASE_SECONDS)) as fleet:
        schedulers = [fleet.start_scheduler() for _ in range(2)]
        member = fleet.worker("--threads", "4", "--processes", "2")
        for scheduler in schedulers:
            scheduler.wait_until_ready()
        worker = member.worker
        execution = start(*long_steps(ledger), now=clock.now())
        wait_until(lambda: len(read_ledger(ledger)) == 4)
        with outage():
            (tmp_path / "during").touch()
            wait_until(lambda: len(read_ledger(ledger)) == 6)
            time.sleep(AWAY_SECONDS)
        member.freeze_empty_handed()
        # The recoverers are back first: they see an expired lease, and must not believe it.
        let_two_leases_pass()
        fleet.scheduler()
        wait_until(Chore.objects.filter(name="tick", took_seconds__gt=0).exists)
        member.thaw()
        (tmp_path / "after").touch()
        wait_until(is_at_rest)
        fleet.stop()
    tell(f"{outage.__name__}: {Numbers.load()}", capsys)
    assert set(map(tuple, step_statuses(execution).values())) == {("complete",)}
    assert violations(ledger) == []
    assert list(Worker.objects.values_list("pk", "status")) == [(worker.pk, "gone")]


@pytest.mark.skipif(TEST_DB != "postgres", reason="SQLite has no server that could go away")
@pytest.mark.parametrize("outage", [stopped_server, away.outage])
def test_it_is_one_line_for_each_component_and_no_traceback(
    outage: Callable[[], AbstractContextManager[None]], make_fleet: Callable[..., Fleet]
) -> None:
    with make_fleet() as fleet:
        members = [fleet.scheduler(), fleet.worker("--threads", "2", "--processes", "1")]
        connection.ensure_connection()
        with outage():
            members.append(fleet.start_worker("--threads", "2", "--processes", "1"))
            wait_until(lambda: all(warnings(member) for member in members))
            wait_until(lambda: any("outcomes are kept" in line for line in warnings(members[1])))
        execution = start(now=clock.now())
        wait_until(lambda: fresh(execution).status == "completed" and is_at_rest())
        fleet.stop()
        for member in members:
            assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in member.said.splitlines()), member.said
            told = Counter(line.partition(": ")[0] for line in warnings(member))
            assert set(told.values()) == {1}, member.said


def warnings(member: Member) -> list[str]:
    """Without their times."""
    return [line.partition("]")[2] for line in member.said.splitlines() if "[warning" in line]


def let_two_leases_pass() -> None:
    """In which nobody beat and nobody ticked."""
    lease = timedelta(seconds=LONG_LEASE_SECONDS)
    before = clock.now() - 2 * lease
    with transaction.atomic():
        assert Worker.objects.update(beat_at=before, lease_until=before + lease)
        ticked = {"last_run_at": before, "steady_since": before - 2 * lease, "took_seconds": None}
        Chore.objects.update_or_create(name="tick", defaults=ticked)


def long_steps(ledger: Path) -> list[dict[str, Any]]:
    """Some end while the database is away, some so late that a hasty recoverer has had its chance."""
    plan = [step("next", 1, "note", kwargs={"ledger": str(ledger)})]
    for when in ("during", "after"):
        kwargs = {"ledger": str(ledger), "path": str(ledger.parent / when)}
        plan.append(step(f"{when} in a thread", 0, "note_until", kwargs=kwargs))
        plan.append(step(f"{when} in a child", 0, "note_until", kwargs=kwargs, isolation="process"))
    return plan
