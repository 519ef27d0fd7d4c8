from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from schedules.models import Schedule
from tests.base import make_schedule, step

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_schedule_with_parallel_steps_is_made_and_previewed(admin_page: Page) -> None:
    page = admin_page
    page.goto("/schedules/new")
    preview = page.get_by_role("complementary", name="Preview")
    page.get_by_label("Name").fill("Working days")
    page.get_by_role("button", name="Days and times").click()
    expect(preview).to_contain_text("At 09:00 on weekdays")
    page.get_by_label("Times").fill("7 o'clock")
    expect(page.get_by_text("is not a time of day")).to_be_visible()
    page.get_by_label("Times").fill("07:30")
    expect(page.get_by_text("is not a time of day")).to_have_count(0)
    page.get_by_label("Time zone").fill("Europe/London")
    expect(preview).to_contain_text("At 07:30 on weekdays, Europe/London")
    expect(preview.locator("tbody tr")).to_have_count(10)
    for number, name in enumerate(("fetch", "left", "right"), 1):
        page.locator("#add-step").click()
        expect(page.locator(f"#id_step-{number}-name")).to_be_focused()
        page.keyboard.type(name)
        page.locator(f"#id_step-{number}-runs").select_option("type:wait")
        page.locator(f"#id_step-{number}-config-duration").fill("1s")
    page.get_by_role("button", name="Join right to the group before").click()
    expect(preview).to_contain_text(re.compile(r"left\s+beside\s+right"))
    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_text("“Working days” is saved.")).to_be_visible()
    schedule = Schedule.objects.get()
    assert schedule.spec["patterns"] == [{"times": ["07:30"], "weekdays": "mon-fri"}]
    steps = [(each.index, each.name) for each in schedule.steps.all()]
    assert steps == [(0, "fetch"), (1, "left"), (1, "right")]


def test_what_is_typed_while_a_preview_is_under_way_is_looked_at_as_well(admin_page: Page) -> None:
    page, schedule, held = admin_page, make_schedule(spec={"cron": ["0 3 * * *"]}), list[Route]()
    page.goto(f"/schedules/{schedule.pk}/edit")
    page.route("**/edit", lambda route: route.continue_() if held else held.append(route))
    expression = page.get_by_label("Expression", exact=True)
    with page.expect_request("**/edit"):
        expression.fill("0 4 * * *")
    expression.fill("0 five * * *")
    page.wait_for_timeout(500)
    held[0].continue_()
    expect(page.locator("#editor .error", has_text="five")).to_be_visible()


def test_what_is_typed_while_the_form_is_drawn_anew_is_looked_at_as_well(admin_page: Page) -> None:
    page = admin_page
    page.goto("/schedules/new")
    page.evaluate("htmx.config.defaultSettleDelay = 1000")
    page.get_by_role("button", name="Days and times").click()
    page.get_by_label("Times").fill("7 o'clock")
    expect(page.get_by_text("is not a time of day")).to_be_visible()


def test_steps_are_moved_with_the_keyboard_alone(admin_page: Page) -> None:
    page = admin_page
    schedule = make_schedule(step("first"), step("second", 1), step("third", 2))
    page.goto(f"/schedules/{schedule.pk}/edit")
    page.locator("#step-3-earlier").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#editor-status")).to_have_text("“third” is now in group 2 of 3, on its own.")
    expect(page.locator("#step-3-earlier")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.locator("#step-3-join")).to_be_focused()
    page.keyboard.press("Space")
    expect(page.locator("#editor-status")).to_have_text("“third” is now in group 1 of 2, beside “first”.")
    page.locator("#do-save").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("is saved.")).to_be_visible()
    steps = [(each.index, each.name) for each in schedule.steps.all()]
    assert steps == [(0, "first"), (0, "third"), (1, "second")]


def test_a_step_is_dragged_beside_another(admin_page: Page) -> None:
    page = admin_page
    schedule = make_schedule(step("first"), step("second", 1), step("third", 2))
    page.goto(f"/schedules/{schedule.pk}/edit")
    page.locator("[data-step='3'] .handle").drag_to(page.locator("[data-step='1'] summary").first)
    expect(page.get_by_text("2 steps side by side")).to_be_visible()
    expect(page.locator(".group").first.locator(".step")).to_have_count(2)
