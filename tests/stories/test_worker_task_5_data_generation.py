"""Task execution, data generation tasks: a template is executed with progress, and succeeds or fails."""

from __future__ import annotations

from typing import Any

import pytest

from activities.models import Activity
from execution.loops.recorder import StepOutput
from execution.models import Execution, WorkerTask
from execution.steps.performing import perform
from identity.models import Identity
from identity.runs import generating
from tests.base import NOW, attempts, claim, enqueue, fresh, make_worker, nursery, run_until_idle, start, step
from tests.identity.world import System, identity_type

pytestmark = pytest.mark.django_db

PEOPLE = {"count": 12, "attributes": {"id": {"sequence": "E001"}, "first": {"choose": "first_names"}}}


def generation(**config: Any) -> dict[str, Any]:
    config = {"template": PEOPLE} | config
    return {"name": "generate", "index": 0, "step_type": "generate_data", "config": config, "max_retries": 0}


def generate(**config: Any) -> tuple[Execution, Activity]:
    """Run a schedule of two steps, of which the first generates data, until nothing is left."""
    execution = start(generation(**config), step("next", 1))
    run_until_idle()
    [attempt] = attempts(execution, "generate")
    assert not WorkerTask.objects.exists()
    return fresh(execution), attempt


def test_success_completes_the_activity_and_advances_the_execution() -> None:
    identity_type()
    execution, activity = generate(identity_type="person")
    assert (activity.status, activity.result) == ("complete", {"generated": 12})
    assert (execution.status, execution.current_index) == ("completed", 1)
    assert Identity.objects.filter(origin="generated").count() == 12


def test_failure_fails_the_activity_and_the_execution() -> None:
    System("HR")
    execution, activity = generate(system="HR")
    assert (activity.status, execution.status) == ("failed_with_error", "failed")
    assert "takes changes only, so it cannot be filled with objects" in activity.error


def test_all_objects_failed_fails_it_too() -> None:
    identity_type(("id", "first#"))
    execution, activity = generate(identity_type="person")
    assert (activity.status, activity.error) == ("failed_with_error", "all 12 items failed")
    assert execution.status == "failed"
    assert not Identity.objects.exists()


def test_progress_is_told_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "AT_ONCE", 5)
    identity_type()
    [_] = enqueue(generation(identity_type="person"))
    [task] = claim(make_worker())
    told = Told(task.activity_id, lambda: NOW)
    with nursery() as children:
        perform(task.work, told, nursery=children, clock=lambda: NOW)
    assert told.heard == [
        (5, 12, "5 identities generated"),
        (10, 12, "10 identities generated"),
        (12, 12, "12 identities generated"),
    ]


class Told(StepOutput):
    """Remembers all progress, of which only the newest is stored."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard: list[tuple[int, int | None, str]] = []

    def progress(self, done: int, total: int | None, message: str) -> None:
        self.heard.append((done, total, message))
