"""Conflict token: an update is based on the latest state, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from operations.initiator import Initiator
from schedules.models import Conflict, Schedule
from tests.base import NOW, SOMEBODY, break_down, claim, everything, fresh, make_schedule, make_worker
from tests.timeline import Timeline, minutes

pytestmark = pytest.mark.django_db
ADA, BOB = SOMEBODY, Initiator("user", "8", "bob")
EVERY_FIVE = {"every": ["5m"]}


def test_the_second_one_is_refused_told_the_current_token_and_may_repeat_it() -> None:
    """Nobody's words are lost, even if they change different fields."""
    schedule = make_schedule(spec=EVERY_FIVE)
    assert schedule.token == 1
    adas, bobs = fresh(schedule), fresh(schedule)
    edit(adas, ADA, spec={"every": ["10m"]})
    before = everything()
    with pytest.raises(Conflict) as conflict:
        edit(bobs, BOB, description="Bob's words")
    assert conflict.value.token == 2
    assert "Reload it, then repeat your change" in str(conflict.value)
    assert everything() == before
    edit(fresh(schedule), BOB, description="Bob's words")
    after = fresh(schedule)
    assert (after.token, after.spec, after.description) == (3, {"every": ["10m"]}, "Bob's words")


CHANGES: dict[str, Callable[[Schedule, int], Any]] = {
    "edit": lambda s, token: s.edit(token=token, initiator=ADA, now=NOW, changes={"description": "x"}),
    "edit of the runs left": lambda s, token: s.edit(
        token=token, initiator=ADA, now=NOW, changes={"remaining": 5}
    ),
    "pause": lambda s, token: s.pause(initiator=ADA, now=NOW, token=token),
    "skip next": lambda s, token: s.skip_next(initiator=ADA, now=NOW, token=token),
    "resume": lambda s, token: s.resume(initiator=ADA, now=NOW, token=token),
    "unskip": lambda s, token: s.unskip(minutes(5), initiator=ADA, now=NOW, token=token),
    "close": lambda s, token: s.close(initiator=ADA, now=NOW, token=token),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_is_refused_if_it_is_stale_and_moves_it_by_one(
    change: Callable[[Schedule, int], Any],
) -> None:
    schedule = make_schedule(spec=EVERY_FIVE)
    schedule.pause(initiator=BOB, now=NOW)
    schedule.resume(initiator=BOB, now=NOW)
    schedule.skip_next(initiator=BOB, now=NOW)
    if change is CHANGES["resume"]:
        schedule.pause(initiator=BOB, now=NOW)
    stale, before = fresh(schedule).token - 1, everything()
    with pytest.raises(Conflict) as conflict:
        change(schedule, stale)
    assert conflict.value.token == stale + 1
    assert everything() == before
    change(schedule, stale + 1)
    assert schedule.token == fresh(schedule).token == stale + 2


def test_what_the_system_does_by_itself_or_to_all_moves_it_too() -> None:
    schedule = make_schedule(spec=EVERY_FIVE, pause_on_failure=True)
    tick(minutes(5))
    worker = make_worker()
    break_down(worker, *claim(worker, now=minutes(5)), now=minutes(6))
    tick(minutes(7))
    assert (fresh(schedule).status, fresh(schedule).token) == ("paused", 2)
    schedule.pause(initiator=ADA, now=minutes(8), until=minutes(9))
    tick(minutes(9))
    assert (fresh(schedule).status, fresh(schedule).token) == ("active", 4)
    Schedule.objects.pause_all(initiator=ADA, now=minutes(9))
    assert fresh(schedule).token == 5
    Schedule.objects.resume_all(initiator=ADA, now=minutes(9))
    assert fresh(schedule).token == 6


def test_neither_cursors_counters_nor_runs_left_move_it() -> None:
    schedule = make_schedule(spec=EVERY_FIVE, remaining=5)
    adas = fresh(schedule)
    timeline = Timeline([7])
    timeline.pass_to(21)
    trigger(schedule, initiator=BOB, now=minutes(22), overlap="allow_all")
    after = fresh(schedule)
    assert (after.processed_until, after.remaining, after.started_count) == (minutes(20), 2, 4)
    assert (after.skipped_count, after.token) == (1, 1)
    edit(adas, ADA, at=23, description="Ada was reading all the time")
    assert fresh(schedule).remaining == 2


def test_what_is_wrong_does_not_move_it() -> None:
    schedule = make_schedule()
    for wrong in ({"overlap": "most"}, {"spec": {"cron": ["x"]}}, {"status": "closed"}, {"token": 7}):
        with pytest.raises(ValidationError):
            edit(fresh(schedule), ADA, **wrong)
    with pytest.raises(ValidationError):
        schedule.pause(initiator=ADA, now=NOW, until=NOW - timedelta(minutes=1))
    assert fresh(schedule).token == 1


def edit(schedule: Schedule, by: Initiator, *, at: float = 0, **changes: Any) -> None:
    """With the token that this editor has read."""
    schedule.edit(token=schedule.token, initiator=by, now=minutes(at), changes=changes)
