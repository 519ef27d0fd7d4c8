"""How much a run may remove before a person has to look at it, and what an approval allows."""

from __future__ import annotations

from typing import Any

import pytest

from activities.models import Activity
from identity.models import Account, PendingExport, RunProfile
from tests.base import enqueue, fresh, run_until_idle

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
NO_LIMITS = {"absent": {"percent": None}, "losses": {"percent": None}, "deletes": {"percent": None}}
STAFF = {"attribute": "department", "operator": "is_empty"}


def imported(number: int) -> System:
    hr = System("HR")
    for each in range(number):
        hr.put(f"{each:03}", first="Ada")
    hr.run(FULL_IMPORT)
    return hr


class Company:
    """People of HR, all of whom have an account in AD."""

    def __init__(self, number: int) -> None:
        self.hr, self.ad = imported(number), System("AD")
        people = identity_type()
        self.rule = rule(
            "in", self.hr, people, {"id": "id", "first": "first", "department": "department"}, join="id"
        )
        flows = {"id": {"source": "id"}, "first": {"source": "first"}}
        rule("out", self.ad, people, flows, scope=STAFF, deprovision="delete")
        self.hr.run(FULL_SYNC)
        self.ad.run(EXPORT)
        self.ad.run(FULL_IMPORT)

    def lose(self, number: int) -> None:
        """Let HR lose people; the import is allowed to find out."""
        drop(self.hr, number)
        assert self.hr.run(FULL_IMPORT, limits=NO_LIMITS).status == "complete"

    def stage_deletes(self, number: int) -> None:
        for external_id in list(self.hr.objects)[:number]:
            self.hr.change(external_id, department="Outside")
        self.hr.run(FULL_IMPORT)
        self.hr.run(DELTA_SYNC)
        assert PendingExport.objects.filter(operation="delete").count() == number


def drop(system: System, number: int) -> None:
    system.drop(*list(system.objects)[:number])


def approve(system: System, run_type: str) -> None:
    """Approve what the last run of the profile has found."""
    found = profile(system, run_type)
    found.approval = {"digest": finding(system, run_type)["digest"]}
    found.save()


def profile(system: System, run_type: str) -> RunProfile:
    return RunProfile.objects.get(system=system.row, run_type=run_type)


def finding(system: System, run_type: str) -> dict[str, Any]:
    found = profile(system, run_type).finding
    assert found is not None
    return dict(found)


def has_exceeded(run: Activity) -> bool:
    """Return whether the run ended because of a limit; assert that it is complete otherwise."""
    if run.status == "failed_with_error":
        assert run.error.startswith("limit_exceeded: ")
        return True
    assert run.status == "complete"
    return False


def statuses(system: System) -> set[str]:
    return set(Account.objects.filter(system=system.row).values_list("status", flat=True))


# What is allowed

LIMITS = [
    pytest.param(20, 5, {}, False, id="up to 5, whatever share this is"),
    pytest.param(20, 6, {}, True, id="more than 5, and more than the share"),
    pytest.param(20, 15, {"percent": None}, False, id="no limit"),
    pytest.param(20, 7, {"percent": None, "count": 6}, True, id="more than the number"),
]
MORE_LIMITS = [
    pytest.param(6, 5, {"percent": 1}, False, id="the floor counts more than the share"),
    pytest.param(20, 6, {"percent": 30}, False, id="exactly the share"),
    pytest.param(20, 7, {"percent": 30}, True, id="more than the share"),
    pytest.param(20, 6, {"percent": None, "count": 6}, False, id="exactly the number"),
    pytest.param(20, 7, {"percent": 50, "count": 6}, True, id="the number counts as well as the share"),
    pytest.param(20, 3, {"percent": 10, "floor": 2}, True, id="a lower floor"),
    pytest.param(20, 1, {"percent": 0, "floor": 0}, True, id="none at all"),
    pytest.param(20, 10, {"floor": 10}, False, id="a higher floor"),
]
Limit = dict[str, int | None]


@pytest.mark.parametrize(("number", "gone", "limit", "exceeded"), LIMITS + MORE_LIMITS)
def test_a_full_import_may_find_so_many_absent(number: int, gone: int, limit: Limit, exceeded: bool) -> None:
    hr = imported(number)
    drop(hr, gone)

    run = hr.run(FULL_IMPORT, limits={"absent": limit})

    assert has_exceeded(run) is exceeded
    assert Account.objects.filter(status="obsolete").count() == (0 if exceeded else gone)


@pytest.mark.parametrize(("number", "gone", "limit", "exceeded"), LIMITS)
def test_a_synchronisation_may_disconnect_so_many(
    number: int, gone: int, limit: Limit, exceeded: bool
) -> None:
    hr = imported(number)
    rule("in", hr, identity_type(), {"id": "id"})
    hr.run(FULL_SYNC)
    drop(hr, gone)
    hr.run(FULL_IMPORT, limits=NO_LIMITS)

    run = hr.run(DELTA_SYNC, limits={"losses": limit})

    assert has_exceeded(run) is exceeded
    assert Account.objects.filter(identity__isnull=False).count() == number - (0 if exceeded else gone)


@pytest.mark.parametrize(("number", "gone", "limit", "exceeded"), LIMITS)
def test_an_export_may_delete_so_many(number: int, gone: int, limit: Limit, exceeded: bool) -> None:
    company = Company(number)
    company.stage_deletes(gone)

    run = company.ad.run(EXPORT, limits={"deletes": limit})

    assert has_exceeded(run) is exceeded
    assert len(company.ad.objects) == number - (0 if exceeded else gone)


@pytest.mark.parametrize(("gone", "exceeded"), [(10, False), pytest.param(11, True, id="case 46: 11 %")])
@pytest.mark.parametrize("page_size", [2, 1000])
def test_by_default_ten_percent_may_be_absent(gone: int, exceeded: bool, page_size: int) -> None:
    hr = imported(100)
    drop(hr, gone)

    run = hr.run(FULL_IMPORT, page_size=page_size)

    assert has_exceeded(run) is exceeded
    assert counts(run).get("absent", 0) == (0 if exceeded else gone)


@pytest.mark.parametrize(("gone", "exceeded"), [(10, False), (11, True)])
@pytest.mark.parametrize("page_size", [2, 1000])
def test_by_default_ten_percent_may_lose_their_identity(gone: int, exceeded: bool, page_size: int) -> None:
    hr = imported(100)
    rule("in", hr, identity_type(), {"id": "id"})
    hr.run(FULL_SYNC)
    drop(hr, gone)
    hr.run(FULL_IMPORT, limits=NO_LIMITS)

    run = hr.run(DELTA_SYNC, page_size=page_size)

    assert has_exceeded(run) is exceeded
    assert counts(run).get("disconnected", 0) == (0 if exceeded else gone)


@pytest.mark.parametrize(("gone", "exceeded"), [(6, False), (7, True)])
def test_by_default_five_percent_may_be_deleted(gone: int, exceeded: bool) -> None:
    company = Company(120)
    company.stage_deletes(gone)

    run = company.ad.run(EXPORT)

    assert has_exceeded(run) is exceeded
    assert counts(run).get("deleted", 0) == (0 if exceeded else gone)


# What a run leaves that exceeds a limit


def test_case_46_an_import_that_exceeds_its_limit_takes_nothing_for_absent() -> None:
    hr = imported(100)
    watermark = fresh(hr.row).watermark
    drop(hr, 11)
    hr.change("099", first="Ann")
    hr.put("100")

    run = hr.run(FULL_IMPORT)

    assert run.status == "failed_with_error"
    assert run.error.startswith(
        "limit_exceeded: 11 of 101 objects are no longer in the input, but at most 10 %"
    )
    assert statuses(hr) == {"present"}
    assert sorted(items(run)) == [("099", "updated", ""), ("100", "added", "")]
    assert fresh(hr.row).watermark == watermark


def test_the_profile_remembers_what_the_run_found() -> None:
    hr = imported(20)
    drop(hr, 6)

    run = hr.run(FULL_IMPORT)

    found = finding(hr, FULL_IMPORT)
    assert {name: found[name] for name in ("removal", "number", "total", "activity")} == {
        "removal": "absent",
        "number": 6,
        "total": 20,
        "activity": run.pk,
    }


def test_the_finding_is_forgotten_when_the_input_is_complete_again() -> None:
    hr = imported(20)
    gone = dict(list(hr.store.objects.items())[:6])
    drop(hr, 6)
    hr.run(FULL_IMPORT)
    hr.store.objects |= gone

    assert hr.run(FULL_IMPORT).status == "complete"
    assert profile(hr, FULL_IMPORT).finding is None


def test_a_run_that_exceeds_its_limit_is_not_repeated_by_itself() -> None:
    hr = imported(20)
    drop(hr, 6)
    before = Activity.objects.filter(target_type="run_profile").count()

    enqueue(hr.step(profile(hr, FULL_IMPORT), max_retries=3))
    run_until_idle()

    assert Activity.objects.filter(target_type="run_profile").count() == before + 1


@PAGE_SIZES
@pytest.mark.parametrize("run_type", [FULL_SYNC, DELTA_SYNC])
def test_a_synchronisation_that_exceeds_its_limit_changes_nothing(page_size: int, run_type: str) -> None:
    company = Company(20)
    company.hr.change("019", first="Ann")
    company.lose(6)
    before = {name: (each.attrs, each.version) for name, each in identities().items()}

    run = company.hr.run(run_type, page_size=page_size)

    assert run.error.startswith("limit_exceeded: 6 of 20 objects would lose their identity, but at most 10 %")
    assert items(run) == []
    assert {name: (each.attrs, each.version) for name, each in identities().items()} == before
    assert company.ad.pending() == {}
    assert Account.objects.filter(system=company.hr.row, is_dirty=True).count() == 7


def test_a_changed_scope_may_not_disconnect_too_many() -> None:
    company = Company(20)
    company.rule.scope = {"attribute": "id", "operator": "greater", "value": "005"}
    company.rule.save()

    assert has_exceeded(company.hr.run(FULL_SYNC))
    assert Account.objects.filter(system=company.hr.row, identity=None).count() == 0


def test_an_export_that_exceeds_its_limit_sends_nothing() -> None:
    company = Company(20)
    company.hr.put("100")
    company.hr.change("019", first="Ann")
    company.stage_deletes(6)
    log = list(company.ad.store.log)

    run = company.ad.run(EXPORT)

    assert run.error.startswith("limit_exceeded: 6 of 20 objects would be deleted, but at most 5 %")
    assert items(run) == []
    assert company.ad.store.log == log
    assert set(PendingExport.objects.values_list("status", flat=True)) == {"pending"}


# What does not count


def test_accounts_that_jim_deleted_are_not_absent() -> None:
    company = Company(20)
    company.stage_deletes(6)
    company.ad.run(EXPORT, limits=NO_LIMITS)

    run = company.ad.run(FULL_IMPORT)

    assert (run.status, counts(run)) == ("complete", {"confirmed": 6, "unchanged": 14})


def test_other_accounts_that_are_absent_count_as_before() -> None:
    company = Company(20)
    company.stage_deletes(6)
    company.ad.run(EXPORT, limits=NO_LIMITS)
    drop(company.ad, 6)

    run = company.ad.run(FULL_IMPORT)

    assert run.error.startswith("limit_exceeded: 6 of 20 objects are no longer in the input")
    assert Account.objects.filter(system=company.ad.row, status="present").count() == 20


def test_accounts_without_an_identity_are_no_loss() -> None:
    hr = imported(20)
    rule("in", hr, identity_type(), {"id": "id"}, join="id", creates=False)
    hr.run(FULL_SYNC)
    drop(hr, 6)
    hr.run(FULL_IMPORT, limits=NO_LIMITS)

    run = hr.run(FULL_SYNC)

    assert (run.status, counts(run)) == ("complete", {"removed": 6, "unchanged": 14})


def test_accounts_that_stay_joined_although_they_are_gone_are_no_loss() -> None:
    company = Company(20)
    company.rule.out_of_scope = "keep"
    company.rule.save()
    company.lose(6)

    run = company.hr.run(FULL_SYNC)

    assert (run.status, counts(run)) == ("complete", {"unchanged": 20})


# Approvals


def absence() -> tuple[System, str]:
    hr = imported(20)
    drop(hr, 6)
    return hr, FULL_IMPORT


def loss() -> tuple[System, str]:
    company = Company(20)
    company.lose(6)
    return company.hr, FULL_SYNC


def deletion() -> tuple[System, str]:
    company = Company(20)
    company.stage_deletes(6)
    return company.ad, EXPORT


EXCEEDED = pytest.mark.parametrize("exceeding", [absence, loss, deletion])


@EXCEEDED
@pytest.mark.parametrize("page_size", [2, 1000])
def test_a_run_does_what_was_approved(exceeding: Any, page_size: int) -> None:
    system, run_type = exceeding()
    assert has_exceeded(system.run(run_type, page_size=page_size))
    approve(system, run_type)

    run = system.run(run_type)

    assert run.status == "complete"
    assert 6 in {counts(run).get(name) for name in ("absent", "disconnected", "deleted")}
    found = profile(system, run_type)
    assert (found.finding, found.approval) == (None, None)


@EXCEEDED
def test_without_an_approval_the_next_run_finds_the_same(exceeding: Any) -> None:
    system, run_type = exceeding()
    first = system.run(run_type)
    found = finding(system, run_type)

    second = system.run(run_type)

    assert (second.status, second.error) == (first.status, first.error)
    assert finding(system, run_type)["digest"] == found["digest"]


@EXCEEDED
def test_an_approval_of_something_else_allows_nothing(exceeding: Any) -> None:
    system, run_type = exceeding()
    system.run(run_type)
    RunProfile.objects.filter(system=system.row).update(approval={"digest": "of an earlier finding"})

    assert has_exceeded(system.run(run_type))


def test_an_approval_is_used_up_by_one_run() -> None:
    hr = imported(20)
    gone = dict(list(hr.store.objects.items())[:6])
    drop(hr, 6)
    hr.run(FULL_IMPORT)
    approve(hr, FULL_IMPORT)
    assert hr.run(FULL_IMPORT).status == "complete"
    hr.store.objects |= gone
    hr.run(FULL_IMPORT)
    hr.drop(*(external_id for _, external_id in gone))

    assert has_exceeded(hr.run(FULL_IMPORT))


def test_an_approval_is_used_up_by_a_run_that_did_not_need_it() -> None:
    hr = imported(20)
    gone = dict(list(hr.store.objects.items())[:6])
    drop(hr, 6)
    hr.run(FULL_IMPORT)
    approve(hr, FULL_IMPORT)
    hr.store.objects |= gone
    assert hr.run(FULL_IMPORT).status == "complete"
    hr.drop(*(external_id for _, external_id in gone))

    assert has_exceeded(hr.run(FULL_IMPORT))


@pytest.mark.parametrize("others", ["one more", "as many others"])
def test_an_approval_is_bound_to_the_very_objects(others: str) -> None:
    hr = imported(20)
    gone = dict(list(hr.store.objects.items())[:1])
    drop(hr, 6)
    hr.run(FULL_IMPORT)
    approve(hr, FULL_IMPORT)
    drop(hr, 1)
    if others == "as many others":
        hr.store.objects |= gone

    run = hr.run(FULL_IMPORT)

    assert has_exceeded(run)
    assert statuses(hr) == {"present"}


def test_an_approval_is_bound_to_its_profile() -> None:
    hr = imported(20)
    drop(hr, 6)
    hr.run(FULL_IMPORT)
    approve(hr, FULL_IMPORT)
    other = RunProfile.objects.create(system=hr.row, name="Nightly", run_type=FULL_IMPORT)

    enqueue(hr.step(other))
    run_until_idle()

    assert has_exceeded(Activity.objects.filter(target_type="run_profile").latest("pk"))
    assert hr.run(FULL_IMPORT).status == "complete"
