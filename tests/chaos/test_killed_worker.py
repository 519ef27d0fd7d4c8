"""A worker that is killed in the middle of its steps takes all their processes with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from database import clock
from tests.base import start, step, step_statuses
from tests.fleet import LONG_LEASE_SECONDS, Fleet, descendants, is_at_rest, living, state, tell
from tests.invariants import violations
from tests.settings import TEST_DB
from tests.waiting import wait_until

# Whether a process is there is nothing that a database could tell.
on_one_database = [pytest.mark.long] if TEST_DB == "postgres" else []
pytestmark = [pytest.mark.django_db(transaction=True), *on_one_database]


@pytest.mark.parametrize("is_frozen", [False, True], ids=["running", "frozen"])
def test_no_orphans_and_no_waiting_for_the_lease(
    is_frozen: bool,
    tmp_path: Path,
    ledger: Path,
    family: Callable[..., dict[str, Any]],
    make_fleet: Callable[..., Fleet],
    capsys: pytest.CaptureFixture[str],
) -> None:
    talking = {"ledger": str(ledger), "path": str(tmp_path / "never")}
    with make_fleet(JIM_LEASE_SECONDS=str(LONG_LEASE_SECONDS)) as fleet:
        fleet.scheduler()
        member = fleet.worker("--threads", "4", "--processes", "2")
        execution = start(
            family("a program", kind="away"),
            step("in a child", 0, "note_and_talk_until", kwargs=talking, isolation="process"),
            now=clock.now(),
        )
        wait_until(lambda: len(pids(tmp_path)) == 4 and ledger.read_text().count("start") == 2)
        children = descendants(member.pid)
        assert set(pids(tmp_path)) <= set(living(children))

        if is_frozen:
            member.freeze_empty_handed()
            freeze(children)
        killed = time.monotonic()
        member.kill()
        wait_until(lambda: not living(children))
        gone = time.monotonic() - killed
        lost = ["failed_with_error", "pending"]
        wait_until(lambda: step_statuses(execution) == {"a program": lost, "in a child": lost})
        recovered = time.monotonic() - killed

        fleet.worker()
        wait_until(is_at_rest)
        fleet.stop()
    tell(
        f"killed worker: {len(children)} processes gone in {gone:.2f} s, recovered in {recovered:.2f} s",
        capsys,
    )
    assert step_statuses(execution)["a program"] == ["failed_with_error", "complete"]
    assert violations(ledger) == []


def freeze(pids: list[int]) -> None:
    """They can do nothing by themselves from now on."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: {state(pid) for pid in living(pids)} == {"T"})


def pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []
