"""A whole installation at one moment: a past, what runs and waits, and all that somebody should look at."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any

from django.contrib.auth.models import Group, User

from activities.models import Activity, ActivityItem, OutputLine
from api.models import ApiToken
from execution.loops.manual_runs import trigger
from execution.models import Chore, Execution, Limit, Reservation, Worker, WorkerTask
from execution.models.attempt import ClaimedTask, Finish
from execution.queue.claim import claim
from execution.queue.request import ClaimRequest
from execution.steps.outcome import Outcome
from jimsite import demo
from jimsite.management.commands.demo import create_calendar, create_template
from operations.initiator import Initiator
from schedules.models import Backfill, Occurrence, Schedule, SharedCalendar, TaskTemplate
from webhooks.events import KINDS
from webhooks.models import Delivery, Endpoint
from webhooks.models.delivery import body_of

from . import workflows
from .history import Habits, write_history

MOST_TIMES = 300
# What runs every few seconds in the demonstration would fill months with nothing else.
CALMER: dict[str, dict[str, Any]] = {
    "Heartbeat": {"every": ["30m"]},
    "Regional report": {"cron": ["5 * * * *"]},
    "Unreliable supplier": {"every": [{"every": "1h", "offset": "15m"}]},
    "Disk space": {"every": ["2h"]},
    "Order intake": {"every": [{"every": "1h", "offset": "10m"}]},
    "Backup": {"cron": ["15 */6 * * *"], "jitter": "10m"},
}
HABITS = {
    "Nightly HR Sync": Habits(seconds=240, fails=0.05),
    "Unreliable supplier": Habits(seconds=12, fails=0.45, warns=0),
    "Order intake": Habits(seconds=150, skips=0.08),
    "Invoice run": Habits(seconds=90, warns=0.2),
    "Search index": Habits(seconds=45, cancels=0.06),
    "Stock levels": Habits(seconds=8, fails=0.01, misses=0.03),
}
BOB, GRACE = Initiator("user", "", "bob"), Initiator("user", "", "grace")


def create(*, now: datetime, days: int = 120, owner: User) -> None:
    """On an empty database; `owner` is who looks at it."""
    began = now - timedelta(days=days)
    schedules = _schedules(began)
    at_work = [each for each in schedules.values() if each.next_run_at]
    habits = {schedule: HABITS.get(schedule.name, Habits()) for schedule in at_work}
    write_history(habits, since=began, until=now, most=MOST_TIMES)
    _edit(schedules["Invoice run"], now)
    _colleagues()
    _limits(now)
    _work(schedules, now)
    _trouble(schedules, now)
    _endpoints(now)
    _tokens(owner, now)
    workflows.create(now=now)
    Chore.objects.tick(outage=timedelta(seconds=15), now=now)


def more_definitions() -> list[dict[str, Any]]:
    step = demo.step
    return [
        {
            "name": "Invoice run",
            "description": "Collects what was delivered, writes the invoices and mails them.",
            "tags": ["finance", "customers"],
            "memo": {"owner": "Grace Hopper"},
            "spec": {"patterns": [{"times": ["18:30"], "weekdays": "mon-fri"}], "time_zone": "Europe/Berlin"},
            "steps": [
                step(0, "Collect deliveries", demo.add_up),
                step(1, "Write invoices", demo.rebuild),
                step(1, "Update the ledger", demo.add_up),
                step(2, "Mail them", demo.beat),
            ],
        },
        {
            "name": "Search index",
            "description": "Everything that customers can search for.",
            "tags": ["shop"],
            "spec": {"cron": ["20 */4 * * *"]},
            "overlap": "buffer_one",
            "steps": [
                step(0, "Products", demo.rebuild),
                step(0, "Pages", demo.rebuild),
                step(1, "Switch over", demo.beat),
            ],
        },
        {
            "name": "Stock levels",
            "description": "Asks three warehouses, which sleep at night.",
            "tags": ["shop", "warehouse"],
            "spec": {
                "patterns": [{"every": "2h", "from": "06:00", "until": "22:00", "weekdays": "mon-sat"}],
                "time_zone": "America/New_York",
            },
            "steps": [
                step(0, f"Ask {place}", demo.count, {"region": place})
                for place in ("Boston", "Reno", "Tulsa")
            ],
        },
        {
            "name": "Exchange rates",
            "description": "One request; the answer is kept as the step's result.",
            "tags": ["finance"],
            "spec": {"cron": ["0 16 * * mon-fri"], "time_zone": "Europe/Berlin"},
            "steps": [
                {
                    "index": 0,
                    "name": "Fetch",
                    "step_type": "http",
                    "config": {"url": "https://rates.example/v1/latest"},
                }
            ],
        },
        {
            "name": "Month-end closing",
            "description": "On the first of each month, after the last booking.",
            "tags": ["finance"],
            "deadline_seconds": 1_800,
            "spec": {"cron": ["0 5 1 * *"], "time_zone": "Europe/London"},
            "steps": [step(0, "Close the books", demo.rebuild), step(1, "Report", demo.add_up)],
        },
        {
            "name": "Certificate check",
            "description": "Warns three weeks before one expires.",
            "tags": ["security"],
            "spec": {"cron": ["0 7 * * mon"]},
            "steps": [step(0, "Look at all of them", demo.synchronise)],
        },
    ]


def _schedules(began: datetime) -> dict[str, Schedule]:
    create_calendar(began)
    create_template(began)
    SharedCalendar.objects.define(
        "Release freeze",
        [{"dates": "2026-12-18/2027-01-04", "comment": "nothing changes before the holidays"}],
        description="Agreed with all teams in October.",
        initiator=GRACE,
        now=began,
    )
    fields = [
        each | {"spec": CALMER.get(each["name"], each["spec"]), "paused": False, "note": ""}
        for each in demo.definitions()
    ]
    made = [
        Schedule.objects.define(**each, initiator=GRACE, now=began) for each in [*fields, *more_definitions()]
    ]
    _templates(began)
    return {schedule.name: schedule for schedule in made}


def _templates(began: datetime) -> None:
    """Beside the one that the nightly schedule uses."""
    for name, about in (("Nightly mail", "A short report to those who asked for it."), ("Old export", "")):
        template = TaskTemplate.objects.define(
            name=name,
            description=about,
            step_type="http",
            config={"url": "https://mail.example/send", "method": "POST"},
            initiator=GRACE,
            now=began,
        )
    template.archive(initiator=GRACE, now=began + timedelta(days=1))


def _edit(schedule: Schedule, now: datetime) -> None:
    """Somebody changed their mind twice, which its revisions show."""
    changes: list[dict[str, Any]] = [
        {"description": "Collects what was delivered, writes the invoices, and mails them."},
        {"catch_up_seconds": 7_200, "tags": ["customers", "finance", "month end"]},
    ]
    for days, change in zip((40, 12), changes, strict=True):
        current = Schedule.objects.get(pk=schedule.pk)
        at = now - timedelta(days=days)
        current.edit(token=current.token, changes=change, initiator=BOB, now=at)


def _colleagues() -> None:
    for name, role in (("bob", "Operator"), ("grace", "Author"), ("linus", "Viewer")):
        user, _ = User.objects.get_or_create(username=name)
        user.groups.add(Group.objects.get(name=role))


def _limits(now: datetime) -> None:
    for key, size, note in (
        ("global", 40, "All that this database can take"),
        ("type:http", 4, "The partners' firewall counts connections"),
        ("resource:hr-system", 1, "It has one licence"),
        ("pool:reports", 2, ""),
    ):
        Limit.objects.define(key, size, note=note, initiator=GRACE, now=now - timedelta(days=60))


def _work(schedules: dict[str, Schedule], now: datetime) -> None:
    """Three workers, of which two have something to run; two that are no more; and what waits."""
    for host, age, is_orderly in (("worker-3", 3, False), ("worker-1", 26, True)):
        ended_at = now - timedelta(hours=age)
        ended = _worker(host, [], ended_at - timedelta(days=2))
        ended.beat(ended_at - timedelta(seconds=70))
        ended.stop(ended_at) if is_orderly else Worker.objects.filter(pk=ended.pk).bury(now=ended_at)
    first, second = (_worker(host, [], now) for host in ("worker-1", "worker-2"))
    _worker("night-shift", ["night", "reports"], now)
    for name, ago in (("Nightly HR Sync", 1_500), ("Rebuild everything", 40), ("Search index", 12)):
        trigger(schedules[name], initiator=BOB, now=now - timedelta(seconds=ago))
        _begin(first, now - timedelta(seconds=ago - 1), now)
    WorkerTask.objects.enqueue(
        [_job(f"Mail {name}", resources=["hr-system"]) for name in demo.PEOPLE[:4]],
        initiator=GRACE,
        now=now - timedelta(minutes=3),
    )
    _begin(second, now - timedelta(seconds=100), now)
    WorkerTask.objects.enqueue([_job("Newsletter")], initiator=GRACE, now=now - timedelta(seconds=30))
    for failing in _claimed(second, now):
        _fail(second, failing, now)
    later = [_job(f"Report {region}", pool="reports") for region in ("north", "south", "west", "east")]
    WorkerTask.objects.enqueue([*later, _job("Translate", pool="gpu")], initiator=GRACE, now=now)
    Reservation.objects.reserve({"pool": "night", "limit_keys": ""}, holder="web-1:4711", now=now)


def _worker(host: str, pools: Sequence[str], now: datetime) -> Worker:
    worker = Worker.objects.register(id=uuid.uuid4(), pools=pools, seats=16, now=now)
    Worker.objects.filter(pk=worker.pk).update(host=f"{host}.example")
    return worker


def _job(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "step_type": "python", "config": {"function": "jimsite.demo.beat"}} | fields


def _claimed(worker: Worker, now: datetime) -> list[ClaimedTask]:
    return claim(ClaimRequest(worker.pk, ["default"], now, {"thread": 4, "process": 4}))


def _begin(worker: Worker, began: datetime, now: datetime) -> None:
    """What it can get, half done by now."""
    for task in _claimed(worker, began):
        lines = [(task.activity_id, number, "stdout", f"Part {number} of 60", now) for number in range(1, 24)]
        rows = [(task.activity_id, 23, 60, "Part 23 of 60")]
        Activity.objects.tell_progress(rows, worker_id=worker.pk)
        OutputLine.objects.append(("number", "stream", "text", "written_at"), lines, worker_id=worker.pk)
        items = [(task.activity_id, person, "ok", "", now) for person in demo.PEOPLE[:5]]
        ActivityItem.objects.append(("name", "outcome", "message", "created_at"), items, worker_id=worker.pk)


def _fail(worker: Worker, task: ClaimedTask, now: datetime) -> None:
    """It is tried again in a while."""
    began = now - timedelta(seconds=20)
    error = "ConnectionError: the mail server does not answer"
    outcome = Outcome(
        status="failed_with_error", executed_at=began, finished_at=now, error=error, can_retry=True
    )
    WorkerTask.objects.finish([Finish(task, outcome)], worker_id=worker.pk, now=now)


def _trouble(schedules: dict[str, Schedule], now: datetime) -> None:
    """Two are paused, one is late with its time, one is caught up on, one is to be skipped next time."""
    note = "The bank is changing its file format this week."
    schedules["Payroll export"].pause(initiator=GRACE, now=now - timedelta(hours=20), note=note)
    schedules["Unreliable supplier"].pause(
        initiator=Initiator.system("pause on failure"),
        now=now - timedelta(hours=2),
        note="3 of its last 5 executions failed.",
    )
    late = schedules["Certificate check"]
    Schedule.objects.filter(pk=late.pk).update(next_run_at=now - timedelta(minutes=12))
    schedule = schedules["Regional report"]
    between: dict[str, Any] = {"start_at": now - timedelta(days=3), "end_at": now - timedelta(days=2)}
    backfill = Backfill.objects.ask(schedule, **between, which="all", initiator=BOB, now=now)
    backfill.generate(now)
    Schedule.objects.get(pk=schedules["Exchange rates"].pk).skip_next(initiator=BOB, now=now)


def _endpoints(now: datetime) -> None:
    kinds = list(KINDS)
    chat = _endpoint("Chat of the people on call", kinds[:12], now, "https://chat.example/hooks/jim")
    tickets = _endpoint(
        "Ticket system", ["execution.failed", "schedule.failing"], now, "https://tickets.example"
    )
    old = _endpoint("Old pager", ["execution.failed"], now, "https://pager.example/in")
    dice = Random(7)
    for endpoint, fails in ((chat, 0.05), (tickets, 0.3), (old, 1.0)):
        Delivery.objects.bulk_create(
            _delivery(endpoint, now - timedelta(minutes=17 * number), dice.random() < fails)
            for number in range(40, 0, -1)
        )
    Endpoint.objects.filter(pk=chat.pk).update(succeeded_at=now)
    Endpoint.objects.filter(pk=tickets.pk).update(succeeded_at=now - timedelta(hours=5), failed_in_a_row=2)
    note = "Its last 12 deliveries failed, and none arrived for 4 days."
    old.disable(
        initiator=Initiator.system("webhooks"), now=now - timedelta(hours=6), note=note, by_itself=True
    )
    chat.test(initiator=GRACE, now=now)


def _endpoint(name: str, kinds: list[str], now: datetime, url: str) -> Endpoint:
    made, _ = Endpoint.objects.define(
        name=name, url=url, kinds=kinds, initiator=GRACE, now=now - timedelta(days=50)
    )
    return made


def _delivery(endpoint: Endpoint, at: datetime, fails: bool) -> Delivery:
    kind = endpoint.kinds[at.minute % len(endpoint.kinds)]
    data = {"execution": {"id": 4711, "schedule": "Nightly HR Sync", "status": "failed"}}
    answer = "<h1>502 Bad Gateway</h1>" if fails else '{"ok": true}'
    tried = {
        "at": at.isoformat(),
        "seconds": 0.084,
        "status": 502 if fails else 200,
        "answer": answer,
        "error": "It answered 502." if fails else "",
    }
    return Delivery(
        endpoint=endpoint,
        kind=kind,
        body=body_of(kind, at, data),
        status=Delivery.Status.FAILED if fails else Delivery.Status.DELIVERED,
        tries=6 if fails else 1,
        tries_left=0 if fails else 5,
        created_at=at,
        ended_at=at + timedelta(seconds=1),
        log=[tried] * (6 if fails else 1),
    )


def _tokens(owner: User, now: datetime) -> None:
    bob = User.objects.get(username="bob")
    for name, scopes, user, days in (
        ("Import on db-2", ["view", "run"], owner, 90),
        ("Dashboard in the hall", ["view"], owner, None),
        ("Deployment", ["define"], bob, 30),
        ("Laptop of last year", ["admin"], owner, 365),
    ):
        expires_at = now + timedelta(days=days) if days else None
        by = Initiator.user(user)
        token, _ = ApiToken.objects.issue(
            name=name, scopes=scopes, user=user, initiator=by, now=now, expires_at=expires_at
        )
        token.note_use(now - timedelta(minutes=4))
    token.revoke(initiator=by, now=now)


def examples() -> dict[str, Any]:
    """One of each that has a page of its own, by what its page is called; the most telling one there is."""
    failed = Execution.objects.filter(status="failed").order_by("pk")
    execution = failed.filter(schedule_name=demo.NIGHTLY).last() or failed.last()
    assert execution is not None
    return {
        "schedule": Schedule.objects.get(name="Nightly HR Sync").pk,
        "execution": execution.pk,
        "activity": Activity.objects.filter(parent=execution.activity_id).latest("pk").pk,
        "occurrence": Occurrence.objects.filter(status="skipped").latest("pk").pk,
        "backfill": Backfill.objects.latest("pk").pk,
        "worker": Worker.objects.alive().filter(host__startswith="worker-1").get().pk,
        "limit": "resource:hr-system",
        "calendar": SharedCalendar.objects.get(name=demo.CALENDAR["name"]).pk,
        "template": TaskTemplate.objects.get(name=demo.TEMPLATE["name"]).pk,
        "endpoint": Endpoint.objects.get(name="Ticket system").pk,
        "delivery": Delivery.objects.filter(status="failed").latest("pk").pk,
        "token": ApiToken.objects.filter(revoked_at=None).earliest("pk").pk,
        **workflows.examples(),
    }
