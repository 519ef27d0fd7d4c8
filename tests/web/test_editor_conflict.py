from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from django.test import Client

from operations.initiator import Initiator
from schedules.models import Schedule
from tests.admin_pages import sign_in
from tests.base import NOW, fresh, make_schedule, step
from tests.web.editor_form import Form

pytestmark = pytest.mark.django_db
BOB = Initiator("user", "8", "bob")


def test_who_was_second_is_shown_who_changed_what_loses_nothing_and_may_save_on_top() -> None:
    client, schedule = sign_in(), make_schedule(spec={"cron": ["0 3 * * *"]})
    form = opened(client, schedule)
    edit(schedule, name="By Bob", spec={"cron": ["0 5 * * *"]}, description="By Bob", steps=[step("his")])
    answer = send(client, schedule, form, "save", name="Mine", rules__0__expression="0 4 * * *")
    text = unescape(answer.text)
    assert "<b>bob</b> edited the schedule" in text
    assert "spec.cron[0]: 0 3 * * * → 0 5 * * *" in text
    assert "spec.cron[0]: 0 5 * * * → 0 4 * * *" in text
    # What nobody else typed is theirs.
    assert "Parts that you had not changed now have the saved values: description, steps." in text
    form = Form(answer.text)
    assert (form.value("name"), form.value("rules-0-expression")) == ("Mine", "0 4 * * *")
    assert fresh(schedule).name == "By Bob"
    # A third change is not overwritten unseen.
    edit(schedule, name="By Bob again", description="By Bob again")
    answer = send(client, schedule, form, "save")
    assert "name: By Bob again → Mine" in unescape(answer.text)
    assert fresh(schedule).name == "By Bob again"
    assert send(client, schedule, Form(answer.text), "save").status_code == 302
    after = fresh(schedule)
    assert (after.name, after.description, after.spec) == ("Mine", "By Bob again", {"cron": ["0 4 * * *"]})
    assert [each.name for each in after.steps.all()] == ["his"]


def test_theirs_is_taken_over_part_by_part() -> None:
    client, schedule = sign_in(), make_schedule(step("a"), spec={"cron": ["0 3 * * *"]})
    form = opened(client, schedule)
    edit(schedule, steps=[step("b")], spec={"cron": ["0 5 * * *"]}, description="By Bob")
    typed = {
        "steps__0__name": "c",
        "rules__0__expression": "0 4 * * *",
        "description": "Mine",
        "name": "Mine",
    }
    form = Form(send(client, schedule, form, "save", **typed).text)
    assert {f"take.{name}" for name in ("description", "spec", "steps", "name")} <= set(form.buttons)
    for part in ("spec", "steps"):
        form = Form(send(client, schedule, form, f"take.{part}").text)
        assert f"take.{part}" not in form.buttons
    assert send(client, schedule, form, "save").status_code == 302
    after = fresh(schedule)
    assert (after.name, after.description, after.spec) == ("Mine", "Mine", {"cron": ["0 5 * * *"]})
    assert [each.name for each in after.steps.all()] == ["b"]


def test_a_pause_meanwhile_is_told_before_saving_and_stays() -> None:
    client, schedule = sign_in(), make_schedule()
    form = opened(client, schedule)
    assert "Another person" not in send(client, schedule, form, "preview").text
    fresh(schedule).pause(initiator=BOB, now=NOW, note="the disk is full")
    assert "Another person changed this schedule" in send(client, schedule, form, "preview").text
    answer = send(client, schedule, form, "save", name="Mine")
    assert "<b>bob</b> paused the schedule" in answer.text
    assert "“the disk is full”" in answer.text
    assert send(client, schedule, Form(answer.text), "save").status_code == 302
    after = fresh(schedule)
    assert (after.name, after.status) == ("Mine", "paused")


def opened(client: Client, schedule: Schedule) -> Form:
    return Form(client.get(f"/schedules/{schedule.pk}/edit").text)


def send(client: Client, schedule: Schedule, form: Form, do: str, **changes: str) -> Any:
    return client.post(f"/schedules/{schedule.pk}/edit", form.sent(do, **changes))


def edit(schedule: Schedule, steps: Any = None, **changes: Any) -> None:
    current = fresh(schedule)
    current.edit(token=current.token, changes=changes, steps=steps, initiator=BOB, now=NOW)
