"""What becomes of pending occurrences: the six policies in a table, and what holds whatever is pending."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.overlap import Decision, Fate, Pending, Running, decide

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
DAY = 86_400
POLICIES = ("skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all")
SOURCES = {"m": "manual", "e": "event", "a": "auto", "b": "backfill"}
RUNNING = Running(900, "auto")
RANKS = {source: rank for rank, source in enumerate(SOURCES.values())}

# m, e, a and b are pending occurrences: manual, of an event, automatic, of a backfill; a1 is before a2.
# "a1:skip" has a policy of its own. What runs is named by its source; "auto!" was asked to stop before.
# "by" is what the skipped and the waiting ones are told to be in their way.
TABLE = """
  runs          | pending           | starts   | waits       | skipped     | replaced | by  | stops

skip
                |                   |          |             |             |          |     |
                | a1 a2 a3          | a1       |             | a2 a3       |          | a1  |
                | m1 e1 a1 a2 b1    | m1       |             | e1 a1 a2 b1 |          | m1  |
  auto          | m1 e1 a1 a2 b1    |          |             | m1 e1 a1 a2 b1 |       | run |
  auto!         | m1 a1             |          |             | m1 a1       |          | run |
  backfill      | a1 a2 a3          |          | a3          |             | a1 a2    | run |
  backfill!     | a1                |          | a1          |             |          | run |
  backfill      | m1 m2 e1 a1 a2 b1 |          | a2          | m1 m2 e1 b1 | a1       | run |
  backfill auto | a1 a2             |          |             | a1 a2       |          | run |
  backfill      | a1 b1:buffer_all  |          | a1 b1       |             |          | run |
                | m1:allow_all a1   | m1       |             | a1          |          | m1  |
  auto          | m1:allow_all a1   | m1       |             | a1          |          | run |
  auto          | m1:buffer_one a1  |          | m1          | a1          |          | run |
  auto          | m1:buffer_all m2:buffer_all a1 |  | m1 m2  | a1          |          | run |
  auto          | m1:cancel_other a1 |         | m1          | a1          |          | run | cancel run
  auto          | m1:terminate_other a1 | m1   |             | a1          |          | m1  | end run
                | a1 b1:allow_all b2:allow_all | a1 b1 b2 |  |             |          |     |

buffer_one
                | a1 a2 a3 a4       | a1       | a4          |             | a2 a3    | a1  |
                | m1 m2 m3          | m1       | m2 m3       |             |          | m1  |
                | m1 a1 a2 b1 b2    | m1       | a2 b2       |             | a1 b1    | m1  |
  auto          | m1 m2 a1 a2 b1 b2 |          | m1 m2 a2 b2 |             | a1 b1    | run |
  auto!         | a1 a2             |          | a2          |             | a1       | run |
  backfill      | a1 a2             |          | a2          |             | a1       | run |

buffer_all
                | m1 m2 a1 a2 b1    | m1       | m2 a1 a2 b1 |             |          | m1  |
  auto          | a1 a2 a3          |          | a1 a2 a3    |             |          | run |
  auto!         | m1 a1 b1          |          | m1 a1 b1    |             |          | run |
  backfill      | m1 a1 b1          |          | m1 a1 b1    |             |          | run |
  auto          | m1:skip a1 a2     |          | a1 a2       | m1          |          | run |

cancel_other
                | a1 a2 a3          | a3       |             |             | a1 a2    |     |
                | m1 a1 a2 b1 b2    | m1       | a2 b2       |             | a1 b1    | m1  |
  auto          | a1 a2 a3          |          | a3          |             | a1 a2    | run | cancel run
  auto!         | a1                |          | a1          |             |          | run |
  auto! auto    | a1                |          | a1          |             |          | run | cancel run2
  auto manual   | m1 m2 a1 a2       |          | m1 m2 a2    |             | a1       | run | cancel run run2
  backfill      | a1                |          | a1          |             |          | run | cancel run
  auto          | m1:terminate_other a1 | m1   | a1          |             |          | m1  | end run
  auto          | m1:allow_all a1   |          | m1 a1       |             |          | run | cancel run

terminate_other
                | a1 a2 a3          | a3       |             |             | a1 a2    |     |
  auto          | a1 a2 a3          | a3       |             |             | a1 a2    |     | end run
  auto!         | a1                | a1       |             |             |          |     | end run
  auto manual!  | a1                | a1       |             |             |          |     | end run run2
  backfill      | a1                | a1       |             |             |          |     | end run
  auto          | m1 a1 a2 b1 b2    | m1       | a2 b2       |             | a1 b1    | m1  | end run

allow_all
                | a1 a2             | a1 a2    |             |             |          |     |
  auto          | m1 e1 a1 a2 b1    | m1 e1 a1 a2 b1 |       |             |          |     |
  auto!         | a1                | a1       |             |             |          |     |
  backfill*9    | m1 a1 b1 b2       | m1 a1 b1 | b2          |             |          | run |
  backfill*10   | m1 a1 a2 b1 b2    | m1 a1 a2 | b1 b2       |             |          | run |
  auto*10       | b1                | b1       |             |             |          |     |
  auto          | m1:skip a1        | a1       |             | m1          |          | run |
  auto          | m1:cancel_other a1 a2 |      | m1 a1 a2    |             |          | run | cancel run
  auto!         | m1:cancel_other a1 |         | m1 a1       |             |          | run |
                | m1:cancel_other a1 a2 | m1 a1 a2 |         |             |          |     |
  auto          | m1:terminate_other a1 | m1 a1 |            |             |          |     | end run
                | a1 a2 b1:buffer_all | a1 a2  | b1          |             |          | a1  |
"""


def rows() -> Iterator[list[str]]:
    policy = ""
    for line in TABLE.splitlines()[2:]:
        if "|" in line:
            yield [policy, *(cell.strip() for cell in line.split("|"))]
        elif line:
            policy = line


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: " ".join(filter(None, row[:3])))
def test_the_table(row: list[str]) -> None:
    policy, runs, pending, starts, waits, skipped, replaced, by, stops = row
    occurrences, executing = named(pending, policy), running(runs)
    decision = settle(shuffled(occurrences.values()), list(executing.values()))
    names = {occurrence.id: name for name, occurrence in occurrences.items()}
    names |= {execution.id: name for name, execution in executing.items()}
    told: dict[str, list[str]] = {"start": [], "keep": [], "overlap": [], "superseded": []}
    for fate in decision.fates:
        told[fate.reason if fate.verdict == "skip" else fate.verdict].append(names[fate.id])
        if fate.reason == "overlap":
            assert names[fate.blocked_by or fate.behind or 0] == by
    expected = {"start": starts, "keep": waits, "overlap": skipped, "superseded": replaced}
    assert {kind: " ".join(listed) for kind, listed in told.items()} == expected
    stopped = [("cancel", decision.cancel), ("end", decision.terminate)]
    assert stops == " ".join(f"{verb} {' '.join(names[pk] for pk in pks)}" for verb, pks in stopped if pks)


def test_every_policy_is_shown_idle_running_cancelling_and_beside_a_backfill() -> None:
    shown = {(policy, runs) for policy, runs, *_ in rows()}
    assert {(policy, runs) for policy in POLICIES for runs in ("", "auto", "auto!")} <= shown
    assert {policy for policy, runs in shown if "backfill" in runs} == set(POLICIES)


class TestCatchUp:
    @pytest.mark.parametrize(
        ("window", "late", "verdict"),
        [
            (None, 10 * 365 * DAY, "start"),
            (0, 10, "start"),
            (0, 10.001, "miss"),
            (5, 10, "start"),
            (3600, 3600, "start"),
            (3600, 3600.001, "miss"),
        ],
    )
    def test_the_window(self, window: int | None, late: float, verdict: str) -> None:
        for policy in POLICIES:
            assert verdicts(pending(1, late, policy=policy), window=window) == {1: verdict}, policy

    def test_it_is_measured_from_the_planned_time_not_from_the_nominal_one(self) -> None:
        jittered = Pending(1, "auto", "skip", nominal_at=NOW - timedelta(hours=2), planned_at=NOW)
        assert verdicts(jittered, window=0) == {1: "start"}


class TestRunsLeft:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_with_none_left_automatic_ones_are_skipped_and_stop_nobody(self, policy: str) -> None:
        decision = settle([pending(1, policy=policy)], [RUNNING], remaining=0)
        assert decision == Decision([Fate(1, "skip", "no runs left")])

    @pytest.mark.parametrize("source", ["manual", "event", "backfill"])
    def test_only_automatic_starts_need_and_use_them(self, source: str) -> None:
        assert verdicts(pending(1, 0, source), remaining=0) == {1: "start"}
        both = pending(1, 5, source, "allow_all"), pending(2, 5, policy="allow_all")
        assert verdicts(*both, remaining=1) == {1: "start", 2: "start"}


@pytest.mark.parametrize(("window", "remaining", "verdict"), [(50, None, "miss"), (None, 0, "skip")])
def test_nobody_waits_for_one_that_will_not_start(
    window: int | None, remaining: int | None, verdict: str
) -> None:
    both = [pending(1, 0, "manual", "allow_all"), pending(2, 100, policy="cancel_other")]
    told = settle(both, [RUNNING], window, remaining)
    assert {fate.id: fate.verdict for fate in told.fates} == {1: "start", 2: verdict}
    assert told.cancel == ()


@dataclass(frozen=True)
class Case:
    pending: list[Pending]
    running: list[Running]
    window: int | None
    remaining: int | None

    @cached_property
    def decision(self) -> Decision:
        return settle(self.pending, self.running, self.window, self.remaining)

    @cached_property
    def timely(self) -> list[Pending]:
        """In order, without those that come too late."""
        timely = [occurrence for occurrence in self.pending if not self.is_too_late(occurrence)]
        return sorted(timely, key=lambda o: (RANKS[o.source], o.nominal_at, o.id))

    @property
    def winners(self) -> list[Pending]:
        """The newest of each source, and all manual ones."""
        last = {occurrence.source: occurrence.id for occurrence in self.timely}
        return [o for o in self.timely if o.source == "manual" or last[o.source] == o.id]

    def is_too_late(self, occurrence: Pending) -> bool:
        if self.window is None or occurrence.source != "auto" or occurrence.is_kept:
            return False
        return (NOW - occurrence.planned_at).total_seconds() > max(self.window, 10)

    def told(self, verdict: str, reason: str = "") -> list[Pending]:
        by_id = {occurrence.id: occurrence for occurrence in self.pending}
        return [by_id[f.id] for f in self.decision.fates if f.verdict == verdict and reason in ("", f.reason)]


@cache
def cases(*policies: str) -> st.SearchStrategy[Case]:
    """Up to a dozen pending, some at the same time, some late, some kept before; up to a dozen running."""
    minutes, jitter, booleans = range(0, 90, 10), range(4), (False, True)
    pending = list(itertools.product(SOURCES.values(), policies or POLICIES, minutes, jitter, booleans))
    running = list(itertools.product(SOURCES.values(), booleans))
    return st.builds(
        Case,
        st.lists(st.sampled_from(pending), max_size=12).map(
            lambda rows: [pending_at(pk, *row) for pk, row in enumerate(rows, start=1)]
        ),
        st.lists(st.sampled_from(running), max_size=12).map(
            lambda rows: [Running(pk, *row) for pk, row in enumerate(rows, start=900)]
        ),
        st.sampled_from([None, 0, 1800, 3600]),
        st.sampled_from([None, None, 0, 1, 2, 5]),
    )


def pending_at(id: int, source: str, policy: str, ago: int, jitter: int, is_kept: bool) -> Pending:
    at = NOW - timedelta(minutes=ago)
    return Pending(id, source, policy, at, min(NOW, at + timedelta(minutes=jitter)), is_kept)


def each_has_one_fate_with_a_reason_unless_it_starts(case: Case) -> None:
    fates = case.decision.fates
    assert sorted(fate.id for fate in fates) == sorted(occurrence.id for occurrence in case.pending)
    assert {(fate.verdict, fate.reason) for fate in fates} <= {
        ("start", ""),
        ("keep", "overlap"),
        ("skip", "overlap"),
        ("skip", "superseded"),
        ("skip", "no runs left"),
        ("miss", "later than the catch-up window"),
    }


def it_does_not_matter_in_which_order_they_are_given(case: Case) -> None:
    assert settle(shuffled(case.pending), case.running, case.window, case.remaining) == case.decision


def those_in_the_way_are_named(case: Case) -> None:
    executing, started = {run.id for run in case.running}, {o.id for o in case.told("start")}
    for fate in case.decision.fates:
        assert fate.blocked_by in {None, *executing}
        assert fate.behind in {None, *started}
        if fate.reason == "overlap":
            assert (fate.blocked_by is None) != (fate.behind is None)
        if fate.reason not in ("overlap", "superseded"):
            assert (fate.blocked_by, fate.behind) == (None, None)


def exactly_the_automatic_ones_outside_the_window_are_missed(case: Case) -> None:
    assert {o.id for o in case.told("miss")} == {o.id for o in case.pending if case.is_too_late(o)}


def manual_ones_are_never_superseded_missed_or_out_of_runs(case: Case) -> None:
    manual = {occurrence.id for occurrence in case.pending if occurrence.source == "manual"}
    assert {fate.reason for fate in case.decision.fates if fate.id in manual} <= {"", "overlap"}


def only_allow_all_starts_beside_others(case: Case) -> None:
    going_on = {run.id for run in case.running} - set(case.decision.terminate)
    started = case.told("start")
    alone = [occurrence for occurrence in started if occurrence.policy != "allow_all"]
    assert alone == [] or (alone == started[:1] and not going_on)


def nothing_starts_beside_what_is_asked_to_stop(case: Case) -> None:
    assert not case.decision.cancel or case.told("start") == []


def what_runs_is_stopped_once_and_only_by_the_two_policies_that_do(case: Case) -> None:
    cancel, terminate = case.decision.cancel, case.decision.terminate
    policies = {occurrence.policy for occurrence in case.timely}
    assert len({*cancel, *terminate}) == len(cancel) + len(terminate)
    if terminate:
        assert set(terminate) == {run.id for run in case.running}
        assert "terminate_other" in policies
    if cancel:
        assert set(cancel) == {run.id for run in case.running if not run.is_cancelling}
        assert "cancel_other" in policies


def no_more_automatic_ones_start_than_runs_are_left(case: Case) -> None:
    if case.remaining is None:
        return
    started = [occurrence for occurrence in case.told("start") if occurrence.source == "auto"]
    refused = case.told("skip", "no runs left")
    assert len(started) == case.remaining if refused else len(started) <= case.remaining


def at_most_ten_backfills_run_side_by_side(case: Case) -> None:
    running = [run.id for run in case.running if run.source == "backfill"]
    if len(running) > 10:
        return
    started = [occurrence for occurrence in case.told("start") if occurrence.source == "backfill"]
    assert len(set(running) - set(case.decision.terminate)) + len(started) <= 10


def when_nothing_runs_something_starts(case: Case) -> None:
    idle = replace(case, running=[])
    able = [o for o in idle.timely if o.source != "auto" or idle.remaining != 0]
    assert bool(idle.told("start")) == bool(able)


def nothing_waits_for_ever(case: Case) -> None:
    for _ in range(len(case.pending) + 1):
        kept = [occurrence._replace(is_kept=True) for occurrence in case.told("keep")]
        used = sum(occurrence.source == "auto" for occurrence in case.told("start"))
        left = None if case.remaining is None else case.remaining - used
        case = Case(kept, [], case.window, left)  # all that ran has ended
    assert case.pending == []


PROPERTIES = (
    each_has_one_fate_with_a_reason_unless_it_starts,
    it_does_not_matter_in_which_order_they_are_given,
    those_in_the_way_are_named,
    exactly_the_automatic_ones_outside_the_window_are_missed,
    manual_ones_are_never_superseded_missed_or_out_of_runs,
    only_allow_all_starts_beside_others,
    nothing_starts_beside_what_is_asked_to_stop,
    what_runs_is_stopped_once_and_only_by_the_two_policies_that_do,
    no_more_automatic_ones_start_than_runs_are_left,
    at_most_ten_backfills_run_side_by_side,
    when_nothing_runs_something_starts,
    nothing_waits_for_ever,
)


@settings(max_examples=250)
@given(cases())
def test_whatever_is_pending(case: Case) -> None:
    for holds in PROPERTIES:
        holds(case)


def skip(case: Case) -> None:
    assert case.told("start") == ([] if case.running else case.timely[:1])
    others = {run.source for run in case.running} or {o.source for o in case.told("start")}
    live = [occurrence for occurrence in case.timely if occurrence.source == "auto"]
    assert case.told("keep") == (live[-1:] if others == {"backfill"} else [])
    assert case.told("skip", "superseded") == (live[:-1] if others == {"backfill"} else [])


def buffer_one(case: Case) -> None:
    assert case.told("start") == ([] if case.running else case.timely[:1])
    for source in SOURCES.values():
        left = [o for o in case.timely if o.source == source and o not in case.told("start")]
        kept = [o for o in case.told("keep") if o.source == source]
        assert kept == (left if source == "manual" else left[-1:])
    assert case.told("skip") == case.told("skip", "superseded")


def buffer_all(case: Case) -> None:
    assert case.told("start") == ([] if case.running else case.timely[:1])
    assert [*case.told("start"), *case.told("keep")] == case.timely
    in_order, started = case.timely, []
    while case.timely:
        started += case.told("start")
        case = Case(case.told("keep"), [], None, None)
    assert started == in_order


def cancel_other(case: Case) -> None:
    asked = [run.id for run in case.running if case.timely and not run.is_cancelling]
    assert (list(case.decision.cancel), case.decision.terminate) == (asked, ())
    assert case.told("start") == ([] if case.running else case.winners[:1])
    assert case.told("keep") == case.winners[0 if case.running else 1 :]
    assert case.told("skip", "superseded") == [o for o in case.timely if o not in case.winners]


def terminate_other(case: Case) -> None:
    ended = [run.id for run in case.running if case.timely]
    assert (case.decision.cancel, list(case.decision.terminate)) == ((), ended)
    assert case.told("start") == case.winners[:1]
    assert case.told("keep") == case.winners[1:]
    assert case.told("skip", "superseded") == [o for o in case.timely if o not in case.winners]


def allow_all(case: Case) -> None:
    free = max(0, 10 - [run.source for run in case.running].count("backfill"))
    waiting = [occurrence for occurrence in case.timely if occurrence.source == "backfill"][free:]
    assert case.told("keep") == waiting
    assert case.told("start") == [occurrence for occurrence in case.timely if occurrence not in waiting]


@pytest.mark.parametrize(
    "rule", [skip, buffer_one, buffer_all, cancel_other, terminate_other, allow_all], ids=POLICIES
)
@settings(max_examples=60)
@given(data=st.data())
def test_each_policy_by_itself(rule: Callable[[Case], None], data: st.DataObject) -> None:
    rule(replace(data.draw(cases(rule.__name__)), remaining=None))


def settle(
    occurrences: Iterable[Pending],
    executing: Sequence[Running] = (),
    window: int | None = DAY,
    remaining: int | None = None,
) -> Decision:
    return decide(occurrences, executing, catch_up_seconds=window, now=NOW, remaining=remaining)


def verdicts(*occurrences: Pending, window: int | None = DAY, remaining: int | None = None) -> dict[int, str]:
    return {fate.id: fate.verdict for fate in settle(occurrences, [], window, remaining).fates}


def pending(
    id: int, late: float = 0, source: str = "auto", policy: str = "skip", *, is_kept: bool = False
) -> Pending:
    """An occurrence that was planned `late` seconds ago."""
    at = NOW - timedelta(seconds=late)
    return Pending(id, source, policy, nominal_at=at, planned_at=at, is_kept=is_kept)


def named(cell: str, policy: str) -> dict[str, Pending]:
    """By name, from "a1 a2 m1:allow_all"."""
    occurrences = {}
    for number, token in enumerate(cell.split(), start=1):
        name, _, own = token.partition(":")
        occurrences[name] = pending(number, 100 - int(name[1:]), SOURCES[name[0]], own or policy)
    return occurrences


def running(cell: str) -> dict[str, Running]:
    """By name (run, run2, run3, …), from "auto backfill*9 manual!"."""
    sources: list[str] = []
    for token in cell.split():
        source, _, count = token.partition("*")
        sources += [source] * int(count or 1)
    return {
        "run" if number == 1 else f"run{number}": Running(900 + number, source.rstrip("!"), "!" in source)
        for number, source in enumerate(sources, start=1)
    }


def shuffled(occurrences: Iterable[Pending]) -> list[Pending]:
    """In an order that says nothing."""
    listed = list(occurrences)
    return Random(7).sample(listed, len(listed))
