from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect

from tests.browser.chromium import find_browser
from tests.waiting import PATIENCE_SECONDS

# No sandbox: root has none. The rest keeps it away from the network, the GPU and a small /dev/shm.
ARGUMENTS = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-quic", "--disable-sync"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
PASSWORD = "correct horse"
# What polls every few seconds does so ten times as often: nobody has to wait for what has changed already.
POLL_OFTEN = """const later = window.setTimeout;
window.setTimeout = (call, wait, ...rest) => later(call, wait >= 2000 ? wait / 10 : wait, ...rest);"""

# Playwright's loop runs in the thread of the tests, which Django therefore takes for asynchronous code.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
expect.set_options(timeout=PATIENCE_SECONDS * 1_000)


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
def admin_page(page: Page, base_url: str) -> Iterator[Page]:
    """A browser in which an administrator is signed in; no page of the test may break a script."""
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password=PASSWORD))
    session = client.cookies[settings.SESSION_COOKIE_NAME]
    page.context.add_cookies([{"name": session.key, "value": session.value, "url": base_url}])
    page.set_default_timeout(PATIENCE_SECONDS * 1_000)
    page.add_init_script(POLL_OFTEN)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(f"{page.url}: {error.stack}"))
    yield page
    assert broken == []
