"""The commands about workflows: what they print, what they tell programs, what they refuse."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import CommandError, call_command

from activities.models import Activity
from database import clock
from tests.base import NOW, SOMEBODY, fresh
from tests.commands import refusal, said, told
from tests.workflows.base import defined, make_topics, publish
from tests.workflows.orders import Orders, orders, stuck
from workflows import AuthRequired
from workflows.models import Event, Workflow

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
        assert said("workflows", "--state", "idle") == ["There is no such workflow."]


class TestPublish:
    @pytest.fixture(autouse=True)
    def topics(self) -> None:
        make_topics("orders", "parcels")

    def test_an_event_is_published_and_programs_are_told_what_became_of_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = said("publish", "orders", "o1", "--payload", '{"item": "ink"}', "--title", "Ink")
        assert lines == ["“o1” is published to orders."]
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
        assert "nothing changed" in said("publish", "orders", "o1")[0]

    WRONG = [
        (["ordres", "o1"], "There is no topic “ordres”; did you mean orders?"),
        (["letters", "o1"], "There is no topic “letters”; there are: orders, parcels"),
        (["orders", ""], "message_id: A text of 1 to 200 characters is expected"),
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
            assert said("syncworkflows") == ["Nothing changes: the database says what the code says."]
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
            with patch("workflows.discovery._found", lambda: (wanted, [problem])):
                assert refusal("syncworkflows") == f"Left out 1 module: {problem}"
                out = io.StringIO()
                with pytest.raises(CommandError):
                    call_command("syncworkflows", "--json", stdout=out)
        assert json.loads(out.getvalue())["problems"] == [problem]
        assert Workflow.objects.exists()
