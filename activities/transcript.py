"""The output of one attempt, or of several attempts merged by time, in parts that a page can follow."""

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
    """Add `last_line` to each attempt: the number of its last output line, or None without output."""
    last = OutputLine.objects.filter(activity=OuterRef("pk")).order_by("-number").values("number")[:1]
    return attempts.annotate(last_line=Subquery(last))


@dataclass(frozen=True)
class Transcript:
    """The output of attempts up to their `last_line`. To read later lines, build a new transcript."""

    attempts: Sequence[Any]
    stream: str = ""
    text: str = ""

    @classmethod
    def of(cls, attempts: Sequence[Any], *, stream: str = "", text: str = "") -> Transcript:
        """Build the transcript of the last MOST_ATTEMPTS attempts that have output.

        The attempts must come from `with_last_lines`.
        """
        with_output = [attempt for attempt in attempts if attempt.last_line]
        with_output.sort(key=lambda attempt: (attempt.executed_at or attempt.created_at, attempt.pk))
        return cls(with_output[-MOST_ATTEMPTS:], stream, text)

    def lines(self, *, after: Mapping[int, int] | None = None, to: int | None = None) -> list[OutputLine]:
        """Return the last MOST_LINES lines, oldest first.

        `after` maps attempt ids to the number of the last line that was already read: only later lines are
        returned. `to` is the highest line number to return.
        """
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
        """Return the id and last line number of each attempt, as “attempt.line-attempt.line”."""
        return "-".join(f"{attempt.pk}.{attempt.last_line}" for attempt in self.attempts)

    @property
    def _filters(self) -> dict[str, str]:
        chosen = {"stream": self.stream} if self.stream else {}
        return chosen | ({"text__icontains": self.text} if self.text else {})


def read_cursor(text: str) -> dict[int, int]:
    """Return a dict from attempt id to the number of the last line read. Ignore malformed parts."""
    known = {}
    for pair in text.split("-")[:MOST_ATTEMPTS]:
        attempt, _, number = pair.partition(".")
        known_attempt, known_number = whole_number(attempt), whole_number(number)
        if known_attempt is not None and known_number is not None:
            known[known_attempt] = known_number
    return known


def attempts_of(root: int) -> Any:
    """Return the attempts of all steps of an execution, given the id of the execution's activity."""
    return Activity.objects.filter(parent=root).defer("traceback", "result", "details")
