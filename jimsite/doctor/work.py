"""Whether somebody does the work, and whether any of it got stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
START_SCHEDULER = "Start one: “manage.py runscheduler”, and have it restarted if it ends (docs/operating.md)."
START_WORKER = "Start one: “manage.py runworker”, and have it restarted if it ends (docs/operating.md)."


def scheduler(now: datetime) -> Iterator[Finding]:
    tick = Chore.objects.last_tick()
    if tick is None or tick.last_run_at is None:
        told = "None has ever run: nothing starts by itself."
        yield Finding("error", "scheduler", told, START_SCHEDULER)
        return
    told = f"It ticked {span(now - tick.last_run_at)} ago."
    if is_ticking(tick, now=now):
        yield ok("scheduler", told)
    else:
        yield Finding("error", "scheduler", f"{told} Nothing starts by itself.", START_SCHEDULER)


def workers(now: datetime) -> Iterator[Finding]:
    alive = list(Worker.objects.alive().order_by("started_at"))
    silent = [worker for worker in alive if worker.lease_until < now]
    living = [worker for worker in alive if worker.lease_until >= now]
    if not living:
        yield Finding("error", "workers", "None is alive: nothing that is queued runs.", START_WORKER)
    else:
        seats = sum(worker.seats for worker in living)
        yield ok(
            "workers", f"{counted(len(living), 'worker')} with {counted(seats, 'seat')}: {named(living)}."
        )
    if silent:
        yield Finding(
            "warning",
            "workers",
            f"{named(silent)} did not beat for a lease: crashed, frozen, or cut off from the database.",
            "Look at their logs. A scheduler gives their tasks to others.",
        )
    for worker in living:
        if worker.clock_trouble:
            told = f"The clock of {worker}'s host is {worker.clock_trouble}. Leases go by the database's."
            yield Finding("warning", "clock", told, SET_CLOCKS)
    yield from _unserved([worker.pools for worker in living])


def _unserved(serving: list[list[str]]) -> Iterator[Finding]:
    """Pools with queued tasks that no living worker serves."""
    if any(not pools for pools in serving):
        return
    served = {pool for pools in serving for pool in pools}
    queued = WorkerTask.objects.queued().exclude(pool__in=served).order_by("pool")
    for pool, count in queued.values_list("pool").annotate(Count("pk")):
        yield Finding(
            "error",
            f"pool {pool}",
            f"{counted(count, 'task')} queued, and no living worker serves it.",
            f"Start a worker with --pools {pool}, or one without --pools.",
        )


def queue(now: datetime) -> Iterator[Finding]:
    ready = WorkerTask.objects.queued().filter(is_delayed=False)
    oldest: datetime | None = ready.aggregate(at=Min("available_at"))["at"]
    if oldest is None or now - oldest < LONG_QUEUED:
        yield ok("queue", f"The oldest task waits for {span(now - oldest)}." if oldest else "Nothing waits.")
        return
    remedy = (
        "“manage.py queue” says what each waits for: a limit, a pool, or more seats (--threads, --processes)."
    )
    yield Finding("warning", "queue", f"A task has been ready for {span(now - oldest)}.", remedy)


def orphans(now: datetime) -> Iterator[Finding]:
    count = WorkerTask.objects.orphaned()[:MOST].count()
    text = f"{_about(count, 'task')} of workers that are dead or gone."
    yield _unless(
        count, "warning", "stuck work", text, "A running scheduler gives them to others within seconds."
    )


def stuck(now: datetime) -> Iterator[Finding]:
    rows = Execution.objects.stuck().filter(started_at__lt=now - A_MOMENT).defer("plan")
    found = list(rows[:MOST])
    text = f"{_about(len(found), 'execution')} in progress without a task: {named(found)}."
    remedy = "A running scheduler ends them; if one runs, its log says why it cannot."
    yield _unless(len(found), "warning", "stuck work", text, remedy)


def unaccounted(now: datetime) -> Iterator[Finding]:
    ended = Execution.objects.unaccounted().filter(finished_at__lt=now - SILENT)[:MOST].count()
    due = Occurrence.objects.due(now - SILENT)[:MOST].count()
    text = (
        f"{_about(due, 'occurrence')} due and not settled, "
        f"{_about(ended, 'execution')} ended and not counted."
    )
    yield _unless(
        ended + due, "warning", "scheduler", text, "Is a scheduler running, and what does its log say?"
    )


def overdue(now: datetime) -> Iterator[Finding]:
    found = list(Schedule.objects.open().overdue(now).only("name").order_by("next_run_at")[:MOST])
    text = f"{_about(len(found), 'schedule')} overdue: {named(found)}."
    yield _unless(
        len(found), "warning", "schedules", text, "A scheduler that runs catches up with them by itself."
    )


def broken(now: datetime) -> Iterator[Finding]:
    found = list(Schedule.objects.open().exclude(spec_error="").only("name").order_by("name")[:MOST])
    text = f"The spec cannot be read, so that they stand still: {named(found)}."
    yield _unless(
        len(found), "warning", "schedules", text, "Edit them; “manage.py describe NAME” says what is wrong."
    )


def failing(now: datetime) -> Iterator[Finding]:
    paused = Schedule.objects.filter(
        status=Schedule.Status.PAUSED, pause_note__startswith="Paused by itself."
    )
    found = list(paused.only("name").order_by("name")[:MOST])
    text = f"Paused by their failures: {named(found)}."
    remedy = "Find out why (“describe NAME”), then “resume NAME”."
    yield _unless(len(found), "warning", "schedules", text, remedy)


def late(now: datetime) -> Iterator[Finding]:
    found = list(Execution.objects.late(now).defer("plan").order_by("deadline_at")[:MOST])
    text = f"Running beyond their deadline: {named(found)}."
    yield _unless(
        len(found),
        "warning",
        "executions",
        text,
        "“execution ID” shows where they are; “cancel ID” ends them.",
    )


def definitions(now: datetime) -> Iterator[Finding]:
    """Of workflows, as this host's code has them."""
    problems = discovery.problems()
    remedy = (
        "Mend the module, then run “manage.py syncworkflows”. Until then its workflows stay as they were."
    )
    for problem in problems:
        yield Finding("error", "workflows", f"They cannot be deployed: {problem}", remedy)
    if not problems:
        count = len(discovery.definitions().workflows)
        yield ok("workflows", f"The code has {counted(count, 'workflow')}.")


def stuck_workflows(now: datetime) -> Iterator[Finding]:
    found = list(Workflow.objects.shown_as("needs_attention").only("title").order_by("title")[:MOST])
    text = f"Waiting for somebody to act: {named(found)}."
    remedy = "“manage.py workflows” says what for; resolve it on the page of the workflow."
    yield _unless(len(found), "warning", "workflows", text, remedy)


def limits(now: datetime) -> Iterator[Finding]:
    closed = list(Limit.objects.filter(size=0).order_by("key")[:MOST])
    text = f"Closed, so that nothing with these keys starts: {named(closed)}."
    yield _unless(
        len(closed), "note", "limits", text, "Give them a size above 0 when that is not wanted any more."
    )


def housekeeping(now: datetime) -> Iterator[Finding]:
    done = Chore.objects.filter(name="history").values_list("last_run_at", flat=True).first()
    if done is None or now - done < UNTIDY:
        yield ok(
            "housekeeping",
            f"Old records were last removed {span(now - done)} ago." if done else "Not yet due.",
        )
        return
    remedy = "It is done by workers that have a moment: start more of them, or look at their logs."
    yield Finding("warning", "housekeeping", f"Old records were last removed {span(now - done)} ago.", remedy)


def webhooks(now: datetime) -> Iterator[Finding]:
    disabled = list(
        Endpoint.objects.filter(status=Endpoint.Status.DISABLED, is_disabled_by_itself=True)[:MOST]
    )
    text = f"Disabled after too many failures: {named(disabled)}."
    remedy = "Mend the receiver, then enable them on the page Webhooks, and deliver again what failed."
    yield _unless(len(disabled), "warning", "webhooks", text, remedy)
    unsent = Delivery.objects.pending().filter(next_try_at__lt=now - UNSENT)[:MOST].count()
    text = f"{_about(unsent, 'delivery', 'deliveries')} due for more than {span(UNSENT)}."
    yield _unless(
        unsent, "warning", "webhooks", text, "Workers and schedulers send them: is any of them running?"
    )


def secrets(now: datetime) -> Iterator[Finding]:
    try:
        lost = Secret.objects.survey().lost if Secret.objects.is_anything_encrypted() else ()
    except VaultError as error:
        yield Finding("error", "secrets", str(error), "docs/secrets.md says where the keys are kept.")
        return
    text = f"No key of this host fits: {', '.join(sorted(lost)[:5])}."
    remedy = "Put the key back, from a backup or another host (docs/secrets.md), or give them new values."
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
    return Finding(severity, subject, text, remedy) if count else ok(subject, "Nothing to complain of.")


def _about(count: int, one: str, many: str = "") -> str:
    if count >= MOST:
        return f"{MOST} or more {many or one + 's'}"
    return f"{count} {one if count == 1 else many or one + 's'}"
