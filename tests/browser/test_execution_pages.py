from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from database import clock
from execution.loops.manual_runs import trigger
from execution.models import Execution
from schedules.models import Schedule
from tests.base import SOMEBODY, make_schedule, step
from tests.loops import running_worker

pytestmark = pytest.mark.django_db(transaction=True)


def run(schedule: Schedule) -> Execution:
    return Execution.objects.get(occurrence=trigger(schedule, initiator=SOMEBODY, now=clock.now()))


def note_until(name: str, index: int, folder: Path) -> dict[str, object]:
    kwargs = {"ledger": str(folder / "ledger"), "path": str(folder / "go")}
    return step(name, index, "note_until", kwargs=kwargs)


def test_an_execution_is_watched_live_to_its_end(admin_page: Page, tmp_path: Path) -> None:
    """Pages are not loaded again: state, steps, output and buttons change by themselves."""
    talk = step("talk", 1, "talk")
    execution = run(make_schedule(note_until("hold", 0, tmp_path), talk, step("last", 2), name="Watched"))
    admin_page.goto(execution.get_absolute_url())
    admin_page.evaluate("window.isTheSamePage = true")
    expect(admin_page.locator("#states")).to_contain_text("in progress")
    expect(admin_page.locator("#live")).to_contain_text("0 of 3")
    tabs = admin_page.get_by_role("navigation", name="Parts of this execution")
    with running_worker():
        hold = admin_page.get_by_role("row", name=re.compile("^hold"))
        expect(hold).to_contain_text("in progress")
        assert admin_page.evaluate("window.isTheSamePage") is True
        tabs.get_by_text("Output").click()
        admin_page.evaluate("window.isTheSamePage = true")
        (tmp_path / "go").touch()
        expect(admin_page.get_by_role("log")).to_contain_text("line 2")
        expect(admin_page.get_by_text("End of the output.")).to_be_visible()
        expect(admin_page.get_by_text("New lines appear here automatically.")).to_have_count(0)
        expect(admin_page.locator("#states")).to_contain_text("completed")
    expect(admin_page.locator(".output .line")).to_have_count(3)
    expect(admin_page.locator("#live")).to_contain_text("3 of 3")
    expect(admin_page.get_by_role("link", name="Run again")).to_be_visible()
    assert admin_page.evaluate("window.isTheSamePage") is True
    tabs.get_by_text("Steps").click()
    expect(admin_page.locator(".gantt .bar")).to_have_count(3)


def test_one_is_cancelled_in_a_dialogue_that_says_what_that_means(admin_page: Page) -> None:
    execution = run(make_schedule(step("slow", 0, "wait_for_ever"), step("after", 1), name="Endless"))
    with running_worker():
        admin_page.goto(execution.get_absolute_url())
        expect(admin_page.get_by_role("row", name=re.compile("^slow"))).to_contain_text("in progress")
        admin_page.get_by_role("link", name="Cancel", exact=True).click()
        dialogue = admin_page.get_by_role("dialog")
        expect(dialogue).to_contain_text("1 task is running, 1 task will not start")
        dialogue.get_by_label("Reason").fill("it takes too long")
        dialogue.get_by_role("button", name="Cancel").click()
        expect(admin_page.get_by_text("is being cancelled")).to_be_visible()
        expect(admin_page.locator("#states")).to_contain_text("cancelled")
    expect(admin_page.locator("#live")).to_contain_text("it takes too long")


def test_several_tasks_are_moved_by_keyboard(admin_page: Page) -> None:
    """With j, k and x; what is selected is not redrawn away."""
    for name in ("One", "Two", "Three"):
        run(make_schedule(step(f"step of {name}"), name=name))
    admin_page.goto("/queue")
    links = admin_page.locator("[data-row-link]")
    expect(links).to_have_text(["step of One", "step of Two", "step of Three"])
    for key in "jjjx":
        admin_page.keyboard.press(key)
    expect(admin_page.get_by_label("Select step of Three")).to_be_checked()
    admin_page.get_by_role("button", name="Move to the front").click()
    admin_page.get_by_role("dialog").get_by_role("button", name="Move to the front").click()
    expect(
        admin_page.get_by_text(
            "“step of Three” was moved ahead of all other tasks with the same pool and priority."
        )
    ).to_be_visible()
    expect(links).to_have_text(["step of Three", "step of One", "step of Two"])
