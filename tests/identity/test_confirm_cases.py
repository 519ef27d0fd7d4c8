"""How imports confirm what was exported: completely, in part, not at all, and after five attempts never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from activities.models import Activity
from identity.models import Attribute, PendingExport
from identity.values import Attributes

from .world import (
    DELTA_IMPORT,
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
IMPORTS = pytest.mark.parametrize("run_type", [FULL_IMPORT, DELTA_IMPORT])
ADA = {"id": "1", "first": "Ada", "mail": "ada@x"}
STAFF = {"attribute": "department", "operator": "is_empty"}
Takes = Callable[[Attributes], Attributes]


class Company:
    """Two people of HR, with accounts in AD."""

    def __init__(self) -> None:
        self.hr, self.ad, people = System("HR"), System("AD"), identity_type()
        names = ("id", "first", "department", "mail")
        rule("in", self.hr, people, {name: name for name in names}, join="id")
        flows = {"id": "id", "first": "first", "mail": "mail"}
        rule("out", self.ad, people, flows, scope=STAFF, deprovision="delete")
        self.hr.put("1", first="Ada", mail="ada@x")
        self.hr.put("2", first="Bea")
        self.synchronise()

    def synchronise(self) -> None:
        self.hr.run(FULL_IMPORT)
        self.hr.run(DELTA_SYNC)

    def change(self, **attrs: Any) -> None:
        """Change Ada in HR, and send this to AD."""
        self.hr.change("1", **attrs)
        self.synchronise()
        assert self.ad.run(EXPORT).status == "complete"

    def takes(self, takes: Takes) -> None:
        """Let AD store something else than what it is sent, without saying so."""
        self.ad.store.takes = takes

    @property
    def export(self) -> PendingExport | None:
        return PendingExport.objects.filter(account__external_id="1").first()


def created() -> Company:
    """Return a company whose accounts have been created, and confirmed."""
    company = Company()
    company.ad.run(EXPORT)
    company.ad.run(FULL_IMPORT)
    assert company.ad.pending() == {}
    return company


def told(export: PendingExport | None) -> tuple[Any, ...] | None:
    return None if export is None else (export.status, export.operation, export.changes, export.sent)


def nothing(attrs: Attributes) -> Attributes:
    return ADA


def only_mail(attrs: Attributes) -> Attributes:
    return {**ADA, "mail": attrs["mail"]}


def everything(attrs: Attributes) -> Attributes:
    return attrs


def lower_case(attrs: Attributes) -> Attributes:
    return {name: str(value).lower() for name, value in attrs.items()}


# Case 35: what was sent, and what came


@IMPORTS
@PAGE_SIZES
@pytest.mark.parametrize(
    ("takes", "count", "left"),
    [
        pytest.param(everything, {"confirmed": 1}, None, id="case 35: all"),
        pytest.param(
            only_mail, {"unconfirmed": 1}, ("unconfirmed", "update", {"first": "Ann"}, {}), id="case 35: some"
        ),
        pytest.param(
            nothing,
            {"unconfirmed": 1},
            ("unconfirmed", "update", {"first": "Ann", "mail": "ann@x"}, {}),
            id="case 35: none",
        ),
    ],
)
def test_an_import_confirms_an_update(
    run_type: str, page_size: int, takes: Takes, count: dict[str, int], left: Any
) -> None:
    company = created()
    company.takes(takes)
    company.change(first="Ann", mail="ann@x")
    assert told(company.export) == ("exported", "update", {}, {"first": "Ann", "mail": "ann@x"})
    if run_type == DELTA_IMPORT:
        touch(company.ad)

    run = company.ad.run(run_type, page_size=page_size)

    assert run.status == ("complete" if left is None else "complete_with_warning")
    assert {name: counts(run).get(name) for name in ("confirmed", "unconfirmed")} == {
        "confirmed": None,
        "unconfirmed": None,
        **count,
    }
    assert told(company.export) == left


def touch(system: System) -> None:
    """Change something in the account to which no rule leads, so that a delta import reads it."""
    system.change("1", last="Bell")


def test_what_is_confirmed_is_counted_as_nothing_else() -> None:
    company = created()
    company.change(first="Ann")

    run = company.ad.run(FULL_IMPORT)

    assert (run.status, counts(run), items(run)) == ("complete", {"confirmed": 1, "unchanged": 1}, [])
    assert company.ad.account("1").attrs == {**ADA, "first": "Ann"}
    assert counts(company.ad.run(DELTA_SYNC)) == {}


def test_what_the_system_changed_besides_is_an_update() -> None:
    company = created()
    company.change(first="Ann")
    company.ad.change("1", last="Bell")

    run = company.ad.run(FULL_IMPORT)

    assert counts(run) == {"confirmed": 1, "updated": 1, "unchanged": 1}
    assert items(run) == [("1", "updated", "")]
    assert company.export is None


@pytest.mark.parametrize(
    ("takes", "item"),
    [
        pytest.param(only_mail, "first", id="case 35: some"),
        pytest.param(nothing, "first, mail", id="case 35: none"),
    ],
)
def test_what_is_not_confirmed_is_a_warning_that_names_the_attributes(takes: Takes, item: str) -> None:
    company = created()
    company.takes(takes)
    company.change(first="Ann", mail="ann@x")

    run = company.ad.run(FULL_IMPORT)

    warnings = run.items.filter(error_type="not_confirmed")
    assert [(each.name, each.change, each.outcome) for each in warnings] == [("1", "unconfirmed", "warning")]
    assert warnings[0].message == f"the import did not find the values that were sent: {item}"
    assert run.status == "complete_with_warning"


@pytest.mark.parametrize("takes", [only_mail, nothing])
def test_what_is_not_confirmed_is_sent_again(takes: Takes) -> None:
    company = created()
    company.takes(takes)
    company.change(first="Ann", mail="ann@x")
    company.ad.run(FULL_IMPORT)
    company.takes(everything)

    assert counts(company.ad.run(EXPORT)) == {"updated": 1}

    assert counts(company.ad.run(FULL_IMPORT)) == {"confirmed": 1, "unchanged": 1}
    assert company.export is None
    assert company.ad.objects["1"] == {**ADA, "first": "Ann", "mail": "ann@x"}


def test_a_value_that_was_removed_is_confirmed_if_it_is_gone() -> None:
    company = created()
    company.change(mail=None)

    assert counts(company.ad.run(FULL_IMPORT)) == {"confirmed": 1, "unchanged": 1}
    assert company.export is None


def test_a_change_that_is_staged_before_the_import_stays_to_be_sent() -> None:
    company = created()
    company.change(first="Ann")
    company.hr.change("1", mail="ann@x")
    company.synchronise()

    run = company.ad.run(FULL_IMPORT)

    assert counts(run) == {"confirmed": 1, "unchanged": 1}
    assert told(company.export) == ("pending", "update", {"mail": "ann@x"}, {})


def test_an_import_settles_only_what_was_sent() -> None:
    company = created()
    company.hr.change("1", first="Ann")
    company.synchronise()

    run = company.ad.run(FULL_IMPORT)

    assert counts(run) == {"unchanged": 2}
    assert told(company.export) == ("pending", "update", {"first": "Ann"}, {})


# Accounts that were created


@pytest.mark.parametrize(
    ("takes", "left"),
    [
        pytest.param(everything, None, id="case 35: all"),
        pytest.param(
            lambda attrs: {**attrs, "mail": "other@x"},
            ("unconfirmed", "update", {"mail": "ada@x"}, {}),
            id="case 35: some, the creation becomes an update",
        ),
    ],
)
@PAGE_SIZES
def test_an_import_confirms_a_creation(takes: Takes, left: Any, page_size: int) -> None:
    company = Company()
    company.takes(takes)
    company.hr.change("2", department="Left")
    company.synchronise()
    company.ad.run(EXPORT)

    run = company.ad.run(FULL_IMPORT, page_size=page_size)

    assert counts(run)["confirmed" if left is None else "unconfirmed"] == 1
    assert told(company.export) == left
    account = company.ad.account("1")
    assert (account.status, account.join, account.identity) == ("present", "provisioned", identities()["1"])


@PAGE_SIZES
def test_a_creation_that_an_import_does_not_find_is_sent_again(page_size: int) -> None:
    company = Company()
    company.ad.run(EXPORT)
    company.ad.drop("1")

    run = company.ad.run(FULL_IMPORT, page_size=page_size)

    assert (run.status, counts(run)) == ("complete_with_warning", {"confirmed": 1, "unconfirmed": 1})
    assert items(run) == [("1", "unconfirmed", "not_confirmed")]
    assert told(company.export) == ("unconfirmed", "create", ADA, {})
    assert company.ad.account("1").status == "provisioning"
    assert counts(company.ad.run(EXPORT)) == {"created": 1}
    assert counts(company.ad.run(FULL_IMPORT)) == {"confirmed": 1, "unchanged": 1}


def test_a_delta_import_concludes_nothing_about_a_creation_that_it_does_not_contain() -> None:
    company = created()
    company.hr.put("3", first="Cai")
    company.synchronise()
    company.ad.run(EXPORT)
    company.ad.drop("3")

    run = company.ad.run(DELTA_IMPORT)

    assert (run.status, counts(run)) == ("complete", {})
    (export,) = PendingExport.objects.all()
    assert (export.status, export.operation) == ("exported", "create")


def test_an_account_that_was_created_by_somebody_else_meanwhile_is_taken_over() -> None:
    company = Company()
    company.ad.put("1", first="Ada", mail="other@x")
    assert counts(company.ad.run(FULL_IMPORT)) == {"added": 1}

    company.ad.run(FULL_SYNC)

    assert company.ad.pending()["1"] == ("update", {"mail": "ada@x"})
    assert company.ad.account("1").identity == identities()["1"]


# Accounts that were deleted


@IMPORTS
@PAGE_SIZES
def test_a_deletion_is_confirmed_when_the_account_is_gone(run_type: str, page_size: int) -> None:
    company = created()
    company.change(department="Left")
    assert told(company.export) == ("exported", "delete", {}, {})

    run = company.ad.run(run_type, page_size=page_size)

    assert run.status == "complete"
    assert counts(run) == ({"confirmed": 1, "unchanged": 1} if run_type == FULL_IMPORT else {"confirmed": 1})
    assert items(run) == []
    assert set(company.ad.accounts()) == {"2"}
    assert company.ad.pending() == {}


@PAGE_SIZES
def test_a_deletion_is_sent_again_if_the_account_is_still_there(page_size: int) -> None:
    company = created()
    company.change(department="Left")
    company.ad.put("1", first="Ada", mail="ada@x")

    run = company.ad.run(FULL_IMPORT, page_size=page_size)

    assert run.status == "complete_with_warning"
    assert counts(run) == {"unchanged": 2, "unconfirmed": 1}
    assert told(company.export) == ("unconfirmed", "delete", {}, {})
    assert counts(company.ad.run(EXPORT)) == {"deleted": 1}
    assert company.ad.objects.keys() == {"2"}


def test_an_account_that_is_gone_although_it_was_only_updated_is_absent() -> None:
    company = created()
    company.change(first="Ann")
    company.ad.drop("1")

    run = company.ad.run(FULL_IMPORT)

    assert counts(run) == {"absent": 1, "unchanged": 1}
    company.ad.run(DELTA_SYNC)
    assert company.ad.pending() == {"1": ("create", {**ADA, "first": "Ann"})}


# Case 36: five attempts


def attempt(company: Company) -> Activity:
    company.ad.run(EXPORT)
    return company.ad.run(FULL_IMPORT)


@pytest.mark.parametrize("takes", [nothing, lower_case])
def test_case_36_what_is_not_confirmed_five_times_is_not_sent_again(takes: Takes) -> None:
    company = created()
    company.takes(takes)
    company.hr.change("1", first="ANN")
    company.synchronise()

    found = [(attempt(company).status, company.export and company.export.status) for _ in range(5)]

    assert found[:4] == [("complete_with_warning", "unconfirmed")] * 4
    assert found[4][1] == "refused"
    export = company.export
    assert export is not None
    assert (export.error_type, export.attempts) == ("confirmation_failed", 5)
    log = len(company.ad.store.log)
    assert counts(attempt(company)) == {"unchanged": 2}
    assert len(company.ad.store.log) == log


def test_case_36_the_fifth_attempt_is_a_failed_item() -> None:
    company = created()
    company.takes(nothing)
    company.hr.change("1", first="Ann")
    company.synchronise()

    runs = [attempt(company) for _ in range(5)]

    assert [items(run) for run in runs[:4]] == [[("1", "unconfirmed", "not_confirmed")]] * 4
    assert items(runs[4]) == [("1", "unconfirmed", "confirmation_failed")]
    assert runs[4].items.get().outcome == "failed"
    assert runs[4].status == "complete_with_warning"
    assert counts(runs[4])["failed"] == 1


def test_case_36_an_account_that_is_never_found_is_not_created_again() -> None:
    company = created()
    company.hr.put("3", first="Cai")
    company.synchronise()

    for _ in range(5):
        company.ad.run(EXPORT)
        company.ad.drop("3")
        company.ad.run(FULL_IMPORT)

    (export,) = PendingExport.objects.all()
    assert (export.status, export.operation, export.error_type) == (
        "refused",
        "create",
        "confirmation_failed",
    )
    assert counts(company.ad.run(EXPORT)) == {}


def test_case_36_a_new_value_begins_anew() -> None:
    company = created()
    company.takes(nothing)
    company.hr.change("1", first="Ann")
    company.synchronise()
    for _ in range(5):
        attempt(company)
    company.takes(everything)
    company.hr.change("1", first="Amy")
    company.synchronise()
    assert told(company.export) == ("pending", "update", {"first": "Amy"}, {})

    assert counts(attempt(company)) == {"confirmed": 1, "unchanged": 1}

    assert company.export is None
    assert company.ad.objects["1"] == {**ADA, "first": "Amy"}


# Case 37: systems that store values in another form


@pytest.mark.parametrize(
    ("match", "takes", "is_confirmed"),
    [
        pytest.param("exact", lower_case, False, id="case 37: exact"),
        pytest.param("nocase", lower_case, True, id="case 37: server folds case"),
        pytest.param("nocase", nothing, False, id="case 37: another value"),
        pytest.param("ignore", nothing, True, id="case 37: not compared"),
    ],
)
def test_the_attribute_decides_how_values_are_compared(match: str, takes: Takes, is_confirmed: bool) -> None:
    company = created()
    Attribute.objects.filter(type=company.ad.type, name="first").update(match=match)
    company.takes(takes)
    company.change(first="ANN")

    run = company.ad.run(FULL_IMPORT)

    assert ("confirmed" in counts(run)) is is_confirmed
    assert (company.export is None) is is_confirmed
    assert (company.ad.run(FULL_SYNC).status, company.hr.run(FULL_SYNC).status) == ("complete", "complete")
    assert (company.export is None) is is_confirmed


def test_a_value_that_is_not_compared_is_sent_when_it_is_new() -> None:
    company = Company()
    Attribute.objects.filter(type=company.ad.type, name="first").update(match="ignore")
    company.takes(lambda attrs: {"id": attrs["id"], "mail": "ada@x"})
    company.hr.run(FULL_SYNC)
    assert company.ad.pending()["1"] == ("create", ADA)
    company.ad.run(EXPORT)
    company.ad.run(FULL_IMPORT)
    assert company.export is None
    company.hr.change("1", first="Ann")

    company.synchronise()

    assert company.ad.pending()["1"] == ("update", {"first": "Ann"})
