"""When identities are marked for deletion, when a mark is cancelled, and what a deletion leaves behind."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.models import Activity
from identity.models import Identity, IdentityType
from tests.base import NOW, SOMEBODY, fresh

from .world import (
    DELTA_SYNC,
    EXPORT,
    FULL_IMPORT,
    FULL_SYNC,
    System,
    counts,
    identities,
    identity_type,
    items,
    rule,
)

pytestmark = pytest.mark.django_db

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 1000])
GRACE = timedelta(days=30)


class Company:
    """People of HR and of a payroll, both of which may be authoritative, with badges and accounts in AD."""

    def __init__(
        self, deletion: str, mode: str = "all", *, grace_days: int = 30, deprovision: str = "delete"
    ) -> None:
        self.hr, self.pay, self.badges, self.ad = (System(name) for name in ("HR", "Pay", "Badges", "AD"))
        self.people = identity_type(
            sources=[self.hr, self.pay], deletion=deletion, sources_mode=mode, grace_days=grace_days
        )
        rule("in", self.hr, self.people, {"id": "id", "first": "first"}, join="id")
        rule("in", self.pay, self.people, {"last": "last"}, join="id", creates=False)
        rule("in", self.badges, self.people, {"department": "department"}, join="id", creates=False)
        rule(
            "out",
            self.ad,
            self.people,
            {"id": "id", "first": "first"},
            deprovision=deprovision,
            disable_values={"first": "(left)"},
        )

    def employ(self, *names: str) -> Identity:
        """Add Ada to HR and these systems, and somebody else so that none of them is ever empty."""
        for system in self.systems("hr", *names):
            system.put("0")
            system.put("1", first="Ada", last="Bell", department="IT")
            synchronise(system)
        self.ad.run(EXPORT)
        self.ad.run(FULL_IMPORT)
        return identities()["1"]

    def systems(self, *names: str) -> list[System]:
        return [getattr(self, name) for name in names]

    def leave(self, *names: str, **fields: Any) -> Activity:
        for system in self.systems(*names):
            system.drop("1")
            run = synchronise(system, **fields)
        return run

    def come(self, *names: str, **fields: Any) -> Activity:
        for system in self.systems(*names):
            system.put("1", first="Ada", last="Bell", department="IT")
            run = synchronise(system, **fields)
        return run


def synchronise(system: System, **fields: Any) -> Activity:
    system.run(FULL_IMPORT)
    return system.run(DELTA_SYNC, **fields)


def is_marked(identity: Identity) -> bool:
    return fresh(identity).delete_after is not None


# Cases 26, 27 and 30: what marks an identity


@pytest.mark.parametrize(
    ("deletion", "mode", "joined", "leaving", "expected"),
    [
        pytest.param("last_connector", "all", ["pay"], ["hr"], False, id="case 26: one of two leaves"),
        pytest.param("authoritative", "any", ["pay"], ["pay"], True, id="case 27: any, 1st"),
        pytest.param("authoritative", "any", ["pay"], ["hr"], True, id="case 27: any, the other one 1st"),
        pytest.param("authoritative", "all", ["pay"], ["hr"], False, id="case 27: all, 1st"),
        pytest.param("authoritative", "all", ["pay"], ["hr", "pay"], True, id="case 27: all, last"),
        pytest.param("authoritative", "all", ["pay"], ["pay", "hr"], True, id="case 27: all, last, reversed"),
        pytest.param("authoritative", "all", [], ["hr"], True, id="case 27: all, the only one"),
        pytest.param(
            "authoritative", "any", ["badges"], ["badges"], False, id="case 27: any, another system"
        ),
        pytest.param("authoritative", "all", ["badges"], ["hr"], True, id="case 27: all, another one stays"),
        pytest.param("manual", "any", ["pay"], ["hr", "pay"], False, id="by hand only"),
    ],
)
def test_an_identity_is_marked_when_its_accounts_leave(
    deletion: str, mode: str, joined: list[str], leaving: list[str], expected: bool
) -> None:
    company = Company(deletion, mode)
    identity = company.employ(*joined)

    run = company.leave(*leaving)

    assert counts(run).get("marked", 0) == int(expected)
    assert (("1", "marked", "") in items(run)) is expected
    assert is_marked(identity) is expected
    assert not is_marked(identities()["0"])


@pytest.mark.parametrize("order", [["hr", "pay", "ad"], ["ad", "pay", "hr"]])
def test_case_26_an_identity_is_marked_when_its_last_connector_leaves(order: list[str]) -> None:
    company = Company("last_connector", deprovision="disconnect")
    identity = company.employ("pay")
    company.people.rules.filter(direction="out").update(is_enabled=False)

    marks = []
    for name in order:
        company.leave(name)
        marks.append(is_marked(identity))

    assert marks == [False, False, True]


def test_the_mark_says_when_why_and_by_whom() -> None:
    company = Company("authoritative", "any")
    identity = company.employ("pay")

    run = company.leave("pay")

    found = fresh(identity)
    assert found.delete_after == NOW + GRACE
    assert found.deletion == {
        "trigger": company.pay.row.pk,
        "deletion": "authoritative",
        "mode": "any",
        "sources": sorted([company.hr.row.pk, company.pay.row.pk]),
        "at": NOW.isoformat(),
        "by": {"type": SOMEBODY.type, "id": SOMEBODY.id, "name": SOMEBODY.name, "activity": run.pk},
    }


def test_an_account_that_leaves_the_scope_counts_as_one_that_leaves() -> None:
    company = Company("authoritative", "any")
    rules = company.people.rules.filter(object_type=company.pay.type)
    rules.update(scope={"attribute": "last", "operator": "is_set"})
    identity = company.employ("pay")
    company.pay.change("1", last=None)

    assert counts(synchronise(company.pay))["marked"] == 1
    assert is_marked(identity)


@pytest.mark.parametrize("deletion", ["last_connector", "authoritative"])
@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        pytest.param("internal", False, id="case 30: internal"),
        pytest.param("projected", True, id="projected"),
    ],
)
def test_only_identities_that_come_from_accounts_are_marked(
    deletion: str, origin: str, expected: bool
) -> None:
    company = Company(deletion, grace_days=0)
    company.people.rules.filter(direction="out").update(is_enabled=False)
    company.employ()
    Identity.objects.filter(display="1").update(origin=origin)

    run = company.leave("hr")

    assert counts(run).get("deleted", 0) == int(expected)
    assert Identity.objects.count() == (1 if expected else 2)


# Cases 28 and 29: what cancels a mark


@pytest.mark.parametrize(
    ("deletion", "mode", "joined", "leaving", "coming", "expected"),
    [
        pytest.param(
            "authoritative", "any", ["pay"], ["pay"], "pay", False, id="case 28: trigger rejoins (any)"
        ),
        pytest.param(
            "authoritative", "any", ["pay"], ["hr"], "hr", False, id="case 28: trigger rejoins (any)"
        ),
        pytest.param("authoritative", "any", [], ["hr"], "pay", True, id="case 29: another rejoins (any)"),
        pytest.param("authoritative", "any", ["pay"], ["pay"], "badges", True, id="case 29: a badge (any)"),
        pytest.param("authoritative", "all", [], ["hr"], "pay", False, id="case 28: a source (all)"),
        pytest.param("authoritative", "all", [], ["hr"], "badges", True, id="case 29: no source (all)"),
    ],
)
def test_an_account_that_rejoins_cancels_the_mark_if_it_undoes_the_trigger(
    deletion: str, mode: str, joined: list[str], leaving: list[str], coming: str, expected: bool
) -> None:
    company = Company(deletion, mode)
    identity = company.employ(*joined)
    company.leave(*leaving)
    assert is_marked(identity)

    run = company.come(coming, now=NOW + timedelta(days=1))

    assert is_marked(identity) is expected
    assert counts(run).get("unmarked", 0) == int(not expected)
    assert identities()["1"].uuid == identity.uuid
    assert Identity.objects.count() == 2


def test_case_28_any_account_cancels_the_mark_of_a_last_connector() -> None:
    company = Company("last_connector")
    company.people.rules.filter(direction="out").update(is_enabled=False)
    identity = company.employ()
    company.leave("hr")
    assert is_marked(identity)

    company.come("badges")

    assert not is_marked(identity)


def test_case_28_the_identity_keeps_its_values_and_accounts() -> None:
    company = Company("authoritative", "any")
    before = company.employ("pay")
    company.leave("hr")
    company.come("hr", now=NOW + timedelta(days=1))

    after = fresh(before)
    assert (after.uuid, after.attrs, after.delete_after, after.deletion) == (
        before.uuid,
        before.attrs,
        None,
        None,
    )
    assert company.ad.pending() == {}
    assert company.ad.account("1").identity == before


def test_the_rule_that_marked_the_identity_also_decides_what_cancels_the_mark() -> None:
    company = Company("authoritative", "any")
    identity = company.employ()
    company.leave("hr")
    IdentityType.objects.update(sources_mode="all", grace_days=0)

    run = company.come("pay")

    found = fresh(identity)
    assert counts(run) == {"joined": 1, "flowed": 1}
    assert found.delete_after == NOW + GRACE


# What happens in the grace period, and when it has passed


def test_in_the_grace_period_nothing_changes_for_other_systems() -> None:
    company = Company("authoritative", "any")
    before = company.employ("pay", "badges")

    run = company.leave("hr")

    assert counts(run) == {"disconnected": 1, "marked": 1, "removed": 1}
    assert fresh(before).attrs == before.attrs
    assert company.ad.pending() == {}
    assert counts(company.badges.run(FULL_SYNC, now=NOW + GRACE - timedelta(seconds=1))) == {"unchanged": 2}
    assert Identity.objects.count() == 2


@PAGE_SIZES
@pytest.mark.parametrize("system", ["hr", "pay", "ad"])
def test_the_next_synchronisation_after_the_grace_period_deletes_the_identity(
    page_size: int, system: str
) -> None:
    company = Company("authoritative", "any")
    company.employ("pay")
    company.leave("hr")

    run = getattr(company, system).run(DELTA_SYNC, now=NOW + GRACE, page_size=page_size)

    assert (run.status, counts(run)["deleted"]) == ("complete", 1)
    assert ("1", "deleted", "") in items(run)
    assert identities().keys() == {"0"}
    account = company.pay.account("1")
    assert (account.status, account.identity, account.join) == ("present", None, "")
    assert company.ad.pending() == {"1": ("delete", {})}


def test_without_a_grace_period_the_identity_is_deleted_in_the_same_run() -> None:
    company = Company("authoritative", "any", grace_days=0)
    company.employ()

    run = company.leave("hr")

    assert counts(run) == {"disconnected": 1, "marked": 1, "removed": 1, "staged": 1, "deleted": 1}
    assert sorted(items(run)) == [
        ("1", "deleted", ""),
        ("1", "disconnected", ""),
        ("1", "marked", ""),
        ("1", "staged", ""),
    ]
    assert identities().keys() == {"0"}


def test_an_identity_whose_account_returns_when_the_grace_period_has_passed_is_not_deleted() -> None:
    company = Company("authoritative", "any")
    before = company.employ()
    company.leave("hr")

    run = company.come("hr", now=NOW + GRACE + timedelta(days=1))

    assert counts(run) == {"joined": 1, "unmarked": 1}
    assert identities()["1"].uuid == before.uuid


@PAGE_SIZES
@pytest.mark.parametrize(
    ("deprovision", "pending", "after"),
    [
        ("delete", {"1": ("delete", {})}, None),
        ("disable", {"1": ("update", {"first": "(left)"})}, {"id": "1", "first": "(left)"}),
        ("disconnect", {}, {"id": "1", "first": "Ada"}),
    ],
)
def test_a_deleted_identity_leaves_its_accounts_as_the_rule_says(
    page_size: int, deprovision: str, pending: Any, after: Any
) -> None:
    company = Company("authoritative", "any", grace_days=0, deprovision=deprovision)
    company.employ()

    company.leave("hr", page_size=page_size)

    assert company.ad.pending() == pending
    company.ad.run(EXPORT)
    company.ad.run(FULL_IMPORT)
    assert company.ad.objects.get("1") == after
    assert company.ad.pending() == {}
    account = company.ad.accounts().get("1")
    assert (account is not None) is (after is not None)
    assert account is None or account.identity is None


def test_a_person_who_returns_after_the_deletion_is_a_new_identity() -> None:
    company = Company("authoritative", "any", grace_days=0)
    before = company.employ()
    company.leave("hr")
    company.ad.run(EXPORT)
    company.ad.run(FULL_IMPORT)

    run = company.come("hr")

    assert counts(run) == {"projected": 1, "provisioned": 1, "staged": 1}
    assert identities()["1"].uuid != before.uuid
    assert company.ad.pending() == {"1": ("create", {"id": "1", "first": "Ada"})}


def test_a_person_who_returns_before_the_account_is_deleted_keeps_it() -> None:
    company = Company("authoritative", "any", grace_days=0)
    company.employ()
    company.leave("hr")
    assert company.ad.pending() == {"1": ("delete", {})}

    company.come("hr")

    assert company.ad.pending() == {}
    assert company.ad.account("1").identity == identities()["1"]
    company.ad.run(EXPORT)
    assert company.ad.objects["1"] == {"id": "1", "first": "Ada"}


@PAGE_SIZES
def test_many_identities_are_deleted_in_one_run(page_size: int) -> None:
    company = Company("authoritative", "any", grace_days=0)
    for number in range(1, 6):
        company.hr.put(str(number), first="Ada")
    company.employ()
    company.hr.drop("1", "2", "3", "4", "5")

    run = synchronise(company.hr, page_size=page_size)

    assert counts(run) == {"disconnected": 5, "marked": 5, "removed": 5, "staged": 5, "deleted": 5}
    assert identities().keys() == {"0"}
    assert company.ad.pending() == {str(number): ("delete", {}) for number in range(1, 6)}
