"""Decides from the tables, and from a ledger of effects outside, whether workflows held their promises.

May be asked at any time between two transactions. `Witness` remembers what it saw, for promises about change.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import F

from activities.models import Activity
from workflows.failures import PHASES, Phase, Status
from workflows.models import Event, Handler, Run, Subscription, Topic, Workflow
from workflows.models.handler import NEVER

AFTER_MUTATION = (Phase.MUTATED, Phase.EMITTING, Phase.COMMITTED)


def note_effect(ledger: Path, key: str, result: Any) -> None:
    """What a mutation did, in a place that no transaction of JIM's can take back."""
    with ledger.open("ab", buffering=0) as file:
        file.write(f"{json.dumps({'key': key, 'result': result})}\n".encode())


def effects(ledger: Path) -> dict[str, list[Any]]:
    """By key of the mutation, what it returned each time it was applied."""
    found: dict[str, list[Any]] = defaultdict(list)
    for line in ledger.read_text().splitlines() if ledger.exists() else []:
        effect = json.loads(line)
        found[effect["key"]].append(effect["result"])
    return found


def violations(ledger: Path, *, now: datetime) -> list[str]:
    """What is wrong, in words; empty if every invariant holds."""
    world = World(ledger, now)
    return [f"{rule.__name__}: {text}" for rule in RULES for text in rule(world)]


class World:
    def __init__(self, ledger: Path, now: datetime) -> None:
        self.now = now
        self.runs = Run.objects.order_by("pk").in_bulk()
        self.followed = {run.retry_of_id: run for run in self.runs.values() if run.retry_of_id}
        self.events = list(Event.objects.order_by("topic", "seq"))
        self.effects = effects(ledger)
        # By run: what people said of it.
        self.said: dict[int, set[str]] = defaultdict(set)
        activities = Activity.objects.filter(target_type="run")
        for target, operation in activities.values_list("target_id", "operation"):
            self.said[int(target)].add(operation)


def one_run_at_a_time(world: World) -> Iterator[str]:
    """One open run of a workflow; and what is active is open."""
    counts = Counter(run.workflow_id for run in world.runs.values() if run.settled_at is None)
    yield from (f"workflow {pk} has {count} open runs" for pk, count in counts.items() if count > 1)
    for run in world.runs.values():
        if run.is_active and run.settled_at is not None:
            yield f"run {run.pk} is active and settled"


def runs_are_settled_by_their_end(world: World) -> Iterator[str]:
    """Committed, or followed by exactly one attempt, or left because the code no longer has its handler."""
    stopped = set(Handler.objects.filter(is_stopped=True).values_list("pk", flat=True))
    retries = Counter(run.retry_of_id for run in world.runs.values() if run.retry_of_id)
    yield from (f"run {pk} was followed {count} times" for pk, count in retries.items() if count > 1)
    for run in world.runs.values():
        committed = run.status == Status.COMMITTED
        if committed != (run.phase == Phase.COMMITTED):
            yield f"run {run.pk} is {run.status} in the phase {run.phase}"
        is_over = committed or run.pk in world.followed
        if (run.settled_at is not None) != is_over and run.handler_id not in stopped:
            yield f"run {run.pk} ({run.status}) is settled: {run.settled_at is not None}, not by its end"
        if committed and run.pk in world.followed:
            yield f"run {run.pk} was committed and followed by another attempt"


def mutations_are_remembered(world: World) -> Iterator[str]:
    """Applied ⇔ the phase says so and the result is stored; or a person said that it happened."""
    for run in world.runs.values():
        name = f"run {run.pk} ({run.phase}, {run.status}, {run.effect or 'no effect'})"
        if run.phase == Phase.MUTATED and run.effect != Run.Effect.APPLIED:
            yield f"{name} is past a mutation that was not applied"
        if run.effect == Run.Effect.APPLIED:
            if run.phase not in AFTER_MUTATION and "happened" not in world.said[run.pk]:
                yield f"{name} was applied before its phase says so"
            if run.mutation_key is None or run.prepare_result is None:
                yield f"{name} was applied without a key or a preparation"
        if run.phase in (Phase.EMITTING, Phase.COMMITTED) and run.effect in ("in_flight", "failed"):
            yield f"{name} went on though its mutation was not"
        if run.effect == Run.Effect.IN_FLIGHT and run.mutation_key is None:
            yield f"{name} is in flight without a key"


def attempts_follow_the_reset_rules(world: World) -> Iterator[str]:
    """In flight: asked about first. Applied or left out: only forward. Else afresh, if not approved."""
    for before in world.runs.values():
        after = world.followed.get(before.pk)
        if after is None:
            continue
        name = (
            f"run {before.pk} ({before.phase}, {before.effect or 'no effect'}) → {after.pk} ({after.phase})"
        )
        kept = after.prepare_result == before.prepare_result and after.snapshot == before.snapshot
        if after.handler_id != before.handler_id:
            yield f"{name}: it is of another handler"
        if before.effect == Run.Effect.IN_FLIGHT:
            if PHASES.index(Phase(after.phase)) < PHASES.index(Phase.MUTATING) or not kept:
                yield f"{name}: prepared afresh though nobody knew whether it happened"
            if after.mutation_key != before.mutation_key:
                yield f"{name}: asked about another mutation"
        elif before.effect in (Run.Effect.APPLIED, Run.Effect.SKIPPED):
            if after.phase not in (Phase.EMITTING, Phase.COMMITTED) or not kept:
                yield f"{name}: went back behind its mutation"
            if (after.effect, after.mutation_result) != (before.effect, before.mutation_result):
                yield f"{name}: forgot what became of the mutation"
        elif after.is_approved and not _goes_on(before) and "approve" not in world.said[after.pk]:
            yield f"{name}: what nobody was asked about counts as approved"


def _goes_on(approved: Run) -> bool:
    """In the phase that had asked for it."""
    return approved.is_approved and approved.status == Status.PAUSED_APPROVAL


def events_are_in_order(world: World) -> Iterator[str]:
    for topic in Topic.objects.all():
        own = [event for event in world.events if event.topic_id == topic.pk]
        if [event.seq for event in own] != list(range(1, topic.last_seq + 1)):
            yield f"{topic} goes to {topic.last_seq} and has {[event.seq for event in own]}"
        if len({event.message_id for event in own}) < len(own):
            yield f"{topic} has an event twice"


def events_belong_to_their_run(world: World) -> Iterator[str]:
    for event in world.events:
        run = world.runs.get(event.reserved_by_id or 0)
        reserved = run is not None and event.pk in (run.prepare_result or {}).get("reserve", [])
        name = f"event {event.pk} ({event.status})"
        match event.status:
            case Event.Status.PENDING:
                if event.reserved_by_id is not None:
                    yield f"{name} is reserved by run {event.reserved_by_id}"
            case Event.Status.RESERVED:
                if run is None or run.settled_at is not None or not reserved:
                    yield f"{name} belongs to run {event.reserved_by_id}, which does not hold it"
            case Event.Status.CONSUMED:
                if run is None or run.status != Status.COMMITTED or not reserved:
                    yield f"{name} was consumed by run {event.reserved_by_id}, which did not hold it"
                elif run.effect == Run.Effect.SKIPPED:
                    yield f"{name} was consumed by run {run.pk}, which left it out"
            case Event.Status.SKIPPED if event.reserved_by_id is not None:
                if run is None or run.status != Status.COMMITTED or run.effect != Run.Effect.SKIPPED:
                    yield f"{name} was skipped by run {event.reserved_by_id}, which did not leave it out"
    yield from _lost_reservations(world)


def _lost_reservations(world: World) -> Iterator[str]:
    held: dict[int, set[int]] = defaultdict(set)
    for event in world.events:
        held[event.reserved_by_id or 0].add(event.pk)
    for run in world.runs.values():
        asked = set((run.prepare_result or {}).get("reserve", []))
        if (run.settled_at is None or run.status == Status.COMMITTED) and held[run.pk] != asked:
            yield f"run {run.pk} asked for {sorted(asked)} and holds {sorted(held[run.pk])}"


def nobody_is_forgotten(world: World) -> Iterator[str]:
    """Whatever could run by itself, now or later, has a look scheduled for that time."""
    open_runs = {run.workflow_id: run for run in world.runs.values() if run.settled_at is None}
    for workflow in Workflow.objects.all():
        run = open_runs.get(workflow.pk)
        if workflow.status != Workflow.Status.ACTIVE or (run is not None and run.is_active):
            continue
        wanted = [run.due_at] if run is not None else [*_times(world, workflow)]
        times = [at for at in wanted if at is not None]
        if times and (workflow.due_at is None or workflow.due_at > max(min(times), world.now)):
            yield f"{workflow} has something to do at {min(times)}, and the next look is at {workflow.due_at}"


def _times(world: World, workflow: Workflow) -> Iterator[datetime | None]:
    for handler in Handler.objects.filter(workflow=workflow, is_stopped=False):
        yield from (handler.next_run_at, handler.wake_at)
    dirty = Subscription.objects.filter(handler__workflow=workflow, topic__last_seq__gt=F("cursor"))
    yield world.now if dirty.exists() else None


def effects_happen_once(world: World) -> Iterator[str]:
    """At most once for each key; and what counts as applied is in the ledger, with the stored result."""
    for key, results in world.effects.items():
        if len(results) > 1:
            yield f"the mutation {key} was applied {len(results)} times"
    for run in world.runs.values():
        if run.effect == Run.Effect.APPLIED:
            results = world.effects.get(str(run.mutation_key), [])
            if run.mutation_result not in results:
                yield f"run {run.pk} has the result {run.mutation_result}, the ledger has {results}"


RULES: tuple[Callable[[World], Iterator[str]], ...] = (
    one_run_at_a_time,
    runs_are_settled_by_their_end,
    mutations_are_remembered,
    attempts_follow_the_reset_rules,
    events_are_in_order,
    events_belong_to_their_run,
    nobody_is_forgotten,
    effects_happen_once,
)


class Witness:
    """Sees the tables again and again, and tells what may not have changed as it did."""

    def __init__(self) -> None:
        self.runs: dict[int, dict[str, Any]] = {}
        self.cursors: dict[int, int] = {}
        self.wakes: dict[int, datetime | None] = {}
        self.topics: dict[int, int] = {}

    def look(self, *, now: datetime) -> list[str]:
        return [*self._runs(), *self._wakes(now), *self._numbers()]

    def _runs(self) -> Iterator[str]:
        rows: dict[int, dict[str, Any]] = {row["id"]: dict(row) for row in Run.objects.values()}
        for pk, before in self.runs.items():
            after = rows.get(pk)
            if after is None:
                yield f"run {pk} is gone"
                continue
            places = [PHASES.index(Phase(row["phase"])) for row in (before, after)]
            if places[1] < places[0]:
                yield f"run {pk} went back from {before['phase']} to {after['phase']}"
            stopped = before["status"] != after["status"] != Status.COMMITTED
            if before["status"] != Status.ACTIVE and (stopped or places[0] != places[1]):
                yield f"run {pk} went on from {before['status']} to {after['status']}, {after['phase']}"
            if before["settled_at"] is not None and before != after:
                yield f"run {pk} was settled and changed"
        self.runs = rows

    def _wakes(self, now: datetime) -> Iterator[str]:
        """When recorded, a wake-up is as far away as is allowed."""
        least = timedelta(seconds=settings.JIM_WAKE_LEAST_SECONDS)
        most = timedelta(seconds=settings.JIM_WAKE_MOST_SECONDS)
        wakes = dict(Handler.objects.values_list("pk", "wake_at"))
        for pk, at in wakes.items():
            if at is not None and at != self.wakes.get(pk) and not now + least <= at <= now + most:
                yield f"handler {pk} is to wake at {at}, as of {now}"
        self.wakes = wakes

    def _numbers(self) -> Iterator[str]:
        """Forward; or a consumer is to look again, because it took something or has new code."""
        for name, seen, rows in (
            ("the cursor of subscription", self.cursors, Subscription.objects.values_list("pk", "cursor")),
            ("topic", self.topics, Topic.objects.values_list("pk", "last_seq")),
        ):
            for pk, number in rows:
                if NEVER < number < seen.get(pk, number):
                    yield f"{name} {pk} went back from {seen[pk]} to {number}"
                seen[pk] = number


def unfinished(workflows: Sequence[Workflow]) -> list[str]:
    """What is left to do, to be asked when all should be at rest."""
    subscribed = Subscription.objects.filter(handler__workflow__in=workflows).values("topic")
    left = Event.objects.filter(topic__in=subscribed).exclude(
        status__in=(Event.Status.CONSUMED, Event.Status.SKIPPED)
    )
    return [
        *(f"run {run.pk} of {run.workflow} is {run.status}: {run.error}" for run in Run.objects.open()),
        *(f"event {event} is {event.status}" for event in left),
    ]
