"""Examples and shapes for the description of the API."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample

_DURATION = {"type": ["string", "integer"], "description": "Such as `90s`, `15m`, `1h30m`; or seconds."}
_WORDS = {"type": "array", "items": {"type": "string"}}
_OBJECTS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}

SPEC: dict[str, Any] = {
    "type": "object",
    "description": (
        "When it runs: the union of its rules, read on one time zone's clock, less what it excludes. "
        "Without any rule it only runs when somebody starts it."
    ),
    "properties": {
        "cron": {**_WORDS, "description": "Cron expressions, such as `0 2 * * mon-fri`."},
        "every": {
            "type": "array",
            "items": {"anyOf": [_DURATION, {"type": "object", "additionalProperties": True}]},
            "description": "Lengths of time, such as `15m`, or `{every, offset}`.",
        },
        "patterns": {
            **_OBJECTS,
            "description": '`{"times": ["09:00"], "weekdays": "mon-fri"}`; `{every, from, until, weekdays}`.',
        },
        "calendars": {**_OBJECTS, "description": '`{"hour": "9-17", "day_of_week": "mon-fri"}`.'},
        "at": {**_WORDS, "description": "Single times."},
        "exclude": {
            **_OBJECTS,
            "description": 'Such as `{"calendar": "UK holidays"}`, `{"dates": "2026-12-24/2027-01-02"}`.',
        },
        "start_at": {"type": ["string", "null"]},
        "end_at": {"type": ["string", "null"]},
        "jitter": _DURATION,
        "time_zone": {"type": "string", "description": "Such as `Europe/London`; UTC if it is not said."},
        "dst": {"type": "string", "enum": ["cron", "literal"]},
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
        "steps": [STEP, {**STEP, "index": 1, "name": "Tell"}],
    },
    request_only=True,
)
