"""The pages that describe the API, under the same content security policy as all others."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Request, expect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("path", ["docs", pytest.param("redoc", marks=pytest.mark.long)])
def test_the_api_is_described_to_people_without_anything_from_elsewhere(
    admin_page: Page, base_url: str, path: str
) -> None:
    elsewhere: list[str] = []

    def look(request: Request) -> None:
        if not request.url.startswith((base_url, "data:", "blob:")):
            elsewhere.append(request.url)

    admin_page.on("requestfinished", look)
    admin_page.goto(f"/api/v1/{path}")
    expect(admin_page.get_by_text("Authentication.").first).to_be_visible()
    assert elsewhere == []


def test_the_description_of_the_api_follows_the_theme_and_leads_back(admin_page: Page) -> None:
    admin_page.emulate_media(color_scheme="dark")
    admin_page.goto("/api/v1/docs")
    assert admin_page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    admin_page.get_by_role("link", name="Back to JIM").click()
    admin_page.wait_for_url("**/")
