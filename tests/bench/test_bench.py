from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from bench.figures import Figure
from bench.harness import readings
from bench.machine import Noise
from bench.results import Key, Results
from schedules.models import Schedule
from tests.base import NOW, make_schedule, run_until_idle, seconds
from tests.conftest import server
from tests.settings import TEST_DB

QUIET = Noise(busy=0, spin=20)


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where functions of bench/jobs.py count, which is known when that is imported."""
    monkeypatch.setenv("BENCH_MARKS", str(tmp_path / "marks"))


@pytest.mark.live
@pytest.mark.long
def test_what_real_processes_did_is_counted_and_written(tmp_path: Path) -> None:
    """A count that is off by one would have no value, and end with another code."""
    path = tmp_path / "deep" / "jim.json"
    env = os.environ | ({"BENCH_DATABASE_URL": server.url("postgres")} if TEST_DB == "postgres" else {})
    options = ["--quick", "--only=drain,settle_missed", f"--database={TEST_DB}", "--n=200", f"--json={path}"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *options],
        cwd=settings.BASE_DIR,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())
    assert [row.pop("value") > 0 for row in rows] == [True, True, True]
    units = {"drain": "tasks/s", "settle_missed": "s", "settle_missed_memory": "MB"}
    assert rows == [{"metric": metric, "database": TEST_DB, "unit": unit} for metric, unit in units.items()]


@pytest.mark.django_db
@pytest.mark.usefixtures("marks")
def test_a_task_too_few_or_too_many_is_a_failure() -> None:
    from bench.load import enqueue_many, expect_complete
    from database import clock

    enqueue_many(3)
    with pytest.raises(RuntimeError, match="activities by status and attempt"):
        expect_complete(3, counted=3)
    run_until_idle(now=clock.now())
    expect_complete(3, counted=3)
    for tasks in (2, 4):
        with pytest.raises(RuntimeError, match="activities by status and attempt"):
            expect_complete(tasks, counted=3)
    with pytest.raises(RuntimeError, match="functions called: 2 expected, found 3"):
        expect_complete(3, counted=2)


@pytest.mark.django_db
@pytest.mark.usefixtures("marks")
def test_a_missed_time_that_is_not_settled_is_a_failure() -> None:
    from bench.load import create_schedules, expect_settled, make_missed, step
    from execution.loops.scheduler import tick

    create_schedules(2, steps=[step()])
    make_missed(3, now=NOW)
    with pytest.raises(RuntimeError, match="occurrences by status"):
        expect_settled(2, times=3)
    tick(NOW)
    expect_settled(2, times=3)
    with pytest.raises(RuntimeError, match="occurrences by status"):
        expect_settled(2, times=4)
    Schedule.objects.update(skipped_count=1)
    with pytest.raises(RuntimeError, match="counted on the schedules"):
        expect_settled(2, times=3)


@pytest.mark.django_db
@pytest.mark.usefixtures("marks")
def test_a_live_time_is_over_when_its_step_has_run_and_its_lag_is_until_the_step_began() -> None:
    from bench.load import expect_all_started, is_over, lags, live_occurrences
    from execution.loops.scheduler import tick

    make_schedule(spec={"every": ["2s"]}, overlap="allow_all")
    live, planned = live_occurrences(NOW, NOW + seconds(4)), 2
    for due, done in ((2, 2.5), (4, 5)):
        tick(NOW + seconds(due))
        assert not is_over(live, planned)
        run_until_idle(now=NOW + seconds(done))
    assert is_over(live, planned)
    expect_all_started(live, planned)
    assert sorted(lags(live)) == [0.5, 1.0]
    live.filter(planned_at=NOW + seconds(4)).update(status="skipped")
    with pytest.raises(RuntimeError, match="live occurrences by status"):
        expect_all_started(live, planned)


def test_a_number_with_a_failed_run_has_no_value() -> None:
    results = Results()
    for value in (1.0, 9.0, 2.0):
        results.add(Key("drain", "sqlite"), value, "tasks/s", noise=QUIET)
    results.add(Key("drain", "postgres", "celery"), 5.0, "tasks/s", noise=QUIET)
    results.fail(Key("drain", "postgres", "celery"), "it fell over")
    assert results.as_json() == [
        {"metric": "drain", "database": "sqlite", "value": 2.0, "unit": "tasks/s"},
        {"metric": "drain", "database": "postgres", "value": None, "unit": "tasks/s", "peer": "celery"},
    ]


@pytest.mark.parametrize(
    ("sense", "limit", "mine", "is_met"),
    [
        ("at least", 10, 100.0, True),
        ("at least", 10, 99.0, False),
        ("at most", 2, 20.0, True),
        ("at most", 2, 21.0, False),
        ("at least", None, 1.0, None),
    ],
)
def test_a_figure_is_judged_beside_the_peer(
    sense: Any, limit: float | None, mine: float, is_met: bool | None
) -> None:
    results, peer = Results(), Key("drain", "redis", "celery")
    results.add(peer, 10.0, "tasks/s", noise=QUIET)
    results.add(Key("drain", "sqlite"), mine, "tasks/s", noise=QUIET)
    verdict = Figure("drain", "sqlite", sense, limit, peer).judge(results)
    assert verdict
    assert verdict.is_met is is_met


def test_a_peers_record_counts_only_if_all_was_done() -> None:
    chain = {"metric": "chain6", "value": 5.0, "p95": 7.0, "lost": 0}
    due = {"metric": "1000 due N=1000", "value": 9, "enqueued": 1000}
    assert readings({"metric": "drain", "value": 5.0, "ok": True}) == [("drain", 5.0, "tasks/s")]
    assert readings(chain) == [("chain_p50", 5.0, "ms"), ("chain_p95", 7.0, "ms")]
    assert readings(due) == [("due_one_step_tick", 9, "ms")]
    for record in (
        {"metric": "drain", "value": 5.0, "ok": False},
        {"metric": "drain", "value": None, "unit": "error"},
        chain | {"lost": 1},
        due | {"enqueued": 999},
        {"metric": "enqueue_single_async10", "value": 9},
    ):
        assert readings(record) == []
