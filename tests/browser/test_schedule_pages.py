from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.sync_api import Page, expect

from database import clock
from schedules.models import Backfill, Schedule
from tests.base import SOMEBODY, make_schedule, step
from tests.browser.conftest import PASSWORD
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
DAILY = {"cron": ["0 9 * * mon-fri"], "time_zone": "Europe/London"}


def test_somebody_signs_in_and_finds_out_why_a_run_did_not_happen(admin_page: Page) -> None:
    schedule = make_schedule(name="Payroll", spec={"every": [{"every": "1h"}]}, now=clock.now())
    at = schedule.skip_next(initiator=SOMEBODY, now=clock.now())
    schedule.generate_until(at)
    schedule._save_moved()
    admin_page.context.clear_cookies()
    admin_page.goto("/")
    admin_page.get_by_label("Username").fill("ada")
    admin_page.get_by_label("Password").fill(PASSWORD)
    admin_page.get_by_role("button", name="Sign in").click()
    admin_page.get_by_role("link", name="Schedules").first.click()
    admin_page.get_by_role("link", name="Payroll").first.click()
    admin_page.get_by_role("link", name="Ledger").click()
    expect(admin_page.get_by_text("on request from ada")).to_be_visible()
    admin_page.get_by_role("link", name="Why?").last.click()
    expect(admin_page.get_by_text("Skipped on request from ada.")).to_be_visible()
    admin_page.get_by_label("Time").fill("2998-01-04T09:30:00")
    admin_page.get_by_role("button", name="Why?").click()
    expect(admin_page.get_by_text("no rule matches this time")).to_be_visible()


@pytest.mark.browser_context_args(timezone_id="Asia/Tokyo")
def test_a_browser_brings_its_time_zone_when_somebody_signs_in_and_offers_it_later(admin_page: Page) -> None:
    admin_page.context.clear_cookies()
    admin_page.goto("/login?next=/executions")
    admin_page.get_by_label("Username").fill("ada")
    admin_page.get_by_label("Password").fill(PASSWORD)
    admin_page.get_by_role("button", name="Sign in").click()
    expect(admin_page.get_by_label("From (Asia/Tokyo)")).to_be_visible()
    admin_page.get_by_text("ada", exact=True).click()
    admin_page.get_by_role("link", name="Time zone: Asia/Tokyo").click()
    offer = admin_page.get_by_role("button", name="Asia/Tokyo")
    expect(offer).to_be_hidden()
    admin_page.get_by_label("Time zone").select_option("Europe/London")
    admin_page.get_by_role("button", name="Save").click()
    expect(admin_page.get_by_label("From (Europe/London)")).to_be_visible()
    admin_page.goto("/time-zone?next=/executions")
    offer.click()
    expect(admin_page.get_by_label("From (Asia/Tokyo)")).to_be_visible()


def test_a_range_is_backfilled_after_a_look_at_what_it_would_do(admin_page: Page) -> None:
    schedule = make_schedule(name="Payroll", spec=DAILY, now=clock.now())
    admin_page.goto(f"{schedule.get_absolute_url()}/backfills")
    admin_page.get_by_role("link", name="Backfill…").last.click()
    dialogue = admin_page.get_by_role("dialog")
    dialogue.get_by_label("From").fill("2026-11-02T00:00:00")
    dialogue.get_by_label("To").fill("2026-11-08T00:00:00")
    dialogue.get_by_label("All times").check()
    dialogue.get_by_role("button", name="Preview").click()
    expect(dialogue.get_by_text("5 of 5 times in the range")).to_be_visible()
    assert Backfill.objects.count() == 0
    dialogue.get_by_role("button", name="Backfill").click()
    expect(admin_page.get_by_text("has been queued")).to_be_visible()
    expect(admin_page.locator("#backfill")).to_contain_text("5 not reached yet")
    Backfill.objects.get().generate(clock.now())
    expect(admin_page.locator("#backfill")).to_contain_text("5 waiting")
    expect(admin_page.locator("#backfill [data-row-link]")).to_have_count(5)
    expect(admin_page.get_by_text("No runs yet.")).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_plan_wider_than_the_page_scrolls_in_its_box_and_says_so(admin_page: Page, width: int) -> None:
    steps = [step(f"Step {index}", index) for index in range(8)]
    schedule = make_schedule(*steps, name="Wide", now=clock.now())
    hint = admin_page.get_by_text("To see the whole plan, scroll sideways")
    admin_page.set_viewport_size({"width": width, "height": 800})
    admin_page.goto(schedule.get_absolute_url())
    expect(hint).to_be_visible()
    assert admin_page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    plan = admin_page.get_by_role("group", name="The plan:")
    plan.focus()
    admin_page.keyboard.press("ArrowRight")
    wait_until(lambda: plan.evaluate("box => box.scrollLeft > 0"))
    admin_page.set_viewport_size({"width": 2600, "height": 800})
    short = make_schedule(step("Alone"), name="Short", now=clock.now())
    admin_page.goto(short.get_absolute_url())
    expect(hint).to_be_hidden()


def test_several_schedules_are_paused_with_the_keyboard(admin_page: Page) -> None:
    for name in ("Alpha", "Beta", "Gamma"):
        make_schedule(name=name, spec=DAILY, now=clock.now() - timedelta(minutes=1))
    admin_page.goto("/schedules")
    admin_page.keyboard.press("j")
    admin_page.keyboard.press("x")
    admin_page.keyboard.press("j")
    admin_page.keyboard.press("x")
    admin_page.get_by_role("button", name="Pause").click()
    dialogue = admin_page.get_by_role("dialog")
    expect(dialogue).to_contain_text("Beta")
    dialogue.get_by_role("button", name="Pause").click()
    expect(admin_page.get_by_text("“Alpha” is paused.")).to_be_visible()
    paused = Schedule.objects.filter(status="paused").order_by("name").values_list("name", flat=True)
    assert list(paused) == ["Alpha", "Beta"]
    admin_page.keyboard.press("/")
    admin_page.keyboard.type("gam")
    admin_page.keyboard.press("Enter")
    expect(admin_page.locator("[data-row-link]")).to_have_text(["Gamma"])


def test_what_was_done_is_told_for_a_while_and_what_went_wrong_until_it_is_dismissed(
    admin_page: Page,
) -> None:
    page = admin_page
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/do/schedule/pause")  # of which none was chosen
    page.evaluate("() => toast('Copied')")
    told, wrong = page.locator(".toast:not(.error)"), page.locator(".toast.error[role=alert]")
    told.hover()
    assert told.evaluate("(toast) => toast.getAnimations()[0].playState") == "paused"
    page.mouse.move(0, 0)
    assert told.evaluate("(toast) => toast.getAnimations()[0].playState") == "running"
    told.evaluate("(toast) => toast.getAnimations()[0].finish()")
    expect(told).to_have_count(0)
    assert wrong.evaluate("(toast) => toast.getAnimations().length") == 0
    # On a phone there is no room beside the content.
    place, content = wrong.bounding_box(), page.locator("main").bounding_box()
    assert place
    assert content
    assert place["y"] + place["height"] <= content["y"]
    wrong.get_by_role("button", name="Dismiss").click()
    expect(wrong).to_have_count(0)


def test_a_list_that_is_drawn_anew_stays_where_it_is(admin_page: Page) -> None:
    page = admin_page
    found = [make_schedule(name=f"Schedule {number:02}", spec=DAILY, now=clock.now()) for number in range(30)]
    page.set_viewport_size({"width": 1280, "height": 400})
    page.goto("/schedules")
    page.get_by_role("link", name="Schedule 12").first.focus()
    page.evaluate("() => scrollTo(0, 300)")
    found[0].pause(note="for a while", initiator=SOMEBODY, now=clock.now())
    expect(page.get_by_text("for a while")).to_have_count(1)
    assert page.evaluate("() => scrollY") == 300
