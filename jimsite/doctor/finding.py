from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """The result of a check. A warning needs attention soon; an error means that something does not work."""

    severity: Severity
    subject: str
    text: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)
