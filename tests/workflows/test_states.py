"""What docs/states.md draws of workflows, runs and events is what happens: every arrow is walked."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from django.conf import settings

from execution.loops.scheduler import tick
from tests.base import NOW, SOMEBODY, make_schedule
from tests.workflows.base import defined, deploy_all, deployed, make_topics, publish, work
from tests.workflows.orders import Orders
from tests.workflows.scripted import Script
from workflows import PermissionRequired, Transient
from workflows.failures import Phase, Status
from workflows.models import Event, Run, Workflow

pytestmark = pytest.mark.django_db
Arrow = tuple[str, str]


def drawn(section: str, number: int = 0) -> set[Arrow]:
    text = (settings.BASE_DIR / "docs" / "states.md").read_text()
    part = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    diagram = re.findall(r"```mermaid\n(.*?)```", part, re.DOTALL)[number]
    return set(re.findall(r"^    (\S+) --> (\w+)", diagram, re.MULTILINE))


def states(arrows: set[Arrow]) -> set[str]:
    return {state for arrow in arrows for state in arrow} - {"[*]"}


def test_events() -> None:
    walked, before = set[Arrow](), dict[str, str]()

    def look(message_id: str) -> None:
        status = Event.objects.exclude(topic__slug="rows").get(message_id=message_id).status
        walked.add((before.get(message_id, "[*]"), status))
        before[message_id] = status

    script = Script(mutate=[Transient("later"), PermissionRequired("may I?"), None])
    script.apply = lambda key: look("taken")  # type: ignore[method-assign, assignment, return-value]
    with deployed(script.workflow()):
        publish("mail", "left out")
        look("left out")
        publish("mail", "left out", payload=2)
        look("left out")
        work()
        look("left out")
        Run.objects.open().get().retry("", initiator=SOMEBODY, now=NOW)
        tick(NOW)
        look("left out")
        work()
        look("left out")
        Run.objects.open().get().reject("no", initiator=SOMEBODY, now=NOW)
        work()
        look("left out")
        publish("mail", "taken")
        look("taken")
        work()
        look("taken")
    make_topics("post")
    make_schedule(topics=["post"])
    publish("post", "skipped", "starts a schedule")
    for message_id in ("skipped", "starts a schedule"):
        look(message_id)
    assert Event.objects.get(message_id="skipped").skip("", initiator=SOMEBODY, now=NOW)
    tick(NOW)
    for message_id in ("skipped", "starts a schedule"):
        look(message_id)
    assert drawn("Event") == walked
    assert states(walked) == set(Event.Status.values)


def test_workflows() -> None:
    def move(change: Callable[[], object]) -> Arrow:
        before = Workflow.objects.values_list("status", flat=True).first() or "[*]"
        change()
        return before, Workflow.objects.get().status

    def deploy(*workflows: Any) -> Callable[[], object]:
        def change() -> None:
            with defined(*workflows):
                deploy_all()

        return change

    def pause() -> None:
        assert Workflow.objects.get().pause("", initiator=SOMEBODY, now=NOW)

    def resume() -> None:
        assert Workflow.objects.get().resume(initiator=SOMEBODY, now=NOW)

    here, gone = deploy(Orders), deploy()
    walked = [move(each) for each in (here, pause, resume, gone, here, pause, gone, here)]
    assert drawn("Workflow") == set(walked)
    assert states(drawn("Workflow")) == set(Workflow.Status.values)


def test_phases() -> None:
    """How a run goes through them is told in the story of its records; some leave a few out."""
    shortcuts = {(Phase.PREPARED, Phase.EMITTING), (Phase.PREPARING, Phase.COMMITTED)}
    phases = pairwise(Phase)
    assert drawn("Run") == {("[*]", "preparing"), *phases, *shortcuts}


def test_statuses() -> None:
    """How a run comes to each of them is told in the stories: its lifecycle, and restart recovery."""
    ends = {str(each).replace(":", "_") for each in Status} - {"active"}
    assert drawn("Run", 1) == {("[*]", "active"), *(("active", status) for status in ends)}
