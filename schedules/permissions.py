"""Who may define what. Writing a step is running code, so it takes a permission of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .registry import step_types

RUN = "schedules.run_schedule"
CLOSE = "schedules.delete_schedule"
DEFINE_CODE = "schedules.define_code"


def new_code(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the steps in `after` that run code and were not in `before` exactly so."""
    return [step["name"] for step in after if step not in before and _runs_code(step["step_type"])]


def _runs_code(step_type: str) -> bool:
    kind = step_types.get(step_type)
    return kind is None or kind.needs_code_permission
