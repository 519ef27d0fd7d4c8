"""`python -m bench.identity`: measures the runs of identity management on SQLite and on PostgreSQL."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import machine
from .__main__ import databases
from .catalogue import BOTH
from .installation import ROOT, CannotMeasure, Database
from .report import NAMES
from .runner import end_in_order, open_databases

OUTPUT = ROOT / ".bench" / "identity.json"
# People per second on PostgreSQL; on SQLite, half of it is enough.
LEAST = {"import, new": 10_000, "import, unchanged": 40_000, "sync, new": 4_000, "sync, unchanged": 15_000}
MOST_SECONDS = {"delta sync, 100 changes": 1.0}
MOST_MEGABYTES = 300
# From so many people on, this part of the rate is enough.
MANY, OF_MANY = 1_000_000, 0.8


def main() -> int:
    options = parse(sys.argv[1:])
    end_in_order()
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        readings = measure(options, console)
    except CannotMeasure as error:
        console.print(f"bench: {error}", style="red", highlight=False)
        return 2
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(readings, indent=1))
    return 0 if all(map(is_enough, readings)) else 1


def measure(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    server, readings = os.environ.get("BENCH_DATABASE_URL", ""), []
    with (
        tempfile.TemporaryDirectory(prefix="jim-bench-", ignore_cleanup_errors=True) as folder,
        open_databases(options.database, Path(folder), server=server) as opened,
    ):
        versions = ", ".join(database.version for database in opened.values())
        console.print(f"{machine.describe(Path(folder))}; {versions}", highlight=False)
        console.print(f"{options.people:,} people with ten attributes each", highlight=False)
        for name, database in opened.items():
            quiet = machine.noise()
            mine = [{"database": name, **each} for each in readings_of(database, options.people)]
            show(mine, quiet, console)
            readings += mine
    return readings


def readings_of(database: Database, people: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.identity_measures", str(people)]
    with database.installation() as env:
        quiet_env = {**env, "JIM_LOG_LEVEL": "ERROR"}
        done = subprocess.run(command, env=quiet_env, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise CannotMeasure("the measurement failed; see its output above")
    readings: list[dict[str, Any]] = json.loads(done.stdout)
    return readings


def show(readings: list[dict[str, Any]], quiet: machine.Noise, console: Console) -> None:
    table = Table(title=NAMES[readings[0]["database"]], title_justify="left")
    table.add_column("run")
    for heading in ("seconds", "people/s", "bare loop/s", "bare / JIM", "memory MB", "to reach"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for each in readings:
        mine, limit = rate(each), each["limit"]
        table.add_row(
            each["name"],
            f"{each['seconds']:,.2f}",
            f"{mine:,.0f}",
            f"{limit:,.0f}" if limit else "",
            f"{limit / mine:.1f}" if limit else "",
            f"{each['megabytes']:,.0f}",
            bound(each),
            "[green]met[/]" if is_enough(each) else "[red]not met[/]",
        )
    console.print(table)
    console.print(
        f"Before, the machine was {quiet.busy:.0f} % busy; a core counted {quiet.spin:.0f} million a second.",
        highlight=False,
    )


def rate(reading: dict[str, Any]) -> float:
    people: int = reading["people"]
    seconds: float = reading["seconds"]
    return people / seconds


def least(reading: dict[str, Any]) -> float:
    """Return the rate to reach; 0 if there is none."""
    share = (0.5 if reading["database"] == "sqlite" else 1) * (OF_MANY if reading["people"] >= MANY else 1)
    return LEAST.get(reading["name"], 0) * share


def bound(reading: dict[str, Any]) -> str:
    if reading["name"] in MOST_SECONDS:
        return f"≤ {MOST_SECONDS[reading['name']]:g} s"
    return f"≥ {least(reading):,.0f}" if least(reading) else ""


def is_enough(reading: dict[str, Any]) -> bool:
    most_seconds = MOST_SECONDS.get(reading["name"])
    return (
        rate(reading) >= least(reading)
        and (most_seconds is None or reading["seconds"] <= most_seconds)
        and reading["megabytes"] <= MOST_MEGABYTES
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.identity", description=__doc__)
    parser.add_argument("--people", type=int, default=100_000, metavar="N", help="in the HR file")
    parser.add_argument(
        "--database", type=databases, default=list(BOTH), metavar="A,B", help="sqlite, postgres"
    )
    parser.add_argument("--json", type=Path, default=OUTPUT, metavar="FILE", help="where the numbers go")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
