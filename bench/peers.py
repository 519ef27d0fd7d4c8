"""`python -m bench.peers`: measures JIM and other systems on one PostgreSQL server, and shows the ratios."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from . import machine
from .catalogue import BOTH, QUICK, Sizes, chosen, measures, words
from .harness import Harness, Peer
from .installation import ROOT, CannotMeasure
from .results import Results
from .runner import Runner, conduct, open_databases, rounds

OUTPUT = ROOT / ".bench" / "peers.json"
SCRIPTS = ROOT.parent / "shared" / "bench" / "peers"
# Sizes that suffice for a p95 and take about 15 minutes. Topics that are not in COMPARED are measured once.
SIZES = Sizes(latency=100, chain=100)
COMPARED = ("enqueue", "drain", "children", "latency", "chain")
SLOW = 10_000
# Roughly the order of JIM's measurements, so that compared numbers are measured at about the same time.
PEERS = (
    Peer("django-q2 ORM/PG", "peer_djangoq", "pg", ("enqueue", "drain"), n=SLOW),
    Peer("django-q2 ORM/SQLite", "peer_djangoq", "sqlite", ("enqueue", "drain"), n=SLOW),
    Peer("pgqueuer", "peer_pgqueuer", "one", ("enqueue", "drain")),
    Peer("procrastinate async", "peer_procrastinate", "async", ("drain",), n=SLOW),
    Peer("huey SQLite", "peer_huey", "sqlite", ("drain",)),
    Peer("celery Redis safe", "peer_celery", "safe", ("drain",), n=SLOW),
    Peer("celery Redis safe", "peer_celery", "safe", ("latency", "chain"), once=True),
    Peer("django-q2 ORM/PG", "peer_djangoq", "pg", ("latency", "chain"), times=15, once=True),
    Peer("django-q2 ORM/SQLite", "peer_djangoq", "sqlite", ("latency", "chain"), times=15, once=True),
    Peer("huey SQLite", "peer_huey", "sqlite", ("chain",), once=True),
    Peer("django-q2 schedules/PG", "sched", "djangoq_pg", ("schedules",)),
    Peer("django-q2 schedules/SQLite", "sched", "djangoq_sqlite", ("schedules",)),
)
ALL = ("enqueue", "drain", "latency")
WITH_CHAIN = (*ALL, "chain")
# Peers without a target figure.
EXTRA = (
    Peer("graphile-worker tuned", "peer_node", "graphile_tuned", ALL),
    Peer("graphile-worker default", "peer_node", "graphile", ("drain", "latency"), n=SLOW),
    Peer("pg-boss", "peer_node", "pgboss", ALL, times=100),
    Peer("pgqueuer x2", "peer_pgqueuer", "two", ("drain",)),
    Peer("procrastinate sync", "peer_procrastinate", "sync", ALL, n=SLOW),
    Peer("django-q2 Redis", "peer_djangoq", "redis", WITH_CHAIN, n=SLOW),
    Peer("django-tasks-db/PG", "peer_djtasks", "pg", ALL, n=SLOW, times=60),
    Peer("django-tasks-db/SQLite", "peer_djtasks", "sqlite", ALL, n=SLOW, times=40),
    Peer("celery Redis fast", "peer_celery", "fast", ALL),
    Peer("huey Redis", "peer_huey", "redis", WITH_CHAIN),
    Peer("dramatiq Redis", "peer_dramatiq", "redis", WITH_CHAIN),
)
# Topics of JIM that have another name in the peers' scripts, with that name.
BESIDE = {"children": "drain", "due": "schedules", "tick": "schedules"}
T = TypeVar("T")
U = TypeVar("U")


def main() -> int:
    return conduct(measure, parse(sys.argv[1:]))


def measure(options: argparse.Namespace, results: Results, console: Console) -> None:
    """Measure JIM and the peers in turns, so that a noisy minute does not affect only one side."""
    sizes = QUICK if options.quick else SIZES
    wanted = chosen(measures(sizes), options.only, quick=options.quick)
    wanted = [replace(measure, repeats=measure.topic in COMPARED) for measure in wanted]
    check_machine(options.peers)
    home = Path(os.environ.get("BENCH_HOME") or Path(tempfile.gettempdir()) / "bench").resolve()
    harness = Harness(options.peers, home, results=results, console=console)
    harness.install()
    with harness.services() as folder, open_databases(BOTH, folder, server=harness.server) as databases:
        versions = ", ".join(database.version for database in databases.values())
        console.print(f"{machine.describe(folder)}; {versions}", highlight=False)
        runner = Runner(databases, sizes=sizes, results=results, console=console)
        for number, plan in enumerate(rounds(wanted, BOTH, repetitions=options.repetitions)):
            for step in by_turns(plan, peers_of(options, number)):
                if isinstance(step, Peer):
                    harness.run(step, number)
                else:
                    runner.run(*step)


def peers_of(options: argparse.Namespace, number: int) -> list[Peer]:
    """Return the peers that run in round `number`, each with the topics to measure."""
    wanted = {BESIDE.get(topic, topic) for topic in options.only}
    peers = []
    for peer in (*PEERS, *(EXTRA if options.full else ())):
        what = tuple(word for word in peer.what if word in wanted or not wanted)
        if what and (number == 0 or not peer.once):
            peers.append(replace(peer, what=what, **({"n": 1_000, "times": 5} if options.quick else {})))
    return peers


def by_turns(some: Sequence[T], others: Sequence[U]) -> list[T | U]:
    """Merge two lists evenly, and keep the order of each."""
    placed: list[tuple[float, T | U]] = [((n + 0.5) / len(some), one) for n, one in enumerate(some)]
    placed += [((n + 0.5) / len(others), one) for n, one in enumerate(others)]
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])]


def check_machine(scripts: Path) -> None:
    if not (scripts / "services.py").exists():
        raise CannotMeasure(f"{scripts} has no peers' scripts; set PEERS=folder")
    missing = [name for name in ("initdb", "pg_ctl", "createdb") if not shutil.which(name)]
    if missing and not shutil.which("pg_config"):
        raise CannotMeasure(f"the peers need PostgreSQL's {', '.join(missing)}: put its bin folder on PATH")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--peers", type=Path, default=SCRIPTS, metavar="FOLDER", help="the peers' scripts")
    parser.add_argument("--only", type=words, default=[], metavar="A,B", help="only these topics")
    parser.add_argument("--full", action="store_true", help="also the peers without a target figure")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default 3; one if quick")
    parser.add_argument(
        "--quick", action="store_true", help="small numbers, one round, to check that everything works"
    )
    parser.add_argument(
        "--json", type=Path, default=OUTPUT, metavar="FILE", help="where the numbers are written"
    )
    options = parser.parse_args(arguments)
    options.peers = options.peers.resolve()
    options.repetitions = options.repetitions or (1 if options.quick else 3)
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
