"""The output of running steps, kept in memory until the worker's loop writes it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, transaction

from activities.models import Activity, ActivityItem, OutputLine
from database.statements import AWAY
from text.clean import clean_text

CUT_OFF = "… the rest of the output was cut off here"
logger = logging.getLogger(__name__)


class News(NamedTuple):
    """New output of steps, as rows that begin with the id of the activity."""

    lines: list[tuple[int, int, str, str, datetime]]
    items: list[tuple[int, str, str, str, datetime]]
    progress: list[tuple[int, int, int | None, str]]


@dataclass
class StepOutput:
    """The output of one attempt. Any thread can add to it; the worker's loop takes and stores it."""

    activity_id: int
    now: Callable[[], datetime]
    message: str = ""
    news: News = field(default_factory=lambda: News([], [], []))
    line_count: int = 0
    byte_count: int = 0
    is_full: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def output(self, stream: str, lines: list[str]) -> None:
        at = self.now()
        with self.lock:
            for text in lines:
                self._line(stream, clean_text(text), at)

    def progress(self, done: int, total: int | None, message: str) -> None:
        with self.lock:
            self.message = clean_text(message)
            whole = None if total is None else _stored(total)
            self.news.progress[:] = [(self.activity_id, _stored(done), whole, self.message)]

    def item(self, name: str, outcome: str, message: str) -> None:
        row = (self.activity_id, clean_text(name)[:255], outcome, clean_text(message), self.now())
        with self.lock:
            self.news.items.append(row)

    def take(self) -> News:
        with self.lock:
            taken, self.news = self.news, News([], [], [])
        return taken

    def give_back(self, news: News) -> None:
        with self.lock:
            newer = self.news.progress or news.progress
            self.news = News(news.lines + self.news.lines, news.items + self.news.items, newer)

    def _line(self, stream: str, text: str, at: datetime) -> None:
        if self.is_full:
            return
        self.byte_count += len(text.encode()) + 1
        if self.byte_count > settings.JIM_OUTPUT_BYTES or self.line_count >= settings.JIM_OUTPUT_LINES:
            self.is_full = True
            stream, text = "log", CUT_OFF
        self.line_count += 1
        self.news.lines.append((self.activity_id, self.line_count, stream, text, at))


def write(saids: Sequence[StepOutput], *, worker_id: UUID) -> set[int]:
    """Store the new output of steps; return the ids of activities that no longer belong to this worker."""
    taken = [(said, news) for said in saids if any(news := said.take())]
    if not taken:
        return set()
    try:
        with transaction.atomic():
            return _write(_together([news for _, news in taken]), worker_id)
    except AWAY:
        for said, news in taken:
            said.give_back(news)
        raise
    except DatabaseError:
        if len(taken) > 1:
            for said, news in taken:
                said.give_back(news)
            return set().union(*(write([said], worker_id=worker_id) for said, _ in taken))
        # This also happens if the COMMIT of an earlier try succeeded and only its answer was lost.
        logger.exception("the database refused output; the output is dropped and the step continues")
        return set()


def _stored(number: int) -> int:
    """Limit a number to the 64 bits that both databases can store."""
    return max(-(2**63), min(number, 2**63 - 1))


def _together(several: Sequence[News]) -> News:
    return News(
        [row for news in several for row in news.lines],
        [row for news in several for row in news.items],
        [row for news in several for row in news.progress],
    )


def _write(news: News, worker_id: UUID) -> set[int]:
    Activity.objects.hold({row[0] for rows in news for row in rows}, worker_id=worker_id)
    refused: set[int] = set()
    if news.lines:
        columns = ("number", "stream", "text", "written_at")
        took = OutputLine.objects.append(columns, news.lines, worker_id=worker_id)
        refused |= {row[0] for row in news.lines} - took
    if news.items:
        columns = ("name", "outcome", "message", "created_at")
        took = ActivityItem.objects.append(columns, news.items, worker_id=worker_id)
        refused |= {row[0] for row in news.items} - took
    if news.progress:
        refused |= {row[0] for row in news.progress} - Activity.objects.tell_progress(
            news.progress, worker_id=worker_id
        )
    return refused
