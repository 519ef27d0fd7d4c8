"""How pages say states, times, durations and JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import inf

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

# Each outcome has a tone and a glyph of its own, so that nobody has to tell colours apart.
TONES = {
    "pending": ("○", ("pending", "queued", "delayed")),
    "waiting": (
        "◔",
        (
            *("waiting", "paused", "late", "overdue", "cancelling", "disabled", "missed", "silent"),
            *("paused:transient", "paused:approval", "paused:reconciliation"),
        ),
    ),
    "running": ("▶", ("in_progress", "processing", "open", "reserved")),
    "complete": (
        "✓",
        (
            *("complete", "completed", "running", "alive", "started", "ok", "done"),
            *("enabled", "delivered", "active", "idle", "committed", "consumed"),
        ),
    ),
    "warning": ("!", ("complete_with_warning", "warning", "partial", "dropped", "needs_attention")),
    "failed": (
        "✕",
        (
            *("failed", "failed_with_error", "complete_with_error", "broken", "dead"),
            *("failed:logic", "failed:internal", "crashed"),
        ),
    ),
    "cancelled": (
        "⊘",
        ("cancelled", "closed", "gone", "ended", "revoked", "expired", "archived", "removed", "stopped"),
    ),
    "skipped": ("↷", ("skipped",)),
}
# Executions and activities end in states of their own; people read the same words for both.
SAID = {
    "complete": "completed",
    "complete_with_warning": "completed with warnings",
    "complete_with_error": "completed with errors",
    "failed_with_error": "failed",
}
TONE_OF = {state: tone for tone, (_, states) in TONES.items() for state in states}
NOTHING = "\N{EN DASH}"
# Ten hours away or twelve: nobody asks for the minutes, which are there when the pointer rests on it.
ENOUGH = 10
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@lru_cache(maxsize=256)
def badge(state: str, like: str = "") -> SafeString:
    """`like`: the state whose tone it has, where its own word means something else elsewhere."""
    return format_html(
        '<span class="badge tone-{}"><span aria-hidden="true">{}</span> {}</span>',
        tone(like or state),
        TONES[tone(like or state)][0],
        said(state),
    )


@lru_cache(maxsize=256)
def glyph(state: str) -> SafeString:
    """The badge without its word, which is read out all the same."""
    return format_html(
        '<span class="glyph tone-{}" title="{}" role="img" aria-label="{}">{}</span>',
        tone(state),
        said(state),
        said(state),
        TONES[tone(state)][0],
    )


def said(state: str) -> str:
    return SAID.get(state) or state.replace("_", " ").replace(":", ": ")


def tone(state: str) -> str:
    return TONE_OF.get(state, "pending")


def moment(at: datetime | None, *, now: datetime) -> SafeString:
    """How far away it is; the exact time appears when the pointer rests on it."""
    if at is None:
        return SafeString(NOTHING)
    return format_html(
        '<time datetime="{}" title="{}" data-relative>{}</time>',
        at.isoformat(),
        here(at),
        distance(at, now=now),
    )


def exact(at: datetime, zone: tzinfo = UTC) -> str:
    return f"{on_the_clock(at, zone)} {zone}"


def here(at: datetime) -> str:
    """In the time zone that the reader of a page has chosen; UTC everywhere else."""
    return exact(at, timezone.get_current_timezone())


def on_the_clock(at: datetime, zone: tzinfo = UTC) -> str:
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S}"


def distance(at: datetime, *, now: datetime) -> str:
    away = at - now
    if abs(away) < timedelta(seconds=1):
        return "now"
    words = _words(abs(away).total_seconds(), exact_below=ENOUGH)
    return f"in {words}" if away > timedelta(0) else f"{words} ago"


def span(length: timedelta | None) -> str:
    """The largest unit of a duration and the next smaller one; what is short is said more exactly."""
    if length is None:
        return NOTHING
    seconds = max(length.total_seconds(), 0)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else _words(seconds)


def _words(seconds: float, *, exact_below: float = inf) -> str:
    """With the next smaller unit, as long as there are fewer of the largest one."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    counts = []
    left = int(seconds)
    for size, unit in UNITS:
        count, left = divmod(left, size)
        counts.append((count, unit))
    first = next(place for place, (count, _) in enumerate(counts) if count)
    most = 2 if counts[first][0] < exact_below else 1
    return " ".join(f"{count} {unit}" for count, unit in counts[first : first + most] if count)


def as_json(value: object) -> str:
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)
