"""The checker has teeth: whatever is planted in the tables of a healthy world, it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from tests.base import NOW, SOMEBODY, seconds
from tests.workflows.base import deployed, publish, work
from tests.workflows.invariants import Witness, note_effect, unfinished, violations
from tests.workflows.scripted import Script
from workflows import AuthRequired
from workflows.models import Event, Handler, Run, Subscription, Topic
from workflows.models import Workflow as Row

pytestmark = pytest.mark.django_db


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Path]:
    """Of a world with runs that were committed, one that was tried again, and one that waits for somebody."""
    path = tmp_path / "ledger"
    script = Script(mutate=[AuthRequired("sign in"), None, AuthRequired("sign in")])

    def apply(key: str) -> dict[str, int]:
        note_effect(path, key, {"row": 1})
        return {"row": 1}

    script.apply = apply  # type: ignore[method-assign]
    with deployed(script.workflow()):
        publish("mail", "a")
        work()
        stuck().approve("", initiator=SOMEBODY, now=NOW)
        work()
        publish("mail", "b")
        work()
        yield path


def test_a_healthy_world_is_healthy(ledger: Path) -> None:
    assert violations(ledger, now=NOW) == []
    assert Witness().look(now=NOW) == []
    assert unfinished(list(Row.objects.all())) == [
        f"run {stuck().pk} of Inbox is paused:approval: sign in",
        "event b is reserved",
    ]


def stuck() -> Run:
    return Run.objects.stuck().get()


def committed() -> Run:
    return Run.objects.get(status="committed", effect="applied")


def change(run: Run | None, **values: Any) -> object:
    assert run is not None
    return Run.objects.filter(pk=run.pk).update(**values)


# By rule: what breaks it.
PLANTED: dict[str, Callable[[Path], object]] = {
    "one_run_at_a_time": lambda _: change(committed(), status="active"),
    "runs_are_settled_by_their_end": lambda _: change(stuck(), settled_at=NOW),
    "mutations_are_remembered": lambda _: change(stuck(), phase="mutated"),
    "attempts_follow_the_reset_rules": lambda _: change(committed().retry_of, effect="applied"),
    "events_are_in_order": lambda _: Topic.objects.update(last_seq=F("last_seq") + 1),
    "events_belong_to_their_run": lambda _: Event.objects.filter(status="reserved").update(status="pending"),
    "nobody_is_forgotten": lambda _: change(stuck(), due_at=NOW),
    "effects_happen_once": lambda ledger: note_effect(ledger, str(committed().mutation_key), "again"),
}


def test_what_is_planted_is_found(ledger: Path) -> None:
    missed = []
    for rule, plant in PLANTED.items():
        with rolled_back():
            plant(ledger)
            if not any(text.startswith(f"{rule}: ") for text in violations(ledger, now=NOW)):
                missed.append(rule)
    assert missed == []


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


SEEN: dict[str, Callable[[], object]] = {
    "went back": lambda: change(stuck(), phase="preparing"),
    "went on from": lambda: change(stuck(), status="active"),
    "settled and changed": lambda: change(committed(), summary="other"),
    "is gone": lambda: Run.objects.filter(status="committed", effect="").delete(),
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
