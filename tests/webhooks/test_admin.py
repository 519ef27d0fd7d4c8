"""The admin's pages of endpoints and deliveries: who gets them, what they say, what they never show again."""

from __future__ import annotations

import html
import logging
import re
from typing import Any

import pytest
from django.test import Client, override_settings

from activities.models import Activity
from database import clock
from tests.admin_pages import errors, listed, member, operation, page, sign_in, stored, told
from tests.base import NOW, SOMEBODY, fresh, make_schedule
from tests.steps.web_server import serving
from tests.webhooks.base import SECRET, make_delivery, make_endpoint, send, tried
from webhooks.models import Delivery, Endpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    return sign_in()


def typed(**fields: Any) -> dict[str, Any]:
    form = {"name": "Chat", "url": "https://chat.example/hook", "description": "", "secret": ""}
    return form | {"kinds": ["worker.lost"], "schedules": "", "failures": "3", "among": "3"} | fields


def add(client: Client, **fields: Any) -> Any:
    return client.post(page("webhooks_endpoint_add"), typed(**fields))


def text_of(client: Client, url: str) -> str:
    return html.unescape(client.get(url, follow=True).content.decode())


def test_a_viewer_sees_an_endpoint_and_changes_nothing() -> None:
    """tests/test_permissions.py has every page."""
    endpoint, client = make_endpoint("worker.lost", name="Chat"), member("view_endpoint")
    before = stored()
    shown = client.get(page("webhooks_endpoint_change", endpoint.pk)).content
    assert (b"worker.lost" in shown, b'name="_save"' in shown) == (True, False)
    for url in (page("webhooks_endpoint_change", endpoint.pk), page("webhooks_endpoint_add")):
        assert client.post(url, typed()).status_code == 403
    for name in ("test", "rotate", "enable", "disable", "delete"):
        assert client.post(operation("webhooks_endpoint", name, endpoint.pk)).status_code == 403
    assert stored() == before


def test_a_new_endpoint_shows_its_secret_once_unless_it_is_ones_own(client: Client) -> None:
    shown = add(client)
    assert shown.status_code == 200
    assert "no-store" in shown.headers["Cache-Control"]
    endpoint = Endpoint.objects.get()
    (secret,) = endpoint.signing(NOW)
    assert secret in html.unescape(shown.content.decode())
    for url in (page("webhooks_endpoint_change", endpoint.pk), page("webhooks_endpoint_changelist")):
        assert secret not in text_of(client, url)
    said = {"name": "A webhook with this name already exists. Choose another name."}
    assert errors(add(client)) == said
    assert add(client, name="Other", secret=SECRET).status_code == 302
    assert Endpoint.objects.get(name="Other").signing(NOW) == [SECRET]


def test_a_secret_is_rotated_and_shown_once(client: Client) -> None:
    endpoint = make_endpoint()
    url = operation("webhooks_endpoint", "rotate", endpoint.pk)
    assert client.get(url).status_code == 200
    shown = client.post(url, {"secret": ""})
    new, old = fresh(endpoint).signing(clock.now())
    assert old == SECRET
    assert new in html.unescape(shown.content.decode())
    answer = client.post(url, {"secret": "short"})
    assert "must begin with whsec_" in str(answer.context["form"].errors)
    assert fresh(endpoint).signing(clock.now()) == [new, old]


WRONG: list[tuple[str, Any, str]] = [
    ("name", " ", "required"),
    ("name", "x" * 101, "at most 100 characters"),
    ("name", "a\u202eb", "U+202E is not allowed"),
    ("url", "", "required"),
    ("url", "file:///etc/passwd", "begins with http:// or https://"),
    ("url", "https://ada:pw@chat.example/", "must not contain a user name or password"),
    ("url", "http://127.0.0.1/", "JIM_HTTP_ALLOW can allow it"),
    ("url", "http://[::ffff:169.254.169.254]/", "is not public"),
    ("kinds", [], "Choose at least one event."),
    ("kinds", ["job.done"], "job.done is not one of the available choices"),
    ("schedules", "999", "Unknown schedule “999”"),
    ("failures", "4", "Enter at most 3: only the last 3 executions are checked"),
    ("failures", "0", "greater than or equal to 1"),
    ("among", "51", "less than or equal to 50"),
    ("secret", "hunter2hunter2hunter2", "must begin with whsec_"),
]


def test_what_is_wrong_is_told_at_its_field(client: Client) -> None:
    for field, text, words in WRONG:
        answer = add(client, **{field: text})
        said = errors(answer)
        assert list(said) == [field], text
        assert words in said[field]
        assert "hunter2" not in answer.content.decode()
    assert not Endpoint.objects.exists()


def test_an_endpoint_is_edited(client: Client) -> None:
    schedule, endpoint = make_schedule(name="Nightly"), make_endpoint(name="Chat")
    url = page("webhooks_endpoint_change", endpoint.pk)
    answer = client.post(url, typed(name="Talk", kinds=["execution.late"], schedules="nightly\n\n"))
    assert "was changed successfully" in told(client, answer)
    endpoint = fresh(endpoint)
    assert (endpoint.name, endpoint.kinds, endpoint.schedules) == ("Talk", ["execution.late"], [schedule.pk])
    assert endpoint.signing(NOW) == [SECRET]
    assert ">\nNightly</textarea>" in text_of(client, url)
    assert "Nightly" in text_of(client, page("webhooks_endpoint_changelist"))
    assert errors(client.post(url, typed(url="ftp://x/")))["url"].startswith("The URL must be")
    with override_settings(JIM_SECRETS_KEYS=["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]):
        assert "cannot be decrypted" in text_of(client, url)
    endpoint.learn(tried(410), has_failed=True, now=NOW)
    assert "The receiver responded with 410 Gone." in text_of(client, url)
    assert "Talk" in text_of(client, page("index"))


def test_a_form_sends_one_test_to_each_endpoint(client: Client) -> None:
    several = [make_endpoint(name=name) for name in ("Chat", "Mail")]
    url = operation("webhooks_endpoint", "test", *(each.pk for each in several))
    key = client.get(url).context["form"]["key"].value()
    assert key
    for _ in range(2):
        client.post(url, {"key": key})
        assert [each.endpoint for each in Delivery.objects.order_by("pk")] == several
    client.post(url, {"key": client.get(url).context["form"]["key"].value()})
    assert Delivery.objects.count() == 4
    several[0].disable(initiator=SOMEBODY, now=NOW)
    assert "Enable it first" in told(client, client.post(url, {"key": "other"}))


def test_the_operations_of_an_endpoint(client: Client) -> None:
    endpoint = make_endpoint(name="Chat")
    for name, said in (
        ("test", "A test event is being sent to “Chat”."),
        ("test", "A test event is being sent to “Chat”."),  # sent twice, as by a double click
        ("disable", "“Chat” was disabled."),
        ("disable", "is already disabled"),
        ("enable", "“Chat” was enabled."),
        ("enable", "is already enabled"),
        ("delete", "“Chat” is deleted."),
    ):
        url = operation("webhooks_endpoint", name, endpoint.pk)
        assert said in told(client, client.post(url, {"note": "", "secret": "", "key": "k"}))
    assert Delivery.objects.get().kind == "endpoint.test"
    assert client.get(page("webhooks_endpoint_change", endpoint.pk)).status_code == 404
    operations = set(Activity.objects.filter(target_type="endpoint").values_list("operation", flat=True))
    assert operations == {"create", "test", "disable", "enable", "delete"}
    assert "Chat (deleted)" in text_of(client, page("webhooks_delivery_changelist"))


def test_a_delivery_is_found_shows_what_was_sent_and_answered_and_is_sent_again(client: Client) -> None:
    endpoint = make_endpoint()
    delivery = make_delivery(endpoint)
    (claimed,) = Delivery.objects.claim(endpoint.pk, limit=1, now=NOW)
    Delivery.objects.deliver(claimed, tried(410, answer="<b>go away</b>"), now=NOW)
    queries = {"kind=worker.lost": [], "kind=endpoint.test": [delivery], "status__exact=pending": []}
    assert {query: listed(Delivery, query) for query in queries} == queries
    shown = client.get(page("webhooks_delivery_change", delivery.pk)).content.decode()
    for words in (delivery.webhook_id, "&lt;b&gt;go away&lt;/b&gt;", "endpoint.test"):
        assert words in shown
    url = operation("webhooks_delivery", "redeliver", delivery.pk)
    assert "is being sent again" in told(client, client.post(url))
    assert "is already being sent" in told(client, client.post(url))


def test_a_secret_is_in_no_table_no_log_and_on_no_other_page(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), override_settings(JIM_HTTP_ALLOW=["127.0.0.1"]), serving() as server:
        shown = add(client, url=f"{server.url}/reflect?is=500")
        secret = re.search(r"whsec_[\w+/=]+", html.unescape(shown.content.decode()))[0]  # type: ignore[index]
        endpoint = Endpoint.objects.get()
        add(client, name="Typed", secret=SECRET)
        endpoint.rotate(initiator=SOMEBODY, now=clock.now())
        delivery = make_delivery(endpoint, now=clock.now())
        send()
        names = ("webhooks_endpoint_changelist", "webhooks_delivery_changelist", "webhooks_endpoint_add")
        urls = [page(name) for name in names]
        urls += [page(f"webhooks_endpoint_{name}", endpoint.pk) for name in ("change", "history")]
        urls += [operation("webhooks_endpoint", name, endpoint.pk) for name in ("rotate", "delete")]
        urls.append(page("webhooks_delivery_change", delivery.pk))
        pages = [text_of(client, url) for url in urls]
    kept = stored()
    assert len(server.seen) == 1
    assert "endpoint.test" in kept
    for canary in (secret, SECRET):
        for place in (kept, caplog.text, str(server.seen), *pages):
            assert canary.removeprefix("whsec_") not in place
