"""Shared calendars as people keep them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from activities.models import Activity
from database import clock
from schedules.models import SharedCalendar
from tests.admin_pages import errors, member, operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule

pytestmark = pytest.mark.django_db
EXCEPT = {"exclude": [{"calendar": "Days off"}]}


@pytest.fixture
def client() -> Client:
    return sign_in()


def define(name: str = "Days off", *excluded: Any) -> SharedCalendar:
    items = list(excluded) or [{"dates": "2026-12-25", "comment": "Christmas"}]
    return SharedCalendar.objects.define(name, items, initiator=SOMEBODY, now=NOW)


def save(client: Client, calendar: SharedCalendar | None = None, /, **fields: str) -> Any:
    form = {"name": "Days off", "description": "", "excluded": "", "version": ""}
    if calendar is None:
        return client.post(page("schedules_sharedcalendar_add"), form | fields)
    url = page("schedules_sharedcalendar_change", calendar.pk)
    return client.post(url, form | {"version": str(calendar.token)} | fields)


def shown(client: Client, calendar: SharedCalendar) -> str:
    return str(client.get(page("schedules_sharedcalendar_change", calendar.pk)).content.decode())


def test_a_calendar_is_defined_line_by_line(client: Client) -> None:
    define("Taken")
    for field, text, words in (
        ("name", "TAKEN", "already"),
        ("name", "a\u202eb", "is not allowed"),
        ("description", "x" * 1001, "at most 1000"),
        ("excluded", "christmas", "is not understood; write, for example: dates"),
        ("excluded", "holidays GB XYZ", "is not a subdivision"),
        ("excluded", '{"calendar": "Taken"}', "cannot refer to another calendar"),
        ("excluded", "dates 2026-12-25\n" * 1001, "too many"),
    ):
        assert words in errors(save(client, **{field: text}))[field]
    assert SharedCalendar.objects.count() == 1
    lines = "holidays GB ENG   # those of England\n\nday_of_week: sun"
    assert "was added successfully" in told(client, save(client, excluded=lines, description="Ours"))
    calendar = SharedCalendar.objects.get(name="Days off")
    assert (calendar.name, calendar.description) == ("Days off", "Ours")
    assert calendar.excluded == [{"holidays": "GB", "subdivision": "ENG"}, {"day_of_week": "sun"}]
    created = Activity.objects.get(operation="create", target_type="sharedcalendar", target_id=calendar.pk)
    assert created.initiator_name == "superuser"


def test_the_page_says_what_it_leaves_out_and_who_uses_it(client: Client) -> None:
    calendar = define("Days off", {"holidays": "GB", "subdivision": "ENG"})
    user = make_schedule(spec={"cron": ["0 9 * * *"]} | EXCEPT)
    text, year = shown(client, calendar), clock.now().year
    assert "Public holidays (United Kingdom, England)" in text
    assert page("schedules_schedule_change", user.pk) in text
    assert (f"Dates of {year}" in text, f"Dates of {year + 1}" in text) == (True, True)
    assert text.count("Christmas Day") >= 2
    text = client.get(page("schedules_sharedcalendar_changelist")).content.decode()
    assert ("Public holidays (United Kingdom, England)" in text, "1 schedule<" in text) == (True, True)
    text = shown(member("view_sharedcalendar"), calendar)
    assert "holidays GB ENG" in text
    for absent in ("<textarea", 'name="_save"', "Used by"):
        assert absent not in text
    SharedCalendar.objects.update(excluded={"x": 5})
    assert "Invalid" in client.get(page("schedules_sharedcalendar_changelist")).content.decode()
    assert "Invalid" in shown(client, calendar)


def test_an_edit_moves_the_schedules_that_use_it_unless_it_would_end_one(client: Client) -> None:
    calendar = define("Days off", {"dates": "2026-12-25", "comment": 'a # "b'}, {"day_of_week": "sat,sun"})
    calendar.edit(token=1, changes={"description": "two\nlines"}, initiator=SOMEBODY, now=NOW)
    times = ["2998-01-01T00:00:00Z", "2998-01-02T00:00:00Z"]
    user = make_schedule(name="User", spec={"at": times} | EXCEPT)
    url, before = page("schedules_sharedcalendar_change", calendar.pk), everything()
    form = client.get(url).context["adminform"].form
    as_shown = {name: form[name].value().replace("\n", "\r\n") for name in ("description", "excluded")}
    assert save(client, calendar, **as_shown).status_code == 302
    response = save(client, calendar, excluded="dates 2998-01-01/2998-01-02")
    assert "“User” would have no scheduled times left" in errors(response)["__all__"]
    assert "dates 2998-01-01/2998-01-02" in response.content.decode()
    # Nor does anything become of a form that does not say which version it changes, or an old one.
    assert errors(save(client, calendar, version="1")).keys() == {"__all__"}
    for version in ("", "x", "9" * 20):
        assert errors(save(client, calendar, version=version, description="mine")), version
    assert everything() == before
    response = save(client, calendar, excluded="dates 2998-01-01")
    assert response.status_code == 302, errors(response)
    assert (fresh(calendar).token, f"{fresh(user).next_run_at:%Y-%m-%d}") == (3, "2998-01-02")


def test_a_calendar_that_is_used_is_not_deleted(client: Client) -> None:
    calendar = define()
    user = make_schedule(name="User", spec={"cron": ["0 9 * * *"]} | EXCEPT)
    response = client.post(page("schedules_sharedcalendar_delete", calendar.pk), {"post": "yes"})
    assert response["Location"] == operation("schedules_sharedcalendar", "delete", calendar.pk)
    assert "is used by “User”" in told(client, client.post(response["Location"]))
    user.close(initiator=SOMEBODY, now=clock.now())
    assert "is deleted" in told(client, client.post(response["Location"]))
    assert SharedCalendar.objects.count() == 0
