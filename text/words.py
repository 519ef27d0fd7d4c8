"""Formats states, times, durations and JSON for pages and commands."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import inf

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

# Each tone has a colour and a glyph, so that states can be told apart without seeing colours.
TONES = {
    "pending": ("○", ("pending", "queued", "delayed")),
    "waiting": (
        "◔",
        (
            *("waiting", "paused", "late", "overdue", "cancelling", "disabled", "missed", "silent"),
            *("paused:transient", "paused:approval", "paused:reconciliation"),
        ),
    ),
    "running": ("▶", ("running", "in_progress", "processing", "open", "reserved")),
    "complete": (
        "✓",
        (
            *("complete", "completed", "alive", "started", "ok", "done"),
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
# The final states of executions and activities have different names, but are shown with the same words.
LABELS = {
    "complete": "completed",
    "complete_with_warning": "completed with warnings",
    "complete_with_error": "completed with errors",
    "failed_with_error": "failed",
}
TONE_OF = {state: tone for tone, (_, states) in TONES.items() for state in states}
NOTHING = "\N{EN DASH}"
# In relative times, ten or more of the largest unit are shown without the next smaller unit: “9 h 30 min ago”
# but “10 h ago”. The exact time is in the tooltip.
TWO_UNITS_BELOW = 10
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@lru_cache(maxsize=256)
def badge(state: str, like: str = "") -> SafeString:
    """Return a coloured badge for a state; `like` names a state whose colour and glyph are used instead."""
    return format_html(
        '<span class="badge tone-{}"><span aria-hidden="true">{}</span> {}</span>',
        tone(like or state),
        TONES[tone(like or state)][0],
        said(state),
    )


@lru_cache(maxsize=256)
def glyph(state: str) -> SafeString:
    """Return the glyph of a state, with the state in words as the tooltip and for screen readers."""
    return format_html(
        '<span class="glyph tone-{}" title="{}" role="img" aria-label="{}">{}</span>',
        tone(state),
        said(state),
        said(state),
        TONES[tone(state)][0],
    )


def said(state: str) -> str:
    return LABELS.get(state) or state.replace("_", " ").replace(":", ": ")


def tone(state: str) -> str:
    return TONE_OF.get(state, "pending")


def moment(at: datetime | None, *, now: datetime) -> SafeString:
    """Return HTML that shows a time relative to `now`, such as “2 h ago”; the tooltip has the exact time."""
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
    """Format a time in the time zone of the page's reader, or in UTC outside of pages."""
    return exact(at, timezone.get_current_timezone())


def on_the_clock(at: datetime, zone: tzinfo = UTC) -> str:
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S}"


def distance(at: datetime, *, now: datetime) -> str:
    away = at - now
    if abs(away) < timedelta(seconds=1):
        return "now"
    words = _words(abs(away).total_seconds(), two_units_below=TWO_UNITS_BELOW)
    return f"in {words}" if away > timedelta(0) else f"{words} ago"


def span(length: timedelta | None) -> str:
    """Format a duration in its one or two largest units, such as “250 ms”, “1.5 s” or “2 h 5 min”."""
    if length is None:
        return NOTHING
    seconds = max(length.total_seconds(), 0)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else _words(seconds)


def _words(seconds: float, *, two_units_below: float = inf) -> str:
    """Format a duration in its largest unit.

    Add the next smaller unit if the count of the largest unit is below `two_units_below`.
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    counts = []
    left = int(seconds)
    for size, unit in UNITS:
        count, left = divmod(left, size)
        counts.append((count, unit))
    first = next(place for place, (count, _) in enumerate(counts) if count)
    most = 2 if counts[first][0] < two_units_below else 1
    return " ".join(f"{count} {unit}" for count, unit in counts[first : first + most] if count)


def as_json(value: object) -> str:
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)


def sentence(text: str) -> str:
    """Capitalise the first letter of a text, and add a full stop unless it ends with `.`, `?` or `!`."""
    text = text.strip()
    text = f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "?", "!")) else f"{text}."
