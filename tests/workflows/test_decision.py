"""What a workflow does next, fact by fact."""

from __future__ import annotations

import pytest

from tests.base import NOW, seconds
from workflows.decision import ConsumerFacts, Decision, Facts, OpenRun, ProducerFacts, decide

BEFORE, AFTER = NOW - seconds(60), NOW + seconds(60)
LATER = NOW + seconds(120)
NOTHING = Decision()

IDLE: list[tuple[str, list[ProducerFacts], list[ConsumerFacts], Decision]] = [
    ("nothing at all", [], [], NOTHING),
    ("a producer that is due", [ProducerFacts(1, 0, NOW)], [], Decision(handler=1)),
    ("a producer that is to come", [ProducerFacts(1, 0, AFTER)], [], Decision(due_at=AFTER)),
    ("a producer whose spec has ended", [ProducerFacts(1, 0, None)], [], NOTHING),
    (
        "the one that waits longest",
        [ProducerFacts(1, 0, NOW), ProducerFacts(2, 1, BEFORE)],
        [],
        Decision(handler=2),
    ),
    (
        "producers in their order",
        [ProducerFacts(2, 1, NOW), ProducerFacts(1, 0, NOW)],
        [],
        Decision(handler=1),
    ),
    ("a consumer with events", [], [ConsumerFacts(3, 0, True, oldest=NOW)], Decision(handler=3)),
    ("a consumer that never looked", [], [ConsumerFacts(3, 0, True)], Decision(handler=3)),
    ("events that it has seen", [], [ConsumerFacts(3, 0, False, oldest=BEFORE)], NOTHING),
    ("a wake time that has come", [], [ConsumerFacts(3, 0, False, wake_at=NOW)], Decision(handler=3)),
    ("a wake time that is to come", [], [ConsumerFacts(3, 0, False, wake_at=AFTER)], Decision(due_at=AFTER)),
    ("events before the wake time", [], [ConsumerFacts(3, 0, True, AFTER, NOW)], Decision(handler=3)),
    (
        "consumers before producers",
        [ProducerFacts(1, 0, BEFORE)],
        [ConsumerFacts(3, 1, True, oldest=NOW)],
        Decision(handler=3),
    ),
    (
        "the oldest event first",
        [],
        [ConsumerFacts(3, 0, True, oldest=NOW), ConsumerFacts(4, 1, True, oldest=BEFORE)],
        Decision(handler=4),
    ),
    (
        "an event from a clock that is ahead before none",
        [],
        [ConsumerFacts(3, 0, True), ConsumerFacts(4, 1, True, oldest=AFTER)],
        Decision(handler=4),
    ),
    (
        "in their order if equal",
        [],
        [ConsumerFacts(4, 1, True, oldest=NOW), ConsumerFacts(3, 0, True, oldest=NOW)],
        Decision(handler=3),
    ),
    (
        "an old event that it has seen does not let it go before others",
        [],
        [ConsumerFacts(3, 0, False, oldest=BEFORE), ConsumerFacts(4, 1, True, oldest=NOW)],
        Decision(handler=4),
    ),
    (
        "the earliest of what is to come",
        [ProducerFacts(1, 0, LATER), ProducerFacts(2, 1, None)],
        [ConsumerFacts(3, 2, False, wake_at=AFTER), ConsumerFacts(4, 3, False)],
        Decision(due_at=AFTER),
    ),
]


@pytest.mark.parametrize(
    ("producers", "consumers", "expected"), [row[1:] for row in IDLE], ids=[row[0] for row in IDLE]
)
def test_idle(producers: list[ProducerFacts], consumers: list[ConsumerFacts], expected: Decision) -> None:
    assert decide(Facts(True, None, producers, consumers), NOW) == expected


OPEN: list[tuple[str, OpenRun, Decision]] = [
    ("active", OpenRun(True), NOTHING),
    ("active, whatever its time", OpenRun(True, BEFORE), NOTHING),
    ("stuck for a person", OpenRun(False), NOTHING),
    ("in backoff", OpenRun(False, AFTER), Decision(due_at=AFTER)),
    ("at the end of its backoff", OpenRun(False, NOW), Decision(follow=True)),
    ("past it", OpenRun(False, BEFORE), Decision(follow=True)),
]


@pytest.mark.parametrize(("run", "expected"), [row[1:] for row in OPEN], ids=[row[0] for row in OPEN])
def test_with_an_open_run_nothing_else_starts(run: OpenRun, expected: Decision) -> None:
    everything = [ProducerFacts(1, 0, BEFORE)], [ConsumerFacts(3, 0, True, BEFORE, BEFORE)]
    assert decide(Facts(True, run, *everything), NOW) == expected


@pytest.mark.parametrize("run", [None, *(row[1] for row in OPEN)])
def test_a_workflow_that_is_paused_or_stopped_starts_nothing(run: OpenRun | None) -> None:
    everything = [ProducerFacts(1, 0, BEFORE)], [ConsumerFacts(3, 0, True, BEFORE, BEFORE)]
    assert decide(Facts(False, run, *everything), NOW) == NOTHING
