from __future__ import annotations

import html
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin import site
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import clock
from activities.models import Activity
from execution.invoker import trigger
from execution.models import Execution
from schedules import registry
from schedules.admin.schedule import RARE, _classes
from schedules.forms import ScheduleForm
from schedules.models import Occurrence, Schedule, SharedCalendar
from schedules.spec import timeline
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
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, start, step
from tests.workflows.base import make_topics

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    return sign_in()


def test_a_schedule_is_defined_with_its_steps(client: Client) -> None:
    form = typed(
        name="  Nightly  ",
        cron="0 3 * * *   # at three\n\n# not a rule\n30 4 * * mon",
        every="1h offset 5m\n90",
        at="2998-12-01 09:00",
        time_zone="Europe/Berlin",
        steps=[PYTHON, PYTHON | {"name": "after", "index": "1", "timeout_seconds": "60"}],
    )
    response = save(client, form)
    assert "was added successfully" in told(client, response)
    schedule = Schedule.objects.get()
    assert schedule.name == "Nightly"
    assert schedule.spec == {
        "cron": ["0 3 * * *", "30 4 * * mon"],
        "every": [{"every": "1h", "offset": "5m"}, "1m30s"],
        "at": ["2998-12-01T08:00:00Z"],
        "time_zone": "Europe/Berlin",
    }
    assert [(s.name, s.index, s.timeout_seconds) for s in schedule.steps.all()] == [
        ("work", 0, None),
        ("after", 1, 60),
    ]
    created = Activity.objects.get(operation="create")
    assert (created.initiator_name, created.target_id) == ("superuser", str(schedule.pk))


def test_the_form_says_what_each_type_of_step_takes(client: Client) -> None:
    shown = " ".join(client.get(page("schedules_schedule_add")).content.decode().split())
    for kind in registry.offered():
        assert f"<summary><b>{kind.name}</b>: {kind.title}</summary>" in shown
        for field in kind.fields:
            assert f"<td>{field.label}<br><code>{field.name}</code>" in shown
    assert "<code>max_rows</code></td> <td>number<br>default <code>20</code></td> <td>Of each result" in shown
    assert "<code>transaction</code></td> <td>bool<br>default <code>true</code></td>" in shown
    assert "<code>url</code> (required)</td> <td>text</td>" in shown


EVERYTHING: dict[str, Any] = {
    "name": "Cafe\u0301 ",
    "description": "two\r\nlines",
    "cron": "0 3 * * *",
    "every": "1h offset 5m\n20s",
    "at": "2998-06-01 08:00:30\n2998-12-01 08:00",
    "patterns": "at 09:00, 12:30 on mon-fri\r\nevery 25m from 09:00 until 17:30 on mon,wed",
    "structured": 'hour: 9, day_of_month: 1, comment: "first"',
    "exclude": "calendar Days off\ndates 2998-12-24/2998-12-26",
    "start_at": "2997-01-01",
    "end_at": "2998-12-31 12:00",
    "jitter": "5m",
    "time_zone": "Europe/London",
    "dst": "literal",
    "overlap": "buffer_all",
    "catch_up_seconds": "1h30m",
    "timeout_seconds": "90",
    "deadline_seconds": "1m",
    "on_failure": "continue",
    "pause_on_failure": "on",
    "failures_to_pause": "2",
    "failures_among": "5",
    "remaining": "7",
    "tags": "nightly, finance,, nightly ",
    "memo": "owner: Ada\n\nlink: https://example.org/a:b\n",
    "topics": "orders, mail,, orders",
}


def test_all_there_is_to_a_schedule_can_be_typed_and_is_shown_as_it_would_be_saved(client: Client) -> None:
    days_off()
    make_topics("mail", "orders")
    response = save(client, typed(**EVERYTHING))
    assert response.status_code == 302, complaints(response)
    schedule = Schedule.objects.get()
    assert schedule.spec == {
        "cron": ["0 3 * * *"],
        "every": [{"every": "1h", "offset": "5m"}, "20s"],
        "at": ["2998-06-01T07:00:30Z", "2998-12-01T08:00:00Z"],
        "patterns": [
            {"times": ["09:00", "12:30"], "weekdays": "mon-fri"},
            {"every": "25m", "from": "09:00", "until": "17:30", "weekdays": "mon,wed"},
        ],
        "calendars": [{"hour": "9", "day_of_month": "1", "comment": "first"}],
        "exclude": [{"calendar": "Days off"}, {"dates": "2998-12-24/2998-12-26"}],
        "start_at": "2997-01-01T00:00:00Z",
        "end_at": "2998-12-31T12:00:00Z",
        "jitter": "5m",
        "time_zone": "Europe/London",
        "dst": "literal",
    }
    assert {name: getattr(schedule, name) for name in Schedule.EDITABLE if name != "spec"} == {
        "name": "Café",
        "description": "two\nlines",
        "tags": ["finance", "nightly"],
        "memo": {"owner": "Ada", "link": "https://example.org/a:b"},
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
    odd = {" odd: name": 'a "quoted" text', "two\nlines": "here\nand there", "empty": "", "{": "}"}
    schedule.edit(token=1, initiator=SOMEBODY, now=clock.now(), changes={"memo": odd})
    form = client.get(page("schedules_schedule_change", schedule.pk)).context["adminform"].form
    shown = {name: form[name].value() for name in form.fields}
    assert (shown["catch_up_seconds"], shown["start_at"]) == ("1h30m", "2997-01-01")
    assert (shown["tags"], shown["every"]) == ("finance, nightly", "1h offset 5m\n20s")
    assert shown["cron"] == "0 3 * * *   # At 03:00 every day, Europe/London"
    assert shown["at"] == "2998-06-01 08:00:30+01:00\n2998-12-01 08:00+00:00"
    assert "calendar Days off             # 1 January 2998" in shown["exclude"]
    assert ScheduleForm(instance=Schedule(catch_up_seconds=0))["catch_up_seconds"].value() == "0s"
    data: dict[str, Any] = {name: str(value).replace("\n", "\r\n") for name, value in shown.items() if value}
    before = everything()
    response = save(client, typed(schedule, steps=typed_steps(schedule), **data), schedule)
    assert response.status_code == 302, complaints(response)
    assert everything() == before


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("patterns", "at noon", "is not a time of day"),
        ("structured", "hour: 25", "hour 25 is out of range"),
        ("exclude", "calendar Days of", "there is no calendar 'Days of'; did you mean Days off?"),
        ("end_at", "2020-01-01", "leaves no time"),
        ("jitter", "much", "is not a duration"),
        ("timeout_seconds", "2y", "Enter a duration such as 90s"),
        ("failures_to_pause", "3", "3 cannot be among the last 1 executions"),
        ("tags", "x" * 51, "is no tag"),
        ("memo", "no colon here", "has no colon"),
        ("memo", "a: 1\na: 2", "is there twice"),
        ("memo", "{broken", "Expecting"),
        ("memo", "[1]", "Names and texts are expected"),
        ("memo", "a\0b: c", "no NUL"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(field: str, text: str, words: str) -> None:
    days_off()
    form = ScheduleForm(typed(every="1h", paused="on") | {field: text})
    assert words in html.unescape(str(form.errors[field]))


def test_times_closer_together_than_the_house_allows_are_refused(settings: Any) -> None:
    settings.JIM_MINIMUM_INTERVAL_SECONDS = 60
    assert "at least 1m between two times" in str(ScheduleForm(typed(every="30s")).errors["every"])


def test_runs_left_are_only_changed_by_whoever_changes_them() -> None:
    """They were used up while somebody edited something else."""
    schedule = make_schedule(remaining=5)
    assert 'name="initial-remaining" value="5"' in ScheduleForm(instance=schedule).as_p()

    def changed(typed_number: str, shown: str) -> bool:
        answers = typed(schedule, remaining=typed_number) | {"initial-remaining": shown}
        form = ScheduleForm(answers, instance=fresh(schedule))
        assert form.is_valid(), form.errors
        return "remaining" in form.definition

    Schedule.objects.update(remaining=3)
    assert (changed("5", "5"), changed("9", "3")) == (False, True)


def test_a_schedule_can_start_paused_with_a_note_and_run_at_once(client: Client) -> None:
    save(client, typed(paused="on", note="not yet", run_at_once="on"))
    schedule = Schedule.objects.get()
    assert (schedule.status, schedule.pause_note) == ("paused", "not yet")
    assert [o.source for o in schedule.occurrences.all()] == ["manual"]


def test_a_first_run_at_once_takes_the_permission_to_run() -> None:
    author = sign_in("coder")
    assert "run_at_once" not in author.get(page("schedules_schedule_add")).content.decode()
    assert save(author, typed(run_at_once="on")).status_code == 302
    assert not Schedule.objects.get().occurrences.exists()


def test_a_broken_schedule_may_be_described_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "CANDIDATES", 500)
    spec = {"cron": ["* * * * * * *"], "exclude": [{"second": "0-58"}, {"second": "59"}]}
    schedule = Schedule(pk=7, name="Broken", spec=spec, spec_error="exclude: leaves nothing")
    answers = typed(schedule, cron="* * * * * * *", exclude="second: 0-58\nsecond: 59", description="new")
    assert ScheduleForm(answers, instance=schedule).is_valid()
    assert "exclude" in ScheduleForm(answers).errors


def test_rare_settings_are_folded_away_unless_they_are_used() -> None:
    def folded(schedule: Schedule) -> list[bool]:
        return [bool(_classes(title, schedule)) for title in RARE]

    assert folded(Schedule(spec={})) == [True, True]
    assert folded(Schedule(spec={"every": ["1h"], "jitter": "5m"})) == [False, True]
    assert folded(Schedule(spec={}, memo={"owner": "Ada"})) == [True, False]


def test_the_list_is_filtered_by_tag_and_memo(client: Client) -> None:
    make_schedule(name="Both", tags=["finance", "nightly"], memo={"owner": "Ada", "a__b": "x"})
    make_schedule(name="One", tags=["finance"], memo={"owner": "Alan", "7": "x", 'é"\\': "y"})
    make_schedule(name="None")
    queries = {
        "tag=finance": ["Both", "One"],
        "tag=unknown": [],
        "tag=%00": [],
        "memo=owner%3DAda": ["Both"],
        "memo=owner": ["Both", "One"],
        "memo=a__b%3Dx": ["Both"],
        "memo=owner__regex%3DA.*": [],
        "memo=7": ["One"],
        "memo=7%3Dx": ["One"],
        "memo=7%3Dy": [],
        "memo=-1": [],
        "memo=%C3%A9%22%5C%3Dy": ["One"],
        "memo=%00": [],
        "memo=%3D": ["Both", "None", "One"],
        "tag=finance&memo=owner%3DAlan": ["One"],
        "overlap=skip&tag=nightly": ["Both"],
    }
    assert {query: [row.name for row in listed(Schedule, query)] for query in queries} == queries
    text = client.get(f"{page('schedules_schedule_changelist')}?tag=finance&memo=owner").content.decode()
    assert '<input type="hidden" name="tag" value="finance">' in text


def test_an_edit_replaces_steps_and_moves_the_token(client: Client) -> None:
    schedule = make_schedule(step("a"), step("b", 1))
    first, second = typed_steps(schedule)
    steps = [PYTHON | {"name": "z", "index": "0"}, first | {"index": "3"}, second | {"DELETE": "on"}]
    response = save(client, typed(schedule, description="new", steps=steps), schedule)
    assert response.status_code == 302, complaints(response)
    schedule = fresh(schedule)
    assert (schedule.description, schedule.token) == ("new", 2)
    assert [(s.name, s.index) for s in schedule.steps.all()] == [("z", 0), ("a", 3)]
    assert Activity.objects.get(operation="edit").initiator_name == "superuser"


def test_a_conflict_loses_nothing_of_what_was_typed(client: Client) -> None:
    schedule = make_schedule(step("a"), step("b", 1))
    form = typed(
        schedule,
        name="My name",
        cron="1 2 3 4 *",
        steps=[PYTHON | {"name": f"mine {number}"} for number in range(3)],
    )
    schedule.edit(
        token=1, initiator=SOMEBODY, now=clock.now(), changes={"name": "Theirs"}, steps=[step("theirs")]
    )
    before = everything()
    response = save(client, form, schedule)
    assert response.status_code == 200
    assert "Somebody else changed this schedule" in complaints(response)["__all__"]
    text = response.content.decode()
    assert "Somebody else changed this schedule" in text
    for typed_text in ("My name", "1 2 3 4 *", "mine 0", "mine 1", "mine 2"):
        assert typed_text in text
    response = save(client, form | {"version": "9" * 20}, schedule)
    assert "Somebody else changed this schedule" in complaints(response)["__all__"]
    assert everything() == before


@pytest.mark.parametrize("version", ["", "abc"])
def test_a_form_that_does_not_say_its_version_is_not_saved(version: str) -> None:
    schedule = make_schedule()
    assert not ScheduleForm(typed(schedule, name="Other", version=version), instance=schedule).is_valid()


def test_a_name_taken_while_saving_is_a_form_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people, the same moment: the database refuses the second after all checks have passed."""
    make_schedule(name="Taken")
    monkeypatch.setattr(Schedule, "validate_constraints", lambda self, exclude=None: None)
    response = save(client, typed(name="taken"))
    assert "took this name" in complaints(response)["name"]
    assert Schedule.objects.count() == 1


def test_saving_while_it_catches_up_is_refused_in_words(client: Client) -> None:
    long_ago = clock.now() - timedelta(days=2)
    schedule = make_schedule(spec={"every": ["1s"]}, now=long_ago)
    response = save(client, typed(schedule, every="1m"), schedule)
    assert "catching up" in complaints(response)["__all__"]


def test_a_step_of_an_uninstalled_type_is_shown_and_refused_not_turned_into_another(client: Client) -> None:
    schedule = make_schedule()
    schedule.steps.update(step_type="vanished")
    text = client.get(page("schedules_schedule_change", schedule.pk)).content.decode()
    assert "vanished (not installed)" in text
    response = save(client, typed(schedule, steps=typed_steps(schedule)), schedule)
    assert "There is no step type “vanished”" in complaints(response)["step step_type"]


def test_a_broken_spec_is_shown_and_can_be_mended(client: Client) -> None:
    schedule = make_schedule(name="Broken one")
    Schedule.objects.update(spec={"cron": ["not a rule"]}, spec_error="cron: 5 fields expected")
    assert "broken" in client.get(page("schedules_schedule_changelist")).content.decode()
    assert client.get(page("schedules_occurrence_changelist")).status_code == 200
    text = client.get(page("schedules_schedule_change", schedule.pk)).content.decode()
    assert "not a rule" in text
    assert "5 fields expected" in text
    assert save(client, typed(schedule, cron="0 1 * * *"), schedule).status_code == 302
    assert fresh(schedule).spec_error == ""


@pytest.mark.parametrize("spec", [[], "x", {"cron": "x"}, {"every": [[]]}, {"at": [None]}, {"time_zone": 5}])
def test_a_spec_that_is_none_can_be_mended_on_the_form(spec: Any) -> None:
    """As it may have come into the database by another way; the scheduler has not looked at it yet."""
    schedule = make_schedule()
    Schedule.objects.update(spec=spec)
    assert ScheduleForm(instance=fresh(schedule)).as_p()
    form = ScheduleForm(typed(schedule), instance=fresh(schedule))
    assert form.is_valid(), form.errors
    assert "broken" in shown_rows()[schedule.name]


def test_the_list_says_state_spec_next_run_and_outcome(client: Client) -> None:
    now = clock.now()
    make_schedule(name="Due", spec={"cron": ["0 3 * * *"], "time_zone": "Europe/Berlin"}, now=now)
    make_schedule(name="Manual")
    make_schedule(name="Waits", spec={"every": ["1h"]}, now=now, paused=True)
    gone = make_schedule(name="Gone")
    gone.close(initiator=SOMEBODY, now=now)
    trigger(Schedule.objects.get(name="Manual"), initiator=SOMEBODY, now=now)
    assert client.get(page("schedules_schedule_changelist")).status_code == 200
    rows = shown_rows()
    assert list(rows) == ["Due", "Manual", "Waits"]
    assert "At 03:00 every day, Europe/Berlin" in rows["Due"]
    assert "03:00:00 Europe/Berlin" in rows["Due"]
    assert "by hand" in rows["Manual"]
    assert "in progress" in rows["Manual"]
    assert "paused" in rows["Waits"]
    assert list(shown_rows("state=closed")) == ["Gone"]
    assert list(shown_rows("q=wait")) == ["Waits"]


def test_the_change_page_shows_the_next_ten_times_in_both_zones(client: Client) -> None:
    schedule = make_schedule(
        spec={"at": [f"2998-{n:02}-01T00:30:00Z" for n in range(1, 13)], "time_zone": "Asia/Tokyo"}
    )
    text = client.get(page("schedules_schedule_change", schedule.pk)).content.decode()
    for n in range(1, 11):
        assert f"2998-{n:02}-01 09:30:00" in text
        assert f"2998-{n:02}-01 00:30:00" in text
    assert "2998-11-01 09:30:00" not in text


def test_run_now_asks_first_and_shows_the_execution(client: Client) -> None:
    schedule = make_schedule(name="By hand")
    asked = client.get(operation("schedules_schedule", "run", schedule.pk))
    assert "By hand" in asked.content.decode()
    assert Execution.objects.count() == 0
    key = asked.context["form"]["key"].value()
    url = operation("schedules_schedule", "run", schedule.pk)
    for _ in range(2):  # sent twice, as by a double click
        response = client.post(url, {"key": key})
        execution = Execution.objects.get()
        assert response["Location"] == execution.get_absolute_url()
    assert "is started" in told(client, response)
    assert execution.activity.initiator_name == "superuser"


def test_run_now_links_to_what_is_in_the_way(client: Client) -> None:
    execution = start()
    response = client.post(operation("schedules_schedule", "run", execution.schedule_id), {"key": "k"})
    said = told(client, response)
    assert "was not started" in said
    assert execution.get_absolute_url() in said
    assert Execution.objects.count() == 1


def test_pause_and_resume(client: Client) -> None:
    schedule = make_schedule(spec={"every": ["1h"]}, now=clock.now() - timedelta(hours=3))
    response = client.post(
        operation("schedules_schedule", "pause", schedule.pk),
        {"note": "holiday", "until": "2998-01-01T00:00"},
    )
    assert "is paused" in told(client, response)
    schedule = fresh(schedule)
    assert (schedule.status, schedule.pause_note) == ("paused", "holiday")
    assert schedule.paused_until == datetime(2998, 1, 1, tzinfo=UTC)
    client.post(operation("schedules_schedule", "resume", schedule.pk), {"missed": "discard"})
    assert fresh(schedule).status == "running"
    assert {(o.status, o.reason) for o in schedule.occurrences.all()} == {("skipped", "discarded")}


def test_cancel_running_cancels_all_of_it(client: Client) -> None:
    schedule = make_schedule(overlap="allow_all")
    for _ in range(2):
        trigger(schedule, initiator=SOMEBODY, now=clock.now())
    response = client.post(operation("schedules_schedule", "cancel", schedule.pk), {"reason": "enough"})
    assert "2 executions are being cancelled" in told(client, response)
    assert {(e.status, e.cancel_reason) for e in Execution.objects.all()} == {("cancelled", "enough")}
    response = client.post(operation("schedules_schedule", "cancel", schedule.pk), {"reason": ""})
    assert "Nothing of" in told(client, response)


def test_close_is_the_only_delete(client: Client) -> None:
    schedule = make_schedule(name="Done with it")
    response = client.post(page("schedules_schedule_delete", schedule.pk), {"post": "yes"})
    assert response["Location"] == operation("schedules_schedule", "close", schedule.pk)
    assert "never runs again" in client.get(response["Location"]).content.decode()
    assert fresh(schedule).status == "running"
    assert "is closed" in told(client, client.post(response["Location"]))
    assert fresh(schedule).status == "closed"
    text = client.get(page("schedules_schedule_change", schedule.pk)).content.decode()
    assert 'name="_save"' not in text
    assert operation("schedules_schedule", "run", schedule.pk) not in text
    assert save(client, typed(schedule), schedule).status_code == 403


def test_actions_of_the_list_ask_on_the_same_page(client: Client) -> None:
    schedules = [make_schedule(), make_schedule()]
    ids = [schedule.pk for schedule in schedules]
    listed = client.get(page("schedules_schedule_changelist"))
    assert [name for name, _ in listed.context["action_form"].fields["action"].choices] == [
        *("", "run", "cancel", "skip", "unskip", "backfill", "pause", "resume", "close")
    ]
    response = client.post(
        page("schedules_schedule_changelist"),
        {"action": "pause", "_selected_action": [str(pk) for pk in ids]},
    )
    assert set(response["Location"].split("?")[1].split("&")) == {f"id={pk}" for pk in ids}
    assert {s.status for s in Schedule.objects.all()} == {"running"}
    assert client.post(response["Location"], {"note": "", "until": ""}).status_code == 302
    assert {s.status for s in Schedule.objects.all()} == {"paused"}


def test_one_that_cannot_does_not_stop_the_others(client: Client) -> None:
    running, paused = make_schedule(name="Goes on"), make_schedule(name="Sleeps", paused=True)
    response = client.post(
        operation("schedules_schedule", "resume", running.pk, paused.pk), {"missed": "catch_up"}
    )
    said = told(client, response)
    assert "“Goes on” is not paused" in said
    assert "“Sleeps” runs again" in said


def test_the_history_is_the_schedules_activities(client: Client) -> None:
    schedule = make_schedule(name="Mine")
    make_schedule(name="Other")
    response = client.get(page("schedules_schedule_history", schedule.pk), follow=True)
    assert "Mine" in response.content.decode()
    assert "Other" not in response.content.decode()


def test_occurrences_say_what_became_of_each_time(client: Client) -> None:
    execution = start()
    assert execution.schedule
    skipped = Occurrence.manual(execution.schedule, initiator=SOMEBODY, now=clock.now(), key="x")
    skipped.status, skipped.reason, skipped.due_at = "skipped", "overlap", None
    skipped.blocked_by, skipped.settled_at = execution.pk, clock.now()
    skipped.save()
    text = client.get(page("schedules_occurrence_changelist")).content.decode()
    assert text.count(page("execution_execution_change", execution.pk)) == 2
    text = client.get(page("schedules_occurrence_change", skipped.pk)).content.decode()
    assert skipped.key in text
    assert f"execution {execution.pk}, which had started at" in text
    assert page("schedules_schedule_why", execution.schedule_id) in text


def test_lists_need_as_many_queries_for_many_rows_as_for_few(client: Client) -> None:
    counts: dict[str, list[int]] = {
        "schedules_schedule_changelist": [],
        "schedules_occurrence_changelist": [],
    }
    for more in (2, 5):
        for _ in range(more):
            start(spec={"cron": ["0 3 * * *"]})
        clock.now()
        for url, found in counts.items():
            with CaptureQueriesContext(connection) as captured:
                assert client.get(page(url)).status_code == 200
            found.append(len(captured))
    for few, many in counts.values():
        assert many == few <= 6


# The role, and whether it may define, edit words, and edit code; None: code is what it may not write.
WRITERS = {
    "viewer": (False, False, False),
    "operator": (False, False, False),
    "author": (None, True, None),
    "coder": (True, True, True),
}


@pytest.mark.parametrize("role", WRITERS)
def test_who_may_define_and_edit(role: str) -> None:
    schedule = make_schedule(step("work"))
    client, steps = sign_in(role), typed_steps(schedule)

    def edit(**fields: str) -> Any:
        return save(client, typed(fresh(schedule), steps=steps) | fields, schedule)

    def may(response: Any, before: Any) -> bool | None:
        assert (everything() == before) is (response.status_code != 302)
        if response.status_code == 200:
            assert "may not write steps that run code" in complaints(response)["steps"]
            return None
        assert response.status_code in (302, 403)
        return bool(response.status_code == 302)

    assert (
        may(before=everything(), response=save(client, typed(name="Typed"))),
        may(before=everything(), response=edit(description="other")),
        may(before=everything(), response=edit(**{"steps-0-config": '{"function": "os.getcwd"}'})),
    ) == WRITERS[role]


@pytest.mark.parametrize(("role", "shown"), [("operator", ["run", "pause"]), ("closer", ["close"])])
def test_buttons_are_for_those_who_may_press_them(role: str, shown: list[str]) -> None:
    schedule = make_schedule()
    text = sign_in(role).get(page("schedules_schedule_change", schedule.pk)).content.decode()
    names = ("run", "cancel", "pause", "resume", "close")
    assert [n for n in names if operation("schedules_schedule", n, schedule.pk) in text] == shown


def test_a_viewer_sees_the_definition_but_no_form() -> None:
    schedule = make_schedule(
        step("look at me", timeout_seconds=77),
        spec={"cron": ["0 3 * * *"], "jitter": "9m"},
        timeout_seconds=5400,
        pause_on_failure=True,
        tags=["finance"],
        memo={"owner": "Ada"},
    )
    text = sign_in("viewer").get(page("schedules_schedule_change", schedule.pk)).content.decode()
    for shown in ("At 03:00 every day", "look at me", "tests.work.noop", "77", "<pre>9m</pre>"):
        assert shown in text
    for shown in ("timeout 1h30m", "pauses itself when 1 of the last 1", "finance", "owner: Ada"):
        assert shown in text
    for absent in ("<textarea", 'name="_save"', operation("schedules_schedule", "run", schedule.pk)):
        assert absent not in text


def test_an_author_may_rearrange_all_but_code() -> None:
    """Deleting a code step and keeping another as it is writes no code."""
    schedule = make_schedule(step("a"), step("b", 1))
    client = sign_in("author")
    response = save(client, typed(schedule, steps=typed_steps(schedule)[1:]), schedule)
    assert response.status_code == 302, complaints(response)
    assert [s.name for s in schedule.steps.all()] == ["b"]


def days_off() -> None:
    SharedCalendar.objects.define("Days off", [{"dates": "2998-01-01"}], initiator=SOMEBODY, now=NOW)


def shown_rows(query: str = "") -> dict[str, str]:
    """The list as text, by the first column."""
    admin = site.get_model_admin(Schedule)
    return {
        row.name: " ".join(str(getattr(admin, str(column))(row)) for column in admin.list_display[1:])
        for row in listed(Schedule, query)
    }
