"""One workflow for each place between two commits: there it stays until somebody kills its process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.workflows.invariants import effects, note_effect
from workflows import Consumer, Mutation, Prepared, Producer, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext, ProduceContext, ReconcileContext
from workflows.definition import applied, failed


def folder() -> Path:
    return Path(os.environ["FLOWS_FOLDER"])


def stay(slug: str, place: str) -> None:
    """At the place that it is named after; a file tells that it got there, another lets all pass."""
    if slug == place:
        (folder() / f"{slug}.there").touch()
        while not (folder() / "go").exists():
            time.sleep(0.01)


class Walk(Consumer):
    slug: str

    def prepare(self, ctx: PrepareContext) -> Prepared:
        found = ctx.peek(self.slug)
        stay(self.slug, "preparing")
        return Prepared(found)

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        stay(self.slug, "prepared")
        ctx.apply(self.change, ctx.idempotency_key)
        stay(self.slug, "mutated")

    def change(self, key: str) -> str:
        stay(self.slug, "before-the-call")
        note_effect(folder() / "ledger", key, self.slug)
        stay(self.slug, "after-the-call")
        stay(self.slug, "nobody-can-tell")
        return self.slug

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
        stay(self.slug, "emitting")

    def reconcile(self, ctx: ReconcileContext, prepared: Prepared) -> Any:
        known = effects(folder() / "ledger").get(ctx.idempotency_key)
        return applied(known[0]) if known else failed


def walking(place: str, **rest: Any) -> type[Workflow]:
    consumer = type("Walk", (Walk,), {"slug": place, "subscribe": [place], "version": "1", **rest})
    own = {"slug": place, "title": place, "topics": {place: place}, "consumers": [consumer]}
    return type(place.title().replace("-", ""), (Workflow,), own | {"__module__": __name__})


Preparing = walking("preparing")
PreparedToGo = walking("prepared")
Before = walking("before-the-call")
After = walking("after-the-call")
Unknown = walking("nobody-can-tell", reconcile=None)
Mutated = walking("mutated")
Emitting = walking("emitting")
Committed = walking("committed")


class Look(Producer):
    every = "1h"
    publishes = ["produced"]

    def produce(self, ctx: ProduceContext) -> str:
        stay("producing", "producing")
        ctx.publish("produced", "x")
        return "looked"


class Producing(Workflow):
    slug = title = "producing"
    topics = {"produced": "Produced"}
    producers = [Look]
