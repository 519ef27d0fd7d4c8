"""Which accounts identities get in other systems, what is staged for them, and what an export sends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from activities.models import Activity
from identity.connectors.connector import Result
from identity.models import Attribute, ConnectedSystem, PendingExport, SyncRule
from tests.base import NOW

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
STAFF = {"attribute": "department", "operator": "not_equals", "value": "Left"}
BY_MAIL = [[{"account": "mail", "identity": "mail"}]]
ADA = {"id": "1", "first": "Ada", "mail": "ada@x"}
Flows = Mapping[str, str | Mapping[str, Any]]


class Company:
    """People of an HR system, who get accounts in AD."""

    def __init__(self, flows: Flows | None = None, *, confirms: bool = False, **fields: Any) -> None:
        self.hr, self.ad = System("HR"), System("AD", confirms=confirms)
        self.people = identity_type()
        names = ("id", "first", "last", "department", "mail", "phones", "ends")
        rule("in", self.hr, self.people, {name: name for name in names}, join="id")
        usual = {"id": "id", "first": "first", "mail": "mail"}
        self.rule = rule("out", self.ad, self.people, {**usual, **(flows or {})}, **fields)

    def employ(self, external_id: str = "1", **attrs: Any) -> None:
        """Add or change one person, and synchronise."""
        self.hr.put(external_id, **{"first": "Ada", "mail": "ada@x"} | attrs)
        self.synchronise()

    def synchronise(self, **fields: Any) -> Activity:
        self.hr.run(FULL_IMPORT)
        return self.hr.run(DELTA_SYNC, **fields)

    def export(self) -> Activity:
        """Export, and confirm this by an import."""
        run = self.ad.run(EXPORT)
        self.ad.run(FULL_IMPORT)
        return run


def employed(flows: Flows | None = None, **fields: Any) -> Company:
    """Return a company with one employee, whose account has been created and imported."""
    company = Company(flows, **fields)
    company.employ()
    company.export()
    assert (company.ad.objects, company.ad.pending()) == ({"1": ADA}, {})
    return company


# Case 21: an identity enters the scope of an outbound rule


@PAGE_SIZES
def test_case_21_an_identity_in_scope_gets_an_account(page_size: int) -> None:
    company = Company(scope=STAFF)
    company.hr.put("1", first="Ada", mail="ada@x")
    company.hr.put("2", first="Bea")
    company.hr.put("3", first="Cai", department="Left")

    run = company.synchronise(page_size=page_size)

    assert (run.status, counts(run)) == ("complete", {"projected": 3, "provisioned": 2, "staged": 2})
    assert company.ad.pending() == {
        "1": ("create", {"id": "1", "first": "Ada", "mail": "ada@x"}),
        "2": ("create", {"id": "2", "first": "Bea"}),
    }
    accounts = company.ad.accounts()
    assert [(each.status, each.join) for each in accounts.values()] == [("provisioning", "provisioned")] * 2
    assert accounts["1"].identity == identities()["1"]


def test_case_21_an_identity_that_enters_the_scope_gets_an_account() -> None:
    company = Company(scope=STAFF)
    company.employ(department="Left")
    assert company.ad.pending() == {}
    company.hr.change("1", department="Sales")

    run = company.synchronise()

    assert counts(run) == {"flowed": 1, "provisioned": 1, "staged": 1}
    assert company.ad.pending() == {"1": ("create", ADA)}


@pytest.mark.parametrize("page_size", [1, 1000])
def test_an_export_creates_the_account_and_an_import_confirms_it(page_size: int) -> None:
    company = Company()
    company.employ()
    company.employ("2", first="Bea")

    run = company.ad.run(EXPORT, page_size=page_size)

    assert (run.status, counts(run)) == ("complete", {"created": 2})
    assert items(run) == [("1", "created", ""), ("2", "created", "")]
    assert company.ad.store.log == [("create", "1"), ("create", "2")]
    assert company.ad.objects == {"1": ADA, "2": {"id": "2", "first": "Bea", "mail": "ada@x"}}
    assert set(PendingExport.objects.values_list("status", flat=True)) == {"exported"}
    assert counts(company.ad.run(FULL_IMPORT)) == {"confirmed": 2}
    account = company.ad.account("1")
    assert (account.status, account.join, account.attrs) == ("present", "provisioned", ADA)
    assert company.ad.pending() == {}


@pytest.mark.parametrize("page_size", [1, 1000])
def test_a_second_export_sends_nothing(page_size: int) -> None:
    company = Company()
    company.employ()
    company.ad.run(EXPORT, page_size=page_size)

    run = company.ad.run(EXPORT, page_size=page_size)

    assert (run.status, counts(run), items(run)) == ("complete", {}, [])
    assert company.ad.store.log == [("create", "1")]


@pytest.mark.parametrize("fields", [{"creates": False}, {"is_enabled": False}])
def test_a_rule_that_does_not_create_accounts_stages_nothing(fields: dict[str, Any]) -> None:
    company = Company(**fields)

    company.employ()

    assert (company.ad.accounts(), company.ad.pending()) == ({}, {})


def test_a_system_that_is_being_rebuilt_gets_no_new_accounts() -> None:
    company = Company()
    ConnectedSystem.objects.filter(pk=company.ad.row.pk).update(status="rebuilding")

    company.employ()

    assert (company.ad.accounts(), company.ad.pending()) == ({}, {})


# Case 22: the account exists


@PAGE_SIZES
@pytest.mark.parametrize(
    ("joins", "external_id", "mail", "pending"),
    [
        pytest.param(
            BY_MAIL, "u7", "ADA@x", {"first": "Ada", "mail": "ada@x"}, id="case 22: found by a rule"
        ),
        pytest.param(BY_MAIL, "u7", "ada@x", {"first": "Ada"}, id="case 22: only what differs"),
        pytest.param([], "1", "old@x", {"first": "Ada", "mail": "ada@x"}, id="case 22: found by its id"),
    ],
)
def test_an_account_that_exists_is_joined_and_not_created(
    page_size: int, joins: list[Any], external_id: str, mail: str, pending: dict[str, str]
) -> None:
    company = Company(joins=joins)
    company.ad.put(external_id, first="Adah", mail=mail)
    company.ad.put("other", first="Bea")
    company.ad.run(FULL_IMPORT)
    company.hr.put("1", first="Ada", mail="ada@x")

    run = company.synchronise(page_size=page_size)

    assert counts(run) == {"projected": 1, "joined": 1, "staged": 1}
    account = company.ad.account(external_id)
    assert (account.status, account.join, account.identity) == ("present", "provisioned", identities()["1"])
    assert company.ad.pending() == {external_id: ("update", pending)}
    assert company.ad.account("other").identity is None


def test_case_22_an_account_that_has_all_values_gets_no_export() -> None:
    company = Company()
    company.ad.put("1", first="Ada", mail="ada@x", last="Bell")
    company.ad.run(FULL_IMPORT)

    company.employ()

    assert company.ad.pending() == {}
    assert company.ad.account("1").identity == identities()["1"]


def two_that_match(ad: System) -> None:
    ad.put("u7", mail="ada@x")
    ad.put("u8", mail="ada@x")


def test_case_22_two_accounts_that_match_are_ambiguous() -> None:
    company = Company(joins=BY_MAIL)
    two_that_match(company.ad)
    company.ad.run(FULL_IMPORT)
    company.hr.put("1", first="Ada", mail="ada@x")
    company.hr.put("2", first="Bea", mail="bea@x")

    run = company.synchronise()

    assert run.status == "complete_with_warning"
    assert ("1", "", "ambiguous_match") in items(run)
    assert (company.ad.account("u7").identity, company.ad.account("u8").identity) == (None, None)
    assert company.ad.pending().keys() == {"2"}


def test_case_22_an_account_that_belongs_to_another_identity_is_not_taken() -> None:
    company = Company({"id": "last"})
    company.employ("1", last="u7")
    company.hr.put("2", last="u7", first="Bea")
    company.hr.put("3", last="u9", first="Cai")

    run = company.synchronise()

    assert run.status == "complete_with_warning"
    assert ("2", "", "already_joined") in items(run)
    assert company.ad.account("u7").identity == identities()["1"]
    assert company.ad.pending()["u7"][1]["first"] == "Ada"


def test_an_account_without_an_id_is_not_created() -> None:
    company = Company({"id": "last"})
    company.hr.put("1", first="Ada")
    company.hr.put("2", first="Bea", last="u2")

    run = company.synchronise()

    assert run.status == "complete_with_warning"
    assert ("1", "", "missing_external_id") in items(run)
    assert company.ad.pending().keys() == {"u2"}


# Case 23: an identity leaves the scope of an outbound rule

DISABLED = {"ends": "2026-11-16", "first": "(left)"}


@PAGE_SIZES
@pytest.mark.parametrize(
    ("deprovision", "pending", "is_joined", "after"),
    [
        pytest.param("delete", {"1": ("delete", {})}, True, {}, id="case 23: delete"),
        pytest.param(
            "disable", {"1": ("update", DISABLED)}, True, {"1": {**ADA, **DISABLED}}, id="case 23: disable"
        ),
        pytest.param("disconnect", {}, False, {"1": ADA}, id="case 23: disconnect"),
    ],
)
def test_an_account_out_of_scope_is_deprovisioned(
    page_size: int, deprovision: str, pending: Any, is_joined: bool, after: Any
) -> None:
    company = employed(scope=STAFF, deprovision=deprovision, disable_values=DISABLED)
    company.hr.change("1", department="Left")

    run = company.synchronise(page_size=page_size)

    assert run.status == "complete"
    assert company.ad.pending() == pending
    assert (company.ad.account("1").identity is not None) is is_joined
    company.export()
    assert (company.ad.objects, company.ad.pending()) == (after, {})
    assert company.ad.accounts().keys() == after.keys()
    assert counts(company.hr.run(FULL_SYNC)).keys() == {"unchanged"}
    assert company.ad.pending() == {}


def test_case_23_an_account_that_was_disabled_is_enabled_again() -> None:
    company = employed({"ends": "ends"}, scope=STAFF, deprovision="disable", disable_values=DISABLED)
    company.hr.change("1", department="Left")
    company.synchronise()
    company.export()
    company.hr.change("1", department=None)

    company.synchronise()

    assert company.ad.pending() == {"1": ("update", {"first": "Ada", "ends": None})}


def test_case_23_as_long_as_one_rule_holds_the_account_stays() -> None:
    company = employed(scope=STAFF, deprovision="delete")
    rule("out", company.ad, company.people, {"id": "id", "last": "last"}, deprovision="delete")
    company.hr.change("1", department="Left", last="Bell")

    company.synchronise()

    assert company.ad.pending() == {"1": ("update", {"last": "Bell"})}


@pytest.mark.parametrize("deprovision", ["delete", "disable", "disconnect"])
def test_an_account_that_jim_does_not_govern_is_left_as_it_is(deprovision: str) -> None:
    """A source's account may be changed by an outbound rule, but is never taken away by one."""
    company = Company()
    rule(
        "out",
        company.hr,
        company.people,
        {"id": "id", "last": {"expression": "upper(first)"}},
        scope=STAFF,
        deprovision=deprovision,
        disable_values={"last": "(left)"},
    )
    company.employ()
    assert company.hr.pending() == {"1": ("update", {"last": "ADA"})}
    company.hr.change("1", department="Left")

    company.synchronise()

    assert company.hr.pending() == {}
    assert company.hr.account("1").identity == identities()["1"]


# Cases 24 and 25: before the export


@PAGE_SIZES
@pytest.mark.parametrize(
    "deprovision", [pytest.param(each, id=f"case 24: {each}") for each in ("delete", "disable", "disconnect")]
)
def test_a_create_that_is_out_of_scope_before_the_export_sends_nothing(
    page_size: int, deprovision: str
) -> None:
    company = Company(scope=STAFF, deprovision=deprovision, disable_values=DISABLED)
    company.employ()
    assert company.ad.pending() == {"1": ("create", ADA)}
    company.hr.change("1", department="Left")

    run = company.synchronise(page_size=page_size)

    assert run.status == "complete"
    assert (company.ad.accounts(), company.ad.pending()) == ({}, {})
    assert counts(company.ad.run(EXPORT)) == {}
    assert company.ad.store.log == []


def test_case_25_a_staged_delete_is_cancelled_when_the_identity_is_back_in_scope() -> None:
    company = employed(scope=STAFF, deprovision="delete")
    company.hr.change("1", department="Left")
    company.synchronise()
    assert company.ad.pending() == {"1": ("delete", {})}
    company.hr.change("1", department=None)

    run = company.synchronise()

    assert counts(run) == {"flowed": 1}
    assert company.ad.pending() == {}
    assert counts(company.ad.run(EXPORT)) == {}
    account = company.ad.account("1")
    assert (account.status, account.join, account.identity) == ("present", "provisioned", identities()["1"])


def test_case_25_of_a_cancelled_delete_only_what_changed_meanwhile_is_sent() -> None:
    company = employed(scope=STAFF, deprovision="delete")
    company.hr.change("1", department="Left")
    company.synchronise()
    company.hr.change("1", department=None, first="Ann")

    company.synchronise()

    assert company.ad.pending() == {"1": ("update", {"first": "Ann"})}


def test_an_account_that_was_deleted_is_created_again_when_the_identity_is_back_in_scope() -> None:
    company = employed(scope=STAFF, deprovision="delete")
    company.hr.change("1", department="Left")
    company.synchronise()
    company.ad.run(EXPORT)
    assert company.ad.objects == {}
    company.hr.change("1", department=None)

    company.synchronise()
    company.ad.run(FULL_IMPORT)
    company.hr.run(DELTA_SYNC)

    assert company.ad.pending() == {"1": ("create", ADA)}
    company.export()
    assert (company.ad.objects, company.ad.pending()) == ({"1": ADA}, {})


# What is staged: what is wanted, less what the system has or was sent


def test_a_change_stages_only_what_differs() -> None:
    company = employed()
    company.hr.change("1", first="Ann", last="Bell")

    run = company.synchronise()

    assert counts(run) == {"flowed": 1, "staged": 1}
    assert company.ad.pending() == {"1": ("update", {"first": "Ann"})}
    assert run.items.get(change="staged").data == {"first": ["Ada", "Ann"]}


def test_an_empty_source_clears_the_target() -> None:
    company = employed()
    company.hr.change("1", mail=None)

    company.synchronise()

    assert company.ad.pending() == {"1": ("update", {"mail": None})}
    company.export()
    assert (company.ad.objects, company.ad.pending()) == ({"1": {"id": "1", "first": "Ada"}}, {})


def revisions() -> list[int]:
    return list(PendingExport.objects.values_list("revision", flat=True))


def test_a_pending_change_is_replaced_by_a_later_one() -> None:
    company = employed()
    company.hr.change("1", first="Ann")
    company.synchronise()
    assert revisions() == [1]
    company.hr.change("1", first="Amy", last="Bell")
    company.synchronise()

    assert company.ad.pending() == {"1": ("update", {"first": "Amy"})}
    assert revisions() == [2]
    company.hr.change("1", last="Bull")
    company.synchronise()
    assert revisions() == [2]


def test_a_pending_change_that_is_taken_back_is_not_sent() -> None:
    company = employed()
    company.hr.change("1", first="Ann")
    company.synchronise()
    company.hr.change("1", first="Ada")

    company.synchronise()

    assert company.ad.pending() == {}


@pytest.mark.parametrize(
    ("later", "changes"),
    [
        pytest.param({"first": "Ann"}, {}, id="what was sent"),
        pytest.param({"first": "Ada"}, {"first": "Ada"}, id="what the system had before"),
        pytest.param({"first": "Ann", "mail": "ann@x"}, {"mail": "ann@x"}, id="another attribute"),
    ],
)
def test_what_was_sent_counts_as_what_the_system_has(later: dict[str, str], changes: dict[str, str]) -> None:
    company = employed()
    company.hr.change("1", first="Ann")
    company.synchronise()
    company.ad.run(EXPORT)
    company.hr.change("1", last="Bell", **later)

    company.synchronise()

    assert company.ad.pending() == {"1": ("update", changes)}
    assert counts(company.ad.run(EXPORT)) == ({"updated": 1} if changes else {})
    assert company.ad.objects == {"1": {**ADA, **later}}


def test_a_created_account_is_updated_before_the_creation_is_confirmed() -> None:
    company = Company()
    company.employ()
    company.ad.run(EXPORT)
    company.employ(first="Ann")

    assert company.ad.pending() == {"1": ("update", {"first": "Ann"})}
    assert counts(company.ad.run(EXPORT)) == {"updated": 1}
    assert counts(company.ad.run(FULL_IMPORT)) == {"confirmed": 1}
    assert (company.ad.objects, company.ad.pending()) == ({"1": {**ADA, "first": "Ann"}}, {})


@pytest.mark.parametrize("page_size", [1, 1000])
def test_case_34_two_people_swap_their_values(page_size: int) -> None:
    company = employed()
    company.employ("2", first="Bea", mail="bea@x")
    company.export()
    company.hr.change("1", mail="bea@x")
    company.hr.change("2", mail="ada@x")
    company.synchronise(page_size=page_size)

    run = company.ad.run(EXPORT, page_size=page_size)

    assert counts(run) == {"updated": 2}
    assert counts(company.ad.run(FULL_IMPORT)) == {"confirmed": 2}
    mails = {key: each["mail"] for key, each in company.ad.objects.items()}
    assert mails == {"1": "bea@x", "2": "ada@x"}


# Case 38: values that were changed in the system itself


@pytest.mark.parametrize(
    ("enforces", "pending", "count"),
    [
        pytest.param(True, {"1": ("update", {"mail": "ada@x"})}, {"drift": 1}, id="case 38: enforce"),
        pytest.param(False, {}, {"unchanged": 1}, id="case 38: not"),
    ],
)
def test_drift_is_corrected_or_left(enforces: bool, pending: Any, count: dict[str, int]) -> None:
    company = employed(enforces=enforces)
    company.ad.change("1", mail="other@x", last="Bell")
    assert counts(company.ad.run(FULL_IMPORT)) == {"updated": 1}

    run = company.ad.run(DELTA_SYNC)

    assert (run.status, counts(run)) == ("complete", count)
    assert items(run) == [("1", "drift", "")] * len(pending)
    assert company.ad.pending() == pending
    company.export()
    mail = "ada@x" if enforces else "other@x"
    assert company.ad.objects == {"1": {**ADA, "mail": mail, "last": "Bell"}}


@pytest.mark.parametrize("enforces", [True, False])
def test_case_38_a_new_wanted_value_replaces_one_that_was_changed_in_the_system(enforces: bool) -> None:
    company = employed(enforces=enforces)
    company.ad.change("1", mail="other@x", first="Other")
    company.ad.run(FULL_IMPORT)
    company.hr.change("1", mail="new@x")

    company.synchronise()

    first = {"first": "Ada"} if enforces else {}
    assert company.ad.pending() == {"1": ("update", {"mail": "new@x", **first})}


@PAGE_SIZES
def test_an_account_that_was_deleted_in_the_system_itself_is_created_again(page_size: int) -> None:
    company = employed()
    company.ad.drop("1")
    company.ad.put("99")
    company.ad.run(FULL_IMPORT)

    run = company.ad.run(DELTA_SYNC, page_size=page_size)

    assert run.status == "complete"
    assert company.ad.pending() == {"1": ("create", ADA)}
    company.export()
    assert company.ad.objects["1"] == ADA
    assert company.ad.account("1").identity == identities()["1"]


@PAGE_SIZES
@pytest.mark.parametrize("order", ["AD, HR", "HR, AD"])
def test_which_system_is_synchronised_first_after_an_account_was_deleted_makes_no_difference(
    page_size: int, order: str
) -> None:
    company = employed()
    company.ad.drop("1")
    company.ad.put("99")
    company.ad.run(FULL_IMPORT)
    company.hr.change("1", first="Ann")
    company.hr.run(FULL_IMPORT)

    for system in (company.ad, company.hr) if order == "AD, HR" else (company.hr, company.ad):
        assert system.run(DELTA_SYNC, page_size=page_size).status == "complete"

    assert company.ad.pending() == {"1": ("create", {**ADA, "first": "Ann"})}
    company.export()
    assert company.ad.objects["1"] == {**ADA, "first": "Ann"}
    assert company.ad.account("1").identity == identities()["1"]


# Case 39: values that are set once, or not at all


def test_case_39_a_flow_only_on_creation_does_not_change_the_account_later() -> None:
    company = employed({"mail": {"source": "mail", "when": "create"}})
    company.hr.change("1", mail="new@x", first="Ann")

    company.synchronise()

    assert company.ad.pending() == {"1": ("update", {"first": "Ann"})}


def test_case_39_a_flow_only_on_creation_does_not_correct_the_account() -> None:
    company = employed({"mail": {"source": "mail", "when": "create"}})
    company.ad.change("1", mail="other@x")
    company.ad.run(FULL_IMPORT)

    company.ad.run(DELTA_SYNC)

    assert company.ad.pending() == {}


@pytest.mark.parametrize(
    ("writable", "created", "updated"),
    [
        pytest.param("yes", {"mail": "ada@x"}, {"mail": "new@x"}, id="writable"),
        pytest.param("create", {"mail": "ada@x"}, {}, id="case 39: only on creation"),
        pytest.param("no", {}, {}, id="case 39: do not touch"),
    ],
)
def test_an_attribute_is_written_only_if_it_is_writable(
    writable: str, created: dict[str, str], updated: dict[str, str]
) -> None:
    company = Company()
    Attribute.objects.filter(type=company.ad.type, name="mail").update(writable=writable)
    company.employ()
    assert company.ad.pending() == {"1": ("create", {"id": "1", "first": "Ada", **created})}
    company.export()

    company.employ(first="Ann", mail="new@x")

    assert company.ad.pending() == {"1": ("update", {"first": "Ann", **updated})}


def test_case_39_attributes_without_a_flow_are_left() -> None:
    company = employed()
    company.ad.change("1", last="Bell", phones=["7"])
    company.ad.run(FULL_IMPORT)
    company.ad.run(FULL_SYNC)
    company.employ(first="Ann", last="Other")
    company.export()

    assert company.ad.objects == {"1": {**ADA, "first": "Ann", "last": "Bell", "phones": ["7"]}}


def test_the_first_rule_with_a_flow_to_an_attribute_decides() -> None:
    company = Company(position=2)
    rule("out", company.ad, company.people, {"mail": {"expression": '"first@x"'}}, position=1)
    rule("out", company.ad, company.people, {"mail": {"expression": '"last@x"'}, "last": "first"}, position=3)

    company.employ()

    assert company.ad.pending() == {"1": ("create", {**ADA, "mail": "first@x", "last": "Ada"})}


def test_a_rule_that_is_removed_leaves_its_accounts_as_they_are() -> None:
    company = employed(deprovision="delete")
    company.hr.change("1", first="Ann")
    company.synchronise()
    SyncRule.objects.filter(pk=company.rule.pk).delete()

    run = company.hr.run(FULL_SYNC)

    assert run.status == "complete"
    assert company.ad.pending() == {}
    assert company.ad.account("1").identity == identities()["1"]


# What the system answers


def test_a_change_that_is_refused_waits_until_it_changes() -> None:
    company = Company()
    company.employ()
    company.employ("2", first="Bea")
    company.ad.store.answers["1"] = Result(0, "connector_error", "the name is already taken")

    run = company.ad.run(EXPORT)

    assert (run.status, counts(run)) == ("complete_with_warning", {"created": 1, "failed": 1})
    assert items(run) == [("1", "", "connector_error"), ("2", "created", "")]
    refused = PendingExport.objects.get(account__external_id="1")
    assert (refused.status, refused.operation, refused.changes) == ("refused", "create", ADA)
    assert refused.error == "the name is already taken"
    assert counts(company.ad.run(EXPORT, now=NOW + timedelta(days=1))) == {}
    company.ad.store.answers.clear()
    company.employ("1", first="Ann")
    assert counts(company.ad.run(EXPORT)) == {"created": 1}
    assert company.ad.objects["1"] == {**ADA, "first": "Ann"}


def test_a_temporary_failure_is_repeated_after_a_growing_delay_and_five_times_at_most() -> None:
    company = Company()
    company.employ()
    company.ad.store.answers["1"] = Result(0, "connector_error", "busy", is_transient=True)
    found, now = [], NOW

    for _ in range(5):
        company.ad.run(EXPORT, now=now)
        export = PendingExport.objects.get()
        found.append((export.status, export.attempts, export.next_at and export.next_at - now))
        assert counts(company.ad.run(EXPORT, now=now)) == {}
        now = export.next_at or now

    minutes = [timedelta(minutes=each) for each in (2, 4, 8, 16)]
    waiting = [("pending", attempt, delay) for attempt, delay in enumerate(minutes, start=1)]
    assert found == [*waiting, ("refused", 5, None)]


def test_a_system_that_confirms_itself_needs_no_import() -> None:
    company = Company(confirms=True, scope=STAFF, deprovision="delete")
    company.employ()
    company.employ("2", first="Bea")

    assert counts(company.ad.run(EXPORT)) == {"created": 2}

    account = company.ad.account("1")
    assert (account.status, account.attrs, company.ad.pending()) == ("present", ADA, {})
    company.employ(mail=None)
    company.employ("2", department="Left")
    assert company.ad.pending() == {"1": ("update", {"mail": None}), "2": ("delete", {})}
    assert counts(company.ad.run(EXPORT)) == {"updated": 1, "deleted": 1}
    assert {key: each.attrs for key, each in company.ad.accounts().items()} == {
        "1": {"id": "1", "first": "Ada"}
    }
    assert company.ad.pending() == {}
