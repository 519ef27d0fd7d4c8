"""Photographs of every page, for those who look after how they look: `make screenshots`.

A server of its own shows an installation that is made up; light and dark, on a wide screen and a phone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import FloatRect

from tests.ports import kept_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER, CHOSEN_FOLDER = ROOT / "screenshots", ROOT / "docs" / "images"
SIZES = {"wide": (1280, 800), "phone": (390, 844)}
THEMES = ("light", "dark")
# The best ones, for the README, each in the theme that shows it best: as much as fits on a screen.
LIGHT = ("home", "schedule", "schedule-edit", "execution", "workflow", "workflows")
CHOSEN = dict.fromkeys(LIGHT, "light") | {"schedules": "dark"}
SCREEN: FloatRect = {"x": 0, "y": 0, "width": 1265, "height": 720}
NAME, PASSWORD = "ada", "correct horse"


def main(only: list[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="jim-photographs-"))
    try:
        with kept_port() as port:
            os.environ |= {"JIM_DATA_DIR": str(folder), "JIM_PORT": str(port), "DATABASE_URL": ""}
            os.environ |= {"DJANGO_SETTINGS_MODULE": "jimsite.settings", "DJANGO_ALLOW_ASYNC_UNSAFE": "1"}
            _fill()
            with _server(port):
                _photograph(f"http://127.0.0.1:{port}", set(only))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill() -> None:
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from database import clock
    from tests.installation import installation

    call_command("migrate", verbosity=0, interactive=False)
    owner = User.objects.create_superuser(NAME, password=PASSWORD)
    installation.create(now=clock.now(), owner=owner)


@contextmanager
def _server(port: int) -> Iterator[None]:
    """Pages alone: a scheduler and a worker would change what is to be seen."""
    from jimsite.management.commands.up import answers, web

    process = subprocess.Popen(web(port).argv)
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            if time.monotonic() > deadline:
                raise TimeoutError("The server does not answer.")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def _photograph(base: str, only: set[str]) -> None:
    from playwright.sync_api import sync_playwright

    from tests.browser.chromium import find_browser
    from tests.browser.conftest import ARGUMENTS
    from tests.browser.pages import addresses, admin_addresses, is_page

    browser = find_browser()
    FOLDER.mkdir(exist_ok=True)
    CHOSEN_FOLDER.mkdir(exist_ok=True)
    every = [each for each in (*addresses(), *admin_addresses()) if each.name != "logout"]
    wanted = [each for each in every if not only or each.name in only]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=str(browser.program), args=ARGUMENTS, env={**os.environ, **browser.env}
        )
        for size, (width, height) in SIZES.items():
            context = chromium.new_context(base_url=base, viewport={"width": width, "height": height})
            page = context.new_page()
            _sign_in(page)
            for each in wanted:
                _keep_alive()
                if not is_page(page.request.get(each.url)):
                    continue
                page.goto(each.url)
                for theme in THEMES:
                    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
                    # Colours that are still on their way to those of the theme are nobody's.
                    path = FOLDER / f"{each.name}-{theme}-{size}.png"
                    page.screenshot(path=path, full_page=True, animations="disabled")
                    if CHOSEN.get(each.name) == theme and size == "wide":
                        page.screenshot(path=CHOSEN_FOLDER / f"{each.name}.png", clip=SCREEN)
                sys.stdout.write(f"{each.name} {size}\n")
                sys.stdout.flush()
        chromium.close()


def _sign_in(page: object) -> None:
    from playwright.sync_api import Page

    assert isinstance(page, Page)
    page.goto("/login")
    page.screenshot(path=FOLDER / f"login-light-{page.viewport_size and page.viewport_size['width']}.png")
    page.get_by_label("Username").fill(NAME)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def _keep_alive() -> None:
    """What would beat if it were there."""
    from datetime import timedelta

    from database import clock
    from execution.models import Chore, Worker

    now = clock.now()
    Chore.objects.tick(outage=timedelta(minutes=5), now=now)
    for worker in Worker.objects.alive():
        worker.beat(now)


if __name__ == "__main__":
    main(sys.argv[1:])
