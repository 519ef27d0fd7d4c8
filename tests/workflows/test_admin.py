"""Workflows in the admin: looked at in a few queries, steered by those who may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import strip_tags

from activities import clock
from activities.models import Activity
from tests.admin_pages import operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, fresh
from tests.workflows.base import events, publish, work
from tests.workflows.orders import backing_off, orders, stuck
from workflows import AuthRequired, Indeterminate
from workflows.models import Event, Handler, Run, Topic, Workflow

pytestmark = pytest.mark.django_db
MODELS = ("workflow", "handler", "run", "topic", "event")


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


@pytest.fixture(autouse=True)
def workflow() -> Iterator[Workflow]:
    with orders() as deployed:
        yield deployed


@pytest.fixture
def client() -> Client:
    return sign_in()


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return " ".join(strip_tags(response.content.decode()).split())


def listed(client: Client, model: str, query: str = "") -> str:
    return text_of(client.get(page(f"workflows_{model}_changelist") + query))


def shown(client: Client, row: Any) -> str:
    return text_of(client.get(page(f"workflows_{row._meta.model_name}_change", row.pk)))


def test_a_workflow_is_shown_as_people_see_it(client: Client, workflow: Workflow) -> None:
    run = stuck(AuthRequired("sign in to the carrier"))
    publish("orders", "o2", "o3")
    issue = "Sign in to the carrier. Waiting for an operator to approve or reject it."
    for text in (listed(client, "workflow"), shown(client, workflow)):
        assert "! needs attention" in text
        assert issue in text
        assert "Every 5 minutes" in text
    assert (
        page("workflows_run_change", run.pk)
        in client.get(page("workflows_workflow_change", workflow.pk)).content.decode()
    )


@pytest.mark.parametrize(("status", "is_found"), [("idle", True), ("stopped", False), ("nonsense", True)])
def test_workflows_are_found_by_that_status(client: Client, status: str, is_found: bool) -> None:
    assert ("Ships" not in listed(client, "workflow", f"?status={status}")) or is_found
    found = client.get(page("workflows_workflow_changelist") + f"?status={status}").context["cl"].result_list
    assert bool(found) is is_found


def test_a_run_shows_its_error_results_and_what_it_repeats(client: Client) -> None:
    first = backing_off()
    text = shown(client, first)
    assert "paused: transient" in text
    assert "the carrier is closed" in text
    assert '"item": "o1"' in client.get(page("workflows_run_change", first.pk)).content.decode().replace(
        "&quot;", '"'
    )
    first.retry("", initiator=SOMEBODY, now=NOW)
    work()
    second = Run.objects.get(retry_of=first)
    assert f"run {first.pk}" in shown(client, second)
    assert "committed" in shown(client, second)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["Ship", "Fetch", "Ship"]),
        ("?status=open", ["Ship"]),
        ("?status=committed", ["Fetch", "Ship"]),
        ("?status=paused%3Atransient", ["Ship"]),
        ("?q=fetch", ["Fetch"]),
        ("?q=orders", ["Ship", "Fetch", "Ship"]),
        ("?q=nobody", []),
    ],
)
def test_runs_are_filtered_and_searched(client: Client, query: str, found: list[str]) -> None:
    backing_off()
    rows = client.get(page("workflows_run_changelist") + query).context["cl"].result_list
    assert [run.handler.name for run in rows] == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["o1", "p2", "p1"]),
        ("?topic=parcels", ["p2", "p1"]),
        ("?topic=letters", []),
        ("?status__exact=pending", ["o1", "p1"]),
        ("?topic=parcels&status__exact=skipped", ["p2"]),
        ("?q=p1", ["p1"]),
        ("?q=p", []),
    ],
)
def test_events_are_filtered_and_found_by_their_whole_id(
    client: Client, query: str, found: list[str]
) -> None:
    publish("parcels", "p1", "p2")
    Event.objects.get(message_id="p2").skip("", initiator=SOMEBODY, now=NOW)
    publish("orders", "o1")
    rows = client.get(page("workflows_event_changelist") + query).context["cl"].result_list
    assert [event.message_id for event in rows] == found


def test_an_event_shows_its_payload_and_what_led_to_it(client: Client) -> None:
    publish("orders", "o1", payload={"item": "ink"})
    work()
    order, parcel = Event.objects.get(topic__slug="orders"), Event.objects.get(topic__slug="parcels")
    assert "ink" in shown(client, order)
    assert "orders: o1" in shown(client, parcel)
    run = Run.objects.get(published=parcel)
    body = client.get(page("workflows_event_change", parcel.pk)).content.decode()
    assert page("workflows_run_change", run.pk) in body


def test_a_topic_says_who_consumes_it_and_a_handler_its_state(client: Client) -> None:
    publish("parcels", "p1", "p2")
    assert "Orders: Ship" in shown(client, Topic.objects.get(slug="orders"))
    assert (
        page("workflows_event_changelist") + "?topic=parcels"
        in client.get(page("workflows_topic_changelist")).content.decode()
    )
    assert "looked" in shown(client, Handler.objects.get(name="Fetch"))


@pytest.mark.parametrize(
    ("status", "is_stopped", "said", "is_awaited"),
    [
        ("running", False, "✓ active", True),
        ("paused", False, "◔ paused", False),
        ("running", True, "⊘ stopped The code no longer has it.", False),
    ],
)
def test_a_handler_is_awaited_while_its_workflow_runs_and_the_code_has_it(
    client: Client, status: str, is_stopped: bool, said: str, is_awaited: bool
) -> None:
    Workflow.objects.update(status=status)
    handler = Handler.objects.get(name="Fetch")
    Handler.objects.filter(pk=handler.pk).update(is_stopped=is_stopped, next_run_at=NOW)
    text = shown(client, handler)
    assert (f"State: {said}" in text, "Next run:" in text) == (True, is_awaited)
    found = listed(client, "handler", "?is_stopped=1")
    assert ("Fetch" in found) == is_stopped


def test_an_event_without_a_title_is_called_by_its_id_once(client: Client) -> None:
    publish("parcels", "p1")
    assert re.findall(r">p1<", client.get(page("workflows_event_changelist")).text) == [">p1<"]


@pytest.mark.parametrize("model", MODELS)
def test_lists_take_as_many_queries_for_many_as_for_one(client: Client, model: str) -> None:
    """And those of what may be millions are never counted."""
    backing_off()
    url = page(f"workflows_{model}_changelist")
    client.get(url)
    with CaptureQueriesContext(connection) as few:
        client.get(url)
    publish("parcels", *(f"p{number}" for number in range(10)))
    for number in range(5):
        copy_of(model, number)
    with CaptureQueriesContext(connection) as many:
        client.get(url)
    assert len(many) == len(few)
    if model in ("run", "event"):
        assert [query["sql"] for query in many if "COUNT(" in query["sql"]] == []


def copy_of(model: str, number: int) -> None:
    """One more row of it."""
    match model:
        case "workflow":
            Workflow.objects.create(
                slug=f"w{number}", title=f"W {number}", created_at=NOW, deployed_at=NOW, due_at=None
            )
        case "topic":
            Topic.objects.create(slug=f"t{number}", created_at=NOW)
        case "handler":
            Handler.objects.create(
                workflow=Workflow.objects.get(), name=f"H{number}", kind="consumer", code_version="1"
            )
        case "run":
            publish("orders", f"x{number}")
            work()


@pytest.mark.parametrize("model", MODELS)
def test_nothing_can_be_added_changed_or_deleted(client: Client, model: str) -> None:
    publish("parcels", "p1")
    row = {"workflow": Workflow, "handler": Handler, "run": Run, "topic": Topic, "event": Event}[model]
    pk = row.objects.all()[0].pk  # type: ignore[attr-defined]
    assert client.get(page(f"workflows_{model}_add")).status_code == 403
    assert client.post(page(f"workflows_{model}_change", pk), {"title": "x"}).status_code == 403
    assert client.post(page(f"workflows_{model}_delete", pk), {"post": "yes"}).status_code == 403


def test_a_workflow_is_run_paused_and_resumed(client: Client, workflow: Workflow) -> None:
    answer = client.post(operation("workflows_workflow", "run", workflow.pk))
    assert "looks for new work: Fetch" in told(client, answer)
    assert work() == ["Fetch"]
    answer = client.post(operation("workflows_workflow", "pause", workflow.pk), {"note": "a move"})
    assert "is paused" in told(client, answer)
    assert fresh(workflow).note == "a move"
    assert "is paused: resume it first" in told(
        client, client.post(operation("workflows_workflow", "run", workflow.pk))
    )
    assert "goes on" in told(client, client.post(operation("workflows_workflow", "resume", workflow.pk)))
    assert fresh(workflow).status == "running"


@pytest.mark.parametrize(
    ("error", "name", "answers", "then"),
    [
        (AuthRequired("sign in"), "approve", {"note": "done"}, "consumed"),
        (AuthRequired("sign in"), "reject", {}, "skipped"),
        (Indeterminate("?"), "happened", {"result": '{"parcel": 1}'}, "consumed"),
        (Indeterminate("?"), "did-not-happen", {}, "consumed"),
        (Indeterminate("?"), "skip", {}, "skipped"),
        (AuthRequired("sign in"), "retry", {}, "consumed"),
    ],
)
def test_a_stuck_run_is_resolved(
    client: Client, error: Exception, name: str, answers: dict[str, str], then: str
) -> None:
    run = stuck(error)
    buttons = {each.name for each, _ in client.get(page("workflows_run_change", run.pk)).context["buttons"]}
    assert name in buttons
    url = operation("workflows_run", name, run.pk)
    assert str(error) in text_of(client.get(url))
    told(client, client.post(url, answers))
    work()
    assert events("orders") == {"o1": then}
    by = Activity.objects.filter(target_type="run").values_list("initiator_name", flat=True)
    assert list(by) == ["superuser"]
    assert client.get(page("workflows_run_change", run.pk)).context["buttons"] == []


def test_an_event_is_skipped(client: Client) -> None:
    publish("parcels", "p1")
    event = Event.objects.get()
    url = operation("workflows_event", "skip", event.pk)
    assert "is skipped" in told(client, client.post(url, {"note": "lost"}))
    assert "no longer pending" in told(client, client.post(url))
    activity = Activity.objects.get(target_type="event")
    link = page("workflows_event_change", event.pk)
    assert link in client.get(page("activities_activity_change", activity.pk)).content.decode()


@pytest.mark.parametrize(("role", "code"), [("nobody", 403), ("viewer", 403), ("operator", 302)])
def test_only_operators_steer(workflow: Workflow, role: str, code: int) -> None:
    url = operation("workflows_workflow", "pause", workflow.pk)
    assert sign_in(role).post(url).status_code == code
    assert (fresh(workflow).status == "paused") is (code == 302)
