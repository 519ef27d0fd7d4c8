"""An example workflow that combines pairs of files and writes a daily report.

It is enabled if the data folder contains a folder `inbox`, which `manage.py demo` creates.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from workflows import Consumer, Mutation, Pending, Prepared, Producer, Transient, Workflow
from workflows.definition import Reconciled, applied, failed

if TYPE_CHECKING:
    from workflows.contexts import (
        MutateContext,
        NextContext,
        PrepareContext,
        ProduceContext,
        ReconcileContext,
    )

MOST_FILES = 1_000
MOST_CHARS = 100_000
SETTLED_SECONDS = 1.0
PAIR = (".csv", ".json")


def inbox() -> Path:
    return Path(settings.JIM_DATA_DIR, "inbox")


def outbox() -> Path:
    return Path(settings.JIM_DATA_DIR, "outbox")


class WatchFolder(Producer):
    """Publishes each file once; a changed file counts as a new one."""

    title = "Watch the folder"
    every = "10s"
    publishes = ["inbox-files"]

    def produce(self, ctx: ProduceContext) -> list[str]:
        found = self.found(ctx.now)
        known = set(ctx.state or ())
        for message_id, name in found.items():
            if message_id not in known:
                ctx.publish("inbox-files", message_id, {"name": name}, title=name)
        return sorted(found)

    def found(self, now: datetime) -> dict[str, str]:
        """Return a dict from message id to file name.

        Files that changed just now are left out, because they may be incomplete.
        """
        if not inbox().is_dir():
            return {}
        with os.scandir(inbox()) as entries:
            files = [each for each in entries if each.is_file(follow_symlinks=False)]
        last = {each.name: each.stat(follow_symlinks=False).st_mtime for each in files}
        settled = sorted(name for name, at in last.items() if now.timestamp() - at >= SETTLED_SECONDS)
        return {f"{name[:180]} {last[name]:.0f}": name for name in settled[:MOST_FILES]}


class Combine(Consumer):
    """Combines a CSV and a JSON file of the same name once both exist."""

    title = "Combine matching files"
    subscribe = ["inbox-files"]
    publishes = ["combined-files"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        by_stem: dict[str, list[Pending]] = {}
        for event in ctx.peek("inbox-files"):
            by_stem.setdefault(Path(event.payload["name"]).stem, []).append(event)
        for stem, events in by_stem.items():
            if {Path(event.payload["name"]).suffix for event in events} >= set(PAIR):
                return self.prepared(stem, events)
        return Prepared()

    def prepared(self, stem: str, events: Sequence[Pending]) -> Prepared:
        is_there = all((inbox() / f"{stem}{suffix}").is_file() for suffix in PAIR)
        if not is_there:
            return Prepared(reserve=events, title=f"{stem} was removed")
        return Prepared(reserve=events, data=stem, title=f"Combined {stem}")

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        if prepared.data is not None:
            ctx.apply(self.combine, prepared.data, ctx.idempotency_key)

    def combine(self, stem: str, key: str) -> str:
        try:
            parts = [beginning(inbox() / f"{stem}{suffix}") for suffix in PAIR]
        except OSError as error:
            raise Transient(f"{error.filename} cannot be read: {error.strerror}") from error
        return write_once(outbox() / f"{stem}.txt", "\n".join(parts), key)

    def reconcile(self, ctx: ReconcileContext, prepared: Prepared) -> Reconciled:
        path = outbox() / f"{prepared.data}.txt"
        return applied(path.name) if is_written(path, ctx.idempotency_key) else failed

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        if mutation.outcome == "applied":
            ctx.publish("combined-files", ctx.idempotency_key, {"name": mutation.result})


class Report(Consumer):
    """Writes a report of the files that were combined on one day, after that day has ended."""

    title = "Daily report"
    subscribe = ["combined-files"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        events, today = ctx.peek("combined-files"), ctx.now.astimezone(UTC).date()
        if not events:
            return Prepared()
        day = min(self.day_of(event) for event in events)
        if day == today:
            midnight = datetime.combine(today + timedelta(days=1), time(), UTC)
            return Prepared(wake_at=midnight, title="The day is not over")
        of_day = [event for event in events if self.day_of(event) == day]
        return Prepared(reserve=of_day, data=day.isoformat(), title=f"Report for {day:%-d %B %Y}")

    def day_of(self, event: Pending) -> date:
        return event.created_at.astimezone(UTC).date()

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        names = sorted(event.payload["name"] for event in prepared.reserve)
        ctx.apply(write_once, self.path(prepared), "\n".join(names), ctx.idempotency_key)

    def reconcile(self, ctx: ReconcileContext, prepared: Prepared) -> Reconciled:
        path = self.path(prepared)
        return applied(path.name) if is_written(path, ctx.idempotency_key) else failed

    def path(self, prepared: Prepared) -> Path:
        return outbox() / f"report-{prepared.data}.txt"


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox files"
    description = "Combines pairs of files with the same name, such as order-17.csv and order-17.json."
    enabled = inbox().is_dir()
    topics = {"inbox-files": "Files that arrived", "combined-files": "Files that were combined"}
    producers = [WatchFolder]
    consumers = [Combine, Report]


def beginning(path: Path) -> str:
    """Return the first characters of a file, whatever its size and encoding."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return file.read(MOST_CHARS)


def write_once(path: Path, text: str, key: str) -> str:
    """Write a file atomically and return its name.

    The first line of the file contains the key, by which `is_written` recognises the file.
    """
    draft = path.with_name(f".{key}")
    try:
        path.parent.mkdir(exist_ok=True)
        draft.write_text(f"{_mark(key)}\n{text}\n")
        draft.replace(path)
    except OSError as error:
        raise Transient(f"{path} cannot be written: {error.strerror}") from error
    return path.name


def is_written(path: Path, key: str) -> bool:
    return path.is_file() and path.read_text(errors="replace").startswith(f"{_mark(key)}\n")


def _mark(key: str) -> str:
    return f"# {key}"
