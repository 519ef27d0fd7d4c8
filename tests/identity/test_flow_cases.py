"""Which values identities get from their accounts, which account wins, and where the values come from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from activities.models import Activity
from identity.models import Account, ConnectedSystem, Flow, Identity, IdentityType, PendingExport, SyncRule

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
Flows = Mapping[str, str | Mapping[str, Any]]


class Sources:
    """Two sources of the same people: HR, and a telephone system."""

    def __init__(self, hr: Flows, phone: Flows, **fields: Any) -> None:
        self.hr, self.phone = System("HR"), System("Phone")
        self.people = identity_type()
        self.hr_rule = rule("in", self.hr, self.people, {"id": "id", **hr}, join="id", **fields)
        self.phone_rule = rule("in", self.phone, self.people, phone, join="id", creates=False)

    def put(self, hr: Mapping[str, Any], phone: Mapping[str, Any]) -> None:
        self.hr.put("1", **hr)
        self.phone.put("1", **phone)

    def run(self) -> None:
        synchronise(self.hr)
        synchronise(self.phone)

    @property
    def identity(self) -> Identity:
        return Identity.objects.get()


def synchronise(system: System, **fields: Any) -> Activity:
    system.run(FULL_IMPORT)
    return system.run(DELTA_SYNC, **fields)


def lines(identity: Identity) -> dict[str, int]:
    """Return by attribute the flow that its value comes from."""
    return {name: line["flow"] for name, line in identity.lineage.items()}


def from_hr(**fields: Any) -> dict[str, Any]:
    return {"source": "mail", "priority": 1, **fields}


def from_phone(**fields: Any) -> dict[str, Any]:
    return {"source": "mail", "priority": 2, **fields}


# Cases 9 to 11: what one flow gives


@pytest.mark.parametrize(
    ("flow", "attrs", "mail"),
    [
        pytest.param("mail", {"mail": "ada@x"}, "ada@x", id="an attribute"),
        pytest.param({"expression": 'lower(first) + "@x"'}, {"first": "Ada"}, "ada@x", id="an expression"),
        pytest.param({"expression": 'lower(first) + "@x"'}, {}, None, id="case 9: expression null"),
        pytest.param({"expression": 'coalesce(mail, "none@x")'}, {}, "none@x", id="case 9: coalesce"),
        pytest.param("phones", {"phones": ["7"]}, "7", id="case 11: one of several values"),
        pytest.param({"expression": "first(phones)"}, {"phones": ["7", "8"]}, "7", id="case 11: the first"),
        pytest.param("phones", {}, None, id="case 11: no value"),
    ],
)
def test_a_flow_gives_a_value(flow: str | dict[str, Any], attrs: dict[str, Any], mail: str | None) -> None:
    hr, people = System("HR"), identity_type()
    rule("in", hr, people, {"id": "id", "mail": flow})
    hr.put("1", **attrs)

    run = synchronise(hr)

    assert (run.status, counts(run)) == ("complete", {"projected": 1})
    assert identities()["1"].attrs == {"id": "1", **({"mail": mail} if mail else {})}


def test_a_single_value_becomes_a_list_if_the_target_has_several_values() -> None:
    hr, people = System("HR"), identity_type()
    rule("in", hr, people, {"id": "id", "phones": "mail"})
    hr.put("1", mail="ada@x")

    synchronise(hr)

    assert identities()["1"].attrs["phones"] == ["ada@x"]


TWO_DATES = {"phones": ["2026-01-31", "2026-12-31"]}
NOT_A_DATE = {"expression": 'date(last, "%d.%m.%Y")'}
FAILURES = pytest.mark.parametrize(
    ("flow", "attrs", "error_type"),
    [
        pytest.param(NOT_A_DATE, {"last": "soon"}, "expression_error", id="case 10: expression error"),
        pytest.param("phones", TWO_DATES, "multi_to_single", id="case 11: multi to single"),
        pytest.param({"expression": "phones"}, TWO_DATES, "multi_to_single", id="case 11: expression"),
        pytest.param("last", {"last": "soon"}, "bad_value", id="a text that is no date"),
    ],
)


@FAILURES
def test_a_flow_that_fails_projects_nothing(flow: Any, attrs: dict[str, Any], error_type: str) -> None:
    hr, people = System("HR"), identity_type()
    rule("in", hr, people, {"id": "id", "ends": flow})
    hr.put("1", **attrs)
    hr.put("2")

    run = synchronise(hr)

    assert (run.status, counts(run)) == ("complete_with_warning", {"projected": 1, "failed": 1})
    assert sorted(items(run)) == [("1", "", error_type), ("2", "projected", "")]
    assert run.items.get(name="1").message.startswith("ends: ")
    assert identities().keys() == {"2"}
    assert (hr.account("1").identity, hr.account("1").is_dirty) == (None, True)


@FAILURES
@PAGE_SIZES
def test_a_flow_that_fails_leaves_the_identity_and_its_exports_untouched(
    flow: Any, attrs: dict[str, Any], error_type: str, page_size: int
) -> None:
    hr, ad, people = System("HR"), System("AD"), identity_type()
    rule("in", hr, people, {"id": "id", "first": "first", "ends": flow})
    rule("out", ad, people, {"id": "id", "first": "first"})
    hr.put("1", first="Ada")
    hr.put("2", first="Bea")
    synchronise(hr)
    hr.change("1", first="Ann", **attrs)
    hr.change("2", first="Bo")

    run = synchronise(hr, page_size=page_size)

    assert (run.status, counts(run)) == ("complete_with_warning", {"flowed": 1, "staged": 1, "failed": 1})
    assert ("1", "", error_type) in items(run)
    assert {name: each.attrs for name, each in identities().items()} == {
        "1": {"id": "1", "first": "Ada"},
        "2": {"id": "2", "first": "Bo"},
    }
    assert ad.pending() == {
        "1": ("create", {"id": "1", "first": "Ada"}),
        "2": ("create", {"id": "2", "first": "Bo"}),
    }


def test_a_failed_account_is_tried_again_when_its_value_is_corrected() -> None:
    hr, people = System("HR"), identity_type()
    rule("in", hr, people, {"id": "id", "ends": NOT_A_DATE})
    hr.put("1", last="soon")
    assert synchronise(hr).status == "failed_with_error"
    hr.change("1", last="31.12.2026")

    assert counts(synchronise(hr)) == {"projected": 1}
    assert identities()["1"].attrs == {"id": "1", "ends": "2026-12-31"}


# Cases 12 to 17: which of two accounts wins


@pytest.mark.parametrize(
    ("hr", "phone", "expected"),
    [
        pytest.param(["7", "8"], ["8", "9"], ["7", "8", "9"], id="case 12: union"),
        pytest.param(["8"], [], ["8"], id="case 12: one source"),
        pytest.param([], ["9"], ["9"], id="case 12: the other source"),
        pytest.param([], [], None, id="case 12: no source"),
    ],
)
def test_flows_that_merge_give_the_values_of_all_sources(
    hr: list[str], phone: list[str], expected: list[str] | None
) -> None:
    merged = {"source": "phones", "merges": True}
    sources = Sources({"phones": {**merged, "priority": 1}}, {"phones": {**merged, "priority": 2}})
    sources.put({"phones": hr or None}, {"phones": phone or None})

    sources.run()

    assert sources.identity.attrs.get("phones") == expected


def test_case_12_a_value_leaves_the_union_with_its_source() -> None:
    merged = {"source": "phones", "merges": True}
    sources = Sources({"phones": {**merged, "priority": 1}}, {"phones": {**merged, "priority": 2}})
    sources.put({"phones": ["7", "8"]}, {"phones": ["8", "9"]})
    sources.run()
    sources.phone.drop("1")
    sources.phone.put("2")

    synchronise(sources.phone)

    assert sources.identity.attrs["phones"] == ["7", "8"]


@pytest.mark.parametrize(
    ("hr_flow", "phone_flow", "hr", "phone", "expected", "winner"),
    [
        pytest.param({}, {}, "hr@x", "tel@x", "hr@x", "hr", id="case 13: the first wins"),
        pytest.param(
            {"priority": 3}, {}, "hr@x", "tel@x", "tel@x", "phone", id="case 13: the other one is first"
        ),
        pytest.param({}, {}, None, "tel@x", "tel@x", "phone", id="case 14: winner empty"),
        pytest.param({}, {}, None, None, None, None, id="case 14: both empty"),
        pytest.param({"null_is_value": True}, {}, None, "tel@x", None, None, id="case 15: empty is a value"),
        pytest.param(
            {}, {"null_is_value": True}, "hr@x", None, "hr@x", "hr", id="case 15: the loser is empty"
        ),
        pytest.param(
            {"null_is_value": True}, {}, "hr@x", "tel@x", "hr@x", "hr", id="case 15: the winner has a value"
        ),
    ],
)
def test_the_first_flow_with_a_value_wins(
    hr_flow: dict[str, Any],
    phone_flow: dict[str, Any],
    hr: str | None,
    phone: str | None,
    expected: str | None,
    winner: str | None,
) -> None:
    sources = Sources({"mail": from_hr(**hr_flow)}, {"mail": from_phone(**phone_flow)})
    sources.put({"mail": hr}, {"mail": phone})

    sources.run()

    identity = sources.identity
    assert identity.attrs.get("mail") == expected
    systems = {"hr": sources.hr.row.pk, "phone": sources.phone.row.pk, None: None}
    assert identity.lineage.get("mail", {}).get("system") == systems[winner]


def test_case_15_an_empty_value_clears_a_value_that_was_there() -> None:
    sources = Sources({"mail": from_hr(null_is_value=True)}, {"mail": from_phone()})
    sources.put({"mail": "hr@x"}, {"mail": "tel@x"})
    sources.run()
    sources.hr.change("1", mail=None)

    run = synchronise(sources.hr)

    assert counts(run) == {"flowed": 1}
    assert run.items.get().data == {"mail": ["hr@x", None]}
    assert sources.identity.attrs == {"id": "1"}


RUNS = [("HR import", "HR sync"), ("Phone import", "Phone sync")]
ORDERS = [
    order
    for order in itertools.permutations(["HR import", "HR sync", "Phone import", "Phone sync"])
    if all(order.index(first) < order.index(second) for first, second in RUNS)
]


@pytest.mark.parametrize("order", [pytest.param(each, id=f"case 13: {', '.join(each)}") for each in ORDERS])
@pytest.mark.parametrize("is_known", [False, True])
def test_any_order_of_runs_has_the_same_winner(order: tuple[str, ...], is_known: bool) -> None:
    sources = Sources(
        {"mail": from_hr(), "first": from_hr(source="first", priority=2)},
        {"mail": from_phone(), "first": from_phone(source="first", priority=1)},
    )
    sources.phone_rule.creates = True
    sources.phone_rule.save()
    Flow.objects.create(rule=sources.phone_rule, target="id", source="id", priority=101)
    if is_known:
        sources.put({"mail": "old@x", "first": "Old"}, {"mail": "old@x", "first": "Old"})
        sources.run()
    sources.put({"mail": "hr@x", "first": "Ada"}, {"mail": "tel@x", "first": "Adah"})
    runs = {
        "HR import": lambda: sources.hr.run(FULL_IMPORT),
        "HR sync": lambda: sources.hr.run(DELTA_SYNC),
        "Phone import": lambda: sources.phone.run(FULL_IMPORT),
        "Phone sync": lambda: sources.phone.run(DELTA_SYNC),
    }

    for name in order:
        assert runs[name]().status == "complete"

    identity = sources.identity
    assert identity.attrs == {"id": "1", "mail": "hr@x", "first": "Adah"}
    systems = {name: line["system"] for name, line in identity.lineage.items()}
    hr, phone = sources.hr.row.pk, sources.phone.row.pk
    assert systems == {"id": hr, "mail": hr, "first": phone}


def test_case_16_when_the_winner_leaves_the_next_one_wins_in_the_same_run() -> None:
    sources = Sources({"mail": from_hr(priority=3)}, {"mail": from_phone(priority=1), "first": "first"})
    sources.put({"mail": "hr@x"}, {"mail": "tel@x", "first": "Ada"})
    sources.run()
    assert sources.identity.attrs == {"id": "1", "mail": "tel@x", "first": "Ada"}
    sources.phone.drop("1")
    sources.phone.put("2")

    run = synchronise(sources.phone)

    assert counts(run) == {"disconnected": 1, "flowed": 1, "removed": 1, "unchanged": 1}
    assert sources.identity.attrs == {"id": "1", "mail": "hr@x"}


def test_case_16_when_the_winner_leaves_its_scope_the_next_one_wins() -> None:
    in_scope = {"attribute": "department", "operator": "is_empty"}
    sources = Sources({"mail": from_hr()}, {"mail": from_phone()})
    SyncRule.objects.filter(pk=sources.hr_rule.pk).update(scope=in_scope)
    Flow.objects.create(rule=sources.phone_rule, target="id", source="id", priority=101)
    sources.put({"mail": "hr@x"}, {"mail": "tel@x"})
    sources.run()
    sources.hr.change("1", department="Sales")

    run = synchronise(sources.hr)

    assert counts(run) == {"disconnected": 1, "flowed": 1}
    assert sources.identity.attrs == {"id": "1", "mail": "tel@x"}


def test_case_17_the_same_value_of_a_new_winner_changes_only_where_it_comes_from() -> None:
    sources = Sources({"mail": from_hr(priority=3)}, {"mail": from_phone(priority=1)})
    ad = System("AD")
    rule("out", ad, sources.people, {"id": "id", "mail": "mail"})
    sources.put({"mail": "ada@x"}, {"mail": "ada@x"})
    sources.run()
    ad.run(EXPORT)
    ad.run(FULL_IMPORT)
    before = sources.identity
    assert before.lineage["mail"]["system"] == sources.phone.row.pk
    sources.phone.drop("1")
    sources.phone.put("2")

    run = synchronise(sources.phone)

    after = sources.identity
    assert counts(run) == {"disconnected": 1, "removed": 1, "unchanged": 1}
    assert after.attrs == before.attrs
    assert after.lineage["mail"]["system"] == sources.hr.row.pk
    assert after.lineage["mail"]["run"] == run.pk
    assert ad.pending() == {}


# Where a value comes from


def test_the_lineage_names_the_rule_its_revision_the_account_and_the_run() -> None:
    sources = Sources({"mail": from_hr()}, {"mail": from_phone()})
    SyncRule.objects.filter(pk=sources.hr_rule.pk).update(revision=7)
    sources.put({"mail": "hr@x"}, {"mail": "tel@x"})
    sources.hr.run(FULL_IMPORT)

    run = sources.hr.run(DELTA_SYNC)

    assert sources.identity.lineage["mail"] == {
        "flow": Flow.objects.get(rule=sources.hr_rule, target="mail").pk,
        "rule": sources.hr_rule.pk,
        "revision": 7,
        "account": sources.hr.account("1").pk,
        "system": sources.hr.row.pk,
        "run": run.pk,
    }


def test_the_lineage_keeps_the_run_that_set_the_value() -> None:
    sources = Sources({"mail": from_hr()}, {"mail": from_phone()})
    sources.put({"mail": "hr@x"}, {"mail": "tel@x"})
    sources.run()
    before = sources.identity.lineage
    sources.hr.change("1", last="Bell")

    synchronise(sources.hr)

    assert sources.identity.lineage == before


# Values that stay although no account contributes


def test_a_value_is_cleared_when_its_account_leaves() -> None:
    sources = Sources({}, {"mail": from_phone()})
    sources.put({}, {"mail": "tel@x"})
    sources.run()
    sources.phone.drop("1")
    sources.phone.put("2")

    assert counts(synchronise(sources.phone)) == {
        "disconnected": 1,
        "flowed": 1,
        "removed": 1,
        "unchanged": 1,
    }
    assert sources.identity.attrs == {"id": "1"}


def does_not_recall(sources: Sources) -> None:
    SyncRule.objects.filter(pk=sources.phone_rule.pk).update(recalls=False)


def is_rebuilding(sources: Sources) -> None:
    ConnectedSystem.objects.filter(pk=sources.phone.row.pk).update(status="rebuilding")


def has_grace(sources: Sources) -> None:
    IdentityType.objects.update(deletion="authoritative", sources_mode="any", grace_days=30)
    sources.people.sources.set([sources.phone.row])


@pytest.mark.parametrize("because", [does_not_recall, is_rebuilding, has_grace])
def test_a_value_is_kept_when_its_account_leaves(because: Any) -> None:
    sources = Sources({}, {"mail": from_phone()})
    sources.put({}, {"mail": "tel@x"})
    sources.run()
    because(sources)
    sources.phone.drop("1")
    sources.phone.put("2")

    run = synchronise(sources.phone)

    assert run.status == "complete"
    assert sources.identity.attrs == {"id": "1", "mail": "tel@x"}
    assert not Account.objects.filter(system=sources.phone.row, external_id="1").exists()


@pytest.mark.parametrize("because", [does_not_recall, is_rebuilding])
def test_a_value_that_is_kept_gives_way_to_another_account(because: Any) -> None:
    sources = Sources({"mail": from_hr(priority=3)}, {"mail": from_phone(priority=1)})
    sources.put({}, {"mail": "tel@x"})
    sources.run()
    because(sources)
    sources.phone.drop("1")
    sources.phone.put("2")
    synchronise(sources.phone)
    sources.hr.change("1", mail="hr@x")

    synchronise(sources.hr)

    assert sources.identity.attrs == {"id": "1", "mail": "hr@x"}


def test_a_value_set_by_hand_is_kept_where_no_flow_leads() -> None:
    sources = Sources({}, {})
    sources.put({}, {})
    sources.run()
    identity = sources.identity
    Identity.objects.update(
        attrs={**identity.attrs, "last": "Bell"}, lineage={**identity.lineage, "last": {"by": "ada"}}
    )
    sources.hr.change("1", first="Ada")

    synchronise(sources.hr)

    assert sources.identity.attrs == {"id": "1", "last": "Bell"}


# Case 39: what is set once


def test_case_39_an_inbound_flow_only_on_creation_keeps_its_first_value() -> None:
    sources = Sources({"mail": from_hr(when="create")}, {})
    sources.put({"mail": "first@x"}, {})
    sources.run()
    sources.hr.change("1", mail="second@x")

    synchronise(sources.hr)

    assert sources.identity.attrs == {"id": "1", "mail": "first@x"}


def test_case_39_an_inbound_flow_only_on_creation_does_nothing_to_an_identity_that_exists() -> None:
    sources = Sources({}, {"mail": from_phone(when="create")})
    sources.put({}, {"mail": "tel@x"})

    sources.run()

    assert sources.identity.attrs == {"id": "1"}


# Case 52: a second full synchronisation


@PAGE_SIZES
def test_case_52_a_second_full_synchronisation_changes_nothing(page_size: int) -> None:
    sources = Sources(
        {"mail": from_hr(), "manager": "manager", "last": {"expression": "unique(lower(first))"}},
        {"phones": {"source": "phones", "merges": True}, "mail": from_phone()},
    )
    ad = System("AD")
    rule(
        "out",
        ad,
        sources.people,
        {"id": "id", "mail": "mail", "manager": "manager", "first": {"expression": "unique(mail)"}},
        deprovision="delete",
    )
    for external_id, manager in {"1": "2", "2": "1", "3": "1", "4": "99"}.items():
        sources.hr.put(external_id, first="Ada", mail=f"{external_id}@x", manager=manager)
        sources.phone.put(external_id, phones=[external_id, "0"])
    sources.phone.put("5", phones=["5"])
    sources.run()
    sources.hr.drop("4")
    synchronise(sources.hr)
    before = everything()

    runs = [system.run(FULL_SYNC, page_size=page_size) for system in (sources.hr, sources.phone, ad)]

    assert [counts(run) for run in runs] == [{"unchanged": 3}, {"unchanged": 5}, {"unchanged": 4}]
    assert [items(run) for run in runs] == [[], [], []]
    assert everything() == before


def everything() -> list[Any]:
    return [
        list(model._default_manager.order_by("pk").values()) for model in (Account, Identity, PendingExport)
    ]
