"""Store plan lines without the values that nearly all of them share.

Each line is written, read and parsed several times, and half of it would be the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import models

# The values that stored lines leave out. Rows in the database rely on them: do not change a value here if the
# default of a step changes.
UNSAID: dict[str, Any] = {
    "pool": "default",
    "priority": 0,
    "run_if": "success",
    "on_crash": "retry",
    "max_retries": 3,
    "retry_seconds": 10,
    "retry_factor": 2.0,
    "retry_cap_seconds": 600,
    "retry_jitter": 0,
    "retry_on": [],
    "resources": [],
    "timeout_seconds": None,
    "continue_on_failure": False,
    "max_failed_percent": 100,
    "schedule": "",
    "nominal_at": None,
}
_MISSING = object()


def brief(line: Any) -> Any:
    if not _is_line(line):
        return line
    return {name: value for name, value in line.items() if UNSAID.get(name, _MISSING) != value}


def whole(line: Any) -> Any:
    """Return a stored plan line with the values that it leaves out.

    A line without a key is damaged, and is returned unchanged.
    """
    return {**UNSAID, **line} if _is_line(line) else line


def _is_line(line: Any) -> bool:
    return isinstance(line, dict) and "key" in line


def brief_plan(plan: Any) -> Any:
    return _each_line(plan, brief)


def whole_plan(plan: Any) -> Any:
    return _each_line(plan, whole)


def _each_line(plan: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(plan, dict) and isinstance(plan.get("steps"), list):
        return {**plan, "steps": [change(line) for line in plan["steps"]]}
    return plan


class LineField(models.JSONField):
    """A plan line, stored without the values in UNSAID. Reading the field adds these values again."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return whole(super().from_db_value(value, expression, connection))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return super().get_db_prep_value(brief(value), connection, prepared)


class PlanField(models.JSONField):
    """A plan whose lines are stored without the values in UNSAID. Reading the field adds them again."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return whole_plan(super().from_db_value(value, expression, connection))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return super().get_db_prep_value(brief_plan(value), connection, prepared)
