"""What a run leaves behind when it is committed, and where that moves its handler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings

from text.clean import clean_json
from workflows.decision import clamp

from .event import Publication
from .handler import NEVER, Handler, Subscription

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True)
class Commit:
    """What a run leaves behind. `state`: None keeps the old one."""

    state: Any
    publications: Sequence[Publication]
    summary: str


def move_handler(run: Run, state: Any, *, now: datetime) -> str:
    """Its state, when it runs or wakes next, and how far it has read; returns what there is to note."""
    values: dict[str, Any] = {} if state is None else {"state": clean_json(state)}
    mine, notice = Handler.objects.filter(pk=run.handler_id), ""
    if run.handler.is_producer:
        # Unless a deployment has made it due anew meanwhile, perhaps with another schedule.
        as_before = mine.filter(next_run_at=run.handler.next_run_at)
        as_before.update(next_run_at=run.handler.next_time(now))
    else:
        asked = (run.prepare_result or {}).get("wake_at")
        values["wake_at"], notice = clamp(
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
    """It runs again until it reserves nothing, also among events that it had left alone before."""
    mine = Subscription.objects.filter(handler=run.handler_id)
    if not run.is_empty:
        mine.filter(cursor__gt=NEVER).look_anew()
        return
    for topic, (seq, cursor) in run.snapshot.items():
        if seq > cursor:
            mine.filter(topic=topic, cursor=cursor).update(cursor=seq)
