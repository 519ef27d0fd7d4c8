"""The checker has teeth: whatever is planted in the tables of a healthy world, it finds."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from tests.base import NOW, SOMEBODY, seconds
from tests.workflows.base import deployed, publish, work
from tests.workflows.invariants import Witness, note_effect, unfinished, violations
from workflows import AuthRequired, Consumer, Prepared, Producer, Workflow
from workflows.contexts import MutateContext, PrepareContext, ProduceContext
from workflows.models import Event, Handler, Run, Subscription, Topic
from workflows.models import Workflow as Row

pytestmark = pytest.mark.django_db
LATER = NOW + seconds(60)


class Poll(Producer):
    every = "5m"
    publishes = ["orders"]

    def produce(self, ctx: ProduceContext) -> None:
        ctx.publish("orders", f"at {ctx.now.isoformat()}")


class Ship(Consumer):
    subscribe = ["orders"]
    ledger: Path
    answer: type[Exception] | None = None

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(ctx.peek("orders")[:1])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        if self.answer is not None:
            raise self.answer("somebody has to sign in")
        ctx.apply(self.ship, ctx.idempotency_key, prepared.reserve[0].message_id)

    def ship(self, key: str, order: str) -> dict[str, str]:
        note_effect(self.ledger, key, {"shipped": order})
        return {"shipped": order}


class Shop(Workflow):
    slug, title = "shop", "Shop"
    topics = {"orders": "Orders"}
    producers = [Poll]
    consumers = [Ship]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a world with runs that were committed, one that was tried again, and one that waits for somebody."""
    monkeypatch.setattr(Ship, "ledger", tmp_path / "ledger", raising=False)
    with deployed(Shop):
        monkeypatch.setattr(Ship, "answer", AuthRequired)
        work()
        Run.objects.stuck().get().approve("", initiator=SOMEBODY, now=NOW)
        monkeypatch.setattr(Ship, "answer", None)
        work()
        publish("orders", "a", "b", "c")
        work()
        publish("orders", "d", "e")
        monkeypatch.setattr(Ship, "answer", AuthRequired)
        work()
        Event.objects.get(message_id="e").skip("", initiator=SOMEBODY, now=NOW)
        yield Ship.ledger


def test_a_healthy_world_is_healthy(ledger: Path) -> None:
    assert violations(ledger, now=NOW) == []
    assert Witness().look(now=NOW) == []
    assert unfinished(list(Row.objects.all())) == [
        f"run {stuck().pk} of Shop is paused:approval: somebody has to sign in",
        "event d is reserved",
    ]


def stuck() -> Run:
    return Run.objects.stuck().get()


def committed(**filters: Any) -> Run:
    return Run.objects.filter(status="committed", handler__name="Ship", **filters).order_by("pk")[0]


def change(row: Any, **values: Any) -> object:
    return type(row).objects.filter(pk=row.pk).update(**values)


def copy(run: Run, **values: Any) -> Run:
    run.pk, run.key = None, uuid.uuid4()
    for name, value in values.items():
        setattr(run, name, value)
    run.save()
    return run


def idle() -> object:
    """Nobody waits for a person any more, and all is done."""
    Event.objects.filter(status="reserved").update(status="consumed", reserved_by=committed(effect="applied"))
    return change(stuck(), status="committed", phase="committed", settled_at=NOW, prepare_result=None)


def follow(before: Run, **values: Any) -> Run:
    """An attempt after one that was stuck."""
    change(before, settled_at=NOW)
    before.refresh_from_db()
    Event.objects.filter(reserved_by=before).update(reserved_by=None, status="pending")
    return copy(Run.objects.get(pk=before.pk), retry_of=before, settled_at=None, **values)


def ask_about_another_mutation() -> None:
    change(stuck(), effect="in_flight", phase="mutating", mutation_key=uuid.uuid4())
    follow(stuck(), phase="mutating", mutation_key=uuid.uuid4())


def forget_what_became_of_it() -> None:
    change(stuck(), effect="applied", phase="mutated")
    follow(stuck(), phase="emitting", effect="")


def look_too_late() -> None:
    idle()
    Row.objects.update(due_at=LATER)
    Handler.objects.update(wake_at=NOW + seconds(30))


def repeat_an_effect(ledger: Path) -> None:
    note_effect(ledger, str(committed(effect="applied").mutation_key), "again")


def event(message_id: str) -> Any:
    return Event.objects.filter(message_id=message_id)


def reserved() -> Any:
    return Event.objects.filter(status="reserved")


def taken() -> Run:
    return committed(effect="applied")


# By rule: what breaks it.
PLANTED: dict[str, dict[str, Callable[[Path], object]]] = {
    "one_run_at_a_time": {
        "active and settled": lambda _: change(committed(), status="active"),
    },
    "runs_are_settled_by_their_end": {
        "stuck and settled": lambda _: change(stuck(), settled_at=NOW),
        "committed and not settled": lambda _: (idle(), change(committed(), settled_at=None)),
        "committed before its phase": lambda _: change(committed(), phase="emitting"),
        "followed twice": lambda _: copy(Run.objects.exclude(retry_of=None)[0]),
        "followed after its commit": lambda _: change(stuck(), retry_of=committed()),
    },
    "mutations_are_remembered": {
        "mutated without an effect": lambda _: change(stuck(), phase="mutated"),
        "applied too early": lambda _: change(stuck(), effect="applied", mutation_key=uuid.uuid4()),
        "applied without a key": lambda _: change(taken(), mutation_key=None),
        "in flight and committed": lambda _: change(taken(), effect="in_flight"),
        "in flight without a key": lambda _: change(stuck(), effect="in_flight"),
    },
    "attempts_follow_the_reset_rules": {
        "prepared afresh while in flight": lambda _: (
            change(stuck(), effect="in_flight"),
            follow(stuck(), phase="preparing"),
        ),
        "asked about another mutation": lambda _: ask_about_another_mutation(),
        "back behind its mutation": lambda _: (
            change(stuck(), effect="applied"),
            follow(stuck(), phase="prepared"),
        ),
        "what became of it forgotten": lambda _: forget_what_became_of_it(),
        "approved by nobody": lambda _: follow(stuck(), phase="preparing", is_approved=True),
    },
    "events_are_in_order": {
        "a gap": lambda _: Event.objects.filter(seq=2).update(seq=99),
        "beyond the last": lambda _: Topic.objects.update(last_seq=F("last_seq") + 1),
    },
    "events_belong_to_their_run": {
        "pending and reserved": lambda _: reserved().update(status="pending"),
        "reserved by a run that is over": lambda _: event("a").update(status="reserved"),
        "consumed by nobody": lambda _: event("e").update(status="consumed"),
        "consumed by a run that is stuck": lambda _: reserved().update(status="consumed"),
        "consumed by a run that left it out": lambda _: change(taken(), effect="skipped"),
        "skipped by a run that did it": lambda _: event("a").update(status="skipped"),
        "a reservation lost": lambda _: reserved().update(status="pending", reserved_by=None),
    },
    "nobody_is_forgotten": {
        "a lost wake-up": lambda _: (
            idle(),
            Row.objects.update(due_at=None),
            Subscription.objects.update(cursor=0),
        ),
        "no look when its time comes": lambda _: (idle(), Row.objects.update(due_at=None)),
        "a look too late": lambda _: look_too_late(),
        "a retry that nobody makes": lambda _: (
            change(stuck(), due_at=NOW),
            Row.objects.update(due_at=None),
        ),
    },
    "effects_happen_once": {
        "an effect twice": repeat_an_effect,
        "an effect that nobody had": lambda ledger: ledger.write_text(""),
        "another result": lambda _: change(taken(), mutation_result="other"),
    },
}


def test_what_is_planted_is_found(ledger: Path) -> None:
    missed, effects = [], ledger.read_text()
    for rule, name, plant in ((rule, *each) for rule, own in PLANTED.items() for each in own.items()):
        with rolled_back():
            plant(ledger)
            if not any(text.startswith(f"{rule}: ") for text in violations(ledger, now=NOW)):
                missed.append(name)
        ledger.write_text(effects)
    assert missed == []
    assert violations(ledger, now=NOW) == []


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def test_two_open_runs_are_found(ledger: Path) -> None:
    """The database itself refuses them."""
    with rolled_back():
        with connection.cursor() as cursor:
            cursor.execute("DROP INDEX run_open")
        copy(stuck())
        assert any(text.startswith("one_run_at_a_time") for text in violations(ledger, now=NOW))


SEEN: dict[str, Callable[[], object]] = {
    "went back": lambda: change(stuck(), phase="preparing"),
    "went on from": lambda: change(stuck(), status="active"),
    "settled and changed": lambda: change(committed(), summary="other"),
    "is gone": lambda: Run.objects.filter(handler__name="Poll").delete(),
    "is to wake": lambda: Handler.objects.filter(kind="consumer").update(wake_at=NOW + seconds(29)),
    "the cursor of subscription": lambda: Subscription.objects.update(cursor=F("cursor") - 1),
    "topic": lambda: Topic.objects.update(last_seq=F("last_seq") - 1),
}


@pytest.mark.usefixtures("ledger")
def test_what_may_not_change_is_seen() -> None:
    missed = []
    for words, happen in SEEN.items():
        witness = Witness()
        witness.look(now=NOW)
        with rolled_back():
            happen()
            if not any(words in text for text in witness.look(now=NOW)):
                missed.append(words)
    assert missed == []
