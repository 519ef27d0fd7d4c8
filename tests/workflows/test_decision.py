"""What a workflow does next, fact by fact."""

from __future__ import annotations

import pytest

from tests.base import NOW, seconds
from workflows.decision import Consuming, Decision, Facts, Open, Producing, decide

BEFORE, AFTER = NOW - seconds(60), NOW + seconds(60)
LATER = NOW + seconds(120)
NOTHING = Decision()

IDLE: list[tuple[str, list[Producing], list[Consuming], Decision]] = [
    ("nothing at all", [], [], NOTHING),
    ("a producer that is due", [Producing(1, 0, NOW)], [], Decision(handler=1)),
    ("a producer that is to come", [Producing(1, 0, AFTER)], [], Decision(due_at=AFTER)),
    ("a producer whose spec has ended", [Producing(1, 0, None)], [], NOTHING),
    ("the one that waits longest", [Producing(1, 0, NOW), Producing(2, 1, BEFORE)], [], Decision(handler=2)),
    ("producers in their order", [Producing(2, 1, NOW), Producing(1, 0, NOW)], [], Decision(handler=1)),
    ("a consumer with events", [], [Consuming(3, 0, True, oldest=NOW)], Decision(handler=3)),
    ("a consumer that never looked", [], [Consuming(3, 0, True)], Decision(handler=3)),
    ("events that it has seen", [], [Consuming(3, 0, False, oldest=BEFORE)], NOTHING),
    ("a wake time that has come", [], [Consuming(3, 0, False, wake_at=NOW)], Decision(handler=3)),
    ("a wake time that is to come", [], [Consuming(3, 0, False, wake_at=AFTER)], Decision(due_at=AFTER)),
    ("events before the wake time", [], [Consuming(3, 0, True, AFTER, NOW)], Decision(handler=3)),
    (
        "consumers before producers",
        [Producing(1, 0, BEFORE)],
        [Consuming(3, 1, True, oldest=NOW)],
        Decision(handler=3),
    ),
    (
        "the oldest event first",
        [],
        [Consuming(3, 0, True, oldest=NOW), Consuming(4, 1, True, oldest=BEFORE)],
        Decision(handler=4),
    ),
    (
        "an event from a clock that is ahead before none",
        [],
        [Consuming(3, 0, True), Consuming(4, 1, True, oldest=AFTER)],
        Decision(handler=4),
    ),
    (
        "in their order if equal",
        [],
        [Consuming(4, 1, True, oldest=NOW), Consuming(3, 0, True, oldest=NOW)],
        Decision(handler=3),
    ),
    (
        "an old event that it has seen does not let it go before others",
        [],
        [Consuming(3, 0, False, oldest=BEFORE), Consuming(4, 1, True, oldest=NOW)],
        Decision(handler=4),
    ),
    (
        "the earliest of what is to come",
        [Producing(1, 0, LATER), Producing(2, 1, None)],
        [Consuming(3, 2, False, wake_at=AFTER), Consuming(4, 3, False)],
        Decision(due_at=AFTER),
    ),
]


@pytest.mark.parametrize(
    ("producers", "consumers", "expected"), [row[1:] for row in IDLE], ids=[row[0] for row in IDLE]
)
def test_idle(producers: list[Producing], consumers: list[Consuming], expected: Decision) -> None:
    assert decide(Facts(True, None, producers, consumers), NOW) == expected


OPEN: list[tuple[str, Open, Decision]] = [
    ("active", Open(True), NOTHING),
    ("active, whatever its time", Open(True, BEFORE), NOTHING),
    ("stuck for a person", Open(False), NOTHING),
    ("in backoff", Open(False, AFTER), Decision(due_at=AFTER)),
    ("at the end of its backoff", Open(False, NOW), Decision(follow=True)),
    ("past it", Open(False, BEFORE), Decision(follow=True)),
]


@pytest.mark.parametrize(("run", "expected"), [row[1:] for row in OPEN], ids=[row[0] for row in OPEN])
def test_with_an_open_run_nothing_else_starts(run: Open, expected: Decision) -> None:
    everything = [Producing(1, 0, BEFORE)], [Consuming(3, 0, True, BEFORE, BEFORE)]
    assert decide(Facts(True, run, *everything), NOW) == expected


@pytest.mark.parametrize("run", [None, *(row[1] for row in OPEN)])
def test_a_workflow_that_is_paused_or_stopped_starts_nothing(run: Open | None) -> None:
    everything = [Producing(1, 0, BEFORE)], [Consuming(3, 0, True, BEFORE, BEFORE)]
    assert decide(Facts(False, run, *everything), NOW) == NOTHING
