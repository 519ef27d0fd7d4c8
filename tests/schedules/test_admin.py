from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from activities.models import Activity
from database import clock
from execution.loops.manual_runs import trigger
from execution.models import Execution
from schedules import registry
from schedules.forms.schedule import ScheduleForm
from schedules.models import Occurrence, Schedule, SharedCalendar
from tests.admin_pages import (
    PYTHON,
    complaints,
    listed,
    operation,
    page,
    save,
    sign_in,
    told,
    typed,
    typed_steps,
)
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, step
from tests.workflows.base import make_topics
from text.words import badge

pytestmark = pytest.mark.django_db
BERLIN = {"cron": ["0 * * * *"], "time_zone": "Europe/Berlin"}
CONFLICT = "Another person changed this schedule"


@pytest.fixture
def client() -> Client:
    return sign_in()


def change_page(client: Client, schedule: Schedule) -> Any:
    return client.get(page("schedules_schedule_change", schedule.pk))


ALL_SORTS = {
    "cron": ["0 3 * * *"],
    "every": [{"every": "1h", "offset": "5m"}, "20s"],
    "at": ["2998-06-01T07:00:30Z", "2998-12-01T08:00:00Z"],
    "patterns": [{"times": ["09:00", "12:30"], "weekdays": "mon-fri"}],
    "calendars": [{"hour": "9", "day_of_month": "1", "comment": "first"}],
    "exclude": [{"calendar": "Days off"}, {"dates": "2998-12-24/2998-12-26"}],
    "start_at": "2997-01-01T00:00:00Z",
    "end_at": "2998-12-31T12:00:00Z",
    "jitter": "5m",
    "time_zone": "Europe/London",
    "dst": "literal",
}
FIELDS: dict[str, Any] = {
    "description": "two\nlines",
    "tags": ["finance", "nightly"],
    "memo": {" odd: name": 'a "quoted" text', "two\nlines": "here\nand there", "empty": "", "{": "}"},
    "topics": ["mail", "orders"],
    "overlap": "buffer_all",
    "catch_up_seconds": 5400,
    "timeout_seconds": 90,
    "deadline_seconds": 60,
    "on_failure": "continue",
    "pause_on_failure": True,
    "failures_to_pause": 2,
    "failures_among": 5,
    "remaining": 7,
}


def test_all_there_is_to_a_schedule_is_shown_as_it_would_be_saved_and_can_be_typed_anew(
    client: Client,
) -> None:
    days_off()
    make_topics("mail", "orders")
    schedule = make_schedule(step("a"), step("b", 1, timeout_seconds=60), spec=ALL_SORTS, **FIELDS)
    form = change_page(client, schedule).context["adminform"].form
    shown = {name: form[name].value() for name in form.fields}
    assert (shown["catch_up_seconds"], shown["tags"]) == ("1h30m", "finance, nightly")
    assert shown["at"] == "2998-06-01 08:00:30+01:00\n2998-12-01 08:00+00:00"
    assert ScheduleForm(instance=Schedule(catch_up_seconds=0))["catch_up_seconds"].value() == "0s"
    data: dict[str, Any] = {name: str(value).replace("\n", "\r\n") for name, value in shown.items() if value}
    before, answers = everything(), typed(schedule, steps=typed_steps(schedule), **data)
    response = save(client, answers, schedule)
    assert response.status_code == 302, complaints(response)
    assert everything() == before
    text = client.get(page("schedules_schedule_add")).content.decode()
    assert all(kind.title in text for kind in registry.offered())
    response = save(client, answers | {"name": "Cafe\u0301 "})
    assert response.status_code == 302, complaints(response)
    made = Schedule.objects.get(name="Café")
    for name in FIELDS | {"spec": ALL_SORTS}:
        assert getattr(made, name) == getattr(schedule, name), name
    steps, expected = ([each.as_json() for each in of.steps.all()] for of in (made, schedule))
    assert steps == expected
    created = Activity.objects.get(operation="create", target_type="schedule", target_id=made.pk)
    assert created.initiator_name == "superuser"


def test_what_is_wrong_is_told_at_its_field(settings: Any) -> None:
    """tests/test_bad_input.py has the others."""
    settings.JIM_MINIMUM_INTERVAL_SECONDS = 60
    days_off()
    for field, text, words in (
        ("structured", "hour: 25", "hour 25 is outside the range"),
        ("exclude", "calendar Days of", "unknown calendar 'Days of'; did you mean Days off?"),
        ("end_at", "2020-01-01", "no scheduled times are left"),
        ("every", "30s", "times must be at least 1m apart"),
        ("timeout_seconds", "2y", "Enter a duration such as 90s"),
        ("failures_to_pause", "3", "3 is too high: enter at most 1"),
        ("tags", "x" * 51, "is not a valid tag"),
        ("memo", "no colon here", "has no colon"),
        ("memo", "a: 1\na: 2", "is used twice"),
        ("memo", "{broken", "Expecting"),
        ("memo", "[1]", "Enter names with text values"),
    ):
        form = ScheduleForm(typed(every="1h", paused="on") | {field: text})
        assert words in html.unescape(str(form.errors[field]))


def test_runs_left_are_only_changed_by_whoever_changes_them() -> None:
    """They were used up while somebody edited something else."""
    schedule = make_schedule(remaining=5)
    assert 'name="initial-remaining" value="5"' in ScheduleForm(instance=schedule).as_p()
    Schedule.objects.update(remaining=3)
    for number, shown, is_changed in (("5", "5", False), ("9", "3", True)):
        answers = typed(schedule, remaining=number) | {"initial-remaining": shown}
        form = ScheduleForm(answers, instance=fresh(schedule))
        assert form.is_valid(), form.errors
        assert ("remaining" in form.definition) is is_changed
    # The address of the page for a new one may fill in the number.
    form = ScheduleForm(typed(remaining="5") | {"initial-remaining": "5"})
    assert form.is_valid(), form.errors
    assert form.definition["remaining"] == 5


def test_a_schedule_can_start_paused_with_a_note_and_run_at_once_by_those_who_may_run(client: Client) -> None:
    at_first: dict[str, Any] = {"paused": "on", "note": "not yet", "run_at_once": "on", "tags": "b, a,, b "}
    save(client, typed(**at_first))
    schedule = Schedule.objects.get()
    assert (schedule.status, schedule.pause_note, schedule.tags) == ("paused", "not yet", ["a", "b"])
    assert [occurrence.source for occurrence in schedule.occurrences.all()] == ["manual"]
    author = sign_in("coder")
    assert "run_at_once" not in author.get(page("schedules_schedule_add")).content.decode()
    assert save(author, typed(name="Other", **at_first)).status_code == 302
    assert not Schedule.objects.get(name="Other").occurrences.exists()


def test_the_list_says_how_each_is_and_is_filtered(client: Client) -> None:
    now = clock.now()
    both = {"tags": ["finance", "nightly"], "memo": {"owner": "Ada", "a__b": "x"}}
    make_schedule(name="Both", spec={"cron": ["0 3 * * *"], "time_zone": "Europe/Berlin"}, now=now, **both)
    one = make_schedule(name="One", tags=["finance"], memo={"owner": "Alan", "7": "x", 'é"\\': "y"})
    trigger(one, initiator=SOMEBODY, now=now)
    make_schedule(name="Gone").close(initiator=SOMEBODY, now=now)
    queries = {
        "": ["Both", "One"],
        "state=closed": ["Gone"],
        "q=on": ["One"],
        "tag=nightly": ["Both"],
        "tag=%00": [],
        "memo=owner%3DAda": ["Both"],
        "memo=owner": ["Both", "One"],
        "memo=a__b%3Dx": ["Both"],
        "memo=7%3Dx": ["One"],
        "memo=%C3%A9%22%5C%3Dy": ["One"],
        "memo=%3D": ["Both", "One"],
        "tag=finance&memo=owner%3DAlan": ["One"],
    }
    assert {query: [row.name for row in listed(Schedule, query)] for query in queries} == queries
    text = client.get(f"{page('schedules_schedule_changelist')}?tag=finance&memo=owner").content.decode()
    for words in ("At 03:00 every day, Europe/Berlin", "03:00:00 Europe/Berlin", "in progress"):
        assert words in text
    assert '<input type="hidden" name="tag" value="finance">' in text
    assert re.search(r'href="[^"]*state=active[^"]*"[^>]*>\s*active\s*<', text)
    assert badge("active") in text
    assert "when resumed" not in text
    Schedule.objects.get(name="Both").pause(initiator=SOMEBODY, now=now)
    text = client.get(page("schedules_schedule_changelist")).content.decode()
    assert "when resumed" in text
    assert "03:00:00 Europe/Berlin" not in text


def test_an_edit_replaces_steps_and_moves_the_token(client: Client) -> None:
    schedule = make_schedule(step("a"), step("b", 1))
    first, second = typed_steps(schedule)
    steps = [PYTHON | {"name": "z", "index": "0"}, first | {"index": "3"}, second | {"DELETE": "on"}]
    response = save(client, typed(schedule, description="new", steps=steps), schedule)
    assert response.status_code == 302, complaints(response)
    schedule = fresh(schedule)
    assert (schedule.description, schedule.token) == ("new", 2)
    assert [(each.name, each.index) for each in schedule.steps.all()] == [("z", 0), ("a", 3)]
    assert Activity.objects.get(operation="edit").initiator_name == "superuser"


def test_a_conflict_loses_nothing_of_what_was_typed(client: Client) -> None:
    schedule = make_schedule(step("a"), step("b", 1))
    steps = [PYTHON | {"name": f"mine {number}"} for number in range(3)]
    form = typed(schedule, name="My name", cron="1 2 3 4 *", steps=steps)
    changes = {"name": "Theirs"}
    schedule.edit(token=1, initiator=SOMEBODY, now=clock.now(), changes=changes, steps=[step("theirs")])
    before = everything()
    response = save(client, form, schedule)
    assert CONFLICT in complaints(response)["__all__"]
    text = response.content.decode()
    for shown in (CONFLICT, "My name", "1 2 3 4 *", "mine 0", "mine 1", "mine 2"):
        assert shown in text
    assert CONFLICT in complaints(save(client, form | {"version": "9" * 20}, schedule))["__all__"]
    for version in ("", "abc"):
        assert complaints(save(client, form | {"version": version}, schedule))
    assert everything() == before


def test_a_name_taken_while_saving_is_a_form_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people, the same moment: the database refuses the second after all checks have passed."""
    make_schedule(name="Taken")
    monkeypatch.setattr(Schedule, "validate_constraints", lambda self, exclude=None: None)
    assert "just taken by another schedule" in complaints(save(client, typed(name="taken")))["name"]
    assert Schedule.objects.count() == 1


def test_saving_while_it_catches_up_is_refused_in_words(client: Client) -> None:
    schedule = make_schedule(spec={"every": ["1s"]}, now=clock.now() - timedelta(days=2))
    response = save(client, typed(schedule, every="1m"), schedule)
    assert "catching up" in complaints(response)["__all__"]


def test_a_step_of_an_uninstalled_type_is_shown_and_refused_not_turned_into_another(client: Client) -> None:
    schedule = make_schedule()
    schedule.steps.update(step_type="vanished")
    assert "vanished (not installed)" in change_page(client, schedule).content.decode()
    response = save(client, typed(schedule, steps=typed_steps(schedule)), schedule)
    assert "Unknown step type “vanished”" in complaints(response)["step runs"]


def test_a_broken_spec_is_shown_and_can_be_mended(client: Client) -> None:
    schedule = make_schedule(name="Broken one")
    Schedule.objects.update(spec={"cron": ["not a rule"]}, spec_error="cron: expected 5 fields")
    assert "broken" in client.get(page("schedules_schedule_changelist")).content.decode()
    text = change_page(client, schedule).content.decode()
    assert ("not a rule" in text, "expected 5 fields" in text) == (True, True)
    assert save(client, typed(schedule, cron="0 1 * * *"), schedule).status_code == 302
    assert fresh(schedule).spec_error == ""
    # As it may come into the database by another way, where the scheduler has not looked at it yet.
    specs: list[Any] = [[], {"cron": "x"}, {"every": [[]]}, {"at": [None]}, {"time_zone": 5}]
    for spec in specs:
        Schedule.objects.update(spec=spec)
        assert ScheduleForm(instance=fresh(schedule)).as_p()
        form = ScheduleForm(typed(schedule), instance=fresh(schedule))
        assert form.is_valid(), form.errors


def test_run_now_asks_first_and_shows_the_execution(client: Client) -> None:
    schedule = make_schedule(name="By hand", spec=BERLIN)
    url = operation("schedules_schedule", "run", schedule.pk)
    asked = client.get(url)
    assert "By hand" in asked.content.decode()
    response = client.post(url, {"key": "k", "at": "3999-01-01T00:00", "overlap": "sometimes"})
    assert set(response.context["form"].errors) == {"at", "overlap"}
    assert Occurrence.objects.count() == 0
    answers = {"key": asked.context["form"]["key"].value(), "at": "2026-07-01T09:00"}
    for _ in range(2):  # sent twice, as by a double click
        response = client.post(url, answers)
        execution = Execution.objects.get()
        assert response["Location"] == execution.get_absolute_url()
    assert "has started" in told(client, response)
    assert execution.activity.initiator_name == "superuser"
    assert Occurrence.objects.get().nominal_at == datetime(2026, 7, 1, 7, tzinfo=UTC)
    said = told(client, client.post(url, {"key": "another"}))
    assert ("was not started" in said, execution.get_absolute_url() in said) == (True, True)
    response = client.post(url, {"key": "b", "overlap": "buffer_one"})
    assert response["Location"] == schedule.get_absolute_url()
    assert "is waiting for another execution to end" in told(client, response)
    waiting = page("schedules_occurrence_change", Occurrence.objects.get(status="pending").pk)
    assert "Manual run by superuser. Waiting for execution" in client.get(waiting).content.decode()


def test_pause_and_resume_of_several_tell_of_each_what_became_of_it(client: Client) -> None:
    late = make_schedule(name="Late", spec=BERLIN, now=clock.now() - timedelta(hours=3))
    other = make_schedule(name="Other", spec=BERLIN | {"time_zone": "Asia/Tokyo"})
    pause, resume = (operation("schedules_schedule", name, late.pk, other.pk) for name in ("pause", "resume"))
    assert "In the time zone of each schedule." in client.get(pause).content.decode()
    said = told(client, client.post(pause, {"note": "holiday", "until": "2998-07-01T09:00"}))
    assert ("“Late” is paused" in said, "“Other” is paused" in said) == (True, True)
    assert (fresh(late).status, fresh(late).pause_note) == ("paused", "holiday")
    ends = [fresh(each).paused_until for each in (late, other)]
    assert ends == [datetime(2998, 7, 1, 7, tzinfo=UTC), datetime(2998, 7, 1, 0, tzinfo=UTC)]
    fresh(other).resume(initiator=SOMEBODY, now=clock.now())
    said = told(client, client.post(resume, {"missed": "discard"}))
    assert ("“Late” is active again" in said, "“Other” is not paused" in said) == (True, True)
    fates = {(each.status, each.reason) for each in late.occurrences.all()}
    assert (fresh(late).status, fates) == ("active", {("skipped", "discarded")})


def test_cancel_running_cancels_all_of_it(client: Client) -> None:
    schedule = make_schedule(overlap="allow_all")
    for _ in range(2):
        trigger(schedule, initiator=SOMEBODY, now=clock.now())
    url = operation("schedules_schedule", "cancel", schedule.pk)
    assert "2 executions are being cancelled" in told(client, client.post(url, {"reason": "enough"}))
    assert {(e.status, e.cancel_reason) for e in Execution.objects.all()} == {("cancelled", "enough")}
    assert "no running executions" in told(client, client.post(url, {"reason": ""}))


def test_close_is_the_only_delete_and_the_history_stays(client: Client) -> None:
    schedule = make_schedule(name="Mine")
    make_schedule(name="Other")
    response = client.post(page("schedules_schedule_delete", schedule.pk), {"post": "yes"})
    assert response["Location"] == operation("schedules_schedule", "close", schedule.pk)
    assert "never runs again" in client.get(response["Location"]).content.decode()
    assert fresh(schedule).status == "active"
    assert "is closed" in told(client, client.post(response["Location"]))
    assert fresh(schedule).status == "closed"
    text = change_page(client, schedule).content.decode()
    assert 'name="_save"' not in text
    assert operation("schedules_schedule", "run", schedule.pk) not in text
    assert save(client, typed(schedule), schedule).status_code == 403
    text = client.get(page("schedules_schedule_history", schedule.pk), follow=True).content.decode()
    assert ("Mine" in text, "Other" in text) == (True, False)


def test_actions_of_the_list_ask_on_the_same_page(client: Client) -> None:
    ids = [make_schedule().pk, make_schedule().pk]
    url = page("schedules_schedule_changelist")
    offered = [name for name, _ in client.get(url).context["action_form"].fields["action"].choices]
    assert offered == ["", "run", "cancel", "skip", "unskip", "backfill", "pause", "resume", "close"]
    response = client.post(url, {"action": "pause", "_selected_action": ids})
    assert set(response["Location"].split("?")[1].split("&")) == {f"id={pk}" for pk in ids}
    assert {each.status for each in Schedule.objects.all()} == {"active"}
    assert client.post(response["Location"], {"note": "", "until": ""})["Location"] == url
    assert {each.status for each in Schedule.objects.all()} == {"paused"}


# What becomes of a definition, an edit of words, and one of code; with 200, code is what it may not write.
WRITERS = {"viewer": [403] * 3, "operator": [403] * 3, "author": [200, 302, 200], "coder": [302] * 3}


@pytest.mark.parametrize("role", WRITERS)
def test_who_may_define_and_edit(role: str) -> None:
    schedule = make_schedule(step("work"), step("other", 1))
    client, steps = sign_in(role), typed_steps(schedule)
    # To delete a code step and to keep another as it is writes no code.
    words, code = {"description": "other"}, [steps[0] | {"config-function": "os.getcwd"}]
    cases: list[Any] = [(None, steps, {}), (schedule, steps[:1], words), (schedule, code, words)]
    for (of, plan, fields), status in zip(cases, WRITERS[role], strict=True):
        before, row = everything(), fresh(of) if of else None
        response = save(client, typed(row, steps=plan) | fields, row)
        assert (response.status_code, everything() != before) == (status, status == 302)
        if status == 200:
            assert "may not create or change steps that run code" in complaints(response)["steps"]


def test_a_viewer_sees_the_definition_but_no_form_and_no_button() -> None:
    spec = {"cron": ["0 3 * * *"], "jitter": "9m"}
    fields: dict[str, Any] = {"timeout_seconds": 5400, "tags": ["finance"], "memo": {"owner": "Ada"}}
    schedule = make_schedule(step("look at me"), spec=spec, pause_on_failure=True, **fields)
    text = change_page(sign_in("viewer"), schedule).content.decode()
    for shown in ("At 03:00 every day", "look at me", "tests.work.noop", "<pre>9m</pre>", "timeout 1h30m"):
        assert shown in text
    for shown in ("pauses itself when 1 of the last 1", "finance", "owner: Ada"):
        assert shown in text
    for absent in ("<textarea", 'name="_save"', page("schedules_schedule_do", "run")):
        assert absent not in text


def days_off() -> None:
    SharedCalendar.objects.define("Days off", [{"dates": "2998-01-01"}], initiator=SOMEBODY, now=NOW)
