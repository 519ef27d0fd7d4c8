"""The measurements. README.md defines them, in the same way for JIM and its peers.

Each function starts with an installation of its own, with an empty database that no other process uses.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection

from activities.models import Activity
from database import clock
from database.statements import write
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.models import Execution, Limit, Worker, WorkerTask
from execution.queue import claim as queue_claim
from execution.queue.request import ClaimRequest
from schedules.models import Occurrence, Schedule

from .catalogue import Sizes, size_name
from .crew import Crew
from .jobs import marks
from .load import (
    BULK,
    BY,
    CHAIN,
    LAST,
    chain_steps,
    create_schedules,
    enqueue,
    enqueue_many,
    execute,
    expect,
    expect_complete,
    expect_completed,
    expect_failed,
    expect_never_analysed,
    expect_started,
    make_due,
    settle,
    step,
)
from .processes import cpu_seconds, pss_megabytes
from .results import Reading
from .schedule_measures import backfill_live as backfill_live
from .schedule_measures import next_time as next_time
from .schedule_measures import settle_missed as settle_missed
from .workflow_measures import publish_bulk as publish_bulk
from .workflow_measures import publish_wakes as publish_wakes
from .workflow_measures import workflow_start as workflow_start

WARM_UPS = 50
GAP_SECONDS = 0.02
DUE_IN = timedelta(seconds=4)
TICKS = 20
CLAIM = 100
LIMIT = 4
RETRIES = 3
# The number of worker processes, which is the same for the peers.
WORKERS = 2
# The number of threads of each worker: in total three times the limit, or exactly the limit.
LIMITED_CREW, FOUR_SEATS = (4, 4, 4), (2, 1, 1)


def enqueue_single(sizes: Sizes) -> list[Reading]:
    return [Reading("enqueue_single", _enqueue_single(sizes), "tasks/s")]


def enqueue_single_unsynced(sizes: Sizes) -> list[Reading]:
    """Measure queueing without waiting for the disk, as the peers do on SQLite and JIM never does."""
    write("PRAGMA synchronous=NORMAL", [])
    return [Reading("enqueue_single_unsynced", _enqueue_single(sizes), "tasks/s")]


def _enqueue_single(sizes: Sizes) -> float:
    for _ in range(WARM_UPS):
        enqueue([step()])
    began = time.perf_counter()
    for _ in range(sizes.single):
        enqueue([step()])
    seconds = time.perf_counter() - began
    expect(WorkerTask.objects.queued().count(), WARM_UPS + sizes.single, "tasks queued")
    return sizes.single / seconds


def enqueue_bulk(sizes: Sizes) -> list[Reading]:
    began = time.perf_counter()
    enqueue_many(sizes.drain)
    seconds = time.perf_counter() - began
    expect(WorkerTask.objects.queued().count(), sizes.drain, "tasks queued")
    return [Reading("enqueue_bulk", sizes.drain / seconds, "tasks/s")]


def drain(sizes: Sizes) -> list[Reading]:
    enqueue_many(sizes.drain)
    return [Reading("drain", _drain(sizes.drain, workers=WORKERS), "tasks/s")]


def drain_one_worker(sizes: Sizes) -> list[Reading]:
    enqueue_many(sizes.drain)
    return [Reading("drain_one_worker", _drain(sizes.drain, workers=1), "tasks/s")]


def drain_limited(sizes: Sizes) -> list[Reading]:
    return [Reading("drain_limited", _drain_limited(sizes.napping, "nap"), "tasks/s")]


def drain_seats(sizes: Sizes) -> list[Reading]:
    """Measure without the limit, with as many seats as the limit would allow tasks."""
    return [Reading("drain_seats", _drain_seats(sizes.napping, "nap"), "tasks/s")]


def drain_limited_noop(sizes: Sizes) -> list[Reading]:
    return [Reading("drain_limited_noop", _drain_limited(sizes.limited, "noop"), "tasks/s")]


def drain_seats_noop(sizes: Sizes) -> list[Reading]:
    return [Reading("drain_seats_noop", _drain_seats(sizes.limited, "noop"), "tasks/s")]


def drain_failing(sizes: Sizes) -> list[Reading]:
    """Measure attempts per second of tasks that fail four times without a delay."""
    failing = step("fail") | {"max_retries": RETRIES, "retry_seconds": 0}
    for start in range(0, sizes.failing, BULK):
        enqueue([failing] * min(BULK, sizes.failing - start))
    attempts = sizes.failing * (1 + RETRIES)
    seconds = _drain_seconds(attempts, workers=WORKERS)
    expect_failed(sizes.failing, retries=RETRIES)
    return [Reading("drain_failing", attempts / seconds, "attempts/s")]


def drain_children(sizes: Sizes) -> list[Reading]:
    enqueue_many(sizes.children, isolation="process")
    return [Reading("drain_children", _drain(sizes.children, workers=1), "tasks/s")]


def chains_together(sizes: Sizes) -> list[Reading]:
    """Measure the tasks per second of many executions that were all started before the workers."""
    for schedule in create_schedules(sizes.together, steps=chain_steps()):
        trigger(schedule, initiator=BY, now=clock.now())
    workers = WORKERS if connection.vendor == "postgresql" else 1
    rate = _drain(sizes.together * len(CHAIN), workers=workers)
    expect_completed(sizes.together)
    return [Reading("chains_together", rate, "tasks/s")]


def latency(sizes: Sizes) -> list[Reading]:
    with Crew() as crew:
        crew.scheduler()
        crew.worker()
        _pick_up(crew)
        time.sleep(sizes.rest_seconds)
        times = []
        for seconds in _gaps(sizes.latency):
            time.sleep(seconds)
            times.append(_pick_up(crew))
        crew.wait(lambda: not WorkerTask.objects.exists())
    expect_complete(sizes.latency + 1, counted=0)
    return _percentiles("latency", times)


def chain(sizes: Sizes) -> list[Reading]:
    steps = chain_steps(marking=True)
    with Crew() as crew:
        crew.scheduler()
        crew.worker()
        schedule = Schedule.objects.define(name="chain", spec={}, steps=steps, initiator=BY, now=clock.now())
        _run_chain(crew, schedule)
        time.sleep(sizes.rest_seconds)
        times = []
        for _ in range(sizes.chain):
            time.sleep(GAP_SECONDS)
            times.append(_run_chain(crew, schedule))
    runs = sizes.chain + 1
    expect_complete(runs * len(CHAIN), counted=runs * (len(CHAIN) - len(LAST)))
    expect_completed(runs)
    return _percentiles("chain", times)


def due_one_step(sizes: Sizes) -> list[Reading]:
    return [Reading("due_one_step", _due(sizes.due, [step()]), "ms")]


def due_six_steps(sizes: Sizes) -> list[Reading]:
    return [Reading("due_six_steps", _due(sizes.due, chain_steps()), "ms")]


def due_one_step_tick(sizes: Sizes) -> list[Reading]:
    return [Reading("due_one_step_tick", _due_tick(sizes.due, [step()]), "ms")]


def due_six_steps_tick(sizes: Sizes) -> list[Reading]:
    return [Reading("due_six_steps_tick", _due_tick(sizes.due, chain_steps()), "ms")]


def ticks(sizes: Sizes) -> list[Reading]:
    """Measure ticks in this process while nothing is due, then the processor time of a real scheduler."""
    readings = []
    count = 0
    for size in sizes.ticks:
        create_schedules(size - count, steps=[step()], first=count)
        count = size
        settle()
        milliseconds = _median_ms(lambda: tick(clock.now(), recovering=False))
        readings.append(Reading(f"tick_{size_name(size)}", milliseconds, "ms"))
    recovering = _median_ms(lambda: tick(clock.now()))
    readings.append(Reading(f"tick_recovering_{size_name(count)}", recovering, "ms"))
    with Crew() as crew:
        scheduler = crew.scheduler()
        time.sleep(sizes.rest_seconds)
        (percent,) = _cpu_percent([scheduler.pid], seconds=sizes.idle_seconds / 2)
    readings.append(Reading(f"scheduler_cpu_{size_name(count)}", percent, "% of a core"))
    expect(Occurrence.objects.count(), 0, "occurrences")
    return readings


def idle(sizes: Sizes) -> list[Reading]:
    """Measure an idle scheduler and worker, after their start and again after two tasks.

    The code that tasks need stays loaded, so memory use is higher after the tasks.
    """
    with Crew() as crew:
        scheduler, worker = crew.scheduler(), crew.worker()
        pids = [worker.pid, scheduler.pid]
        time.sleep(sizes.rest_seconds)
        fresh = sum(pss_megabytes(pid) for pid in pids)
        enqueue([step(), step(isolation="process")])
        crew.wait(lambda: not WorkerTask.objects.exists())
        time.sleep(sizes.rest_seconds)
        busy = _cpu_percent(pids, seconds=sizes.idle_seconds)
        memory = [pss_megabytes(pid) for pid in pids]
    expect_complete(2, counted=2)
    return [
        Reading("idle_memory", fresh, "MB PSS"),
        Reading("idle_memory_used", sum(memory), "MB PSS"),
        Reading("idle_memory_used_worker", memory[0], "MB PSS"),
        Reading("idle_memory_used_scheduler", memory[1], "MB PSS"),
        Reading("idle_cpu_worker", busy[0], "% of a core"),
        Reading("idle_cpu_scheduler", busy[1], "% of a core"),
    ]


def claim(sizes: Sizes) -> list[Reading]:
    """Measure claims from full tables, before the database has statistics about them and after.

    Statistics are missing after a sudden burst of tasks.
    """
    tables = [model._meta.db_table for model in (WorkerTask, Activity)]
    if connection.vendor == "postgresql":
        for table in tables:
            execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    enqueue_many(sizes.waiting)
    worker = Worker.objects.register(id=uuid.uuid4(), pools=[], seats=CLAIM, now=clock.now())
    before = [_claim(worker) for _ in range(sizes.claims)]
    for table in tables:
        expect_never_analysed(table)
    execute("ANALYZE")
    after = [_claim(worker) for _ in range(sizes.claims)]
    expect(WorkerTask.objects.processing().count(), 2 * sizes.claims * CLAIM, "tasks claimed")
    return [*_percentiles("claim_unanalysed", before), _percentiles("claim_analysed", after)[0]]


def _drain_limited(tasks: int, function: str) -> float:
    Limit.objects.define("global", LIMIT, initiator=BY, now=clock.now())
    enqueue_many(tasks, function=function)
    return _drain(tasks, workers=LIMITED_CREW)


def _drain_seats(tasks: int, function: str) -> float:
    enqueue_many(tasks, function=function)
    return _drain(tasks, workers=FOUR_SEATS)


def _drain(tasks: int, *, workers: int | Sequence[int]) -> float:
    """Return the tasks per second, from the start of the first task to the recorded end of the last."""
    seconds = _drain_seconds(tasks, workers=workers)
    expect_complete(tasks, counted=tasks)
    return tasks / seconds


def _drain_seconds(tasks: int, *, workers: int | Sequence[int]) -> float:
    settle()
    with Crew() as crew:
        crew.scheduler()
        for threads in [8] * workers if isinstance(workers, int) else workers:
            crew.start_worker("--threads", str(threads))
        crew.wait(lambda: marks.total().calls >= tasks, every=0.01)
        crew.wait(lambda: not WorkerTask.objects.exists(), every=0.002)
        ended = time.monotonic_ns()
    return (ended - marks.total().first) / 1e9


def _pick_up(crew: Crew) -> float:
    """Queue a task, and return the milliseconds from then until the function of the task starts."""
    marks.clear(0)
    enqueue([step("mark", [0])])
    queued = time.monotonic_ns()
    crew.wait(lambda: marks.at(0), every=0.0005)
    return max(0, marks.at(0) - queued) / 1e6


def _gaps(count: int) -> Iterator[float]:
    """Return pauses between 30 and 80 ms, in seconds, spread so that they meet every phase of a poll."""
    golden = 0.618034
    return (0.03 + 0.05 * (number * golden % 1) for number in range(count))


def _run_chain(crew: Crew, schedule: Schedule) -> float:
    """Start an execution, and return the milliseconds from this call to the mark of the last step."""
    places = range(len(LAST))
    for place in places:
        marks.clear(place)
    began = time.monotonic_ns()
    trigger(schedule, initiator=BY, now=clock.now())
    crew.wait(lambda: all(marks.at(place) for place in places), every=0.0005)
    crew.wait(lambda: not Execution.objects.in_progress().exists())
    return (max(marks.at(place) for place in places) - began) / 1e6


def _due(count: int, steps: Sequence[dict[str, Any]]) -> float:
    """Return the milliseconds from the due time until a real scheduler has started all executions."""
    create_schedules(count, steps=steps)
    with Crew() as crew:
        crew.scheduler()
        due_at = clock.now().replace(microsecond=0) + DUE_IN
        make_due(due_at)
        settle()
        if clock.now() >= due_at:
            raise RuntimeError("the machine is too busy: the schedules were due before all was ready")
        crew.wait(lambda: Execution.objects.count() >= count)
        seen_at = clock.now()
    expect_started(count, steps=len(steps))
    return 1000 * (seen_at - due_at).total_seconds()


def _due_tick(count: int, steps: Sequence[dict[str, Any]]) -> float:
    """Return the milliseconds of one tick that starts all executions, in this process.

    The schedulers of the peers are measured in the same way.
    """
    create_schedules(count, steps=steps)
    tick(clock.now())
    make_due(clock.now().replace(microsecond=0))
    settle()
    began = time.perf_counter()
    tick(clock.now())
    milliseconds = 1000 * (time.perf_counter() - began)
    expect_started(count, steps=len(steps))
    return milliseconds


def _claim(worker: Worker) -> float:
    began = time.perf_counter()
    tasks = queue_claim.claim(ClaimRequest(worker.pk, (), clock.now(), {"thread": CLAIM}))
    milliseconds = 1000 * (time.perf_counter() - began)
    expect(len(tasks), CLAIM, "tasks in one claim")
    return milliseconds


def _cpu_percent(pids: Sequence[int], *, seconds: float) -> list[float]:
    began, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    passed = time.monotonic() - began
    return [100 * (cpu_seconds(pid) - then) / passed for pid, then in zip(pids, before, strict=True)]


def _median_ms(action: Callable[[], object]) -> float:
    times = []
    for _ in range(TICKS):
        began = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def _percentiles(metric: str, times: Sequence[float]) -> list[Reading]:
    ranked = sorted(times)
    return [
        Reading(f"{metric}_p{percent}", ranked[round(percent / 100 * (len(ranked) - 1))], "ms")
        for percent in (50, 95)
    ]
