"""Shared calendars as people keep them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import clock
from activities.models import Activity
from schedules.models import SharedCalendar
from tests.admin_pages import form_of, operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule

pytestmark = pytest.mark.django_db
ROLES = {
    "viewer": ("view",),
    "adder": ("view", "add"),
    "keeper": ("view", "change"),
    "remover": ("view", "delete"),
}


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


def errors(response: Any) -> dict[str, str]:
    assert response.status_code == 200
    return {name: " ".join(texts) for name, texts in response.context["adminform"].form.errors.items()}


def test_a_calendar_is_defined_line_by_line(client: Client) -> None:
    lines = (
        'holidays GB ENG   # those of England\n\ndates 2026-12-24, comment: "half # day"\nday_of_week: sun'
    )
    assert "was added successfully" in told(client, save(client, excluded=lines, description="Ours"))
    calendar = SharedCalendar.objects.get()
    assert (calendar.name, calendar.description) == ("Days off", "Ours")
    assert calendar.excluded == [
        {"holidays": "GB", "subdivision": "ENG"},
        {"dates": "2026-12-24", "comment": "half # day"},
        {"day_of_week": "sun"},
    ]
    assert Activity.objects.get(operation="create").initiator_name == "superuser"


def test_the_page_says_what_it_leaves_out_and_who_uses_it(client: Client) -> None:
    calendar = define("Days off", {"holidays": "GB", "subdivision": "ENG"})
    user = make_schedule(spec={"cron": ["0 9 * * *"], "exclude": [{"calendar": "Days off"}]})
    text = client.get(page("schedules_sharedcalendar_change", calendar.pk)).content.decode()
    assert "Public holidays (United Kingdom, England)" in text
    assert page("schedules_schedule_change", user.pk) in text
    for year in (clock.now().year, clock.now().year + 1):
        assert f"Dates of {year}" in text
    assert text.count("Christmas Day") >= 2
    text = client.get(page("schedules_sharedcalendar_changelist")).content.decode()
    assert "Public holidays (United Kingdom, England)" in text


def test_whoever_may_only_look_sees_the_lines_and_no_form() -> None:
    url = page("schedules_sharedcalendar_change", define().pk)
    text = keeper_of("viewer").get(url).content.decode()
    assert "dates 2026-12-25, comment: &quot;Christmas&quot;" in text
    for absent in ("<textarea", 'name="_save"', "Used by"):
        assert absent not in text


def test_an_edit_moves_the_schedules_that_use_it(client: Client) -> None:
    calendar = define()
    user = make_schedule(
        spec={"at": ["2998-01-01T00:00:00Z", "2998-01-02T00:00:00Z"], "exclude": [{"calendar": "Days off"}]}
    )
    response = save(client, calendar, excluded="dates 2998-01-01")
    assert response.status_code == 302, errors(response)
    assert fresh(calendar).token == 2
    assert f"{fresh(user).next_run_at:%Y-%m-%d}" == "2998-01-02"


def test_what_is_saved_as_it_was_is_no_edit(client: Client) -> None:
    calendar = define("Days off", {"dates": "2026-12-25", "comment": 'a # "b'}, {"day_of_week": "sat,sun"})
    calendar.edit(token=1, changes={"description": "two\nlines"}, initiator=SOMEBODY, now=NOW)
    form = client.get(page("schedules_sharedcalendar_change", calendar.pk)).context["adminform"].form
    before = everything()
    shown = {name: form[name].value().replace("\n", "\r\n") for name in ("description", "excluded")}
    assert save(client, calendar, **shown).status_code == 302
    assert everything() == before


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"name": "TAKEN"}, "name", "already"),
        ({"name": "a\u202eb"}, "name", "is not allowed"),
        ({"description": "x" * 1001}, "description", "at most 1000"),
        ({"excluded": "christmas"}, "excluded", "is not understood; write dates"),
        ({"excluded": "calendar Taken"}, "excluded", "is not understood"),
        ({"excluded": "holidays GB XYZ"}, "excluded", "is not a subdivision"),
        ({"excluded": '{"calendar": "Taken"}'}, "excluded", "cannot refer to another calendar"),
        ({"excluded": "dates 2026-12-25\n" * 1001}, "excluded", "too many"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(fields: dict[str, str], field: str, words: str) -> None:
    define("Taken")
    form = form_of(SharedCalendar, {"name": "Days off", "description": "", "excluded": ""} | fields)
    assert words in " ".join(form.errors[field])


def test_what_is_wrong_is_shown_and_nothing_is_saved(client: Client) -> None:
    assert set(errors(save(client, excluded="christmas"))) == {"excluded"}
    assert SharedCalendar.objects.count() == 0


def test_an_edit_that_would_end_a_schedule_is_refused_in_words(client: Client) -> None:
    calendar = define()
    make_schedule(name="Once", spec={"at": ["2998-01-01T00:00:00Z"], "exclude": [{"calendar": "Days off"}]})
    response = save(client, calendar, excluded="dates 2998-01-01")
    assert "“Once” would have no time left" in errors(response)["__all__"]
    assert "dates 2998-01-01" in response.content.decode()
    assert fresh(calendar).token == 1


@pytest.mark.parametrize("version", ["", "x", "1", "99999999999999999999"])
def test_two_editors_do_not_overwrite_each_other(client: Client, version: str) -> None:
    """Nor does a form that does not say which version it changes."""
    calendar = define()
    calendar.edit(token=1, changes={"description": "theirs"}, initiator=SOMEBODY, now=NOW)
    told = errors(save(client, calendar, version=version, description="mine"))
    if version == "1":
        assert "Somebody else changed this calendar meanwhile" in told["__all__"]
    assert told
    assert fresh(calendar).description == "theirs"


def test_a_calendar_that_is_used_is_not_deleted(client: Client) -> None:
    calendar = define()
    user = make_schedule(name="User", spec={"cron": ["0 9 * * *"], "exclude": [{"calendar": "Days off"}]})
    response = client.post(page("schedules_sharedcalendar_delete", calendar.pk), {"post": "yes"})
    assert response["Location"] == operation("schedules_sharedcalendar", "delete", calendar.pk)
    assert "is used by “User”" in told(client, client.post(response["Location"]))
    user.close(initiator=SOMEBODY, now=clock.now())
    assert "is deleted" in told(client, client.post(response["Location"]))
    assert SharedCalendar.objects.count() == 0


def test_a_broken_one_breaks_no_page(client: Client) -> None:
    calendar = define()
    SharedCalendar.objects.update(excluded={"x": 5})
    assert "Broken" in client.get(page("schedules_sharedcalendar_changelist")).content.decode()
    assert "Broken" in client.get(page("schedules_sharedcalendar_change", calendar.pk)).content.decode()


def test_the_list_needs_as_many_queries_for_many_as_for_few(client: Client) -> None:
    counts = []
    for names in ("a", "bcdef"):
        for name in names:
            define(name)
        with CaptureQueriesContext(connection) as captured:
            client.get(page("schedules_sharedcalendar_changelist"))
        counts.append(len(captured))
    assert counts[1] == counts[0] <= 5


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", set()),
        ("adder", {"define"}),
        ("keeper", {"edit"}),
        ("remover", {"ask to delete", "delete"}),
    ],
)
def test_who_may_do_what(role: str, allowed: set[str]) -> None:
    calendar, client, wrong = define(), keeper_of(role), []
    delete = operation("schedules_sharedcalendar", "delete", calendar.pk)
    pages: dict[str, Callable[[], Any]] = {
        "define": lambda: save(client, name="New"),
        "edit": lambda: save(client, calendar, description="new"),
        "ask to delete": lambda: client.get(delete),
        "delete": lambda: client.post(delete),
    }
    for what, call in pages.items():
        before, done = everything(), call()
        if done.status_code != ((200 if "ask" in what else 302) if what in allowed else 403):
            wrong.append((what, done.status_code))
        if (everything() != before) is not (what in allowed and "ask" not in what):
            wrong.append((what, "changes"))
    assert wrong == []


def keeper_of(role: str) -> Client:
    client = sign_in("nobody")
    user = User.objects.get(username="nobody")
    for verb in ROLES[role]:
        user.user_permissions.add(Permission.objects.get(codename=f"{verb}_sharedcalendar"))
    return client
