from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener, urlopen

import psycopg
import pytest
from django.conf import settings

from tests.conftest import server, subprocess_env
from tests.settings import TEST_DB
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.serial
CANARY = "Kanarienvogel-4711-im-Bergwerk"


class Jim:
    """`manage.py up` with a data folder, a port and a database of its own."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.port = free_port()
        self.environment = subprocess_env(
            DATABASE_URL=database_url, JIM_DATA_DIR=str(folder / "data"), JIM_PORT=str(self.port)
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
        wait_until(lambda: "Ctrl-C stops it" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=settings.BASE_DIR, env=self.environment, capture_output=True, text=True
        )

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def jim(tmp_path: Path) -> Iterator[Jim]:
    with empty_database() as url:
        instance = Jim(tmp_path, url)
        yield instance
        if instance.process.poll() is None:
            instance.stop()


def test_up_shows_where_to_click_and_keeps_everything_for_the_next_time(jim: Jim) -> None:
    said = jim.start()
    assert f"{jim.url('/')}\n" in said
    password = re.search(r"Password: +(\S+) +\(shown this once\)", said)
    assert password
    browser = signed_in(jim, "admin", password[1])
    with urlopen(jim.url("/static/admin/css/base.css")) as css:
        assert css.headers["Content-Type"].startswith("text/css")
    demo = schedules(jim)
    assert demo
    shown = type_secret(jim, browser, CANARY) + type_secret(jim, browser, f"{CANARY}\0", name="not allowed")
    assert jim.stop() == 0
    kept = b"".join(path.read_bytes() for path in jim.folder.rglob("*") if path.is_file())
    assert CANARY not in shown
    assert CANARY.encode() not in kept
    assert "Traceback" not in jim.log.read_text()

    said = jim.start()
    assert "shown this once" not in said
    signed_in(jim, "admin", password[1])
    assert schedules(jim) == demo


def test_up_refuses_a_port_in_use_before_it_starts_anything(tmp_path: Path) -> None:
    jim = Jim(tmp_path, "")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", jim.port))
        taken.listen()
        refused = jim.manage("up")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert f"Port {jim.port} on 127.0.0.1 cannot be used" in refused.stderr
    assert not (tmp_path / "data" / "jim.sqlite3").exists()


def test_up_says_in_one_line_that_there_is_no_database(tmp_path: Path) -> None:
    refused = Jim(tmp_path, f"postgresql://nobody@/jim?host={tmp_path}").manage("up")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "The database cannot be used" in refused.stderr


def signed_in(jim: Jim, name: str, password: str) -> OpenerDirector:
    browser = build_opener(HTTPCookieProcessor())
    url, page = send(browser, jim.url("/admin/login/"), username=name, password=password, next="/admin/")
    assert url == jim.url("/admin/")
    assert "Log out" in page
    return browser


def type_secret(jim: Jim, browser: OpenerDirector, value: str, name: str = "canary") -> str:
    """The page that the web process answers with, which has the secret's name in any case."""
    _, page = send(browser, jim.url("/admin/schedules/secret/add/"), name=name, description="", value=value)
    assert name in page
    return page


def send(browser: OpenerDirector, url: str, **fields: str) -> tuple[str, str]:
    """A form as a browser sends it; where that led, and what stands there."""
    with browser.open(url) as page:
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
    assert token
    form = urlencode(fields | {"csrfmiddlewaretoken": token[1]}).encode()
    with browser.open(Request(url, form, {"Referer": url})) as page:
        return page.url, page.read().decode()


def schedules(jim: Jim) -> list[str]:
    code = "from schedules.models import Schedule; print(*sorted(s.pk for s in Schedule.objects.all()))"
    return jim.manage("shell", "-v0", "-c", code).stdout.split()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
