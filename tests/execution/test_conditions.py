"""Plans of every shape against a second opinion: which steps run, and how the execution ends."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest

from execution.models import Execution, WorkerTask
from tests.base import NOW, SOMEBODY, claim, end, fresh, make_worker, step, step_statuses

pytestmark = pytest.mark.django_db
OUTCOMES = ["complete", "complete", "complete_with_warning", "failed_with_error", "skipped"]
REST = {"stop": "cancelled", "skip": "skipped"}


def some_plan(chance: random.Random) -> list[dict[str, Any]]:
    """Its first group has a step that runs in any case."""
    conditions = ["success"] * 3 + ["failure", "always"]
    plan = [step("first", 0)]
    for number in range(chance.randint(1, 8)):
        run_if = chance.choice(conditions)
        index = chance.randint(1 if run_if == "failure" else 0, 4)
        tolerant = chance.random() < 0.2
        plan.append(step(f"step {number}", index, run_if=run_if, continue_on_failure=tolerant))
    return sorted(plan, key=lambda line: line["index"])


def expected(
    plan: list[dict[str, Any]], outcomes: dict[str, str], on_failure: str
) -> tuple[dict[str, list[str]], str]:
    """Told from the rules alone: group by group, with nothing but whether something has failed."""
    statuses, has_failed = {}, False
    for _, lines in groupby(plan, key=lambda line: line["index"]):
        failed_before = has_failed
        for line in lines:
            name = line["name"]
            if line["run_if"] == "failure" and not failed_before:
                statuses[name] = ["skipped"]
            elif line["run_if"] == "success" and failed_before and on_failure in REST:
                statuses[name] = [REST[on_failure]]
            else:
                statuses[name] = [outcomes[name]]
                is_failure = outcomes[name] == "failed_with_error" and not line["continue_on_failure"]
                has_failed = has_failed or is_failure
    return statuses, "failed" if has_failed else "completed"


@pytest.mark.parametrize("on_failure", ["stop", "continue", "skip"])
@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 60))]
)
def test_what_runs(seed: int, on_failure: str) -> None:
    chance = random.Random(seed)
    plan = [{"run_if": "success", "continue_on_failure": False} | line for line in some_plan(chance)]
    outcomes = {str(line["name"]): chance.choice(OUTCOMES) for line in plan}
    execution = Execution.objects.submit("Group", plan, initiator=SOMEBODY, now=NOW, on_failure=on_failure)
    worker = make_worker()
    while tasks := claim(worker):
        chance.shuffle(tasks)
        for task in tasks:
            end(worker, task, status=outcomes[task.name])
    assert (step_statuses(execution), fresh(execution).status) == expected(plan, outcomes, on_failure)
    assert not WorkerTask.objects.exists()
