"""Workflows in the admin: looked at in a few queries, steered by those who may."""

from __future__ import annotations

import re
import uuid
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


def list_of(client: Client, model: str, query: str = "") -> Any:
    return client.get(page(f"workflows_{model}_changelist") + query)


def listed(client: Client, model: str, query: str = "") -> str:
    return text_of(list_of(client, model, query))


def found(client: Client, model: str, query: str) -> list[Any]:
    return list(list_of(client, model, query).context["cl"].result_list)


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


def test_workflows_are_found_by_that_status(client: Client, workflow: Workflow) -> None:
    assert (
        found(client, "workflow", "?status=idle")
        == found(client, "workflow", "?status=nonsense")
        == [workflow]
    )
    assert found(client, "workflow", "?status=stopped") == []


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


def test_runs_are_filtered_and_searched(client: Client) -> None:
    backing_off()
    expected = {
        "": ["Ship", "Fetch", "Ship"],
        "?status=open": ["Ship"],
        "?status=committed": ["Fetch", "Ship"],
        "?status=paused%3Atransient": ["Ship"],
        "?q=fetch": ["Fetch"],
        "?q=orders": ["Ship", "Fetch", "Ship"],
        "?q=nobody": [],
    }
    names = {query: [run.handler.name for run in found(client, "run", query)] for query in expected}
    assert names == expected


def test_events_are_filtered_and_found_by_their_whole_id(client: Client) -> None:
    publish("parcels", "p1", "p2")
    Event.objects.get(message_id="p2").skip("", initiator=SOMEBODY, now=NOW)
    publish("orders", "o1")
    expected = {
        "": ["o1", "p2", "p1"],
        "?topic=parcels": ["p2", "p1"],
        "?topic=letters": [],
        "?status__exact=pending": ["o1", "p1"],
        "?topic=parcels&status__exact=skipped": ["p2"],
        "?q=p1": ["p1"],
        "?q=p": [],
    }
    ids = {query: [event.message_id for event in found(client, "event", query)] for query in expected}
    assert ids == expected


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


def test_a_handler_is_awaited_while_its_workflow_runs_and_the_code_has_it(client: Client) -> None:
    handler = Handler.objects.get(name="Fetch")
    for status, is_stopped, said, is_awaited in (
        ("running", False, "✓ active", True),
        ("paused", False, "◔ paused", False),
        ("running", True, "⊘ stopped The code no longer has it.", False),
    ):
        Workflow.objects.update(status=status)
        Handler.objects.filter(pk=handler.pk).update(is_stopped=is_stopped, next_run_at=NOW)
        text = shown(client, handler)
        assert (f"State: {said}" in text, "Next run:" in text) == (True, is_awaited)
        assert ("Fetch" in listed(client, "handler", "?is_stopped=1")) == is_stopped


def test_an_event_without_a_title_is_called_by_its_id_once(client: Client) -> None:
    publish("parcels", "p1")
    assert re.findall(r">p1<", client.get(page("workflows_event_changelist")).text) == [">p1<"]


def test_lists_take_as_many_queries_for_many_as_for_one(client: Client) -> None:
    """And those of what may be millions are never counted."""
    backing_off()
    few = {model: queries_of(client, model) for model in MODELS}
    publish("parcels", *(f"p{number}" for number in range(10)))
    add_more()
    many = {model: queries_of(client, model) for model in MODELS}
    assert {model: len(queries) for model, queries in many.items()} == {
        model: len(queries) for model, queries in few.items()
    }
    assert [sql for model in ("run", "event") for sql in many[model] if "COUNT(" in sql] == []


def queries_of(client: Client, model: str) -> list[str]:
    list_of(client, model)
    with CaptureQueriesContext(connection) as queries:
        list_of(client, model)
    return [query["sql"] for query in queries]


def add_more() -> None:
    """Five more rows of each."""
    handler = Handler.objects.get(name="Ship")
    for number in range(5):
        other = Workflow.objects.create(
            slug=f"w{number}", title=f"W {number}", created_at=NOW, deployed_at=NOW
        )
        Handler.objects.create(workflow=other, name=f"H{number}", kind="consumer", code_version="1")
        Topic.objects.create(slug=f"t{number}", created_at=NOW)
        run = Run.objects.filter(handler=handler, status="committed")[0]
        run.pk, run.key = None, uuid.uuid4()
        run.save(force_insert=True)


def test_nothing_can_be_added_changed_or_deleted(client: Client) -> None:
    publish("parcels", "p1")
    for model in (Workflow, Handler, Run, Topic, Event):
        name, pk = f"workflows_{model._meta.model_name}", model._default_manager.all()[0].pk
        assert client.get(page(f"{name}_add")).status_code == 403
        assert client.post(page(f"{name}_change", pk), {"title": "x"}).status_code == 403
        assert client.post(page(f"{name}_delete", pk), {"post": "yes"}).status_code == 403


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
        assert str(error) in text_of(client.get(url))
        told(client, client.post(url, answers))
        work()
        assert events("orders")[f"o{number}"] == then, name
        record = Activity.objects.get(target_type="run", target_id=run.pk)
        assert record.initiator_name == "superuser"
        assert buttons(client, run) == set()


def buttons(client: Client, run: Run) -> set[str]:
    context = client.get(page("workflows_run_change", run.pk)).context
    return {each.name for each, _ in context["buttons"]}


def test_an_event_is_skipped(client: Client) -> None:
    publish("parcels", "p1")
    event = Event.objects.get()
    url = operation("workflows_event", "skip", event.pk)
    assert "is skipped" in told(client, client.post(url, {"note": "lost"}))
    assert "no longer pending" in told(client, client.post(url))
    activity = Activity.objects.get(target_type="event")
    link = page("workflows_event_change", event.pk)
    assert link in client.get(page("activities_activity_change", activity.pk)).content.decode()


def test_only_operators_steer(workflow: Workflow) -> None:
    url = operation("workflows_workflow", "pause", workflow.pk)
    for role in ("nobody", "viewer"):
        assert sign_in(role).post(url).status_code == 403
        assert fresh(workflow).status == "running"
    assert sign_in("operator").post(url).status_code == 302
    assert fresh(workflow).status == "paused"
