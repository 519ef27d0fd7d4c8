"""Example: "Nightly HR Sync" on real files: people are hired, move, leave, return, and leave for good."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity, ActivityItem
from execution.loops.scheduler import tick
from execution.models import Execution
from identity.documents import IDENTITY_TYPE, RULE, SYSTEM, checked
from identity.models import Account, ConnectedSystem, Identity, IdentityType, PendingExport, SyncRule
from schedules.models import Schedule
from tests.base import NOW, SOMEBODY, claim, fresh, make_schedule, make_worker, seconds, work_on

pytestmark = pytest.mark.django_db

DAY, EVENING = seconds(86_400), NOW - seconds(3600)
GRACE_DAYS = 7
IMPORT, SYNC = "HR System - Full Import", "HR System - Full Sync"
AD_EXPORT, LDAP_EXPORT = "AD - Export", "LDAP - Export"
AD_CONFIRM, LDAP_CONFIRM = "AD - Confirming Import", "LDAP - Confirming Import"
GROUPS = [[IMPORT], [SYNC], [AD_EXPORT, LDAP_EXPORT], [AD_CONFIRM, LDAP_CONFIRM]]
BY: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW}

Rows = list[dict[str, str]]
Counts = Mapping[str, int]


def person(number: str, first: str, last: str, department: str) -> dict[str, str]:
    return {"id": number, "first": first, "last": last, "department": department}


ADA, BOB, CAI = (
    person("1", "Ada", "Bell", "IT"),
    person("2", "Bob", "Dean", "IT"),
    person("3", "Cai", "Ek", "Sales"),
)
MOVED_ADA = ADA | {"department": "Sales"}


@dataclass(frozen=True)
class Night:
    """One execution of the schedule: the names of the steps in each claim, and what each step counted."""

    execution: Execution
    claims: list[set[str]]
    counts: dict[str, Counts]


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.JIM_IDENTITY_FOLDERS = [tmp_path]
    return tmp_path


@pytest.fixture
def company(folder: Path) -> Company:
    return Company(folder)


class Company:
    """HR delivers a file each evening; AD and LDAP are files that JIM keeps in step with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        define_system("HR System", "id,first,last,department", {IMPORT: "full_import", SYNC: "full_sync"})
        ad = {AD_EXPORT: "export", AD_CONFIRM: "full_import"}
        define_system("AD", "id,name,mail,department", ad, export="whole")
        ldap = {LDAP_EXPORT: "export", LDAP_CONFIRM: "full_import"}
        define_system("LDAP", "uid,name,enabled", ldap, export="whole")
        define_rules()
        self.schedule = nightly_hr_sync()

    def deliver(self, *people: dict[str, str]) -> None:
        """Write the file of HR, which nobody has touched for a while when the night comes."""
        path = self.folder / "hr system.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ADA))
            writer.writeheader()
            writer.writerows(people)
        os.utime(path, (0, 0))

    def read(self, name: str) -> Rows:
        with (self.folder / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def state(self) -> dict[str, tuple[int, int]]:
        """Return what changes for a file that is written again, even with the same content."""
        found = {path.name: path.stat() for path in self.folder.glob("*.csv")}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}

    def night(self, number: int) -> Night:
        claims = run_at(NOW + (number - 1) * DAY)
        execution = Execution.objects.latest("pk")
        assert execution.status == Execution.Status.COMPLETED
        steps = Activity.objects.filter(parent=execution.activity_id)
        assert set(steps.values_list("status", flat=True)) == {"complete"}
        counts: dict[str, Any] = {step.target_name: step.result for step in steps}
        assert not PendingExport.objects.exists(), "the confirming imports leave nothing open"
        return Night(execution, claims, counts)

    def quiet_night(self, number: int) -> None:
        before = self.state()
        assert self.night(number).counts == NOTHING_CHANGED | {
            name: {"unchanged": len(self.read(file))} for name, file in FILES.items()
        }
        assert self.state() == before


def run_at(now: datetime) -> list[set[str]]:
    """Let the schedule and a worker do what is to be done at this time; return the names in each claim."""
    tick(now)
    worker, claims = make_worker(now), []
    while tasks := claim(worker, now=now):
        claims.append({task.name for task in tasks})
        work_on(worker, tasks, now=now)
    return claims


FILES = {IMPORT: "hr system", SYNC: "hr system", AD_CONFIRM: "ad", LDAP_CONFIRM: "ldap"}
NOTHING_CHANGED: dict[str, Counts] = {AD_EXPORT: {}, LDAP_EXPORT: {}}


def define_system(name: str, columns: str, profiles: dict[str, str], **config: str) -> None:
    names = columns.split(",")
    document = {
        "name": name,
        "connector": "csv",
        "config": {"path": f"{name.lower()}.csv"} | config,
        "types": [
            {
                "name": "person",
                "external_id": names[0],
                "attributes": [{"name": each} for each in names],
            }
        ],
        "profiles": [
            {"name": title.partition(" - ")[2], "run_type": run_type} for title, run_type in profiles.items()
        ],
    }
    ConnectedSystem.objects.define(checked(document, SYSTEM), **BY)


def define_rules() -> None:
    kind = {
        "name": "person",
        "display": "id",
        "deletion": "authoritative",
        "sources": ["HR System"],
        "grace_days": GRACE_DAYS,
        "attributes": [{"name": name} for name in ADA],
    }
    IdentityType.objects.define(checked(kind, IDENTITY_TYPE), **BY)
    copied = {name: {"source": name} for name in ADA}
    define_rule("HR System", "in", copied, joins=[[{"account": "id", "identity": "id"}]])
    name = {"expression": 'first + " " + last'}
    mail = {"expression": 'lower(first + "." + last) + "@example.com"'}
    to_ad = {"id": {"source": "id"}, "name": name, "mail": mail, "department": {"source": "department"}}
    define_rule("AD", "out", to_ad, deprovision="delete")
    to_ldap = {"uid": {"source": "id"}, "name": name, "enabled": {"expression": '"yes"'}}
    define_rule("LDAP", "out", to_ldap, deprovision="disable", disable_values={"enabled": "no"})


def define_rule(system: str, direction: str, flows: dict[str, dict[str, str]], **fields: Any) -> None:
    document = {
        "name": f"{system} {direction}",
        "direction": direction,
        "system": system,
        "object_type": "person",
        "identity_type": "person",
        "flows": [{"target": target, **flow} for target, flow in flows.items()],
    }
    SyncRule.objects.define(checked(document | fields, RULE), **BY)


def nightly_hr_sync() -> Schedule:
    steps = [
        {
            "name": name,
            "index": index,
            "step_type": "run_profile",
            "config": dict(zip(("system", "profile"), name.split(" - "), strict=True)),
        }
        for index, group in enumerate(GROUPS)
        for name in group
    ]
    return make_schedule(*steps, name="Nightly HR Sync", spec={"cron": ["0 3 * * *"]}, now=EVENING)


def history(name: str) -> list[tuple[str, str, int]]:
    """Return for each change of an object: the step, what happened, and on which night."""
    items = ActivityItem.objects.of_object(name).select_related("activity").order_by("pk")
    return [
        (item.activity.target_name, item.change, (item.created_at - NOW).days + 1)
        for item in items
        if item.change
    ]


def account_of(system: str, identity: Identity) -> Account:
    return Account.objects.get(system__name=system, identity=identity)


def identity_of(row: dict[str, str]) -> Identity:
    return Identity.objects.get(display=row["id"])


def test_four_groups_of_steps_hire_people_in_both_directories(company: Company) -> None:
    company.deliver(ADA, BOB, CAI)

    night = company.night(1)

    assert night.claims == [set(group) for group in GROUPS]
    assert night.counts == {
        IMPORT: {"added": 3},
        SYNC: {"projected": 3, "provisioned": 6, "staged": 6},
        AD_EXPORT: {"created": 3},
        LDAP_EXPORT: {"created": 3},
        AD_CONFIRM: {"confirmed": 3},
        LDAP_CONFIRM: {"confirmed": 3},
    }
    assert company.read("ad") == [
        {"id": "1", "name": "Ada Bell", "mail": "ada.bell@example.com", "department": "IT"},
        {"id": "2", "name": "Bob Dean", "mail": "bob.dean@example.com", "department": "IT"},
        {"id": "3", "name": "Cai Ek", "mail": "cai.ek@example.com", "department": "Sales"},
    ]
    assert company.read("ldap") == [
        {"uid": "1", "name": "Ada Bell", "enabled": "yes"},
        {"uid": "2", "name": "Bob Dean", "enabled": "yes"},
        {"uid": "3", "name": "Cai Ek", "enabled": "yes"},
    ]


def test_night_after_night(company: Company) -> None:
    company.deliver(ADA, BOB, CAI)
    company.night(1)
    ada, bob = identity_of(ADA), identity_of(BOB)
    accounts = {name: account_of(name, bob).pk for name in ("AD", "LDAP")}

    # 2. Ada moves to another department, which only AD knows.
    company.deliver(MOVED_ADA, BOB, CAI)
    before = company.state()
    night = company.night(2)
    assert night.counts == NOTHING_CHANGED | {
        IMPORT: {"updated": 1, "unchanged": 2},
        SYNC: {"flowed": 1, "staged": 1, "unchanged": 2},
        AD_EXPORT: {"updated": 1},
        AD_CONFIRM: {"confirmed": 1, "unchanged": 2},
        LDAP_CONFIRM: {"unchanged": 3},
    }
    assert [each["department"] for each in company.read("ad")] == ["Sales", "IT", "Sales"]
    assert company.state()["ldap.csv"] == before["ldap.csv"]

    # 3. Bob leaves. Within the grace period, nothing happens to his accounts.
    company.deliver(MOVED_ADA, CAI)
    before = company.state()
    night = company.night(3)
    assert night.counts[IMPORT] == {"absent": 1, "unchanged": 2}
    assert night.counts[SYNC] == {"disconnected": 1, "marked": 1, "removed": 1, "unchanged": 2}
    assert fresh(bob).delete_after == NOW + 2 * DAY + GRACE_DAYS * DAY
    assert company.state() == before

    # 4. Bob is hired again, and is who he was.
    company.deliver(MOVED_ADA, BOB, CAI)
    before = company.state()
    night = company.night(4)
    assert night.counts[IMPORT] == {"added": 1, "unchanged": 2}
    assert night.counts[SYNC] == {"joined": 1, "unmarked": 1, "unchanged": 2}
    assert (fresh(bob).uuid, fresh(bob).delete_after) == (bob.uuid, None)
    assert {name: account_of(name, bob).pk for name in accounts} == accounts
    assert company.state() == before

    # 5. Bob leaves again. 12. The grace period is over: AD deletes his account, LDAP disables it.
    company.deliver(MOVED_ADA, CAI)
    company.night(5)
    for number in range(6, 5 + GRACE_DAYS):
        company.quiet_night(number)
    night = company.night(5 + GRACE_DAYS)
    assert night.counts == {
        IMPORT: {"unchanged": 2},
        SYNC: {"deleted": 1, "staged": 2, "unchanged": 2},
        AD_EXPORT: {"deleted": 1},
        LDAP_EXPORT: {"updated": 1},
        AD_CONFIRM: {"confirmed": 1, "unchanged": 2},
        LDAP_CONFIRM: {"confirmed": 1, "unchanged": 2},
    }
    assert not Identity.objects.filter(pk=bob.pk).exists()
    assert [each["id"] for each in company.read("ad")] == ["1", "3"]
    assert [(each["uid"], each["enabled"]) for each in company.read("ldap")] == [
        ("1", "yes"),
        ("2", "no"),
        ("3", "yes"),
    ]

    # 13. Nothing changes any more, and no file is written.
    company.quiet_night(6 + GRACE_DAYS)

    # The audit shows all of it.
    assert history(f"identity:{ada.pk}") == [(SYNC, "projected", 1), (SYNC, "flowed", 2)]
    assert history(f"identity:{bob.pk}") == [
        (SYNC, "projected", 1),
        (SYNC, "marked", 3),
        (SYNC, "unmarked", 4),
        (SYNC, "marked", 5),
        (SYNC, "deleted", 12),
    ]
    assert history(f"account:{accounts['AD']}") == [
        (SYNC, "provisioned", 1),
        (SYNC, "staged", 1),
        (AD_EXPORT, "created", 1),
        (SYNC, "staged", 12),
        (AD_EXPORT, "deleted", 12),
    ]
    assert history(f"account:{accounts['LDAP']}") == [
        (SYNC, "provisioned", 1),
        (SYNC, "staged", 1),
        (LDAP_EXPORT, "created", 1),
        (SYNC, "staged", 12),
        (LDAP_EXPORT, "updated", 12),
    ]
    moved = ActivityItem.objects.of_object(f"identity:{ada.pk}").first()
    assert moved is not None
    assert moved.data == {"department": ["IT", "Sales"]}
    assert Execution.objects.filter(status="completed").count() == 13
    assert fresh(company.schedule).started_count == 13


def test_each_step_is_in_the_audit_below_its_night(company: Company) -> None:
    company.deliver(ADA)
    night = company.night(1)
    steps = Activity.objects.filter(parent=night.execution.activity_id).order_by("line")
    told = [(step.target_type, step.target_name, step.step_index, step.items_total) for step in steps]
    assert told == [
        ("run_profile", IMPORT, 0, 1),
        ("run_profile", SYNC, 1, 1),
        ("run_profile", AD_EXPORT, 2, 1),
        ("run_profile", LDAP_EXPORT, 2, 1),
        ("run_profile", AD_CONFIRM, 3, 1),
        ("run_profile", LDAP_CONFIRM, 3, 1),
    ]
    assert {step.initiator_type for step in steps} == {"schedule"}
    imported = steps[0].items.get()
    assert (imported.external_id, imported.change, imported.message) == ("1", "added", "line 2")
    assert imported.data == {name: [None, value] for name, value in ADA.items()}


def test_a_file_that_hr_has_not_delivered_completely_stops_the_night(company: Company) -> None:
    company.deliver(ADA, BOB, CAI)
    company.night(1)
    before = company.state()
    path = company.folder / "hr system.csv"
    path.write_text(path.read_text()[:-8])
    os.utime(path, (0, 0))
    run_at(NOW + DAY)
    execution = Execution.objects.latest("pk")
    failed = Activity.objects.get(parent=execution.activity_id, target_name=IMPORT)
    assert (execution.status, failed.status) == ("failed", "failed_with_error")
    assert "is cut off" in failed.error
    assert {name: state for name, state in company.state().items() if name != path.name} == {
        name: state for name, state in before.items() if name != path.name
    }
    assert Identity.objects.filter(delete_after=None).count() == 3
