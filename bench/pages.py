"""`python -m bench.pages`: measures every page and every list on a large database."""

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
from .installation import ROOT, CannotMeasure
from .large_sizes import Large
from .runner import end_in_order, open_databases

OUTPUT = ROOT / ".bench" / "pages.json"
MOST_QUERIES, MOST_POLLING, MOST_MILLISECONDS, MOST_ROWS = 25, 5, 150, 10_000


def main() -> int:
    options = parse(sys.argv[1:])
    end_in_order()
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        answers = measure(options, console)
    except CannotMeasure as error:
        console.print(f"bench: {error}", style="red", highlight=False)
        return 2
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(answers, indent=1))
    return show(answers, console)


def measure(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    server = os.environ.get("BENCH_DATABASE_URL", "")
    with (
        tempfile.TemporaryDirectory(prefix="jim-bench-", ignore_cleanup_errors=True) as folder,
        open_databases(["postgres"], Path(folder), server=server) as databases,
        databases["postgres"].installation() as env,
    ):
        console.print(
            f"{machine.describe(Path(folder))}; {databases['postgres'].version}; filling …", highlight=False
        )
        size = Large(*(each // options.smaller for each in Large()))
        console.print(
            f"{size.schedules:,} schedules, {size.executions:,} executions, {size.activities:,} activities",
            highlight=False,
        )
        command = [sys.executable, "-m", "bench.page_measures", json.dumps(size), str(options.repetitions)]
        done = subprocess.run(
            command, env={**env, "JIM_LOG_LEVEL": "ERROR"}, cwd=ROOT, stdout=subprocess.PIPE, check=False
        )
        if done.returncode:
            raise CannotMeasure("the measurement failed; see its output above")
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers


def show(answers: list[dict[str, Any]], console: Console) -> int:
    """Print the answers, slowest first; return 0 if all of them are within the limits, otherwise 1."""
    table = Table(title="Pages and lists, the slowest first", title_justify="left")
    table.add_column("address")
    for heading in ("answer", "queries", "p50 ms", "p95 ms", "kB"):
        table.add_column(heading, justify="right")
    table.add_column("")
    wrong = 0
    for answer in sorted(answers, key=lambda answer: -answer["p95"]):
        excess = judge(answer)
        wrong += bool(excess)
        table.add_row(
            answer["address"],
            str(answer["status"]),
            str(answer["queries"]),
            f"{answer['p50']:.1f}",
            f"{answer['p95']:.1f}",
            f"{answer['bytes'] / 1000:.1f}",
            excess,
        )
    console.print(table)
    limits = f"{MOST_QUERIES} queries ({MOST_POLLING} where a page polls), {MOST_MILLISECONDS} ms"
    console.print(f"{wrong} of {len(answers)} are over {limits}.", highlight=False)
    return 1 if wrong else 0


def judge(answer: dict[str, Any]) -> str:
    most = MOST_POLLING if answer["polls"] else MOST_QUERIES
    said = []
    if answer["status"] >= 400:
        said.append(f"answers {answer['status']}")
    if answer["queries"] > most:
        said.append(f"more than {most} queries")
    if answer["p95"] > MOST_MILLISECONDS:
        said.append(f"slower than {MOST_MILLISECONDS} ms")
    if answer["rows"] > MOST_ROWS:
        said.append(f"goes through {answer['rows']:,} rows")
    return "; ".join(said)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20, metavar="N", help="of each address")
    parser.add_argument("--smaller", type=int, default=1, metavar="N", help="a database N times smaller")
    parser.add_argument("--json", type=Path, default=OUTPUT, metavar="FILE", help="where the numbers go")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
