"""What `manage.py check` says about the settings of the runtime."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from execution.queue.concurrency import policy
from schedules.models import Refused

# All that the loops check when they start: the checks of pages would load these, a third of a loop's memory.
ENGINE = "engine"


def concurrency_policy(**_: Any) -> list[CheckMessage]:
    try:
        if callable(getattr(policy(), "keys", None)):
            return []
        words = "What the setting JIM_CONCURRENCY_POLICY names has no method “keys”."
    except Refused as refused:
        words = str(refused)
    hint = "Name a class without arguments that has keys(line), such as execution.queue.concurrency.AllKeys."
    return [Error(words, hint=hint, id="execution.E001")]
