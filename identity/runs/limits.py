"""Limits: how much a run may remove before a person has to look at it.

A limit is a dict with `percent`, `count` (None: no such limit) and `floor`: up to this number, nothing is
exceeded, so that small systems can change freely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Literal

from execution.steps.outcome import StepFailed
from identity.models import RunProfile

Removal = Literal["absent", "losses", "deletes"]
DEFAULTS: dict[Removal, dict[str, int | None]] = {
    "absent": {"percent": 10, "count": None, "floor": 5},
    "losses": {"percent": 10, "count": None, "floor": 5},
    "deletes": {"percent": 5, "count": None, "floor": 5},
}
WORDS: dict[Removal, str] = {
    "absent": "are no longer in the input",
    "losses": "would lose their identity",
    "deletes": "would be deleted",
}


def limit_of(limits: Mapping[str, Any], removal: Removal) -> dict[str, int | None]:
    return DEFAULTS[removal] | (limits.get(removal) or {})


def is_exceeded(limit: Mapping[str, int | None], number: int, total: int) -> bool:
    """Return whether removing `number` of `total` objects is more than the limit allows."""
    percent, count, floor = limit["percent"], limit["count"], limit["floor"] or 0
    if number <= floor:
        return False
    return (percent is not None and number * 100 > percent * total) or (count is not None and number > count)


@dataclass(frozen=True)
class Finding:
    """What a run would remove. An approval is valid for exactly the same finding."""

    removal: Removal
    number: int
    total: int
    digest: str

    @classmethod
    def of(cls, removal: Removal, names: Iterable[object], *, number: int, total: int) -> Finding:
        digest = blake2b(digest_size=16)
        for name in names:
            digest.update(f"{name}\n".encode())
        return cls(removal, number, total, digest.hexdigest())

    def __str__(self) -> str:
        return f"{self.number:,} of {self.total:,} objects {WORDS[self.removal]}"

    def as_json(self, *, activity_id: int, now: datetime) -> dict[str, Any]:
        return {
            "removal": self.removal,
            "text": str(self),
            "number": self.number,
            "total": self.total,
            "digest": self.digest,
            "activity": activity_id,
            "at": now.isoformat(),
        }


class LimitExceeded(StepFailed):
    """The run would remove more than a limit allows. It is not retried, because a person has to look."""

    def __init__(self, finding: Finding, limit: Mapping[str, int | None]) -> None:
        allowed = [f"{limit['percent']} %"] if limit["percent"] is not None else []
        allowed += [f"{limit['count']:,}"] if limit["count"] is not None else []
        super().__init__(
            f"limit_exceeded: {finding}, but at most {' or '.join(allowed)} are allowed. "
            "Check whether the input is complete. If it is right, approve this finding on the page of the "
            "run profile and run it again.",
            can_retry=False,
        )
        self.finding = finding


def check(profile: RunProfile, finding: Finding) -> None:
    """Raise LimitExceeded if the finding exceeds the profile's limit and is not approved."""
    limit = limit_of(profile.limits, finding.removal)
    if is_exceeded(limit, finding.number, finding.total) and not is_approved(profile, finding):
        raise LimitExceeded(finding, limit)


def is_approved(profile: RunProfile, finding: Finding) -> bool:
    return (profile.approval or {}).get("digest") == finding.digest
