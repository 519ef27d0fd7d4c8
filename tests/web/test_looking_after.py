"""The pages of those who look after an installation: what they show, to whom, and what they change."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from activities.models import Activity
from api.models import ApiToken
from database import clock
from execution.models import Limit, Reservation, Worker
from schedules.models import SharedCalendar
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, claim, enqueue, fresh, make_schedule, make_template, make_worker, step
from tests.webhooks.base import make_endpoint
from webhooks.models import Delivery, Endpoint

pytestmark = pytest.mark.django_db


def member(role: str) -> Client:
    """Somebody in one of the groups that JIM brings along."""
    user = User.objects.create_user(f"a {role.lower()}")
    user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


def url(name: str, *args: Any) -> str:
    return reverse(f"web:{name}", args=args)


def make_calendar(name: str = "UK holidays", **fields: Any) -> SharedCalendar:
    excluded = [{"holidays": "GB", "subdivision": "ENG"}]
    return SharedCalendar.objects.define(name, excluded, initiator=SOMEBODY, now=NOW, **fields)


def make_token(user: User, name: str = "import") -> ApiToken:
    return ApiToken.objects.issue(name=name, scopes=["view"], user=user, initiator=SOMEBODY, now=clock.now())[
        0
    ]


def errors(answer: Any) -> dict[str, str]:
    return {name: " ".join(texts) for name, texts in answer.context["form"].errors.items()}


def test_seats_tasks_and_the_dead_are_shown() -> None:
    client = sign_in()
    assert "No worker is running" in client.get(url("workers")).text
    worker, dead = make_worker(clock.now()), make_worker(NOW)
    silent = client.get(url("workers"))
    assert (silent.context["beating"], 'class="tag">silent' in silent.text) == (1, True)
    Worker.objects.filter(pk=dead.pk).bury(now=NOW)
    enqueue(step("Import people"))
    claim(worker)
    assert "clock" not in client.get(url("workers")).text
    worker.beat(clock.now(), clock_skew=timedelta(seconds=-90))
    text = client.get(url("workers")).text
    assert ("1 of 100" in text, 'class="tag">silent' in text) == (True, False)
    assert "clock 1 min 30 s behind the database" in text
    assert "1 min 30 s behind the database" in client.get(worker.get_absolute_url()).text
    assert "<h2>Stopped</h2>" in text
    assert "Import people" in sign_in("viewer").get(worker.get_absolute_url()).text
    version = client.get(url("workers")).context["version"]
    assert client.get(url("workers-now"), {"version": version}).status_code == 204
    Worker.objects.update(beat_at=clock.now() + timedelta(seconds=1))
    assert client.get(url("workers-now"), {"version": version}).status_code == 200
    worker.stop(NOW)
    answer = client.get(url("worker-now", worker.pk), headers={"HX-Request": "true"})
    assert (answer.status_code, "data-poll" in answer.text) == (286, False)


class TestLimits:
    def test_an_administrator_makes_changes_and_deletes_one(self) -> None:
        client = member("Administrator")
        made = client.post(url("limit-new"), {"key": "type:sql", "size": "2", "note": "one database"})
        assert "one database" in client.get(made["Location"]).text
        gone = client.post(f"{url('operate', 'limit', 'delete')}?id=type%3Asql&next=/limits/key/type:sql")
        assert (gone["Location"], Limit.objects.exists()) == (url("limits"), False)

    def test_any_key_has_a_page_of_its_own(self) -> None:
        client = sign_in()
        for key in ("resource:a/b", "resource:ä ?#%2F", "new", "key/x", "now"):
            limit = Limit.objects.define(key, 1, initiator=SOMEBODY, now=NOW)
            assert client.get(limit.get_absolute_url()).context["used"].limit == limit
            assert client.post(url("limit-edit", key), {"size": "7"}).status_code == 302
            assert fresh(limit).size == 7

    def test_what_is_wrong_is_said_at_its_field_and_saving_it_as_it_was_changes_nothing(self) -> None:
        Limit.objects.define("global", 1, initiator=SOMEBODY, now=NOW)
        client = sign_in()
        assert "key already" in errors(client.post(url("limit-new"), {"key": "global", "size": "1"}))["key"]
        assert "size" in errors(client.post(url("limit-new"), {"key": "type:http", "size": "-1"}))
        client.post(url("limit-edit", "global"), {"size": "1", "note": ""})
        assert list(Activity.objects.values_list("operation", flat=True)) == ["create"]

    def test_who_has_it_is_named(self) -> None:
        limit = Limit.objects.define("resource:hr", 1, initiator=SOMEBODY, now=NOW)
        names = {"Import": "hr", "Export": "hr", "x": "hr2"}
        enqueue(*(step(name, resources=[resource]) for name, resource in names.items()))
        claim(make_worker())
        shown = sign_in().get(limit.get_absolute_url()).context
        assert ([task.name for task in shown["holders"]], shown["used"].waiting) == (["Import"], 1)

    def test_pools_are_those_that_anybody_names(self) -> None:
        for pools, seats, now in (
            (["night", "day"], 4, clock.now()),
            (["day"], 2, clock.now()),
            ([], 9, NOW),
        ):
            Worker.objects.register(id=uuid.uuid4(), pools=pools, seats=seats, now=now)
        Limit.objects.define("pool:day", 3, initiator=SOMEBODY, now=NOW)
        enqueue(step(pool="day"), step(pool="day"), step(pool="lost"))
        Reservation.objects.reserve({"pool": "night", "limit_keys": ""}, holder="web-1:7", now=NOW)
        answer = sign_in().get(url("limits"))
        assert [(p.name, p.seats, p.room, p.ready, p.workers) for p in answer.context["pools"]] == [
            ("day", 6, 3, 2, 2),
            ("default", 0, 0, 0, 0),
            ("lost", 0, 0, 1, 0),
            ("night", 4, 4, 0, 1),
        ]
        assert "web-1:7" in answer.text


class TestCalendars:
    def test_an_author_makes_and_changes_one(self) -> None:
        client = member("Author")
        typed = {"name": "Freeze", "description": "", "excluded": "dates 2026-12-24/2027-01-02"}
        client.post(url("calendar-new"), typed)
        calendar = SharedCalendar.objects.get()
        changed = {"description": "All of us", "excluded": "holidays GB", "version": "1"}
        answer = client.post(url("calendar-edit", calendar.pk), changed)
        assert answer["Location"] == calendar.get_absolute_url()
        assert fresh(calendar).description == "All of us"
        assert "choose another name" in errors(client.post(url("calendar-new"), typed))["name"]

    def test_its_page_draws_a_year_and_says_who_uses_it(self) -> None:
        calendar, client = make_calendar(description="England"), sign_in()
        make_schedule(name="Report", spec={"cron": ["0 9 * * *"], "exclude": [{"calendar": calendar.name}]})
        answer = client.get(calendar.get_absolute_url(), {"year": "2027"})
        assert ("Boxing Day" in answer.text, "Report" in answer.text) == (True, True)
        assert len(answer.context["months"]) == 12
        for year in ("99999", "x", "²⁰²⁶", "1066"):
            answer = client.get(calendar.get_absolute_url(), {"year": year})
            assert answer.context["year"] == clock.now().year, year

    def test_whoever_comes_second_sees_what_the_first_one_saved_and_loses_nothing(self) -> None:
        calendar, client = make_calendar(), sign_in()
        calendar.edit(token=1, changes={"description": "theirs"}, initiator=SOMEBODY, now=NOW)
        mine = {"description": "mine", "excluded": "holidays FR", "version": "1"}
        answer = client.post(url("calendar-edit", calendar.pk), mine)
        assert (answer.status_code, "ada" in answer.text) == (200, True)
        difference = answer.context["conflict"].differences[0]
        assert (difference.theirs, difference.yours) == ("theirs", "mine")
        assert fresh(calendar).description == "theirs"
        again = {name: answer.context["form"][name].value() for name in mine}
        assert client.post(url("calendar-edit", calendar.pk), again).status_code == 302
        assert fresh(calendar).description == "mine"


def test_an_author_archives_one_may_restore_it_and_filters_the_list() -> None:
    client, template = member("Author"), make_template("Import")
    used = make_template("Export", timeout_seconds=600, retry_on=["TimeoutError", "503"])
    make_schedule({"index": 0, "name": "To AD", "template": "Export", "max_retries": 9}, name="Nightly")
    shown = client.get(used.get_absolute_url())
    told = dict(shown.context["policies"])
    assert (told["Timeout"], told["Retry only after"]) == ("10 minutes", "TimeoutError, 503")
    assert ("Nightly" in shown.text, "max_retries: 9" in shown.text) == (True, True)
    client.post(f"{url('operate', 'tasktemplate', 'archive')}?id={template.pk}")
    assert fresh(template).is_archived
    assert "Restore" in client.get(template.get_absolute_url()).text
    for query, names in (("status=archived", ["Import"]), ("q=exp", ["Export"]), ("type=sql", [])):
        rows = client.get(f"{url('templates')}?{query}").context["rows"]
        assert [row.name for row in rows] == names


ENDPOINT = {
    "name": "Chat",
    "url": "https://chat.example/1",
    "kinds": ["worker.lost"],
    "failures": "3",
    "among": "5",
}


class TestWebhooks:
    def test_the_secret_of_a_new_one_is_shown_once(self) -> None:
        client = member("Administrator")
        answer = client.post(url("endpoint-new"), ENDPOINT)
        assert re.search(r"whsec_\S+", answer.text)
        assert "whsec_" not in client.get(Endpoint.objects.get().get_absolute_url()).text

    def test_it_is_changed_without_its_secret_and_mistakes_are_said_at_their_fields(self) -> None:
        endpoint = make_endpoint()
        client = sign_in()
        assert "secret" not in client.get(url("endpoint-edit", endpoint.pk)).context["form"].fields
        client.post(url("endpoint-edit", endpoint.pk), ENDPOINT | {"name": "Chat 2"})
        assert (fresh(endpoint).name, fresh(endpoint).token) == ("Chat 2", endpoint.token)
        found = errors(client.post(url("endpoint-new"), ENDPOINT | {"url": "chat.example", "kinds": []}))
        assert sorted(found) == ["kinds", "url"]
        assert "hooks.example" not in member("Operator").get(endpoint.get_absolute_url()).text

    def test_deliveries_are_filtered_by_their_address(self) -> None:
        chat, ticket = make_endpoint("worker.lost"), make_endpoint("worker.lost", name="Ticket")
        for each in (chat, ticket):
            each.test(initiator=SOMEBODY, now=NOW)
        ticket.disable(initiator=SOMEBODY, now=NOW)
        client = sign_in()
        wanted = {"": 2, "status=failed": 1, f"endpoint={chat.pk}": 1, "event=worker.lost": 0}
        for query, count in wanted.items():
            assert len(client.get(f"{url('deliveries')}?{query}").context["pages"].rows) == count, query
        text = client.get(Delivery.objects.latest("pk").get_absolute_url()).text
        assert ("The webhook was disabled." in text, "endpoint.test" in text) == (True, True)

    def test_a_delivery_says_how_long_each_try_took_and_is_sent_again(self) -> None:
        client, delivery = sign_in(), make_endpoint().test(initiator=SOMEBODY, now=NOW)
        tried = {"at": NOW.isoformat(), "seconds": 0.084, "status": 502, "answer": "", "error": ""}
        Delivery.objects.filter(pk=delivery.pk).update(log=[tried])
        assert "84 ms" in client.get(delivery.get_absolute_url()).text
        Delivery.objects.give_up("away", now=NOW)
        client.post(f"{url('operate', 'delivery', 'redeliver')}?id={delivery.pk}")
        assert fresh(delivery).status == "pending"


class TestTokens:
    def test_everybody_makes_their_own_and_sees_its_text_once(self) -> None:
        client = member("Viewer")
        answer = client.post(url("token-new"), {"name": "import", "scopes": ["view", "run"], "days": "30"})
        text = re.search(r"jim_[0-9a-f]{8}_[\w-]+", answer.text)
        assert text is not None
        token = ApiToken.objects.named_by(text[0], now=clock.now())
        assert token is not None
        assert token.expires_at is not None
        assert (token.scopes, token.expires_at - token.created_at) == (["view", "run"], timedelta(days=30))
        assert text[0] not in client.get(url("tokens")).text

    def test_one_sees_and_revokes_ones_own_and_administrators_any(self) -> None:
        client, administrator = member("Viewer"), member("Administrator")
        token = make_token(User.objects.get(username="a viewer"))
        other = make_token(User.objects.create_user("bob"), "of bob")
        assert "of bob" not in client.get(f"{url('tokens')}?of=all").text
        assert "of bob" not in administrator.get(url("tokens")).text
        assert "of bob" in administrator.get(f"{url('tokens')}?of=all").text
        assert client.get(url("token-revoke", token.pk)).status_code == 200
        client.post(url("token-revoke", token.pk))
        assert client.post(url("token-revoke", other.pk)).status_code == 404
        assert (fresh(token).revoked_at is None, fresh(other).revoked_at) == (False, None)
        administrator.post(url("token-revoke", other.pk))
        assert fresh(other).revoked_at is not None
        found = errors(client.post(url("token-new"), {"name": "", "days": "7"}))
        assert sorted(found) == ["days", "name", "scopes"]


def test_every_setting_but_no_secret_is_there_with_its_value_and_what_it_does(settings: Any) -> None:
    answer = member("Administrator").get(url("settings"))
    shown = {each.name for _, group in answer.context["groups"] for each in group}
    assert shown == {each.name for each in settings.JIM_CONFIGURATION}
    assert all(each.about for _, group in answer.context["groups"] for each in group)
    own = {name for name in dir(settings) if name.startswith("JIM_")} - {"JIM_CONFIGURATION"}
    assert own <= shown
    assert settings.SECRET_KEY not in answer.text
    assert member("Author").get(url("settings")).status_code == 403


def test_a_password_is_changed_by_whoever_knows_the_old_one() -> None:
    user = User.objects.create_user("ada", password="correct horse")
    client = Client()
    client.force_login(user)
    new = {"new_password1": "battery staple 7", "new_password2": "battery staple 7"}
    assert "old_password" in errors(client.post(url("password"), {"old_password": "wrong", **new}))
    assert client.post(url("password"), {"old_password": "correct horse", **new}).status_code == 302
    assert fresh(user).check_password("battery staple 7")
    assert client.get(url("home")).status_code == 200
