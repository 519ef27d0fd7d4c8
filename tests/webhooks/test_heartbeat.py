"""The monitor outside hears of the scheduler while its ticks succeed, and of nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from django.test import override_settings

from execution.loops import scheduler
from execution.loops.companions import ThreadContext
from execution.loops.scheduler import SchedulerLoop
from tests.loops import running
from tests.steps.web_server import WebServer, serving
from tests.waiting import PATIENCE_SECONDS, wait_until
from webhooks import heartbeat
from webhooks.heartbeat import beat_until_stopped, check_url, ping


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(heartbeat, "PING_SECONDS", PATIENCE_SECONDS)
    with (
        serving() as server,
        override_settings(
            JIM_HTTP_ALLOW=["127.0.0.1"],
            JIM_HEARTBEAT_URL=f"{server.url}/status?is=200&token=canary",
            JIM_HEARTBEAT_SECONDS=0.05,
        ),
    ):
        yield server


def test_it_is_told_again_and_again_of_a_loop_that_fares_well(monitor: WebServer) -> None:
    is_well = threading.Event()
    context = ThreadContext(is_well.is_set)
    thread = threading.Thread(target=beat_until_stopped, args=(context,))
    thread.start()
    context.woken.set()
    wait_until(lambda: not context.woken.is_set())
    assert monitor.seen == []
    is_well.set()
    context.woken.set()
    wait_until(lambda: len(monitor.seen) >= 3)
    context.stopping.set()
    context.woken.set()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert {(request["method"], request["body"]) for request in monitor.seen} == {("GET", "")}
    with override_settings(JIM_HEARTBEAT_URL=""):
        beat_until_stopped(ThreadContext())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/status?is=500&token=canary", "answered with 500"),
        ("/drop?token=canary", "did not arrive: invalid response"),
    ],
)
def test_a_failure_is_logged_without_the_address(
    monitor: WebServer, caplog: pytest.LogCaptureFixture, path: str, words: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="webhooks"):
        assert not ping(monitor.url + path)
    assert words in caplog.text
    assert "canary" not in caplog.text


def test_an_address_inside_is_refused_and_the_check_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(JIM_HEARTBEAT_URL="http://10.0.0.1/ping"):
        (warning,) = check_url(None)
        assert "JIM_HTTP_ALLOW can allow it" in warning.msg
        assert not ping("http://10.0.0.1/ping")
    assert "refused" in caplog.text
    assert check_url(None) == []


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_whose_ticks_fail_falls_silent(
    monitor: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = threading.Event()

    def generate(now: object) -> None:
        if trouble.is_set():
            raise ZeroDivisionError

    monkeypatch.setattr(scheduler, "RECOVERING", (generate,))
    # Each tick that succeeds makes it well for a lease: there is time to see it, and it is seen again.
    with override_settings(JIM_LEASE_SECONDS=2), running(SchedulerLoop()) as loop:
        wait_until(lambda: monitor.seen and loop._is_well())
        trouble.set()
        wait_until(lambda: not loop._is_well())
        trouble.clear()
        wait_until(loop._is_well)
