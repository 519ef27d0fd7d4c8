"""The commands about workflows: what they print, what they tell programs, what they refuse."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import CommandError, call_command

from activities.models import Activity
from database import clock
from operations.initiator import Initiator
from tests.base import NOW, SOMEBODY, fresh
from tests.commands import refusal, said, told
from tests.workflows.base import defined, events, make_topics, publish, work
from tests.workflows.orders import Orders, orders, stuck
from workflows import AuthRequired, Indeterminate
from workflows.models import Event, Run, Workflow

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In time, and however wide the window is."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_table_says_how_each_is_and_programs_get_the_same_as_json(django_assert_num_queries: Any) -> None:
    assert "syncworkflows" in said("workflows")[0]
    with orders():
        assert said("workflows") == [
            "State   Workflow  Next      When",
            "✓ idle  orders    in 5 min  Every 5 minutes",
        ]
        run = stuck(AuthRequired("red \x1b[31malert"))
        publish("orders", "o2")
        with django_assert_num_queries(1 + 3):
            header, row = said("workflows")
        assert header.split() == ["State", "Workflow", "Issue", "Pending", "When"]
        assert row.startswith("! needs attention  orders ")
        assert "\x1b" not in row, "what handlers raise cannot move the cursor of a terminal"
        [facts] = told("workflows", "--state", "needs_attention")["workflows"]
        assert (facts["slug"], facts["state"], facts["next_at"]) == ("orders", "needs_attention", None)
        assert facts["pending"] == [
            {"topic": "orders", "count": 1, "is_more": False, "oldest_at": "2026-11-16T03:00:00Z"}
        ]
        assert facts["open_run"] == {"id": run.pk, "handler": "Ship", "status": "paused:approval"}
        assert told("workflows", "--state", "idle")["workflows"] == []
        assert said("workflows", "--state", "idle") == ["No workflows match these filters."]


class TestVerbs:
    @pytest.fixture(autouse=True)
    def workflow(self) -> Iterator[Workflow]:
        with orders() as workflow:
            yield workflow

    def test_it_is_run_and_paused_and_resumed(self, workflow: Workflow) -> None:
        before = Run.objects.count()
        assert said("workflow", "run", "orders") == ["Running the producers of “Orders”: Fetch."]
        work()
        assert Run.objects.count() == before + 1
        assert said("workflow", "pause", "orders", "--note", "The carrier moves") == ["“Orders” is paused."]
        assert (fresh(workflow).status, fresh(workflow).note) == ("paused", "The carrier moves")
        assert refusal("workflow", "pause", "orders") == "“Orders” is not active, so it cannot be paused."
        [done] = told("workflow", "resume", "orders")["done"]
        assert (done["target"], done["url"]) == ("orders", "")
        record = Activity.objects.filter(target_type="workflow").latest("pk")
        assert record.initiator_name == Initiator.command("workflow resume").name

    # What it met, how that is answered, and what becomes of its event.
    ANSWERS: list[tuple[Exception, list[str], str]] = [
        (AuthRequired("sign in"), ["approve", "--note", "done"], "consumed"),
        (AuthRequired("sign in"), ["reject"], "skipped"),
        (Indeterminate("?"), ["happened", "--result", '{"parcel": 1}'], "consumed"),
        (Indeterminate("?"), ["did-not-happen"], "consumed"),
        (Indeterminate("?"), ["skip"], "skipped"),
        (AuthRequired("sign in"), ["retry"], "consumed"),
    ]

    @pytest.mark.parametrize(("error", "answer", "then"), ANSWERS)
    @pytest.mark.parametrize("is_named", [True, False])
    def test_a_stuck_run_is_answered(
        self, error: Exception, answer: list[str], then: str, is_named: bool
    ) -> None:
        run, (verb, *rest) = stuck(error), answer
        said("workflow", verb, "orders" if is_named else str(run.pk), *rest)
        work()
        assert events("orders") == {"o1": then}
        record = Activity.objects.get(target_type="run", target_id=run.pk)
        assert record.initiator_name == Initiator.command(f"workflow {verb}").name

    def test_what_is_wrong_is_one_line(self) -> None:
        idle = [
            (["approve", "orders"], "“Orders” has no unfinished run."),
            (
                ["approve", "987654"],
                "Run 987654 was not found. Use “workflows --json” to list the unfinished runs",
            ),
            (["pause", "ordres"], "Workflow “ordres” does not exist; did you mean orders?"),
            (["pause", "orders", "--note", "x" * 1_001], "--note: "),
        ]
        waits = [
            (["happened", "orders", "--result", "{"], "--result: Enter a valid JSON."),
            (["approve", "orders"], "was already resolved"),
        ]
        found = [(words, refusal("workflow", *arguments)) for arguments, words in idle]
        run = stuck(Indeterminate("?"))
        found += [(words, refusal("workflow", *arguments)) for arguments, words in waits]
        assert [(words, line) for words, line in found if words not in line] == []
        assert fresh(run).is_stuck


def test_events_are_listed_and_skipped() -> None:
    make_topics("orders")
    publish("orders", "o/1", "o2", payload={"item": "ink"})
    rows = told("event", "list", "orders")["events"]
    assert [(row["message_id"], row["status"]) for row in rows] == [("o/1", "pending"), ("o2", "pending")]
    assert said("event", "skip", "orders/o/1", "--note", "lost") == ["“o/1” is skipped."]
    assert events("orders") == {"o/1": "skipped", "o2": "pending"}
    assert [
        row["message_id"] for row in told("event", "list", "orders", "--status", "pending")["events"]
    ] == ["o2"]
    assert "o2" in said("event", "list", "orders")[2]
    wrong = {
        "orders": "Give the topic and the message id of the event: orders/MESSAGE_ID.",
        "ordres/o2": "Topic “ordres” does not exist; did you mean orders?",
        "orders/o3": "Event “o3” was not found in topic orders. Use “event list orders” to list the events.",
        "orders/o/1": "“o/1” is no longer pending, so it cannot be skipped.",
    }
    assert {text: refusal("event", "skip", text) for text in wrong} == wrong


class TestPublish:
    @pytest.fixture(autouse=True)
    def topics(self) -> None:
        make_topics("orders", "parcels")

    def test_an_event_is_published_and_programs_are_told_what_became_of_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = said("publish", "orders", "o1", "--payload", '{"item": "ink"}', "--title", "Ink")
        assert lines == ["Published “o1” to orders."]
        event = Event.objects.get()
        assert (event.message_id, event.payload, event.title) == ("o1", {"item": "ink"}, "Ink")
        assert event.published_by.startswith("publish (")
        given = SimpleNamespace(buffer=io.BytesIO('{"item": "Tinte für Ada"}'.encode()))
        monkeypatch.setattr(sys, "stdin", given)
        facts = told("publish", "orders", "o1", "--payload", "-")
        assert facts == {"topic": "orders", "message_id": "o1", "outcome": "updated"}
        assert fresh(event).payload == {"item": "Tinte für Ada"}
        event.skip("", initiator=SOMEBODY, now=NOW)
        assert told("publish", "orders", "o1", "--payload", "8")["outcome"] == "unchanged"
        assert "Nothing changed" in said("publish", "orders", "o1")[0]

    WRONG = [
        (["ordres", "o1"], "Topic “ordres” does not exist; did you mean orders?"),
        (["letters", "o1"], "Topic “letters” does not exist; choose one of: orders, parcels"),
        (["orders", ""], "message_id: Must be a string with 1 to 200 characters"),
        (["orders", "o1", "--payload", "{"], "--payload: not JSON"),
        (["orders", "o1", "--payload", '{"a": 1, "a": 2}'], "--payload: the key 'a' appears twice"),
        (["orders", "o1", "--payload", f'"{"x" * 300_000}"'], "--payload: 300,002 characters are too many"),
    ]

    def test_what_is_wrong_is_one_line(self) -> None:
        said = [(words, refusal("publish", *arguments)) for arguments, words in self.WRONG]
        assert [(words, line) for words, line in said if words not in line] == []
        assert not Event.objects.exists()

    def test_what_is_no_text_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'"\xff"')))
        assert refusal("publish", "orders", "o1", "--payload", "-") == (
            "--payload: standard input is not UTF-8 text (byte 2): save it as UTF-8."
        )


def test_without_topics_the_next_step_is_told() -> None:
    assert "syncworkflows" in refusal("publish", "orders", "o1")


class TestSync:
    def test_what_the_code_has_is_deployed_and_told(self) -> None:
        with defined(Orders):
            rehearsed = said("syncworkflows", "--dry-run")
            assert not Workflow.objects.exists()
            done = said("syncworkflows")
            assert Workflow.objects.get().slug == "orders"
            assert told("syncworkflows", "--dry-run") == {"dry_run": True, "changes": [], "problems": []}
            assert said("syncworkflows") == ["No changes: the database matches the code."]
        assert [line.split()[:2] for line in done[:2]] == [["Change", "What"], ["new", "topic"]]
        assert rehearsed == [*done, "Dry run: nothing was changed."]
        assert Activity.objects.get(operation="deploy").initiator_name.startswith("syncworkflows (")
        with defined():
            assert told("syncworkflows")["changes"] == [
                {"how": "stopped", "what": "workflow orders", "details": []}
            ]

    def test_what_cannot_be_deployed_is_told_and_the_rest_is_deployed(self) -> None:
        with defined(Orders) as wanted:
            problem = "shop.workflows cannot be imported: ImportError: no shop"
            with patch("workflows.discovery._discover", lambda: (wanted, [problem])):
                assert refusal("syncworkflows") == f"Left out 1 module with errors: {problem}"
                out = io.StringIO()
                with pytest.raises(CommandError):
                    call_command("syncworkflows", "--json", stdout=out)
        assert json.loads(out.getvalue())["problems"] == [problem]
        assert Workflow.objects.exists()
