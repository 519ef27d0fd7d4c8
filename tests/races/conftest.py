from __future__ import annotations

from collections.abc import Iterator

import pytest

from schedules.models import schedule_queryset as schedule
from tests.fleet import deadlocks
from tests.races.meeting import Meeting
from tests.settings import TEST_DB
from tests.waiting import PATIENCE_SECONDS

collect_ignore = [] if TEST_DB == "postgres" else ["test_row_locks.py", "test_snapshots.py"]


# SQLite gives its one lock in no order to those who queue up for it: there is one way to queue up.
ORDERS = ["one first", "other first", "any"] if TEST_DB == "postgres" else ["one first"]


@pytest.fixture(params=[*ORDERS, pytest.param("often", marks=pytest.mark.long)])
def meet(request: pytest.FixtureRequest) -> Meeting:
    return Meeting(request.param)


@pytest.fixture(autouse=True)
def turns_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the lock of a schedule gives up after a second; no machine is too slow here."""
    monkeypatch.setitem(schedule.SETTINGS, "lock_timeout", f"{PATIENCE_SECONDS:.0f}s")


@pytest.fixture(autouse=True)
def no_deadlocks(transactional_db: None) -> Iterator[None]:
    """PostgreSQL breaks a deadlock by failing one side, which a retry would hide."""
    before = deadlocks()
    yield
    assert deadlocks() == before
