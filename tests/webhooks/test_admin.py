"""The admin's pages of endpoints and deliveries: who gets them, what they say, what they never show again."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings

from activities import clock
from activities.models import Activity
from tests.admin_pages import operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, fresh, make_schedule
from tests.steps.web_server import serving
from tests.webhooks.base import SECRET, make_delivery, make_endpoint, send, tried
from webhooks.models import Delivery, Endpoint

pytestmark = pytest.mark.django_db
# By what a person may do: what that person gets.
PAGES = {
    "webhooks_endpoint_changelist": ("webhooks.view_endpoint", 200),
    "webhooks_endpoint_add": ("webhooks.add_endpoint", 200),
    "webhooks_endpoint_change": ("webhooks.view_endpoint", 200),
    "webhooks_endpoint_history": ("webhooks.view_endpoint", 302),
    "webhooks_endpoint_delete": (None, 302),
    "webhooks_endpoint_do": ("webhooks.change_endpoint", 200),
    "webhooks_delivery_changelist": ("webhooks.view_delivery", 200),
    "webhooks_delivery_add": (None, 403),
    "webhooks_delivery_change": ("webhooks.view_delivery", 200),
    "webhooks_delivery_history": (None, 404),
    "webhooks_delivery_delete": (None, 403),
    "webhooks_delivery_do": ("webhooks.change_delivery", 200),
}


@pytest.fixture
def client() -> Client:
    return sign_in()


def typed(**fields: Any) -> dict[str, Any]:
    form = {
        "name": "Chat",
        "url": "https://chat.example/hook",
        "description": "",
        "secret": "",
        "kinds": ["worker.lost"],
        "schedules": "",
        "failures": "3",
        "among": "3",
    }
    return form | fields


def add(client: Client, **fields: Any) -> Any:
    return client.post(page("webhooks_endpoint_add"), typed(**fields))


def complaints(response: Any) -> dict[str, str]:
    assert response.status_code == 200
    errors = response.context["adminform"].form.errors
    return {name: " ".join(texts) for name, texts in errors.items()}


def routes() -> Iterator[str]:
    page("index")  # which loads them
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label == "webhooks":
            yield from (str(url.name) for url in model_admin.get_urls() if url.name)


def url_of(route: str) -> str:
    endpoint = Endpoint.objects.first() or make_endpoint()
    delivery = Delivery.objects.first() or make_delivery(endpoint)
    row = endpoint if "endpoint" in route else delivery
    if route.endswith("_do"):
        return operation(route.removesuffix("_do"), "disable" if row is endpoint else "redeliver", row.pk)
    return page(route, *([] if route.endswith(("changelist", "add")) else [row.pk]))


def test_every_page_is_in_the_table() -> None:
    assert set(routes()) == set(PAGES)


@pytest.mark.parametrize("route", PAGES)
def test_each_page_takes_its_own_permission_and_changes_nothing(route: str) -> None:
    permission, status = PAGES[route]
    url, nobody = url_of(route), sign_in("nobody")
    assert nobody.get(url).status_code == (403 if permission else status)
    if permission:
        before = everything_about_webhooks()
        assert somebody_with(permission).get(url).status_code == status
        assert everything_about_webhooks() == before


def everything_about_webhooks() -> Any:
    return list(Endpoint.objects.values()), list(Delivery.objects.values()), Activity.objects.count()


def somebody_with(permission: str) -> Client:
    user = User.objects.create_user("somebody", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename=permission.split(".")[1]))
    client = Client()
    client.force_login(user)
    return client


def test_a_viewer_sees_an_endpoint_and_changes_nothing() -> None:
    endpoint = make_endpoint("worker.lost", name="Chat")
    client = somebody_with("webhooks.view_endpoint")
    shown = client.get(page("webhooks_endpoint_change", endpoint.pk))
    assert "worker.lost" in shown.content.decode()
    assert b'name="_save"' not in shown.content
    assert client.post(page("webhooks_endpoint_change", endpoint.pk), typed()).status_code == 403
    assert client.post(page("webhooks_endpoint_add"), typed()).status_code == 403
    for name in ("test", "rotate", "enable", "disable", "delete"):
        assert client.post(operation("webhooks_endpoint", name, endpoint.pk)).status_code == 403


def test_a_new_endpoint_shows_its_secret_once(client: Client) -> None:
    shown = add(client)
    assert shown.status_code == 200
    assert "no-store" in shown.headers["Cache-Control"]
    endpoint = Endpoint.objects.get()
    (secret,) = endpoint.signing(NOW)
    text = html.unescape(shown.content.decode())
    assert secret in text
    assert "It is shown this once." in text
    for url in (page("webhooks_endpoint_change", endpoint.pk), page("webhooks_endpoint_changelist")):
        assert secret not in html.unescape(client.get(url).content.decode())
    assert "has this name already" not in text
    again = add(client)
    assert complaints(again) == {"name": "There is an endpoint with this name already: choose another name."}


def test_a_secret_of_ones_own_is_not_shown_at_all(client: Client) -> None:
    answer = add(client, secret=SECRET)
    assert answer.status_code == 302
    assert Endpoint.objects.get().signing(NOW) == [SECRET]


def test_a_secret_is_rotated_and_shown_once(client: Client) -> None:
    endpoint = make_endpoint()
    url = operation("webhooks_endpoint", "rotate", endpoint.pk)
    assert client.get(url).status_code == 200
    shown = client.post(url, {"secret": ""})
    new, old = fresh(endpoint).signing(clock.now())
    assert old == SECRET
    assert new in html.unescape(shown.content.decode())
    assert "24 hours" in shown.content.decode()
    answer = client.post(url, {"secret": "short"})
    assert "begins with whsec_" in str(answer.context["form"].errors)
    assert fresh(endpoint).signing(clock.now()) == [new, old]


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("no name", {"name": " "}, "name", "required"),
    ("a long name", {"name": "x" * 101}, "name", "at most 100 characters"),
    ("control characters", {"name": "a\u202eb"}, "name", "U+202E is not allowed"),
    ("no URL", {"url": ""}, "url", "required"),
    ("a file", {"url": "file:///etc/passwd"}, "url", "begins with http:// or https://"),
    ("a password", {"url": "https://ada:pw@chat.example/"}, "url", "neither user name nor password"),
    ("this host", {"url": "http://127.0.0.1/"}, "url", "JIM_HTTP_ALLOW can allow it"),
    ("metadata", {"url": "http://[::ffff:169.254.169.254]/"}, "url", "is not public"),
    ("no events", {"kinds": []}, "kinds", "Choose at least one event."),
    ("an unknown event", {"kinds": ["job.done"]}, "kinds", "job.done is not one of the available choices"),
    ("an unknown schedule", {"schedules": "999"}, "schedules", "There is no schedule “999”"),
    ("more than all", {"failures": "4"}, "failures", "4 cannot be among the last 3 executions"),
    ("none", {"failures": "0"}, "failures", "greater than or equal to 1"),
    ("too many", {"failures": "3", "among": "51"}, "among", "less than or equal to 50"),
    ("another secret", {"secret": "hunter2hunter2hunter2"}, "secret", "begins with whsec_"),
]


def test_what_is_wrong_is_told_at_its_field(client: Client) -> None:
    for name, fields, field, words in WRONG:
        answer = add(client, **fields)
        said = complaints(answer)
        assert list(said) == [field], name
        assert words in said[field], name
        assert "hunter2" not in answer.content.decode()
    assert not Endpoint.objects.exists()


def test_an_endpoint_is_edited(client: Client) -> None:
    schedule = make_schedule(name="Nightly")
    endpoint = make_endpoint(name="Chat")
    url = page("webhooks_endpoint_change", endpoint.pk)
    answer = client.post(url, typed(name="Talk", kinds=["execution.late"], schedules="nightly\n\n"))
    assert "was changed successfully" in told(client, answer)
    endpoint = fresh(endpoint)
    assert (endpoint.name, endpoint.kinds, endpoint.schedules) == ("Talk", ["execution.late"], [schedule.pk])
    assert endpoint.signing(NOW) == [SECRET]
    assert ">\nNightly</textarea>" in client.get(url).content.decode()
    assert "Nightly" in client.get(page("webhooks_endpoint_changelist")).content.decode()
    assert complaints(client.post(url, typed(url="ftp://x/")))["url"].startswith("The URL must be")


def test_the_operations_of_an_endpoint(client: Client) -> None:
    endpoint = make_endpoint(name="Chat")

    def ask(name: str) -> str:
        return told(
            client, client.post(operation("webhooks_endpoint", name, endpoint.pk), {"note": "", "secret": ""})
        )

    assert "A test of “Chat” is on its way." in ask("test")
    assert Delivery.objects.get().kind == "endpoint.test"
    assert "“Chat” is disabled." in ask("disable")
    assert "enable it first" in ask("test")
    assert "is not enabled" in ask("disable")
    assert "“Chat” is enabled." in ask("enable")
    assert "is enabled already" in ask("enable")
    assert "“Chat” is deleted." in ask("delete")
    assert client.get(page("webhooks_endpoint_change", endpoint.pk)).status_code == 404
    operations = set(Activity.objects.filter(target_type="endpoint").values_list("operation", flat=True))
    assert operations == {"create", "test", "disable", "enable", "delete"}
    assert "Chat (deleted)" in client.get(page("webhooks_delivery_changelist")).content.decode()


def test_a_delivery_shows_what_was_sent_and_answered_and_is_sent_again(client: Client) -> None:
    endpoint = make_endpoint()
    delivery = make_delivery(endpoint)
    (claimed,) = Delivery.objects.claim(endpoint.pk, limit=1, now=NOW)
    Delivery.objects.deliver(claimed, tried(410, answer="<b>go away</b>"), now=NOW)
    url = page("webhooks_delivery_change", delivery.pk)
    shown = client.get(url).content.decode()
    assert delivery.webhook_id in shown
    assert "&lt;b&gt;go away&lt;/b&gt;" in shown
    assert "endpoint.test" in shown
    answer = client.post(operation("webhooks_delivery", "redeliver", delivery.pk))
    assert "is on its way again" in told(client, answer)
    again = client.post(operation("webhooks_delivery", "redeliver", delivery.pk))
    assert "is on its way already" in told(client, again)


def test_the_list_of_deliveries_can_be_filtered(client: Client) -> None:
    endpoint = make_endpoint()
    delivery = make_delivery(endpoint)
    for query, found in {
        "status__exact=failed": [],
        "kind=worker.lost": [],
        f"endpoint__id__exact={endpoint.pk}": [delivery],
        "kind=endpoint.test": [delivery],
    }.items():
        answer = client.get(f"{page('webhooks_delivery_changelist')}?{query}")
        assert list(answer.context["cl"].result_list) == found, query
    for query in ("kind=nonsense", "p=7"):
        assert client.get(f"{page('webhooks_delivery_changelist')}?{query}").status_code == 200


def test_an_endpoint_that_disabled_itself_needs_a_look(client: Client) -> None:
    endpoint = make_endpoint(name="Old pager")
    assert "Old pager" not in client.get(page("index")).content.decode()
    endpoint.learn(tried(410), has_failed=True, now=NOW)
    assert "Old pager" in client.get(page("index")).content.decode()
    assert (
        "It answered 410 Gone." in client.get(page("webhooks_endpoint_change", endpoint.pk)).content.decode()
    )


def test_without_its_key_the_page_says_so(client: Client) -> None:
    endpoint = make_endpoint()
    with override_settings(JIM_SECRETS_KEYS=["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]):
        shown = client.get(page("webhooks_endpoint_change", endpoint.pk)).content.decode()
    assert "cannot be decrypted" in shown


def test_a_secret_is_in_no_table_no_log_and_on_no_other_page(
    client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.DEBUG), override_settings(JIM_HTTP_ALLOW=["127.0.0.1"]), serving() as server:
        shown = add(client, url=f"{server.url}/reflect?is=500")
        secret = re.search(r"whsec_[\w+/=]+", html.unescape(shown.content.decode()))[0]  # type: ignore[index]
        endpoint = Endpoint.objects.get()
        add(client, name="Typed", secret=SECRET)
        endpoint.rotate(initiator=SOMEBODY, now=clock.now())
        make_delivery(endpoint, now=clock.now())
        send()
        pages = [client.get(url_of(route)) for route in PAGES]
    stored = "".join(everything_stored())
    assert len(server.seen) == 1
    assert "endpoint.test" in stored
    for canary in (secret, SECRET):
        core = canary.removeprefix("whsec_")
        assert core not in stored
        assert core not in caplog.text
        assert core not in str(server.seen)
        assert not any(core in html.unescape(answer.content.decode()) for answer in pages)


def everything_stored() -> Iterator[str]:
    with connection.cursor() as cursor:
        for model in [each for each in apps.get_models() if each._meta.managed]:
            cursor.execute(f'SELECT * FROM "{model._meta.db_table}"')
            yield from (str(row) for row in cursor.fetchall())
