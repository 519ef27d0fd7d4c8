"""A worker is killed while handlers are between two of their commits: the reset rules say what follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from activities.models import Activity
from database import clock
from execution.models import WorkerTask
from tests.base import SOMEBODY
from tests.fleet import Fleet
from tests.waiting import wait_until
from tests.workflows.base import publish
from tests.workflows.invariants import effects, unfinished, violations
from workflows.models import Event, Run, Topic, Workflow

pytestmark = pytest.mark.django_db(transaction=True)

DONE = ("committed", "committed", "applied")
NOTHING_LEFT = ("committed", "committed", "")
# (phase, status, effect) of each attempt, up to the one that found nothing left to do.
FOLLOWS = {
    "preparing": [("preparing", "crashed", ""), DONE, NOTHING_LEFT],
    "prepared": [("prepared", "crashed", ""), DONE, NOTHING_LEFT],
    "before-the-call": [
        ("mutating", "crashed", "in_flight"),
        ("mutating", "paused:reconciliation", "failed"),
        DONE,
        NOTHING_LEFT,
    ],
    "after-the-call": [("mutating", "crashed", "in_flight"), DONE, NOTHING_LEFT],
    "nobody-can-tell": [
        ("mutating", "crashed", "in_flight"),
        ("mutating", "paused:reconciliation", "applied"),
        DONE,
        NOTHING_LEFT,
    ],
    "mutated": [("mutated", "crashed", "applied"), DONE, NOTHING_LEFT],
    "emitting": [("emitting", "crashed", "applied"), DONE, NOTHING_LEFT],
    "committed": [DONE, NOTHING_LEFT],
    "producing": [("preparing", "crashed", ""), NOTHING_LEFT],
}
CONSUMING = FOLLOWS.keys() - {"producing"}


def test_what_follows_is_what_the_reset_rules_say(tmp_path: Path, make_fleet: Callable[..., Fleet]) -> None:
    flows = tmp_path / "flows"
    flows.mkdir()
    with make_fleet(DJANGO_SETTINGS_MODULE="tests.flows.settings", FLOWS_FOLDER=str(flows)) as fleet:
        fleet.scheduler()
        wait_until(lambda: Topic.objects.count() == len(FOLLOWS))
        for slug in CONSUMING:
            publish(slug, "x", now=clock.now())
        wait_until(lambda: WorkerTask.objects.count() == len(FOLLOWS))
        member = fleet.worker("--threads", str(len(FOLLOWS)))
        wait_until(lambda: {path.stem for path in flows.glob("*.there")} == FOLLOWS.keys())
        member.kill()
        (flows / "go").touch()
        fleet.worker("--threads", "4")
        wait_until(lambda: [run.workflow.slug for run in waiting_for_people()] == ["nobody-can-tell"])
        (run,) = waiting_for_people()
        assert effects(flows / "ledger")[str(run.mutation_key)] == ["nobody-can-tell"]
        run.reconcile(True, "", result="nobody-can-tell", initiator=SOMEBODY, now=clock.now())
        wait_until(lambda: not Run.objects.open().exists() and not WorkerTask.objects.exists())
        fleet.stop()
    assert {slug: attempts(slug) for slug in FOLLOWS} == FOLLOWS
    assert sorted(result for results in effects(flows / "ledger").values() for result in results) == sorted(
        CONSUMING
    )
    assert activities("committed") == ["complete", "complete"]
    assert activities("producing") == ["failed_with_error", "complete"]
    assert Event.objects.get(topic__slug="produced").seq == 1
    assert unfinished(list(Workflow.objects.all())) == []
    assert violations(flows / "ledger", now=clock.now()) == []


def waiting_for_people() -> list[Run]:
    return list(Run.objects.stuck().filter(status="paused:reconciliation", due_at=None))


def attempts(slug: str) -> list[tuple[str, str, str]]:
    rows = Run.objects.filter(workflow__slug=slug).order_by("pk")
    return list(rows.values_list("phase", "status", "effect"))


def activities(slug: str) -> list[str]:
    keys = Run.objects.filter(workflow__slug=slug).values("key")
    return list(Activity.objects.filter(task_key__in=keys).order_by("pk").values_list("status", flat=True))
