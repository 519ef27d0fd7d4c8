"""PostgreSQL only: a worker that freezes with locks in its hands loses them before its lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection, transaction

from activities.models import Activity
from database import clock
from execution.models import WorkerTask
from tests.base import start, step, step_statuses
from tests.fleet import Fleet, Member, is_at_rest
from tests.invariants import violations
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


LEASE_SECONDS = "4"


@pytest.mark.parametrize("what", ["talk", "outcome"])
def test_while_it_writes_what_a_step_says_or_its_outcome(
    tmp_path: Path, ledger: Path, make_fleet: Callable[..., Fleet], what: str
) -> None:
    """Its locks are free again, others take over, and what it was writing is never written."""
    with make_fleet(JIM_LEASE_SECONDS=LEASE_SECONDS) as fleet:
        member = fleet.worker()
        before = member.worker
        go = tmp_path / "go"
        kwargs = {"ledger": str(ledger), "path": str(go)}
        function = "note_and_talk_until" if what == "talk" else "note_until"
        execution = start(step("work", 0, function, kwargs=kwargs), now=clock.now())
        attempt = Activity.objects.get(parent=execution.activity_id)
        wait_until(lambda: attempt.output.exists() if what == "talk" else ledger.exists())
        with freezing(member, attempt):
            if what == "outcome":
                go.touch()
        said = attempt.output.count()
        fleet.bury_expired(member)
        wait_until(lambda: step_statuses(execution) == {"work": ["failed_with_error", "pending"]})
        member.thaw()
        wait_until(lambda: member.worker.pk != before.pk)
        go.touch()
        wait_until(is_at_rest)
        assert member.worker.pid == member.pid
        fleet.stop()
    assert step_statuses(execution) == {"work": ["failed_with_error", "complete"]}
    assert attempt.output.count() == said
    assert violations(ledger) == []


def test_while_it_claims(ledger: Path, make_fleet: Callable[..., Fleet]) -> None:
    """A claim is one statement, which the server ends without it: what it holds then is recovered."""
    with make_fleet(JIM_LEASE_SECONDS=LEASE_SECONDS) as fleet:
        execution = start(step("work", 0, "note", kwargs={"ledger": str(ledger)}), now=clock.now())
        attempt = Activity.objects.get(parent=execution.activity_id)
        member = fleet.start_worker()
        with frozen_at_a_lock(member, attempt):
            member.wait_until_ready()
        wait_until(WorkerTask.objects.processing().exists)
        # The worker itself must also find its lease over when it goes on.
        wait_until(lambda: clock.now() > member.worker.lease_until)
        fleet.bury_expired(member)
        wait_until(lambda: step_statuses(execution) == {"work": ["failed_with_error", "pending"]})
        member.thaw()
        wait_until(is_at_rest)
        fleet.stop()
    assert step_statuses(execution) == {"work": ["failed_with_error", "complete"]}
    assert violations(ledger) == []


@contextmanager
def freezing(member: Member, activity: Activity) -> Iterator[None]:
    """It comes upon a row that somebody holds, in the middle of a transaction, and there it is frozen."""
    with frozen_at_a_lock(member, activity) as blocked:
        yield
    # It cannot close it itself.
    wait_until(lambda: not blocked & sessions())


@contextmanager
def frozen_at_a_lock(member: Member, activity: Activity) -> Iterator[set[int]]:
    """Yields the session that it will have been blocked in."""
    blocked: set[int] = set()
    with transaction.atomic():
        list(Activity.objects.filter(pk=activity.pk).lock())
        yield blocked
        blocked |= wait_until(lambda: sessions("wait_event_type = 'Lock'"))
        member.freeze()


def sessions(condition: str = "true") -> set[int]:
    """Of others that are connected to this database, and in this state."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            f"AND pid <> pg_backend_pid() AND {condition}"
        )
        return {pid for (pid,) in cursor.fetchall()}
