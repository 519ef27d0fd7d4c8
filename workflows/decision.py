"""Pure functions that decide what a workflow runs next, and when a consumer is woken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class OpenRun:
    """A workflow's open run. If it is not active, other runs wait until it is retried or resolved."""

    is_active: bool
    due_at: datetime | None = None


@dataclass(frozen=True)
class ProducerFacts:
    id: int
    position: int
    next_run_at: datetime | None


@dataclass(frozen=True)
class ConsumerFacts:
    """The facts that determine whether a consumer is ready to run.

    `is_dirty`: the consumer's topics have events that the consumer has not seen. `oldest`: when the oldest
    pending event of these topics was published.
    """

    id: int
    position: int
    is_dirty: bool
    wake_at: datetime | None = None
    oldest: datetime | None = None


@dataclass(frozen=True)
class Facts:
    is_active: bool
    open_run: OpenRun | None
    producers: Sequence[ProducerFacts] = ()
    consumers: Sequence[ConsumerFacts] = ()


@dataclass(frozen=True)
class Decision:
    """What to start: a handler, the open run's next attempt, or nothing.

    `handler`: the id of the handler to start. `follow`: whether to start the open run's next attempt.
    `due_at`: when to decide again if nothing is started, or None.
    """

    handler: int | None = None
    follow: bool = False
    due_at: datetime | None = None


def decide(facts: Facts, now: datetime) -> Decision:
    """Decide what to start: the next attempt of the open run, or else a consumer, or else a producer."""
    if not facts.is_active:
        return Decision()
    if (run := facts.open_run) is not None:
        if run.is_active or run.due_at is None:
            return Decision()
        return Decision(follow=True) if run.due_at <= now else Decision(due_at=run.due_at)
    if ready := [each for each in facts.consumers if _is_ready(each, now)]:
        return Decision(handler=min(ready, key=_order).id)
    due = [(each.next_run_at, each.position, each.id) for each in facts.producers if each.next_run_at]
    if due and min(due)[0] <= now:
        return Decision(handler=min(due)[2])
    later = [at for at, _, _ in due] + [each.wake_at for each in facts.consumers if each.wake_at]
    return Decision(due_at=min(later, default=None))


def _is_ready(consumer: ConsumerFacts, now: datetime) -> bool:
    return consumer.is_dirty or (consumer.wake_at is not None and consumer.wake_at <= now)


def _order(consumer: ConsumerFacts) -> tuple[float, int]:
    """Return the key that sorts consumers by their oldest pending event; consumers without one come last."""
    return consumer.oldest.timestamp() if consumer.oldest else math.inf, consumer.position


def clamp_wake_at(
    asked: object, *, now: datetime, least: timedelta, most: timedelta
) -> tuple[datetime | None, str]:
    """Return when to wake a consumer, and a notice if this differs from what the consumer asked for.

    The time is at least `least` and at most `most` from now. It is None if `asked` is None or invalid.
    """
    if asked is None:
        return None, ""
    at = _instant(asked)
    if at is None:
        return None, f"wake_at {asked!r} was ignored: it must be a datetime with a time zone"
    if at < now + least:
        return now + least, f"wake_at {at.isoformat()} is too soon; the consumer wakes {least} from now"
    if at > now + most:
        return now + most, f"wake_at {at.isoformat()} is too late; the consumer wakes {most} from now"
    return at, ""


def _instant(asked: object) -> datetime | None:
    if isinstance(asked, str):
        try:
            asked = datetime.fromisoformat(asked)
        except ValueError:
            return None
    return asked if isinstance(asked, datetime) and asked.utcoffset() is not None else None
