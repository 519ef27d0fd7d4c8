"""Measures the runs of identity management on one installation, and prints the readings as JSON.

Usage: `python -m bench.identity_measures PEOPLE`. An HR file is the source and another file is the target. A
worker in this process performs the runs, one after the other, as each one needs what the runs before it left.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import django

PAGE = 1_000
CHANGED = 100
KEY = "employee_id"
TEMPLATE = {
    KEY: {"sequence": "E0000001"},
    "first_name": {"choose": "first_names"},
    "last_name": {"choose": "last_names"},
    "mail": {"pattern": "{first_name}.{last_name}@example.com", "plain": True, "unique": True},
    "department": {"choose": {"Sales": 5, "IT": 2, "HR": 1, "Finance": 2}},
    "title": {"choose": ["Engineer", "Clerk", "Consultant", "Director"]},
    "location": {"choose": ["Berlin", "Porto", "Rome", "London"]},
    "hired": {"date": ["2015-01-01", "2026-01-01"]},
    "active": {"boolean": 95},
    "manager": {"manager": KEY, "span": 8},
}
KINDS = {"hired": "date", "active": "boolean", "manager": "reference"}
ATTRIBUTES = [{"name": name, "kind": KINDS.get(name, "text")} for name in TEMPLATE]
RUNS = ("full_import", "full_sync", "delta_sync", "export")
# The target has another attribute and an expression in place of the flag.
TARGET_FLOWS: dict[str, dict[str, str]] = {
    **{name: {"source": name} for name in TEMPLATE if name != "active"},
    "display_name": {"expression": 'join(" ", first_name, last_name)'},
}


def main(people: int) -> None:
    django.setup()
    from django.conf import settings

    folder: Path = settings.JIM_IDENTITY_FOLDERS[0]
    folder.mkdir()
    generate(folder / "hr.csv", people)
    limits = {"write": people / timed(bare_write, folder), "compare": people / timed(bare_compare, folder)}
    prepare()
    readings = [
        {**reading, "people": people, "limit": limits.get(reading["limit"])}
        for reading in measure(folder, people)
    ]
    json.dump(readings, sys.stdout)


def measure(folder: Path, people: int) -> Iterator[dict[str, Any]]:
    yield run("HR", "full_import", "import, new", limit="write", expected={"added": people})
    yield run("HR", "full_import", "import, unchanged", limit="compare", expected={"unchanged": people})
    yield run("HR", "full_sync", "sync, new", limit="write", expected={"staged": people})
    yield run("Target", "export", "export, new", limit="write", expected={"created": people})
    yield run("Target", "full_import", "import, confirming", limit="write", expected={"confirmed": people})
    yield run("HR", "full_sync", "sync, unchanged", limit="compare", expected={"unchanged": people})
    change(folder / "hr.csv", people)
    changed = min(CHANGED, people)
    expected = {"updated": changed, "unchanged": people - changed}
    yield run("HR", "full_import", "import, 100 changes", limit="compare", expected=expected)
    yield run("HR", "delta_sync", "delta sync, 100 changes", expected={"flowed": changed})


def run(system: str, profile: str, name: str, *, expected: dict[str, int], limit: str = "") -> dict[str, Any]:
    """Let a worker perform the profile, and return how long it took and how much memory it needed."""
    from activities.models import Activity
    from bench.load import enqueue, expect, settle
    from execution.loops.running import run_until_signal
    from execution.loops.worker import WorkerLoop

    settle()
    forget_peak()
    step = {"system": system, "profile": profile}
    enqueue([{"name": name, "step_type": "run_profile", "config": step, "max_retries": 0}])
    run_until_signal(WorkerLoop(processes=0, threads=1, until_idle=True))
    attempt = Activity.objects.filter(target_type="run_profile").latest("pk")
    expect((attempt.status, attempt.error), ("complete", ""), name)
    found = attempt.result or {}
    expect({what: found.get(what, 0) for what in expected}, expected, name)
    assert attempt.executed_at
    assert attempt.finished_at
    seconds = (attempt.finished_at - attempt.executed_at).total_seconds()
    return {"name": name, "seconds": seconds, "megabytes": peak(), "limit": limit}


def forget_peak() -> None:
    """Let the kernel measure the largest memory of this process anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    from bench.processes import peak_megabytes

    return peak_megabytes(os.getpid())


# What is measured


def prepare() -> None:
    """Define the two systems, and the rules by which each person of the HR file gets an account."""
    from bench.load import BY
    from database import clock
    from identity.connectors.connector import register
    from identity.connectors.csv_connector import CsvConnector
    from identity.documents import IDENTITY_TYPE, RULE, SYSTEM, checked
    from identity.models import ConnectedSystem, IdentityType, SyncRule

    register(CsvConnector)
    now = clock.now()
    display = [*ATTRIBUTES, {"name": "display_name"}]
    for document in (system("HR", "hr.csv", ATTRIBUTES), system("Target", "target.csv", display)):
        ConnectedSystem.objects.define(checked(document, SYSTEM), initiator=BY, now=now)
    person = {"name": "person", "display": KEY, "attributes": ATTRIBUTES}
    IdentityType.objects.define(checked(person, IDENTITY_TYPE), initiator=BY, now=now)
    inbound = {name: {"source": name} for name in TEMPLATE}
    for document in (rule("HR", "in", inbound), rule("Target", "out", TARGET_FLOWS)):
        SyncRule.objects.define(checked(document, RULE), initiator=BY, now=now)


def system(name: str, path: str, attributes: list[dict[str, str]]) -> dict[str, Any]:
    config = {"path": path, "stable_seconds": 0, "export": "whole"}
    person = {"name": "person", "external_id": KEY, "attributes": attributes}
    profiles = [{"name": each, "run_type": each, "page_size": PAGE} for each in RUNS]
    return {"name": name, "connector": "csv", "config": config, "types": [person], "profiles": profiles}


def rule(system: str, direction: str, flows: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {
        "name": f"{system} {direction}",
        "direction": direction,
        "system": system,
        "object_type": "person",
        "identity_type": "person",
        "joins": [[{"account": KEY, "identity": KEY}]],
        "flows": [{"target": target} | flow for target, flow in flows.items()],
    }


def generate(path: Path, people: int) -> None:
    from identity.connectors.csv_objects import as_text
    from identity.generating import Template

    template = Template.parse({"count": people, "attributes": TEMPLATE})
    rows = ([as_text(each.get(name, "")) for name in TEMPLATE] for each in template.objects())
    write(path, rows)


def change(path: Path, people: int) -> None:
    """Move a hundred people, spread over the file, to another department."""
    department, every = list(TEMPLATE).index("department"), max(1, people // CHANGED)
    moved = path.with_suffix(".moved")
    rows = (
        row
        if number % every or number // every >= CHANGED
        else [*row[:department], "New", *row[department + 1 :]]
        for number, row in enumerate(read(path))
    )
    write(moved, rows)
    moved.replace(path)


def write(path: Path, rows: Iterable[list[str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TEMPLATE)
        writer.writerows(rows)


def read(path: Path) -> Iterator[list[str]]:
    with path.open(newline="") as file:
        reader = csv.reader(file)
        next(reader)
        yield from reader


# What it is compared with: the least that a program does that copies such a file into a table


def timed(bare: Callable[[Path], None], folder: Path) -> float:
    began = time.perf_counter()
    bare(folder / "hr.csv")
    return time.perf_counter() - began


def bare_write(path: Path) -> None:
    """Write each record as one row with a JSON document, page by page."""
    from django.db import connection, transaction

    with connection.cursor() as cursor:
        kind = "jsonb" if connection.vendor == "postgresql" else "text"
        cursor.execute(f"CREATE TABLE bench_person (id varchar(255) PRIMARY KEY, attrs {kind} NOT NULL)")
        for page in pages(path):
            rows = [(each[KEY], json.dumps(each)) for each in page]
            with transaction.atomic():
                if connection.vendor == "postgresql":
                    with cursor.copy("COPY bench_person FROM STDIN") as copy:
                        for row in rows:
                            copy.write_row(row)
                else:
                    cursor.executemany("INSERT INTO bench_person VALUES (%s, %s)", rows)


def bare_compare(path: Path) -> None:
    """Compare each record with its stored row."""
    from bench.load import expect
    from database.statements import among, fetch

    for page in pages(path):
        theirs, params = among("id", [each[KEY] for each in page], "text")
        rows = fetch(f"SELECT id, CAST(attrs AS text) FROM bench_person WHERE {theirs}", params)
        stored = {key: json.loads(text) for key, text in rows}
        expect([each for each in page if stored[each[KEY]] != each], [], "records that differ")


def pages(path: Path) -> Iterator[list[dict[str, str]]]:
    objects = (dict(zip(TEMPLATE, row, strict=True)) for row in read(path))
    while page := list(islice(objects, PAGE)):
        yield page


if __name__ == "__main__":
    main(int(sys.argv[1]))
