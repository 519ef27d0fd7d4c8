"""What people hand over as a file, whatever it is: told in one line that names it, and nothing is saved."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from execution.sql_connections import SqlConnection
from execution.steps.base import get
from jimsite import environment
from schedules import vault
from schedules.models import Schedule
from schedules.registry import ConfigError
from tests.api.calling import Caller
from tests.base import everything
from tests.conftest import subprocess_env
from tests.workflows.base import make_topics
from workflows.models import Event

pytestmark = pytest.mark.django_db

SCHEDULES = """\
version: 1
schedules:
  - name: Nächtlich
    steps: [{name: a, step_type: wait, config: {duration: 1s}}]
"""
GIGABYTE, MOST_MEMORY = 1024**3, 32 * 1024**2


class Reader:
    """One place where JIM reads what a person has given; `good` is what it takes."""

    name, good = "", ""
    by_field = False  # the field that complains is the one with the path

    def path(self, folder: Path) -> Path:
        return folder / "given"

    def read(self, path: Path) -> str:
        """What it complains about; nothing when it takes the file."""
        raise NotImplementedError


class Command(Reader):
    def arguments(self, path: Path) -> list[str]:
        raise NotImplementedError

    def read(self, path: Path) -> str:
        said = io.StringIO()
        try:
            call_command(*self.arguments(path), stdout=io.StringIO(), stderr=said)
        except CommandError as error:
            lines = [*said.getvalue().splitlines(), str(error)]
            return lines[0] if error.returncode == 2 and len(lines) <= 2 else ""
        return ""


class ImportSchedules(Command):
    name, good = "importschedules", SCHEDULES

    def arguments(self, path: Path) -> list[str]:
        return ["importschedules", str(path)]


class NextTimes(Command):
    name, good = "nexttimes", '{"time_zone": "Europe/London", "every": ["1h"]}'

    def arguments(self, path: Path) -> list[str]:
        return ["nexttimes", "--file", str(path)]


class SqlFile(Reader):
    name, good = "sql step", "SELECT 'Zoë'"
    by_field = True

    def read(self, path: Path) -> str:
        connections = {"pg": SqlConnection.from_url("postgresql://ada@db.example/hr")}
        with override_settings(JIM_SQL_CONNECTIONS=connections, JIM_SQL_FOLDERS=[path.parent]):
            try:
                get("sql").clean({"connection": "pg", "file": str(path)})
            except ConfigError as error:
                return f"{error}"
        return ""


class SqlConnections(Reader):
    name, good = "sql_connections.json", '{"hr": "postgresql://zoë@db.example/hr"}'

    def path(self, folder: Path) -> Path:
        return folder / "sql_connections.json"

    def read(self, path: Path) -> str:
        try:
            environment.sql_connections("JIM_SQL_CONNECTIONS", data_dir=path.parent)
        except ImproperlyConfigured as error:
            return str(error)
        return ""


class SecretKey(Reader):
    name, good = "secret_key", "Schlüssel" * 9

    def path(self, folder: Path) -> Path:
        return folder / "secret_key"

    def read(self, path: Path) -> str:
        try:
            environment.secret_key(data_dir=path.parent)
        except ImproperlyConfigured as error:
            return str(error)
        return ""


class SecretsKeys(Reader):
    name, good = "secrets_keys", Fernet.generate_key().decode()

    def path(self, folder: Path) -> Path:
        return folder / "secrets_keys"

    def read(self, path: Path) -> str:
        with override_settings(JIM_DATA_DIR=path.parent, JIM_SECRETS_KEYS=[]):
            try:
                vault.current()
            except vault.VaultError as error:
                return str(error)
        return ""


COMMANDS: list[Reader] = [ImportSchedules(), NextTimes()]
READERS: list[Reader] = [*COMMANDS, SqlFile(), SqlConnections(), SecretKey(), SecretsKeys()]


def write(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def gigabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIGABYTE)


def locked(path: Path) -> None:
    path.write_text("secret")
    path.chmod(0)


HEADER, BARE = b"name,cron\nNightly,0 3 * * *\n", b"Nightly,0 3 * * *\nHourly,0 * * * *\n"
RAGGED = b'"name","cron\nNightly,0 3 * * *,1,2\n'
UTF16 = "is UTF-16 text; UTF-8 is expected: save it as UTF-8"
ROOT_READS_ALL = pytest.mark.skipif(os.geteuid() == 0, reason="who is root may read everything")
# (what, how it is made, what every reader says)
UNFIT: list[Any] = [
    pytest.param(
        write("version: 1".encode("utf-16-le")),
        "it contains NUL; UTF-8 is expected",
        id="UTF-16 without a mark",
    ),
    pytest.param(write("é".encode("utf-16")), UTF16, id="UTF-16"),
    pytest.param(write(b"\xfe\xff" + "é".encode("utf-16-be")), UTF16, id="UTF-16 of the other end"),
    pytest.param(
        write("Zoë".encode("latin-1")), "is not UTF-8 text (byte 3): save it as UTF-8", id="Latin-1"
    ),
    pytest.param(write(b"a\0b"), "is not text: it contains NUL", id="NUL"),
    pytest.param(gigabyte, "is larger than", id="1 GB"),
    pytest.param(Path.mkdir, "cannot be read: Is a directory", id="a folder"),
    pytest.param(os.mkfifo, "is a pipe or a device, not a file with text", id="a pipe"),
    pytest.param(lambda path: path.symlink_to("/dev/zero"), "is a pipe or a device", id="/dev/zero"),
    pytest.param(
        lambda path: path.symlink_to("/proc/self/mem"), "cannot be read: Input/output error", id="unreadable"
    ),
    pytest.param(locked, "cannot be read: Permission denied", id="locked", marks=ROOT_READS_ALL),
]


@pytest.fixture
def frugal() -> Iterator[None]:
    """Whatever was given, it was not taken into memory."""
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < MOST_MEMORY


@pytest.mark.usefixtures("frugal")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize(("make", "words"), UNFIT)
def test_what_is_no_text_is_refused(
    reader: Reader, make: Callable[[Path], Any], words: str, tmp_path: Path
) -> None:
    path = reader.path(tmp_path)
    make(path)
    if isinstance(reader, SqlFile) and path.is_symlink():
        words = "is outside the folders"
    before = everything()
    told = reader.read(path)
    assert words in told
    assert str(path) in told
    assert "\n" not in told
    assert everything() == before


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with the mark of Windows"])
def test_a_good_file_is_taken(reader: Reader, mark: bytes, tmp_path: Path) -> None:
    path = reader.path(tmp_path)
    path.write_bytes(mark + reader.good.encode().replace(b"\n", b"\r\n" if mark else b"\n"))
    assert reader.read(path) == ""
    assert Schedule.objects.filter(name="Nächtlich").exists() == isinstance(reader, ImportSchedules)


AT_THE_TOP, A_SPEC = "schedules: expected at the top", "an object with cron, every, calendars"
# (the reader, what it is given, what it says)
WRONG: list[tuple[Reader, bytes | None, str]] = [
    (ImportSchedules(), HEADER, AT_THE_TOP),
    (ImportSchedules(), BARE, AT_THE_TOP),
    (ImportSchedules(), RAGGED, "not YAML: "),
    (ImportSchedules(), b"", AT_THE_TOP),
    (ImportSchedules(), None, "cannot be read: No such file or directory"),
    (NextTimes(), HEADER, A_SPEC),
    (NextTimes(), BARE, A_SPEC),
    (NextTimes(), RAGGED, "not YAML: "),
    (NextTimes(), b"\xef\xbb\xbf", "is empty; a spec is expected"),
    (NextTimes(), None, "cannot be read: No such file or directory"),
    (SqlFile(), RAGGED, 'the quoted name that begins with " in line 1 is never closed'),
    (SqlFile(), b"", "holds no statement, only space and comments"),
    (SqlFile(), None, "does not exist"),
    (SqlConnections(), HEADER, "must be a JSON object of names and URLs"),
    (SqlConnections(), RAGGED, "must be a JSON object of names and URLs"),
    (SqlConnections(), b" ", "must be a JSON object of names and URLs"),
    (SecretKey(), b"", "is empty: remove it"),
    (SecretsKeys(), HEADER, "is not a Fernet key"),
    (SecretsKeys(), b"", "is empty: restore it"),
]


@pytest.mark.parametrize(
    ("reader", "content", "words"), WRONG, ids=lambda value: getattr(value, "name", None) or str(value)[:30]
)
def test_text_of_another_kind_is_refused(
    reader: Reader, content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = reader.path(tmp_path)
    if content is not None:
        path.write_bytes(content)
    before = everything()
    told = reader.read(path)
    assert words in told
    assert reader.by_field or str(path) in told
    assert everything() == before


NEXT_TIMES, IMPORT = ["nexttimes", "-"], ["importschedules", "-"]
PUBLISH = ["publish", "orders", "o1", "--payload", "-"]
# (the command, what comes in, what it says)
TYPED_IN: list[tuple[list[str], bytes, str]] = [
    *[(command, "1".encode("utf-16"), UTF16) for command in (NEXT_TIMES, IMPORT, PUBLISH)],
    *[(command, b"\xe9", "is not UTF-8 text (byte 1)") for command in (NEXT_TIMES, IMPORT, PUBLISH)],
    *[(command, b"\0" * 6_000_000, "is larger than") for command in (NEXT_TIMES, IMPORT, PUBLISH)],
    (NEXT_TIMES, HEADER, A_SPEC),
    (IMPORT, HEADER, AT_THE_TOP),
    (PUBLISH, HEADER, "--payload: not JSON: Expecting value (line 1, column 1)"),
    (PUBLISH, b"1,2\n3\n", "--payload: not JSON: Extra data (line 1, column 2)"),
    (PUBLISH, b"", "--payload: not JSON: Expecting value"),
]


@pytest.mark.parametrize(("command", "content", "words"), TYPED_IN, ids=lambda value: str(value)[:30])
def test_standard_input_is_held_to_the_same(
    command: list[str], content: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics("orders")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    before = everything()
    assert words in refused(command)
    assert everything() == before
    assert not Event.objects.exists()


@pytest.mark.parametrize("command", [NEXT_TIMES, IMPORT, PUBLISH], ids=lambda command: command[0])
def test_without_standard_input_it_is_told(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_topics("orders")
    monkeypatch.setattr(sys, "stdin", None)
    assert "is closed: redirect a file or a pipe to it" in refused(command)


@pytest.mark.parametrize("command", [NEXT_TIMES, IMPORT, PUBLISH], ids=lambda command: command[0])
def test_a_torn_standard_input_is_told(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_topics("orders")
    with Path("/proc/self/mem").open() as unreadable:
        monkeypatch.setattr(sys, "stdin", unreadable)
        assert "cannot be read: Input/output error" in refused(command)


def test_the_mark_of_windows_is_taken_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    make_topics("orders")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf{"a": 1}')))
    call_command(*PUBLISH, stdout=io.StringIO())
    assert Event.objects.get().payload == {"a": 1}


def refused(command: list[str]) -> str:
    told = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command(*command, stdout=io.StringIO(), stderr=told)
    assert error.value.returncode == 2
    return f"{told.getvalue()}{error.value}"


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (["importschedules", "{pipe}"], None),
        (["nexttimes", "--file", "{pipe}"], None),
        (["importschedules", "/dev/zero"], None),
        (["importschedules", "-"], "/dev/zero"),
        (["nexttimes", "-"], "/dev/zero"),
    ],
    ids=lambda value: str(value),
)
def test_it_is_so_in_a_shell(command: list[str], given: str | None, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [word.replace("{pipe}", str(tmp_path / "pipe")) for word in command]
    descriptor = os.open(given or os.devnull, os.O_RDONLY)
    done = subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=settings.BASE_DIR,
        env=subprocess_env(DATABASE_URL="", JIM_DATA_DIR=str(tmp_path / "data")),
        stdin=descriptor,
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(descriptor)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


# (the type of the body, the body, the code, what it says)
BODIES: list[tuple[str, bytes, int, str]] = [
    ("text/csv", HEADER, 415, "Unsupported media type"),
    ("multipart/form-data; boundary=x", b"--x--\r\n", 415, "Unsupported media type"),
    ("application/json", HEADER, 400, "no proper JSON"),
    ("application/json", '{"key": "global"}'.encode("utf-16"), 400, "not UTF-8"),
    ("application/json", b"", 400, "This field is required"),
]


@pytest.mark.parametrize(("kind", "body", "code", "words"), BODIES, ids=lambda value: str(value)[:30])
def test_the_api_takes_no_such_file(kind: str, body: bytes, code: int, words: str) -> None:
    caller = Caller()
    before = everything()
    answer = caller.client.post("/api/v1/limits", body, content_type=kind)
    assert (answer.status_code, words in answer.content.decode()) == (code, True)
    assert everything() == before


def test_the_api_takes_the_mark_of_windows() -> None:
    body = b'\xef\xbb\xbf{"key": "global", "size": 2}'
    assert Caller().client.post("/api/v1/limits", body, content_type="application/json").status_code == 201


PACKAGES = ("activities", "api", "execution", "jimsite", "schedules", "web", "webhooks", "workflows")
# Files that are JIM's own or the system's, and one that is cut off at a size.
OWN = {
    "activities/given_files.py",
    "activities/private_files.py",
    "execution/nursery_process.py",
    "jimsite/doctor/database.py",
    "jimsite/following.py",
    "jimsite/workflows.py",
    "web/views/settings.py",
}
READING = {"read_text", "read_bytes", "FILES", "FileField", "stdin"}


def reads_files(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in READING:
                return True
            case ast.Call(func=ast.Name(id="open")):
                return True
            # Others open, too: Schedule.objects.open()
            case ast.Call(func=ast.Attribute(attr="open"), args=[ast.Constant(), *_]):
                return True
            case ast.Call(func=ast.Attribute(attr="open"), keywords=[_, *_]):
                return True
    return False


@pytest.mark.parametrize(
    "source", ["open(x)", "Path(x).open('rb')", "x.read_text()", "sys.stdin.buffer", "request.FILES"]
)
def test_a_reader_is_found(source: str) -> None:
    assert reads_files(source)


def test_nobody_else_reads_what_people_give() -> None:
    files = [path for package in PACKAGES for path in (settings.BASE_DIR / package).rglob("*.py")]
    readers = {str(path.relative_to(settings.BASE_DIR)) for path in files if reads_files(path.read_text())}
    assert readers - OWN == set()
    assert OWN - readers == set()


def test_no_page_takes_an_upload() -> None:
    pages = [
        *(settings.BASE_DIR / "templates").rglob("*.html"),
        *settings.BASE_DIR.glob("*/templates/**/*.html"),
    ]
    assert len(pages) > 10
    assert [path.name for path in pages if re.search(r"""type=["']?file\b""", path.read_text())] == []
