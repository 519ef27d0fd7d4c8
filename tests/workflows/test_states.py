"""What docs/states.md draws of workflows, runs and events is what happens: every arrow is walked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.conf import settings

from execution.scheduler import tick
from tests.base import NOW, SOMEBODY, make_schedule
from tests.workflows.base import defined, deploy_all, deployed, make_topics, publish, work
from tests.workflows.orders import Orders
from tests.workflows.scripted import Script
from workflows import PermissionRequired, Transient
from workflows.failures import Phase, Status
from workflows.models import Event, Run, Topic, Workflow

pytestmark = pytest.mark.django_db
Arrow = tuple[str, str]


def drawn(section: str, number: int = 0) -> set[Arrow]:
    text = (settings.BASE_DIR / "docs" / "states.md").read_text()
    part = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    diagram = re.findall(r"```mermaid\n(.*?)```", part, re.DOTALL)[number]
    return set(re.findall(r"^    (\S+) --> (\w+)", diagram, re.MULTILINE))


def states(arrows: set[Arrow]) -> set[str]:
    return {state for arrow in arrows for state in arrow} - {"[*]"}


class TestEvents:
    def status(self) -> str:
        return Event.objects.get(topic__slug="mail").status

    def walked(self) -> set[Arrow]:
        return {
            arrow
            for walk in (self.consume, self.afresh, self.leave_out, self.skip, self.start_schedules)
            for arrow in self._arrows(walk)
        }

    def _arrows(self, walk: Callable[[], Sequence[str]]) -> list[Arrow]:
        seen = list(walk())
        Event.objects.all().delete()
        Run.objects.all().delete()
        return list(zip(["[*]", *seen], seen, strict=False))

    def consume(self) -> list[str]:
        with deployed(Script().workflow()):
            publish("mail", "m")
            first = self.status()
            publish("mail", "m", payload=2)
            again = self.status()
            reserved = self._while_it_runs()
            return [first, again, reserved, self.status()]

    def _while_it_runs(self) -> str:
        found: list[str] = []

        def look(*args: Any, **kwargs: Any) -> None:
            found.append(self.status())

        script = Script()
        script.apply = look  # type: ignore[method-assign, assignment]
        with defined(script.workflow()):
            work()
        return found[0]

    def afresh(self) -> list[str]:
        with deployed(Script(mutate=[Transient("later")]).workflow()):
            publish("mail", "m")
            work()
            before = self.status()
            Run.objects.open().get().retry("", initiator=SOMEBODY, now=NOW)
            tick(NOW)
            return ["pending", before, self.status()]

    def leave_out(self) -> list[str]:
        with deployed(Script(mutate=[PermissionRequired("may I?")]).workflow()):
            publish("mail", "m")
            work()
            before = self.status()
            Run.objects.open().get().reject("no", initiator=SOMEBODY, now=NOW)
            work()
            return ["pending", before, self.status()]

    def skip(self) -> list[str]:
        Workflow.objects.all().delete()
        Topic.objects.all().delete()
        make_topics("mail")
        publish("mail", "m")
        before = self.status()
        assert Event.objects.get().skip("", initiator=SOMEBODY, now=NOW)
        return [before, self.status()]

    def start_schedules(self) -> list[str]:
        make_schedule(topics=["mail"])
        publish("mail", "m")
        before = self.status()
        tick(NOW)
        return [before, self.status()]

    def test_every_arrow_is_walked_and_no_other(self) -> None:
        assert drawn("Event") == self.walked()
        assert states(drawn("Event")) == set(Event.Status.values)


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
    """Each checkpoint as it is written, of runs of all kinds."""
    walked: set[Arrow] = set()
    reach = Run._write

    def write(run: Run, now: Any, *, before: Any = (), **values: Any) -> None:
        old = run.phase
        reach(run, now, **({"before": before} if before else {}), **values)
        if "phase" in values:
            walked.add((old, str(values["phase"])))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "_write", write)
        with deployed(Orders):
            publish("orders", "o1")
            work()
    begun = ("[*]", Phase.PREPARING.value)
    assert drawn("Run") == {(str(old), new) for old, new in walked} | {begun}
    assert states(drawn("Run")) == set(map(str, Phase))


def test_statuses() -> None:
    """How a run comes to each of them is told in the stories: its lifecycle, and restart recovery."""
    ends = {str(each).replace(":", "_") for each in Status} - {"active"}
    assert drawn("Run", 1) == {("[*]", "active"), *(("active", status) for status in ends)}
