"""What a workflow does next, and when a consumer may ask to be woken. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Open:
    """The one run that has not been settled: it is active, or nothing else may run before it is resolved."""

    is_active: bool
    due_at: datetime | None = None


@dataclass(frozen=True)
class Producing:
    id: int
    position: int
    next_run_at: datetime | None


@dataclass(frozen=True)
class Consuming:
    """`is_dirty`: events have come since it last found nothing to do; `oldest`: since when one is pending."""

    id: int
    position: int
    is_dirty: bool
    wake_at: datetime | None = None
    oldest: datetime | None = None


@dataclass(frozen=True)
class Facts:
    is_running: bool
    open_run: Open | None
    producers: Sequence[Producing] = ()
    consumers: Sequence[Consuming] = ()


@dataclass(frozen=True)
class Decision:
    """`handler` starts; or `follow`: the open run is followed by its next attempt. Else: ask again then."""

    handler: int | None = None
    follow: bool = False
    due_at: datetime | None = None


def decide(facts: Facts, now: datetime) -> Decision:
    """One thing at a time: what is stuck first, then consumers, then producers."""
    if not facts.is_running:
        return Decision()
    if (run := facts.open_run) is not None:
        if run.is_active or run.due_at is None:
            return Decision()
        return Decision(follow=True) if run.due_at <= now else Decision(due_at=run.due_at)
    if ready := [each for each in facts.consumers if _is_ready(each, now)]:
        return Decision(handler=min(ready, key=_turn).id)
    due = [(each.next_run_at, each.position, each.id) for each in facts.producers if each.next_run_at]
    if due and min(due)[0] <= now:
        return Decision(handler=min(due)[2])
    later = [at for at, _, _ in due] + [each.wake_at for each in facts.consumers if each.wake_at]
    return Decision(due_at=min(later, default=None))


def _is_ready(consumer: Consuming, now: datetime) -> bool:
    return consumer.is_dirty or (consumer.wake_at is not None and consumer.wake_at <= now)


def _turn(consumer: Consuming) -> tuple[float, int]:
    """The one whose pending event is the oldest; those without any come last."""
    return consumer.oldest.timestamp() if consumer.oldest else math.inf, consumer.position


def clamp(asked: object, *, now: datetime, least: timedelta, most: timedelta) -> tuple[datetime | None, str]:
    """The time at which it is woken, and what to note of a wish that was not granted as it was."""
    if asked is None:
        return None, ""
    at = _instant(asked)
    if at is None:
        return None, f"wake_at {asked!r} is no instant with its zone: ignored"
    if at < now + least:
        return now + least, f"wake_at {at.isoformat()} is too soon: {least} from now instead"
    if at > now + most:
        return now + most, f"wake_at {at.isoformat()} is too late: {most} from now instead"
    return at, ""


def _instant(asked: object) -> datetime | None:
    if isinstance(asked, str):
        try:
            asked = datetime.fromisoformat(asked)
        except ValueError:
            return None
    return asked if isinstance(asked, datetime) and asked.utcoffset() is not None else None
