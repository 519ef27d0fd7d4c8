"""Schedules that show what JIM does, and the functions that their steps call."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

from django.conf import settings

from execution.loops.invoker import trigger
from execution.steps.context import Context
from operations.initiator import Initiator
from schedules.models import Schedule, SharedCalendar, Step, TaskTemplate

PEOPLE = (
    *("Ada Lovelace", "Alan Turing", "Annie Easley", "Barbara Liskov", "Dennis Ritchie", "Donald Knuth"),
    *("Edsger Dijkstra", "Frances Allen", "Grace Hopper", "Hedy Lamarr", "Jean Bartik"),
    *("Katherine Johnson", "Margaret Hamilton", "Radia Perlman", "Sophie Wilson", "Tony Hoare"),
)
BY = Initiator.system("demo")


def create(*, now: datetime) -> list[Schedule]:
    """Those that are not there yet; the nightly one runs at once, so that there is something to see."""
    known = {name.casefold() for name in Schedule.objects.open().values_list("name", flat=True)}
    missing = [fields for fields in definitions() if fields["name"].casefold() not in known]
    if not missing:
        return []
    _create_calendar(now)
    _create_template(now)
    return [_create(_with_template(fields), now) for fields in missing]


def _create_calendar(now: datetime) -> None:
    if not SharedCalendar.objects.filter(name__iexact=HOLIDAYS).exists():
        SharedCalendar.objects.define(
            HOLIDAYS,
            [
                {"holidays": "GB", "subdivision": "ENG"},
                {"month": "dec", "day_of_month": "27-31", "comment": "the office is closed"},
            ],
            description="Public holidays in England, and the days between the years.",
            initiator=BY,
            now=now,
        )


def _create_template(now: datetime) -> None:
    if not TaskTemplate.objects.known().filter(name__iexact=DIRECTORY_EXPORT).exists():
        TaskTemplate.objects.define(
            name=DIRECTORY_EXPORT,
            description="Writes what has changed to one directory; each step says to which.",
            step_type="python",
            config={"function": EXPORT, "kwargs": {"directory": "AD"}},
            timeout_seconds=600,
            retry_jitter=20,
            initiator=BY,
            now=now,
        )


def _with_template(fields: dict[str, Any]) -> dict[str, Any]:
    """Its exports refer to the template, unless somebody else has made one of that name."""
    own = TaskTemplate.objects.active().filter(name=DIRECTORY_EXPORT, config__function=EXPORT)
    if fields["name"] != NIGHTLY or not own.exists():
        return fields
    return fields | {"steps": [_from_template(step) for step in fields["steps"]]}


def _from_template(step: dict[str, Any]) -> dict[str, Any]:
    if step["config"]["function"] != EXPORT:
        return step
    kwargs = {"kwargs": step["config"]["kwargs"]}
    return {"index": step["index"], "name": step["name"], "template": DIRECTORY_EXPORT, "config": kwargs}


def _create(fields: dict[str, Any], now: datetime) -> Schedule:
    schedule = Schedule.objects.define(**fields, initiator=BY, now=now)
    if schedule.name == NIGHTLY:
        trigger(schedule, initiator=BY, now=now)
    return schedule


NIGHTLY = "Nightly HR Sync"
HOLIDAYS = "UK holidays"
DIRECTORY_EXPORT = "Directory export"
EXPORT = "jimsite.demo.export"


def definitions() -> list[dict[str, Any]]:
    return [
        {
            "name": NIGHTLY,
            "description": "Imports people from HR, works out what changed, and updates two directories.",
            "tags": ["people", "nightly"],
            "memo": {"owner": "Ada Lovelace", "ticket": "OPS-7"},
            "deadline_seconds": 600,
            "timeout_seconds": 3_600,
            "pause_on_failure": True,
            "failures_to_pause": 3,
            "failures_among": 5,
            "spec": {"cron": ["0 2 * * *"], "time_zone": "Europe/London"},
            "steps": [
                _step(0, "HR System - Full Import", "import_people"),
                _step(1, "HR System - Full Sync", "synchronise"),
                _step(2, "AD - Export", "export", directory="AD"),
                _step(2, "LDAP - Export", "export", directory="LDAP"),
                _step(3, "AD - Confirming Import", "confirm", directory="AD"),
                _step(3, "LDAP - Confirming Import", "confirm", directory="LDAP"),
                _step(4, "Tell the people on call", "tell", run_if="failure", max_retries=0),
                _step(5, "Remove the import files", "clean_up", run_if="always"),
            ],
        },
        {
            "name": "Heartbeat",
            "description": "The shortest possible job, every 20 seconds.",
            "spec": {"every": ["20s"]},
            "catch_up_seconds": 0,
            "steps": [_step(0, "Beat", "beat", isolation="thread")],
        },
        {
            "name": "Regional report",
            "description": "Three regions are counted side by side, then added up.",
            "spec": {"cron": ["* * * * *"]},
            "catch_up_seconds": 0,
            "steps": [
                *(
                    _step(0, f"Count {region}", "count", region=region)
                    for region in ("north", "south", "west")
                ),
                _step(1, "Add up", "add_up"),
            ],
        },
        {
            "name": "Unreliable supplier",
            "description": "Its first step often fails, and is tried again after 5, 10 and 20 seconds.",
            "spec": {"every": [{"every": "2m", "offset": "15s"}]},
            "catch_up_seconds": 0,
            "steps": [
                _step(0, "Fetch prices", "fetch_prices", max_retries=3, retry_seconds=5),
                _step(1, "Publish prices", "beat"),
            ],
        },
        {
            "name": "Disk space",
            "description": "A program of the scripts folder; its output is kept line by line.",
            "spec": {"every": [{"every": "1m", "offset": "30s"}]},
            "catch_up_seconds": 0,
            "steps": [
                {
                    "index": 0,
                    "name": "Report",
                    "step_type": "executable",
                    "config": {"argv": [str(settings.BASE_DIR / "scripts" / "disk_report.sh")]},
                    "timeout_seconds": 60,
                }
            ],
        },
        {
            "name": "Payroll export",
            "description": "Paused, with a note that says why.",
            "spec": {"cron": ["30 6 * * mon-fri"], "time_zone": "America/New_York"},
            "paused": True,
            "note": "The bank changes its format this week.",
            "tags": ["finance"],
            "steps": [_step(0, "Export", "export", directory="bank")],
        },
        {
            "name": "Opening report",
            "description": "On working days, which a calendar knows that several schedules share.",
            "tags": ["finance"],
            "spec": {
                "patterns": [
                    {"times": ["08:45"], "weekdays": "mon-fri"},
                    {"every": "2h", "from": "09:00", "until": "17:00", "weekdays": "mon-fri"},
                ],
                "exclude": [{"calendar": _calendar_name()}],
                "time_zone": "Europe/London",
            },
            "steps": [_step(0, "Report", "add_up")],
        },
        {
            "name": "Order intake",
            "description": "Takes longer than a minute now and then: the times in between wait their turn.",
            "tags": ["finance"],
            "spec": {"every": [{"every": "1m", "offset": "10s"}]},
            "overlap": "buffer_all",
            "catch_up_seconds": 600,
            "deadline_seconds": 60,
            "steps": [_step(0, "Take orders", "take_orders", timeout_seconds=300, isolation="thread")],
        },
        {
            "name": "Backup",
            "description": "Every quarter of an hour, a little later each: its jitter spreads the load.",
            "tags": ["nightly"],
            "spec": {"cron": ["*/15 * * * *"], "jitter": "10m"},
            "overlap": "buffer_one",
            "steps": [_step(0, "Copy", "confirm", directory="Archive")],
        },
        {
            "name": "Rebuild everything",
            "description": "Has no times of its own: it runs when somebody presses “Run now”.",
            "spec": {},
            "steps": [_step(0, "Rebuild", "rebuild", timeout_seconds=600)],
        },
    ]


def _calendar_name() -> str:
    """As whoever made it wrote it."""
    known = SharedCalendar.objects.filter(name__iexact=HOLIDAYS).values_list("name", flat=True)
    return known.first() or HOLIDAYS


def _step(index: int, name: str, function: str, **rest: Any) -> dict[str, Any]:
    policy = {key: rest.pop(key) for key in Step.FIELDS if key in rest}
    isolation = rest.pop("isolation", "process")
    config = {"function": f"jimsite.demo.{function}", "kwargs": rest, "isolation": isolation}
    return {"index": index, "name": name, "step_type": "python", "config": config} | policy


def import_people(ctx: Context) -> dict[str, int]:
    ctx.write("Connecting to the HR system")
    for number, person in enumerate(PEOPLE, 1):
        ctx.wait(0.15)
        ctx.item(person)
        ctx.progress(number, len(PEOPLE), f"Imported {person}")
    return {"imported": len(PEOPLE)}


def synchronise(ctx: Context) -> dict[str, int]:
    for number, person in enumerate(PEOPLE, 1):
        ctx.wait(0.1)
        is_odd = person.startswith("H")
        ctx.item(person, "warning" if is_odd else "ok", "has no department" if is_odd else "")
        ctx.progress(number, len(PEOPLE), f"Compared {person}")
    return {"changed": 7, "unchanged": len(PEOPLE) - 7}


def export(ctx: Context, directory: str) -> dict[str, int]:
    for number, person in enumerate(PEOPLE[:7], 1):
        ctx.wait(0.3)
        ctx.write(f"{directory}: wrote {person}")
        ctx.item(person)
        ctx.progress(number, 7)
    return {"exported": 7}


def confirm(ctx: Context, directory: str) -> str:
    ctx.wait(1.5)
    ctx.write(f"{directory} has everything that was sent to it")
    return "confirmed"


def tell(ctx: Context) -> str:
    ctx.write(f"{ctx.work.schedule_name}: something failed, somebody should look")
    return "told"


def clean_up(ctx: Context) -> str:
    ctx.wait(0.3)
    ctx.write("Removed what the import left behind")
    return "tidy"


def beat(ctx: Context) -> None:
    ctx.write(f"Still here (for {ctx.nominal_at:%H:%M:%S} UTC)" if ctx.nominal_at else "Still here")


def count(ctx: Context, region: str) -> dict[str, int]:
    for done in range(1, 6):
        ctx.wait(random.uniform(0.2, 0.6))  # noqa: S311 only the demonstration depends on it
        ctx.progress(done, 5, f"Counting {region}")
    return {region: random.randint(100, 999)}  # noqa: S311


def add_up(ctx: Context) -> None:
    ctx.wait(0.5)
    print("The report is ready.")  # noqa: T201 what a function prints is its output


def fetch_prices(ctx: Context) -> int:
    ctx.write(f"Attempt {ctx.attempt}: asking the supplier")
    ctx.wait(1)
    if random.random() < 0.6:  # noqa: S311
        raise ConnectionError("the supplier does not answer")
    return 42


def take_orders(ctx: Context) -> dict[str, int]:
    orders = random.randint(20, 75)  # noqa: S311
    for number in range(1, orders + 1):
        ctx.wait(1)
        ctx.progress(number, orders, f"Order {number}")
    return {"orders": orders}


def rebuild(ctx: Context) -> None:
    for done in range(1, 61):
        ctx.wait(1)
        ctx.progress(done, 60, f"Part {done} of 60")
