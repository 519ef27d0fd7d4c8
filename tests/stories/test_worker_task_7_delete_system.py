"""Task execution, delete tasks: orphans are marked, then the system is deleted; or it is active again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from activities.models import Activity
from execution.models import Execution, WorkerTask
from identity.models import Account, ConnectedSystem, RunProfile, SyncRule
from tests.base import NOW, attempts, fresh, run_until_idle, seconds, start, step
from tests.identity.world import FULL_IMPORT, FULL_SYNC, System, identities, identity_type, items, rule
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db

MONTH = seconds(30 * 86_400)


@pytest.fixture
def hr() -> System:
    """A system whose people exist only because of it, and one person who is known elsewhere, too."""
    system, badges = System("HR"), System("Badges")
    people = identity_type(deletion="last_connector", grace_days=30)
    rule("in", system, people, {"id": "id", "first": "first"}, join="id")
    rule("in", badges, people, {"id": {"source": "id", "priority": 200}}, join="id")
    for number in ("1", "2"):
        system.put(number, first="Ada")
    badges.put("2")
    for each in (system, badges):
        each.run(FULL_IMPORT)
        each.run(FULL_SYNC)
    return system


def delete() -> tuple[Execution, Activity]:
    """Run a schedule of two steps, of which the first deletes HR, until nothing is left."""
    task = {"name": "delete", "index": 0, "step_type": "delete_system", "config": {"system": "HR"}}
    execution = start(task | {"max_retries": 0}, step("next", 1))
    run_until_idle()
    [attempt] = attempts(execution, "delete")
    assert not WorkerTask.objects.exists()
    return fresh(execution), attempt


@contextmanager
def trouble() -> Iterator[None]:
    """The database refuses the record of the deletion, which is written last."""
    with database_that_refuses("NEW.operation = 'delete'", event="INSERT"):
        yield


def test_success_marks_the_orphans_deletes_the_system_and_completes_the_activity(hr: System) -> None:
    execution, activity = delete()

    assert (activity.status, execution.status) == ("complete", "completed")
    assert activity.result == {"disconnected": 2, "flowed": 1, "marked": 1, "removed": 2}
    assert sorted(items(activity)) == [
        ("1", "disconnected", ""),
        ("1", "marked", ""),
        ("2", "disconnected", ""),
        ("2", "flowed", ""),
    ]
    orphan, other = identities()["1"], identities()["2"]
    assert (orphan.delete_after, other.delete_after) == (NOW + MONTH, None)
    assert (orphan.attrs, other.attrs) == ({"id": "1", "first": "Ada"}, {"id": "2"})
    for model in (ConnectedSystem, SyncRule, Account):
        assert model._default_manager.count() == 1
    assert not RunProfile.objects.filter(system=hr.row.pk).exists()
    recorded = Activity.objects.get(operation="delete")
    assert (recorded.target_type, recorded.target_name) == ("connectedsystem", "HR")
    assert recorded.initiator_name == activity.initiator_name


def test_failure_makes_the_system_active_again_and_fails_the_activity(hr: System) -> None:
    with trouble():
        execution, activity = delete()

    assert (activity.status, execution.status) == ("failed_with_error", "failed")
    assert "this row is refused" in activity.error
    assert fresh(hr.row).status == "active"
    assert fresh(hr.row).running_activity_id is None
    assert not Activity.objects.filter(operation="delete").exists()


def test_after_a_failure_it_can_be_deleted_again(hr: System) -> None:
    with trouble():
        delete()
    execution, activity = delete()
    assert (activity.status, execution.status) == ("complete", "completed")
    assert not ConnectedSystem.objects.filter(name="HR").exists()
    assert identities()["1"].delete_after == NOW + MONTH


def test_after_a_failure_it_can_be_kept_instead(hr: System) -> None:
    """A full import finds the accounts again that the failed deletion has removed."""
    before = {name: (each.uuid, each.attrs) for name, each in identities().items()}
    with trouble():
        delete()

    hr.run(FULL_IMPORT)
    hr.run(FULL_SYNC)

    assert {name: (each.uuid, each.attrs) for name, each in identities().items()} == before
    assert {each.delete_after for each in identities().values()} == {None}
    assert set(hr.accounts()) == {"1", "2"}
