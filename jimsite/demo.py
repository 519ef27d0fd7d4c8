"""Examples to copy: functions for steps, and schedules that use them. `manage.py demo` creates the schedules.

A step of type `python` names a function and its arguments. A function with a parameter `ctx` also receives
its context: `write` adds a line to the output, `progress` updates the progress bar, `item` records the
outcome of one object that the step works on, and `wait` sleeps until the time has passed or the step is
interrupted. The return value of the function is the result of the step. An exception makes the step fail.
"""

# ruff: noqa: S311 chance decides only what the demonstration shows

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from execution.steps.context import Context

PEOPLE = (
    *("Ada Lovelace", "Alan Turing", "Annie Easley", "Barbara Liskov", "Dennis Ritchie", "Donald Knuth"),
    *("Edsger Dijkstra", "Frances Allen", "Grace Hopper", "Hedy Lamarr", "Jean Bartik"),
    *("Katherine Johnson", "Margaret Hamilton", "Radia Perlman", "Sophie Wilson", "Tony Hoare"),
)
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def beat(ctx: Context) -> None:
    """Write one line of output."""
    ctx.write(f"Still here (for {ctx.nominal_at:%H:%M:%S} UTC)" if ctx.nominal_at else "Still here")


def import_people(ctx: Context) -> dict[str, int]:
    """Record an item for each person, and report the progress."""
    ctx.write("Connecting to the HR system")
    for number, person in enumerate(PEOPLE, 1):
        ctx.wait(0.15)
        ctx.item(person)
        ctx.progress(number, len(PEOPLE), f"Imported {person}")
    return {"imported": len(PEOPLE)}


def synchronise(ctx: Context) -> dict[str, int]:
    """Record items, some with a warning, so that the step completes with warnings."""
    for number, person in enumerate(PEOPLE, 1):
        ctx.wait(0.1)
        is_odd = person.startswith("H")
        ctx.item(person, "warning" if is_odd else "ok", "has no department" if is_odd else "")
        ctx.progress(number, len(PEOPLE), f"Compared {person}")
    return {"changed": 7, "unchanged": len(PEOPLE) - 7}


def export(ctx: Context, directory: str) -> dict[str, int]:
    """Write people to a directory. Each step names its own directory in the argument."""
    for number, person in enumerate(PEOPLE[:7], 1):
        ctx.wait(0.3)
        ctx.write(f"{directory}: wrote {person}")
        ctx.item(person)
        ctx.progress(number, 7)
    return {"exported": 7}


def confirm(ctx: Context, directory: str) -> str:
    ctx.wait(1.5)
    ctx.write(f"{directory} has received all changes")
    return "confirmed"


def tell(ctx: Context) -> str:
    """Write a message with the name of the schedule, which is read from the context."""
    ctx.write(f"{ctx.work.schedule_name}: a step failed, please check")
    return "told"


def clean_up(ctx: Context) -> str:
    ctx.wait(0.3)
    ctx.write("Removed the import files")
    return "tidy"


def count(ctx: Context, region: str) -> dict[str, int]:
    for done in range(1, 6):
        ctx.wait(random.uniform(0.2, 0.6))
        ctx.progress(done, 5, f"Counting {region}")
    return {region: random.randint(100, 999)}


def add_up(ctx: Context) -> None:
    """Print text, which also becomes part of the output of the step."""
    ctx.wait(0.5)
    print("The report is ready.")  # noqa: T201


def fetch_prices(ctx: Context) -> int:
    """Fail often, with an exception; the settings of the step determine how often it is retried."""
    ctx.write(f"Attempt {ctx.attempt}: asking the supplier")
    ctx.wait(1)
    if random.random() < 0.6:
        raise ConnectionError("the supplier does not answer")
    return 42


def take_orders(ctx: Context) -> dict[str, int]:
    orders = random.randint(20, 75)
    for number in range(1, orders + 1):
        ctx.wait(1)
        ctx.progress(number, orders, f"Order {number}")
    return {"orders": orders}


def rebuild(ctx: Context) -> None:
    for done in range(1, 61):
        ctx.wait(1)
        ctx.progress(done, 60, f"Part {done} of 60")


def step(
    index: int,
    name: str,
    function: Callable[..., object],
    arguments: dict[str, Any] | None = None,
    *,
    isolation: str = "process",
    **policies: Any,
) -> dict[str, Any]:
    """Return the definition of a step; steps with the same index run in parallel."""
    path = f"{function.__module__}.{function.__name__}"
    config = {"function": path, "kwargs": arguments or {}, "isolation": isolation}
    return {"index": index, "name": name, "step_type": "python", "config": config, **policies}


NIGHTLY = "Nightly HR Sync"
CALENDAR: dict[str, Any] = {
    "name": "UK holidays",
    "description": "Public holidays in England, and the days between Christmas and New Year.",
    "excluded": [
        {"holidays": "GB", "subdivision": "ENG"},
        {"month": "dec", "day_of_month": "27-31", "comment": "the office is closed"},
    ],
}
TEMPLATE: dict[str, Any] = {
    "name": "Directory export",
    "description": "Writes changes to the directory that the step names.",
    "step_type": "python",
    "config": {"function": "jimsite.demo.export", "kwargs": {"directory": "AD"}},
    "timeout_seconds": 600,
    "retry_jitter": 20,
}


def from_template(index: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "name": name, "template": TEMPLATE["name"], "config": {"kwargs": arguments}}


def definitions(calendar: str = CALENDAR["name"]) -> list[dict[str, Any]]:
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
                step(0, "HR System - Full Import", import_people),
                step(1, "HR System - Full Sync", synchronise),
                from_template(2, "AD - Export", {"directory": "AD"}),
                from_template(2, "LDAP - Export", {"directory": "LDAP"}),
                step(3, "AD - Confirming Import", confirm, {"directory": "AD"}),
                step(3, "LDAP - Confirming Import", confirm, {"directory": "LDAP"}),
                step(4, "Tell the people on call", tell, run_if="failure", max_retries=0),
                step(5, "Remove the import files", clean_up, run_if="always"),
            ],
        },
        {
            "name": "Heartbeat",
            "description": "Runs a very short step every 20 seconds.",
            "spec": {"every": ["20s"]},
            "catch_up_seconds": 0,
            "steps": [step(0, "Beat", beat, isolation="thread")],
        },
        {
            "name": "Regional report",
            "description": "Counts items in three regions in parallel, then writes a report.",
            "spec": {"cron": ["* * * * *"]},
            "catch_up_seconds": 0,
            "steps": [
                step(0, "Count north", count, {"region": "north"}),
                step(0, "Count south", count, {"region": "south"}),
                step(0, "Count west", count, {"region": "west"}),
                step(1, "Add up", add_up),
            ],
        },
        {
            "name": "Unreliable supplier",
            "description": "The first step often fails, and is retried after 5, 10 and 20 seconds.",
            "spec": {"every": [{"every": "2m", "offset": "15s"}]},
            "catch_up_seconds": 0,
            "steps": [
                step(0, "Fetch prices", fetch_prices, max_retries=3, retry_seconds=5),
                step(1, "Publish prices", beat),
            ],
        },
        {
            "name": "Disk space",
            "description": "Runs a program from the scripts folder, and stores its output line by line.",
            "spec": {"every": [{"every": "1m", "offset": "30s"}]},
            "catch_up_seconds": 0,
            "steps": [
                {
                    "index": 0,
                    "name": "Report",
                    "step_type": "executable",
                    "config": {"argv": [str(SCRIPTS / "disk_report.sh")]},
                    "timeout_seconds": 60,
                }
            ],
        },
        {
            "name": "Payroll export",
            "description": "A paused schedule. Its note gives the reason.",
            "spec": {"cron": ["30 6 * * mon-fri"], "time_zone": "America/New_York"},
            "paused": True,
            "note": "The bank is changing its file format this week.",
            "tags": ["finance"],
            "steps": [step(0, "Export", export, {"directory": "bank"})],
        },
        {
            "name": "Opening report",
            "description": "Runs on working days. A shared calendar excludes the holidays.",
            "tags": ["finance"],
            "spec": {
                "patterns": [
                    {"times": ["08:45"], "weekdays": "mon-fri"},
                    {"every": "2h", "from": "09:00", "until": "17:00", "weekdays": "mon-fri"},
                ],
                "exclude": [{"calendar": calendar}],
                "time_zone": "Europe/London",
            },
            "steps": [step(0, "Report", add_up)],
        },
        {
            "name": "Order intake",
            "description": "A run can take more than a minute. Later runs then wait until it has ended.",
            "tags": ["finance"],
            "spec": {"every": [{"every": "1m", "offset": "10s"}]},
            "overlap": "buffer_all",
            "catch_up_seconds": 600,
            "deadline_seconds": 60,
            "steps": [step(0, "Take orders", take_orders, isolation="thread", timeout_seconds=300)],
        },
        {
            "name": "Backup",
            "description": "Runs every 15 minutes, with a random delay (jitter) that spreads the load.",
            "tags": ["nightly"],
            "spec": {"cron": ["*/15 * * * *"], "jitter": "10m"},
            "overlap": "buffer_one",
            "steps": [step(0, "Copy", confirm, {"directory": "Archive"})],
        },
        {
            "name": "Rebuild everything",
            "description": "Has no scheduled times. It runs only when started with “Run now”.",
            "spec": {},
            "steps": [step(0, "Rebuild", rebuild, timeout_seconds=600)],
        },
    ]
