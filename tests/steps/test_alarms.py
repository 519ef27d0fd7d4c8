from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from execution.children import alarms as alarms_module
from execution.children.alarms import Alarms
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time stands still, and passes when it is told to."""
    times = [time.monotonic()]
    monkeypatch.setattr(alarms_module, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    return lambda seconds: times.append(times[-1] + seconds)


def test_alarms_ring_in_the_order_of_their_times(passes: Callable[[float], None]) -> None:
    """Also those whose times came while nobody looked."""
    alarms, rung = Alarms(), list[float]()
    for seconds in (0.09, 0.01, 0.03, 0.06):
        alarms.after(seconds, lambda seconds=seconds: rung.append(seconds))  # type: ignore[misc]
    passes(0.02)
    wait_until(lambda: rung)
    assert rung == [0.01]
    passes(0.1)
    wait_until(lambda: len(rung) == 4)
    assert rung == [0.01, 0.03, 0.06, 0.09]


def test_a_cancelled_alarm_stays_silent_and_holds_nothing(passes: Callable[[float], None]) -> None:
    alarms, rung, last = Alarms(), [], threading.Event()
    for _ in range(1_000):
        alarms.cancel(alarms.after(0.01, lambda: rung.append("cancelled")))
    alarms.after(0.02, last.set)
    passes(0.02)
    assert last.wait(PATIENCE_SECONDS)
    assert rung == []
    assert alarms._set == {}


def test_a_failing_callback_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    alarms, last = Alarms(), threading.Event()
    with caplog.at_level(logging.ERROR, logger="execution.children.alarms"):
        alarms.after(0, [].pop)
        alarms.after(0.01, last.set)
        assert last.wait(PATIENCE_SECONDS)
    alarms.after(float("1e12"), last.clear)
    assert "callback failed" in caplog.text
