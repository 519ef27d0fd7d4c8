"""References between people: managers and members, in one page or several, early, late, and gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from activities.models import Activity
from identity.models import Flow, Identity, IdentityType

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
ATTRIBUTES = ("id", "first", "department", "manager>", "members>*")
NAMES = {name.rstrip(">*"): name.rstrip(">*") for name in ATTRIBUTES}
STAFF = {"attribute": "department", "operator": "not_equals", "value": "Outside"}


class Company:
    """People of HR with their managers, who get accounts in AD, whose ids begin with “u”."""

    def __init__(self, page_size: int = 1000, *, deprovision: str = "delete") -> None:
        self.page_size = page_size
        self.hr, self.ad = System("HR", ATTRIBUTES), System("AD", ATTRIBUTES)
        self.people = identity_type(ATTRIBUTES, deletion="authoritative", sources=[self.hr])
        rule("in", self.hr, self.people, NAMES, join="id")
        flows = {
            "id": {"expression": '"u" + id'},
            **{name: {"source": name} for name in ("manager", "members")},
        }
        rule("out", self.ad, self.people, flows, scope=STAFF, deprovision=deprovision)

    def employ(self, **managers: str | None) -> Activity:
        """Set the managers of people by their ids, such as `_1="2"`, and synchronise."""
        for name, manager in managers.items():
            self.hr.put(name.removeprefix("_"), manager=manager)
        return self.synchronise()

    def synchronise(self) -> Activity:
        self.hr.run(FULL_IMPORT, page_size=self.page_size)
        return self.hr.run(DELTA_SYNC, page_size=self.page_size)

    def export(self) -> Activity:
        run = self.ad.run(EXPORT, page_size=self.page_size)
        self.ad.run(FULL_IMPORT, page_size=self.page_size)
        return run


def managers() -> dict[str, str | None]:
    """Return the managers of all identities, as they are shown."""
    return {name: shown(each.attrs.get("manager")) for name, each in identities().items()}


def shown(uuid: str | None) -> str | None:
    return uuid and Identity.objects.get(uuid=uuid).display


def in_ad(company: Company, attribute: str = "manager") -> dict[str, Any]:
    return {external_id: attrs.get(attribute) for external_id, attrs in company.ad.objects.items()}


# References between people who are there


@pytest.mark.parametrize("page_size", [1, 2, 1000])
@pytest.mark.parametrize(
    "people",
    [
        pytest.param({"1": None, "2": "1", "3": "1"}, id="the manager comes first"),
        pytest.param({"1": "3", "2": "3", "3": None}, id="the manager comes last"),
        pytest.param({"1": "2", "2": "1"}, id="case 32: a circle of two"),
        pytest.param({"1": "2", "2": "3", "3": "1"}, id="case 32: a circle of three"),
        pytest.param({"1": "1"}, id="case 32: one's own manager"),
        pytest.param({"1": "2", "2": "3", "3": "4", "4": None}, id="a chain"),
    ],
)
def test_managers_are_set_everywhere(page_size: int, people: Mapping[str, str | None]) -> None:
    company = Company(page_size)

    run = company.employ(**{f"_{key}": manager for key, manager in people.items()})

    number = len(people)
    assert run.status == "complete"
    assert (counts(run)["projected"], counts(run)["provisioned"]) == (number, number)
    assert managers() == people
    expected = {f"u{key}": manager and f"u{manager}" for key, manager in people.items()}
    pending = {key: changes.get("manager") for key, (_, changes) in company.ad.pending().items()}
    assert pending == expected
    assert counts(company.export()) == {"created": number}
    assert (in_ad(company), company.ad.pending()) == (expected, {})


@PAGE_SIZES
def test_a_second_synchronisation_changes_nothing(page_size: int) -> None:
    company = Company(page_size)
    company.employ(_1="2", _2="3", _3="1")
    company.export()

    run = company.hr.run(FULL_SYNC, page_size=page_size)

    assert (counts(run), items(run)) == ({"unchanged": 3}, [])
    assert company.ad.pending() == {}


@PAGE_SIZES
def test_a_person_gets_another_manager(page_size: int) -> None:
    company = Company(page_size)
    company.employ(_1=None, _2=None, _3="1")
    company.export()

    company.employ(_3="2")

    assert managers() == {"1": None, "2": None, "3": "2"}
    assert company.ad.pending() == {"u3": ("update", {"manager": "u2"})}


def test_a_person_has_no_manager_any_longer() -> None:
    company = Company()
    company.employ(_1=None, _2="1")
    company.export()

    company.employ(_2=None)

    assert managers() == {"1": None, "2": None}
    assert company.ad.pending() == {"u2": ("update", {"manager": None})}


@PAGE_SIZES
def test_case_33_a_group_and_its_new_member_take_one_export(page_size: int) -> None:
    company = Company(page_size)
    company.hr.put("1")
    company.hr.put("9", members=["1"])
    company.synchronise()
    company.export()
    company.hr.put("2")
    company.hr.put("9", members=["2", "1"])

    company.synchronise()

    assert company.ad.pending() == {
        "u2": ("create", {"id": "u2"}),
        "u9": ("update", {"members": ["u1", "u2"]}),
    }
    assert counts(company.export()) == {"created": 1, "updated": 1}
    assert in_ad(company, "members") == {"u1": None, "u2": None, "u9": ["u1", "u2"]}
    assert company.ad.pending() == {}


# References to people who are not there


@PAGE_SIZES
def test_a_reference_to_somebody_unknown_has_no_value(page_size: int) -> None:
    company = Company(page_size)
    company.hr.put("1", manager="99")
    company.hr.put("9", members=["1", "99"])

    run = company.synchronise()

    assert run.status == "complete"
    assert managers() == {"1": None, "9": None}
    assert company.ad.pending() == {
        "u1": ("create", {"id": "u1"}),
        "u9": ("create", {"id": "u9", "members": ["u1"]}),
    }


@PAGE_SIZES
def test_a_manager_who_comes_late_is_set(page_size: int) -> None:
    company = Company(page_size)
    company.employ(_1="99", _2="1")
    company.export()

    run = company.employ(_99=None)

    assert run.status == "complete"
    assert managers() == {"1": "99", "2": "1", "99": None}
    assert company.ad.pending() == {
        "u1": ("update", {"manager": "u99"}),
        "u99": ("create", {"id": "u99"}),
    }


@PAGE_SIZES
def test_a_manager_is_set_when_the_account_is_joined_at_last(page_size: int) -> None:
    company = Company(page_size)
    inside = {"attribute": "department", "operator": "is_empty"}
    company.people.rules.filter(direction="in").update(scope=inside)
    company.hr.put("1", manager="2")
    company.hr.put("2", department="Elsewhere")
    company.synchronise()
    assert managers() == {"1": None}
    company.hr.put("2")

    company.synchronise()

    assert managers() == {"1": "2", "2": None}
    assert company.ad.pending()["u1"] == ("create", {"id": "u1", "manager": "u2"})


@PAGE_SIZES
def test_a_manager_who_leaves_the_scope_is_not_the_manager_any_longer(page_size: int) -> None:
    company = Company(page_size)
    company.people.rules.filter(direction="in").update(
        scope={"attribute": "department", "operator": "is_empty"}
    )
    company.employ(_1="3", _2=None, _3=None)
    company.export()
    company.hr.put("3", department="Elsewhere")

    company.synchronise()

    assert managers() == {"1": None, "2": None}
    assert company.ad.pending() == {"u1": ("update", {"manager": None}), "u3": ("delete", {})}


@PAGE_SIZES
@pytest.mark.parametrize(("manager", "report"), [("1", "3"), ("3", "1")])
def test_a_manager_who_is_deleted_is_not_the_manager_any_longer(
    page_size: int, manager: str, report: str
) -> None:
    company = Company(page_size)
    company.employ(**{f"_{manager}": None, "_2": manager, f"_{report}": manager})
    company.export()
    company.hr.drop(manager)

    run = company.synchronise()

    assert (run.status, counts(run)["deleted"]) == ("complete", 1)
    assert managers() == {"2": None, report: None}
    assert company.ad.pending() == {
        f"u{manager}": ("delete", {}),
        "u2": ("update", {"manager": None}),
        f"u{report}": ("update", {"manager": None}),
    }
    company.export()
    assert in_ad(company) == {"u2": None, f"u{report}": None}
    assert company.ad.pending() == {}


@PAGE_SIZES
def test_a_report_whose_match_with_another_account_failed_loses_the_manager_too(page_size: int) -> None:
    """An identity that a page only looks at, as a match that cannot be used, is computed as well."""
    company = Company(page_size)
    IdentityType.objects.update(deletion="manual")
    company.people.rules.filter(direction="in").update(joins=[[{"account": "first", "identity": "first"}]])
    company.hr.put("1", first="Ada")
    company.hr.put("2", first="Bea", manager="1")
    company.synchronise()
    company.hr.put("3", first="Bea")
    company.hr.drop("1")

    run = company.synchronise()

    assert ("3", "", "already_joined") in items(run)
    assert managers()["2"] is None


@PAGE_SIZES
def test_a_circle_of_people_who_all_leave_is_deleted(page_size: int) -> None:
    company = Company(page_size)
    company.employ(_1="2", _2="1", _3=None)
    company.export()
    company.hr.drop("1", "2")

    run = company.synchronise()

    assert (run.status, counts(run)["deleted"]) == ("complete", 2)
    assert managers() == {"3": None}
    assert company.ad.pending() == {"u1": ("delete", {}), "u2": ("delete", {})}


@PAGE_SIZES
def test_a_member_who_is_deleted_leaves_the_group(page_size: int) -> None:
    company = Company(page_size)
    company.hr.put("1")
    company.hr.put("2")
    company.hr.put("9", members=["1", "2"])
    company.synchronise()
    company.export()
    company.hr.drop("1")

    company.synchronise()

    assert company.ad.pending() == {"u1": ("delete", {}), "u9": ("update", {"members": ["u2"]})}


@PAGE_SIZES
def test_a_reference_that_is_kept_is_lost_when_its_target_is_deleted(page_size: int) -> None:
    """The report's values stay when HR forgets the report, but not the reference to somebody deleted."""
    company = Company(page_size)
    IdentityType.objects.update(deletion="last_connector")
    company.people.rules.filter(direction="in").update(recalls=False)
    company.hr.put("1", department="Outside")
    company.hr.put("2", first="Bea", manager="1", members=["1", "3"])
    company.hr.put("3")
    company.synchronise()
    company.export()
    company.hr.drop("2")
    company.synchronise()
    assert managers() == {"1": None, "2": "1", "3": None}
    company.hr.drop("1")

    run = company.synchronise()

    assert counts(run)["deleted"] == 1
    attrs = identities()["2"].attrs
    assert attrs == {"id": "2", "first": "Bea", "members": [str(identities()["3"].uuid)]}
    assert counts(company.hr.run(FULL_SYNC)) == {"unchanged": 1}


@PAGE_SIZES
def test_a_manager_whose_id_changes_stays_the_manager(page_size: int) -> None:
    """HR replaces the object of the manager: the reference follows the identity, not the object."""
    company = Company(page_size)
    company.people.rules.filter(direction="in").update(joins=[[{"account": "first", "identity": "first"}]])
    company.hr.put("1", first="Ada", manager="2")
    company.hr.put("2", first="Bea")
    company.synchronise()
    before = identities()["2"]
    company.hr.drop("2")
    company.hr.put("7", first="Bea")
    company.hr.put("1", first="Ada", manager="7")

    company.synchronise()

    assert identities()["7"].uuid == before.uuid
    assert managers() == {"1": "7", "7": None}


@PAGE_SIZES
@pytest.mark.parametrize(("manager", "report"), [("1", "2"), ("2", "1")])
@pytest.mark.parametrize("failure", ["expression_error", "already_joined"])
def test_a_manager_who_cannot_be_projected_is_no_manager(
    page_size: int, manager: str, report: str, failure: str
) -> None:
    company = Company(page_size)
    if failure == "expression_error":
        Flow.objects.filter(target="first").update(source="", expression="text(number(first))")
    else:
        Flow.objects.filter(rule__direction="out", target="id").update(expression='"u" + coalesce(first, id)')
        company.hr.put("0", first="9")
        company.synchronise()
    company.hr.put(manager, first="nine" if failure == "expression_error" else "9")
    company.hr.put(report, manager=manager, members=[manager, report])
    company.hr.run(FULL_IMPORT)

    for _ in range(2):
        run = company.hr.run(FULL_SYNC, page_size=page_size)
        assert (manager, "", failure) in items(run)

    assert "flowed" not in counts(run)
    own = identities()[report]
    assert own.attrs == {"id": report, "members": [str(own.uuid)]}
    assert company.ad.pending()[f"u{report}"] == ("create", {"id": f"u{report}", "members": [f"u{report}"]})


# References to accounts that are not there yet, or not any longer


@PAGE_SIZES
@pytest.mark.parametrize(("manager", "report"), [("1", "2"), ("2", "1")])
def test_a_manager_whose_account_is_provisioned_later_is_set_then(
    page_size: int, manager: str, report: str
) -> None:
    company = Company(page_size)
    company.hr.put(manager, department="Outside")
    company.employ(**{f"_{report}": manager})
    assert managers()[report] == manager
    assert company.ad.pending() == {f"u{report}": ("create", {"id": f"u{report}"})}
    company.export()
    company.hr.put(manager)

    company.synchronise()

    assert company.ad.pending() == {
        f"u{manager}": ("create", {"id": f"u{manager}"}),
        f"u{report}": ("update", {"manager": f"u{manager}"}),
    }


@PAGE_SIZES
@pytest.mark.parametrize("deprovision", ["delete", "disconnect"])
@pytest.mark.parametrize(("manager", "report"), [("1", "2"), ("2", "1")])
def test_a_manager_whose_account_is_deprovisioned_is_removed_there(
    page_size: int, deprovision: str, manager: str, report: str
) -> None:
    company = Company(page_size, deprovision=deprovision)
    company.employ(**{f"_{manager}": None, f"_{report}": manager})
    company.export()
    company.hr.put(manager, department="Outside")

    company.synchronise()

    assert managers() == {manager: None, report: manager}
    pending = company.ad.pending()
    assert pending.pop(f"u{report}") == ("update", {"manager": None})
    assert pending == ({f"u{manager}": ("delete", {})} if deprovision == "delete" else {})
    company.export()
    assert in_ad(company)[f"u{report}"] is None
    assert company.ad.pending() == {}
    assert counts(company.hr.run(FULL_SYNC)).keys() == {"unchanged"}


@PAGE_SIZES
def test_a_manager_whose_account_is_not_deleted_after_all_stays_the_manager(page_size: int) -> None:
    company = Company(page_size)
    company.employ(_1=None, _2="1")
    company.export()
    company.hr.put("1", department="Outside")
    company.synchronise()
    company.hr.put("1")

    company.synchronise()

    assert company.ad.pending() == {}


@PAGE_SIZES
def test_a_manager_whose_account_is_found_is_set(page_size: int) -> None:
    company = Company(page_size)
    company.ad.put("u2")
    company.ad.run(FULL_IMPORT)

    company.employ(_1="2", _2=None)

    assert company.ad.pending() == {"u1": ("create", {"id": "u1", "manager": "u2"})}


@PAGE_SIZES
def test_a_manager_who_was_changed_in_the_system_itself_is_corrected(page_size: int) -> None:
    company = Company(page_size)
    company.employ(_1=None, _2="1")
    company.export()
    company.ad.put("u2", manager="u2")
    company.ad.run(FULL_IMPORT)

    company.ad.run(DELTA_SYNC, page_size=page_size)

    assert company.ad.pending() == {"u2": ("update", {"manager": "u1"})}


@PAGE_SIZES
@pytest.mark.parametrize("order", ["HR, Phone", "Phone, HR"])
def test_each_system_gets_its_own_ids(page_size: int, order: str) -> None:
    company, phone = Company(page_size), System("Phone", ATTRIBUTES)
    by_id = [[{"account": "first", "identity": "id"}]]
    rule("in", phone, company.people, {"first": "first"}, joins=by_id, creates=False)
    flows = {"id": {"expression": '"p" + id'}, "manager": {"source": "manager"}}
    rule("out", phone, company.people, flows, joins=by_id)
    phone.put("77", first="2")
    phone.run(FULL_IMPORT)
    company.hr.put("1", manager="2")
    company.hr.put("2", manager="1")
    company.hr.run(FULL_IMPORT)

    for system in (company.hr, phone) if order == "HR, Phone" else (phone, company.hr, phone):
        assert system.run(FULL_SYNC, page_size=page_size).status == "complete"

    assert phone.pending() == {
        "p1": ("create", {"id": "p1", "manager": "77"}),
        "77": ("update", {"manager": "p1"}),
    }
    assert company.ad.pending() == {
        "u1": ("create", {"id": "u1", "manager": "u2"}),
        "u2": ("create", {"id": "u2", "manager": "u1"}),
    }
