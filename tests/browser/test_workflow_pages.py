from __future__ import annotations

from unittest.mock import patch

import pytest
from playwright.sync_api import Page, expect

from activities.models import Activity
from database import clock
from tests.loops import running_worker
from tests.web.flows import Bills, Pay
from tests.workflows.base import defined, deploy_all, deployed, publish
from workflows import PermissionRequired
from workflows.models import Event, Run

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_needs_permission_is_approved_with_a_note_and_commits(admin_page: Page) -> None:
    """The page is not loaded again: it says by itself that the run is stuck, and after that what it did."""
    stops = patch.object(Pay, "failure", PermissionRequired("18,400 EUR are above the limit"))
    with stops, deployed(Bills, now=clock.now()), running_worker():
        publish("bills", "bill-1", now=clock.now())
        admin_page.goto("/workflows/bills")
        issue = admin_page.get_by_role("status", name="Issue")
        expect(issue).to_contain_text("An operator must approve or reject the run.")
        expect(admin_page.locator("#now")).to_contain_text("needs attention")
        issue.get_by_role("link", name="Approve").click()
        dialogue = admin_page.get_by_role("dialog")
        dialogue.get_by_label("Note").fill("the bill is right")
        dialogue.get_by_role("button", name="Approve").click()
        expect(admin_page.get_by_text("“Bills”: run approved.")).to_be_visible()
        recent = admin_page.get_by_role("region", name="Recent activity")
        expect(recent).to_contain_text("Consumed 1 event")
        expect(issue).to_have_count(0)
        expect(admin_page.locator("#now")).to_contain_text("idle")
    assert Event.objects.get().status == Event.Status.CONSUMED
    [asked, approved] = Run.objects.filter(prepare_result__reserve__0__isnull=False).order_by("pk")
    assert (asked.status, approved.status, approved.retry_of) == ("paused:approval", "committed", asked)
    record = Activity.objects.get(operation="approve")
    assert (record.initiator_name, record.message) == ("ada", "the bill is right")
    admin_page.goto(asked.get_absolute_url())
    expect(admin_page.get_by_role("region", name="Changes")).to_contain_text("the bill is right")
    admin_page.get_by_role("region", name="Attempts").get_by_role("link", name=f"Run {approved.pk}").click()
    expect(admin_page.locator(".track li.done")).to_have_count(6)


def test_a_workflow_is_paused_and_resumed_by_keyboard(admin_page: Page) -> None:
    with defined(Bills):
        deploy_all(now=clock.now())
    admin_page.goto("/")
    admin_page.keyboard.press("g")
    admin_page.keyboard.press("w")
    expect(admin_page.get_by_role("heading", name="Bills")).to_be_visible()
    admin_page.keyboard.press("j")
    admin_page.keyboard.press("Enter")
    expect(admin_page).to_have_url("/workflows/bills")
    pause = admin_page.get_by_role("link", name="Pause")
    pause.focus()
    admin_page.keyboard.press("Enter")
    note = admin_page.get_by_role("dialog").get_by_label("Note")
    note.fill("moving house")
    note.press("Enter")
    expect(admin_page.get_by_role("status", name="Issue")).to_contain_text(
        "Paused by an operator. moving house"
    )
    admin_page.get_by_role("link", name="Resume").click()
    admin_page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(admin_page.get_by_role("status", name="Issue")).to_have_count(0)
