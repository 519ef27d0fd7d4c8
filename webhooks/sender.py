"""The sender of deliveries, which runs beside each worker.

One thread claims deliveries and records the results. A few other threads send the requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import connection

from database import clock
from database.outage import Outage
from database.statements import AWAY
from execution.loops.companions import ThreadContext
from schedules.models import Schedule
from schedules.vault import VaultError
from text.clean import clean_text

from .models import ClaimedDelivery, Delivery, Endpoint
from .signing import headers
from .tries import TryResult

if TYPE_CHECKING:
    from execution.outgoing.calls import Call
    from execution.outgoing.network import Resolver

SEATS = 8
# A slow endpoint must leave seats for the others.
SEATS_PER_ENDPOINT = 2
TRY_SECONDS = 15.0
ANSWER_BYTES = 2_048
# The shortest time between two passes. Most changes that wake the sender do not concern deliveries.
LOOK_SECONDS, LOOK_SECONDS_UNASKED = 0.5, 2.0
IDLE_SECONDS = 5.0
OVERDUE_LOOK_SECONDS = 10.0
OVERDUE_PER_LOOK = 100
END_SECONDS = 2.0
AWAY_SECONDS = 1.0
logger = logging.getLogger(__name__)


def send_until_stopped(context: ThreadContext) -> None:
    sender = Sender(context)
    outage = Outage(logger, "webhooks wait for the database; requests in progress continue")
    try:
        while not context.stopping.is_set():
            try:
                sender.look()
            except AWAY as error:
                # Requests in progress continue; their results are recorded when the database is back.
                outage.note(error)
                connection.close()
                context.stopping.wait(AWAY_SECONDS)
            else:
                outage.is_over()
                sender.rest()
    finally:
        sender.close()


@dataclass(frozen=True)
class SignedDelivery:
    """A claimed delivery with its signature headers."""

    claimed: ClaimedDelivery
    url: str
    headers: Mapping[str, str]


class Sender:
    def __init__(
        self, context: ThreadContext, *, resolve: Resolver | None = None, seconds: float = TRY_SECONDS
    ) -> None:
        self.context = context
        self.call_options: dict[str, Any] = {"resolve": resolve} if resolve else {}
        self.seconds = seconds
        self.pool: ThreadPoolExecutor | None = None
        self.calls: dict[int, Call] = {}
        self.busy: Counter[int] = Counter()
        self.answers: deque[tuple[ClaimedDelivery, TryResult]] = deque()
        self.answered = threading.Event()
        self.next_at: datetime | None = None
        self.has_endpoints = False
        self.looked = self.looked_for_overdue = float("-inf")

    def look(self) -> None:
        """Record the results that arrived, and send the deliveries that are due."""
        self.context.woken.clear()
        self.answered.clear()
        self._record()
        self.looked, now = time.monotonic(), clock.now()
        endpoints = Endpoint.objects.with_next_try()
        self.has_endpoints = any(endpoint.is_enabled for endpoint, _ in endpoints)
        self._notice_overdue(now)
        due = [endpoint for endpoint, at in endpoints if at is not None and at <= now]
        stuck = [endpoint for endpoint in due if not self._send_due(endpoint, now)]
        if stuck:
            Delivery.objects.give_up_hopeless(now=now)
        # Due deliveries that were not claimed wait for a seat, and are claimed when a result arrives.
        self.next_at = min((at for _, at in endpoints if at is not None and at > now), default=None)

    def rest(self) -> None:
        """Wait until the next attempt is due, something changes or a result arrives."""
        patience = IDLE_SECONDS
        if self.next_at is not None:
            patience = min(patience, max(0.0, (self.next_at - clock.now()).total_seconds()))
        if self.context.woken.wait(patience) and not self.answered.is_set():
            # Without endpoints, no results can arrive.
            waits = self.answered if self.has_endpoints else self.context.stopping
            least = LOOK_SECONDS if self.has_endpoints else LOOK_SECONDS_UNASKED
            waits.wait(max(0.0, self.looked + least - time.monotonic()))

    def close(self) -> None:
        """Give requests a moment to end, then abort the rest. An aborted request is a failed attempt."""
        if self.pool is None:
            return
        enough = time.monotonic() + END_SECONDS
        while self.busy.total() > len(self.answers) and time.monotonic() < enough:
            self.answered.wait(max(0.0, enough - time.monotonic()))
            self.answered.clear()
        for call in list(self.calls.values()):
            call.hang_up()
        self.pool.shutdown()
        self._record()

    def _send_due(self, endpoint: Endpoint, now: datetime) -> bool:
        """Send due deliveries of the endpoint, as many as threads are free.

        Return False if none was claimed, although a thread is free: see `give_up_hopeless`.
        """
        free = min(SEATS_PER_ENDPOINT - self.busy[endpoint.pk], SEATS - self.busy.total())
        if free <= 0:
            return True
        if not endpoint.is_enabled:
            return False
        taken = Delivery.objects.claim(endpoint.pk, limit=free, now=now)
        for claimed in taken:
            self.busy[endpoint.pk] += 1
            try:
                signing = endpoint.signing(now)
            except VaultError as error:
                self._answer(claimed, TryResult(at=now, error=str(error)))
                continue
            at = int(now.timestamp())
            own = headers(signing, webhook_id=claimed.webhook_id, at=at, body=claimed.body)
            self._submit(SignedDelivery(claimed, endpoint.url, own))
        return bool(taken)

    def _submit(self, signed: SignedDelivery) -> None:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(SEATS, thread_name_prefix="webhook")
        self.pool.submit(self._send, signed)

    def _send(self, signed: SignedDelivery) -> None:
        """Send one delivery. This runs in a thread of the pool and does not use the database."""
        began, at = time.monotonic(), clock.estimate()
        try:
            tried = self._call(signed, at)
        except Exception as error:  # Any error ends the try.
            logger.exception("a webhook could not be sent")
            message = f"the request failed with {type(error).__name__}"
            tried = TryResult(at=at, seconds=time.monotonic() - began, error=message)
        self._answer(signed.claimed, tried)

    def _call(self, signed: SignedDelivery, at: datetime) -> TryResult:
        # Imported here to save memory in workers without endpoints.
        from execution.outgoing.calls import Call, Request
        from execution.outgoing.network import CallFailed

        began, own = time.monotonic(), signed.claimed.id
        call = self.calls[own] = Call(
            total_seconds=self.seconds, idle_seconds=self.seconds, **self.call_options
        )
        sent = {"Content-Type": "application/json", "User-Agent": "JIM", **signed.headers}
        request = Request(method="POST", url=signed.url, headers=sent, body=signed.claimed.body.encode())
        try:
            answer = call.send(request, enough=ANSWER_BYTES)
        except CallFailed as failed:
            return TryResult(at=at, seconds=time.monotonic() - began, error=str(failed))
        finally:
            self.calls.pop(own, None)
        text = clean_text(answer.body[:ANSWER_BYTES].decode("utf-8", errors="replace"))
        is_delivered = 200 <= answer.status < 300
        return TryResult(
            at=at,
            seconds=time.monotonic() - began,
            status=answer.status,
            answer=text,
            error="" if is_delivered else f"the response was {answer.status}, not 2xx",
            retry_after=answer.headers.get("retry-after", ""),
        )

    def _answer(self, claimed: ClaimedDelivery, tried: TryResult) -> None:
        self.answers.append((claimed, tried))
        self.answered.set()
        self.context.woken.set()

    def _record(self) -> None:
        """Record results. Each result is kept until it is stored, as the database might be unreachable."""
        while self.answers:
            claimed, tried = self.answers[0]
            now = clock.now()
            status = Delivery.objects.deliver(claimed, tried, now=now)
            if status is not None:
                has_failed = status == Delivery.Status.FAILED
                Endpoint(pk=claimed.endpoint_id).learn(tried, has_failed=has_failed, now=now)
            self.answers.popleft()
            self.busy[claimed.endpoint_id] -= 1

    def _notice_overdue(self, now: datetime) -> None:
        """Report overdue schedules if an endpoint wants the event.

        Without a scheduler, nothing else would report them.
        """
        if not self.has_endpoints or time.monotonic() - self.looked_for_overdue <= OVERDUE_LOOK_SECONDS:
            return
        self.looked_for_overdue = time.monotonic()
        if any("schedule.overdue" in listener.kinds for listener in Endpoint.objects.listening()):
            Schedule.objects.notice_overdue(now=now, limit=OVERDUE_PER_LOOK)
