"""What attempts said: of one, or of several merged by time, in parts that a page can follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import OuterRef, Q, Subquery

from text.numbers import whole_number

from .models import Activity, ActivityQuerySet, OutputLine

MOST_LINES = 500
MOST_ATTEMPTS = 100
MOST_DOWNLOADED = 200_000
STREAMS = ("stdout", "stderr", "log")


def with_last_lines(attempts: ActivityQuerySet) -> Any:
    """Each with `last_line`, the number of its last one so far, which takes one look into an index."""
    last = OutputLine.objects.filter(activity=OuterRef("pk")).order_by("-number").values("number")[:1]
    return attempts.annotate(last_line=Subquery(last))


@dataclass(frozen=True)
class Transcript:
    """The attempts come with their last lines; what is written after those were read is read next time."""

    attempts: Sequence[Any]
    stream: str = ""
    text: str = ""

    @classmethod
    def of(cls, attempts: Sequence[Any], *, stream: str = "", text: str = "") -> Transcript:
        """Of those that have said something; of very many, the last ones."""
        spoken = [attempt for attempt in attempts if attempt.last_line]
        spoken.sort(key=lambda attempt: (attempt.executed_at or attempt.created_at, attempt.pk))
        return cls(spoken[-MOST_ATTEMPTS:], stream, text)

    def lines(self, *, after: Mapping[int, int] | None = None, to: int | None = None) -> list[OutputLine]:
        """The last ones, by time: after those that are known by attempt, and not beyond this number."""
        wanted = Q()
        for attempt in self.attempts:
            known, last = (after or {}).get(attempt.pk, 0), min(attempt.last_line, to or attempt.last_line)
            if not self.is_filtered:
                known = max(known, last - MOST_LINES)
            if last > known:
                wanted |= Q(activity=attempt.pk, number__gt=known, number__lte=last)
        if not wanted:
            return []
        rows = OutputLine.objects.filter(wanted, **self._filters).order_by("-written_at", "-pk")
        return list(rows[:MOST_LINES])[::-1]

    def everything(self) -> list[OutputLine]:
        ids = [attempt.pk for attempt in self.attempts]
        rows = OutputLine.objects.filter(activity__in=ids, **self._filters).order_by("written_at", "pk")
        return list(rows[:MOST_DOWNLOADED])

    @property
    def is_filtered(self) -> bool:
        return bool(self.stream or self.text)

    @property
    def cursor(self) -> str:
        """Up to where it has been read: “attempt.line-attempt.line”."""
        return "-".join(f"{attempt.pk}.{attempt.last_line}" for attempt in self.attempts)

    @property
    def _filters(self) -> dict[str, str]:
        chosen = {"stream": self.stream} if self.stream else {}
        return chosen | ({"text__icontains": self.text} if self.text else {})


def read_cursor(text: str) -> dict[int, int]:
    """What makes no sense is not known."""
    known = {}
    for pair in text.split("-")[:MOST_ATTEMPTS]:
        attempt, _, number = pair.partition(".")
        known_attempt, known_number = whole_number(attempt), whole_number(number)
        if known_attempt is not None and known_number is not None:
            known[known_attempt] = known_number
    return known


def attempts_of(root: int) -> Any:
    """Of the steps of an execution, which is known by its root activity."""
    return Activity.objects.filter(parent=root).defer("traceback", "result", "details")
