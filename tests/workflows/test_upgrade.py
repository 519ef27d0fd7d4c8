"""While an upgrade is under way: workers whose code is not what was deployed."""

from __future__ import annotations

import pytest

from tests.base import NOW, seconds
from tests.workflows.base import defined, deploy_all, deployed, events, publish, runs, work
from tests.workflows.scripted import Script, die, last
from workflows import Workflow
from workflows.definition import applied

pytestmark = pytest.mark.django_db
OLD = [Script(prepare=[KeyError("gone")]).workflow(version="1")]


@pytest.mark.parametrize("known", [OLD, []], ids=["a failure of code that was replaced", "no such handler"])
def test_what_another_worker_can_do_waits_for_it(known: list[type[Workflow]]) -> None:
    new = Script().workflow(version="2")
    with defined(new):
        deploy_all()
    publish("mail", "a")
    with defined(*known):
        work()
    assert runs() == [("Sort", "preparing", "paused:transient")]
    assert "Restart the workers" in last().error
    with defined(new):
        work(now=NOW + seconds(10))
    assert runs()[1] == ("Sort", "committed", "committed")


def test_a_worker_without_the_handler_cannot_say_that_a_mutation_did_not_happen() -> None:
    script = Script(apply=[ConnectionError("no answer")], verdicts=[applied()])
    with deployed(script.workflow()):
        publish("mail", "a")
        die()
    with defined():
        work()
    assert (runs()[-1], last().effect) == (("Sort", "mutating", "paused:transient"), "in_flight")
    with defined(script.workflow()):
        work(now=NOW + seconds(10))
    assert (script.asked, len(script.keys)) == (script.keys, 1)
    assert events("mail") == {"a": "consumed"}
