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
        "When the schedule runs: at the times of all rules together, except for the excluded times. A "
        "schedule without rules runs only on request, or when its topics have new events."
    ),
    "properties": {
        "cron": {**_WORDS, "description": "Cron expressions, such as `0 2 * * mon-fri`."},
        "every": {
            "type": "array",
            "items": {"anyOf": [_DURATION, {"type": "object", "additionalProperties": True}]},
            "description": 'Intervals, such as `15m` or, with an offset, `{"every": "1h", "offset": "10m"}`.',
        },
        "patterns": {
            **_OBJECTS,
            "description": "Times of day, such as "
            '`{"times": ["09:00"], "weekdays": "mon-fri"}` or '
            '`{"every": "15m", "from": "09:00", "until": "17:00", "weekdays": "mon-fri"}`.',
        },
        "calendars": {
            **_OBJECTS,
            "description": 'Rules for the parts of a date and time, such as `{"hour": "9-17", "day_of_week": '
            '"mon-fri"}`.',
        },
        "at": {**_WORDS, "description": "Single times, such as `2026-12-01T09:00:00Z`."},
        "exclude": {
            **_OBJECTS,
            "description": 'Times at which the schedule does not run, such as `{"calendar": "UK holidays"}` '
            'or `{"dates": "2026-12-24/2027-01-02"}`.',
        },
        "start_at": {
            "type": ["string", "null"],
            "description": "The schedule does not run before this time.",
        },
        "end_at": {"type": ["string", "null"], "description": "The schedule does not run after this time."},
        "jitter": {
            **_DURATION,
            "description": "The longest delay that is added to a scheduled time, so that schedules with the "
            "same times do not all start at once. A duration, such as `90s`, or a number of seconds.",
        },
        "time_zone": {
            "type": "string",
            "description": "The time zone of the rules, such as `Europe/London`. The default is UTC.",
        },
        "dst": {
            "type": "string",
            "enum": ["cron", "literal"],
            "description": "What happens when the clocks change. With `cron`, the default, the schedule runs "
            "exactly once for each fixed time: at the end of the gap if the clocks skip the time, and only "
            "the first time if the time occurs twice. With `literal`, the schedule does not run at a skipped "
            "time, and runs twice if a time occurs twice.",
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
