"""Whatever happens, in whatever order: in the end, identities and accounts are what sources and rules say.

People join, change and leave; others change the targets by hand; rules are edited; runs come in any order,
are killed between any two statements, or go on though they were given up; systems refuse what they are sent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from activities.models import Activity
from execution.models import Worker, WorkerTask
from identity.connectors.connector import Change, Result, connectors
from identity.models import (
    Account,
    AccountKey,
    AccountLink,
    Attribute,
    ConnectedSystem,
    Flow,
    Identity,
    IdentityAttribute,
    IdentityKey,
    IdentityType,
    PendingExport,
    RunProfile,
    SyncRule,
    UniqueValue,
)
from identity.values import Match, as_list, folded, same
from tests.base import NOW, claim, enqueue, make_worker, work_on

from .memory import MemoryConnector
from .world import (
    DELTA_IMPORT,
    DELTA_SYNC,
    EXPORT,
    FULL_IMPORT,
    FULL_SYNC,
    System,
    counts,
    identity_type,
    items,
)
from .world import rule as sync_rule

pytestmark = pytest.mark.django_db
STEPS = 15
EXAMPLES = [10, pytest.param(300, marks=pytest.mark.long)]
MOST_ROUNDS = 6
NO_LIMITS = {name: {"percent": 100, "count": None, "floor": 1000} for name in ("absent", "losses", "deletes")}

SUCCESSES = ("complete", "complete_with_warning")
Objects = Mapping[str, Mapping[str, Any]]
RunType = RunProfile.RunType
EITHER = st.booleans()
IDS, NAMES = st.sampled_from("1234"), st.sampled_from(["Ada", "Bea", None])
DEPARTMENTS, MANAGERS = st.sampled_from(["IT", "HR", None]), st.sampled_from(["1", "2", None])
SYSTEMS, PAGE_SIZES = st.integers(0, 3), st.sampled_from([2, 1000])
RUN_TYPES = st.sampled_from([FULL_IMPORT, DELTA_IMPORT, FULL_SYNC, DELTA_SYNC, EXPORT])
PLACES = st.sampled_from(["statement", "statement", "page", "change"])
# These never leave: nobody believes a system that has no objects any more.
STAYING, SERVICE = "0", "service"


# The model: what the rules mean

NOTHING = object()


@dataclass
class Policy:
    """What the rules say. A scope is the only department for which they hold, or None for all."""

    contractors_count: bool = True
    crm_enforces: bool = True
    hr_scope: str | None = None
    ad_scope: str | None = None
    crm_scope: str | None = "IT"
    badge_first: bool = False
    hr_names: bool = True
    empty_name_counts: bool = False
    mail: str = 'lower(name) + "@x"'
    crm_deprovision: str = "disable"
    grace_days: int = 0


def expected_people(policy: Policy, hr: Objects, badge: Objects) -> dict[str, dict[str, Any]]:
    """Return the identities by id, with the ids of their managers."""
    staff = {key: each for key, each in hr.items() if holds(policy.hr_scope, each)}
    contractors = badge.keys() if policy.contractors_count else set()
    return {key: person(policy, key, staff, badge) for key in staff.keys() | contractors}


def person(policy: Policy, key: str, staff: Objects, badge: Objects) -> dict[str, Any]:
    mine, badged, manager = staff.get(key, {}), badge.get(key, {}), staff.get(key, {}).get("manager")
    empty_name = None if key in staff and policy.empty_name_counts else NOTHING
    name_of_hr = mine.get("name", empty_name) if policy.hr_names else NOTHING
    return with_values(
        id=key,
        name=winner(policy, name_of_hr, badged.get("name", NOTHING)),
        department=winner(policy, mine.get("department", NOTHING), badged.get("department", NOTHING)),
        manager=manager if manager in staff else None,
    )


def winner(policy: Policy, of_hr: Any, of_badge: Any) -> Any:
    """Return the value that comes first. NOTHING does not count; None counts, and clears the attribute."""
    values = [of_badge, of_hr] if policy.badge_first else [of_hr, of_badge]
    return next((value for value in values if value is not NOTHING), None)


def with_values(**attrs: Any) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if value is not None}


def expected_ad(policy: Policy, people: Objects, logins: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    users = {key: each for key, each in people.items() if holds(policy.ad_scope, each)}
    return {
        key: with_values(
            id=key,
            name=each.get("name"),
            mail=mail(policy, each.get("name")),
            login=logins[key],
            manager=each["manager"] if each.get("manager") in users else None,
        )
        for key, each in users.items()
    }


def mail(policy: Policy, name: str | None) -> str | None:
    if policy.mail == EXPRESSIONS[0]:
        return f"{name.lower()}@x" if name else None
    return f"{name or 'nobody'}@y"


def expected_crm(policy: Policy, people: Objects) -> dict[str, dict[str, Any]]:
    """CRM writes names in capital letters."""
    return {
        key: with_values(id=key, name=each["name"].upper() if "name" in each else None, active="yes")
        for key, each in people.items()
        if holds(policy.crm_scope, each)
    }


def holds(scope: str | None, attrs: Mapping[str, Any]) -> bool:
    return scope is None or attrs.get("department") == scope


EXPRESSIONS = ('lower(name) + "@x"', 'coalesce(name, "nobody") + "@y"')
EDITS: list[tuple[str, Any]] = [
    *((name, value) for name in ("hr_scope", "ad_scope", "crm_scope") for value in (None, "IT", "HR")),
    *((name, value) for name in ("badge_first", "hr_names", "empty_name_counts") for value in (True, False)),
    *(("mail", value) for value in EXPRESSIONS),
    *(("crm_deprovision", value) for value in ("disable", "delete")),
    *(("grace_days", value) for value in (0, 1)),
]


# The same in JIM


class StrictConnector(MemoryConnector):
    """Changes only what there is, as most systems do."""

    name = "strict"

    def _change(self, change: Change) -> Result:
        if change.operation == "update" and (change.type, change.external_id) not in self.store.objects:
            self.store.before_change(change)
            return Result(change.key, "connector_error", "There is no such object.")
        return super()._change(change)


class World:
    """HR and Badge are read, AD and CRM are written. AD deletes accounts, CRM disables them first."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.hr, self.badge = System("HR", ("id", "name", "department", "manager>")), System("Badge", BADGE)
        self.ad, self.crm = System("AD", ("id", "name", "mail", "login", "manager>")), System("CRM", CRM)
        self.systems = [self.hr, self.badge, self.ad, self.crm]
        connectors.setdefault("strict", StrictConnector)
        ConnectedSystem.objects.update(connector="strict")
        Attribute.objects.filter(type=self.crm.type, name="name").update(match=Match.NOCASE.value)
        self.crm.store.takes = _shouted
        self.people = identity_type(
            ("id", "name", "department", "login", "manager>"),
            sources=[self.hr, self.badge] if policy.contractors_count else [self.hr],
            deletion="authoritative",
        )
        self._define_rules()
        self.apply(policy)
        for system in self.systems:
            system.put(STAYING if system in (self.hr, self.badge) else SERVICE)

    def _define_rules(self) -> None:
        copied: dict[str, Any] = {name: name for name in ("id", "name", "department")}
        unique: dict[str, Any] = {"login": {"expression": "unique(lower(name))"}}
        join: dict[str, Any] = {"join": "id"}
        is_project = self.policy.contractors_count
        self.hr_rule = sync_rule(
            "in", self.hr, self.people, {**copied, "manager": "manager", **unique}, **join
        )
        self.badge_rule = sync_rule("in", self.badge, self.people, copied, creates=is_project, **join)
        to_ad: dict[str, Any] = {
            "id": "id",
            "name": "name",
            "mail": {"expression": EXPRESSIONS[0]},
            "login": "login",
        }
        self.ad_rule = sync_rule(
            "out", self.ad, self.people, {**to_ad, "manager": "manager"}, deprovision="delete"
        )
        self.crm_rule = sync_rule(
            "out",
            self.crm,
            self.people,
            {"id": "id", "name": "name", "active": {"expression": '"yes"'}},
            enforces=self.policy.crm_enforces,
            disable_values={"active": "no"},
        )

    def apply(self, policy: Policy) -> None:
        """Edit the rules so that they say this."""
        self.policy = policy
        for each, scope in (
            (self.hr_rule, policy.hr_scope),
            (self.ad_rule, policy.ad_scope),
            (self.crm_rule, policy.crm_scope),
        ):
            SyncRule.objects.filter(pk=each.pk).update(scope=_scope(scope))
        SyncRule.objects.filter(pk=self.crm_rule.pk).update(deprovision=policy.crm_deprovision)
        IdentityType.objects.filter(pk=self.people.pk).update(grace_days=policy.grace_days)
        Flow.objects.filter(rule=self.badge_rule).update(priority=50 if policy.badge_first else 150)
        Flow.objects.filter(rule=self.ad_rule, target="mail").update(expression=policy.mail)
        self._set_name_of_hr(policy)

    def _set_name_of_hr(self, policy: Policy) -> None:
        flows = Flow.objects.filter(rule=self.hr_rule, target="name")
        if not policy.hr_names:
            flows.delete()
        elif not flows.exists():
            Flow.objects.create(rule=self.hr_rule, target="name", source="name", priority=100)
        flows.update(null_is_value=policy.empty_name_counts)


BADGE, CRM = ("id", "name", "department"), ("id", "name", "active")


def _shouted(attrs: dict[str, Any]) -> dict[str, Any]:
    return {**attrs, "name": attrs["name"].upper()} if "name" in attrs else attrs


def _scope(department: str | None) -> dict[str, Any]:
    if department is None:
        return {}
    return {"attribute": "department", "operator": "equals", "value": department}


# The end of a worker


class Killed(BaseException):
    """The process of the worker is gone: nothing is said, nothing is tidied up."""


class Death:
    """Ends a worker that reaches a place of this kind for this many times; then nothing goes out any more."""

    def __init__(self, place: str, count: int) -> None:
        self.place, self.left = place, count

    def reach(self, place: str) -> None:
        self.left -= place == self.place
        if self.left <= 0:
            raise Killed

    def __call__(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        # A database undoes the transaction of a dead connection; here, a savepoint is rolled back.
        if "SAVEPOINT" not in sql:
            self.reach("statement")
        return execute(sql, *rest)


class Once:
    """Lets something else happen when a place is reached for this many times."""

    def __init__(self, place: str, count: int, happen: Callable[[], object]) -> None:
        self.place, self.left, self.happen = place, count, happen

    def reach(self, place: str) -> None:
        self.left -= place == self.place
        if not self.left:
            self.left = -1
            self.happen()


# What is always true


def violations(world: World, *, rules_apply: bool) -> Iterator[str]:
    """Say what is wrong in the tables, between any two runs."""
    yield from exports_lead_to_what_is_wanted(world)
    yield from keys_and_links_are_right()
    yield from nothing_is_shared()
    are_dirty = any(model.objects.filter(is_dirty=True).exists() for model in (Account, Identity))
    if rules_apply and not are_dirty:
        yield from identities_are_what_their_accounts_say(world)


def exports_lead_to_what_is_wanted(world: World) -> Iterator[str]:
    """A pending export is what is wanted, less what the system has or was sent."""
    accounts = Account.objects.filter(is_dirty=False).select_related("pending", "type")
    enforcing = {world.ad.type.pk} | ({world.crm.type.pk} if world.policy.crm_enforces else set())
    for account in accounts.exclude(status=Account.Status.OBSOLETE).exclude(wanted=None):
        export = getattr(account, "pending", None)
        if export is not None and export.operation == "delete":
            continue
        held = account.attrs if account.status == Account.Status.PRESENT else {}
        sent, changes = (export.sent, dict(export.changes)) if export else ({}, {})
        # What only a creation writes is not wanted afterwards.
        changes.pop("id", None)
        missing = {
            name: value
            for name, value in (account.wanted or {}).items()
            if not same({**held, **sent}.get(name), value, _match(account, name))
        }
        is_right = changes == missing or (
            account.type_id not in enforcing and changes.items() <= missing.items()
        )
        if not is_right:
            yield f"{account.type} {account} misses {missing}, but is to be sent {changes}"


def _match(account: Account, name: str) -> Match:
    return Match.NOCASE if (account.type.system.name, name) == ("CRM", "name") else Match.EXACT


def keys_and_links_are_right() -> Iterator[str]:
    for model, key, attribute, owner in (
        (Account, AccountKey, Attribute, "account"),
        (Identity, IdentityKey, IdentityAttribute, "identity"),
    ):
        keyed = attribute.objects.filter(is_keyed=True).values_list("type", "name", "pk")
        expected = Counter(
            (each.pk, pk, folded(value))
            for each in model.objects.all()
            for kind, name, pk in keyed
            if kind == each.type_id
            for value in as_list(each.attrs.get(name))
        )
        found = Counter(key.objects.values_list(owner, "attribute", "value"))
        if found != expected:
            yield f"keys of {owner}: {found - expected} too many, {expected - found} too few"
    yield from _wrong_links()


def _wrong_links() -> Iterator[str]:
    for account in Account.objects.filter(type__system__name__in=["HR", "AD"]):
        raws = [link.raw for link in AccountLink.objects.filter(owner=account)]
        if raws != as_list(account.attrs.get("manager")) and account.status == Account.Status.PRESENT:
            yield f"the links of {account} are {raws}"
    for link in AccountLink.objects.select_related("target", "attribute__type"):
        theirs = Account.objects.filter(type=link.attribute.type, external_id=link.raw)
        if link.target is None and theirs.exclude(status=Account.Status.OBSOLETE).exists():
            yield f"a link to {link.raw} was not resolved"
        if link.target is not None and link.target.external_id != link.raw:
            yield f"a link to {link.raw} leads to {link.target}"
    uuids = {each.pk: each.uuid for each in Identity.objects.all()}
    for owner in Identity.objects.all():
        targets = {str(uuids[pk]) for pk in owner.links.values_list("target", flat=True)}
        if targets != {
            uuid for uuid in as_list(owner.attrs.get("manager")) if uuid in map(str, uuids.values())
        }:
            yield f"the links of identity {owner} lead to {targets}"


def nothing_is_shared() -> Iterator[str]:
    joined = Account.objects.filter(identity__isnull=False).exclude(status=Account.Status.OBSOLETE)
    for twin, count in Counter(joined.values_list("identity", "type")).items():
        if count > 1:
            yield f"identity {twin[0]} has {count} accounts of the type {twin[1]}"
    logins = Counter(folded(each.attrs["login"]) for each in Identity.objects.all() if "login" in each.attrs)
    yield from (f"{count} identities have the login {name}" for name, count in logins.items() if count > 1)
    for each in Identity.objects.filter(attrs__has_key="login"):
        if not UniqueValue.objects.filter(identity=each, text=each.attrs["login"]).exists():
            yield f"the login of identity {each} is not reserved"


def identities_are_what_their_accounts_say(world: World) -> Iterator[str]:
    """Ask the model for each identity, from the accounts that are joined to it."""
    policy = world.policy
    for each in Identity.objects.filter(delete_after=None):
        mine, badged = (
            each.accounts.filter(system=system.row, status="present").first()
            for system in (world.hr, world.badge)
        )
        staff = {str(mine.external_id): mine.attrs} if mine else {}
        badges = {str(badged.external_id): badged.attrs} if badged else {}
        expected = [_without_references(one) for one in expected_people(policy, staff, badges).values()]
        found = _without_references(each.attrs)
        if [found] != expected:
            yield f"identity {each.pk} is {found}, but its accounts say {expected}"


def _without_references(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if name not in ("login", "manager")}


# What happens


class Machine(RuleBasedStateMachine):
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.now, self.rules_apply, self.steps = NOW, True, 0
        # The accounts in CRM that were changed by hand.
        self.touched: set[str] = set()
        # The UUIDs of people who have been in HR all the time.
        self.steady: dict[str, Any] = {}
        # When identities are to be deleted, by their UUIDs.
        self.marked: dict[Any, Any] = {}
        self.transaction = transaction.atomic()
        self.transaction.__enter__()

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            transaction.set_rollback(True)
            self.transaction.__exit__(None, None, None)

    @initialize(contractors_count=EITHER, crm_enforces=EITHER, is_running=EITHER)
    def begin(self, contractors_count: bool, crm_enforces: bool, is_running: bool) -> None:
        self.world = World(Policy(contractors_count, crm_enforces))
        if is_running:
            for key in "123":
                self.world.hr.put(key, name="Ada", department="IT", manager="1")
            self.read_sources(page_size=1000)
            self.write_targets(confirms=True, page_size=1000)

    # Sources and targets

    @rule(key=IDS, name=NAMES, department=DEPARTMENTS, manager=MANAGERS)
    def put_in_hr(self, key: str, name: str | None, department: str | None, manager: str | None) -> None:
        self.world.hr.put(key, name=name, department=department, manager=manager)

    @rule(key=IDS, name=NAMES, department=DEPARTMENTS)
    def put_in_badge(self, key: str, name: str | None, department: str | None) -> None:
        self.world.badge.put(key, name=name, department=department)

    @rule(of_hr=EITHER, key=IDS)
    def drop(self, of_hr: bool, key: str) -> None:
        system = self.world.hr if of_hr else self.world.badge
        if key in system.objects:
            system.drop(key)

    @rule(of_ad=EITHER, key=IDS, name=NAMES, deletes=EITHER)
    def change_by_hand(self, of_ad: bool, key: str, name: str | None, deletes: bool) -> None:
        system = self.world.ad if of_ad else self.world.crm
        if key in system.objects:
            system.change(key, name=name if of_ad or name is None else name.upper())
            if deletes:
                system.drop(key)
            elif not of_ad:
                self.touched.add(key)

    @rule(of_ad=EITHER, key=IDS, how=st.sampled_from(["for now", "for good", "no longer"]))
    def refuse(self, of_ad: bool, key: str, how: str) -> None:
        answers = (self.world.ad if of_ad else self.world.crm).store.answers
        if how == "no longer":
            answers.clear()
        else:
            answers[key] = Result(0, "connector_error", "It is too late today.", how == "for now")

    @rule(days=st.sampled_from([0.1, 1.0]))
    def wait(self, days: float) -> None:
        self.now += timedelta(days=days)

    @rule(edit=st.sampled_from(EDITS))
    def edit_rules(self, edit: tuple[str, Any]) -> None:
        """Identities are what the rules say again after everything was synchronised."""
        policy = replace(self.world.policy, **dict([edit]))
        self.rules_apply = self.rules_apply and policy == self.world.policy
        self.world.apply(policy)

    # Runs

    @rule(number=SYSTEMS, run_type=RUN_TYPES, page_size=PAGE_SIZES)
    def run(self, number: int, run_type: RunType, page_size: int) -> None:
        self.perform(self.target(number, run_type), run_type, page_size=page_size)

    @rule(page_size=PAGE_SIZES)
    def read_sources(self, page_size: int) -> None:
        for system in (self.world.hr, self.world.badge):
            self.perform(system, FULL_IMPORT, page_size=page_size)
            self.perform(system, DELTA_SYNC, page_size=page_size)

    @rule(run_type=st.sampled_from([FULL_SYNC, DELTA_SYNC]), page_size=PAGE_SIZES)
    def compare_targets(self, run_type: RunType, page_size: int) -> None:
        for system in (self.world.ad, self.world.crm):
            self.perform(system, run_type, page_size=page_size)

    @rule(confirms=EITHER, page_size=PAGE_SIZES)
    def write_targets(self, confirms: bool, page_size: int) -> None:
        for system in (self.world.ad, self.world.crm):
            self.perform(system, EXPORT, page_size=page_size)
            if confirms:
                self.perform(system, FULL_IMPORT, page_size=page_size)

    @rule(number=SYSTEMS, run_type=RUN_TYPES, place=PLACES, count=st.integers(1, 60))
    def kill(self, number: int, run_type: RunType, place: str, count: int) -> None:
        """End the worker at any place. Whoever recovers its task ends the attempt."""
        system = self.target(number, run_type)
        death = Death(place, count if place == "statement" else count % 4 + 1)
        worker = self._hand_out(system, run_type)
        with suppress(Killed), _watched(system, death), connection.execute_wrapper(death):
            work_on(worker, claim(worker, now=self.now), now=self.now)
        # Nothing is wrong with the transaction around all: the statement was never made.
        transaction.set_rollback(False)
        self._bury(worker)

    @rule(
        number=SYSTEMS,
        run_type=st.sampled_from([FULL_IMPORT, DELTA_IMPORT, EXPORT, EXPORT]),
        other=SYSTEMS,
        other_type=RUN_TYPES,
        is_lost=EITHER,
        count=st.integers(1, 3),
    )
    def interrupt(
        self, number: int, run_type: RunType, other: int, other_type: RunType, is_lost: bool, count: int
    ) -> None:
        """Another run comes in between; the first one goes on, even if its worker counts as lost."""
        system, another = self.target(number, run_type), self.target(other, other_type)
        worker = self._hand_out(system, run_type)

        def meanwhile() -> None:
            if is_lost:
                self._bury(worker)
            if is_lost or another is not system:
                self.perform(another, other_type)

        once = Once("change" if run_type == EXPORT else "page", count, meanwhile)
        with _watched(system, once):
            work_on(worker, claim(worker, now=self.now), now=self.now)

    def target(self, number: int, run_type: RunType) -> System:
        """Nothing is ever exported to the sources."""
        return self.world.systems[number | 2 if run_type == EXPORT else number]

    def perform(self, system: System, run_type: RunType, **fields: Any) -> Activity:
        done = system.run(run_type, now=self.now, limits=NO_LIMITS, **fields)
        is_sync = run_type in (FULL_SYNC, DELTA_SYNC)
        assert done.status == "complete" or not is_sync, (system.row.name, items(done))
        return done

    def _hand_out(self, system: System, run_type: RunType) -> Worker:
        fields = {"run_type": run_type, "limits": NO_LIMITS, "page_size": 2}
        profile, _ = RunProfile.objects.update_or_create(
            system=system.row, name=f"{run_type.label} that may die", defaults=fields
        )
        enqueue(system.step(profile), now=self.now)
        return make_worker(self.now)

    def _bury(self, worker: Worker) -> None:
        Worker.objects.filter(pk=worker.pk).bury(now=self.now)
        WorkerTask.objects.recover(now=self.now)

    # What must hold

    @invariant()
    def tables_are_right(self) -> None:
        self.steps += 1
        found = list(violations(self.world, rules_apply=self.rules_apply))
        assert not found, found
        self._keep_track()

    def _keep_track(self) -> None:
        hr, scope = self.world.hr.objects, self.world.policy.hr_scope
        self.steady = {key: uuid for key, uuid in self.steady.items() if key in hr and holds(scope, hr[key])}
        graced = {uuid for uuid, delete_after in self.marked.items() if delete_after > self.now}
        assert graced <= set(Identity.objects.values_list("uuid", flat=True)), "deleted before its time"
        self.marked = dict(Identity.objects.exclude(delete_after=None).values_list("uuid", "delete_after"))

    @precondition(lambda self: self.steps > STEPS / 2)
    @rule()
    def settle(self) -> None:
        """Run everything until nothing changes any more; then compare with the model."""
        self.steps = 0
        for system in self.world.systems:
            system.store.answers.clear()
        # A person asks for what was refused for good, the rest is repeated when its time has come.
        refused = PendingExport.objects.filter(status=PendingExport.Status.REFUSED)
        refused.update(status=PendingExport.Status.PENDING, attempts=0)
        self.now += timedelta(days=2)
        rounds = (self._run_everything() for _ in range(MOST_ROUNDS))
        changes = next((each for each in rounds if not each), Counter("it does not come to an end"))
        assert not changes
        self.rules_apply = True
        self.tables_are_right()
        self.compare()

    def _run_everything(self) -> Counter[str]:
        """Return what has changed."""
        systems, targets = self.world.systems, (self.world.ad, self.world.crm)
        runs = [(system, run_type) for run_type in (FULL_IMPORT, FULL_SYNC) for system in systems]
        runs += [(system, run_type) for run_type in (EXPORT, FULL_IMPORT) for system in targets]
        changes: Counter[str] = Counter()
        for system, run_type in runs:
            done = self.perform(system, run_type)
            assert done.status in SUCCESSES, (system.row.name, run_type, done.error, items(done))
            changes.update(counts(done))
        del changes["unchanged"]
        return changes

    def compare(self) -> None:
        world, policy = self.world, self.world.policy
        people = expected_people(policy, world.hr.objects, world.badge.objects)
        known = _known_people()
        assert {key: _with_manager(each, known) for key, each in known.items()} == people
        uuids = {key: each.uuid for key, each in known.items()}
        assert {key: uuids[key] for key in self.steady} == self.steady
        self.steady = {key: uuid for key, uuid in uuids.items() if key in world.hr.objects}
        self._keep_track()
        logins = {key: each.attrs.get("login") for key, each in known.items()}
        users = expected_ad(policy, people, logins)
        assert world.ad.objects == {SERVICE: {"id": SERVICE}, **users}
        self._compare_crm({SERVICE: {"id": SERVICE}, **expected_crm(policy, people)})

    def _compare_crm(self, users: Objects) -> None:
        """Compare all but values that were changed by hand and may stay; whoever has left is disabled."""
        found = dict(self.world.crm.objects)
        left = [found.pop(key) for key in found.keys() - users.keys()]
        assert all(each["active"] == "no" for each in left)
        may_differ = set() if self.world.policy.crm_enforces else self.touched
        expected = {key: found.get(key) if key in may_differ else each for key, each in users.items()}
        assert found == expected
        assert all(found[key]["active"] == "yes" for key in may_differ & users.keys())


def _known_people() -> dict[str, Identity]:
    everybody = {each.attrs["id"]: each for each in Identity.objects.all()}
    assert len(everybody) == Identity.objects.count(), "somebody has two identities"
    return everybody


def _with_manager(identity: Identity, known: Mapping[str, Identity]) -> dict[str, Any]:
    ids = {str(each.uuid): key for key, each in known.items()}
    attrs = {name: value for name, value in identity.attrs.items() if name != "login"}
    return {**attrs, "manager": ids[attrs["manager"]]} if "manager" in attrs else attrs


@contextmanager
def _watched(system: System, watch: Death | Once) -> Iterator[None]:
    store = system.store
    store.before_page, store.before_change = lambda: watch.reach("page"), lambda change: watch.reach("change")
    try:
        yield
    finally:
        store.before_page, store.before_change = lambda: None, lambda change: None


@pytest.mark.parametrize("examples", EXAMPLES)
def test_in_the_end_all_is_as_the_rules_say(examples: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            report_multiple_bugs=False,
        ),
    )
