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
    expect(admin_page.get_by_text("Who asks.").first).to_be_visible()
    assert elsewhere == []
