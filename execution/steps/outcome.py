"""The outcome of an attempt, and the exceptions by which a step ends it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from text.clean import clean_json

Reason = Literal["cancel", "timeout", "drain", "lost"]
RESULT_BYTES = 256 * 1024
ERROR_CHARS = 8_000
TRACEBACK_CHARS = 64_000
# Characters kept beyond these limits until secrets are masked, as half a secret would not be recognised.
SPARE_CHARS = 64_000
# The largest number of items that both databases can store.
MOST_ITEMS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    status: str
    executed_at: datetime
    finished_at: datetime
    message: str = ""
    error: str = ""
    traceback: str = ""
    result: object = None
    items_total: int = 0
    items_failed: int = 0
    interrupted: Reason | None = None
    can_retry: bool = False
    again_at: datetime | None = None


class CannotRun(Exception):
    """Raised if the step cannot run on this worker; the message says why. The attempt is not retried."""


class StepFailed(Exception):
    """A failure that is shown by its message alone, without its type and traceback.

    If the exception has a cause, the traceback of the cause is shown as well.
    """

    def __init__(self, message: str, *, can_retry: bool = True) -> None:
        super().__init__(message)
        self.can_retry = can_retry


class Interrupted(BaseException):
    """Raised inside a step that was cancelled or timed out, or whose worker is stopping or lost its lease."""


class Later(BaseException):
    """Raised by a step to postpone its attempt until `at`. The attempt occupies no seat while it waits.

    At that time, `run` is called again. `Context.begun_at` says when the attempt first began.
    """

    def __init__(self, at: datetime, message: str) -> None:
        super().__init__(message)
        self.at = at


class Skipped(BaseException):
    """Raised by `Context.skip` to end the attempt as skipped."""


class CompletedWithError(BaseException):
    """Raised by `Context.complete_with_error` to end the attempt as completed with errors."""

    def __init__(self, message: str, result: object, *, can_retry: bool) -> None:
        super().__init__(message)
        self.result, self.can_retry = result, can_retry


def as_result(value: object) -> object:
    """Return the value as JSON can represent it; raise StepFailed if it cannot be stored."""
    if value is None or isinstance(value, bool):
        return value
    try:
        text = json.dumps(clean_json(value), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StepFailed(f"the result cannot be stored as JSON: {error}", can_retry=False) from None
    if (size := len(text.encode())) > RESULT_BYTES:
        raise StepFailed(
            f"the result is {size:,} bytes of JSON, but at most {RESULT_BYTES:,} can be stored; "
            "write it to a file and return the path of the file",
            can_retry=False,
        )
    stored: object = json.loads(text)
    return stored
