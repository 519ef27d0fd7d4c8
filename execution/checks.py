"""Django system check of the setting that names the concurrency policy."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from execution.queue.concurrency import policy
from schedules.models import Refused

# The tag of the checks that schedulers and workers run. They skip all other checks, which load the code of
# the web pages, a third of the memory that a process would use.
ENGINE = "engine"


def concurrency_policy(**_: Any) -> list[CheckMessage]:
    try:
        if callable(getattr(policy(), "keys", None)):
            return []
        words = "The class in the setting JIM_CONCURRENCY_POLICY has no “keys” method."
    except Refused as refused:
        words = str(refused)
    hint = "Name a class that takes no arguments and has a keys(line) method, such as "
    hint += "execution.queue.concurrency.AllKeys."
    return [Error(words, hint=hint, id="execution.E001")]
