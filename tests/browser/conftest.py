from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from tests.browser.chromium import find_browser
from tests.waiting import PATIENCE_SECONDS

# No sandbox: root has none. The rest keeps it away from the network, the GPU and a small /dev/shm.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PASSWORD = "correct horse"

# Playwright's loop runs in the thread of the tests, which Django therefore takes for asynchronous code.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
expect.set_options(timeout=PATIENCE_SECONDS * 1_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last of all: that loop goes on until the end, and beside it no test could start one of its own."""
    items.sort(key=lambda item: item.path.is_relative_to(Path(__file__).parent))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    browser = find_browser()
    return {
        **browser_type_launch_args,
        "executable_path": str(browser.program),
        "args": ARGUMENTS,
        "env": {**os.environ, **browser.env},
    }


@pytest.fixture(scope="session")
def base_url(live_server: Any) -> str:
    return str(live_server.url)


@pytest.fixture
def admin_page(page: Page) -> Iterator[Page]:
    """A browser in which an administrator has just signed in; no page of the test may break a script."""
    User.objects.create_superuser("ada", password=PASSWORD)
    page.set_default_timeout(PATIENCE_SECONDS * 1_000)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(f"{page.url}: {error.stack}"))
    page.goto("/")
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    yield page
    assert broken == []
