"""Why a schedule ran at a time, or did not: the ledger knows, or the spec, or the records of its changes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings

from text.words import span

from .fates import LocalTime, closing, fate_in_words, kept_words, paused_words
from .models import Occurrence, Schedule
from .models.occurrence import named_time
from .revisions import Revisions, calendars_at
from .spec import Spec, SpecError
from .spec.wall_calendar import FIRST, LAST, SECOND
from .spec.wording import clock_words, counted, date_words, moment_words
from .spec.zones import gap_end, passes_of

MOST_TOLD = 10
MOST_COUNTED = 10_000
LEADS = {
    "excluded": "It is left out",
    "gap": "There is no such time",
    "before_start": "It has no such time",
    "after_end": "It has no such time",
    "unmatched": "It has no such time",
}


@dataclass(frozen=True)
class Answer:
    """`local` is the time asked for, on the schedule's own clock, which the sentence's times are read on."""

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


def why(schedule: Schedule, at: datetime, *, now: datetime) -> Answer:
    """For any time whatsoever; one without a zone is read on the schedule's clock."""
    if not FIRST.year < at.year < LAST.year:
        known = f"the years after {FIRST.year} and before {LAST.year} are known"
        return Answer(at, f"{at:%H:%M:%S} in {at.year}", f"It has no such time: {known}.")
    return _Question(schedule, at, now).answer()


class _Question:
    def __init__(self, schedule: Schedule, at: datetime, now: datetime) -> None:
        self.schedule, self.now, self.zone = schedule, now, schedule.zone
        asked = at.replace(microsecond=0)
        # A wall time may exist twice, or not at all.
        self.wall = asked.replace(tzinfo=None, fold=0) if at.tzinfo in (None, self.zone) else None
        self.at = (asked if at.tzinfo else asked.replace(tzinfo=self.zone)).astimezone(UTC)
        self.local = LocalTime(self.zone, self.at.astimezone(self.zone).date())
        self.revisions = Revisions(schedule)

    def answer(self) -> Answer:
        if self.wall is not None and (swallowed := self._answer_in_a_gap(self.wall)):
            return swallowed
        occurrences = self._ledger() or self._ledger_of_second_pass()
        if not occurrences:
            return self._answer(self._without_occurrence())
        told = [fate_in_words(each, local=self.local, now=self.now) for each in occurrences]
        runs = [each.execution.pk for each in occurrences if hasattr(each, "execution")]
        return self._answer(" ".join(told), occurrences[0], runs[0] if runs else None)

    def _answer(
        self, sentence: str, occurrence: Occurrence | None = None, execution_id: int | None = None
    ) -> Answer:
        return Answer(self.at, self.local.full(self.at), sentence, occurrence, execution_id)

    def _answer_in_a_gap(self, wall: datetime) -> Answer | None:
        first_pass, second_pass = passes_of(wall, self.zone)
        if first_pass <= second_pass:
            return None
        end = gap_end(wall, self.zone)
        sentence = f"There is no such time: {self._gap_words(end, first_pass - second_pass)}."
        then = _Question(self.schedule, end, self.now).answer()
        if then.occurrence is not None:
            sentence += f" At {self.local.time(end)}: {then.sentence[0].lower()}{then.sentence[1:]}"
        local = f"{clock_words(wall)} on {date_words(wall)}, {self.zone.key}"
        return Answer(self.at, local, sentence, then.occurrence, then.execution_id)

    def _gap_words(self, end: datetime, length: timedelta) -> str:
        try:
            verdict = self.spec.explain(self.at)
        except SpecError:
            verdict = None
        if verdict is not None and verdict.kind == "gap":
            return verdict.words
        after = end.astimezone(self.zone).replace(tzinfo=None)
        return (
            f"the clocks of {self.zone.key} go from {moment_words(after - length)} to {moment_words(after)}"
        )

    def _ledger(self) -> list[Occurrence]:
        """Beside the automatic one, which its source puts first, there may be requests and backfills."""
        rows = self.schedule.occurrences.filter(nominal_at__gte=self.at, nominal_at__lt=self.at + SECOND)
        told = rows.select_related("execution").defer("execution__plan", "execution__last_result")
        return list(told.order_by("source", "pk")[:MOST_TOLD])

    def _ledger_of_second_pass(self) -> list[Occurrence]:
        """Where the clocks went back, the same wall time came again."""
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
            return f"The schedule is broken, and stands still until it is edited: {broken}."
        try:
            verdict = self.spec.explain(self.at)
        except SpecError as error:
            return f"The schedule's spec cannot be read: {error}."
        if verdict.kind == "manual":
            return f"{verdict.words[0].upper()}{verdict.words[1:]}.{self._another_spec()}"
        if verdict.kind != "nominal":
            return f"{LEADS[verdict.kind]}: {verdict.words}.{self._another_spec()}"
        if by := self.schedule.skips.get(named_time(self.at)):
            return f"It is left out on request of {by}."
        return self._to_come() if self.at > self.now else self._passed()

    def _outside_its_life(self) -> str:
        created = self.revisions.creation()
        if created is not None and self.at <= created.created_at:
            return (
                "The schedule did not exist yet: "
                f"{created.initiator_name} made it at {self.local.words(created.created_at)}."
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
        """The one that decides about this time, or decided about it."""
        if self.at > self.now:
            return self.schedule.compiled_spec
        definition = self.revisions.in_force(self.at)
        data = self.schedule.spec if definition is None else definition["spec"]
        return Spec.parse(data, calendars_at(self.schedule, data, self.at))

    def _another_spec(self) -> str:
        with suppress(SpecError):
            if self.spec.as_json() == self.schedule.compiled_spec.as_json():
                return ""
        return f" Its spec was another one then: “{self.spec.describe()}”."

    def _to_come(self) -> str:
        if self.schedule.remaining == 0:
            return "It will not run: there are no runs left."
        if self._runs_are_used_up():
            left = counted(self.schedule.remaining or 0, "run")
            return f"It will not run: earlier times use up the {left} left."
        until = self.schedule.paused_until
        if self.schedule.is_paused and (until is None or until > self.at):
            return f"It will wait: {paused_words(self.schedule, self.local)}."
        planned = self.spec.due_at(self.at, self.schedule.jitter_seed)
        if planned == self.at:
            return "It will run."
        return f"It will run at {self.local.words(planned)}, where its jitter puts it."

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
            return f"Nothing is known of it any more: {kept_words()}."
        return (
            "It is one of its times, but there is no record of it: its spec could not be read then, "
            f"or the record was deleted.{self._another_spec()}"
        )

    def _not_recorded_yet(self) -> str:
        late = self.now - self.at
        if late <= timedelta(seconds=settings.JIM_OVERDUE_SECONDS):
            return "It is due: the scheduler records it in a moment."
        cursor = self.schedule.processed_until
        reached = f" It has come as far as {self.local.words(cursor)}." if cursor else ""
        return f"The scheduler is {span(late)} late with it: it is catching up, or none is running.{reached}"
