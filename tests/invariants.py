"""Decides from the tables, and from the ledger that the steps kept, whether JIM held its promises.

To be asked when everything has come to rest: nothing is due, nothing runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q, Sum

from activities.models import Activity
from execution.models import Execution, Worker, WorkerTask
from execution.models.job import MAY_BE_RETRIED
from schedules.models import Backfill, Occurrence, Schedule
from tests.limit_invariants import SLACK, limits_are_kept
from tests.schedule_invariants import RULES as SCHEDULE_RULES
from tests.schedule_invariants import Life

# Clocks of several processes meet in one record, so this much difference is no contradiction.
MOMENT = timedelta(seconds=1)
# The ledger's clock and the database's, read by two processes of one machine.
LATE = 0.05
LOST = "worker lost"
SUCCESSES = ("complete", "complete_with_warning", "skipped")
BY_ITSELF = (Activity.Status.FAILED_WITH_ERROR, Activity.Status.COMPLETE_WITH_ERROR)


class Freeze(NamedTuple):
    """A time in which a signal kept a process from doing anything."""

    pid: int
    since: float
    until: float


def violations(
    ledger: Path | None = None,
    *,
    now: datetime | None = None,
    moment: timedelta = MOMENT,
    job_keys: Mapping[UUID, str] | None = None,
    freezes: Sequence[Freeze] = (),
) -> list[str]:
    """What is wrong, in words; empty if every invariant holds.

    `now`: up to when nothing may be due any more, if that is known. `moment`: see MOMENT; none if all that
    happened was told the time. `job_keys`: the limit keys of single jobs, which leave no plan behind.
    `freezes`: of processes that were frozen wherever they happened to be.
    """
    history = History.load(ledger, freezes)
    found = [f"{rule.__name__}: {text}" for rule in RULES for text in rule(history)]
    found += [f"nothing_is_overdue: {text}" for text in (nothing_is_overdue(now) if now else ())]
    exceeded = limits_are_kept(job_keys or {}, min(SLACK, moment))
    found += [f"limits_are_kept: {text}" for text in exceeded]
    for life in Life.load_all(moment=moment):
        found += [
            f"{rule.__name__}: {life.schedule}: {text}" for rule in SCHEDULE_RULES for text in rule(life)
        ]
    return found


class Numbers(NamedTuple):
    """What happened, for people to read beside the verdict."""

    executions: dict[str, int]
    occurrences: dict[str, int]
    attempts: int
    reruns: dict[str, int]
    stale_refused: int

    @classmethod
    def load(cls) -> Numbers:
        attempts = Activity.objects.filter(task_key__isnull=False)
        causes = attempts.filter(retry_of__isnull=False).values_list("retry_of__error", flat=True)
        return cls(
            dict(Counter(Execution.objects.values_list("status", flat=True))),
            dict(Counter(Occurrence.objects.values_list("status", flat=True))),
            attempts.exclude(executed_at=None).count(),
            dict(Counter(causes)),
            Worker.objects.aggregate(total=Sum("stale_refused"))["total"] or 0,
        )

    def __str__(self) -> str:
        shown = (f"{name.replace('_', ' ')} {value}" for name, value in self._asdict().items())
        return "; ".join(shown)


class Mark(NamedTuple):
    event: str
    key: UUID
    attempt: int
    pid: int
    at: float

    @classmethod
    def read(cls, line: str) -> Mark:
        event, key, attempt, pid, at = line.split()
        return cls(event, UUID(key), int(attempt), int(pid), float(at))


def read_ledger(path: Path) -> list[Mark]:
    return [Mark.read(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass
class History:
    executions: list[Execution]
    chains: dict[UUID, list[Activity]]
    marks: list[Mark]
    freezes: Sequence[Freeze] = ()
    by_root: dict[int, list[list[Activity]]] = field(init=False)
    marked: dict[tuple[UUID, int], list[Mark]] = field(init=False)

    @classmethod
    def load(cls, ledger: Path | None, freezes: Sequence[Freeze] = ()) -> History:
        chains: dict[UUID, list[Activity]] = defaultdict(list)
        for activity in Activity.objects.filter(task_key__isnull=False).order_by("attempt", "pk"):
            assert activity.task_key is not None
            chains[activity.task_key].append(activity)
        executions = Execution.objects.select_related("occurrence", "activity").order_by("pk")
        return cls(list(executions), dict(chains), read_ledger(ledger) if ledger else [], freezes)

    def __post_init__(self) -> None:
        self.by_root, self.marked = defaultdict(list), defaultdict(list)
        for chain in self.chains.values():
            if chain[0].parent_id is not None:
                self.by_root[chain[0].parent_id].append(chain)
        for mark in self.marks:
            self.marked[mark.key, mark.attempt].append(mark)

    def steps(self, execution: Execution) -> list[list[Activity]]:
        """The attempts of each of its steps."""
        return self.by_root[execution.activity_id]

    def starts(self, chain: list[Activity]) -> list[float]:
        return self._times(chain, "start")

    def starts_after(self, end: float, activity: Activity) -> list[float]:
        """Those of processes that could look all the time whether the attempt had ended."""
        starts = [mark for mark in self._of(activity) if mark.event == "start" and mark.at > end + LATE]
        begun = activity.created_at.timestamp()
        return [mark.at for mark in starts if not self._was_frozen(mark.pid, begun, end)]

    def _was_frozen(self, pid: int, begun: float, end: float) -> bool:
        return any(each.pid == pid and each.since <= end and each.until >= begun for each in self.freezes)

    def ends(self, chain: list[Activity]) -> list[float]:
        """When the attempt ended whose outcome stands; nobody waited for one that was lost or terminated."""
        last = chain[-1]
        was_abandoned = last.error.startswith(LOST) or last.message == "Terminated."
        return [] if was_abandoned else self._times([last], "end", "stopped")

    def _times(self, chain: list[Activity], *events: str) -> list[float]:
        return [mark.at for activity in chain for mark in self._of(activity) if mark.event in events]

    def _of(self, activity: Activity) -> list[Mark]:
        assert activity.task_key is not None
        return self.marked.get((activity.task_key, activity.attempt), [])

    def count(self, activity: Activity, event: str) -> int:
        return sum(mark.event == event for mark in self._of(activity))


def nothing_is_left_open(history: History) -> Iterator[str]:
    for task in WorkerTask.objects.all():
        yield f"task {task.pk} of execution {task.execution_id} is still {task.status}"
    for activity in Activity.objects.open():
        yield f"activity {activity.pk} ({activity}) is still open"
    for execution in history.executions:
        if execution.status == Execution.Status.IN_PROGRESS:
            yield f"execution {execution.pk} is still in progress at index {execution.current_index}"
        elif execution.finished_at is None or (execution.schedule_id and execution.accounted_at is None):
            yield f"execution {execution.pk} ended but was not finished and accounted"
    paused = Q(source="auto", schedule__status=Schedule.Status.PAUSED)
    for occurrence in Occurrence.objects.pending().exclude(paused):
        yield f"occurrence {occurrence} is still pending"
    for backfill in Backfill.objects.open():
        yield f"backfill {backfill.pk} is still open"


def nothing_is_overdue(now: datetime) -> Iterator[str]:
    yield from (f"{schedule} is due since {schedule.next_run_at}" for schedule in Schedule.objects.due(now))
    yield from (f"{schedule} sleeps too long" for schedule in Schedule.objects.snoozed_until(now))
    yield from (f"occurrence {o} is due since {o.due_at}" for o in Occurrence.objects.due(now))
    yield from (f"backfill {backfill.pk} could go on" for backfill in Backfill.objects.due(now))
    yield from (f"execution {e.pk} takes too long" for e in Execution.objects.overtime(now))


def every_occurrence_has_one_fate(history: History) -> Iterator[str]:
    started = Counter(execution.occurrence_id for execution in history.executions)
    keys = Counter(Occurrence.objects.values_list("schedule", "key"))
    yield from (f"key {key} occurs {count} times" for key, count in keys.items() if count > 1)
    for pk, status in Occurrence.objects.values_list("pk", "status"):
        if started[pk] != (status == Occurrence.Status.STARTED):
            yield f"occurrence {pk} is {status} and has {started[pk]} executions"


def attempts_follow_each_other(history: History) -> Iterator[str]:
    """Numbered without a gap, each linked to the one before, and only a failure is followed by another.

    Or, in a single job, an end that somebody may have asked to repeat.
    """
    for key, chain in history.chains.items():
        if [activity.attempt for activity in chain] != list(range(1, len(chain) + 1)):
            yield f"task {key} has the attempts {[activity.attempt for activity in chain]}"
        if chain[0].retry_of_id is not None:
            yield f"the first attempt of task {key} is a retry"
        for before, after in pairwise(chain):
            if after.retry_of_id != before.pk:
                yield f"attempt {after.attempt} of task {key} does not follow the one before"
            if before.status not in (MAY_BE_RETRIED if before.parent_id is None else BY_ITSELF):
                yield f"attempt {before.attempt} of task {key} is {before.status} and was repeated"
    retried = Counter(a.retry_of_id for chain in history.chains.values() for a in chain if a.retry_of_id)
    yield from (f"activity {pk} was retried {count} times" for pk, count in retried.items() if count > 1)


def only_the_dead_lose_their_tasks(history: History) -> Iterator[str]:
    ended = dict(Worker.objects.values_list("pk", "ended_at"))
    for chain in history.chains.values():
        for activity in chain:
            if activity.error.startswith(LOST) and activity.finished_at is not None:
                ended_at = ended.get(activity.worker_id) if activity.worker_id else None
                if ended_at is None or ended_at > activity.finished_at + MOMENT:
                    yield f"activity {activity.pk} was taken from a worker that lived"


def executions_tell_the_truth(history: History) -> Iterator[str]:
    for execution in history.executions:
        lines = {chain[0].line: chain for chain in history.steps(execution)}
        if set(lines) != {step["line"] for step in execution.plan["steps"]}:
            yield f"execution {execution.pk} has the lines {sorted(map(str, lines))}"
        yield from _root_differs(execution)
        trouble = [
            step["name"]
            for step in execution.plan["steps"]
            if lines[step["line"]][-1].status not in SUCCESSES and not step["continue_on_failure"]
        ]
        if execution.cancel_requested_at is not None:
            expected = "failed" if execution.is_timed_out else "cancelled"
        else:
            expected = "failed" if trouble else "completed"
        if execution.status not in (expected, "in_progress"):
            yield f"execution {execution.pk} is {execution.status}, these steps did not succeed: {trouble}"


def _root_differs(execution: Execution) -> Iterator[str]:
    root = execution.activity
    expected = {
        "completed": ("complete", "complete_with_warning"),
        "failed": ("failed_with_error",),
        "cancelled": ("cancelled",),
    }
    if root.status not in expected.get(execution.status, ()) or root.finished_at is None:
        yield f"execution {execution.pk} is {execution.status}, its activity {root.status}"


def groups_run_one_after_the_other(history: History) -> Iterator[str]:
    for execution in history.executions:
        groups: dict[int, list[list[Activity]]] = defaultdict(list)
        for chain in history.steps(execution):
            groups[chain[0].step_index or 0].append(chain)
        done_at = 0.0
        for index, chains in sorted(groups.items()):
            starts = [at for chain in chains for at in history.starts(chain)]
            if starts and min(starts) < done_at:
                yield f"execution {execution.pk}: group {index} started before the one before it was done"
            if starts and index > execution.current_index:
                yield f"execution {execution.pk} ran group {index} and got to {execution.current_index} only"
            done_at = max([done_at, *(at for chain in chains for at in history.ends(chain))])


def every_start_is_explained(history: History) -> Iterator[str]:
    """An attempt starts at most once, one that succeeded ran to its end, and only what was claimed ran."""
    known = {(key, activity.attempt) for key, chain in history.chains.items() for activity in chain}
    yield from (f"nobody knows of {mark}" for mark in history.marks if (mark.key, mark.attempt) not in known)
    for chain in history.chains.values():
        for activity in chain:
            starts, ends = history.count(activity, "start"), history.count(activity, "end")
            name = f"attempt {activity.attempt} of task {activity.task_key} ({activity.status})"
            if starts > 1 or ends > starts:
                yield f"{name} started {starts} times and ended {ends} times"
            if starts and activity.executed_at is None:
                yield f"{name} ran though nobody claimed it"
            has_run = activity.status == Activity.Status.COMPLETE and "reused" not in (activity.details or {})
            if history.marks and has_run and (starts, ends) != (1, 1):
                yield f"{name} started {starts} times and ended {ends} times"


def nothing_starts_after_its_end(history: History) -> Iterator[str]:
    """By the ledger: an attempt that was recorded as ended, as one of a lost worker is, does not begin.

    Terminating waits for nobody: its worker ends what it was about to start as soon as it finds its row gone.
    A process that freezes between its last look at the lease and the call makes the call when it is thawed;
    that nothing else is started then is shown in `chaos/test_frozen_worker.py`, which freezes elsewhere.
    """
    attempts = [activity for chain in history.chains.values() for activity in chain]
    for activity in attempts:
        if activity.finished_at is not None and activity.message != "Terminated.":
            end = activity.finished_at.timestamp()
            told = activity.error or activity.message
            name = f"attempt {activity.attempt} of task {activity.task_key} ({told})"
            late = [at - end for at in history.starts_after(end, activity)]
            yield from (f"{name} started {seconds:.3f} s after its end" for seconds in late)


def skipping_schedules_never_overlap(history: History) -> Iterator[str]:
    """By the ledger: not only the rows, the work itself."""
    by_schedule: dict[int, list[Execution]] = defaultdict(list)
    for execution in history.executions:
        by_schedule[execution.schedule_id or 0].append(execution)
    for schedule in Schedule.objects.filter(overlap=Schedule.Overlap.SKIP):
        for before, after in pairwise(by_schedule[schedule.pk]):
            ends = [at for chain in history.steps(before) for at in history.ends(chain)]
            starts = [at for chain in history.steps(after) for at in history.starts(chain)]
            if ends and starts and min(starts) < max(ends):
                yield f"executions {before.pk} and {after.pk} of {schedule} ran side by side"


def times_are_in_order(history: History) -> Iterator[str]:
    for chain in history.chains.values():
        for activity in chain:
            # A wait goes on where a lost worker left it, so it began before this attempt of it was made.
            goes_on = activity.target_type == "wait" and activity.attempt > 1
            times = [None if goes_on else activity.created_at, activity.executed_at, activity.finished_at]
            known = [at for at in times if at is not None]
            if any(later < earlier - MOMENT for earlier, later in pairwise(known)):
                yield f"activity {activity.pk} has the times {known}"


RULES: tuple[Callable[[History], Iterator[str]], ...] = (
    nothing_is_left_open,
    every_occurrence_has_one_fate,
    attempts_follow_each_other,
    only_the_dead_lose_their_tasks,
    executions_tell_the_truth,
    groups_run_one_after_the_other,
    every_start_is_explained,
    nothing_starts_after_its_end,
    skipping_schedules_never_overlap,
    times_are_in_order,
)
