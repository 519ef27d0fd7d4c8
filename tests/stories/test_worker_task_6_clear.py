"""Task execution, clear tasks: all accounts of a connected system are forgotten, or the task fails."""

from __future__ import annotations

import pytest

from activities.models import Activity
from execution.models import Execution, WorkerTask
from identity.models import Account
from tests.base import attempts, fresh, run_until_idle, start, step
from tests.identity.world import FULL_IMPORT, FULL_SYNC, System, identities, identity_type, rule
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db


@pytest.fixture
def hr() -> System:
    system = System("HR")
    rule("in", system, identity_type(), {"id": "id", "first": "first"}, join="id")
    for number in ("1", "2"):
        system.put(number, first="Ada")
    system.run(FULL_IMPORT)
    system.run(FULL_SYNC)
    return system


def clear() -> tuple[Execution, Activity]:
    """Run a schedule of two steps, of which the first clears HR, until nothing is left."""
    task = {"name": "clear", "index": 0, "step_type": "clear_system", "config": {"system": "HR"}}
    execution = start(task | {"max_retries": 0}, step("next", 1))
    run_until_idle()
    [attempt] = attempts(execution, "clear")
    assert not WorkerTask.objects.exists()
    return fresh(execution), attempt


def test_success_completes_the_activity_and_advances_the_execution(hr: System) -> None:
    execution, activity = clear()
    assert (activity.status, activity.result, activity.items_total) == ("complete", {"removed": 2}, 2)
    assert (execution.status, execution.current_index) == ("completed", 1)
    assert not Account.objects.exists()
    assert set(identities()) == {"1", "2"}
    assert fresh(hr.row).status == "rebuilding"


def test_a_system_that_is_being_deleted_fails_it(hr: System) -> None:
    hr.row.begin_deletion()
    execution, activity = clear()
    assert (activity.status, execution.status) == ("failed_with_error", "failed")
    assert activity.error == "“HR” is being deleted, so it cannot be cleared."
    assert set(hr.accounts()) == {"1", "2"}


def test_an_exception_fails_it_and_it_can_be_repeated(hr: System) -> None:
    with database_that_refuses("NEW.type_id > 0", table="identity_formeraccount", event="INSERT"):
        execution, activity = clear()
    assert (activity.status, execution.status) == ("failed_with_error", "failed")
    assert "this row is refused" in activity.error
    assert set(hr.accounts()) == {"1", "2"}
    assert fresh(hr.row).status == "rebuilding"

    assert clear()[1].status == "complete"
    hr.run(FULL_IMPORT)
    hr.run(FULL_SYNC)
    assert fresh(hr.row).status == "active"
