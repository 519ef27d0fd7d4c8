"""Case 54: a preview says what the run then does, and writes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from identity.models import Account, Identity, PendingExport, SyncRule
from identity.preview import edited_book, preview_accounts, preview_system
from identity.rulebook import Rulebook
from tests.base import NOW

from .world import EXPORT, FULL_IMPORT, FULL_SYNC, System, counts, identity_type, items, rule

pytestmark = pytest.mark.django_db
FLOWS = {name: name for name in ("id", "first", "department", "manager")}
IN_STAFF = {"attribute": "department", "operator": "not_equals", "value": "Left"}


class Company:
    def __init__(self) -> None:
        self.hr, self.badge, self.ad = System("HR"), System("Badge"), System("AD")
        people = identity_type(sources=[self.hr], deletion="authoritative", grace_days=7)
        self.rule_in = rule("in", self.hr, people, FLOWS, join="id")
        rule("in", self.badge, people, {"mail": "mail"}, join="id", creates=False)
        rule("out", self.ad, people, FLOWS | {"mail": "mail"}, deprovision="delete")
        for number in range(1, 6):
            self.hr.put(str(number), first=f"P{number}", department="IT", manager="1" if number > 1 else None)
            self.badge.put(str(number), mail=f"p{number}@x")

    def import_all(self) -> None:
        self.hr.run(FULL_IMPORT)
        self.badge.run(FULL_IMPORT)

    def previewed(self, system: System, book: Rulebook | None = None) -> Any:
        return preview_system(book or Rulebook.load(), system.row.pk, seconds=60, now=NOW)


def stored() -> list[Any]:
    models: list[Any] = [Account, Identity, PendingExport, SyncRule]
    return [list(model.objects.order_by("pk").values()) for model in models]


def test_a_preview_of_new_accounts_is_what_the_run_does() -> None:
    company = Company()
    company.import_all()
    before = stored()

    preview = company.previewed(company.hr)

    assert stored() == before
    run = company.hr.run(FULL_SYNC)
    assert dict(preview.counts) == counts(run) == {"projected": 5, "provisioned": 5, "staged": 5}
    assert sorted(item.change for item in preview.examples) == sorted(change for _, change, _ in items(run))
    assert (preview.done, preview.total, preview.is_complete) == (5, 5, True)


def test_a_preview_of_joins_is_what_the_run_does() -> None:
    company = Company()
    company.import_all()
    company.hr.run(FULL_SYNC)

    preview = company.previewed(company.badge)

    assert dict(preview.counts) == counts(company.badge.run(FULL_SYNC))


def test_a_preview_of_an_edited_rule_is_what_the_edit_and_the_run_do() -> None:
    company = Company()
    company.import_all()
    for each, run_type in ((company.hr, FULL_SYNC), (company.ad, EXPORT), (company.ad, FULL_IMPORT)):
        each.run(run_type)
    for number in ("2", "3"):
        company.hr.change(number, department="Left")
    company.hr.run(FULL_IMPORT)
    company.hr.run(FULL_SYNC)
    edited = SyncRule.objects.get(pk=company.rule_in.pk)
    edited.scope = IN_STAFF
    before = stored()

    preview = company.previewed(company.hr, edited_book(edited, list(edited.flows.all())))

    assert stored() == before
    edited.save()
    run = company.hr.run(FULL_SYNC)
    assert dict(preview.counts) == counts(run)
    assert preview.counts["disconnected"] == preview.counts["marked"] == 2


def test_a_preview_of_one_account_says_what_changes() -> None:
    company = Company()
    company.import_all()
    company.hr.run(FULL_SYNC)
    company.hr.change("2", first="Bob")
    company.hr.run(FULL_IMPORT)

    preview = preview_accounts(Rulebook.load(), [company.hr.account("2").pk], now=NOW)

    [flowed] = [item for item in preview.examples if item.change == "flowed"]
    assert (flowed.name, flowed.data) == ("2", {"first": ["P2", "Bob"]})


def test_a_preview_locks_no_rows() -> None:
    company = Company()
    company.import_all()

    with CaptureQueriesContext(
        connection,
    ) as queries:
        company.previewed(company.hr)

    assert not [each["sql"] for each in queries if "FOR NO KEY UPDATE" in each["sql"]]


def test_a_preview_without_time_says_how_far_it_came() -> None:
    company = Company()
    company.import_all()
    Account.objects.bulk_create(
        Account(system=company.hr.row, type=company.hr.type, external_id=f"x{number}")
        for number in range(600)
    )

    preview = preview_system(Rulebook.load(), company.hr.row.pk, seconds=0, now=NOW)

    assert (preview.done, preview.total, preview.is_complete) == (500, 605, False)
