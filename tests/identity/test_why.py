"""Each value of an identity is explained: the winner, the others, the rule's revision, run and place."""

from __future__ import annotations

from typing import Any

import pytest

from identity.models import Flow, SyncRule
from identity.rulebook import Rulebook
from identity.why import Explanation, explain
from tests.base import NOW

from .world import FULL_IMPORT, FULL_SYNC, System, identities, identity_type, rule

pytestmark = pytest.mark.django_db


class Company:
    def __init__(self) -> None:
        self.hr, self.badge = System("HR"), System("Badge")
        people = identity_type()
        name = {"source": "first", "priority": 2}
        self.from_hr = rule("in", self.hr, people, {"id": "id", "first": name}, join="id", name="HR in")
        badge: dict[str, Any] = {"first": {"expression": "upper(first)", "priority": 1}, "mail": "mail"}
        self.from_badge = rule("in", self.badge, people, badge, join="id", creates=False, name="Badge in")
        self.hr.put("1", first="Ada")
        self.badge.put("1", first="Countess", mail="ada@x")

    def synchronise(self) -> int:
        for system in (self.hr, self.badge):
            system.run(FULL_IMPORT)
        self.hr.run(FULL_SYNC)
        return self.badge.run(FULL_SYNC).pk

    def why(self, attribute: str) -> Explanation:
        found = explain(identities()["1"], Rulebook.load(), now=NOW)
        return next(each for each in found if each.attribute == attribute)


def test_the_winner_and_the_others() -> None:
    company = Company()
    run = company.synchronise()

    why = company.why("first")

    assert (why.value, why.revision, why.run, why.place) == ("COUNTESS", 1, run, "object 1")
    assert [(each.rule, each.source, each.value, each.is_winner) for each in why.candidates] == [
        ("Badge in", "upper(first)", "COUNTESS", True),
        ("HR in", "first", "Ada", False),
    ]


def test_an_attribute_without_a_value() -> None:
    company = Company()
    company.badge.put("1", first="Countess")
    company.synchronise()

    why = company.why("mail")

    assert why.value is None
    assert [(each.rule, each.reason) for each in why.candidates] == [("Badge in", "has no value")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("scope", "the account is out of the rule's scope"),
        ("expression", "first: character 1: first needs a list, not text"),
        ("gone", "no account is joined"),
    ],
)
def test_why_a_flow_says_nothing(change: str, reason: str) -> None:
    company = Company()
    company.synchronise()
    if change == "scope":
        scope = {"attribute": "mail", "operator": "is_empty"}
        SyncRule.objects.filter(pk=company.from_badge.pk).update(scope=scope)
    elif change == "expression":
        Flow.objects.filter(rule=company.from_badge, target="first").update(expression="first(mail)")
    else:
        company.badge.drop("1")
        company.badge.run(FULL_IMPORT, limits={"absent": {"floor": 9}})
        company.badge.put("2")
        company.badge.run(FULL_IMPORT)
        company.badge.run(FULL_SYNC)

    assert company.why("first").candidates[0].reason == reason


def test_a_flow_that_is_gone() -> None:
    company = Company()
    company.synchronise()
    Flow.objects.filter(rule=company.from_badge, target="mail").delete()

    assert company.why("mail").note == (
        "The flow that set this value no longer exists; a full synchronisation updates the value."
    )


def test_a_value_that_was_kept() -> None:
    company = Company()
    SyncRule.objects.filter(pk=company.from_badge.pk).update(recalls=False)
    company.synchronise()
    company.badge.drop("1")
    company.badge.put("2")
    company.badge.run(FULL_IMPORT)
    company.badge.run(FULL_SYNC)

    why = company.why("mail")

    assert (why.value, why.note) == (
        "ada@x",
        "The account that this value comes from is no longer joined; the value was kept.",
    )
