"""Update a handler when its run commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings

from text.clean import clean_json
from workflows.decision import clamp_wake_at

from .event import Publication
from .handler import NEVER, Handler, Subscription

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True)
class Commit:
    """The data that a run commits. If `state` is None, the old state is kept."""

    state: Any
    publications: Sequence[Publication]
    summary: str


def move_handler(run: Run, state: Any, *, now: datetime) -> str:
    """Store the handler's state, times and cursors; return a notice if `wake_at` was changed or ignored."""
    values: dict[str, Any] = {} if state is None else {"state": clean_json(state)}
    mine, notice = Handler.objects.filter(pk=run.handler_id), ""
    if run.handler.is_producer:
        # A deployment may have made the producer due meanwhile, perhaps with another schedule: leave it due.
        as_before = mine.filter(next_run_at=run.handler.next_run_at)
        as_before.update(next_run_at=run.handler.next_time(now))
    else:
        asked = (run.prepare_result or {}).get("wake_at")
        values["wake_at"], notice = clamp_wake_at(
            asked,
            now=now,
            least=timedelta(seconds=settings.JIM_WAKE_LEAST_SECONDS),
            most=timedelta(seconds=settings.JIM_WAKE_MOST_SECONDS),
        )
        _move_cursors(run)
    if values:
        mine.update(**values)
    return notice


def _move_cursors(run: Run) -> None:
    """Move the consumer's cursors after its run.

    If the run reserved no events, move the cursors past the events that the run saw. Otherwise, rewind the
    cursors, so that the consumer runs again and sees all pending events.
    """
    mine = Subscription.objects.filter(handler=run.handler_id)
    if not run.is_empty:
        mine.filter(cursor__gt=NEVER).rewind()
        return
    for topic, (seq, cursor) in run.snapshot.items():
        if seq > cursor:
            mine.filter(topic=topic, cursor=cursor).update(cursor=seq)
