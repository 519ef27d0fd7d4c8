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

from activities import clock
from activities.models import Activity
from api.models import ApiToken
from execution.models import Limit, Reservation, Worker
from schedules.models import SharedCalendar, TaskTemplate
from tests.admin_pages import sign_in
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    enqueue,
    fresh,
    make_schedule,
    make_template,
    make_worker,
    seconds,
    step,
)
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


def make_endpoint(name: str = "Chat", **fields: Any) -> Endpoint:
    fields = {"url": "https://chat.example/hooks/1", "kinds": ["execution.failed"]} | fields
    return Endpoint.objects.define(name=name, **fields, initiator=SOMEBODY, now=NOW)[0]


def make_token(user: User, name: str = "import") -> ApiToken:
    return ApiToken.objects.issue(name=name, scopes=["view"], user=user, initiator=SOMEBODY, now=clock.now())[
        0
    ]


def errors(answer: Any) -> dict[str, str]:
    return {name: " ".join(texts) for name, texts in answer.context["form"].errors.items()}


class TestWorkers:
    def test_without_any_the_page_says_that_nothing_runs(self) -> None:
        assert "No worker is alive" in sign_in().get(url("workers")).text

    def test_seats_tasks_and_the_dead_are_shown(self) -> None:
        worker, dead = make_worker(clock.now()), make_worker(NOW)
        Worker.objects.filter(pk=dead.pk).bury(now=NOW)
        enqueue(step("Import people"))
        claim(worker)
        text = sign_in().get(url("workers")).text
        assert "1 of 100" in text
        assert ("Dead and gone" in text, "dead" in text) == (True, True)
        assert "Import people" in sign_in("viewer").get(worker.get_absolute_url()).text

    def test_looking_again_says_nothing_while_nothing_has_changed(self) -> None:
        make_worker(clock.now())
        client = sign_in()
        version = client.get(url("workers")).context["version"]
        assert client.get(url("workers-now"), {"version": version}).status_code == 204
        Worker.objects.update(beat_at=clock.now() + seconds(1))
        assert client.get(url("workers-now"), {"version": version}).status_code == 200

    def test_one_that_has_ended_is_not_asked_after_again(self) -> None:
        worker = make_worker()
        worker.stop(NOW)
        answer = sign_in().get(url("worker-now", worker.pk), headers={"HX-Request": "true"})
        assert (answer.status_code, "data-poll" in answer.text) == (286, False)

    @pytest.mark.parametrize("count", [1, 20])
    def test_polling_costs_the_same_for_many(self, django_assert_max_num_queries: Any, count: int) -> None:
        for _ in range(count):
            make_worker(clock.now())
        client = sign_in()
        with django_assert_max_num_queries(5):
            client.get(url("workers-now"))


class TestLimits:
    def test_an_administrator_makes_changes_and_deletes_one(self) -> None:
        client = member("Administrator")
        made = client.post(url("limit-new"), {"key": "type:sql", "size": "2", "note": "one database"})
        assert made["Location"] == url("limit", "type:sql")
        assert "one database" in client.get(made["Location"]).text
        client.post(url("limit-edit", "type:sql"), {"size": "3", "note": ""})
        assert Limit.objects.get().size == 3
        gone = client.post(f"{url('operate', 'limit', 'delete')}?id=type%3Asql&next=/limits/key/type:sql")
        assert (gone["Location"], Limit.objects.exists()) == (url("limits"), False)

    @pytest.mark.parametrize("key", ["resource:a/b", "resource:ä ?#%2F", "new", "key/x", "now"])
    def test_any_key_has_a_page_of_its_own(self, key: str) -> None:
        limit = Limit.objects.define(key, 1, initiator=SOMEBODY, now=NOW)
        client = sign_in()
        assert client.get(limit.get_absolute_url()).context["used"].limit == limit
        assert client.post(url("limit-edit", key), {"size": "7"}).status_code == 302
        assert fresh(limit).size == 7

    def test_what_is_wrong_is_said_at_its_field(self) -> None:
        Limit.objects.define("global", 1, initiator=SOMEBODY, now=NOW)
        client = sign_in()
        assert "key already" in errors(client.post(url("limit-new"), {"key": "global", "size": "1"}))["key"]
        assert "size" in errors(client.post(url("limit-new"), {"key": "type:http", "size": "-1"}))

    def test_saving_it_as_it_was_changes_nothing(self) -> None:
        Limit.objects.define("global", 1, initiator=SOMEBODY, now=NOW)
        sign_in().post(url("limit-edit", "global"), {"size": "1", "note": ""})
        assert list(Activity.objects.values_list("operation", flat=True)) == ["create"]

    def test_who_has_it_is_named(self) -> None:
        limit = Limit.objects.define("resource:hr", 1, initiator=SOMEBODY, now=NOW)
        enqueue(
            step("Import", resources=["hr"]), step("Export", resources=["hr"]), step("x", resources=["hr2"])
        )
        claim(make_worker())
        answer = sign_in().get(limit.get_absolute_url())
        assert ([task.name for task in answer.context["holders"]], answer.context["used"].waiting) == (
            ["Import"],
            1,
        )

    def test_pools_are_those_that_anybody_names(self) -> None:
        Worker.objects.register(id=uuid.uuid4(), pools=["night", "day"], seats=4, now=NOW)
        Worker.objects.register(id=uuid.uuid4(), pools=["day"], seats=2, now=NOW)
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

    def test_polling_costs_five_queries_at_most(self, django_assert_max_num_queries: Any) -> None:
        for number in range(20):
            Limit.objects.define(f"resource:{number}", 1, initiator=SOMEBODY, now=NOW)
            enqueue(step(resources=[str(number)], pool=f"pool-{number}"), step(pool=f"other-{number}"))
        client = sign_in()
        with django_assert_max_num_queries(5):
            client.get(url("limits-now"))


class TestCalendars:
    def test_an_author_makes_and_changes_one(self) -> None:
        client = member("Author")
        typed = {"name": "Freeze", "description": "", "excluded": "dates 2026-12-24/2027-01-02"}
        client.post(url("calendar-new"), typed)
        calendar = SharedCalendar.objects.get()
        changed = {"description": "All of us", "excluded": "holidays GB", "version": "1"}
        assert (
            client.post(url("calendar-edit", calendar.pk), changed)["Location"] == calendar.get_absolute_url()
        )
        assert fresh(calendar).description == "All of us"

    def test_its_page_draws_a_year_and_says_who_uses_it(self) -> None:
        calendar = make_calendar(description="England")
        make_schedule(name="Report", spec={"cron": ["0 9 * * *"], "exclude": [{"calendar": calendar.name}]})
        answer = sign_in().get(calendar.get_absolute_url(), {"year": "2027"})
        assert ("Boxing Day" in answer.text, "Report" in answer.text) == (True, True)
        assert len(answer.context["months"]) == 12

    @pytest.mark.parametrize("year", ["0", "99999", "x", "-1", "²⁰²⁶", "1066"])
    def test_a_year_that_is_none_is_this_one(self, year: str) -> None:
        answer = sign_in().get(make_calendar().get_absolute_url(), {"year": year})
        assert answer.context["year"] == clock.now().year

    def test_whoever_comes_second_sees_what_the_first_one_saved_and_loses_nothing(self) -> None:
        calendar, client = make_calendar(), sign_in()
        calendar.edit(token=1, changes={"description": "theirs"}, initiator=SOMEBODY, now=NOW)
        mine = {"description": "mine", "excluded": "holidays FR", "version": "1"}
        answer = client.post(url("calendar-edit", calendar.pk), mine)
        assert (answer.status_code, "ada" in answer.text) == (200, True)
        assert [(d.theirs, d.yours) for d in answer.context["conflict"].differences][:1] == [
            ("theirs", "mine")
        ]
        assert fresh(calendar).description == "theirs"
        again = {name: answer.context["form"][name].value() for name in mine}
        assert client.post(url("calendar-edit", calendar.pk), again).status_code == 302
        assert fresh(calendar).description == "mine"

    def test_one_that_is_used_is_not_deleted(self) -> None:
        calendar = make_calendar()
        make_schedule(spec={"cron": ["0 9 * * *"], "exclude": [{"calendar": calendar.name}]})
        client = sign_in()
        answer = client.post(f"{url('operate', 'sharedcalendar', 'delete')}?id={calendar.pk}", follow=True)
        assert "is used by" in " ".join(map(str, answer.context["messages"]))

    def test_a_line_that_makes_no_sense_is_said_at_its_field(self) -> None:
        answer = sign_in().post(url("calendar-new"), {"name": "x", "excluded": "holidays Atlantis"})
        assert "Atlantis" in errors(answer)["excluded"]
        make_calendar("Taken")
        taken = member("Author").post(url("calendar-new"), {"name": "taken", "excluded": ""})
        assert "choose another name" in errors(taken)["name"]


class TestTemplates:
    def test_an_author_archives_one_and_may_restore_it(self) -> None:
        client, template = member("Author"), make_template("Export")
        client.post(f"{url('operate', 'tasktemplate', 'archive')}?id={template.pk}")
        assert fresh(template).is_archived
        assert "Restore" in client.get(template.get_absolute_url()).text

    def test_its_page_says_in_words_how_it_runs(self) -> None:
        template = make_template("Export", timeout_seconds=600, retry_on=["TimeoutError", "503"])
        told = dict(sign_in().get(template.get_absolute_url()).context["policies"])
        assert (told["Timeout"], told["Retry only after"]) == ("10 minutes", "TimeoutError, 503")
        assert (told["If its worker dies"], told["Its failure"]) == ("Run it again", "counts")

    def test_its_page_says_which_steps_use_it(self) -> None:
        make_template("Export")
        make_schedule({"index": 0, "name": "To AD", "template": "Export", "max_retries": 9}, name="Nightly")
        answer = sign_in().get(TaskTemplate.objects.get().get_absolute_url())
        assert ("Nightly" in answer.text, "max_retries: 9" in answer.text) == (True, True)

    def test_the_list_is_filtered_by_its_address(self) -> None:
        make_template("Export")
        make_template("Import").archive(initiator=SOMEBODY, now=NOW)
        client = sign_in()
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

    def test_it_is_changed_without_its_secret(self) -> None:
        endpoint = make_endpoint()
        client = sign_in()
        assert "secret" not in client.get(url("endpoint-edit", endpoint.pk)).context["form"].fields
        client.post(url("endpoint-edit", endpoint.pk), ENDPOINT | {"name": "Chat 2"})
        assert (fresh(endpoint).name, fresh(endpoint).token) == ("Chat 2", endpoint.token)

    def test_what_is_wrong_is_said_at_its_field(self) -> None:
        make_endpoint()
        found = errors(sign_in().post(url("endpoint-new"), ENDPOINT | {"url": "chat.example", "kinds": []}))
        assert ("url" in found, found["kinds"]) == (True, "Choose at least one event.")

    def test_who_may_only_look_does_not_see_the_address(self) -> None:
        endpoint = make_endpoint()
        assert "chat.example" not in member("Operator").get(endpoint.get_absolute_url()).text

    def test_deliveries_are_filtered_by_their_address(self) -> None:
        chat, ticket = make_endpoint(), make_endpoint("Ticket")
        for each in (chat, ticket):
            each.test(initiator=SOMEBODY, now=NOW)
        ticket.disable(initiator=SOMEBODY, now=NOW)
        client = sign_in()
        for query, count in (
            ("", 2),
            ("status=failed", 1),
            (f"endpoint={chat.pk}", 1),
            ("event=worker.lost", 0),
        ):
            assert len(client.get(f"{url('deliveries')}?{query}").context["pages"].rows) == count
        text = client.get(Delivery.objects.latest("pk").get_absolute_url()).text
        assert ("The endpoint was disabled." in text, "endpoint.test" in text) == (True, True)

    def test_a_delivery_says_how_long_each_try_took(self) -> None:
        delivery = make_endpoint().test(initiator=SOMEBODY, now=NOW)
        tried = {"at": NOW.isoformat(), "seconds": 0.084, "status": 502, "answer": "", "error": ""}
        Delivery.objects.filter(pk=delivery.pk).update(log=[tried])
        assert "84 ms" in sign_in().get(delivery.get_absolute_url()).text

    def test_one_that_failed_is_sent_again(self) -> None:
        endpoint = make_endpoint()
        delivery = endpoint.test(initiator=SOMEBODY, now=NOW)
        Delivery.objects.give_up("away", now=NOW)
        sign_in().post(f"{url('operate', 'delivery', 'redeliver')}?id={delivery.pk}")
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

    def test_only_administrators_see_those_of_others(self) -> None:
        make_token(User.objects.create_user("bob"), "of bob")
        assert "of bob" not in member("Author").get(f"{url('tokens')}?of=all").text
        client = member("Administrator")
        assert "of bob" not in client.get(url("tokens")).text
        assert "of bob" in client.get(f"{url('tokens')}?of=all").text

    def test_one_revokes_ones_own(self) -> None:
        client = member("Viewer")
        token = make_token(User.objects.get(username="a viewer"))
        other = make_token(User.objects.create_user("bob"))
        assert client.get(url("token-revoke", token.pk)).status_code == 200
        client.post(url("token-revoke", token.pk))
        assert client.post(url("token-revoke", other.pk)).status_code == 404
        assert (fresh(token).revoked_at is None, fresh(other).revoked_at) == (False, None)

    def test_administrators_revoke_any(self) -> None:
        token = make_token(User.objects.create_user("bob"))
        member("Administrator").post(url("token-revoke", token.pk))
        assert fresh(token).revoked_at is not None

    def test_what_is_missing_is_said_at_its_field(self) -> None:
        found = errors(sign_in().post(url("token-new"), {"name": "", "days": "7"}))
        assert sorted(found) == ["days", "name", "scopes"]


class TestSettings:
    def test_every_setting_is_there_with_its_value_and_what_it_does(self, settings: Any) -> None:
        answer = member("Administrator").get(url("settings"))
        shown = {each.name for _, group in answer.context["groups"] for each in group}
        assert shown == {each.name for each in settings.JIM_CONFIGURATION}
        assert all(each.about for _, group in answer.context["groups"] for each in group)
        own = {name for name in dir(settings) if name.startswith("JIM_")} - {"JIM_CONFIGURATION"}
        assert own <= shown
        headings = {each.name: heading for heading, group in answer.context["groups"] for each in group}
        assert headings["JIM_WAKE_LEAST_SECONDS"] == headings["JIM_WORKFLOW_FIXER"] == "Workflows"

    def test_nothing_secret_is_shown(self, settings: Any) -> None:
        assert settings.SECRET_KEY not in sign_in().get(url("settings")).text

    def test_those_who_do_not_look_after_it_do_not_see_it(self) -> None:
        assert member("Author").get(url("settings")).status_code == 403


class TestAccount:
    def test_a_password_is_changed_by_whoever_knows_the_old_one(self) -> None:
        user = User.objects.create_user("ada", password="correct horse")
        client = Client()
        client.force_login(user)
        new = {"new_password1": "battery staple 7", "new_password2": "battery staple 7"}
        assert "old_password" in errors(client.post(url("password"), {"old_password": "wrong", **new}))
        assert client.post(url("password"), {"old_password": "correct horse", **new}).status_code == 302
        assert fresh(user).check_password("battery staple 7")
        assert client.get(url("home")).status_code == 200
