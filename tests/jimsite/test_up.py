from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener, urlopen

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User

from jimsite.management.commands import up
from tests.commands import refusal
from tests.conftest import server, subprocess_env
from tests.ports import kept_port
from tests.settings import TEST_DB
from tests.waiting import PATIENCE_SECONDS, wait_until


class Jim:
    """`manage.py up` with a data folder, a port and a database of its own."""

    def __init__(self, folder: Path, database_url: str, port: int) -> None:
        self.folder, self.port = folder, port
        self.log = folder / "log"
        self.environment = subprocess_env(
            DATABASE_URL=database_url, JIM_DATA_DIR=str(folder / "data"), JIM_PORT=str(port)
        )

    def start(self) -> str:
        """Returns what it said until it was ready."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=settings.BASE_DIR,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(lambda: "Press Ctrl-C to stop" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def jim(tmp_path: Path) -> Iterator[Jim]:
    with empty_database() as url, kept_port() as port:
        instance = Jim(tmp_path, url, port)
        yield instance
        if instance.process.poll() is None:
            instance.stop()


@pytest.mark.live
@pytest.mark.parametrize(
    "is_again", [False, pytest.param(True, marks=pytest.mark.long)], ids=["once", "and again"]
)
def test_up_shows_where_to_click_and_keeps_everything_for_the_next_time(jim: Jim, is_again: bool) -> None:
    said = jim.start()
    assert f"{jim.url('/')}\n" in said
    password = re.search(r"Password: +(\S+) +\(shown only once\)", said)
    assert password
    browser = signed_in(jim, "admin", password[1])
    with urlopen(jim.url("/static/admin/css/base.css")) as css:
        assert css.headers["Content-Type"].startswith("text/css")
    demo = schedules(jim, browser)
    assert demo
    assert jim.stop() == 0
    assert "Traceback" not in jim.log.read_text()
    if is_again:
        assert "shown only once" not in jim.start()
        assert schedules(jim, signed_in(jim, "admin", password[1])) == demo


def test_up_refuses_a_port_in_use_before_it_starts_anything(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings.JIM_PORT = taken.getsockname()[1]
        monkeypatch.setattr(up, "call_command", lambda *_, **__: pytest.fail("something was started"))
        assert f"Port {settings.JIM_PORT} on 127.0.0.1 cannot be used" in refusal("up")


@pytest.mark.django_db
def test_up_makes_one_administrator() -> None:
    User.objects.create_user("admin")
    name, password = up.ensure_administrator()
    assert (name, User.objects.get(username=name).check_password(password or "")) == ("admin2", True)
    assert up.ensure_administrator() == ("admin2", None)


def signed_in(jim: Jim, name: str, password: str) -> OpenerDirector:
    """As with a browser and its form."""
    browser, url = build_opener(HTTPCookieProcessor()), jim.url("/admin/login/")
    with browser.open(url) as page:
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
    assert token
    fields = {"username": name, "password": password, "next": "/admin/", "csrfmiddlewaretoken": token[1]}
    with browser.open(Request(url, urlencode(fields).encode(), {"Referer": url})) as page:
        assert (page.url, b"Log out" in page.read()) == (jim.url("/admin/"), True)
    return browser


def schedules(jim: Jim, browser: OpenerDirector) -> list[str]:
    with browser.open(jim.url("/schedules")) as page:
        return sorted(set(re.findall(r'href="/schedules/([0-9]+)"', page.read().decode())))


@contextmanager
def empty_database() -> Iterator[str]:
    """The address of a database without any table; with SQLite, none: that of the data folder."""
    if TEST_DB == "sqlite":
        yield ""
        return
    name = f"up_{uuid.uuid4().hex}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}")
        try:
            yield server.url(name)
        finally:
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_says_nothing_of_its_own(tmp_path: Path) -> None:
    """Also where one of the browsers is installed that it looks for, and others are not."""
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    # Without what the make that runs the tests tells those below it.
    env = subprocess_env(PATH=f"{tmp_path}:{os.environ['PATH']}", MAKEFLAGS="")
    done = subprocess.run(["make", "help"], cwd=settings.BASE_DIR, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path) not in done.stdout
