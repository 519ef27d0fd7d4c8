"""The output of an attempt: read page by page, or followed while it is written."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.http import StreamingHttpResponse
from rest_framework.request import Request

from activities.models import Activity, OutputLine
from api.permissions import can_still

VIEW_OUTPUT = "activities.view_outputline"
LONGEST_SECONDS = 600
POLL_SECONDS = 0.5
AT_ONCE = 1_000
CONTENT_TYPES = {"text": "text/plain; charset=utf-8", "ndjson": "application/x-ndjson"}


@dataclass(frozen=True)
class OutputPage:
    lines: list[OutputLine]
    after: int
    has_more: bool
    is_final: bool


def page(activity_id: int, *, after: int, limit: int) -> OutputPage:
    # The status is read first: all output of an ended attempt was written before its status changed.
    status = Activity.objects.filter(pk=activity_id).values_list("status", flat=True).first()
    rows = OutputLine.objects.filter(activity=activity_id, number__gt=after).order_by("number")
    found = list(rows[: limit + 1])
    lines = found[:limit]
    is_final = status not in Activity.OPEN
    return OutputPage(lines, lines[-1].number if lines else after, len(found) > limit, is_final)


def stream(activity_id: int, *, after: int, form: str, request: Request) -> StreamingHttpResponse:
    """Stream output until the attempt ends, ten minutes have passed or the reader loses the permission."""
    follower = OutputFollower(activity_id, after, form, lambda: can_still(request, VIEW_OUTPUT))
    is_async = isinstance(request._request, ASGIRequest)
    content: Any = follower.stream_async() if is_async else follower.stream_in_thread()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(content, content_type=CONTENT_TYPES[form], headers=headers)


def formatted(line: OutputLine, form: str) -> str:
    if form == "text":
        return f"{line.text}\n"
    at = line.written_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    content = {"number": line.number, "stream": line.stream, "text": line.text, "written_at": at}
    return json.dumps(content, ensure_ascii=False) + "\n"


class OutputFollower:
    """A reader that polls for new output, and closes its database connection between polls."""

    def __init__(self, activity_id: int, after: int, form: str, is_allowed: Callable[[], bool]) -> None:
        self.activity_id, self.after, self.form, self.is_allowed = activity_id, after, form, is_allowed
        self.is_over = self.has_more = False
        self.deadline = time.monotonic() + LONGEST_SECONDS

    def read_new(self) -> str:
        """Return the output written since the last call."""
        try:
            if not self.is_allowed():
                self.is_over = True
                return ""
            found = page(self.activity_id, after=self.after, limit=AT_ONCE)
        finally:
            if not connection.in_atomic_block:
                connection.close()
        self.after, self.has_more = found.after, found.has_more
        self.is_over = (found.is_final and not found.has_more) or time.monotonic() > self.deadline
        return "".join(formatted(line, self.form) for line in found.lines)

    def stream_in_thread(self) -> Iterator[str]:
        """Yield new output until the end. This is used under WSGI, where each request has its own thread."""
        while True:
            if content := self.read_new():
                yield content
            if self.is_over:
                return
            if not self.has_more:
                time.sleep(POLL_SECONDS)

    async def stream_async(self) -> AsyncIterator[str]:
        while True:
            if content := await sync_to_async(self.read_new)():
                yield content
            if self.is_over:
                return
            if not self.has_more:
                await asyncio.sleep(POLL_SECONDS)
