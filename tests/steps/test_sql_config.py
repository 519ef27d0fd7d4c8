"""What an `sql` step's settings may be; nothing here needs a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from execution.steps.sql_connections import SqlConnection
from execution.steps.step_type import get
from tests.steps.test_config import refuses


@pytest.fixture(autouse=True)
def connections(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "sql").mkdir()
    urls = {"pg": "postgresql://ada@db.example/hr", "lite": "sqlite:////srv/lite.sqlite3"}
    with override_settings(
        JIM_SQL_CONNECTIONS={name: SqlConnection.from_url(url) for name, url in urls.items()},
        JIM_SQL_FOLDERS=[tmp_path / "sql"],
    ):
        yield


def test_config_is_canonical_after_cleaning() -> None:
    assert get("sql").clean({"connection": " pg ", "script": "SELECT 1"}) == {
        "connection": "pg",
        "script": "SELECT 1",
        "file": "",
        "parameters": {},
        "read_only": False,
        "transaction": True,
        "max_rows": 20,
        "statement_timeout_seconds": None,
    }


@pytest.mark.parametrize(
    ("rest", "field", "words"),
    [
        ({"connection": ""}, "connection", "is required"),
        ({"connection": "hr"}, "connection", "unknown connection 'hr'; known connections: lite, pg"),
        ({"connection": "{{ schedule }}"}, "connection", "cannot contain placeholders"),
        ({"script": ""}, "script", "is required, unless a file is given"),
        ({"script": "-- only\n/* a comment */;"}, "script", "contains only spaces and comments"),
        ({"script": "SELECT 'open"}, "script", "the text that begins with ' in line 1 is never closed"),
        ({"script": "SELECT '{{ nominal_time }}'"}, "script", "cannot contain placeholders"),
        ({"script": "SELECT 1" + " " * 1_048_576}, "script", "is longer than 1,048,576 bytes"),
        (
            {"script": "1;" * 10_001},
            "script",
            "more than 10,000 statements; split the script into several steps",
        ),
        (
            {"script": "SELECT 1;\nBEGIN"},
            "script",
            "line 2: BEGIN is not allowed in a script that runs as one",
        ),
        ({"script": "/* x */ RoLLback"}, "script", "line 1: ROLLBACK is not allowed"),
        ({"script": "PREPARE TRANSACTION 'x'"}, "script", "line 1: PREPARE is not allowed"),
        ({"file": "/tmp/x.sql"}, "file", "cannot be given together with a script; clear one of the two"),
        (
            {"script": "SELECT :a"},
            "parameters",
            "the script uses :a in the statement of line 1; give it a value",
        ),
        ({"parameters": {"a": 1}}, "parameters", "a is not used: the script has no :a"),
        ({"script": "SELECT ':a'", "parameters": {"a": 1}}, "parameters", "outside quotes and comments"),
        ({"parameters": {"a b": 1}}, "parameters", "'a b' is not a valid parameter name"),
        (
            {"script": "SELECT :a", "parameters": {"a": [1]}},
            "parameters",
            "the value of a must be text, a nu",
        ),
        ({"script": "SELECT :a", "parameters": {"a": 2**63}}, "parameters", "is too large for a database"),
        ({"read_only": True, "transaction": False}, "read_only", "requires transaction to be true"),
        ({"transaction": "{{ attempt }}"}, "transaction", "must be true or false"),
        ({"max_rows": -1}, "max_rows", "must be a whole number from 0 to 1,000"),
        ({"statement_timeout_seconds": 0}, "statement_timeout_seconds", "must be a number from 0.001 to 60"),
    ],
)
def test_bad_config(rest: dict[str, Any], field: str, words: str) -> None:
    refuses("sql", {"connection": "pg", "script": "SELECT 1", **rest}, field, words)
    with override_settings(JIM_SQL_CONNECTIONS={}):
        refuses(
            "sql",
            {"connection": "hr", "script": "SELECT 1"},
            "connection",
            "no connection is defined yet (JIM_SQL_C",
        )


@pytest.mark.parametrize(
    "rest",
    [
        {"script": "SELECT :a", "parameters": {"a": "{{ steps.fetch.result.count }}"}},
        {"script": "SELECT :a", "parameters": "{{ steps.fetch.result }}"},
        {"max_rows": "{{ steps.fetch.result.count }}"},
        {"statement_timeout_seconds": "{{ steps.fetch.result.count }}"},
        {"script": "SELECT '{{1,2},{3,4}}'::int[]"},
        {"script": "BEGIN; COMMIT", "transaction": False},
    ],
)
def test_good_config(rest: dict[str, Any]) -> None:
    assert get("sql").clean({"connection": "pg", "script": "SELECT 1", **rest})


def test_jims_own_database_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jim = tmp_path / "jim.sqlite3"
    jim.touch()
    (tmp_path / "link").symlink_to(jim)
    (tmp_path / "hard").hardlink_to(jim)
    monkeypatch.setitem(
        settings.DATABASES, "default", {"ENGINE": "django.db.backends.sqlite3", "NAME": str(jim)}
    )
    for path in (jim, tmp_path / "link", tmp_path / "hard", tmp_path / "sql" / ".." / "jim.sqlite3"):
        with override_settings(JIM_SQL_CONNECTIONS={"own": SqlConnection.from_url(f"sqlite:///{path}")}):
            config = {"connection": "own", "script": "SELECT 1"}
            refuses("sql", config, "connection", "own is JIM's own database")


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("postgresql://x@localhost/jim", True),
        ("postgres://y:z@127.0.0.1:5432/jim?sslmode=disable", True),
        ("postgresql://x@other,LOCALHOST/jim", True),
        ("postgresql:///jim?host=localhost", True),
        ("postgresql://x@localhost:5433/jim", False),
        ("postgresql://x@localhost/hr", False),
        ("postgresql://x@db.example/jim", False),
        ("postgresql:///jim?host=/run/postgresql", False),
    ],
)
def test_which_addresses_are_jims_own(url: str, is_own: bool) -> None:
    own = {"ENGINE": "django.db.backends.postgresql", "NAME": "jim", "HOST": "localhost", "PORT": 5432}
    assert SqlConnection.from_url(url).is_jims_own(own) is is_own


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("a.sql", "'a.sql' is not an absolute path; it must begin with /"),
        ("{sql}/missing.sql", "does not exist"),
        ("{sql}/loop", "does not exist"),
        ("{sql}/../secret.sql", "is outside the folders that scripts may come from: {sql}"),
        ("{sql}/link.sql", "is outside the folders that scripts may come from"),
        ("{sql}/commit.sql", "line 2: COMMIT is not allowed in a script that runs as one transaction"),
    ],
)
def test_bad_files(tmp_path: Path, file: str, words: str) -> None:
    sql = tmp_path / "sql"
    (sql / "commit.sql").write_bytes(b"SELECT 1;\nCOMMIT;")
    (tmp_path / "secret.sql").write_text("SELECT 1")
    (sql / "link.sql").symlink_to(tmp_path / "secret.sql")
    (sql / "loop").symlink_to("loop")
    given = {"connection": "pg", "file": file.replace("{sql}", str(sql))}
    refuses("sql", given, "file", words.replace("{sql}", str(sql)))
