"""Who may define what. Writing a step is running code, so it takes a permission of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError

from .placeholders import found
from .registry import step_types

RUN = "schedules.run_schedule"
CLOSE = "schedules.delete_schedule"
DEFINE_CODE = "schedules.define_code"


class NotYours(ValidationError):
    """Somebody may change this, but not in this way."""


def new_code(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the steps in `after` that run code or use a secret, and were not in `before` exactly so."""
    known = {_exactly(step) for step in before}
    return [step["name"] for step in after if _exactly(step) not in known and needs_code(step)]


def _exactly(step: Mapping[str, Any]) -> str:
    """As text: to Python, 1 and True are the same."""
    return json.dumps(step, sort_keys=True)


def needs_code(step: Mapping[str, Any]) -> bool:
    """Whoever decides where a secret goes may as well read it."""
    kind = step_types.get(step["step_type"])
    is_code = kind is None or kind.needs_code_permission
    return is_code or any(ref.kind == "secret" for ref in found(step["config"]))
