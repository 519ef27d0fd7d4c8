"""What people do with run profiles, identities and pending exports: run, approve, retry, delete and keep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.models import Activity
from identity.connectors.connector import Result
from identity.housekeeping import delete_due_identities
from identity.models import ConnectedSystem, Identity, PendingExport, RunProfile
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, run_until_idle

from .world import EXPORT, FULL_IMPORT, FULL_SYNC, System, identities, identity_type, rule

pytestmark = pytest.mark.django_db
BY: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW}


class Company:
    def __init__(self, people: int = 1, **fields: Any) -> None:
        self.hr, self.ad = System("HR"), System("AD")
        kind = identity_type()
        rule("in", self.hr, kind, {"id": "id", "first": "first"}, join="id", **fields)
        rule("out", self.ad, kind, {"id": "id", "first": "first"}, deprovision="delete")
        for number in range(1, people + 1):
            self.hr.put(str(number), first=f"P{number}")
        self.hr.run(FULL_IMPORT)
        self.hr.run(FULL_SYNC)

    def profile(self, run_type: str = FULL_IMPORT) -> RunProfile:
        return RunProfile.objects.get(system=self.hr.row, run_type=run_type)


def operations(target_type: str) -> list[str]:
    return list(
        Activity.objects.filter(target_type=target_type)
        .exclude(operation="run")
        .order_by("pk")
        .values_list("operation", flat=True)
    )


def test_a_run_now_is_a_job_and_a_repeated_click_queues_nothing_new() -> None:
    company = Company()
    company.hr.put("2", first="Bea")

    first = company.profile().run_now(**BY, key="click")
    again = company.profile().run_now(**BY, key="click")

    assert first == again
    run_until_idle()
    job = Activity.objects.get(task_key=first)
    assert (job.status, job.result) == ("complete", {"added": 1, "unchanged": 1})


class TestApprovals:
    def exceeded(self) -> Company:
        company = Company(people=20)
        company.hr.drop(*(str(number) for number in range(1, 11)))
        assert "limit_exceeded" in company.hr.run(FULL_IMPORT).error
        return company

    def test_an_approval_is_good_for_one_run_that_finds_the_same(self) -> None:
        company = self.exceeded()
        profile = company.profile()
        assert profile.finding["text"] == "10 of 20 objects are no longer in the input"  # type: ignore[index]

        profile.approve(profile.finding["digest"], note="They left.", **BY)  # type: ignore[index]

        assert company.hr.run(FULL_IMPORT).result == {"absent": 10, "unchanged": 10}
        profile.refresh_from_db()
        assert (profile.finding, profile.approval) == (None, None)
        [approved] = Activity.objects.filter(operation="approve")
        assert (approved.message, approved.details["number"]) == ("They left.", 10)  # type: ignore[index]

    def test_it_is_not_good_for_another_finding(self) -> None:
        company = self.exceeded()
        profile = company.profile()
        profile.approve(profile.finding["digest"], note="", **BY)  # type: ignore[index]
        company.hr.drop("11")

        assert "limit_exceeded: 11 of 20" in company.hr.run(FULL_IMPORT).error

    def test_a_finding_that_was_replaced_cannot_be_approved(self) -> None:
        company = self.exceeded()
        digest = company.profile().finding["digest"]  # type: ignore[index]
        company.hr.drop("11")
        company.hr.run(FULL_IMPORT)

        with pytest.raises(Refused, match="has run again since"):
            company.profile().approve(digest, note="", **BY)


def test_a_refused_export_is_sent_again_on_request() -> None:
    company = Company()
    company.ad.store.answers["1"] = Result(0, "connector_error", "no")
    company.ad.run(EXPORT)
    export = PendingExport.objects.get()
    assert (export.status, export.error) == ("refused", "no")
    company.ad.store.answers.clear()
    assert company.ad.run(EXPORT).result == {}

    assert export.retry(**BY)

    assert company.ad.run(EXPORT).result == {"created": 1}
    assert not export.retry(**BY)
    assert operations("pendingexport") == ["retry"]


class TestIdentities:
    def test_an_identity_that_is_deleted_takes_its_accounts_with_it(self) -> None:
        company = Company()
        company.ad.run(EXPORT)
        company.ad.run(FULL_IMPORT)

        identities()["1"].delete_at(NOW, **BY, note="Duplicate")
        delete_due_identities(NOW)

        assert not Identity.objects.exists()
        assert company.ad.pending() == {"1": ("delete", {})}
        assert operations("identity") == ["mark", "delete"]
        assert Activity.objects.get(operation="delete").initiator_name == SOMEBODY.name

    def test_it_can_be_kept_until_then(self) -> None:
        company = Company()
        identity = identities()["1"]
        identity.delete_at(NOW + timedelta(days=1), **BY)

        assert identity.keep(**BY)

        delete_due_identities(NOW + timedelta(days=2))
        company.hr.run(FULL_SYNC)
        assert identities()["1"].delete_after is None
        assert not identity.keep(**BY)


@pytest.mark.parametrize("verb", ["clear_now", "delete_now"])
def test_clearing_and_deleting_a_system_are_jobs(verb: str) -> None:
    company = Company()

    getattr(company.hr.row, verb)(**BY, key="click")
    getattr(company.hr.row, verb)(**BY, key="click")
    run_until_idle()

    assert company.hr.accounts() == {}
    assert ConnectedSystem.objects.filter(pk=company.hr.row.pk).exists() == (verb == "clear_now")
    assert Activity.objects.filter(operation="run", target_type__endswith="_system").count() == 1
