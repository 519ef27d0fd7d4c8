"""Heartbeat pings to an external monitor, which raises an alarm when they stop."""

from __future__ import annotations

import logging
import time
from typing import Any

from django.conf import settings
from django.core import checks

from execution.loops.companions import ThreadContext
from execution.outgoing.addresses import url_complaint

PING_SECONDS = 10.0
logger = logging.getLogger(__name__)


def beat_until_stopped(context: ThreadContext) -> None:
    """Ping the monitor regularly, except while the scheduler loop is stuck or its ticks fail."""
    if not settings.JIM_HEARTBEAT_URL:
        return
    pinged = float("-inf")
    while not context.stopping.is_set():
        context.woken.clear()
        if context.is_well() and time.monotonic() - pinged >= settings.JIM_HEARTBEAT_SECONDS:
            pinged = time.monotonic()
            ping(settings.JIM_HEARTBEAT_URL)
        due = pinged + settings.JIM_HEARTBEAT_SECONDS - time.monotonic()
        # Before the first ping, check again after each tick.
        context.woken.wait(settings.JIM_HEARTBEAT_SECONDS) if due < 0 else context.stopping.wait(due)


def ping(url: str) -> bool:
    """Send one ping, and return whether the monitor accepted it.

    The URL and the response body are not logged, because they would let others send pings.
    """
    # Imported here to save memory in schedulers without a monitor.
    from execution.outgoing.calls import Call, Request
    from execution.outgoing.network import CallFailed

    try:
        answer = Call(total_seconds=PING_SECONDS, idle_seconds=PING_SECONDS).send(
            Request(method="GET", url=url, headers={"User-Agent": "JIM"}), enough=0
        )
    except CallFailed as failed:
        logger.warning("the heartbeat did not arrive: %s", failed)
        return False
    if not 200 <= answer.status < 300:
        logger.warning("the heartbeat monitor answered with %d instead of a 2xx status", answer.status)
        return False
    return True


def check_url(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    url = settings.JIM_HEARTBEAT_URL
    complaint = url_complaint(url) if url else ""
    return [checks.Warning(f"JIM_HEARTBEAT_URL {complaint}.", id="webhooks.W001")] if complaint else []
