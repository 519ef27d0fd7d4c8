"""The commands about workflows: what they print, what they tell programs, what they refuse."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from django.conf import settings as jim
from django.core.management import CommandError, call_command

from activities import clock
from activities.models import Activity
from tests.base import NOW, SOMEBODY
from tests.commands import refusal, said, told
from tests.conftest import subprocess_env
from tests.workflows.base import defined, make_topics, publish
from tests.workflows.orders import Orders, backing_off, orders, stuck
from workflows import AuthRequired
from workflows.models import Event, Topic, Workflow

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In time, and however wide the window is."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def workflow() -> Iterator[Workflow]:
    with orders() as deployed:
        yield deployed


@pytest.mark.usefixtures("workflow")
class TestWorkflows:
    def test_a_table_says_how_each_is(self) -> None:
        assert said("workflows") == [
            "State   Workflow  Next      When",
            "✓ idle  orders    in 5 min  Every 5 minutes",
        ]
        stuck(AuthRequired("sign in to the carrier"))
        publish("orders", "o2")
        issue = "Sign in to the carrier. Waiting for an operator to approve or reject it."
        header, row = said("workflows")
        assert header.split() == ["State", "Workflow", "Issue", "Pending", "When"]
        assert row == f"! needs attention  orders    {issue}  1        Every 5 minutes"

    def test_programs_get_the_same_as_json(self) -> None:
        run = backing_off()
        publish("orders", "o2")
        [row] = told("workflows")["workflows"]
        assert row == {
            "slug": "orders",
            "title": "Orders",
            "state": "running",
            "issue": "The carrier is closed. Tries again in 10 s.",
            "schedule": "Every 5 minutes",
            "next_at": "2026-11-16T03:00:10Z",
            "pending": [
                {"topic": "orders", "count": 1, "is_more": False, "oldest_at": "2026-11-16T03:00:00Z"}
            ],
            "open_run": {"id": run.pk, "handler": "Ship", "status": "paused:transient"},
        }

    def test_those_in_a_state(self) -> None:
        assert len(told("workflows", "--state", "idle")["workflows"]) == 1
        assert told("workflows", "--state", "needs_attention")["workflows"] == []
        assert said("workflows", "--state", "needs_attention") == ["There is no such workflow."]

    def test_what_handlers_raise_cannot_move_the_cursor_of_a_terminal(self) -> None:
        stuck(AuthRequired("red \x1b[31malert"))
        assert "\x1b" not in "".join(said("workflows"))

    def test_the_number_of_queries_is_known(self, django_assert_num_queries: Any) -> None:
        stuck(AuthRequired("sign in"))
        with django_assert_num_queries(1 + 3):
            said("workflows")


def test_without_any_workflow_the_next_step_is_told() -> None:
    assert "syncworkflows" in said("workflows")[0]


class TestPublish:
    @pytest.fixture(autouse=True)
    def topics(self) -> None:
        make_topics("orders", "parcels")

    def test_an_event_is_published(self) -> None:
        lines = said("publish", "orders", "o1", "--payload", '{"item": "ink"}', "--title", "Ink")
        assert lines == ["“o1” is published to orders."]
        event = Event.objects.get()
        assert (event.message_id, event.payload, event.title) == ("o1", {"item": "ink"}, "Ink")
        assert event.published_by.startswith("publish (")
        assert Activity.objects.get(operation="publish").initiator_name == event.published_by

    def test_programs_are_told_what_became_of_it(self) -> None:
        assert told("publish", "orders", "o1") == {"topic": "orders", "message_id": "o1", "outcome": "new"}
        assert told("publish", "orders", "o1", "--payload", "7")["outcome"] == "updated"
        assert Event.objects.get().payload == 7
        Event.objects.get().skip("", initiator=SOMEBODY, now=NOW)
        assert told("publish", "orders", "o1", "--payload", "8")["outcome"] == "unchanged"
        assert "nothing changed" in said("publish", "orders", "o1")[0]

    def test_the_payload_comes_from_standard_input(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = SimpleNamespace(buffer=io.BytesIO('{"item": "Tinte für Ada"}'.encode()))
        monkeypatch.setattr(sys, "stdin", given)
        said("publish", "orders", "o1", "--payload", "-")
        assert Event.objects.get().payload == {"item": "Tinte für Ada"}

    WRONG = [
        (["ordres", "o1"], "There is no topic “ordres”; did you mean orders?"),
        (["letters", "o1"], "There is no topic “letters”; there are: orders, parcels"),
        (["orders", ""], "message_id: A text of 1 to 200 characters is expected"),
        (["orders", "o1", "--payload", "{"], "--payload: not JSON"),
        (["orders", "o1", "--payload", '{"a": 1, "a": 2}'], "--payload: the key 'a' appears twice"),
        (["orders", "o1", "--payload", f'"{"é" * 50_000}"'], "payload: It is 300,002 bytes of JSON"),
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
            assert not Topic.objects.exists()
            done = said("syncworkflows")
        assert [line.split()[:2] for line in done[:4]] == [
            ["Change", "What"],
            ["new", "topic"],
            ["new", "topic"],
            ["new", "workflow"],
        ]
        assert rehearsed == [*done, "Dry run: nothing was changed."]
        assert Workflow.objects.get().slug == "orders"
        by = Activity.objects.get(operation="deploy").initiator_name
        assert by.startswith("syncworkflows (")

    def test_programs_get_the_same_as_json(self) -> None:
        with defined(Orders):
            facts = told("syncworkflows")
            assert facts["dry_run"] is False
            assert {"how": "new", "what": "workflow orders", "details": []} in facts["changes"]
            assert told("syncworkflows", "--dry-run") == {"dry_run": True, "changes": [], "problems": []}
            assert said("syncworkflows") == ["Nothing changes: the database says what the code says."]
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


EACH = """
import django, sys
django.setup()
from django.core.management import CommandError, call_command
for command in (["workflows"], ["publish", "orders", "o1"], ["syncworkflows"]):
    try:
        call_command(*command)
    except CommandError as error:
        print(error.returncode, "run “manage.py migrate” first" in str(error))
"""


@pytest.mark.live
def test_a_database_without_tables_is_one_line(tmp_path: Path) -> None:
    env = subprocess_env(DATABASE_URL=f"sqlite:///{tmp_path}/empty.sqlite3")
    done = subprocess.run(
        [sys.executable, "-c", EACH], cwd=jim.BASE_DIR, env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == (["2 True"] * 3, "")
