"""What people hand over as a file, whatever it is: told in one line that names it, and nothing is saved."""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.fernet import Fernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from execution.steps.sql_connections import SqlConnection
from execution.steps.step_type import get
from jimsite import environment
from schedules import vault
from schedules.models import Schedule
from schedules.registry import ConfigError
from tests.base import everything
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


class Reader(NamedTuple):
    """One place where JIM reads what a person has given; `good` is what it takes."""

    name: str
    good: str
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...] = (ImproperlyConfigured, ConfigError, vault.VaultError)

    def complaint(self, path: Path) -> str:
        """About the file; nothing when it takes it."""
        try:
            return str(self.read(path) or "")
        except self.errors as error:
            return str(error)

    def place(self, folder: Path) -> Path:
        folder.mkdir()
        return folder / self.name


def commanded(*arguments: str) -> str:
    """The one line that says what is wrong."""
    said = io.StringIO()
    try:
        call_command(*arguments, stdout=io.StringIO(), stderr=said)
    except CommandError as error:
        lines = [*said.getvalue().splitlines(), str(error)]
        return lines[0] if error.returncode == 2 and len(lines) <= 2 else ""
    return ""


def read_sql(path: Path) -> None:
    connections = {"pg": SqlConnection.from_url("postgresql://ada@db.example/hr")}
    with override_settings(JIM_SQL_CONNECTIONS=connections, JIM_SQL_FOLDERS=[path.parent]):
        get("sql").clean({"connection": "pg", "file": str(path)})


def read_connections(path: Path) -> None:
    environment.sql_connections("JIM_SQL_CONNECTIONS", data_dir=path.parent)


def read_secret_key(path: Path) -> None:
    environment.secret_key(data_dir=path.parent)


def read_secrets_keys(path: Path) -> None:
    with override_settings(JIM_DATA_DIR=path.parent, JIM_SECRETS_KEYS=[]):
        vault.current()


IMPORTED = Reader("schedules.yaml", SCHEDULES, lambda path: commanded("importschedules", str(path)))
SPEC = Reader(
    "spec.json",
    '{"time_zone": "Europe/London", "every": ["1h"]}',
    lambda path: commanded("nexttimes", "--file", str(path)),
)
SQL = Reader("script.sql", "SELECT 'Zoë'", read_sql)
CONNECTIONS = Reader("sql_connections.json", '{"hr": "postgresql://zoë@db.example/hr"}', read_connections)
SECRET_KEY = Reader("secret_key", "Schlüssel" * 9, read_secret_key)
SECRETS_KEYS = Reader("secrets_keys", Fernet.generate_key().decode(), read_secrets_keys)
READERS = [IMPORTED, SPEC, SQL, CONNECTIONS, SECRET_KEY, SECRETS_KEYS]


def write(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def gigabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIGABYTE)


def locked(path: Path) -> None:
    path.write_text("secret")
    path.chmod(0)


HEADER = b"name,cron\nNightly,0 3 * * *\n"
RAGGED = b'"name","cron\nNightly,0 3 * * *,1,2\n'
UTF16 = "is UTF-16 text: save it as UTF-8"
ROOT_READS_ALL = pytest.mark.skipif(os.geteuid() == 0, reason="who is root may read everything")
# (how it is made, what every reader says)
UNFIT: list[Any] = [
    (write("é".encode("utf-16")), UTF16),
    (write(b"\xfe\xff" + "é".encode("utf-16-be")), UTF16),
    (write("Zoë".encode("latin-1")), "is not UTF-8 text (byte 3): save it as UTF-8"),
    (write(b"a\0b"), "is not text, as it contains NUL"),
    (gigabyte, "is larger than"),
    (Path.mkdir, "cannot be read: Is a directory"),
    (os.mkfifo, "is a pipe or a device: copy its content"),
    (lambda path: path.symlink_to("/dev/zero"), "is a pipe or a device"),
    (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read: Input/output error"),
    pytest.param(locked, "cannot be read: Permission denied", marks=ROOT_READS_ALL),
]


@pytest.mark.parametrize(("make", "words"), UNFIT)
def test_what_is_no_text_is_refused(make: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    before, wrong = everything(), []
    tracemalloc.start()
    for number, reader in enumerate(READERS):
        path = reader.place(tmp_path / f"{number}")
        make(path)
        is_elsewhere = reader is SQL and path.is_symlink()
        told = reader.complaint(path)
        if ("is outside the folders" if is_elsewhere else words) not in told or str(path) not in told:
            wrong.append(f"{reader.name}: {told}")
        assert "\n" not in told
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert wrong == []
    assert most < MOST_MEMORY, "it was taken into memory"
    assert everything() == before


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with the mark of Windows"])
def test_a_good_file_is_taken(mark: bytes, tmp_path: Path) -> None:
    for number, reader in enumerate(READERS):
        path = reader.place(tmp_path / f"{number}")
        path.write_bytes(mark + reader.good.encode().replace(b"\n", b"\r\n" if mark else b"\n"))
        assert reader.complaint(path) == "", reader.name
    assert [schedule.name for schedule in Schedule.objects.all()] == ["Nächtlich"]


AT_THE_TOP, A_SPEC = "expected keys at the top level", "allowed keys: cron, every, calendars"
# (the reader, what it is given, what it says)
WRONG: list[tuple[Reader, bytes | None, str]] = [
    (IMPORTED, HEADER, AT_THE_TOP),
    (IMPORTED, RAGGED, "not YAML: "),
    (IMPORTED, b"", AT_THE_TOP),
    (IMPORTED, None, "cannot be read: No such file or directory"),
    (SPEC, HEADER, A_SPEC),
    (SPEC, b"\xef\xbb\xbf", "is empty: give a spec"),
    (SQL, RAGGED, 'the quoted name that begins with " in line 1 is never closed'),
    (SQL, b"", "contains only spaces and comments"),
    (SQL, None, "does not exist"),
    (CONNECTIONS, HEADER, "must be a JSON object of names and URLs"),
    (CONNECTIONS, b" ", "must be a JSON object of names and URLs"),
    (SECRET_KEY, b"", "is empty. Delete the file"),
    (SECRETS_KEYS, HEADER, "is not a Fernet key"),
    (SECRETS_KEYS, b"", "is empty: restore the file"),
]


def test_text_of_another_kind_is_refused(tmp_path: Path) -> None:
    before, wrong = everything(), []
    for number, (reader, content, words) in enumerate(WRONG):
        path = reader.place(tmp_path / f"{number}")
        if content is not None:
            path.write_bytes(content)
        told = reader.complaint(path)
        if words not in told or not (reader is SQL or str(path) in told):
            wrong.append(f"{reader.name}, {content!r}: {told}")
    assert wrong == []
    assert everything() == before


NEXT_TIMES, IMPORT = ["nexttimes", "-"], ["importschedules", "-"]
PUBLISH = ["publish", "orders", "o1", "--payload", "-"]
# (the command, what comes in, what it says)
TYPED_IN: list[tuple[list[str], bytes, str]] = [
    *[(command, "1".encode("utf-16"), UTF16) for command in (NEXT_TIMES, IMPORT, PUBLISH)],
    *[(command, b"\xe9", "is not UTF-8 text (byte 1)") for command in (NEXT_TIMES, IMPORT, PUBLISH)],
    *[(command, b"\0" * 6_000_000, "is larger than") for command in (NEXT_TIMES, IMPORT, PUBLISH)],
    (PUBLISH, HEADER, "--payload: not JSON: Expecting value (line 1, column 1)"),
    (PUBLISH, b"", "--payload: not JSON: Expecting value"),
]


def test_standard_input_is_held_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    make_topics("orders")
    before = everything()
    for command, content, words in TYPED_IN:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert words in refused(command)
    for command in (NEXT_TIMES, IMPORT, PUBLISH):
        monkeypatch.setattr(sys, "stdin", None)
        assert "is closed: redirect a file or a pipe to it" in refused(command)
        with Path("/proc/self/mem").open() as unreadable:
            monkeypatch.setattr(sys, "stdin", unreadable)
            assert "cannot be read: Input/output error" in refused(command)
    assert everything() == before
    assert not Event.objects.exists()
    # The mark of Windows is taken.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf{"a": 1}')))
    call_command(*PUBLISH, stdout=io.StringIO())
    assert Event.objects.get().payload == {"a": 1}


def refused(command: list[str]) -> str:
    told = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command(*command, stdout=io.StringIO(), stderr=told)
    assert error.value.returncode == 2
    return f"{told.getvalue()}{error.value}"


PACKAGES = (
    *("activities", "api", "database", "execution", "files", "jimsite", "operations", "schedules"),
    *("text", "web", "webhooks", "workflows"),
)
# Files that are JIM's own or the system's, one that is cut off at a size, and the terminal that is asked.
OWN = {
    *("jimsite/form_options.py", "jimsite/verbs.py"),
    *("files/given_files.py", "files/private_files.py"),
    *("execution/children/lifeline.py", "execution/children/nursery_process.py"),
    *("jimsite/doctor/database.py", "jimsite/following.py", "jimsite/workflows.py", "web/views/settings.py"),
}
READING = {"read_text", "read_bytes", "FILES", "FileField", "stdin"}


def reads_files(source: str) -> bool:
    if "open(" not in source and not any(word in source for word in READING):
        return False
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


def test_nobody_else_reads_what_people_give() -> None:
    for source in ("open(x)", "Path(x).open('rb')", "x.read_text()", "sys.stdin.buffer", "request.FILES"):
        assert reads_files(source), source
    files = [path for package in PACKAGES for path in (settings.BASE_DIR / package).rglob("*.py")]
    readers = {str(path.relative_to(settings.BASE_DIR)) for path in files if reads_files(path.read_text())}
    assert readers - OWN == set()
    assert OWN - readers == set()
    # And no page takes an upload.
    pages = [
        path
        for folder in ("templates", "*/templates")
        for path in settings.BASE_DIR.glob(f"{folder}/**/*.html")
    ]
    assert len(pages) > 10
    assert [path.name for path in pages if re.search(r"""type=["']?file\b""", path.read_text())] == []
