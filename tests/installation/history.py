"""Months that never were, written in bulk: what pages show once JIM has been at work for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, islice
from random import Random
from typing import Any
from uuid import UUID

from activities.models import Activity, ActivityItem, OutputLine
from execution.failure import NOTHING_FAILED, SOMETHING_FAILED
from execution.models import Execution
from execution.models.start import Start
from jimsite.demo import PEOPLE
from operations.initiator import Initiator
from schedules.models import Occurrence, Schedule, Step
from schedules.models.definition import MOST_OUTCOMES
from schedules.models.occurrence import Waiting, named_time

AT_ONCE = 500
# The newest so many of a schedule have output and items: nobody reads those of last spring.
TALKATIVE = 10
ERRORS = (
    "ConnectionError: the supplier does not answer",
    "TimeoutError: no answer within 60 s",
    "PermissionError: the folder cannot be written to",
    "ValueError: row 1,204 has no customer number",
)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "reports/nightly.py", line 48, in build\n'
    "    rows = supplier.fetch(region)\n"
    '  File "reports/supplier.py", line 17, in fetch\n'
    "    raise ConnectionError(why)\n"
)


@dataclass(frozen=True)
class Habits:
    """How a schedule fares, as a rule."""

    seconds: float = 20
    fails: float = 0.03
    """How often a step fails at its first attempt; most of them succeed at the second."""
    warns: float = 0.03
    skips: float = 0.02
    misses: float = 0.005
    cancels: float = 0.01


def write_history(
    habits: Mapping[Schedule, Habits], *, since: datetime, until: datetime, most: int, seed: int = 7
) -> int:
    """The last so many times of each schedule before `until`, in order, as if they had run; how many have.

    Counters and cursors follow: what is written here is not generated again.
    """
    dice = Random(seed)
    steps = {schedule: list(schedule.steps.order_by("index", "pk")) for schedule in habits}
    tallies = {schedule: Tally() for schedule in habits}
    times = _times(habits, since, until, most)
    for first in range(0, len(times), AT_ONCE):
        chunk = [
            Past(schedule, at, dice, habits[schedule]).lived(steps[schedule], is_talkative=age < TALKATIVE)
            for at, age, schedule in times[first : first + AT_ONCE]
        ]
        _save(chunk)
        for past in chunk:
            tallies[past.schedule].add(past)
    for schedule, tally in tallies.items():
        tally.write_down(schedule, until)
    return sum(tally.fates["started"] for tally in tallies.values())


def _times(
    schedules: Iterable[Schedule], since: datetime, until: datetime, most: int
) -> list[tuple[datetime, int, Schedule]]:
    """Each with how many of the same schedule come after it."""
    found = []
    for schedule in schedules:
        own = list(schedule.compiled_spec.each(since, until))[-most:]
        found += [(at, len(own) - number, schedule) for number, at in enumerate(own, 1)]
    return sorted(found, key=lambda time: (time[0], time[2].pk))


@dataclass
class Past:
    """One time of a schedule, and what became of it."""

    schedule: Schedule
    at: datetime
    dice: Random
    habits: Habits
    attempts: list[Activity] = field(default_factory=list)
    items: list[ActivityItem] = field(default_factory=list)
    output: list[OutputLine] = field(default_factory=list)
    has_failed: bool = False
    error: str = ""
    execution: Execution | None = None

    def lived(self, steps: Sequence[Step], *, is_talkative: bool) -> Past:
        self.occurrence = self._occurrence()
        if self.occurrence.status == Occurrence.Status.STARTED:
            self._run(steps, is_talkative)
        return self

    def _occurrence(self) -> Occurrence:
        chance = self.dice.random()
        status, reason = Occurrence.Status.STARTED, ""
        if chance < self.habits.misses:
            status, reason = Occurrence.Status.MISSED, "catch-up window"
        elif chance < self.habits.misses + self.habits.skips:
            status, reason = Occurrence.Status.SKIPPED, "overlap"
        by = Initiator.schedule(self.schedule)
        settled_at = self.at + timedelta(seconds=self.dice.uniform(0.02, 0.4))
        return Occurrence(
            schedule=self.schedule,
            source=Occurrence.Source.AUTO,
            key=f"auto/{named_time(self.at)}",
            nominal_at=self.at,
            planned_at=self.at,
            status=status,
            reason=reason,
            initiator_type=by.type,
            initiator_id=by.id,
            initiator_name=by.name,
            created_at=self.at,
            settled_at=settled_at,
        )

    def _run(self, steps: Sequence[Step], is_talkative: bool) -> None:
        start = Start.of(self.schedule, self._waiting(), [step.as_json() for step in steps])
        began = self.occurrence.settled_at or self.at
        is_cancelled = self.dice.random() < self.habits.cancels
        now, reached = began, start.first
        for index, lines in groupby(start.lines, key=lambda line: int(line["index"])):
            had_failed, is_over = self.has_failed, is_cancelled and index > start.first
            ends = [self._line(line, now, had_failed=had_failed, is_cancelled=is_over) for line in lines]
            reached = index if any(end > now for end in ends) else reached
            now = max(ends)
        status = Execution.Status.FAILED if self.has_failed else Execution.Status.COMPLETED
        self._end(start, Execution.Status.CANCELLED if is_cancelled else status, began, now, reached)
        if is_talkative:
            self._talk()

    def _end(
        self, start: Start, status: Execution.Status, began: datetime, now: datetime, reached: int
    ) -> None:
        is_cancelled = status == Execution.Status.CANCELLED
        error = "" if is_cancelled else self.error
        times = {"created_at": began, "executed_at": began, "finished_at": now}
        root = dict(zip(Start.ROOT, start.root, strict=True))
        self.root = Activity(**root, **times, status=Execution.ROOT_STATUS[status], error=error)
        for attempt in self.attempts:
            attempt.parent = self.root
        self.execution = Execution(
            **_named(start, began),
            occurrence=self.occurrence,
            activity=self.root,
            status=status,
            current_index=reached,
            cancel_requested_at=now if is_cancelled else None,
            cancel_reason="Not needed today." if is_cancelled else "",
            error=error,
            started_at=began,
            finished_at=now,
            accounted_at=now,
        )

    def _waiting(self) -> Waiting:
        by = Initiator.schedule(self.schedule)
        told = ("auto", "", self.at, self.at, None, True, by.type, by.id, by.name, None, False)
        return Waiting(0, self.schedule.pk, *told)

    def _line(
        self, line: Mapping[str, Any], now: datetime, *, had_failed: bool, is_cancelled: bool
    ) -> datetime:
        """When its last attempt ended; `now` if it did not run."""
        if is_cancelled:
            self.attempts.append(_attempt(line, self.schedule, now, Activity.Status.CANCELLED, "Cancelled."))
            return now
        runs_if = line.get("run_if", "success")
        if runs_if == "failure" and not had_failed:
            self.attempts.append(_attempt(line, self.schedule, now, Activity.Status.SKIPPED, NOTHING_FAILED))
            return now
        if runs_if == "success" and had_failed:
            self.attempts.append(
                _attempt(line, self.schedule, now, Activity.Status.CANCELLED, SOMETHING_FAILED)
            )
            return now
        return self._attempts(line, now)

    def _attempts(self, line: Mapping[str, Any], now: datetime) -> datetime:
        before: Activity | None = None
        most = min(line["max_retries"], 2) + 1
        for number in range(1, most + 1):
            fails = self.dice.random() < (self.habits.fails if number == 1 else 0.35)
            took = timedelta(seconds=self.habits.seconds * self.dice.lognormvariate(0, 0.4) / 3)
            attempt = _attempt(
                line, self.schedule, now, self._outcome(fails), "", number=number, before=before
            )
            attempt.executed_at, attempt.finished_at = now + timedelta(milliseconds=15), now + took
            if fails:
                attempt.error, attempt.traceback = self.dice.choice(ERRORS), TRACEBACK
                attempt.permanently_failed = number == most
            else:
                attempt.result = {"rows": self.dice.randint(20, 4_000)}
            self.attempts.append(attempt)
            before, now = attempt, now + took
            if not fails:
                return now
            if number < most:
                now += timedelta(seconds=line["retry_seconds"] * 2 ** (number - 1))
        self.has_failed = self.has_failed or not line["continue_on_failure"]
        assert before is not None
        self.error = self.error or f"Step “{line['name']}” failed: {before.error}"
        return now

    def _outcome(self, fails: bool) -> str:
        if fails:
            return Activity.Status.FAILED_WITH_ERROR
        warns = self.dice.random() < self.habits.warns
        return Activity.Status.COMPLETE_WITH_WARNING if warns else Activity.Status.COMPLETE

    def _talk(self) -> None:
        for attempt in self.attempts:
            if attempt.executed_at is None:
                continue
            said = [("log", f"Attempt {attempt.attempt} of “{attempt.target_name}”")]
            said += [("stdout", f"\x1b[32mok\x1b[0m  {person}") for person in PEOPLE[:6]]
            said += [("stderr", f"\x1b[31m{attempt.error}\x1b[0m")] if attempt.error else []
            at = attempt.executed_at
            self.output += [
                OutputLine(activity=attempt, number=number, stream=stream, text=text, written_at=at)
                for number, (stream, text) in enumerate(said, 1)
            ]
            outcomes = ["failed" if attempt.error else "ok", "warning", *["ok"] * 5, "skipped"]
            self.items += [
                ActivityItem(activity=attempt, name=person, outcome=outcome, message="", created_at=at)
                for person, outcome in zip(PEOPLE, outcomes, strict=False)
            ]
            attempt.items_total, attempt.items_failed = len(outcomes), outcomes.count("failed")


class Tally:
    """What a schedule counts of its runs."""

    def __init__(self) -> None:
        self.fates: Counter[str] = Counter()
        self.ends: list[Execution] = []
        self.failed = 0

    def add(self, past: Past) -> None:
        self.fates[past.occurrence.status] += 1
        if past.execution is not None:
            self.failed += past.execution.status == Execution.Status.FAILED
            self.ends = [*self.ends, past.execution][-MOST_OUTCOMES:]

    def write_down(self, schedule: Schedule, until: datetime) -> None:
        schedule.restart_cursor(until)
        newest = [each for each in reversed(self.ends) if each.status != Execution.Status.CANCELLED]
        letters = "".join(each.status[0] for each in newest)
        failures = [each.error for each in newest if each.status == Execution.Status.FAILED]
        Schedule.objects.filter(pk=schedule.pk).update(
            processed_until=schedule.processed_until,
            next_run_at=schedule.next_run_at,
            started_count=self.fates["started"],
            skipped_count=self.fates["skipped"],
            skipped_reasons={"overlap": self.fates["skipped"]} if self.fates["skipped"] else {},
            missed_count=self.fates["missed"],
            failed_count=self.failed,
            recent_outcomes=letters,
            failures_in_a_row=len(letters) - len(letters.lstrip("f")),
            last_run_at=self.ends[-1].started_at if self.ends else None,
            last_outcome=self.ends[-1].status if self.ends else "",
            last_result={"rows": 42} if self.ends else None,
            last_failure=failures[0] if failures else "",
        )


def _save(chunk: Sequence[Past]) -> None:
    """Rows that others refer to come first; second attempts refer to first ones."""
    started = [past for past in chunk if past.execution is not None]
    Occurrence.objects.bulk_create(past.occurrence for past in chunk)
    Activity.objects.bulk_create(past.root for past in started)
    Execution.objects.bulk_create(past.execution for past in started if past.execution)
    attempts = [attempt for past in started for attempt in past.attempts]
    for number in sorted({attempt.attempt for attempt in attempts}):
        for some in _batched([each for each in attempts if each.attempt == number]):
            Activity.objects.bulk_create(some)
    OutputLine.objects.bulk_create(line for past in started for line in past.output)
    ActivityItem.objects.bulk_create(item for past in started for item in past.items)


def _batched(rows: Sequence[Activity]) -> Iterator[list[Activity]]:
    left = iter(rows)
    while some := list(islice(left, AT_ONCE)):
        yield some


def _attempt(
    line: Mapping[str, Any],
    schedule: Schedule,
    now: datetime,
    status: str,
    message: str,
    *,
    number: int = 1,
    before: Activity | None = None,
) -> Activity:
    """As its end leaves it; without times of its own, it never ran."""
    by = Initiator.schedule(schedule)
    return Activity(
        status=status,
        target_type=line["step_type"],
        target_id=line["key"],
        target_name=line["name"],
        initiator_type=by.type,
        initiator_id=by.id,
        initiator_name=by.name,
        retry_of=before,
        task_key=UUID(line["key"]),
        attempt=number,
        step_index=line["index"],
        line=line["line"],
        created_at=now,
        finished_at=now,
        message=message,
    )


def _named(start: Start, began: datetime) -> dict[str, Any]:
    fields = dict(zip(Start.EXECUTION, start.execution(began), strict=True))
    fields["schedule_id"] = fields.pop("schedule")
    for name in ("occurrence", "current_index", "retry_of"):
        del fields[name]
    return fields
