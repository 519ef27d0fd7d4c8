from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from playwright.sync_api import ConsoleMessage, Page, Route, expect

from schedules.models import Schedule, SharedCalendar
from tests.base import NOW, SOMEBODY, make_schedule, make_template, step

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_schedule_with_parallel_steps_is_made_and_previewed(admin_page: Page) -> None:
    page = admin_page
    page.goto("/schedules/new")
    preview = page.get_by_role("complementary", name="Preview")
    page.locator("#id_name").fill("Working days")
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
        expect(page.locator(f"#id_steps-{number - 1}-name")).to_be_focused()
        page.keyboard.type(name)
        runs = page.locator(f"#id_steps-{number - 1}-runs")
        runs.focus()
        before = runs.evaluate(PLACE)
        runs.select_option("type:wait")
        expect(page.locator(f"#id_steps-{number - 1}-config-duration")).to_be_visible()
        expect(runs).to_be_focused()
        assert abs(runs.evaluate(PLACE)["top"] - before["top"]) <= 1
        page.locator(f"#id_steps-{number - 1}-config-duration").fill("1s")
    page.get_by_role("button", name="Join right to the previous group").click()
    expect(preview).to_contain_text(re.compile(r"left\s+beside\s+right"))
    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_text("Saved “Working days”.")).to_be_visible()
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


AT_ONCE = """([field, value, heard]) => document.addEventListener("htmx:afterSwap", () => setTimeout(() => {
  const control = document.querySelector(field);
  control.value = value;
  control.dispatchEvent(new Event(heard, {bubbles: true}));
}), {once: true})"""


@pytest.mark.parametrize(
    ("button", "field", "value", "heard", "shown"),
    [
        ("Days and times", "[name$=-times]", "7 o'clock", "input", "is not a time of day"),
        ("Add a step", "[name$=-runs]", "type:wait", "change", "Duration"),
    ],
)
def test_what_is_done_as_soon_as_the_form_is_drawn_anew_is_heard(
    admin_page: Page, button: str, field: str, value: str, heard: str, shown: str
) -> None:
    page = admin_page
    page.goto("/schedules/new")
    page.evaluate(AT_ONCE, [field, value, heard])
    page.get_by_role("button", name=button).click()
    expect(page.locator("#editor .error, #editor label").get_by_text(shown)).to_be_visible()


def test_steps_are_moved_with_the_keyboard_alone(admin_page: Page) -> None:
    page = admin_page
    schedule = make_schedule(step("first"), step("second", 1), step("third", 2))
    page.goto(f"/schedules/{schedule.pk}/edit")
    page.locator("#steps-2-earlier").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#editor-status")).to_have_text("“third” is now in group 2 of 3, on its own.")
    expect(page.locator("#steps-2-earlier")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.locator("#steps-2-join")).to_be_focused()
    page.keyboard.press("Space")
    expect(page.locator("#editor-status")).to_have_text("“third” is now in group 1 of 2, beside “first”.")
    page.locator("#do-save").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Saved “")).to_be_visible()
    steps = [(each.index, each.name) for each in schedule.steps.all()]
    assert steps == [(0, "first"), (0, "third"), (1, "second")]


def test_a_step_is_dragged_beside_another(admin_page: Page) -> None:
    page = admin_page
    schedule = make_schedule(step("first"), step("second", 1), step("third", 2))
    page.goto(f"/schedules/{schedule.pk}/edit")
    page.locator("[data-step='2'] .handle").drag_to(page.locator("[data-step='0'] summary").first)
    expect(page.get_by_text("2 steps side by side")).to_be_visible()
    expect(page.locator(".group").first.locator(".step")).to_have_count(2)


class Use(NamedTuple):
    """A control of the editor, how it is used, and what has the focus then, if that is another one."""

    control: str
    how: str
    focused: str = ""
    width: int = 1280


USES = [
    Use("#id_steps-2-runs", "choose type:http"),
    Use("#id_steps-2-runs", "press ArrowDown"),
    Use("#id_steps-2-runs", "choose template:Export"),
    Use("#id_steps-2-as_json", "click"),
    Use("#steps-2-earlier", "click"),
    Use("#steps-1-later", "press Enter", "#steps-1-earlier"),  # it is the last one now
    Use("#steps-1-join", "press Enter"),
    Use("#steps-1-earlier", "press Enter", "#steps-1-later"),  # it is the first one now
    Use("[value='remove-step.1']", "click", "[value='remove-step.2']"),
    Use("[value='remove-step.2']", "press Enter", "[value='remove-step.1']"),
    Use("[value='copy-step.1']", "press Enter", "#id_steps-3-name"),
    Use("[value='add-step.0']", "click", "#id_steps-3-name"),
    Use("#add-step", "press Enter", "#id_steps-3-name"),
    Use("#add-rule-cron", "click", "#id_rules-1-expression"),
    Use("[value='chip.0.0 * * * *']", "click"),
    Use("[value='remove-rule.0']", "press Enter", "#add-rule-week"),
    Use("#add-exclusion-dates", "press Enter", "#id_exclude-1-first"),
    Use("[value='remove-exclusion.0']", "click", "#add-exclusion-shared"),
    Use("#id_exclude-0-calendar", "choose Days off"),
    Use("#id_time_zone", "fill Mars/Phobos"),
    Use("#id_description", "fill It is mended as the preview comes."),
    Use("#id_name", "press Enter"),  # which checks
    Use("#do-check", "press Enter"),
    Use("#id_steps-2-runs", "choose type:http", width=390),
    Use("#add-step", "click", "#id_steps-3-name", width=390),
]
# As much above it as before; the control itself, or what has the focus instead, is there to be seen.
PLACE = """(element) => {
  const box = element.getBoundingClientRect();
  const top = document.querySelector(".top").getBoundingClientRect().bottom;
  const bar = document.querySelector(".editor-bar");
  const bottom = bar.contains(element) ? innerHeight : bar.getBoundingClientRect().top;
  return { top: box.top, seen: box.top >= top && box.bottom <= bottom };
}"""
PUT = "(element, top) => scrollBy(0, element.getBoundingClientRect().top - top)"
COUNT_ANSWERS = "() => { window.answers = 0; addEventListener('htmx:afterSettle', () => window.answers++); }"


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.control} {use.how} {use.width}")
def test_what_is_used_stays_in_its_place_with_the_focus(admin_page: Page, use: Use) -> None:
    page, said = admin_page, complaints_of(admin_page)
    page.set_viewport_size({"width": use.width, "height": 720})
    open_editor(page)
    control = page.locator(use.control).first
    control.evaluate(PUT, 360)
    before = control.evaluate(PLACE)
    act(page, use)
    focused = page.locator(use.focused or use.control).first
    expect(focused).to_be_focused()
    place = focused.evaluate(PLACE)
    assert place["seen"]
    if not use.focused:
        assert abs(place["top"] - before["top"]) <= 1, (before, place)
    assert said == []


def test_a_drop_keeps_the_page_where_it_is(admin_page: Page) -> None:
    page, said = admin_page, complaints_of(admin_page)
    open_editor(page)
    page.locator("#steps-0-earlier").evaluate(PUT, 200)
    before = page.evaluate("scrollY")
    page.evaluate(COUNT_ANSWERS)
    page.locator("[data-step='1'] .handle").drag_to(page.locator("[data-step='0'] summary").first)
    expect(page.get_by_text("2 steps side by side")).to_be_visible()
    page.wait_for_function("() => window.answers > 0")
    assert abs(page.evaluate("scrollY") - before) <= 1
    assert said == []


def test_choosing_the_type_of_a_template_keeps_the_page_where_it_is(admin_page: Page) -> None:
    page, said = admin_page, complaints_of(admin_page)
    page.set_viewport_size({"width": 1280, "height": 400})
    page.goto("/templates/new")
    control = page.locator("#id_runs")
    control.evaluate(PUT, 200)
    before = control.bounding_box()
    act(page, Use("#id_runs", "choose type:http"))
    expect(page.locator("#id_config-url")).to_be_visible()
    expect(control).to_be_focused()
    assert control.bounding_box() == before
    assert said == []


def test_a_refused_save_leads_to_each_field(admin_page: Page) -> None:
    page = admin_page
    open_editor(page)
    page.locator("#id_time_zone").fill("London")
    page.locator("#steps-2-failing > summary").click()
    page.locator("#id_steps-2-max_retries").fill("many")
    page.locator("#do-save").click()
    expect(page.locator("#mistakes")).to_be_focused()
    expect(page.locator("#mistakes-title")).to_have_text("2 fields need fixing")
    assert page.locator("#mistakes").evaluate(PLACE)["seen"]
    page.locator("#steps-2-open").evaluate("(details) => { details.open = false; }")
    for link, control in (("third: Retries", "#id_steps-2-max_retries"), ("Time zone", "#id_time_zone")):
        page.locator("#mistakes").get_by_role("link", name=link).click()
        check_wrong(page, control)
        assert page.locator(control).evaluate(PLACE)["seen"]
    # What is mended leaves the list, and the bar leads back to what is left.
    page.locator("#id_time_zone").fill("Europe/London")
    expect(page.locator("#mistakes-title")).to_have_text("1 field needs fixing")
    expect(page.locator("#id_time_zone")).to_be_focused()
    expect(page.locator("#id_time_zone")).to_have_attribute("aria-invalid", "false")
    page.locator("#editor-sentence a").click()
    expect(page.locator("#mistakes")).to_be_focused()


def test_a_check_is_answered_also_if_all_is_well(admin_page: Page) -> None:
    page = admin_page
    open_editor(page)
    page.locator("#id_steps-2-config-function").fill("tests.work.noop ")
    page.locator("#id_steps-2-config-function").fill("tests.work.noop")
    page.locator("#do-check").click()
    expect(page.locator("#editor-sentence")).to_contain_text("No problems found")
    expect(page.locator("#editor-status")).to_contain_text("No problems found")
    page.locator("#id_steps-2-config-function").fill("tests.wrok.noop")
    page.locator("#do-check").click()
    expect(page.locator("#warnings")).to_be_focused()
    page.locator("#warnings a").click()
    expect(page.locator("#id_steps-2-config-function")).to_be_focused()


# Of each page with a form: its address, and what is wrong when it is sent as it is.
FORMS = {
    "/templates/new": "#id_name",
    "/calendars/new": "#id_name",
    "/limits/new": "#id_key",
    "/webhooks/new": "#id_name",
    "/tokens/new": "#id_name",
    "/password": "#id_old_password",
}


@pytest.mark.parametrize("url", FORMS)
def test_each_form_leads_to_what_is_wrong(admin_page: Page, url: str) -> None:
    page = admin_page
    page.goto(url)
    page.locator("main form button.primary").click()
    expect(page.locator("#mistakes")).to_be_focused()
    page.locator("#mistakes a").first.click()
    check_wrong(page, FORMS[url])


def test_so_does_a_question_in_a_dialogue(admin_page: Page) -> None:
    page = admin_page
    page.goto(make_schedule(step("first"), spec={"cron": ["0 3 * * *"]}).get_absolute_url())
    page.locator(".split .menu > summary").click()
    page.get_by_role("link", name="Backfill…").first.click()
    page.locator("#dialog button.primary").click()
    expect(page.locator("#dialog #mistakes")).to_be_focused()
    page.locator("#mistakes a").first.click()
    check_wrong(
        page, page.locator("#dialog .field.wrong :is(input, select)").first.evaluate("(e) => `#${e.id}`")
    )


def check_wrong(page: Page, control: str) -> None:
    """It has the focus, and says what is wrong with it."""
    found = page.locator(control)
    expect(found).to_be_focused()
    expect(found).to_have_attribute("aria-invalid", "true")
    told = (found.get_attribute("aria-describedby") or "").split()
    assert page.locator(f"[id='{told[-1]}']").inner_text().strip()


def open_editor(page: Page) -> None:
    make_template("Export")
    SharedCalendar.objects.define("Days off", [], initiator=SOMEBODY, now=NOW)
    spec = {"cron": ["0 3 * * *"], "exclude": [{"calendar": "Days off"}]}
    schedule = make_schedule(step("first"), step("second", 1), step("third", 2), spec=spec)
    page.goto(f"/schedules/{schedule.pk}/edit")
    page.locator("#steps-2-open > summary").click()


def act(page: Page, use: Use) -> None:
    """And wait until the page has been answered and drawn."""
    page.evaluate(COUNT_ANSWERS)
    control, (verb, _, value) = page.locator(use.control).first, use.how.partition(" ")
    control.focus()
    match verb:
        case "choose":
            control.select_option(value)
        case "press":
            control.press(value)
        case "fill":
            control.fill(value)
        case _:
            control.click()
    page.wait_for_function("() => window.answers > 0")


def complaints_of(page: Page) -> list[str]:
    """What its scripts complain about on the console."""
    said: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            said.append(message.text)

    page.on("console", hear)
    return said
