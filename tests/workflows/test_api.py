"""Workflows, runs, topics and events, as programs see and steer them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from database import clock
from tests.api.calling import Caller
from tests.base import NOW, SOMEBODY, fresh, seconds
from tests.workflows.base import events, make_topics, publish, runs, work
from tests.workflows.orders import backing_off, orders, stuck
from workflows import AuthRequired, Indeterminate, Transient
from workflows.models import Event, Run, Topic, Workflow
from workflows.models.event import PAYLOAD_BYTES

pytestmark = pytest.mark.django_db
# The token with its user, and the permissions of both kinds.
WHO = 3


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


@pytest.fixture
def workflow() -> Iterator[Workflow]:
    with orders() as deployed:
        yield deployed


@pytest.fixture
def topics() -> None:
    """Of a workflow that is not here: what is published there stays as it is."""
    make_topics("orders", "parcels")


@pytest.fixture
def api() -> Caller:
    return Caller("Operator", scopes=["run"])


def wrong(answer: Any) -> dict[str, str]:
    """What is said of which field."""
    assert answer.status_code == 400, answer.content
    return {each["field"]: each["detail"] for each in answer.json()["errors"]}


@pytest.mark.usefixtures("workflow")
class TestWorkflows:
    def test_each_is_listed_as_people_see_it(self, api: Caller) -> None:
        stuck(AuthRequired("sign in to the carrier"))
        publish("orders", "o2", "o3")
        [told] = api.get("workflows").json()["results"]
        assert (told["slug"], told["title"], told["status"]) == ("orders", "Orders", "needs_attention")
        assert (told["is_paused"], told["pool"], told["next_at"]) == (False, "default", None)
        assert told["issue"].startswith("Sign in to the carrier. An operator must")
        assert told["pending"] == [
            {"topic": "orders", "count": 2, "is_more": False, "oldest_at": "2026-11-16T03:00:00Z"}
        ]
        assert told["open_run"] == {
            "id": Run.objects.open().get().pk,
            "handler": "Ship",
            "status": "paused:approval",
            "phase": "mutating",
            "error": "sign in to the carrier",
            "due_at": None,
            "created_at": "2026-11-16T03:00:00Z",
        }

    def test_one_comes_with_its_handlers(self, api: Caller) -> None:
        told = api.get("workflows/orders").json()
        assert (told["status"], told["next_at"]) == ("idle", "2026-11-16T03:05:00Z")
        fetch, ship = told["handlers"]
        assert (fetch["name"], fetch["schedule"], fetch["state"]) == (
            "Fetch",
            "Every 5 minutes",
            {"looked": 1},
        )
        assert (fetch["publishes"], ship["subscribes"]) == (["orders"], ["orders"])
        found = [len(api.get("workflows", status=each).json()["results"]) for each in ("idle", "stopped")]
        assert found == [1, 0]

    def test_a_run_now_is_accepted_once_and_refused_while_something_runs(self, api: Caller) -> None:
        answer = api.post("workflows/orders/run", idempotency_key="now")
        assert (answer.status_code, answer.json()["producers"]) == (202, ["Fetch"])
        assert answer.json()["url"] == answer["Location"] == "http://testserver/api/v1/workflows/orders"
        again = api.post("workflows/orders/run", idempotency_key="now")
        assert (again.status_code, again["Idempotent-Replayed"]) == (202, "true")
        Workflow.objects.get().start(NOW)
        assert api.post("workflows/orders/run").status_code == 409

    def test_pause_and_resume(self, api: Caller) -> None:
        paused = api.post("workflows/orders/pause", {"note": "the carrier moves"})
        assert (paused.status_code, paused.json()["status"]) == (202, "paused")
        told = api.get("workflows/orders").json()
        assert (told["is_paused"], told["issue"]) == (True, "Paused by an operator. the carrier moves")
        assert {api.post(f"workflows/orders/{verb}").status_code for verb in ("pause", "run")} == {409}
        resumed = api.post("workflows/orders/resume")
        assert (resumed.status_code, resumed.json()["status"]) == (202, "idle")
        assert api.post("workflows/orders/resume").status_code == 409
        done = Activity.objects.filter(target_type="workflow", operation__in=["pause", "resume"])
        assert {each.initiator_type for each in done} == {"token"}


OF_APPROVALS = ["approve", "reject", "skip", "retry"]
OF_THE_UNKNOWN = ["reconcile", "skip", "retry"]
KNOWN = {"happened": True, "result": {"parcel": 7}, "note": "I looked"}


@pytest.mark.usefixtures("workflow")
class TestRuns:
    FOUND: list[tuple[dict[str, str], list[str]]] = [
        ({"workflow": "orders"}, ["Ship", "Fetch", "Ship"]),
        ({"workflow": "others"}, []),
        ({"handler": "Fetch"}, ["Fetch"]),
        ({"status": "committed"}, ["Fetch", "Ship"]),
        ({"status": "paused:transient", "workflow": "orders"}, ["Ship"]),
        ({"is_open": "true"}, ["Ship"]),
        ({"is_open": "false"}, ["Fetch", "Ship"]),
        ({"created_after": "2026-11-16T03:00:00Z"}, ["Ship", "Fetch", "Ship"]),
        ({"created_before": "2026-11-16T03:00:00Z"}, []),
    ]

    def test_filters(self, api: Caller) -> None:
        backing_off()
        found = [
            (query, [each["handler"] for each in api.get("runs", **query).json()["results"]])
            for query, _ in self.FOUND
        ]
        assert found == self.FOUND

    def test_one_comes_with_phases_attempts_events_and_results(self, api: Caller) -> None:
        first = backing_off()
        work(now=NOW + seconds(10))
        second = Run.objects.get(retry_of=first)
        told, before = (api.get(f"runs/{run.pk}").json() for run in (second, first))
        assert [each["state"] for each in told["phases"]] == ["done"] * 6
        assert [each["state"] for each in before["phases"]] == ["done", "done", "here", *["ahead"] * 3]
        assert [(each["id"], each["status"], each["error"]) for each in told["attempts"]] == [
            (first.pk, "paused:transient", "the carrier is closed"),
            (second.pk, "committed", ""),
        ]
        assert [each["message_id"] for each in told["reserved"]["results"]] == ["o1"]
        assert [each["topic"] for each in told["published"]["results"]] == ["parcels"]
        assert told["prepare_result"]["data"] == [{"item": "o1"}]
        assert told["mutation_result"] == {"shipped": [{"item": "o1"}]}
        assert api.get(f"activities/{told['activity']}").json()["status"] == "complete"

    # What it met, the ways out that it has, the one that is taken; then its order and its parcel.
    WAYS_OUT: list[tuple[Exception, list[str], str, dict[str, Any], str, str | None]] = [
        (AuthRequired("?"), OF_APPROVALS, "approve", {"note": "done"}, "consumed", "pending"),
        (AuthRequired("?"), OF_APPROVALS, "reject", {"note": "never"}, "skipped", None),
        (Indeterminate("?"), OF_THE_UNKNOWN, "reconcile", KNOWN, "consumed", "pending"),
        (ValueError("?"), OF_THE_UNKNOWN, "reconcile", {"happened": False}, "consumed", "pending"),
        (Transient("later"), ["skip", "retry"], "retry", {}, "consumed", "pending"),
        (Transient("later"), ["skip", "retry"], "skip", {}, "skipped", None),
    ]

    def test_each_way_out_is_told_and_lets_it_go_on(self, api: Caller) -> None:
        for number, (error, ways_out, action, body, order, parcel) in enumerate(self.WAYS_OUT):
            row, message_id = f"{error!r} {action}", f"o{number}"
            run = stuck(error, message_id=message_id)
            assert api.get(f"runs/{run.pk}").json()["ways_out"] == ways_out, row
            answer, again = (
                api.post(f"runs/{run.pk}/{action}", body, idempotency_key=message_id) for _ in range(2)
            )
            assert (answer.status_code, answer.json()["id"]) == (202, run.pk), row
            assert (again.status_code, again["Idempotent-Replayed"]) == (202, "true"), row
            assert Activity.objects.get(target_type="run", target_id=run.pk).initiator_type == "token"
            work()
            assert (events("orders")[message_id], events("parcels").get(message_id)) == (order, parcel), row
            assert fresh(run).note == body.get("note", ""), row
            if body is KNOWN:
                assert Run.objects.get(retry_of=run).mutation_result == {"parcel": 7}
            assert api.get(f"runs/{run.pk}").json()["ways_out"] == [], row

    def test_what_is_over_cannot_be_resolved(self, api: Caller, workflow: Workflow) -> None:
        run = Run.objects.filter(status="committed").order_by("pk")[0]
        before = runs()
        for action in ("approve", "reject", "skip", "retry", "reconcile"):
            body = {"happened": True} if action == "reconcile" else {}
            assert api.post(f"runs/{run.pk}/{action}", body).status_code == 409, action
        assert (runs(), fresh(workflow).status) == (before, "active")

    def test_bad_input_is_told_by_field(self, api: Caller) -> None:
        run = stuck(Indeterminate("?"))
        bad: list[tuple[str, dict[str, Any], str]] = [
            ("reconcile", {}, "happened"),
            ("reconcile", {"happened": "yes"}, "happened"),
            ("reconcile", {"happened": True, "result": {"a": "\0"}}, "result.a"),
            ("approve", {"note": "x" * 1_001}, "note"),
            ("approve", {"reason": "x"}, "reason"),
        ]
        for action, body, field in bad:
            assert list(wrong(api.post(f"runs/{run.pk}/{action}", body))) == [field]
        assert fresh(run).due_at is None


@pytest.mark.usefixtures("workflow")
class TestTopics:
    def test_they_say_who_consumes_them_and_what_waits(self, api: Caller) -> None:
        publish("parcels", "p1", "p2")
        first, second = api.get("topics").json()["results"]
        assert (first["slug"], first["consumer"]) == ("orders", {"workflow": "orders", "handler": "Ship"})
        assert (second["slug"], second["consumer"], second["workflow"]) == ("parcels", None, "orders")
        assert (second["pending"], second["is_more"], second["last_seq"]) == (2, False, 2)
        assert api.get("topics/parcels").json() == second
        assert api.get("topics/letters").status_code == api.get("topics/letters/events").status_code == 404


PARCELS = "topics/parcels/events"


class TestEvents:
    @pytest.fixture(autouse=True)
    def published(self, topics: None) -> None:
        publish("parcels", "p1", "p2", "p3")
        Event.objects.get(message_id="p2").skip("lost", initiator=SOMEBODY, now=NOW)

    FOUND: list[tuple[dict[str, str], list[str]]] = [
        ({}, ["p3", "p2", "p1"]),
        ({"ordering": "seq"}, ["p1", "p2", "p3"]),
        ({"status": "pending"}, ["p3", "p1"]),
        ({"status": "pending", "ordering": "seq"}, ["p1", "p3"]),
        ({"status": "skipped"}, ["p2"]),
        ({"message_id": "p1"}, ["p1"]),
        ({"message_id": "p2", "status": "pending"}, []),
    ]

    def test_filters_whose_pages_have_each_of_them_once(self, api: Caller) -> None:
        found = []
        for query, _ in self.FOUND:
            answer = api.get(PARCELS, limit=1, **query).json()
            seen = answer["results"]
            while answer["next"]:
                answer = api.client.get(answer["next"]).json()
                seen += answer["results"]
            found.append((query, [each["message_id"] for each in seen]))
        assert found == self.FOUND

    def test_what_is_looked_for_part_by_part_comes_newest_first(
        self, api: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "ordering" in wrong(api.get(PARCELS, status="skipped", ordering="seq"))
        from api.resources.topics import EventsOfTopic

        monkeypatch.setattr(EventsOfTopic, "history_range", EventsOfTopic.history_range._replace(reach=1))
        answer, seen, pages = api.get(PARCELS, status="skipped").json(), [], 1
        while answer["next"]:
            seen += answer["results"]
            answer, pages = api.client.get(answer["next"]).json(), pages + 1
        seen += answer["results"]
        assert ([each["message_id"] for each in seen], pages) == (["p2"], 3)

    def test_one_comes_with_its_payload_and_is_skipped_once(self, api: Caller) -> None:
        publish("parcels", "p4", payload={"weight": 7})
        event = Event.objects.get(message_id="p4")
        told = api.get(f"events/{event.pk}").json()
        assert (told["payload"], told["status"], told["seq"]) == ({"weight": 7}, "pending", 4)
        skipped = api.post(f"events/{event.pk}/skip", {"note": "returned"})
        assert (skipped.status_code, skipped.json()["status"]) == (200, "skipped")
        again = api.post(f"events/{event.pk}/skip")
        assert again.status_code == 409
        assert Activity.objects.get(target_type="event", target_id=event.pk).message == "returned"


# (what, the body, the fields that complain)
WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("no id", {"payload": 1}, ["message_id"]),
    ("two things", {"message_id": "a", "title": "x" * 201, "colour": "red"}, ["colour", "title"]),
    ("half a pair", {"message_id": "a", "payload": {"b": ["\ud800"]}}, ["payload.b.0"]),
    ("NUL as a key", {"message_id": "a", "payload": {"\0": 1}}, ["payload.\N{REPLACEMENT CHARACTER}"]),
    ("no events", {"events": []}, ["events"]),
    ("a text as event", {"events": ["o1"]}, ["events.0"]),
    ("1,001 events", {"events": [{"message_id": "a"}] * 1_001}, ["events"]),
    ("both", {"message_id": "a", "events": [{"message_id": "b"}]}, ["message_id"]),
    (
        "the first and the third",
        {
            "events": [
                {"message_id": "a", "payload": "x" * PAYLOAD_BYTES},
                {"message_id": "b"},
                {"message_id": "c\u202e"},
            ]
        },
        ["events.0.payload", "events.2.message_id"],
    ),
]


@pytest.mark.usefixtures("topics")
class TestPublishing:
    def post(self, api: Caller, body: Any, **headers: str) -> Any:
        return api.post("topics/orders/events", body, **headers)

    def test_one_event_is_published_by_its_token(self, api: Caller) -> None:
        answer = self.post(api, {"message_id": "o1", "payload": {"item": "ink"}, "title": "Ink"})
        link = "http://testserver/api/v1/topics/orders/events"
        assert (answer.status_code, answer["Location"]) == (202, link)
        assert answer.json() == {"new": 1, "updated": 0, "unchanged": 0, "url": link}
        event = Event.objects.get()
        assert (event.message_id, event.payload, event.title) == ("o1", {"item": "ink"}, "Ink")
        shown = api.get(f"events/{event.pk}").json()
        assert (shown["created_by"], shown["published_by"]) == (None, f"{api.user} ({api.token.name})")

    def test_a_key_makes_it_happen_once(self, api: Caller) -> None:
        body = {"message_id": "o1", "payload": 1}
        assert self.post(api, body, idempotency_key="k").json()["new"] == 1
        again = self.post(api, body, idempotency_key="k")
        assert (again.json()["new"], again["Idempotent-Replayed"]) == (1, "true")
        assert self.post(api, body | {"payload": 2}, idempotency_key="k").status_code == 409
        assert Event.objects.get().payload == 1
        assert self.post(api, {"events": [body, body]}).json()["updated"] == 1
        Event.objects.update(status="consumed")
        assert self.post(api, body).json()["unchanged"] == 1

    def test_hundreds_of_them_are_a_few_statements(
        self, api: Caller, django_assert_max_num_queries: Any
    ) -> None:
        body = {"events": [{"message_id": f"o{number}", "payload": {"n": number}} for number in range(300)]}
        with django_assert_max_num_queries(16):
            assert self.post(api, body).json()["new"] == 300
        assert Topic.objects.get(slug="orders").last_seq == 300

    def test_bad_input_is_told_by_field_and_nothing_of_it_is_published(self, api: Caller) -> None:
        told = {name: sorted(wrong(self.post(api, body))) for name, body, _ in WRONG}
        assert told == {name: fields for name, _, fields in WRONG}
        unreadable = self.post(api, '{"message_id": "a", "message_id": "b"}')
        assert (unreadable.status_code, "appears twice" in unreadable.json()["detail"]) == (400, True)
        assert not Event.objects.exists()


QUERIES = {
    "workflows": 1 + 3,
    "workflows/orders": 1 + 3,
    "runs": 1,
    "runs?workflow=orders": 1,
    # Itself, its chain (2), what it took and gave (2), its record.
    "runs/{run}": 6,
    "topics": 1,
    "topics/orders": 1,
    # The topic, the events.
    "topics/orders/events": 2,
    "topics/orders/events?status=pending": 2,
    # Also how far they go.
    "topics/orders/events?status=consumed": 3,
    "events/{event}": 1,
}


@pytest.mark.usefixtures("workflow")
def test_the_number_of_queries_does_not_grow(api: Caller) -> None:
    publish("orders", *(f"x{number}" for number in range(20)))
    run, event = backing_off(), Event.objects.all()[0]
    api.get("topics")  # from then on, its use is noted for a minute
    counted = {}
    for path in QUERIES:
        with CaptureQueriesContext(connection) as queries:
            answer = api.client.get(f"/api/v1/{path.format(run=run.pk, event=event.pk)}")
        assert answer.status_code == 200
        counted[path] = len(queries) - WHO
    assert counted == QUERIES


ACCESS: list[tuple[str, str, str, dict[str, str] | None, int]] = [
    ("Viewer", "view", "topics/orders/events", None, 200),
    ("Viewer", "admin", "topics/orders/events", {"message_id": "a"}, 403),
    ("Operator", "view", "workflows/orders/pause", {}, 403),
    ("Operator", "define", "topics/orders/events", {"message_id": "a"}, 403),
    ("Operator", "run", "workflows/orders/pause", {}, 202),
    ("Operator", "run", "topics/orders/events", {"message_id": "a"}, 202),
]


@pytest.mark.usefixtures("workflow")
@pytest.mark.parametrize(("role", "scope", "path", "body", "code"), ACCESS)
def test_looking_takes_the_scope_view_and_acting_the_scope_run(
    role: str, scope: str, path: str, body: dict[str, str] | None, code: int
) -> None:
    caller = Caller(role, scopes=[scope])
    answer = caller.get(path) if body is None else caller.post(path, body)
    assert answer.status_code == code
