"""Explains why a schedule did or did not run at a time, from its occurrences, spec and records."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings

from text.words import span

from .models import Occurrence, Schedule
from .models.occurrence import named_time
from .outcomes import LocalTime, closing, kept_words, outcome_in_words, paused_words
from .revisions import Revisions, calendars_at
from .spec import Spec, SpecError
from .spec.wall_calendar import FIRST, LAST, SECOND
from .spec.wording import clock_words, counted, date_words, moment_words
from .spec.zones import gap_end, passes_of

MOST_TOLD = 10
MOST_COUNTED = 10_000
LEADS = {
    "excluded": "Excluded",
    "gap": "This time does not exist",
    "before_start": "The schedule does not run at this time",
    "after_end": "The schedule does not run at this time",
    "unmatched": "The schedule does not run at this time",
}


@dataclass(frozen=True)
class Explanation:
    """The explanation of one time; `local` is that time in the schedule's time zone."""

    at: datetime
    local: str
    sentence: str
    occurrence: Occurrence | None = None
    execution_id: int | None = None

    def __str__(self) -> str:
        return f"{self.local}. {self.sentence}"

    def as_json(self) -> dict[str, Any]:
        return {
            "at": named_time(self.at),
            "local": self.local,
            "sentence": self.sentence,
            "occurrence": self.occurrence.pk if self.occurrence else None,
            "execution": self.execution_id,
        }


def why(schedule: Schedule, at: datetime, *, now: datetime) -> Explanation:
    """Explain why a schedule did or did not run at a time; a naive time is in the schedule's time zone."""
    if not FIRST.year <= at.year <= LAST.year:
        known = f"schedules have times from {FIRST.year} to {LAST.year} only"
        return Explanation(
            at, f"{at:%H:%M:%S} in {at.year}", f"The schedule does not run at this time: {known}."
        )
    return _Question(schedule, at, now).answer()


class _Question:
    def __init__(self, schedule: Schedule, at: datetime, now: datetime) -> None:
        self.schedule, self.now, self.zone = schedule, now, schedule.zone
        asked = at.replace(microsecond=0)
        # A clock time can exist twice, or not at all.
        self.wall = asked.replace(tzinfo=None, fold=0) if at.tzinfo in (None, self.zone) else None
        self.at = (asked if at.tzinfo else asked.replace(tzinfo=self.zone)).astimezone(UTC)
        self.local = LocalTime(self.zone, self.at.astimezone(self.zone).date())
        self.revisions = Revisions(schedule)

    def answer(self) -> Explanation:
        if self.wall is not None and (swallowed := self._answer_in_a_gap(self.wall)):
            return swallowed
        occurrences = self._ledger() or self._ledger_of_second_pass()
        if not occurrences:
            return self._answer(self._without_occurrence())
        told = [outcome_in_words(each, local=self.local, now=self.now) for each in occurrences]
        runs = [each.execution.pk for each in occurrences if hasattr(each, "execution")]
        return self._answer(" ".join(told), occurrences[0], runs[0] if runs else None)

    def _answer(
        self, sentence: str, occurrence: Occurrence | None = None, execution_id: int | None = None
    ) -> Explanation:
        return Explanation(self.at, self.local.full(self.at), sentence, occurrence, execution_id)

    def _answer_in_a_gap(self, wall: datetime) -> Explanation | None:
        first_pass, second_pass = passes_of(wall, self.zone)
        if first_pass <= second_pass:
            return None
        end = gap_end(wall, self.zone)
        sentence = f"This time does not exist: {self._gap_words(end, first_pass - second_pass)}."
        then = _Question(self.schedule, end, self.now).answer()
        if then.occurrence is not None:
            sentence += f" The next time on the clock is {self.local.time(end)}. {then.sentence}"
        local = f"{clock_words(wall)} on {date_words(wall)}, {self.zone.key}"
        return Explanation(self.at, local, sentence, then.occurrence, then.execution_id)

    def _gap_words(self, end: datetime, length: timedelta) -> str:
        try:
            verdict = self.spec.explain(self.at)
        except SpecError:
            verdict = None
        if verdict is not None and verdict.kind == "gap":
            return verdict.words
        after = end.astimezone(self.zone).replace(tzinfo=None)
        return (
            f"the clocks in {self.zone.key} go from {moment_words(after - length)} to {moment_words(after)}"
        )

    def _ledger(self) -> list[Occurrence]:
        """Return the occurrences of this time: the automatic one first, then the others by source."""
        rows = self.schedule.occurrences.filter(nominal_at__gte=self.at, nominal_at__lt=self.at + SECOND)
        told = rows.select_related("execution").defer("execution__plan", "execution__last_result")
        return list(told.order_by("source", "pk")[:MOST_TOLD])

    def _ledger_of_second_pass(self) -> list[Occurrence]:
        """Return the occurrences of the second pass of a repeated clock time.

        If there are any, set `at` to the second pass, so that the answer explains this pass.
        """
        if self.wall is None or (second_pass := passes_of(self.wall, self.zone)[1]) == self.at:
            return []
        first_pass, self.at = self.at, second_pass
        if not (found := self._ledger()):
            self.at = first_pass
        return found

    def _without_occurrence(self) -> str:
        if limits := self._outside_its_life():
            return limits
        if self.schedule.spec_error and self._is_ahead_of_the_cursor:
            broken = self.schedule.spec_error.rstrip(".")
            return f"The spec is invalid: {broken}. The schedule does not run until you correct the spec."
        try:
            verdict = self.spec.explain(self.at)
        except SpecError as error:
            return f"The spec is invalid: {error}."
        if verdict.kind == "manual":
            return f"{verdict.words[0].upper()}{verdict.words[1:]}.{self._another_spec()}"
        if verdict.kind != "nominal":
            return f"{LEADS[verdict.kind]}: {verdict.words}.{self._another_spec()}"
        if by := self.schedule.skips.get(named_time(self.at)):
            return f"Will be skipped on request from {by}."
        return self._to_come() if self.at > self.now else self._passed()

    def _outside_its_life(self) -> str:
        created = self.revisions.creation()
        if created is not None and self.at <= created.created_at:
            return (
                "The schedule did not exist yet: "
                f"{created.initiator_name} created it at {self.local.words(created.created_at)}."
            )
        closed = closing(self.schedule) if self.schedule.status == Schedule.Status.CLOSED else None
        if closed is not None and self.at > closed.created_at:
            return (
                "The schedule is closed: "
                f"{closed.initiator_name} closed it at {self.local.words(closed.created_at)}."
            )
        return ""

    @property
    def _is_ahead_of_the_cursor(self) -> bool:
        return self.schedule.processed_until is None or self.at > self.schedule.processed_until

    @cached_property
    def spec(self) -> Spec:
        """Return the spec that applied at this time, or the current spec for a future time."""
        if self.at > self.now:
            return self.schedule.compiled_spec
        definition = self.revisions.in_force(self.at)
        data = self.schedule.spec if definition is None else definition["spec"]
        return Spec.parse(data, calendars_at(self.schedule, data, self.at))

    def _another_spec(self) -> str:
        with suppress(SpecError):
            if self.spec.as_json() == self.schedule.compiled_spec.as_json():
                return ""
        return f" The spec was different then: “{self.spec.describe()}”."

    def _to_come(self) -> str:
        if self.schedule.remaining == 0:
            return "Will not run: the schedule has no runs left."
        if self._runs_are_used_up():
            left = counted(self.schedule.remaining or 0, "run")
            return f"Will not run: the schedule has {left} left, which earlier times will use up."
        until = self.schedule.paused_until
        if self.schedule.is_paused and (until is None or until > self.at):
            return f"Will wait: {paused_words(self.schedule, self.local)}."
        planned = self.spec.due_at(self.at, self.schedule.jitter_seed)
        if planned == self.at:
            return "Will run."
        return f"Will run at {self.local.words(planned)}, after a random delay (jitter)."

    def _runs_are_used_up(self) -> bool:
        left = self.schedule.remaining
        if left is None or left > MOST_COUNTED:
            return False
        skips = self.schedule.skips
        earlier = self.spec.times(self.now, self.at - SECOND, limit=left + len(skips))
        return len([at for at in earlier if named_time(at) not in skips]) >= left

    def _passed(self) -> str:
        if self._is_ahead_of_the_cursor:
            return self._not_recorded_yet()
        if self.at < self.now - timedelta(days=settings.JIM_RETENTION_DAYS):
            return f"The record of this time was deleted, because {kept_words()}."
        return (
            "This is one of the schedule's times, but it was not recorded: the spec was invalid then, "
            f"or the record was deleted.{self._another_spec()}"
        )

    def _not_recorded_yet(self) -> str:
        late = self.now - self.at
        if late <= timedelta(seconds=settings.JIM_OVERDUE_SECONDS):
            return "Due now: the scheduler will process this time in a moment."
        cursor = self.schedule.processed_until
        reached = f" Times up to {self.local.words(cursor)} have been processed." if cursor else ""
        return f"The scheduler is {span(late)} late: it is either catching up or not running.{reached}"
