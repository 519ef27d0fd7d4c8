"""`python -m bench`: measures JIM on SQLite and on PostgreSQL; README.md defines the numbers."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.console import Console

from . import machine
from .catalogue import BOTH, QUICK, Sizes, chosen, measures, words
from .installation import ROOT, DatabaseName
from .results import Results
from .runner import Runner, conduct, open_databases, rounds

OUTPUT = ROOT / ".bench" / "jim.json"


def main() -> int:
    return conduct(measure, parse(sys.argv[1:]))


def measure(options: argparse.Namespace, results: Results, console: Console) -> None:
    sizes = sizes_of(options)
    wanted = chosen(measures(sizes), options.only, quick=options.quick)
    server = os.environ.get("BENCH_DATABASE_URL", "")
    # This is a folder directly in the one for temporary files: the path of a PostgreSQL socket must be short.
    with (
        tempfile.TemporaryDirectory(prefix="jim-bench-", ignore_cleanup_errors=True) as folder,
        open_databases(options.database, Path(folder), server=server) as databases,
    ):
        versions = ", ".join(database.version for database in databases.values())
        console.print(f"{machine.describe(Path(folder))}; {versions}", highlight=False)
        runner = Runner(databases, sizes=sizes, results=results, console=console)
        for plan in rounds(wanted, options.database, repetitions=options.repetitions):
            for step in plan:
                runner.run(*step)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", type=words, default=[], metavar="A,B", help="only these, by name or topic")
    parser.add_argument(
        "--database", type=databases, default=list(BOTH), metavar="A,B", help="sqlite, postgres"
    )
    parser.add_argument("--repetitions", type=int, metavar="N", help="default 3; one if quick")
    parser.add_argument("--n", type=int, help="how many tasks to drain, in each kind of drain")
    parser.add_argument(
        "--quick", action="store_true", help="small numbers, one round, to check that everything works"
    )
    parser.add_argument(
        "--json", type=Path, default=OUTPUT, metavar="FILE", help="where the numbers are written"
    )
    options = parser.parse_args(arguments)
    options.repetitions = options.repetitions or (1 if options.quick else 3)
    return options


def sizes_of(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else Sizes()
    return (
        replace(sizes, drain=options.n, children=options.n, limited=options.n, napping=options.n)
        if options.n
        else sizes
    )


def databases(text: str) -> list[DatabaseName]:
    known = get_args(DatabaseName)
    named = words(text)
    if not named or set(named) - set(known):
        raise argparse.ArgumentTypeError(f"name databases among {', '.join(known)}, not {text!r}")
    return [name for name in BOTH if name in named]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
