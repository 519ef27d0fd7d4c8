"""Examples and schemas for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample

_DURATION = {
    "type": ["string", "integer"],
    "description": "A duration, such as `90s`, `15m` or `1h30m`, or a number of seconds.",
}
_WORDS = {"type": "array", "items": {"type": "string"}}
_OBJECTS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}

SPEC: dict[str, Any] = {
    "type": "object",
    "description": (
        "When the schedule runs: the union of all rules, in one time zone, without the excluded times. "
        "A schedule without rules runs only on request."
    ),
    "properties": {
        "cron": {**_WORDS, "description": "Cron expressions, such as `0 2 * * mon-fri`."},
        "every": {
            "type": "array",
            "items": {"anyOf": [_DURATION, {"type": "object", "additionalProperties": True}]},
            "description": 'Intervals, such as `15m`, or `{"every": "1h", "offset": "10m"}`.',
        },
        "patterns": {
            **_OBJECTS,
            "description": "Times of day, such as "
            '`{"times": ["09:00"], "weekdays": "mon-fri"}` or '
            '`{"every": "15m", "from": "09:00", "until": "17:00", "weekdays": "mon-fri"}`.',
        },
        "calendars": {
            **_OBJECTS,
            "description": 'Calendar rules, such as `{"hour": "9-17", "day_of_week": "mon-fri"}`.',
        },
        "at": {**_WORDS, "description": "Single times, such as `2026-12-01T09:00:00Z`."},
        "exclude": {
            **_OBJECTS,
            "description": 'Times to leave out, such as `{"calendar": "UK holidays"}` or '
            '`{"dates": "2026-12-24/2027-01-02"}`.',
        },
        "start_at": {"type": ["string", "null"], "description": "Times before this time are left out."},
        "end_at": {"type": ["string", "null"], "description": "Times after this time are left out."},
        "jitter": _DURATION,
        "time_zone": {
            "type": "string",
            "description": "A time zone, such as `Europe/London`. The default is UTC.",
        },
        "dst": {
            "type": "string",
            "enum": ["cron", "literal"],
            "description": "What happens when the clocks change. With `cron` (default), a fixed time runs "
            "exactly once: if the clocks skip it, at the end of the gap; if it occurs twice, the first time. "
            "With `literal`, a time that the clocks skip does not run, and a time that occurs twice runs "
            "twice.",
        },
    },
    "additionalProperties": False,
    "example": {"cron": ["0 2 * * *"], "time_zone": "Europe/London"},
}
STEP = {
    "index": 0,
    "name": "Fetch",
    "step_type": "http",
    "config": {"method": "GET", "url": "https://example.com/health"},
}
SCHEDULE = OpenApiExample(
    "Every night",
    value={
        "name": "Nightly check",
        "tags": ["nightly"],
        "spec": {"cron": ["0 2 * * *"], "time_zone": "Europe/London"},
        "overlap": "skip",
        "steps": [STEP, {**STEP, "index": 1, "name": "Notify"}],
    },
    request_only=True,
)
