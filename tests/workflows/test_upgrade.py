"""While an upgrade is under way: workers whose code is not what was deployed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.base import NOW, seconds
from tests.workflows.base import defined, deploy_all, deployed, events, publish, runs, work
from tests.workflows.scripted import Script, die, last
from workflows import Producer, Workflow
from workflows.contexts import ProduceContext
from workflows.definition import applied

pytestmark = pytest.mark.django_db


class Old(Producer):
    every = "1h"
    version = "1"

    def produce(self, ctx: ProduceContext) -> Any:
        raise KeyError("gone")

    @classmethod
    def name(cls) -> str:
        return "Look"


class New(Old):
    version = "2"

    def produce(self, ctx: ProduceContext) -> Any:
        return {"looked": True}


class Before(Workflow):
    slug = "upgrade"
    title = "Upgrade"
    producers = [Old]


class After(Before):
    producers = [New]


class Without(Before):
    slug = "other"
    producers = [New]


def test_a_failure_of_code_that_was_replaced_is_tried_again_elsewhere() -> None:
    with defined(After):
        deploy_all()
    with defined(Before):
        work()
    assert runs() == [("Look", "preparing", "paused:transient")]
    with defined(After):
        work(now=NOW + seconds(10))
    assert runs()[-1] == ("Look", "committed", "committed")


def test_a_handler_that_a_worker_does_not_have_waits_for_one_that_has_it() -> None:
    with defined(After):
        deploy_all()
    with defined(Without):
        work()
    assert runs() == [("Look", "preparing", "paused:transient")]


def test_a_worker_without_the_handler_cannot_say_that_a_mutation_did_not_happen() -> None:
    script = Script(apply=[ConnectionError("no answer")], verdicts=[applied()])
    with deployed(script.workflow()):
        publish("mail", "a")
        die()
    with defined(Without):
        work()
    assert (runs()[-1], last().effect) == (("Sort", "mutating", "paused:transient"), "in_flight")
    with defined(script.workflow()):
        work(now=NOW + seconds(10))
    assert (script.asked, len(script.keys)) == (script.keys, 1)
    assert events("mail") == {"a": "consumed"}
