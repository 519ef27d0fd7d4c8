from __future__ import annotations

import logging
import threading
import time

import pytest

from execution.alarms import Alarms


def test_alarms_ring_in_the_order_of_their_times() -> None:
    alarms, rung, last = Alarms(), [], threading.Event()
    started = time.monotonic()
    for seconds in (0.09, 0.03, 0.06):
        alarms.after(seconds, lambda seconds=seconds: rung.append(seconds))  # type: ignore[misc]
    alarms.after(0.12, last.set)
    assert last.wait(20)
    assert rung == [0.03, 0.06, 0.09]
    assert time.monotonic() - started >= 0.12


def test_also_those_whose_times_came_while_nobody_looked() -> None:
    alarms, rung, last = Alarms(), [], threading.Event()
    alarms.after(0, lambda: time.sleep(0.1))
    for seconds in (0.03, 0.01, 0.02):
        alarms.after(seconds, lambda seconds=seconds: rung.append(seconds))  # type: ignore[misc]
    alarms.after(0.12, last.set)
    assert last.wait(20)
    assert rung == [0.01, 0.02, 0.03]


def test_a_cancelled_alarm_stays_silent_and_holds_nothing() -> None:
    alarms, rung, last = Alarms(), [], threading.Event()
    for _ in range(1_000):
        alarms.cancel(alarms.after(0.3, lambda: rung.append("cancelled")))
    alarms.after(0.4, last.set)
    assert last.wait(20)
    assert rung == []
    assert alarms._set == {}


def test_a_failing_callback_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    alarms, last = Alarms(), threading.Event()
    with caplog.at_level(logging.ERROR, logger="execution.alarms"):
        alarms.after(0, [].pop)
        alarms.after(0.01, last.set)
        assert last.wait(20)
    alarms.after(float("1e12"), last.clear)
    assert "callback failed" in caplog.text
