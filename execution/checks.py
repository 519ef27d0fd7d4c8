"""System checks of the settings for execution."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from execution.queue.concurrency import policy
from schedules.models import Refused

# The only checks that the loops run: others would load the pages, which is a third of their memory.
ENGINE = "engine"


def concurrency_policy(**_: Any) -> list[CheckMessage]:
    try:
        if callable(getattr(policy(), "keys", None)):
            return []
        words = "The class in the setting JIM_CONCURRENCY_POLICY has no method “keys”."
    except Refused as refused:
        words = str(refused)
    hint = "Name a class without arguments that has keys(line), such as execution.queue.concurrency.AllKeys."
    return [Error(words, hint=hint, id="execution.E001")]
