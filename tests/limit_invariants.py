"""Proves from the history alone that no limit was ever exceeded."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from activities.models import Activity
from execution.models import Execution, Limit
from execution.queue.concurrency import SEPARATOR

# The clocks of several processes of one machine meet here; steps that matter take longer.
SLACK = timedelta(milliseconds=50)
Interval = tuple[datetime, datetime, str]


def limits_are_kept(job_keys: Mapping[UUID, str], slack: timedelta) -> Iterator[str]:
    """Whenever an attempt began, no more with one of its keys ran than the limit allowed at that moment.

    Those that ran before a limit came, or shrank, may go on: only what begins is judged.
    """
    running = intervals(job_keys)
    for key, sizes in sizes_over_time().items():
        ends: list[datetime] = []
        for begun, ended, name in sorted(running[key]):
            ends = [end for end in ends if end > begun + slack]
            allowed = sizes.around(begun, slack)
            ends.append(ended)
            if len(ends) > allowed:
                yield f"{name} began at {begun} as number {len(ends)} with the key {key}: {allowed:g} may run"


class Sizes:
    """The size of one limit over time; infinite while there is none."""

    def __init__(self) -> None:
        self.times: list[datetime] = []
        self.sizes: list[float] = [math.inf]

    def change(self, at: datetime, size: float) -> None:
        self.times.append(at)
        self.sizes.append(size)

    def around(self, at: datetime, slack: timedelta) -> float:
        """The largest that held at this time, as far as clocks can tell."""
        first, last = bisect_left(self.times, at - slack), bisect_right(self.times, at + slack)
        return max(self.sizes[first : last + 1])


def sizes_over_time() -> dict[str, Sizes]:
    """As they were recorded; a limit that nobody recorded was there all the time."""
    found: dict[str, Sizes] = defaultdict(Sizes)
    changes = Activity.objects.filter(target_type="limit").exclude(operation=Activity.RUN).order_by("pk")
    for change in changes:
        details = change.details or {}
        after = details.get("after", details)
        size = math.inf if change.operation == "delete" else after["size"]
        found[change.target_name].change(change.created_at, size)
    for limit in Limit.objects.exclude(key__in=found):
        found[limit.key].sizes = [limit.size]
    return found


def intervals(job_keys: Mapping[UUID, str]) -> dict[str, list[Interval]]:
    """By key, when each attempt ran. One that waits puts itself off, and counts for nothing meanwhile."""
    found: dict[str, list[Interval]] = defaultdict(list)
    plans = {
        execution.activity_id: {line["line"]: line["limit_keys"] for line in execution.plan["steps"]}
        for execution in Execution.objects.all()
    }
    attempts = Activity.objects.filter(task_key__isnull=False, executed_at__isnull=False)
    for attempt in attempts.exclude(target_type="wait").exclude(finished_at=None):
        assert attempt.executed_at is not None
        assert attempt.finished_at is not None
        assert attempt.task_key is not None
        lines = plans.get(attempt.parent_id or 0, {})
        # Of a single job, the default policy's keys that its record tells.
        told = job_keys.get(attempt.task_key, f"global{SEPARATOR}type:{attempt.target_type}")
        for key in lines.get(attempt.line or 0, told).split(SEPARATOR):
            name = f"attempt {attempt.attempt} of “{attempt.target_name}” ({attempt.pk})"
            found[key].append((attempt.executed_at, attempt.finished_at, name))
    return found
