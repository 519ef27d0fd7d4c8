"""What a finished group means for its execution. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Last:
    """The last attempt of one step."""

    status: str
    error: str


FAILED = ("failed_with_error", "complete_with_error", "cancelled")
UNFINISHED = ("pending", "in_progress")


def stopping_reason(group: Sequence[Mapping[str, Any]], last: Mapping[int | None, Last]) -> str:
    """Why the execution must stop after this group; empty if it may go on.

    `group` are the plan's steps of one index. Only the steps that failed are asked whether to continue.
    A step without a finished attempt has lost its task: that is a failure nobody may continue over.
    """
    reasons = []
    for step in group:
        ended = last.get(step["line"])
        if ended is None or ended.status in UNFINISHED:
            reasons.append(f"Step “{step['name']}” has no outcome: its task vanished.")
        elif ended.status in FAILED and not step["continue_on_failure"]:
            reasons.append(f"Step “{step['name']}” {_said(ended)}")
    return " ".join(reasons)


def _said(ended: Last) -> str:
    first_line = ended.error.strip().partition("\n")[0][:300]
    verb = "was cancelled" if ended.status == "cancelled" else "failed"
    return f"{verb}: {first_line}" if first_line else f"{verb}."
