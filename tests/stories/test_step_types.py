"""Steps of every type, run by real workers: what they set in motion ends with them, however that comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from database import clock
from execution.models import Execution, WorkerTask
from tests.base import SOMEBODY, attempts, fresh, start, step, step_statuses
from tests.fleet import Fleet, is_at_rest, is_held, living
from tests.invariants import read_ledger, violations
from tests.loops import running_worker
from tests.outside import POSTGRESQL, SQLITE, Outside
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.live]

FAMILY = Path(__file__).parents[1] / "chaos" / "programs" / "family"
# How many processes it is made of; those that are "away" have left the process group.
FAMILY_SIZE = {"": 2, "away": 4}
SEATS = ("--threads", "8", "--processes", "1")


@dataclass(frozen=True)
class Deed:
    """What the first attempt of a step sets in motion, to go on for ever; a later one completes at once."""

    step: dict[str, Any]
    goes_on: Callable[[], bool]

    @property
    def name(self) -> str:
        return str(self.step["name"])


def test_a_worker_that_is_killed_takes_it_along_and_another_one_completes_the_steps(outside: Outside) -> None:
    deeds = deeds_of_all_types(outside, family="away")
    with Fleet(outside.folder, **outside.env) as fleet:
        victim = fleet.worker(*SEATS)
        execution = begin(deeds, typed("wait", duration="1h"))
        lost_by = victim.worker.pk
        wait = WorkerTask.objects.queued().filter(begun_at__isnull=False)
        wait_until(wait.exists)
        victim.kill()
        wait_until(lambda: not any(deed.goes_on() for deed in deeds))
        wait_until(lambda: not any(is_held(path) for path in fleet.folder.glob("workers/*")))
        wait.update(step=wait.get().step | {"config": {"duration": "1s"}}, available_at=clock.now())
        completed_by = fleet.worker(*SEATS).worker.pk
        wait_until(is_at_rest)
        fleet.stop()

    for deed in deeds:
        first, second = attempts(execution, deed.name)
        assert (first.error, first.worker_id) == ("worker lost", lost_by)
        assert (first.status, second.status) == ("failed_with_error", "complete")
        assert second.worker_id == completed_by
    assert step_statuses(execution)["wait"] == ["complete"], "it held nothing that could be lost"
    assert fresh(execution).status == Execution.Status.COMPLETED
    assert violations() == []


def test_a_cancel_ends_it(outside: Outside) -> None:
    deeds = deeds_of_all_types(outside, family="")
    with running_worker(threads=8):
        execution = begin(deeds, typed("wait", duration="1h"))
        assert execution.cancel(initiator=SOMEBODY, now=clock.now())
        wait_until(lambda: not any(deed.goes_on() for deed in deeds))
        wait_until(lambda: fresh(execution).status == Execution.Status.CANCELLED)
        wait_until(is_at_rest)

    names = [deed.name for deed in deeds] + ["wait"]
    assert step_statuses(execution) == {name: ["cancelled"] for name in names}
    assert violations() == []


def begin(deeds: list[Deed], *others: dict[str, Any]) -> Execution:
    """Returns in the middle of all of them."""
    execution = start(*(deed.step for deed in deeds), *others, now=clock.now())
    for deed in deeds:
        wait_until(deed.goes_on)
    return execution


def deeds_of_all_types(outside: Outside, *, family: str) -> list[Deed]:
    program = outside.script("family", FAMILY.read_text())
    size = FAMILY_SIZE[family]

    def argv(name: str) -> list[str]:
        (outside.folder / name).mkdir()
        return [program, str(outside.folder / name), family]

    child = step("child", 0, "run_program", kwargs={"argv": argv("child")}, isolation="process")
    script = outside.script("family.ps1", f"& {' '.join(argv('powershell'))}")
    return [
        in_a_thread(outside),
        with_family(outside, child, size),
        with_family(outside, typed("executable", argv=argv("executable")), size),
        with_family(outside, typed("powershell", script=script), size),
        on_postgresql(outside),
        on_sqlite(outside),
        over_http(outside),
    ]


def typed(step_type: str, name: str = "", **config: Any) -> dict[str, Any]:
    frame = {"name": name or step_type, "index": 0, "step_type": step_type, "max_retries": 0}
    return frame | {"config": config}


def in_a_thread(outside: Outside) -> Deed:
    ledger = outside.folder / "ledger"

    def goes_on() -> bool:
        marks = read_ledger(ledger)
        return [mark.event for mark in marks] == ["start"] and bool(living([marks[0].pid]))

    return Deed(step("thread", 0, "note_once", kwargs={"ledger": str(ledger)}), goes_on)


def with_family(outside: Outside, step: dict[str, Any], size: int) -> Deed:
    pids = outside.folder / step["name"] / "pids"

    def goes_on() -> bool:
        family = [int(line) for line in pids.read_text().split()] if pids.exists() else []
        return len(family) == size and bool(living(family))

    return Deed(step, goes_on)


def on_postgresql(outside: Outside) -> Deed:
    script = "SELECT pg_sleep(CASE WHEN :attempt = 1 THEN 600 ELSE 0 END)"
    config = {"connection": POSTGRESQL, "script": script, "parameters": {"attempt": "{{ attempt }}"}}
    return Deed(typed("sql", "PostgreSQL", **config), outside.is_postgresql_busy)


def on_sqlite(outside: Outside) -> Deed:
    """It writes first, so that the file is locked for as long as it goes on."""
    script = """
        CREATE TABLE visits (attempt);
        INSERT INTO visits VALUES (:attempt);
        WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE :attempt = 1)
        SELECT count(*) FROM n
    """
    config = {"connection": SQLITE, "script": script, "parameters": {"attempt": "{{ attempt }}"}}
    return Deed(typed("sql", "SQLite", **config), outside.is_sqlite_locked)


def over_http(outside: Outside) -> Deed:
    url = f"{outside.web.url}/second-attempt?attempt={{{{ attempt }}}}"
    return Deed(typed("http", url=url), lambda: bool(outside.web.waiting))
