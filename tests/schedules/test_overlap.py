"""What becomes of due occurrences: a table of decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from schedules.overlap import Fate, Pending, decide

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
DAY = 86_400


def pending(id: int, late: float = 0, *, source: str = "auto", policy: str = "skip") -> Pending:
    """An occurrence that was due `late` seconds ago."""
    at = NOW - timedelta(seconds=late)
    return Pending(id, source, policy, nominal_at=at, due_at=at)


def verdicts(
    *occurrences: Pending,
    running: tuple[int, ...] = (),
    catch_up_seconds: int | None = DAY,
) -> dict[int, str]:
    fates = decide(occurrences, running, catch_up_seconds=catch_up_seconds, now=NOW)
    return {fate.id: fate.verdict for fate in fates}


def test_nothing_pending_decides_nothing() -> None:
    assert verdicts() == {}
    assert verdicts(running=(1,)) == {}


def test_what_is_due_starts_when_nothing_runs() -> None:
    assert verdicts(pending(1)) == {1: "start"}


def test_what_is_not_due_yet_stays_pending() -> None:
    assert verdicts(pending(1, late=-1)) == {}
    assert verdicts(pending(1, late=-1), running=(9,)) == {}


def test_skip_meets_a_running_execution_and_names_it() -> None:
    fates = decide([pending(1)], [41, 42], catch_up_seconds=DAY, now=NOW)
    assert fates == [Fate(1, "skip", blocked_by=41)]


def test_skip_starts_the_earliest_inside_the_window_and_blocks_the_rest_by_it() -> None:
    times = [pending(3, 100), pending(2, 200), pending(1, 300)]
    fates = decide(times, [], catch_up_seconds=250, now=NOW)
    assert fates == [Fate(1, "miss"), Fate(2, "start"), Fate(3, "skip", behind=2)]


def test_allow_all_starts_every_one_beside_what_runs() -> None:
    times = [pending(number, number, policy="allow_all") for number in (1, 2, 3)]
    assert verdicts(*times, running=(7,)) == {1: "start", 2: "start", 3: "start"}


def test_each_occurrence_carries_its_own_policy() -> None:
    fates = {
        fate.id: fate
        for fate in decide(
            [pending(1, 30, policy="allow_all"), pending(2, 20), pending(3, 10, policy="allow_all")],
            [],
            catch_up_seconds=DAY,
            now=NOW,
        )
    }
    assert fates == {1: Fate(1, "start"), 2: Fate(2, "skip", behind=1), 3: Fate(3, "start")}


def test_manual_comes_before_automatic_before_backfill_whatever_their_times() -> None:
    occurrences = [
        pending(1, 300, source="backfill"),
        pending(2, 200),
        pending(3, 100, source="manual"),
    ]
    fates = decide(occurrences, [], catch_up_seconds=DAY, now=NOW)
    assert [fate.id for fate in fates] == [3, 2, 1]
    assert [fate.verdict for fate in fates] == ["start", "skip", "skip"]


def test_equal_times_are_settled_in_the_order_of_their_creation() -> None:
    assert verdicts(pending(2, 5), pending(1, 5)) == {1: "start", 2: "skip"}


@pytest.mark.parametrize(
    ("catch_up_seconds", "late", "verdict"),
    [
        pytest.param(None, 10 * 365 * DAY, "start", id="unset is unlimited"),
        pytest.param(0, 0, "start", id="none, on time"),
        pytest.param(0, 10, "start", id="none, ten seconds late is on time"),
        pytest.param(0, 10.001, "miss", id="none, later than that"),
        pytest.param(5, 10, "start", id="a window below ten seconds"),
        pytest.param(60, 60, "start", id="the last moment of the window"),
        pytest.param(60, 60.001, "miss", id="just past the window"),
    ],
)
def test_the_catch_up_window(catch_up_seconds: int | None, late: float, verdict: str) -> None:
    assert verdicts(pending(1, late), catch_up_seconds=catch_up_seconds) == {1: verdict}


def test_the_window_is_measured_from_the_due_time_not_from_the_nominal_time() -> None:
    jittered = Pending(1, "auto", "skip", nominal_at=NOW - timedelta(seconds=90), due_at=NOW)
    assert verdicts(jittered, catch_up_seconds=60) == {1: "start"}


@pytest.mark.parametrize("source", ["manual", "backfill", "event"])
def test_only_automatic_occurrences_can_come_too_late(source: str) -> None:
    assert verdicts(pending(1, 10 * DAY, source=source), catch_up_seconds=0) == {1: "start"}


def test_a_missed_one_blocks_nobody() -> None:
    assert verdicts(pending(1, 100), pending(2, 1), catch_up_seconds=50) == {1: "miss", 2: "start"}


def test_what_is_too_late_is_missed_even_while_something_runs() -> None:
    assert verdicts(pending(1, 100), running=(5,), catch_up_seconds=50) == {1: "miss"}
