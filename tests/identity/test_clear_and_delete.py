"""Clear a system and rebuild it, or delete it: what identities keep, what they lose, and who finds back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from activities.models import Activity
from execution.models import Limit, Worker, WorkerTask
from execution.models.attempt import Finish
from execution.steps.context import Context
from execution.steps.outcome import Outcome
from execution.steps.performing import perform as perform_step
from identity.connectors.connector import Problem
from identity.housekeeping import delete_due_identities
from identity.models import (
    Account,
    ConnectedSystem,
    Flow,
    FormerAccount,
    Identity,
    IdentityType,
    ObjectType,
    PendingExport,
    RunProfile,
    SyncRule,
    UniqueValue,
)
from identity.runs import clearing
from tests.base import NOW, SOMEBODY, claim, enqueue, fresh, make_worker, nursery, work_on
from tests.killing import kept_state, kill_at

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
    perform,
    rule,
)

pytestmark = pytest.mark.django_db

ADA = {"id": "1", "first": "Ada", "department": "IT"}
LATER = NOW + timedelta(days=1)


class Company:
    """People of HR and of a payroll, who get accounts in AD."""

    def __init__(self, *, recalls: bool = True, ad_id: str = "id", **of_type: Any) -> None:
        self.hr, self.pay, self.ad = System("HR"), System("Pay"), System("AD")
        self.people = identity_type(sources=[self.hr], **{"deletion": "authoritative"} | of_type)
        names = ("id", "first", "department", "mail")
        flows = {name: name for name in names}
        self.hr_rule = rule("in", self.hr, self.people, flows, join="id", recalls=recalls)
        rule("in", self.pay, self.people, {"last": "last"}, join="id", creates=False)
        to_ad: dict[str, Any] = {"id": {"expression": ad_id}, "first": "first", "department": "department"}
        self.ad_rule = rule("out", self.ad, self.people, to_ad, deprovision="delete")
        for system in (self.hr, self.pay):
            system.put("0", first="Zoe", last="Null", department="HR")
            system.put("1", first="Ada", last="Bell", department="IT")

    def settle(self, *systems: System) -> Activity:
        """Import and synchronise completely; return the run of the last synchronisation."""
        for system in systems or (self.hr, self.pay):
            system.run(FULL_IMPORT)
            run = system.run(FULL_SYNC)
        return run

    def export(self) -> None:
        self.ad.run(EXPORT)
        self.ad.run(FULL_IMPORT)


@pytest.fixture
def company() -> Company:
    return settled()


def settled(**fields: Any) -> Company:
    """Return a company whose people are known everywhere."""
    made = Company(**fields)
    made.settle()
    made.export()
    assert made.ad.pending() == {}
    return made


def clear(system: System) -> Activity:
    run = perform("clear_system", system=system.row.name)
    assert run.status == "complete", run.error
    return run


def delete(system: System, **fields: Any) -> Activity:
    return perform("delete_system", system=system.row.name, **fields)


def status_of(system: System) -> str:
    return fresh(system.row).status


def uuids() -> dict[str, Any]:
    return {name: each.uuid for name, each in identities().items()}


# Clear


def test_the_accounts_are_forgotten_and_the_identities_stay_as_they_are(company: Company) -> None:
    company.hr.change("1", first="Eda")
    company.settle(company.hr)
    before = {name: (each.uuid, each.attrs) for name, each in identities().items()}
    assert company.ad.pending() != {}

    run = clear(company.ad)

    assert counts(run) == {"removed": 2}
    assert (company.ad.accounts(), company.ad.pending()) == ({}, {})
    assert {name: (each.uuid, each.attrs) for name, each in identities().items()} == before
    assert company.ad.objects["1"] == ADA
    row = fresh(company.ad.row)
    assert (row.status, row.watermark, row.imported_at) == ("rebuilding", None, None)


def test_while_a_source_is_rebuilt_no_value_is_recalled_and_nobody_is_marked(company: Company) -> None:
    before = {name: each.attrs for name, each in identities().items()}
    clear(company.hr)

    run = company.settle(company.pay)

    assert counts(run) == {"unchanged": 2}
    assert {name: each.attrs for name, each in identities().items()} == before
    assert not Identity.objects.exclude(delete_after=None).exists()
    assert company.ad.pending() == {}


def test_while_a_target_is_rebuilt_nothing_is_provisioned(company: Company) -> None:
    clear(company.ad)
    company.hr.put("2", first="Bea")
    company.hr.change("1", first="Eda")

    company.settle(company.hr)

    assert (company.ad.accounts(), company.ad.pending()) == ({}, {})


RUNS: dict[str, Callable[[System], object]] = {
    "FI": lambda system: system.run(FULL_IMPORT),
    "FS": lambda system: system.run(FULL_SYNC),
    "DS": lambda system: system.run(DELTA_SYNC),
    "clear": clear,
}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ("FI", "rebuilding"),
        ("FS", "rebuilding"),
        ("FI DS", "rebuilding"),
        ("FS FI", "rebuilding"),
        ("FI clear FS", "rebuilding"),
        ("FI FS", "active"),
        ("FI DS FS", "active"),
    ],
)
@pytest.mark.parametrize("name", ["hr", "ad"])
def test_a_full_import_and_then_a_full_synchronisation_end_the_rebuilding(
    name: str, runs: str, expected: str, company: Company
) -> None:
    system = getattr(company, name)
    clear(system)
    for each in runs.split():
        RUNS[each](system)
    assert status_of(system) == expected


def test_a_delta_import_needs_a_full_import_first(company: Company) -> None:
    clear(company.hr)
    run = company.hr.run(DELTA_IMPORT)
    assert (run.status, run.error) == (
        "failed_with_error",
        "“HR” has not been imported yet. Run a full import first.",
    )


@pytest.mark.parametrize("page_size", [1, 1000])
def test_identities_find_back_by_their_join_rules_and_nothing_changes_elsewhere(
    page_size: int, company: Company
) -> None:
    before = {name: (each.uuid, each.attrs) for name, each in identities().items()}
    clear(company.hr)
    company.hr.run(FULL_IMPORT)

    run = company.hr.run(FULL_SYNC, page_size=page_size)

    assert counts(run) == {"joined": 2}
    assert {name: (each.uuid, each.attrs) for name, each in identities().items()} == before
    assert company.ad.pending() == {}
    assert counts(company.hr.run(FULL_SYNC)) == {"unchanged": 2}


@pytest.mark.parametrize(
    ("recalls", "expected"),
    [
        pytest.param(True, {"last": "Bell"}, id="recalled"),
        pytest.param(False, {"last": "Bell", **ADA}, id="kept"),
    ],
)
def test_values_of_an_account_that_did_not_return_go_as_its_rule_says(
    recalls: bool, expected: dict[str, Any]
) -> None:
    company = settled(recalls=recalls, deletion="manual")
    # Without an identifier, Ada could have no account in AD.
    SyncRule.objects.filter(pk=company.ad_rule.pk).update(is_enabled=False)
    [ada] = [each for each in identities().values() if each.attrs["id"] == "1"]
    clear(company.hr)
    company.hr.drop("1")

    company.settle(company.hr)

    assert fresh(ada).attrs == expected
    assert fresh(ada).delete_after is None


def test_an_identity_whose_authoritative_account_did_not_return_is_marked(company: Company) -> None:
    IdentityType.objects.update(grace_days=30)
    before = uuids()
    clear(company.hr)
    company.hr.drop("1")

    run = company.settle(company.hr)

    ada = identities()["1"]
    assert counts(run) == {"joined": 1, "marked": 1}
    assert (ada.uuid, ada.attrs["first"]) == (before["1"], "Ada")
    assert ada.delete_after == NOW + timedelta(days=30)
    assert ada.deletion is not None
    assert ada.deletion["by"]["name"] == SOMEBODY.name
    assert identities()["0"].delete_after is None


def test_it_is_marked_even_if_no_value_came_from_the_account(company: Company) -> None:
    company.people.sources.add(company.pay.row)
    IdentityType.objects.update(grace_days=30, sources_mode="any")
    company.pay.put("1")
    company.settle(company.pay)
    assert "last" not in identities()["1"].attrs
    clear(company.pay)
    company.pay.drop("1")

    company.settle(company.pay)

    assert identities()["1"].delete_after is not None


def test_values_that_the_account_no_longer_has_are_cleared(company: Company) -> None:
    clear(company.hr)
    company.hr.change("1", department=None)

    company.settle(company.hr)

    assert identities()["1"].attrs == {"id": "1", "first": "Ada", "last": "Bell"}
    assert company.ad.pending() == {"1": ("update", {"department": None})}
    assert counts(company.hr.run(FULL_SYNC)) == {"unchanged": 2}


BY_MAIL = [[{"account": "mail", "identity": "mail"}]]


@pytest.mark.parametrize(
    ("ad_id", "joins"),
    [
        pytest.param("id", [], id="by the external id"),
        pytest.param('"u" + id', [], id="by an external id that is computed"),
        pytest.param('"u" + id', [[{"account": "first", "identity": "first"}]], id="by a join rule"),
    ],
)
@pytest.mark.parametrize("page_size", [1, 1000])
def test_accounts_of_a_target_are_joined_to_their_identities_and_none_is_created(
    page_size: int, ad_id: str, joins: Any
) -> None:
    company = settled(ad_id=ad_id)
    company.ad.put("service", first="Backup")
    SyncRule.objects.filter(pk=company.ad_rule.pk).update(joins=joins)
    before = dict(company.ad.objects)
    clear(company.ad)
    company.ad.run(FULL_IMPORT)

    run = company.ad.run(FULL_SYNC, page_size=page_size)

    assert counts(run)["joined"] == 2
    joined = Account.objects.filter(system=company.ad.row, identity__isnull=False)
    assert list(joined.values_list("join", flat=True)) == ["provisioned"] * 2
    assert {each.identity for each in joined} == set(identities().values())
    company.export()
    assert company.ad.objects == before
    assert [log for log in company.ad.store.log if log[0] != "create"] == []
    assert len(company.ad.store.log) == 2


def test_a_delta_synchronisation_of_the_target_joins_them_too(company: Company) -> None:
    clear(company.ad)
    company.ad.run(FULL_IMPORT)
    assert counts(company.ad.run(DELTA_SYNC)) == {"joined": 2}


def test_a_synchronisation_of_the_source_joins_them_and_creates_none(company: Company) -> None:
    clear(company.ad)
    company.ad.run(FULL_IMPORT)
    company.hr.put("2", first="Bea")

    run = company.settle(company.hr)

    assert counts(run) == {"projected": 1, "joined": 2}
    assert company.ad.pending() == {}


def test_who_came_while_the_target_was_rebuilt_is_provisioned_at_the_end(company: Company) -> None:
    clear(company.ad)
    company.hr.put("2", first="Bea")
    company.settle(company.hr)

    run = company.settle(company.ad)

    assert counts(run) == {"joined": 2, "provisioned": 1, "staged": 1}
    assert company.ad.pending() == {"2": ("create", {"id": "2", "first": "Bea"})}


def test_an_account_that_vanished_while_it_was_forgotten_is_created_again(company: Company) -> None:
    clear(company.ad)
    company.ad.drop("1")

    company.settle(company.ad)

    assert company.ad.pending() == {"1": ("create", ADA)}


@pytest.mark.parametrize("has_inbound_rule", [False, True])
def test_accounts_that_jim_governed_are_governed_again(has_inbound_rule: bool) -> None:
    """Otherwise, the accounts of leavers would stay for ever."""
    company = Company()
    if has_inbound_rule:
        rule("in", company.ad, company.people, {"mail": "mail"}, join="id", creates=False)
    company.settle()
    company.export()
    company.settle(company.ad)
    clear(company.ad)
    company.settle(company.ad)
    company.hr.drop("1")

    company.settle(company.hr)

    assert company.ad.pending() == {"1": ("delete", {})}


def test_who_leaves_while_a_target_is_rebuilt_is_deleted_at_the_end(company: Company) -> None:
    """Before, the account could not be taken away."""
    clear(company.ad)
    company.hr.drop("1")
    company.settle(company.hr)
    delete_due_identities(NOW)
    assert fresh(identities()["1"]).delete_after == NOW

    run = company.settle(company.ad)

    assert counts(run) == {"joined": 2, "staged": 1, "deleted": 1}
    assert (set(uuids()), company.ad.pending()) == ({"0"}, {"1": ("delete", {})})


def test_objects_that_cannot_be_read_keep_the_system_in_rebuilding(company: Company) -> None:
    """Whoever is in a broken line of the file has not left."""
    clear(company.hr)
    ada = company.hr.objects["1"]
    company.hr.drop("1")
    company.hr.store.problems = [Problem("person", "line 2", "bad_record", "too few fields", "1")]

    company.settle(company.hr)

    assert status_of(company.hr) == "rebuilding"
    assert identities()["1"].attrs["first"] == "Ada"
    company.hr.store.problems = []
    company.hr.put(**{"external_id": "1"} | {name: ada[name] for name in ("first", "department")})
    company.settle(company.hr)
    assert status_of(company.hr) == "active"


def test_more_identities_than_the_limit_allows_are_settled_after_an_approval_only(company: Company) -> None:
    for number in range(2, 12):
        company.hr.put(str(number), first="Bea")
    company.settle(company.hr)
    before = uuids()
    clear(company.hr)
    company.hr.drop(*[str(number) for number in range(2, 12)])

    run = company.settle(company.hr)

    assert (run.status, run.error.partition(":")[0]) == ("failed_with_error", "limit_exceeded")
    assert "10 of 12 objects would lose their identity" in run.error
    assert (status_of(company.hr), uuids()) == ("rebuilding", before)
    profile = RunProfile.objects.get(system=company.hr.row, run_type=FULL_SYNC)
    RunProfile.objects.filter(pk=profile.pk).update(approval=profile.finding)
    run = company.hr.run(FULL_SYNC)
    assert (run.status, counts(run)["deleted"]) == ("complete", 10)
    assert (status_of(company.hr), set(uuids())) == ("active", {"0", "1"})
    assert not FormerAccount.objects.exists()


def test_a_system_that_is_being_deleted_cannot_be_cleared(company: Company) -> None:
    company.hr.row.begin_deletion()
    run = perform("clear_system", system="HR")
    assert (run.status, run.error) == (
        "failed_with_error",
        "“HR” is being deleted, so it cannot be cleared.",
    )


# Delete


def test_all_that_belongs_to_the_system_is_gone_and_the_deletion_is_recorded(company: Company) -> None:
    unique: dict[str, Any] = {"mail": {"expression": "unique(lower(first))"}}
    rule("out", company.ad, company.people, unique, position=1)
    company.hr.run(FULL_SYNC)
    assert UniqueValue.objects.count() == 2
    definition = company.ad.row.definition()

    run = delete(company.ad)

    assert (run.status, counts(run)) == ("complete", {"disconnected": 2, "removed": 2})
    assert sorted(items(run)) == [("0", "disconnected", ""), ("1", "disconnected", "")]
    assert set(ConnectedSystem.objects.values_list("name", flat=True)) == {"HR", "Pay"}
    assert not ObjectType.objects.filter(pk=company.ad.type.pk).exists()
    assert not Account.objects.filter(type=company.ad.type.pk).exists()
    assert not PendingExport.objects.exists()
    assert not SyncRule.objects.filter(direction="out").exists()
    assert not Flow.objects.filter(rule=company.ad_rule.pk).exists()
    assert not RunProfile.objects.filter(system=company.ad.row.pk).exists()
    assert not Limit.objects.filter(key=f"resource:{company.ad.row.resource}").exists()
    assert not UniqueValue.objects.exists()
    recorded = Activity.objects.get(operation="delete", target_type="connectedsystem")
    assert (recorded.target_name, recorded.initiator_name) == ("AD", SOMEBODY.name)
    assert recorded.details == definition
    assert identities().keys() == {"0", "1"}


def test_the_objects_in_the_system_itself_stay(company: Company) -> None:
    delete(company.ad)
    assert company.ad.objects["1"] == ADA


@pytest.mark.parametrize(
    ("deletion", "mode", "deleted", "expected"),
    [
        pytest.param("manual", "all", ["hr", "pay", "ad"], False, id="by hand only"),
        pytest.param("authoritative", "all", ["hr"], False, id="one of two sources"),
        pytest.param("authoritative", "all", ["hr", "pay"], True, id="the last source"),
        pytest.param("authoritative", "any", ["pay"], True, id="any source"),
        pytest.param("authoritative", "any", ["ad"], False, id="no source"),
        pytest.param("last_connector", "all", ["hr", "pay"], False, id="an account is left"),
        pytest.param("last_connector", "all", ["hr", "pay", "ad"], True, id="the last account"),
    ],
)
def test_identities_are_marked_as_their_type_says(
    deletion: str, mode: str, deleted: list[str], expected: bool
) -> None:
    company = settled(deletion=deletion, sources_mode=mode, grace_days=30, recalls=False)
    company.people.sources.add(company.pay.row)

    for name in deleted:
        run = delete(getattr(company, name))
        assert run.status == "complete", run.error

    marked = Identity.objects.exclude(delete_after=None)
    assert marked.count() == (2 if expected else 0)
    assert not expected or counts(run)["marked"] == 2
    for each in marked:
        assert each.deletion is not None
        assert each.deletion["by"]["name"] == SOMEBODY.name


def test_without_a_grace_period_the_next_chore_deletes_them_and_their_accounts(company: Company) -> None:
    delete(company.hr)
    assert company.ad.pending() == {}
    delete_due_identities(NOW)
    assert not Identity.objects.exists()
    assert company.ad.pending() == {"0": ("delete", {}), "1": ("delete", {})}


@pytest.mark.parametrize("is_cleared", [False, True])
@pytest.mark.parametrize(
    ("recalls", "expected"),
    [
        pytest.param(True, {"last": "Bell"}, id="recalled"),
        pytest.param(False, {"last": "Bell", **ADA}, id="kept"),
    ],
)
def test_values_of_a_deleted_system_go_as_its_rule_said(
    recalls: bool, expected: dict[str, Any], is_cleared: bool
) -> None:
    company = settled(recalls=recalls, deletion="manual")
    SyncRule.objects.filter(pk=company.ad_rule.pk).update(is_enabled=False)
    ada = identities()["1"]
    if is_cleared:
        clear(company.hr)

    delete(company.hr)

    assert fresh(ada).attrs == expected
    company.pay.change("1", last="Blum")
    company.settle(company.pay)
    assert fresh(ada).attrs == {**expected, "last": "Blum"}


def test_identities_of_a_cleared_system_are_marked_when_it_is_deleted(company: Company) -> None:
    IdentityType.objects.update(grace_days=30)
    clear(company.hr)
    delete(company.hr)
    assert Identity.objects.exclude(delete_after=None).count() == 2


# A deletion that fails


def spoil(company: Company) -> Flow:
    """Add a flow whose values do not fit for Ada, so that her identity cannot be computed any more."""
    [pay_rule] = company.pay.type.rules.all()
    return Flow.objects.create(rule=pay_rule, target="ends", source="last", priority=100)


def test_after_a_failure_the_system_is_active_again_and_can_be_deleted_again(company: Company) -> None:
    company.pay.change("0", last="2026-01-01")
    company.settle(company.pay)
    flow = spoil(company)

    run = delete(company.hr)

    assert (run.status, run.items_failed) == ("failed_with_error", 1)
    assert run.error.startswith("1 of the accounts of “HR” could not be removed")
    assert [name for name, _, error in items(run) if error] == ["1"]
    row = fresh(company.hr.row)
    assert (row.status, row.imported_at, list(company.hr.accounts())) == ("active", None, ["1"])
    flow.delete()
    assert delete(company.hr).status == "complete"
    assert not ConnectedSystem.objects.filter(name="HR").exists()


def test_a_cleared_system_of_which_the_deletion_failed_is_still_to_be_rebuilt(company: Company) -> None:
    clear(company.hr)
    company.hr.run(FULL_IMPORT)
    company.hr.run(DELTA_SYNC)
    spoil(company)

    assert delete(company.hr).status == "failed_with_error"

    assert status_of(company.hr) == "rebuilding"


class Interrupting:
    """Receives what a step says; at the first progress, something happens to the step."""

    def __init__(self, happen: Callable[[], object]) -> None:
        self.happen = happen

    def progress(self, done: int, total: int | None, message: str) -> None:
        self.happen()

    def output(self, stream: str, lines: list[str]) -> None: ...

    def item(self, name: str, outcome: str, message: str) -> None: ...


def delete_until(happen: Callable[[Context, Worker], object]) -> Outcome:
    """Delete HR; after the first page, let something happen."""
    worker = make_worker()
    enqueue(step_of("delete_system"))
    [task] = claim(worker)
    sink = Interrupting(lambda: happen(ctx, worker))
    ctx = Context(task.work, sink)
    with nursery() as children:
        outcome = perform_step(task.work, sink, nursery=children, context=ctx, clock=lambda: NOW)
    WorkerTask.objects.finish([Finish(task, outcome)], worker_id=worker.pk, now=NOW)
    return outcome


def step_of(step_type: str) -> dict[str, Any]:
    return {"name": step_type, "step_type": step_type, "config": {"system": "HR"}, "max_retries": 0}


def test_after_a_cancellation_the_system_is_active_again(company: Company) -> None:
    outcome = delete_until(lambda ctx, worker: ctx.interrupt("cancel"))
    assert (outcome.status, status_of(company.hr)) == ("cancelled", "active")


def test_an_attempt_that_was_given_up_leaves_the_system_to_the_next_one(company: Company) -> None:
    def lose(ctx: Context, worker: Worker) -> None:
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        WorkerTask.objects.recover(now=NOW)

    outcome = delete_until(lose)

    assert (outcome.error, status_of(company.hr)) == ("worker lost its lease", "deleting")
    work(make_worker())
    assert not ConnectedSystem.objects.filter(name="HR").exists()


# kill -9, at any commit


def outline() -> dict[str, list[Any]]:
    """Return all that matters, without the numbers of rows."""
    accounts = Account.objects.values_list("type__name", "external_id", "identity__uuid", "join", "status")
    pending = PendingExport.objects.values_list("account__external_id", "operation", "changes", "status")
    systems = ConnectedSystem.objects.values_list("name", "status", "watermark", "running_activity_id")
    rules = SyncRule.objects.values_list("name", "revision")
    found: dict[str, Any] = {
        "identities": Identity.objects.values_list("uuid", "attrs", "delete_after", "is_dirty"),
        "accounts": accounts,
        "pending": pending,
        "systems": systems,
        "rules": rules,
        "former": FormerAccount.objects.values_list("identity__uuid", "join"),
        "deletions": Activity.objects.filter(operation="delete").values_list("target_name"),
    }
    return {name: sorted(map(str, rows)) for name, rows in found.items()}


def rebuild(company: Company) -> dict[str, Any]:
    """Return the step that ends the rebuilding of HR, to which Ada did not return."""
    clear(company.hr)
    company.hr.drop("1")
    company.hr.run(FULL_IMPORT)
    profile = RunProfile.objects.get(system=company.hr.row, run_type=FULL_SYNC)
    RunProfile.objects.filter(pk=profile.pk).update(page_size=2)
    return company.hr.step(profile)


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda company: step_of("clear_system"), id="clear"),
        pytest.param(rebuild, id="rebuild"),
        pytest.param(lambda company: step_of("delete_system"), id="delete"),
    ],
)
def test_a_run_that_is_killed_and_repeated_comes_to_the_same_end(
    prepare: Callable[[Company], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearing, "AT_ONCE", 5)
    company = settled(grace_days=30)
    for number in range(10, 16):
        company.hr.put(str(number), first="Cai")
    company.settle(company.hr)
    enqueue(prepare(company))
    worker = make_worker()
    with kept_state("identity") as restore:
        work(worker)
        expected = outline()
        for place in count(1):
            restore()
            if not kill_at(place, partial(work, worker)).was_killed:
                break
            Worker.objects.filter(pk=worker.pk).bury(now=NOW)
            WorkerTask.objects.recover(now=NOW)
            work(make_worker())
            assert outline() == expected
    assert place > 5


def work(worker: Worker) -> None:
    work_on(worker, claim(worker))
