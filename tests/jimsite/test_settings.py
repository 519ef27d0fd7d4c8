from __future__ import annotations

import os
import runpy
import stat
import traceback
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings


def load(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> dict[str, Any]:
    for name in [name for name in os.environ if name.startswith("JIM_")] + ["DATABASE_URL"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(settings.BASE_DIR / "jimsite" / "settings.py"))


BAD = [
    ("JIM_LEASE_SECONDS", "abc", "JIM_LEASE_SECONDS=abc must be a number of seconds."),
    ("JIM_LEASE_SECONDS", "0", "JIM_LEASE_SECONDS=0 must be between 0.5 and 86400."),
    ("JIM_LEASE_SECONDS", "nan", "JIM_LEASE_SECONDS=nan must be between 0.5 and 86400."),
    ("JIM_POLL_SECONDS", "0", "JIM_POLL_SECONDS=0 must be between 0.01 and 86400."),
    ("JIM_GRACE_SECONDS", "-0.1", "JIM_GRACE_SECONDS=-0.1 must be between 0 and 86400."),
    ("JIM_OUTPUT_BYTES", "1MB", "JIM_OUTPUT_BYTES=1MB must be a whole number."),
    ("JIM_OUTPUT_LINES", "0", "JIM_OUTPUT_LINES=0 must be between 1 and 1e+07."),
    ("JIM_AUDIT_DAYS", "-3", "JIM_AUDIT_DAYS=-3 must be between 1 and 36500."),
    ("JIM_PORT", "0", "JIM_PORT=0 must be between 1 and 65535."),
    ("JIM_PORT", "65536", "JIM_PORT=65536 must be between 1 and 65535."),
    ("JIM_DEBUG", "maybe", "JIM_DEBUG=maybe must be 1 or 0."),
    ("JIM_LOG_LEVEL", "chatty", "JIM_LOG_LEVEL=CHATTY must be one of DEBUG, INFO, WARNING, ERROR."),
    ("DATABASE_URL", "mysql://root:hunter2@localhost/jim", "DATABASE_URL must look like"),
    ("DATABASE_URL", "jim.sqlite3", "DATABASE_URL must look like"),
    ("DATABASE_URL", "postgresql://localhost", "DATABASE_URL must look like"),
    ("DATABASE_URL", "postgresql://localhost:port/jim", "DATABASE_URL must look like"),
    ("DATABASE_URL", "postgresql://user:p[ss@localhost/jim", "DATABASE_URL must look like"),
    ("DATABASE_URL", "sqlite://", "DATABASE_URL must look like"),
    ("JIM_DATA_DIR", "/dev/null/jim", "The folder /dev/null/jim cannot be created: Not a directory."),
]


def test_a_bad_value_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    accepted = []
    for name, value, message in BAD:
        with monkeypatch.context() as patch, pytest.raises(ImproperlyConfigured) as refused:
            load(patch, {"JIM_DATA_DIR": str(tmp_path), name: value})
        if message not in (said := str(refused.value)) or "\n" in said or "hunter2" in said:
            accepted.append((name, value, said))
    assert accepted == []


def test_defaults_in_a_folder_with_an_awkward_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = tmp_path / "a b%20c#d?e"
    loaded = load(monkeypatch, {"JIM_DATA_DIR": str(data), "JIM_LEASE_SECONDS": "", "DATABASE_URL": ""})
    assert loaded["JIM_LEASE_SECONDS"] == 60
    assert loaded["DEBUG"] is False
    assert loaded["ALLOWED_HOSTS"] == ["127.0.0.1", "localhost", "[::1]"]
    assert loaded["JIM_EXECUTABLE_FOLDERS"] == [settings.BASE_DIR / "scripts", data / "scripts"]
    assert loaded["JIM_SQL_FOLDERS"] == [data / "sql"]
    assert loaded["JIM_SQL_CONNECTIONS"] == {}
    assert loaded["DATABASES"]["default"]["NAME"] == str(data / "jim.sqlite3")
    listed = os.pathsep.join([str(tmp_path / "one"), "", str(tmp_path / "two")])
    loaded = load(monkeypatch, {"JIM_DATA_DIR": str(data), "JIM_EXECUTABLE_FOLDERS": listed})
    assert loaded["JIM_EXECUTABLE_FOLDERS"] == [tmp_path / "one", tmp_path / "two"]


@pytest.mark.django_db
def test_behind_tls_nothing_travels_in_the_clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answers(environment: dict[str, str]) -> dict[str, Any]:
        loaded = load(monkeypatch, {"JIM_DATA_DIR": str(tmp_path), **environment})
        told = {name: value for name, value in loaded.items() if name.startswith("SECURE_")}
        with override_settings(**told):
            return {path: Client().get(path) for path in ("/login", "/healthz", "/api/v1/health/live")} | {
                "tls": Client().get("/login", headers={"X-Forwarded-Proto": "https"})
            }

    plain = answers({})
    assert plain["/login"].status_code == plain["tls"].status_code == 200
    assert "Strict-Transport-Security" not in plain["tls"].headers
    behind = answers({"JIM_HTTPS": "1"})
    assert (behind["/login"].status_code, behind["/login"]["Location"]) == (301, "https://testserver/login")
    assert [behind[path].status_code for path in ("/healthz", "/api/v1/health/live", "tls")] == [200] * 3
    assert behind["tls"]["Strict-Transport-Security"] == "max-age=31536000"
    short = answers({"JIM_HTTPS": "1", "JIM_HSTS_SECONDS": "60"})
    assert short["tls"]["Strict-Transport-Security"] == "max-age=60"


def test_postgresql(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = "postgres://jim:p%40ss@db.example:5433/jim?sslmode=require&connect_timeout=3"
    database = load(monkeypatch, {"JIM_DATA_DIR": str(tmp_path), "DATABASE_URL": url})["DATABASES"]["default"]
    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert (database["USER"], database["PASSWORD"]) == ("jim", "p@ss")
    assert (database["HOST"], database["PORT"], database["NAME"]) == ("db.example", 5433, "jim")
    assert database["OPTIONS"]["sslmode"] == "require"
    assert database["OPTIONS"]["connect_timeout"] == 3
    assert "pool" not in database["OPTIONS"]


def test_the_secret_key_is_made_once_and_kept_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    first = load(monkeypatch, {"JIM_DATA_DIR": str(data)})["SECRET_KEY"]
    assert len(first) >= 50
    assert load(monkeypatch, {"JIM_DATA_DIR": str(data)})["SECRET_KEY"] == first
    assert stat.S_IMODE((data / "secret_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert [path.name for path in data.iterdir()] == ["secret_key"]
    (data / "secret_key").write_text("")
    with pytest.raises(ImproperlyConfigured, match="is empty"):
        load(monkeypatch, {"JIM_DATA_DIR": str(data)})


def test_sql_connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = '{"hr": "postgres://ada:p%40ss@db.example/hr?sslmode=require", "a.b-c_1": "sqlite:////srv/a%20b"}'
    loaded = load(monkeypatch, {"JIM_DATA_DIR": str(tmp_path), "JIM_SQL_CONNECTIONS": given})
    hr, local = loaded["JIM_SQL_CONNECTIONS"]["hr"], loaded["JIM_SQL_CONNECTIONS"]["a.b-c_1"]
    whole = {"user": "ada", "password": "p@ss", "host": "db.example", "dbname": "hr", "sslmode": "require"}
    assert (hr.engine, hr.options) == ("postgresql", whole)
    assert (local.engine, local.options) == ("sqlite", {"file": "/srv/a b"})
    assert "p@ss" not in repr(loaded["JIM_SQL_CONNECTIONS"])


def test_sql_connections_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sql_connections.json").write_text('{"local": "sqlite:////srv/local"}')
    loaded = load(monkeypatch, {"JIM_DATA_DIR": str(tmp_path)})
    assert list(loaded["JIM_SQL_CONNECTIONS"]) == ["local"]
    other = load(monkeypatch, {"JIM_DATA_DIR": str(tmp_path), "JIM_SQL_CONNECTIONS": "{}"})
    assert other["JIM_SQL_CONNECTIONS"] == {}


LIKE, ABSOLUTE = "the URL of hr must look like", "the URL of hr must name a file by its absolute path"
BAD_CONNECTIONS = [
    ("hunter2", "must be a JSON object of names and URLs"),
    ('{"hr": "mysql://ada:hunter2@db/hr"}', LIKE),
    ('{"hr": "sqlite:///hunter2"}', f"{ABSOLUTE}, with four"),
    ('{"postgresql://ada:hunter2@db/hr": "hr"}', "names can contain letters, digits, dots, - and _"),
    ('{"hr": 7}', f"{LIKE} postgresql://user:password@host:port/name or sqlite:////"),
    ('{"hr": "postgresql://ada:hunter2@db"}', "the URL of hr does not name a database"),
    ('{"hr": "postgresql://ada:hunter2%zz@db/hr"}', LIKE),
    ('{"hr": "postgresql://ada:hunter2@db/hr?nonsense=1"}', LIKE),
    ('{"hr": "postgresql://ada:hunter2@[db/hr"}', LIKE),
    ('{"hr": "sqlite://"}', ABSOLUTE),
    ('{"hr": "sqlite:////srv/hunter2?mode=ro"}', ABSOLUTE),
    ('{"hr": "sqlite:////srv/%00hunter2"}', ABSOLUTE),
]


@pytest.mark.parametrize("place", ["variable", "file"])
def test_bad_sql_connections_are_refused_without_being_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    file, repeated = tmp_path / "sql_connections.json", []
    variables = {"JIM_DATA_DIR": str(tmp_path)}
    for given, words in BAD_CONNECTIONS if place == "variable" else BAD_CONNECTIONS[:3]:
        if place == "file":
            file.write_text(given)
        else:
            variables["JIM_SQL_CONNECTIONS"] = given
        with monkeypatch.context() as patch, pytest.raises(ImproperlyConfigured) as refused:
            load(patch, variables)
        message = str(refused.value)
        is_named = message.startswith(str(file) if place == "file" else "JIM_SQL_CONNECTIONS")
        trace = "".join(traceback.format_exception(refused.value))
        if not is_named or words not in message or "\n" in message or "hunter2" in trace:
            repeated.append((given, message))
    assert repeated == []


@pytest.mark.parametrize(
    ("content", "why"), [(b"\xff\xfe", "is UTF-16 text"), (None, "cannot be read: Is a directory")]
)
def test_a_file_of_sql_connections_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "sql_connections.json"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(ImproperlyConfigured, match=f"sql_connections.json {why}"):
        load(monkeypatch, {"JIM_DATA_DIR": str(tmp_path)})
