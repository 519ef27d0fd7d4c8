"""Concurrency: a global limit, limits per type, limits per resource, and a policy of one's own."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from execution.models import Limit, WorkerTask
from execution.models.attempt import ClaimedTask
from tests.base import NOW, SOMEBODY, claim, end, enqueue, make_worker, seconds, step
from tests.invariants import violations

pytestmark = pytest.mark.django_db

TAKES = 4


def limit(key: str, size: int) -> None:
    Limit.objects.define(key, size, initiator=SOMEBODY, now=NOW)


def play(*jobs: dict[str, Any], workers: int) -> dict[str, str]:
    """Each worker has one seat, each job takes as long; what every worker did, drawn as the seed draws it."""
    keys = {task.key: task.limit_keys for task in enqueue(*jobs)}
    crew = [make_worker() for _ in range(workers)]
    busy: dict[int, ClaimedTask] = {}
    drawn: dict[int, str] = defaultdict(str)
    now = NOW
    while WorkerTask.objects.exists():
        for place, worker in enumerate(crew):
            for task in claim(worker, limit=1, now=now):
                busy[place] = task
        assert busy, "nothing moves"
        for place in range(workers):
            drawn[place] += f"[{busy[place].name}]────" if place in busy else "········"
        began, now = now, now + timedelta(seconds=TAKES)
        for place, task in busy.items():
            end(crew[place], task, now=now, executed_at=began)
        busy.clear()
    assert violations(moment=seconds(0), job_keys=keys) == []
    return {f"Worker{place + 1}": row.rstrip("·") for place, row in drawn.items()}


def test_option_a_a_global_limit_of_one() -> None:
    """One job at a time, however many workers there are."""
    limit("global", 1)
    assert play(step("Job1"), step("Job2"), step("Job3"), workers=3) == {
        "Worker1": "[Job1]────[Job2]────[Job3]────",
        "Worker2": "",
        "Worker3": "",
    }


def test_option_b_one_story_and_one_research_at_a_time() -> None:
    """Stories are python steps, research asks the web; neither waits for the other."""
    limit("type:python", 1)
    limit("type:http", 1)
    jobs = [step("S1"), step("S2"), research("R1"), step("S3"), research("R2")]
    assert play(*jobs, workers=3) == {
        "Worker1": "[S1]────[S2]────[S3]────",
        "Worker2": "[R1]────[R2]────",
        "Worker3": "",
    }


def test_option_c_by_resource() -> None:
    """One job at Ollama, two at the remote service."""
    limit("resource:ollama", 1)
    limit("resource:remote", 2)
    jobs = [
        step("J1", resources=["ollama"]),
        step("J2", resources=["remote"]),
        step("J3", resources=["ollama"]),
        step("J4", resources=["remote"]),
        step("J5", resources=["remote"]),
    ]
    assert play(*jobs, workers=4) == {
        "Worker1": "[J1]────[J3]────",
        "Worker2": "[J2]────[J5]────",
        "Worker3": "[J4]────",
        "Worker4": "",
    }


def research(name: str) -> dict[str, Any]:
    return step(name) | {"step_type": "http", "config": {"url": "https://example.org/"}}
