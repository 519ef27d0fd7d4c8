"""Which identity an account belongs to: join rules, projection and scopes of inbound rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from identity.models import IdentityType, SyncRule
from tests.base import fresh

from .world import (
    DELTA_SYNC,
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

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 1000])
ATTRIBUTES = ("id", "first", "last", "mail", "badge", "department")
BY_ID = [[{"account": "id", "identity": "id"}]]
BY_MAIL = [[{"account": "mail", "identity": "mail"}]]
IN_SALES = {"attribute": "department", "operator": "equals", "value": "Sales"}


def people_of_hr(**people: Mapping[str, Any]) -> tuple[System, IdentityType]:
    """Return an HR system, all of whose people have been projected to identities."""
    hr, people_type = System("HR", ATTRIBUTES), identity_type(ATTRIBUTES)
    rule("in", hr, people_type, {name: name for name in ATTRIBUTES if name != "badge"}, join="id")
    for external_id, attrs in people.items():
        hr.put(external_id, **attrs)
    synchronise(hr)
    return hr, people_type


def badges(people: IdentityType, joins: list[list[dict[str, str]]], **fields: Any) -> System:
    """Return a system of badges, which are joined to people."""
    system = System("Badges", ATTRIBUTES)
    rule("in", system, people, {"badge": "badge"}, joins=joins, **fields)
    return system


def synchronise(system: System, run_type: str = DELTA_SYNC, **fields: Any) -> Any:
    system.run(FULL_IMPORT)
    return system.run(run_type, **fields)


def owners(system: System) -> dict[str | None, str | None]:
    """Return the identity of each account, as it is shown."""
    return {key: each.identity.display if each.identity else None for key, each in system.accounts().items()}


# Case 1: no match


@PAGE_SIZES
def test_case_1_an_account_without_a_match_is_projected(page_size: int) -> None:
    hr, people = System("HR"), identity_type()
    rule("in", hr, people, {"id": "id", "first": "first"}, join="id")
    for external_id, first in {"1": "Ada", "2": "Bea", "3": "Cai"}.items():
        hr.put(external_id, first=first)
    hr.run(FULL_IMPORT)

    run = hr.run(FULL_SYNC, page_size=page_size)

    assert (run.status, counts(run)) == ("complete", {"projected": 3})
    assert items(run) == [("1", "projected", ""), ("2", "projected", ""), ("3", "projected", "")]
    assert {name: each.attrs for name, each in identities().items()} == {
        "1": {"id": "1", "first": "Ada"},
        "2": {"id": "2", "first": "Bea"},
        "3": {"id": "3", "first": "Cai"},
    }
    assert [each.join for each in hr.accounts().values()] == ["projected"] * 3
    assert {each.origin for each in identities().values()} == {"projected"}


def test_case_1_an_account_is_not_projected_if_no_rule_creates_identities() -> None:
    _, people = people_of_hr()
    desk = badges(people, BY_ID, creates=False)
    desk.put("9", badge="B9")

    run = synchronise(desk)

    assert (run.status, counts(run), items(run)) == ("complete", {"unchanged": 1}, [])
    assert owners(desk) == {"9": None}
    assert identities() == {}


# Cases 2 to 7: which identities match

PEOPLE = {
    "1": {"first": "Ada", "mail": "ada@x"},
    "2": {"first": "Bea", "mail": "shared@x"},
    "3": {"first": "Cai", "mail": "shared@x"},
    "4": {"first": "Dee"},
}
BY_ID_THEN_MAIL = [*BY_ID, *BY_MAIL]
BY_NAME_AND_MAIL = [[{"account": "mail", "identity": "mail"}, {"account": "first", "identity": "first"}]]


@pytest.mark.parametrize(
    ("joins", "badge", "owner"),
    [
        pytest.param(BY_ID, {"id": "1"}, "1", id="case 2: one match"),
        pytest.param(BY_ID_THEN_MAIL, {"id": "9", "mail": "ada@x"}, "1", id="case 5: no match by join 1"),
        pytest.param(BY_ID_THEN_MAIL, {"id": "4", "mail": "ada@x"}, "4", id="case 5: join 1 comes first"),
        pytest.param(
            [[{"account": "last", "identity": "id"}], *BY_MAIL],
            {"id": "9", "mail": "ada@x"},
            "1",
            id="case 5: join 1 is empty",
        ),
        pytest.param(BY_MAIL, {"id": "9", "mail": "ADA@X "}, "1", id="case 6: case differs"),
        pytest.param(
            BY_NAME_AND_MAIL, {"id": "9", "mail": "shared@x", "first": "cai"}, "3", id="two conditions"
        ),
    ],
)
def test_an_account_with_one_match_is_joined(
    joins: list[list[dict[str, str]]], badge: dict[str, str], owner: str
) -> None:
    _, people = people_of_hr(**PEOPLE)
    desk = badges(people, joins)
    desk.put(badge["id"], **{name: value for name, value in badge.items() if name != "id"}, badge="B1")

    run = synchronise(desk)

    assert (run.status, counts(run)) == ("complete", {"joined": 1, "flowed": 1})
    assert sorted(items(run)) == sorted([(badge["id"], "joined", ""), (owner, "flowed", "")])
    assert owners(desk) == {badge["id"]: owner}
    assert desk.account(badge["id"]).join == "joined"
    assert identities()[owner].attrs["badge"] == "B1"
    assert len(identities()) == 4


@pytest.mark.parametrize(
    ("joins", "badge"),
    [
        pytest.param(BY_MAIL, {}, id="case 7: both are empty"),
        pytest.param(BY_MAIL, {"mail": " "}, id="case 7: nothing but a space"),
        pytest.param(BY_NAME_AND_MAIL, {"first": "Dee"}, id="case 7: one of two conditions"),
        pytest.param(BY_NAME_AND_MAIL, {"first": "Bea", "mail": "ada@x"}, id="both conditions, other people"),
    ],
)
def test_an_account_without_a_key_does_not_match(
    joins: list[list[dict[str, str]]], badge: dict[str, str]
) -> None:
    _, people = people_of_hr(**PEOPLE)
    desk = badges(people, joins, creates=False)
    desk.put("9", badge="B1", **badge)

    run = synchronise(desk)

    assert (run.status, counts(run)) == ("complete", {"unchanged": 1})
    assert owners(desk) == {"9": None}


def test_case_7_an_account_without_a_key_is_projected() -> None:
    _, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_MAIL)
    desk.put("9", badge="B1")

    assert counts(synchronise(desk)) == {"projected": 1}
    assert len(identities()) == 5


# Cases 3, 4 and 8: matches that cannot be used


def test_case_3_two_matches_are_ambiguous_and_nothing_is_projected() -> None:
    _hr, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_MAIL)
    desk.put("8", badge="B8", mail="shared@x")
    desk.put("9", badge="B9", mail="ada@x")

    run = synchronise(desk)

    assert (run.status, counts(run)) == ("complete_with_warning", {"joined": 1, "flowed": 1, "failed": 1})
    assert ("8", "", "ambiguous_match") in items(run)
    assert owners(desk) == {"8": None, "9": "1"}
    assert len(identities()) == 4


def test_case_3_an_ambiguous_match_is_tried_again_by_the_next_synchronisation() -> None:
    hr, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_MAIL)
    desk.put("8", badge="B8", mail="shared@x")
    assert synchronise(desk).status == "failed_with_error"
    hr.change("2", mail="bea@x")
    synchronise(hr)

    run = desk.run(DELTA_SYNC)

    assert (run.status, counts(run)) == ("complete", {"joined": 1, "flowed": 1})
    assert owners(desk) == {"8": "3"}


def test_case_4_a_match_that_has_an_account_already_is_not_joined_again() -> None:
    _, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_MAIL)
    desk.put("8", badge="B8", mail="ada@x")
    synchronise(desk)
    desk.put("9", badge="B9", mail="ada@x")

    run = synchronise(desk)

    assert (run.status, counts(run)) == ("failed_with_error", {"failed": 1})
    assert items(run) == [("9", "", "already_joined")]
    assert owners(desk) == {"8": "1", "9": None}
    assert identities()["1"].attrs["badge"] == "B8"
    assert len(identities()) == 4


@PAGE_SIZES
def test_case_8_of_two_accounts_with_one_key_the_first_gets_the_identity(page_size: int) -> None:
    _, people = people_of_hr()
    desk = System("Badges", ATTRIBUTES)
    rule("in", desk, people, {"id": "id", "mail": "mail", "badge": "badge"}, joins=BY_MAIL)
    desk.put("8", badge="B8", mail="ada@x")
    desk.put("9", badge="B9", mail="ADA@x")

    run = synchronise(desk, page_size=page_size)

    assert (run.status, counts(run)) == ("complete_with_warning", {"projected": 1, "failed": 1})
    assert sorted(items(run)) == [("8", "projected", ""), ("9", "", "already_joined")]
    assert owners(desk) == {"8": "8", "9": None}
    assert len(identities()) == 1


@PAGE_SIZES
@pytest.mark.parametrize(("successor", "gone"), [("7", "8"), ("8", "7")])
def test_an_account_takes_the_place_of_one_that_is_gone(page_size: int, successor: str, gone: str) -> None:
    """Accounts that are gone are settled first, so that it makes no difference which one is older."""
    _, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_MAIL, creates=False)
    for external_id in ("7", "8"):
        desk.put(external_id, badge=external_id, mail="ada@x" if external_id == gone else None)
    synchronise(desk)
    assert owners(desk) == {gone: "1", successor: None}
    desk.change(successor, mail="ada@x")
    desk.drop(gone)

    run = synchronise(desk, page_size=page_size)

    assert run.status == "complete"
    assert sorted(items(run)) == sorted(
        [(gone, "disconnected", ""), (successor, "joined", ""), ("1", "flowed", "")]
    )
    assert owners(desk) == {successor: "1"}
    assert identities()["1"].attrs["badge"] == successor


@PAGE_SIZES
@pytest.mark.parametrize("old", ["1", "9"])
@pytest.mark.parametrize("deletion", ["authoritative", "last_connector", "manual"])
def test_a_new_id_with_the_old_key_keeps_the_identity(page_size: int, old: str, deletion: str) -> None:
    hr = System("HR", ATTRIBUTES)
    people = identity_type(ATTRIBUTES, deletion=deletion, sources=[hr])
    rule("in", hr, people, {"id": "id", "mail": "mail"}, joins=BY_MAIL)
    hr.put(old, mail="ada@x")
    synchronise(hr)
    (before,) = identities().values()
    hr.drop(old)
    hr.put("5", mail="ada@x")

    run = synchronise(hr, page_size=page_size)

    assert run.status == "complete"
    (after,) = identities().values()
    assert (after.uuid, after.attrs, after.delete_after) == (before.uuid, {"id": "5", "mail": "ada@x"}, None)
    assert owners(hr) == {"5": "5"}


# Cases 18 and 19: scopes


def sales_people(**fields: Any) -> tuple[System, SyncRule]:
    hr, people = System("HR", ATTRIBUTES), identity_type(ATTRIBUTES)
    made = rule("in", hr, people, {"id": "id", "first": "first"}, join="id", scope=IN_SALES, **fields)
    hr.put("1", first="Ada", department="Sales")
    hr.put("2", first="Bea", department="IT")
    return hr, made


def test_case_18_an_account_that_enters_the_scope_is_projected() -> None:
    hr, _ = sales_people()
    assert counts(synchronise(hr)) == {"projected": 1, "unchanged": 1}
    assert owners(hr) == {"1": "1", "2": None}
    hr.change("2", department="Sales")

    run = synchronise(hr)

    assert (counts(run), items(run)) == ({"projected": 1}, [("2", "projected", "")])
    assert owners(hr) == {"1": "1", "2": "2"}


def test_case_18_an_account_that_enters_the_scope_is_joined_if_it_matches() -> None:
    _, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_ID, scope=IN_SALES)
    desk.put("1", badge="B1")
    synchronise(desk)
    desk.change("1", department="Sales")

    assert counts(synchronise(desk)) == {"joined": 1, "flowed": 1}
    assert owners(desk) == {"1": "1"}


def test_case_18_a_changed_scope_applies_with_the_next_full_synchronisation() -> None:
    hr, made = sales_people()
    synchronise(hr)
    SyncRule.objects.filter(pk=made.pk).update(scope={})

    assert counts(hr.run(DELTA_SYNC)) == {}
    assert counts(hr.run(FULL_SYNC)) == {"projected": 1, "unchanged": 1}


def test_case_19_an_account_that_leaves_the_scope_is_disconnected() -> None:
    hr, _ = sales_people()
    synchronise(hr)
    hr.change("1", department="IT", first="Ann")

    run = synchronise(hr)

    assert counts(run) == {"disconnected": 1, "flowed": 1}
    account = hr.account("1")
    assert (account.status, account.identity, account.join) == ("present", None, "")
    (left,) = identities().values()
    assert left.attrs == {}


def test_case_19_an_account_that_leaves_the_scope_is_retained_without_a_flow() -> None:
    hr, _ = sales_people(out_of_scope="keep")
    synchronise(hr)
    hr.change("1", department="IT", first="Ann")

    run = synchronise(hr)

    assert (run.status, counts(run)) == ("complete", {"unchanged": 1})
    assert owners(hr)["1"] == "1"
    assert identities()["1"].attrs == {"id": "1", "first": "Ada"}


def test_case_19_a_retained_account_flows_again_when_it_is_back_in_the_scope() -> None:
    hr, _ = sales_people(out_of_scope="keep")
    synchronise(hr)
    hr.change("1", department="IT", first="Ann")
    synchronise(hr)
    hr.change("1", department="Sales")

    assert counts(synchronise(hr)) == {"flowed": 1}
    assert identities()["1"].attrs == {"id": "1", "first": "Ann"}


def test_case_19_an_account_stays_joined_as_long_as_one_rule_has_it_in_scope() -> None:
    hr, _ = sales_people()
    people = IdentityType.objects.get()
    rule("in", hr, people, {"last": "last"}, join="id", scope={"attribute": "last", "operator": "is_set"})
    hr.change("1", last="Bell")
    synchronise(hr)
    hr.change("1", department="IT")

    assert counts(synchronise(hr)) == {"flowed": 1}
    account = hr.account("1")
    assert account.identity is not None
    assert account.identity.attrs == {"last": "Bell"}


@pytest.mark.parametrize(
    ("out_of_scope", "joined", "left"),
    [
        pytest.param("disconnect", [], {}, id="case 19: disconnect"),
        pytest.param("keep", ["1"], {"id": "1", "first": "Ada"}, id="case 19: keep"),
    ],
)
def test_an_account_that_is_gone_is_treated_as_one_that_leaves_the_scope(
    out_of_scope: str, joined: list[str], left: dict[str, str]
) -> None:
    hr, people = System("HR"), identity_type()
    rule("in", hr, people, {"id": "id", "first": "first"}, join="id", out_of_scope=out_of_scope)
    hr.put("1", first="Ada")
    hr.put("2")
    synchronise(hr)
    identity = identities()["1"]
    hr.drop("1")

    synchronise(hr)

    assert [account.external_id for account in identity.accounts.all()] == joined
    assert fresh(identity).attrs == left


def kept_account_is_gone() -> System:
    """Return a system of which an account stays joined to its identity although it is gone."""
    hr, people = System("HR", ATTRIBUTES), identity_type(ATTRIBUTES)
    rule("in", hr, people, {"id": "id", "mail": "mail"}, joins=BY_MAIL, out_of_scope="keep")
    hr.put("1", mail="ada@x")
    hr.put("2", mail="bea@x")
    synchronise(hr)
    hr.drop("1")
    synchronise(hr)
    assert (hr.account("1").status, owners(hr)) == ("obsolete", {"1": "1", "2": "2"})
    return hr


def test_case_19_a_retained_account_that_returns_flows_again() -> None:
    hr = kept_account_is_gone()
    hr.put("1", mail="ann@x")

    run = synchronise(hr)

    assert (run.status, counts(run)) == ("complete", {"flowed": 1})
    assert hr.account("1").status == "present"
    assert identities()["1"].attrs == {"id": "1", "mail": "ann@x"}


@PAGE_SIZES
def test_case_19_a_retained_account_that_returns_too_late_finds_its_place_taken(page_size: int) -> None:
    hr = kept_account_is_gone()
    hr.put("7", mail="ada@x")
    synchronise(hr, page_size=page_size)
    assert owners(hr) == {"1": "7", "2": "2", "7": "7"}
    hr.put("1", mail="ada@x")

    imported = hr.run(FULL_IMPORT, page_size=page_size)
    run = hr.run(DELTA_SYNC, page_size=page_size)

    assert (imported.status, hr.account("1").status) == ("complete", "present")
    assert (run.status, items(run)) == ("failed_with_error", [("1", "", "already_joined")])
    assert owners(hr) == {"1": None, "2": "2", "7": "7"}
    assert identities()["7"].attrs == {"id": "7", "mail": "ada@x"}


# Case 22: outbound rules find accounts


def test_case_22_an_account_that_exists_is_joined_and_not_created() -> None:
    hr, people = people_of_hr(**{"1": {"first": "Ada", "mail": "ada@x"}})
    ad = System("AD", ATTRIBUTES)
    rule("out", ad, people, {"id": "id", "mail": "mail"}, joins=BY_MAIL)
    ad.put("u77", mail="ada@x")
    ad.run(FULL_IMPORT)

    run = hr.run(FULL_SYNC)

    assert counts(run) == {"joined": 1}
    assert items(run) == [("u77", "joined", "")]
    assert ad.pending() == {}
    assert (owners(ad), ad.account("u77").join) == ({"u77": "1"}, "provisioned")


# The order of runs


def two_sources(page_size: int, order: tuple[str, ...]) -> tuple[Any, Any]:
    """Run two sources of the same people in an order; return the identities and what AD should get."""
    systems = {"HR": System("HR", ATTRIBUTES), "Badges": System("Badges", ATTRIBUTES)}
    ad, people = System("AD", ATTRIBUTES), identity_type(ATTRIBUTES)
    hr, desk = systems.values()
    rule(
        "in", hr, people, {"id": "id", "first": "first", "mail": {"source": "mail", "priority": 2}}, join="id"
    )
    rule(
        "in",
        desk,
        people,
        {
            "id": {"source": "id", "priority": 101},
            "badge": "badge",
            "mail": {"source": "mail", "priority": 1},
        },
        join="id",
    )
    rule("out", ad, people, {"id": "id", "first": "first", "mail": "mail", "badge": "badge"})
    for external_id, attrs in PEOPLE.items():
        hr.put(external_id, **attrs)
    desk.put("1", badge="B1", mail="desk@x")
    desk.put("3", badge="B3")
    desk.put("8", badge="B8", mail="guest@x")
    for name in order:
        synchronise(systems[name], page_size=page_size)
    return {name: each.attrs for name, each in identities().items()}, ad.pending()


@PAGE_SIZES
@pytest.mark.parametrize(
    "order", [("HR", "Badges"), ("Badges", "HR"), ("HR", "Badges", "HR"), ("Badges", "HR", "Badges", "HR")]
)
def test_the_order_of_runs_makes_no_difference(page_size: int, order: tuple[str, ...]) -> None:
    found, pending = two_sources(page_size, order)

    expected = {
        "1": {"id": "1", "first": "Ada", "mail": "desk@x", "badge": "B1"},
        "2": {"id": "2", "first": "Bea", "mail": "shared@x"},
        "3": {"id": "3", "first": "Cai", "mail": "shared@x", "badge": "B3"},
        "4": {"id": "4", "first": "Dee"},
        "8": {"id": "8", "mail": "guest@x", "badge": "B8"},
    }
    assert found == expected
    assert pending == {key: ("create", attrs) for key, attrs in expected.items()}


# The outcome of a synchronisation


def test_one_bad_account_among_a_hundred_unchanged_ones_is_a_warning() -> None:
    hr, people = System("HR"), identity_type()
    rule("in", hr, people, {"id": "id", "mail": "mail"}, joins=BY_MAIL)
    for number in range(100):
        hr.put(f"{number:03}", mail=f"{number}@x")
    synchronise(hr)
    hr.put("bad", mail="1@x")
    hr.run(FULL_IMPORT)

    run = hr.run(FULL_SYNC)

    assert (run.status, counts(run)) == ("complete_with_warning", {"unchanged": 100, "failed": 1})
    assert items(run) == [("bad", "", "already_joined")]
    assert (run.items_total, run.items_failed) == (101, 1)


def test_a_synchronisation_in_which_every_account_is_bad_fails() -> None:
    _hr, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_MAIL)
    desk.put("8", mail="shared@x")
    desk.put("9", mail="shared@x")

    run = synchronise(desk)

    assert (run.status, counts(run)) == ("failed_with_error", {"failed": 2})
    assert items(run) == [("8", "", "ambiguous_match"), ("9", "", "ambiguous_match")]


@pytest.mark.parametrize(("setting", "expected"), [("changes", 2), ("errors", 1)])
def test_the_profile_decides_whether_changes_become_items(setting: str, expected: int) -> None:
    _hr, people = people_of_hr(**PEOPLE)
    desk = badges(people, BY_MAIL)
    desk.put("8", mail="shared@x")
    desk.put("9", mail="ada@x")

    run = synchronise(desk, items=setting)

    assert len(items(run)) == expected
    assert counts(run) == {"joined": 1, "failed": 1}
