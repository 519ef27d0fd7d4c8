from __future__ import annotations

import logging
import threading

import pytest

from execution.loops import companions
from execution.loops.companions import BackgroundThreads, ThreadContext
from execution.loops.worker import WorkerLoop
from tests.loops import running
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, companions.Companion]:
    """Those of a worker, without the ones that the apps have registered."""
    own: dict[str, companions.Companion] = {}
    monkeypatch.setattr(companions, "STOP_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setitem(companions.registered, "worker", own)
    return own


def test_a_companion_is_woken_and_stopped_and_started_again_if_it_breaks(
    registered: dict[str, companions.Companion],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(companions, "AGAIN_SECONDS", 0.01)
    woken, ended, times = threading.Event(), threading.Event(), list[int]()

    def run(context: ThreadContext) -> None:
        times.append(1)
        if len(times) < 3:
            raise ZeroDivisionError
        context.woken.wait(PATIENCE_SECONDS)
        woken.set()
        context.stopping.wait(PATIENCE_SECONDS)
        ended.set()

    companions.register("clumsy", run, beside="worker")
    background = BackgroundThreads("worker", is_well=lambda: True)
    with caplog.at_level(logging.ERROR):
        background.start()
        wait_until(lambda: len(times) == 3)
    assert "clumsy failed; it is restarted" in caplog.text
    background.wake()
    assert woken.wait(PATIENCE_SECONDS)
    background.stop()
    assert ended.is_set()


@pytest.mark.django_db(transaction=True)
def test_a_worker_has_company_while_it_runs(registered: dict[str, companions.Companion]) -> None:
    threads: list[ThreadContext] = []

    def run(context: ThreadContext) -> None:
        threads.append(context)
        context.stopping.wait(PATIENCE_SECONDS)

    companions.register("friend", run, beside="worker")
    with running(WorkerLoop(processes=1, threads=1)):
        wait_until(lambda: threads and threads[0].is_well())
        assert not threads[0].stopping.is_set()
    assert threads[0].stopping.is_set()
