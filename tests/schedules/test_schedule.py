"""Schedule: active ⇄ paused → closed. Each change moves the token and leaves its record."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.loops.manual_runs import trigger
from execution.models import Execution
from schedules.generator import generate
from schedules.models import Refused, Schedule, timetable
from schedules.permissions import NotYours
from schedules.spec import timeline
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, queue, step
from tests.refusing import database_that_refuses
from tests.timeline import minutes

pytestmark = pytest.mark.django_db
HOURLY = {"cron": ["0 * * * *"]}
EVERY_MINUTE = {"cron": ["* * * * *"]}
# From one minute after NOW on, each second is left out by itself.
LATER = {"year": "2026-2999", "minute": "1-59"}
SOON_STUCK = {
    "every": ["1s"],
    "start_at": "2026-11-16T03:00:00Z",
    "exclude": [LATER | {"second": "0-58"}, LATER | {"second": "59"}, {"minute": "0", "hour": "0-2,4-23"}],
}


@pytest.fixture
def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for times that meets nothing but exclusions ends early."""
    monkeypatch.setattr(timeline, "CANDIDATES", 500)


def make_stuck() -> Schedule:
    """Its spec can be read, but a search for its times is given up."""
    schedule = make_schedule(spec=SOON_STUCK)
    generate(minutes(1.5))
    assert fresh(schedule).spec_error
    return fresh(schedule)


def edit(schedule: Schedule, *, now: datetime = NOW, **changes: Any) -> None:
    schedule.edit(token=schedule.token, initiator=SOMEBODY, now=now, changes=changes)


def record(operation: str) -> Activity:
    """The one record of this kind of change."""
    return Activity.objects.get(operation=operation)


def details(operation: str) -> dict[str, Any]:
    kept = record(operation).details
    assert kept is not None
    return dict(kept)


class TestDefine:
    def test_it_runs_knows_its_next_time_and_is_on_record(self) -> None:
        schedule = make_schedule(step("a"), name="Nightly", spec=HOURLY)
        assert (schedule.status, schedule.token, schedule.catch_up_seconds) == ("active", 1, 86_400)
        assert (schedule.processed_until, schedule.next_run_at) == (NOW, minutes(60))
        made = record("create")
        assert (made.status, made.target_type, made.target_id) == ("complete", "schedule", str(schedule.pk))
        assert (made.target_name, made.initiator_name, made.finished_at) == ("Nightly", "ada", NOW)
        assert details("create")["spec"] == HOURLY
        assert [s["name"] for s in details("create")["steps"]] == ["a"]

    @pytest.mark.parametrize(
        ("fields", "wrong"),
        [
            ({"name": "NIGHTLY "}, {"__all__"}),
            ({"spec": {"at": ["2020-01-01T00:00:00Z"]}}, {"spec.at"}),
            ({"overlap": "buffer_most"}, {"overlap"}),
            ({"catch_up_seconds": -1}, {"catch_up_seconds"}),
            (
                {"name": " ", "spec": {"cron": ["x"]}, "steps": [{"name": ""}]},
                {"name", "spec.cron", "steps.0.name", "steps.0.step_type"},
            ),
            (
                {"steps": [{"name": "", "step_type": "http", "config": {}, "pool": ""}]},
                {"steps.0.name", "steps.0.pool", "steps.0.config.url"},
            ),
            ({"steps": [step(step_type=["http"])]}, {"steps.0.step_type"}),
            ({"steps": [step(config=None, max_retries=-1)]}, {"steps.0.config", "steps.0.max_retries"}),
        ],
    )
    def test_nothing_is_saved_if_anything_is_wrong(self, fields: dict[str, Any], wrong: set[str]) -> None:
        make_schedule(name="Nightly")
        given = {"name": "x", "spec": {}, "steps": [step()]} | fields
        before = everything()
        with pytest.raises(ValidationError) as error:
            Schedule.objects.define(**given, initiator=SOMEBODY, now=NOW)
        assert set(error.value.message_dict) == wrong
        assert everything() == before

    def test_who_may_not_use_secrets_is_not_told_of_them(self) -> None:
        """Hints name what is alike: the permission is asked for before anything else is checked."""
        schedule, before = make_schedule(), everything()
        guess = step(
            "guess", step_type="http", config={"url": "https://x.example/", "body": "{{ secrets.a }}"}
        )
        by: dict[str, Any] = {"may": lambda _: False, "initiator": SOMEBODY, "now": NOW}
        for verb in (
            partial(Schedule.objects.define, name="x", spec={}),
            partial(schedule.edit, token=0, changes={}),
        ):
            with pytest.raises(NotYours, match="“guess”"):
                verb(steps=[guess], **by)
        assert everything() == before


class TestEdit:
    def test_it_changes_the_definition_moves_the_token_and_leaves_a_record(self) -> None:
        schedule = make_schedule(step("a"), name="Old")
        steps = [step("b"), step("c")]
        schedule.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"name": "New"}, steps=steps)
        schedule = fresh(schedule)
        assert (schedule.name, schedule.token) == ("New", 2)
        assert [s.name for s in schedule.steps.all()] == ["b", "c"]
        before, after = details("edit")["before"], details("edit")["after"]
        assert (before["name"], after["name"]) == ("Old", "New")
        assert [s["name"] for s in after["steps"]] == ["b", "c"]

    def test_what_is_wrong_changes_nothing(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        before = everything()
        with pytest.raises(ValidationError):
            edit(fresh(schedule), now=minutes(5), spec={"cron": ["nonsense"]})
        assert everything() == before

    def test_without_a_new_spec_the_cursor_stays(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        edit(schedule, now=minutes(5), description="x", spec=EVERY_MINUTE)
        assert fresh(schedule).processed_until == NOW
        assert not schedule.occurrences.exists()

    def test_one_that_is_far_behind_asks_to_try_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timetable, "TIMES_PER_PASS", 5)
        schedule = make_schedule(spec=EVERY_MINUTE)
        before = everything()
        with pytest.raises(Refused, match="catching up"):
            edit(fresh(schedule), now=minutes(5 * timetable.EDIT_PASSES + 1), spec=HOURLY)
        assert everything() == before

    def test_what_is_pending_queued_or_running_stays_as_it_was(self) -> None:
        schedule = make_schedule(step("a"), step("b", 1), spec=EVERY_MINUTE)
        generate(minutes(1))
        trigger(schedule, initiator=SOMEBODY, now=minutes(1))
        execution = Execution.objects.get()
        before = everything()
        changes = {"spec": HOURLY, "overlap": "allow_all"}
        schedule.edit(token=1, initiator=SOMEBODY, now=minutes(1), changes=changes, steps=[step("other")])
        after = everything()
        for kept in ("Occurrence", "Execution", "WorkerTask"):
            assert after[kept] == before[kept]
        assert queue(execution) == {"a": "queued", "b": "waiting"}

    @pytest.mark.parametrize("is_known", [True, False], ids=["known", "not noticed yet"])
    def test_a_new_spec_repairs_a_broken_one(self, is_known: bool) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.update(spec={"cron": ["broken"]})
        if is_known:
            generate(minutes(1))
        assert bool(fresh(schedule).spec_error) is is_known
        edit(fresh(schedule), now=minutes(2), spec=HOURLY)
        assert (fresh(schedule).spec_error, fresh(schedule).next_run_at) == ("", minutes(60))

    @pytest.mark.parametrize(
        ("changes", "fates"),
        [
            ({"description": "as it was"}, {1: "missed", 2: "missed", 3: "pending", 4: "pending"}),
            ({"spec": {"cron": ["*/4 * * * *"]}}, {4: "pending"}),
        ],
        ids=["the spec that can be read again", "another spec"],
    )
    def test_times_that_passed_while_it_was_broken(
        self, changes: dict[str, Any], fates: dict[int, str]
    ) -> None:
        """What a spec owes is recorded once it can be read; a new spec owes nothing from before."""
        schedule = make_schedule(spec=EVERY_MINUTE, catch_up_seconds=60)
        with database_that_refuses("1 = 1", table="schedules_occurrence", event="INSERT"):
            generate(minutes(1))
        edit(fresh(schedule), now=minutes(3), **changes)
        generate(minutes(4))
        found = schedule.occurrences.order_by("nominal_at").values_list("nominal_at", "status")
        assert list(found) == [(minutes(n), status) for n, status in fates.items()]
        is_lost = "spec" in changes
        assert ("Mon 2026-11-16 03:00:00 UTC" in record("edit").message) == is_lost
        assert ("this row is refused" in record("edit").message) == is_lost

    @pytest.mark.usefixtures("soon_given_up")
    def test_other_changes_leave_a_broken_one_broken(self) -> None:
        schedule = make_stuck()
        edit(schedule, now=minutes(2), description="new words")
        assert (fresh(schedule).description, fresh(schedule).token) == ("new words", 2)
        assert fresh(schedule).next_run_at is None
        assert fresh(schedule).spec_error.startswith("exclude: no scheduled times are left")

    @pytest.mark.usefixtures("soon_given_up")
    def test_a_new_spec_that_leaves_nothing_where_the_old_one_got_to_is_refused(self) -> None:
        """Whoever waited for the lock has read the clock before others went on."""
        schedule = make_schedule(spec=HOURLY)
        Schedule.objects.update(processed_until=minutes(2))
        with pytest.raises(ValidationError) as refused:
            edit(fresh(schedule), now=NOW, spec=SOON_STUCK)
        assert refused.value.message_dict["spec"][0].startswith("exclude: no scheduled times are left")
        assert fresh(schedule).spec == HOURLY

    @pytest.mark.usefixtures("soon_given_up")
    @pytest.mark.parametrize("is_known", [True, False], ids=["known", "not noticed yet"])
    def test_what_needs_its_times_is_refused_in_words(self, is_known: bool) -> None:
        schedule = make_stuck()
        if not is_known:
            Schedule.objects.update(spec_error="")
        now = minutes(2)
        for asking in (
            lambda: fresh(schedule).skip_next(initiator=SOMEBODY, now=now),
            lambda: fresh(schedule).next_times(3, now=now),
            lambda: fresh(schedule).upcoming(3, now=now),
        ):
            with pytest.raises(
                Refused, match=f"The spec of “{schedule}” is invalid: exclude: no scheduled times are left"
            ):
                asking()


def test_it_is_paused_paused_again_resumed_and_closed_and_each_leaves_a_record() -> None:
    schedule = make_schedule(spec=HOURLY)
    schedule.pause(initiator=SOMEBODY, now=minutes(1), note="audit", until=minutes(90), token=1)
    schedule = fresh(schedule)
    assert (schedule.status, schedule.token, schedule.pause_note) == ("paused", 2, "audit")
    assert (schedule.paused_at, schedule.paused_until) == (minutes(1), minutes(90))
    assert schedule.next_run_at == minutes(60)
    assert (record("pause").message, record("pause").initiator_name) == ("audit", "ada")
    assert details("pause") == {"until": "2026-11-16T04:30:00Z"}
    schedule.pause(initiator=SOMEBODY, now=minutes(2), note="for good")
    assert (fresh(schedule).pause_note, fresh(schedule).paused_until) == ("for good", None)
    schedule.resume(initiator=SOMEBODY, now=minutes(3), token=3)
    schedule = fresh(schedule)
    assert (schedule.status, schedule.token, schedule.pause_note) == ("active", 4, "")
    assert (schedule.paused_at, schedule.paused_until) == (None, None)
    assert record("resume").initiator_name == "ada"
    schedule.close(initiator=SOMEBODY, now=minutes(4), token=4)
    schedule = fresh(schedule)
    assert (schedule.status, schedule.next_run_at, schedule.token) == ("closed", None, 5)
    assert record("close").initiator_name == "ada"


def test_one_with_a_broken_spec_can_be_closed() -> None:
    schedule = make_schedule(spec=EVERY_MINUTE)
    Schedule.objects.update(spec={"cron": ["broken"]})
    fresh(schedule).close(initiator=SOMEBODY, now=minutes(2))
    assert fresh(schedule).status == "closed"


def test_nothing_moves_a_closed_schedule() -> None:
    schedule = make_schedule()
    by: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW}
    schedule.close(**by)
    before = everything()
    verbs = schedule.pause, schedule.resume, schedule.close, partial(trigger, schedule)
    for verb in (*verbs, partial(schedule.edit, token=2, changes={"name": "x"})):
        with pytest.raises(Refused, match="closed"):
            verb(**by)
    assert everything() == before
