"""Everybody can use the pages: axe-core has nothing to say about any of them, in light and in dark."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from playwright.sync_api import Page

from tests.base import NOW
from tests.browser.pages import addresses, admin_addresses, is_page
from tests.installation import installation

pytestmark = pytest.mark.django_db(transaction=True)

AXE = settings.BASE_DIR / "node_modules" / "axe-core" / "axe.min.js"
ADMIN = {
    *("admin", "admin-schedules_schedule", "admin-schedules_schedule-change"),
    *("admin-execution_worker", "admin-activities_activity-change", "admin-webhooks_endpoint-change"),
}
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RUN = """async ([type, values]) => {
  const options = {runOnly: {type, values}, resultTypes: ["violations"]};
  const found = (await axe.run(document, options)).violations;
  const told = (id, node) => `${id}: ${node.target}: ${node.failureSummary}`;
  return found.flatMap((each) => each.nodes.map((node) => told(each.id, node)));
}"""


def test_axe_finds_nothing_on_any_page(admin_page: Page) -> None:
    installation.create(now=NOW, days=2, owner=User.objects.get(username="ada"))
    found = {each.url: violations(admin_page, each.url) for each in addresses() if each.name != "logout"}
    seen = {url: words for url, words in found.items() if words is not None}
    assert len(seen) > 20
    assert {url: words for url, words in seen.items() if words} == {}


def test_the_admin_can_be_read_and_hit(admin_page: Page) -> None:
    """What its stylesheet decides; the rest is Django's."""
    installation.create(now=NOW, days=2, owner=User.objects.get(username="ada"))
    admin_page.emulate_media(reduced_motion="reduce")  # colours on their way to others are nobody's
    chosen = [each for each in admin_addresses() if each.name in ADMIN]
    assert len(chosen) == len(ADMIN)
    found = {each.name: admin_complaints(admin_page, each.url) for each in chosen}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("url", ["/login", "/nowhere"])
def test_nor_on_those_for_strangers(page: Page, url: str) -> None:
    assert complaints(page, url) == []


def admin_complaints(page: Page, url: str) -> list[str]:
    page.goto(url)
    page.evaluate(AXE.read_text())
    found: list[str] = []
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        found += page.evaluate(RUN, ["rule", ["color-contrast", "link-in-text-block", "target-size"]])
    return found


def violations(page: Page, url: str) -> list[str] | None:
    """None if it is no page to look at."""
    return complaints(page, url) if is_page(page.request.get(url)) else None


def complaints(page: Page, url: str) -> list[str]:
    """What colours mean for contrast is asked in both themes."""
    page.goto(url, wait_until="domcontentloaded")
    page.evaluate(AXE.read_text())
    theme = "document.documentElement.dataset.theme = '{}'"
    page.evaluate(theme.format("light"))
    found: list[Any] = page.evaluate(RUN, ["tag", TAGS])
    page.evaluate(theme.format("dark"))
    return [*found, *page.evaluate(RUN, ["rule", ["color-contrast"]])]
