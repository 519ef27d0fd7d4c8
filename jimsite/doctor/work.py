"""Checks of the scheduler, the workers and the work in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from django.db.models import Count, Min

from execution.models import Chore, Execution, Limit, Worker, WorkerTask
from execution.models.chore import is_ticking
from schedules.models import Occurrence, Schedule, Secret
from schedules.models.refusals import named
from schedules.spec.wording import counted
from schedules.vault import VaultError
from text.words import span
from webhooks.models import Delivery, Endpoint
from workflows import discovery
from workflows.models import Workflow

from .database import SET_CLOCKS
from .finding import Finding, Severity, ok

SILENT = timedelta(minutes=2)
LONG_QUEUED = timedelta(hours=1)
UNSENT = timedelta(minutes=5)
A_MOMENT = timedelta(minutes=1)
UNTIDY = timedelta(days=1)
MOST = 100
START_SCHEDULER = (
    "Start a scheduler with “manage.py runscheduler”, under a process manager (docs/operating.md)."
)
START_WORKER = "Start a worker with “manage.py runworker”, under a process manager (docs/operating.md)."


def scheduler(now: datetime) -> Iterator[Finding]:
    tick = Chore.objects.last_tick()
    if tick is None or tick.last_run_at is None:
        text = "The scheduler has never run, so schedules are not being started."
        yield Finding("error", "scheduler", text, START_SCHEDULER)
        return
    text = f"A scheduler was last active {span(now - tick.last_run_at)} ago."
    if is_ticking(tick, now=now):
        yield ok("scheduler", text)
    else:
        yield Finding("error", "scheduler", f"{text} Schedules are not being started.", START_SCHEDULER)


def workers(now: datetime) -> Iterator[Finding]:
    alive = list(Worker.objects.alive().order_by("started_at"))
    silent = [worker for worker in alive if not worker.holds_lease(now)]
    living = [worker for worker in alive if worker.holds_lease(now)]
    if not living:
        yield Finding("error", "workers", "No worker is running, so queued tasks do not start.", START_WORKER)
    else:
        seats = sum(worker.seats for worker in living)
        yield ok(
            "workers", f"{counted(len(living), 'worker')} with {counted(seats, 'seat')}: {named(living)}."
        )
    if silent:
        yield Finding(
            "warning",
            "workers",
            f"These workers no longer send heartbeats: {named(silent)}. They may have crashed, or they "
            "cannot reach the database.",
            "Check the logs of these workers. A scheduler gives their tasks to other workers.",
        )
    for worker in living:
        if worker.clock_trouble:
            text = (
                f"The host clock of worker {worker} is {worker.clock_trouble}. JIM uses the database's clock."
            )
            yield Finding("warning", "clock", text, SET_CLOCKS)
    yield from _unserved([worker.pools for worker in living])


def _unserved(serving: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Report pools that have queued tasks but that no living worker serves."""
    queued = WorkerTask.objects.queued().unserved(serving).order_by("pool")
    for pool, count in queued.values_list("pool").annotate(Count("pk")):
        yield Finding(
            "error",
            f"pool {pool}",
            f"{counted(count, 'task')} queued, but no running worker serves this pool.",
            f"Start a worker with --pools {pool}, or without --pools, which means all pools.",
        )


def queue(now: datetime) -> Iterator[Finding]:
    ready = WorkerTask.objects.queued().filter(is_delayed=False)
    oldest: datetime | None = ready.aggregate(at=Min("available_at"))["at"]
    if oldest is None or now - oldest < LONG_QUEUED:
        yield ok(
            "queue",
            f"The oldest task has been waiting for {span(now - oldest)}."
            if oldest
            else "No tasks are waiting.",
        )
        return
    text = f"A task that is ready to start has been waiting for {span(now - oldest)}."
    remedy = (
        "Use “manage.py queue” to see what each task waits for. If all workers are busy, start more workers."
    )
    yield Finding("warning", "queue", text, remedy)


def orphans(now: datetime) -> Iterator[Finding]:
    count = WorkerTask.objects.orphaned()[:MOST].count()
    text = f"Found {_about(count, 'task')} assigned to workers that are no longer running."
    yield _unless(
        count,
        "warning",
        "stuck work",
        text,
        "Check that a scheduler is running: it gives these tasks to other workers within seconds.",
    )


def stuck(now: datetime) -> Iterator[Finding]:
    rows = Execution.objects.stuck().filter(started_at__lt=now - A_MOMENT).defer("plan")
    found = list(rows[:MOST])
    count = _about(len(found), "execution")
    text = f"Found {count} in progress without a queued or running task: {named(found)}."
    remedy = (
        "Check that a scheduler is running: it continues or ends these executions. If one is running, check "
        "its log for errors."
    )
    yield _unless(len(found), "warning", "stuck work", text, remedy)


def unaccounted(now: datetime) -> Iterator[Finding]:
    ended = Execution.objects.unaccounted().filter(finished_at__lt=now - SILENT)[:MOST].count()
    due = Occurrence.objects.due(now - SILENT)[:MOST].count()
    text = (
        f"Found {_about(due, 'due run')} not yet started or skipped, and {_about(ended, 'ended execution')} "
        "not yet added to the counters of schedules."
    )
    yield _unless(
        ended + due,
        "warning",
        "scheduler",
        text,
        "Check that a scheduler is running, and check its log for errors.",
    )


def overdue(now: datetime) -> Iterator[Finding]:
    found = list(Schedule.objects.open().overdue(now).only("name").order_by("next_run_at")[:MOST])
    text = f"Found {_about(len(found), 'overdue schedule')}: {named(found)}."
    yield _unless(
        len(found),
        "warning",
        "schedules",
        text,
        "Check that a scheduler is running: it catches up on overdue schedules automatically.",
    )


def broken(now: datetime) -> Iterator[Finding]:
    found = list(Schedule.objects.open().exclude(spec_error="").only("name").order_by("name")[:MOST])
    text = f"These schedules do not run, because their specs cannot be read: {named(found)}."
    yield _unless(
        len(found),
        "warning",
        "schedules",
        text,
        "Use “manage.py describe NAME” to see the error, then edit the schedule.",
    )


def failing(now: datetime) -> Iterator[Finding]:
    paused = Schedule.objects.paused_by_failures()
    found = list(paused.only("name").order_by("name")[:MOST])
    text = f"These schedules were paused after repeated failures: {named(found)}."
    remedy = "Find the cause with “manage.py describe NAME”, then run “manage.py resume NAME”."
    yield _unless(len(found), "warning", "schedules", text, remedy)


def late(now: datetime) -> Iterator[Finding]:
    found = list(Execution.objects.late(now).defer("plan").order_by("deadline_at")[:MOST])
    text = f"These executions are still running after their deadline: {named(found)}."
    yield _unless(
        len(found),
        "warning",
        "executions",
        text,
        "Use “manage.py execution ID” to see the progress, or “manage.py cancel ID” to cancel an execution.",
    )


def definitions(now: datetime) -> Iterator[Finding]:
    """Check the workflows that the code on this machine defines."""
    problems = discovery.problems()
    remedy = "Fix the module, then run “manage.py syncworkflows”. Until then, its workflows are not updated."
    for problem in problems:
        yield Finding("error", "workflows", f"Workflows cannot be deployed: {problem}", remedy)
    if not problems:
        count = len(discovery.definitions().workflows)
        yield ok("workflows", f"Found {counted(count, 'workflow')} in the code.")


def stuck_workflows(now: datetime) -> Iterator[Finding]:
    found = list(Workflow.objects.shown_as("needs_attention").only("title").order_by("title")[:MOST])
    text = f"These workflows need an operator: {named(found)}."
    remedy = "Use “manage.py workflows” to see each issue, and resolve it on the page of the workflow."
    yield _unless(len(found), "warning", "workflows", text, remedy)


def limits(now: datetime) -> Iterator[Finding]:
    closed = list(Limit.objects.filter(size=0).order_by("key")[:MOST])
    text = f"The size of these limits is 0, so their tasks do not start: {named(closed)}."
    yield _unless(
        len(closed),
        "note",
        "limits",
        text,
        "To let these tasks start, use “manage.py limit set KEY SIZE” with a size above 0.",
    )


def housekeeping(now: datetime) -> Iterator[Finding]:
    done = Chore.objects.filter(name="history").values_list("last_run_at", flat=True).first()
    if done is None or now - done < UNTIDY:
        yield ok(
            "housekeeping",
            f"Old records were last deleted {span(now - done)} ago."
            if done
            else "Old records have not been deleted yet.",
        )
        return
    remedy = (
        "Workers delete old records, mostly while they are idle. Start more workers, or check the worker "
        "logs for errors."
    )
    yield Finding("warning", "housekeeping", f"Old records were last deleted {span(now - done)} ago.", remedy)


def webhooks(now: datetime) -> Iterator[Finding]:
    disabled = list(
        Endpoint.objects.filter(status=Endpoint.Status.DISABLED, is_disabled_by_itself=True)[:MOST]
    )
    text = f"JIM disabled these webhooks, because their deliveries failed: {named(disabled)}."
    remedy = "Fix the receivers, then enable the webhooks and redeliver failed events on the Webhooks page."
    yield _unless(len(disabled), "warning", "webhooks", text, remedy)
    unsent = Delivery.objects.pending().filter(next_try_at__lt=now - UNSENT)[:MOST].count()
    text = f"Found {_about(unsent, 'delivery', 'deliveries')} overdue by more than {span(UNSENT)}."
    yield _unless(
        unsent,
        "warning",
        "webhooks",
        text,
        "Check that a worker or a scheduler is running; either one can send deliveries.",
    )


def secrets(now: datetime) -> Iterator[Finding]:
    try:
        lost = Secret.objects.survey().lost if Secret.objects.is_anything_encrypted() else ()
    except VaultError as error:
        yield Finding("error", "secrets", str(error), "See docs/secrets.md for where the keys are stored.")
        return
    text = f"This host has no key to decrypt these secrets: {', '.join(sorted(lost)[:5])}."
    remedy = (
        "Restore the key from a backup or another host (docs/secrets.md), or give these secrets new values."
    )
    yield _unless(len(lost), "error", "secrets", text, remedy)


CHECKS: tuple[Callable[[datetime], Iterable[Finding]], ...] = (
    scheduler,
    workers,
    queue,
    orphans,
    stuck,
    unaccounted,
    overdue,
    broken,
    failing,
    late,
    definitions,
    stuck_workflows,
    limits,
    housekeeping,
    webhooks,
    secrets,
)


def _unless(count: int, severity: Severity, subject: str, text: str, remedy: str) -> Finding:
    return Finding(severity, subject, text, remedy) if count else ok(subject, "No problems found.")


def _about(count: int, one: str, many: str = "") -> str:
    if count >= MOST:
        return f"{MOST} or more {many or one + 's'}"
    return f"{count} {one if count == 1 else many or one + 's'}"
