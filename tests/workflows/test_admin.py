"""Workflows in the admin: looked at, and steered by those who may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils.html import strip_tags

from activities.models import Activity
from database import clock
from tests.admin_pages import listed, operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, fresh
from tests.workflows.base import events, publish, work
from tests.workflows.orders import backing_off, orders, stuck
from workflows import AuthRequired, Indeterminate
from workflows.models import Event, Handler, Run, Topic, Workflow

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def workflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflow]:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    with orders() as deployed:
        yield deployed


@pytest.fixture
def client() -> Client:
    return sign_in()


def change_page(row: Any) -> str:
    return page(f"workflows_{row._meta.model_name}_change", row.pk)


def shown(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return " ".join(strip_tags(response.content.decode()).replace("&quot;", '"').split())


def test_a_workflow_is_shown_as_people_see_it(client: Client, workflow: Workflow) -> None:
    run = stuck(AuthRequired("sign in to the carrier"))
    issue = "Sign in to the carrier. An operator must approve or reject the run."
    for url in (page("workflows_workflow_changelist"), change_page(workflow)):
        text = shown(client, url)
        for words in ("! needs attention", issue, "Every 5 minutes"):
            assert words in text
    assert change_page(run) in client.get(change_page(workflow)).content.decode()
    for status, found in {"needs_attention": [workflow], "stopped": [], "nonsense": [workflow]}.items():
        assert listed(Workflow, f"status={status}") == found


def test_a_run_shows_its_error_results_and_what_it_repeats(client: Client) -> None:
    first = backing_off()
    text = shown(client, change_page(first))
    for words in ("paused: transient", "the carrier is closed", '"item": "o1"'):
        assert words in text
    expected = {
        "status=open": ["Ship"],
        "status=committed": ["Fetch", "Ship"],
        "status=paused%3Atransient": ["Ship"],
        "q=fetch": ["Fetch"],
        "q=nobody": [],
    }
    assert {query: [run.handler.name for run in listed(Run, query)] for query in expected} == expected
    first.retry("", initiator=SOMEBODY, now=NOW)
    work()
    text = shown(client, change_page(Run.objects.get(retry_of=first)))
    assert (f"run {first.pk}" in text, "committed" in text) == (True, True)


def test_an_event_shows_its_payload_and_what_led_to_it(client: Client) -> None:
    publish("orders", "o1", payload={"item": "ink"})
    work()
    order, parcel = Event.objects.get(topic__slug="orders"), Event.objects.get(topic__slug="parcels")
    assert "ink" in shown(client, change_page(order))
    assert "orders: o1" in shown(client, change_page(parcel))
    assert change_page(Run.objects.get(published=parcel)) in client.get(change_page(parcel)).content.decode()
    expected = {
        "topic=parcels": [parcel],
        "topic=letters": [],
        "status__exact=pending": [parcel],
        "q=o1": [parcel, order],
        "q=o": [],
    }
    assert {query: listed(Event, query) for query in expected} == expected


def test_a_topic_says_who_consumes_it_and_a_handler_its_state(client: Client) -> None:
    assert "Orders: Ship" in shown(client, change_page(Topic.objects.get(slug="orders")))
    text = client.get(page("workflows_topic_changelist")).content.decode()
    assert page("workflows_event_changelist") + "?topic=parcels" in text
    handler = Handler.objects.get(name="Fetch")
    assert "looked" in shown(client, change_page(handler))
    for status, is_stopped, said, is_awaited in (
        ("active", False, "✓ active", True),
        ("paused", False, "◔ paused", False),
        ("active", True, "⊘ stopped The handler was removed from the code.", False),
    ):
        Workflow.objects.update(status=status)
        Handler.objects.filter(pk=handler.pk).update(is_stopped=is_stopped, next_run_at=NOW)
        text = shown(client, change_page(handler))
        assert (f"State: {said}" in text, "Next run:" in text) == (True, is_awaited)
        assert (handler in listed(Handler, "is_stopped=1")) == is_stopped


def test_a_workflow_is_run_paused_and_resumed_by_operators(client: Client, workflow: Workflow) -> None:
    run, pause, resume = (
        operation("workflows_workflow", name, workflow.pk) for name in ("run", "pause", "resume")
    )
    for other in (sign_in("nobody"), sign_in("viewer")):
        assert {other.post(url).status_code for url in (run, pause, resume)} == {403}
    assert "Running the producers of “Orders”: Fetch" in told(client, client.post(run))
    assert work() == ["Fetch"]
    operator = sign_in("operator")
    assert "is paused" in told(operator, operator.post(pause, {"note": "a move"}))
    assert (fresh(workflow).status, fresh(workflow).note) == ("paused", "a move")
    assert "is paused. Resume it first" in told(client, client.post(run))
    assert "is resumed" in told(client, client.post(resume))
    assert fresh(workflow).status == "active"


ANSWERS: list[tuple[Exception, str, dict[str, str], str]] = [
    (AuthRequired("sign in"), "approve", {"note": "done"}, "consumed"),
    (AuthRequired("sign in"), "reject", {}, "skipped"),
    (Indeterminate("?"), "happened", {"result": '{"parcel": 1}'}, "consumed"),
    (Indeterminate("?"), "did-not-happen", {}, "consumed"),
    (Indeterminate("?"), "skip", {}, "skipped"),
    (AuthRequired("sign in"), "retry", {}, "consumed"),
]


def test_a_stuck_run_is_resolved(client: Client) -> None:
    for number, (error, name, answers, then) in enumerate(ANSWERS):
        run = stuck(error, message_id=f"o{number}")
        assert name in buttons(client, run)
        url = operation("workflows_run", name, run.pk)
        assert str(error) in shown(client, url)
        told(client, client.post(url, answers))
        work()
        assert events("orders")[f"o{number}"] == then, name
        record = Activity.objects.get(target_type="run", target_id=run.pk)
        assert record.initiator_name == "superuser"
        assert buttons(client, run) == set()


def buttons(client: Client, run: Run) -> set[str]:
    return {each.name for each, _ in client.get(change_page(run)).context["buttons"]}


def test_an_event_is_skipped(client: Client) -> None:
    publish("parcels", "p1")
    event = Event.objects.get()
    url = operation("workflows_event", "skip", event.pk)
    assert "is skipped" in told(client, client.post(url, {"note": "lost"}))
    assert "is no longer pending" in told(client, client.post(url))
    record = page("activities_activity_change", Activity.objects.get(target_type="event").pk)
    assert change_page(event) in client.get(record).content.decode()
