"""What docs/workflows.md shows is what happens: its code runs here as it stands there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command

from database import clock
from execution.loops.scheduler import tick
from execution.models import Execution
from schedules.models import Schedule
from tests.base import NOW
from tests.commands import said
from tests.timeline import minutes
from tests.workflows.base import defined, deployed, events, make_topics, publish, work
from workflows import Consumer, Prepared, Workflow
from workflows.models import Event, Run
from workflows.words import issue

pytestmark = pytest.mark.django_db


def guide() -> str:
    return (settings.BASE_DIR / "docs" / "workflows.md").read_text()


def under(heading: str, language: str = "python") -> str:
    """The code in the section of this heading, one block after the other."""
    section = re.split(r"^##+ ", guide(), flags=re.MULTILINE)
    [text] = [each for each in section if each.startswith(f"{heading}\n")]
    return "\n\n".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


@pytest.fixture(autouse=True)
def no_module() -> Iterator[None]:
    yield
    sys.modules.pop("guide", None)


def run(code: str, **known: Any) -> dict[str, Any]:
    """As a module of its own; returns what it defines."""
    module = sys.modules["guide"] = ModuleType("guide")
    vars(module).update({"Consumer": Consumer, "Prepared": Prepared, **known})
    exec(compile(code, "docs/workflows.md", "exec"), vars(module))
    return vars(module)


class TestTheFirstWorkflow:
    @pytest.fixture
    def names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        return run(under("A first workflow in ten minutes"))

    def test_what_would_change_and_a_visitor_is_greeted_once(self, names: dict[str, Any]) -> None:
        shown = guide().partition("syncworkflows --dry-run\n")[2].partition("```")[0]
        with defined(names["GuestBook"]):
            assert said("syncworkflows", "--dry-run") == shown.splitlines()
        with deployed(names["GuestBook"]):
            for _ in range(2):
                publish("visitors", "ada", payload={"name": "Ada"})
                work()
        assert Path("guestbook.txt").read_text() == "Welcome, Ada!\n"

    def test_an_event_that_nobody_expected(self, names: dict[str, Any]) -> None:
        with deployed(names["GuestBook"]) as workflow:
            publish("visitors", "empty")
            work()
            words = issue(workflow, Run.objects.open().get(), NOW)
        assert words in " ".join(guide().split()).replace("*", "")

    @pytest.mark.parametrize("is_written", [True, False])
    def test_power_fails_while_it_writes(self, names: dict[str, Any], is_written: bool) -> None:
        failures = [RuntimeError("the power failed")]

        def write(self: Any, name: str) -> None:
            if is_written or not failures:
                names["Greet"].write(self, name)
            if failures:
                raise failures.pop()

        consumer = type("Greet", (names["GreetOnce"],), {"write": write})
        with deployed(type("GuestBook", (names["GuestBook"],), {"consumers": [consumer]})):
            publish("visitors", "ada", payload={"name": "Ada"})
            work()
            assert events("visitors") == {"ada": "consumed"}
        assert Path("guestbook.txt").read_text() == "Welcome, Ada!\n"


TEN = [str(number) for number in range(10)]
DIGEST = [["0", "1", "2"]]
# By heading: at which minute what is published to which topic, and what has been sent then.
RECIPES: dict[str, list[tuple[int, str, list[str], list[list[str]]]]] = {
    "Simple FIFO": [(0, "notifications", ["a", "b"], [["a"], ["b"]])],
    "Correlation": [(0, "orders", ["1", "2"], []), (1, "payments", ["2"], [["orders", "payments"]])],
    "Time window": [
        (0, "notifications", ["a"], []),
        (20, "notifications", ["b"], []),
        (59, "notifications", [], []),
        (60, "notifications", [], [["a"]]),
        (80, "notifications", [], [["a"], ["b"]]),
    ],
    "Batch and timeout": [
        (0, "notifications", [*TEN, "10", "11"], [TEN]),
        (59, "notifications", [], [TEN]),
        (60, "notifications", [], [TEN, ["10", "11"]]),
    ],
    # At nine, which is six hours away.
    "Daily digest": [
        (0, "notifications", ["0"], []),
        (359, "notifications", ["1"], []),
        (360, "notifications", ["2"], DIGEST),
        (361, "notifications", ["3"], DIGEST),
        (360 + 24 * 60, "notifications", [], [*DIGEST, ["3"]]),
    ],
}


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe(heading: str) -> None:
    section = guide().partition("## Recipes\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^### (.*)", section, re.MULTILINE)) == set(RECIPES)
    sent: list[list[str]] = []
    names = run(under(heading), send=sent.append, timedelta=timedelta)
    [consumer] = [each for each in names.values() if getattr(each, "__module__", "") == "guide"]
    topics = dict.fromkeys(consumer.subscribe, "")
    body = {"slug": "recipe", "title": heading, "topics": topics, "consumers": [consumer]}
    with deployed(type("Recipe", (Workflow,), body)):
        for minute, topic, message_ids, wanted in RECIPES[heading]:
            publish(topic, *message_ids, now=minutes(minute))
            work(now=minutes(minute))
            assert sent == wanted
    assert not Run.objects.open().exists()


def test_publishing_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    make_topics("visitors")
    run(under("Publishing from elsewhere"))
    event = Event.objects.get()
    assert (event.message_id, event.payload, event.title) == ("grace", {"name": "Grace"}, "Grace Hopper")


def test_a_schedule_that_events_start(tmp_path: Path) -> None:
    make_topics("orders")
    path = tmp_path / "schedules.yaml"
    path.write_text(f"version: 1\n{under('Events that start schedules', 'yaml')}")
    call_command("importschedules", str(path))
    publish("orders", "a", payload={"id": 17})
    tick(NOW)
    [line] = Execution.objects.get().plan["steps"]
    assert line["values"] == {"event.payload.id": 17}
    assert Schedule.objects.get().spec_in_words == "For each event in the topic orders"


def test_what_it_says_of_failures_is_so() -> None:
    """The statuses, words of the ways out, and numbers that its tables name."""
    from workflows import failures, operations

    text = guide()
    statuses = {str(status) for status in failures.Status} - {"active", "committed"}
    assert {each for each in statuses if f"`{each}`" not in text} == set()
    labels = {each.label for each in operations.ResolveRun.__subclasses__()}
    assert {each for each in labels if each not in text} == set()
    backoffs = [int(failures.backoff(tries).total_seconds()) for tries in (1, 2, 3)]
    assert f"after {', '.join(map(str, backoffs))} s …, five times" in text
    assert (failures.MOST_TRANSIENT, failures.MOST_CRASHES, failures.MOST_FIXES) == (5, 3, 3)
    assert (settings.JIM_WAKE_LEAST_SECONDS, settings.JIM_WAKE_MOST_SECONDS) == (30, 86_400)
