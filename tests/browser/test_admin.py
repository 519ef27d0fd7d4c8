from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from execution.models import Execution
from schedules.models import Schedule
from tests.base import NOW, make_schedule, step
from tests.browser.pages import admin_addresses
from tests.installation import installation
from tests.loops import running_worker

pytestmark = pytest.mark.django_db(transaction=True)

# The page, the lists and the panels; what is typed one per line may be longer than its box.
TOO_WIDE = """() => [...document.querySelectorAll("html, #content, .results, .panel, .panel pre")]
  .filter((each) => each.scrollWidth > each.clientWidth)
  .map((each) => `${each.tagName}.${each.className}: ${each.scrollWidth} > ${each.clientWidth}`)"""


def test_a_schedule_is_run_now_and_seen_to_complete(admin_page: Page) -> None:
    make_schedule(step("first", 0, "talk"), step("second", 1, "talk"), name="By hand")
    admin_page.goto("/admin/schedules/schedule/")
    admin_page.get_by_role("link", name="By hand").click()
    admin_page.get_by_role("link", name="Run now").click()
    expect(admin_page.get_by_text("Start an execution of this schedule now?")).to_be_visible()
    admin_page.get_by_role("button", name="Run now").click()
    expect(admin_page.get_by_text("“By hand” has started.")).to_be_visible()
    admin_page.goto(f"/admin/execution/execution/{Execution.objects.get().pk}/change/")
    state = admin_page.locator(".field-state_badge .badge")
    expect(state).to_contain_text("in progress")
    with running_worker():
        expect(state).to_contain_text("completed")
    expect(admin_page.get_by_text("line 2")).to_have_count(2)


def test_a_schedule_is_defined_with_two_steps_after_a_mistake(admin_page: Page) -> None:
    admin_page.goto("/admin/schedules/schedule/add/")
    admin_page.get_by_label("Name:").first.fill("Defined here")
    admin_page.get_by_label("Cron:").fill("61 * * * *")
    fill_step(admin_page, 0, "import")
    admin_page.get_by_text("Add another Step").click()
    fill_step(admin_page, 1, "export")
    admin_page.get_by_role("button", name="Save", exact=True).click()
    expect(admin_page.get_by_text("minute 61 is outside the range")).to_be_visible()
    assert Schedule.objects.count() == 0
    expect(admin_page.locator("#id_steps-1-name")).to_have_value("export")
    admin_page.get_by_label("Cron:").fill("1 * * * *")
    admin_page.get_by_role("button", name="Save and continue editing").click()
    expect(admin_page.get_by_text("was added successfully")).to_be_visible()
    assert [each.name for each in Schedule.objects.get().steps.all()] == ["import", "export"]


@pytest.mark.long
def test_nothing_is_wider_than_a_phone(admin_page: Page) -> None:
    installation.create(now=NOW, days=2, owner=User.objects.get(username="ada"))
    admin_page.set_viewport_size({"width": 390, "height": 844})
    wide = {}
    for each in admin_addresses():
        admin_page.goto(each.url)
        wide[each.name] = admin_page.evaluate(TOO_WIDE)
    assert len(wide) > 40
    assert {name: found for name, found in wide.items() if found} == {}


def fill_step(admin_page: Page, number: int, name: str) -> None:
    admin_page.locator(f"#id_steps-{number}-index").fill(str(number))
    admin_page.locator(f"#id_steps-{number}-name").fill(name)
    admin_page.locator(f"#id_steps-{number}-runs").select_option("type:python")
    admin_page.locator(f"#id_steps-{number}-config-function").fill("tests.work.noop")
