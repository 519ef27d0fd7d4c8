"""Plan executions: for an occurrence of a schedule, for a group of jobs, or to repeat an execution."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar

from activities.models import Activity
from execution.failure import NOTHING_FAILED, reusable
from execution.queue.concurrency import limit_keys
from execution.steps.binding import note
from operations.initiator import Initiator
from schedules.models import Schedule, Step
from schedules.models.occurrence import Waiting
from schedules.registry import step_types
from schedules.spec.zones import zone_of

from .brief import brief_plan
from .planned import Planned, new_key, up_to_date

if TYPE_CHECKING:
    from .execution import Execution

# The values of plan lines that are set again for each execution.
TOLD = ("key", "refs", "values", "keys", "unbound", "has_last", "reused")


@dataclass(frozen=True, kw_only=True)
class Start:
    """An execution that is about to start, with its plan. The schedule's steps are not read again."""

    name: str
    lines: list[dict[str, Any]]
    initiator: Initiator
    on_failure: str
    schedule: Schedule | None = None
    occurrence: Waiting | None = None
    timeout_seconds: int | None = None
    retry_of: int | None = None
    # The activities that a retry takes over from the earlier execution, by line.
    reused: Mapping[int, Activity] | None = None
    # The event that started the execution, as it was then.
    event: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        occurrence: Waiting,
        steps: Sequence[Mapping[str, Any]],
        event: Mapping[str, Any] | None = None,
    ) -> Start:
        about = _about(schedule.name, occurrence.nominal_at, schedule.spec.get("time_zone", "UTC"))
        return cls(
            name=schedule.name,
            lines=[_line(step, number, about) for number, step in enumerate(steps)],
            initiator=occurrence.initiator,
            on_failure=schedule.on_failure,
            schedule=schedule,
            occurrence=occurrence,
            timeout_seconds=schedule.timeout_seconds,
            event=event,
        )

    @classmethod
    def group(
        cls,
        name: str,
        steps: Sequence[Step],
        *,
        on_failure: str,
        initiator: Initiator,
        timeout_seconds: int | None,
        now: datetime,
    ) -> Start:
        about = _about(name, now, "UTC")
        ordered = sorted(steps, key=lambda step: step.index)
        lines = [_line(step.as_json(), number, about) for number, step in enumerate(ordered)]
        return cls(
            name=name,
            lines=lines,
            initiator=initiator,
            on_failure=on_failure,
            timeout_seconds=timeout_seconds,
        )

    @classmethod
    def again(cls, before: Execution, *, initiator: Initiator, last: Collection[Activity]) -> Start:
        """Plan the repetition of an execution. Only steps whose activity is in `last` can be reused."""
        kept = {activity.line: activity for activity in last if activity.line is not None}
        lines = [up_to_date(line) for line in before.plan["steps"]]
        known = reusable(lines, kept)
        for line in lines:
            for name in TOLD:
                line.pop(name, None)
            line["key"] = str(new_key())
            if line["line"] in known:
                line["reused"] = kept[line["line"]].pk
        return cls(
            name=before.schedule_name,
            lines=lines,
            initiator=initiator,
            on_failure=before.plan.get("on_failure", before.on_failure),
            timeout_seconds=before.timeout_seconds,
            retry_of=before.pk,
            reused={line: kept[line] for line in known},
            event=before.plan.get("event"),
        )

    def for_occurrence(self, schedule: Schedule, occurrence: Waiting) -> Start:
        return replace(
            self, schedule=schedule, occurrence=occurrence, timeout_seconds=schedule.timeout_seconds
        )

    ROOT: ClassVar = (
        "target_type",
        "target_id",
        "target_name",
        "initiator_type",
        "initiator_id",
        "initiator_name",
    )
    EXECUTION: ClassVar = (
        "schedule",
        "schedule_name",
        "occurrence",
        "source",
        "retry_of",
        "plan",
        "on_failure",
        "current_index",
        "timeout_at",
        "deadline_at",
        "last_result",
    )

    @property
    def root(self) -> tuple[Any, ...]:
        by = self.initiator
        target = ("group", "") if self.schedule is None else ("schedule", str(self.schedule.pk))
        return *target, self.name, by.type, by.id, by.name

    def execution(self, now: datetime) -> tuple[Any, ...]:
        schedule, occurrence = self.schedule, self.occurrence
        return (
            schedule and schedule.pk,
            self.name,
            occurrence and occurrence.id,
            occurrence.source if occurrence else "",
            self.retry_of,
            brief_plan(self._plan),
            self.on_failure,
            self.first,
            _later(now, self.timeout_seconds),
            _later(now, schedule.deadline_seconds if schedule else None),
            schedule and schedule.last_result,
        )

    @property
    def _plan(self) -> dict[str, Any]:
        plan = {"steps": self.lines, "on_failure": self.on_failure}
        return plan if self.event is None else plan | {"event": self.event}

    @property
    def first(self) -> int:
        """Return the index of the first group to run.

        Groups in which all steps are reused or run only after a failure are passed over.
        """
        first: int = min(
            line["index"]
            for line in self.lines
            if "reused" not in line and line.get("run_if", "success") != "failure"
        )
        return first

    def note(self, now: datetime) -> None:
        """Add to each line what is needed to replace the line's placeholders."""
        last_result = self.schedule and self.schedule.last_result
        has_last = last_result is not None
        note(self.lines, zone=self.zone, has_last=has_last, event=self.event, now=now)

    @property
    def zone(self) -> tzinfo:
        return self.schedule.zone if self.schedule else zone_of("UTC")

    def planned(self, execution_id: int, root_id: int) -> Iterator[Planned]:
        """Yield the tasks to run: those of the first group as queued, the others as waiting."""
        for line in self.lines:
            if not self._is_over(line):
                status = "queued" if line["index"] == self.first else "waiting"
                yield Planned(line, self.initiator, status, execution_id, root_id)

    def _is_over(self, line: Mapping[str, Any]) -> bool:
        is_late_alert = line.get("run_if") == "failure" and line["index"] <= self.first
        return "reused" in line or is_late_alert

    def ended(self, root_id: int, now: datetime) -> Iterator[Activity]:
        """Build ended activities for lines that do not have to run, so that each line has an activity."""
        for line in filter(self._is_over, self.lines):
            planned = Planned(line, self.initiator, root_id=root_id)
            before = (self.reused or {}).get(line["line"])
            if before is None:
                yield planned.ended(Activity.Status.SKIPPED, NOTHING_FAILED, now=now)
            else:
                kept = f"Not run again: the outcome of this step in execution {self.retry_of} is reused."
                details = {"reused": before.pk}
                yield planned.ended(before.status, kept, now=now, result=before.result, details=details)


def _about(name: str, nominal_at: datetime, time_zone: str) -> dict[str, Any]:
    return {"schedule": name, "nominal_at": nominal_at.isoformat(), "time_zone": time_zone}


def _line(step: Mapping[str, Any], number: int, about: Mapping[str, Any]) -> dict[str, Any]:
    kind = step_types.get(step["step_type"])
    return {
        **step,
        "line": number,
        "limit_keys": limit_keys(step),
        "key": str(new_key()),
        "isolation": kind.isolation(step["config"]) if kind else "thread",
        **about,
    }


def _later(now: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)
