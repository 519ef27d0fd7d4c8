"""Runs measurements one by one, each in its own process and on its own database."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from . import report
from .catalogue import Measure, Sizes
from .installation import ROOT, CannotMeasure, Database, DatabaseName, PostgreSQL, SQLite
from .machine import noise
from .postgres import BenchServer
from .processes import end, launch
from .results import Key, Results

MOST_SECONDS = 600
TAIL = 3_000


def conduct(
    measure: Callable[[argparse.Namespace, Results, Console], None], options: argparse.Namespace
) -> int:
    """Measure, then write and print the results, and return the exit code of the program.

    The code is 0 after success, 1 if a measurement failed and 2 if measuring was not possible.
    """
    end_in_order()
    console = Console(width=None if sys.stdout.isatty() else 140)
    results = Results()
    try:
        measure(options, results, console)
    except CannotMeasure as error:
        console.print(f"bench: {error}", style="red", highlight=False)
        return 2
    results.write(options.json)
    report.show_jim(results, console)
    report.show_peers(results, console)
    if not options.quick:
        report.show_figures(results, console)
    report.show_failures(results, console)
    return 1 if results.failures else 0


class Runner:
    def __init__(
        self, databases: Mapping[DatabaseName, Database], *, sizes: Sizes, results: Results, console: Console
    ) -> None:
        self.databases = databases
        self.sizes = sizes
        self.results = results
        self.console = console

    def run(self, measure: Measure, database: DatabaseName) -> None:
        """Run the measurement and add its readings, or its failure, to the results."""
        before = noise()
        with self.databases[database].installation() as env:
            told, log = self._measure(measure, env)
        if "failed" in told:
            for metric in measure.metrics:
                self.results.fail(Key(metric, database), told["failed"])
            self.console.print(f"{measure.name} on {database} failed", style="red")
            self.console.print(log[-TAIL:], markup=False, highlight=False)
            return
        for metric, value, unit in told["readings"]:
            self.results.add(Key(metric, database), value, unit, noise=before)
            self.console.print(f"{database:9} {metric:24} {value:12,.2f} {unit}", highlight=False)

    def _measure(self, measure: Measure, env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """Run the measurement in a new process; return its readings, or why it failed, and its log."""
        command = [sys.executable, "-m", "bench.measuring", measure.name, self.sizes.as_json()]
        log = Path(env["JIM_DATA_DIR"]) / "measuring.log"
        with log.open("w") as file:
            process = launch(
                command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=file, own_session=True
            )
            try:
                said, _ = process.communicate(timeout=MOST_SECONDS)
                told = json.loads(said)
            except subprocess.TimeoutExpired:
                told = {"failed": f"took longer than {MOST_SECONDS} s"}
            except ValueError:
                told = {"failed": f"ended with code {process.returncode} and without an answer"}
            finally:
                end(process)
        return told, log.read_text(errors="replace")


def rounds(
    measures: Sequence[Measure], databases: Sequence[DatabaseName], *, repetitions: int
) -> Iterator[list[tuple[Measure, DatabaseName]]]:
    """Yield the measurements of each round.

    Measurements are repeated in rounds, not one by one, so that a noisy minute does not affect only one
    number.
    """
    for number in range(repetitions):
        yield [
            (measure, database)
            for measure in measures
            for database in databases
            if database in measure.databases and (measure.repeats or number == 0)
        ]


@contextmanager
def open_databases(
    names: Sequence[DatabaseName], folder: Path, *, server: str
) -> Iterator[dict[DatabaseName, Database]]:
    """Yield the databases by name.

    For PostgreSQL, use the server at the URL `server`. If the URL is empty, start a new server that ends with
    the block.
    """
    with ExitStack() as stack:
        databases: dict[DatabaseName, Database] = {}
        if "sqlite" in names:
            databases["sqlite"] = SQLite(folder)
        if "postgres" in names:
            if not server:
                own = BenchServer(folder / "server")
                stack.callback(_stop, own)
                own.start()
                server = own.admin_url
            databases["postgres"] = postgres = PostgreSQL(folder, server=server)
            stack.callback(postgres.close)
        yield databases


def end_in_order() -> None:
    """Turn the first stop signal into KeyboardInterrupt, so that all started processes are ended.

    Further signals are ignored.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: FrameType | None) -> None:
        for signum in signals:
            signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    for signum in signals:
        signal.signal(signum, stop)


def _stop(server: BenchServer) -> None:
    if hasattr(server, "process"):
        server.stop()
