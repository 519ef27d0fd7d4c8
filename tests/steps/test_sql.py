"""SQL scripts on a real PostgreSQL and on real SQLite files."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import psycopg
import pytest
from django.conf import settings
from django.test import override_settings

from execution.children.nursery import Nursery
from execution.models import WorkerTask
from execution.steps import sql_postgres, sql_sqlite
from execution.steps.binding import Binding
from execution.steps.context import Work
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from execution.steps.sql_connections import SqlConnection
from tests.postgres import PostgresServer
from tests.settings import TEST_DIR
from tests.steps.stage import Recorder, Running, work
from tests.waiting import PATIENCE_SECONDS, wait_until

Ask = Callable[[str, str], Any]
PASSWORD = "hunter2-canary"
CLERK = "clerk"
ENGINES = ["pg", "lite"]
STAFF = """
    CREATE TABLE staff (id integer PRIMARY KEY, name text NOT NULL UNIQUE, hired date, boss integer);
    INSERT INTO staff VALUES (1, 'Ada', '2020-01-01', NULL), (2, 'Bob', NULL, 1)
"""
ENDLESS = {
    "pg": "SELECT pg_sleep(3600)",
    "lite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    own = PostgresServer(TEST_DIR / f"pg-sql-{os.getpid()}")
    own.start()
    try:
        yield own
    finally:
        own.stop()


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {CLERK} LOGIN PASSWORD '{PASSWORD}'")
        admin.execute("CREATE DATABASE scratch")
    return postgres.url("scratch")


@pytest.fixture(scope="module")
def outside(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def connections(
    database: str, outside: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Connections to both, each with a table `staff` of two; scripts come from the folder `sql`."""
    monkeypatch.setattr(sql_sqlite, "LOCK_SECONDS", PATIENCE_SECONDS)
    outside.rollback()
    outside.execute("DROP SCHEMA IF EXISTS jim CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    outside.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
    outside.execute(f"GRANT USAGE ON SCHEMA public TO {CLERK}; {STAFF}")
    with closing(sqlite3.connect(lite_path(tmp_path), isolation_level=None)) as lite:
        lite.executescript(f"PRAGMA synchronous = OFF; BEGIN; {STAFF}; COMMIT")
    (tmp_path / "sql").mkdir()
    urls = {
        "pg": database,
        "clerk": database.replace("postgres@", f"{CLERK}:{PASSWORD}@"),
        "lite": f"sqlite:///{quote(str(lite_path(tmp_path)))}",
    }
    with override_settings(
        JIM_SQL_CONNECTIONS={name: SqlConnection.from_url(url) for name, url in urls.items()},
        JIM_SQL_FOLDERS=[tmp_path / "sql"],
    ):
        yield


@pytest.fixture
def ask(outside: psycopg.Connection[Any], tmp_path: Path) -> Iterator[Ask]:
    """Looks at a database from outside: the first value of a query's answer."""
    with closing(sqlite3.connect(lite_path(tmp_path), isolation_level=None, timeout=0.1)) as lite:

        def ask(engine: str, query: str) -> Any:
            cursor = outside.execute(query) if engine == "pg" else lite.execute(query)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

        yield ask


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


def lite_path(folder: Path) -> Path:
    return folder / "a b%20c#d?e.sqlite3"


def script_of(engine: str, script: str, timeout: float | None = None, **rest: Any) -> Work:
    return work("sql", {"connection": engine, "script": script, **rest}, timeout_seconds=timeout)


def run(nursery: Nursery, engine: str, script: str, **rest: Any) -> tuple[Outcome, list[str]]:
    """The outcome and what was said, with the times left out."""
    sink = Recorder()
    outcome = perform(script_of(engine, script, **rest), sink, nursery=nursery)
    return outcome, [re.sub(r" \(\d+\.\d\d s\)", "", line) for _, line in sink.said]


def first(outcome: Outcome) -> Any:
    """The first row of the last result."""
    assert isinstance(outcome.result, dict), outcome.error
    return outcome.result["first"]


def start(nursery: Nursery, engine: str, script: str, **rest: Any) -> Running:
    return Running(nursery, script_of(engine, script, **rest))


def test_success(nursery: Nursery, ask: Ask, engine: str) -> None:
    script = """
        -- who joined
        INSERT INTO staff VALUES (:id, :name, :hired, 1), (4, 'Dan', '2021-02-03', 1);
        UPDATE staff SET boss = 2 WHERE boss = 1;
        CREATE TABLE log (note text);
        DELETE FROM staff WHERE id = 99;
        SELECT id, name, hired, boss FROM staff ORDER BY id;
    """
    parameters = {"id": 3, "name": "Cy; DROP TABLE staff", "hired": None}
    outcome, said = run(nursery, engine, script, parameters=parameters)
    ada = {"id": 1, "name": "Ada", "hired": "2020-01-01", "boss": None}
    assert (outcome.status, outcome.result) == ("complete", {"statements": 5, "rows": 5, "first": ada})
    assert said == [
        "INSERT 2 rows",
        "UPDATE 3 rows",
        "CREATE TABLE" if engine == "pg" else "CREATE",
        "DELETE 0 rows",
        "SELECT 4 rows:",
        "id | name                 | hired      | boss",
        "---+----------------------+------------+-----",
        "1  | Ada                  | 2020-01-01 | NULL",
        "2  | Bob                  | NULL       | 2",
        "3  | Cy; DROP TABLE staff | NULL       | 2",
        "4  | Dan                  | 2021-02-03 | 2",
    ]
    assert ask(engine, "SELECT count(*) FROM staff") == 4


def test_a_failure_undoes_the_whole_script(nursery: Nursery, ask: Ask, engine: str) -> None:
    script = "DELETE FROM staff;\nCREATE TABLE log (x text);\n\nINSERT INTO\n  nowhere VALUES (1);\nSELECT 1"
    outcome, said = run(nursery, engine, script)
    assert outcome.status == "failed_with_error"
    pg, lite = 'line 5: relation "nowhere" does not exist', "line 4: no such table: nowhere"
    assert outcome.error == f"statement 3, {pg if engine == 'pg' else lite}"
    assert (outcome.can_retry, outcome.traceback, len(said)) == (False, "", 2)
    assert ask(engine, "SELECT count(*) FROM staff") == 2


def test_without_a_transaction_each_statement_lasts(nursery: Nursery, ask: Ask, engine: str) -> None:
    script = "DELETE FROM staff WHERE id = 1; VACUUM; BEGIN; DELETE FROM staff; ROLLBACK; SELECT x"
    outcome, said = run(nursery, engine, script, transaction=False)
    assert said == ["DELETE 1 row", "VACUUM", "BEGIN", "DELETE 1 row", "ROLLBACK"]
    assert "statement 6, line 1: " in outcome.error
    assert ask(engine, "SELECT count(*) FROM staff") == 1


def test_transactions_of_the_script(nursery: Nursery, ask: Ask, engine: str) -> None:
    outcome, _ = run(nursery, engine, "VACUUM")
    assert "set transaction to false to run this statement outside a transaction" in outcome.error
    assert outcome.can_retry is False
    outcome, _ = run(nursery, engine, "BEGIN; DELETE FROM staff", transaction=False)
    assert outcome.error == f"{engine}: the script leaves a transaction open: add COMMIT"
    assert ask(engine, "SELECT count(*) FROM staff") == 2
    script = "DELETE FROM staff WHERE id = 1; SAVEPOINT a; DELETE FROM staff; ROLLBACK TO a; RELEASE a"
    outcome, _ = run(nursery, engine, script)
    assert outcome.status == "complete"
    assert ask(engine, "SELECT name FROM staff") == "Bob"


def test_parameters_arrive_literally(nursery: Nursery, ask: Ask, engine: str) -> None:
    script = "UPDATE staff SET name = :name WHERE id = 2; SELECT name FROM staff WHERE name = :name"
    injections = ("'; DROP TABLE staff; --", "\\'; DROP TABLE staff; --", "$1 :name %s %(name)s %%")
    for value in (*injections, "Zoë 🙂\n\ttwo lines", ""):
        outcome, _ = run(nursery, engine, script, parameters={"name": value})
        assert outcome.result == {"statements": 2, "rows": 1, "first": {"name": value}}
        assert ask(engine, "SELECT name FROM staff WHERE id = 2") == value


def test_parameters_keep_their_types(nursery: Nursery, engine: str) -> None:
    parameters = {"i": 3, "big": 2**62, "f": 1.5, "yes": True, "none": None, "id": 2}
    script = "SELECT :i * 2 AS i, :big AS big, :f * 2 AS f, :yes AS yes, :none AS none, name FROM staff"
    outcome, _ = run(nursery, engine, f"{script} WHERE id = :id", parameters=parameters)
    assert list(first(outcome).values()) == [6, 2**62, 3.0, True if engine == "pg" else 1, None, "Bob"]


def test_an_interrupt_in_mid_query_undoes_the_script(nursery: Nursery, ask: Ask, engine: str) -> None:
    script = f"INSERT INTO staff VALUES (3, 'Cy', NULL, 1); {ENDLESS[engine]}"
    running = start(nursery, engine, script)
    wait_until(lambda: running.sink.said)
    wait_until_busy(ask, engine)
    running.interrupt("lost")
    outcome = running.outcome
    assert (outcome.error, outcome.interrupted, outcome.traceback) == ("worker lost its lease", "lost", "")
    assert ask(engine, "SELECT count(*) FROM staff") == 2
    assert_nothing_left(ask, engine)


def test_a_statement_has_a_time_limit_of_its_own(nursery: Nursery, ask: Ask, engine: str) -> None:
    script = f"DELETE FROM staff; {ENDLESS[engine]}"
    outcome, _ = run(nursery, engine, script, statement_timeout_seconds=1)
    # Which statement it hits depends on the machine.
    assert ("due to statement timeout" if engine == "pg" else "after 1 s (statement_ti") in outcome.error
    assert (outcome.can_retry, outcome.interrupted) == (True, None)
    assert ask(engine, "SELECT count(*) FROM staff") == 2


@pytest.mark.parametrize("is_released", [False, True])
def test_waiting_for_a_lock(nursery: Nursery, ask: Ask, engine: str, is_released: bool) -> None:
    """It can be interrupted, and is no failure where the lock is released in time."""
    ask(engine, "BEGIN" if engine == "pg" else "BEGIN IMMEDIATE")
    ask(engine, "DELETE FROM staff WHERE id = 1")
    running = start(nursery, engine, "UPDATE staff SET boss = 7")
    wait_until_locked_out(running, ask, engine)
    if is_released:
        ask(engine, "COMMIT")
        assert running.outcome.result == {"statements": 1, "rows": 1, "first": None}
    else:
        running.interrupt("cancel")
        assert running.outcome.status == "cancelled"
        ask(engine, "ROLLBACK")
    assert ask(engine, "SELECT count(*) FROM staff WHERE boss = 7") == is_released


def test_read_only(nursery: Nursery, ask: Ask, engine: str) -> None:
    words = "in a read-only transaction" if engine == "pg" else "attempt to write a readonly database"
    for script in ("SELECT 1; DELETE FROM staff", "WITH a AS (SELECT 1) UPDATE staff SET boss = 1"):
        outcome, _ = run(nursery, engine, script, read_only=True)
        assert words in outcome.error
        assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)
        assert ask(engine, "SELECT count(*) FROM staff") == 2
    outcome, _ = run(nursery, engine, "SELECT count(*) AS n FROM staff", read_only=True)
    assert outcome.result == {"statements": 1, "rows": 0, "first": {"n": 2}}


NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < :most) SELECT x FROM n"


def test_the_first_rows_are_shown_and_all_are_counted(nursery: Nursery, engine: str) -> None:
    for max_rows, lines in (
        (0, ["SELECT 1,234 rows"]),
        (1, ["SELECT 1,234 rows, the first:", "x", "-", "1"]),
        (3, ["SELECT 1,234 rows, the first 3:", "x", "-", "1", "2", "3"]),
    ):
        outcome, said = run(nursery, engine, NUMBERS, parameters={"most": 1_234}, max_rows=max_rows)
        assert said == lines
        assert outcome.result == {"statements": 1, "rows": 0, "first": {"x": 1}}


WIDE = {"narrow pg": "repeat('x', 1000)", "lite": "hex(zeroblob(500))", "wide pg": "repeat('x', 1000000)"}


@pytest.mark.parametrize(("column", "count"), [("narrow pg", 200_000), ("lite", 200_000), ("wide pg", 200)])
def test_a_huge_result_is_not_held_in_memory(nursery: Nursery, column: str, count: int) -> None:
    script = NUMBERS.replace("SELECT x FROM n", f"SELECT {WIDE[column]} FROM n")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
    before = peak_memory()
    _, said = run(nursery, column.split()[-1], script, parameters={"most": count}, max_rows=1)
    assert said[0] == f"SELECT {count:,} rows, the first:"
    assert peak_memory() - before < 50_000, "kB; the rows have 200,000"


def test_a_value_that_would_fill_the_memory_is_refused_by_sqlite(nursery: Nursery) -> None:
    outcome, _ = run(nursery, "lite", "SELECT zeroblob(:bytes)", parameters={"bytes": 200_000_000})
    assert outcome.error == "statement 1, line 1: string or blob too big: a value can have at most 64 MiB"
    assert outcome.can_retry is False
    outcome, _ = run(nursery, "lite", "SELECT length(zeroblob(64 * 1024 * 1024)) AS n")
    assert first(outcome) == {"n": 64 * 1024 * 1024}


def test_long_and_strange_values_fit_the_table(nursery: Nursery, engine: str) -> None:
    script = "SELECT :long AS a, :lines AS b, NULL AS c, '' AS d, :long AS a"
    values = {"long": "x" * 5_000, "lines": "one\ntwo\tthree\x1b[31m"}
    outcome, said = run(nursery, engine, script, parameters=values)
    assert said[3] == f"{'x' * 59}… | one↵two three\ufffd[31m | NULL |   | {'x' * 59}…"
    row = first(outcome)
    assert list(row) == ["a", "b", "c", "d", "a_2"]
    assert row["a"] == f"{'x' * 3_999}…"
    assert row["b"] == values["lines"]


def test_a_row_too_wide_for_a_result_keeps_the_columns_that_fit(nursery: Nursery, engine: str) -> None:
    columns = ", ".join(f":long AS c{number}" for number in range(100))
    outcome, said = run(nursery, engine, f"SELECT {columns}", parameters={"long": "x" * 3_000})
    assert outcome.status == "complete"
    assert 10 < len(first(outcome)) < 100
    assert said[-1] == "… and 69 more columns"
    assert max(map(len, said)) < 2_100
    _, said = run(nursery, engine, "SELECT :plan AS plan", parameters={"plan": "x" * 300})
    assert said[3] == "x" * 300, "one column has room for a plan"


LONG_SECRET = "-".join(f"{number:04}abcdefgh" for number in range(20))


def run_with_secret(
    nursery: Nursery, engine: str, script: str, its: str = LONG_SECRET, /, **parameters: str
) -> tuple[Outcome, str]:
    """The outcome, and all that is told of it."""
    config = {"connection": engine, "script": script, "parameters": parameters}
    given = work("sql", config, refs=["secrets.login"])
    binding = Binding(values={"secrets.login": its}, secrets=(its,))
    sink = Recorder()
    outcome = perform(given, sink, nursery=nursery, binding=binding)
    return outcome, f"{outcome} {sink.said}"


def test_half_a_secret_is_never_shown(nursery: Nursery, engine: str) -> None:
    script = "SELECT :filler || :secret AS a, 1 AS b; SELECT :much || :secret AS c"
    parameters = {"filler": "x" * 45, "much": "x" * 3_990, "secret": "{{ secrets.login }}"}
    outcome, told = run_with_secret(nursery, engine, script, "correct horse battery staple", **parameters)
    assert outcome.status == "complete"
    assert "correct" not in told


EXECUTED = "DO $$ BEGIN EXECUTE current_setting('a.b'); END $$"


@pytest.mark.parametrize(
    ("engine", "script", "parameter"),
    [
        ("pg", "SELECT CAST(:secret AS json)", f'{{"a": {LONG_SECRET}}}'),
        ("pg", "SELECT set_config(:secret, '', true)", LONG_SECRET),
        ("pg", "SELECT set_config('a.b', :secret, true); " + EXECUTED, f"SELECT {LONG_SECRET}"),
        ("lite", "SELECT json_extract('{}', :secret)", LONG_SECRET),
    ],
)
def test_no_part_of_a_secret_is_shown_that_the_database_cut(
    nursery: Nursery, engine: str, script: str, parameter: str
) -> None:
    secret = parameter.replace(LONG_SECRET, "{{ secrets.login }}")
    outcome, told = run_with_secret(nursery, engine, script, secret=secret)
    assert outcome.status == "failed_with_error"
    assert not [part for part in LONG_SECRET.split("-") if part in told], outcome.error


def test_what_is_left_out_beside_secrets_is_said(nursery: Nursery) -> None:
    script, name = "INSERT INTO staff VALUES (7, 'Ada'), (8, :name)", "{{ secrets.login }}"
    outcome, _ = run_with_secret(nursery, "pg", script, name=name)
    assert outcome.error.endswith("\n(DETAIL and CONTEXT are left out, because the step uses secrets)")


def test_no_rows_and_returned_rows(nursery: Nursery, engine: str) -> None:
    script = "SELECT * FROM staff WHERE id = 0; UPDATE staff SET boss = 5 RETURNING id"
    outcome, said = run(nursery, engine, script)
    assert said[0] == "SELECT 0 rows"
    assert said[1:] == ["UPDATE 2 rows:", "id", "--", "1", "2"]
    assert outcome.result == {"statements": 2, "rows": 2, "first": {"id": 1}}
    outcome, _ = run(nursery, engine, "DELETE FROM staff; SELECT id FROM staff")
    assert outcome.result == {"statements": 2, "rows": 2, "first": None}


def test_notices_are_output(nursery: Nursery) -> None:
    script = "DO $$ BEGIN RAISE NOTICE 'one %', 1; RAISE WARNING E'two\\nlines'; END $$"
    assert run(nursery, "pg", script)[1] == ["NOTICE: one 1", "WARNING: two", "lines", "DO"]


def test_values_that_later_steps_can_use(nursery: Nursery) -> None:
    script = """
        SELECT 7::smallint AS small, 2::bigint AS big, 1.50::numeric AS exact, sum(3::bigint) AS sum,
            0.1::float8 AS float, 'NaN'::float8 AS nan, 12345678901234567890.123 AS long, true AS yes,
            '{"a": [1, 2.5, 1e400]}'::json AS json, 'infinity'::timestamptz AS never, '24:00'::time AS late,
            '5 years 3 days'::interval AS span, '{1,2}'::int[] AS list, '\\x00ff'::bytea AS raw,
            '4713-01-01 BC'::date AS old, NULL::int AS none, count(*), count(*)
    """
    outcome, _ = run(nursery, "pg", script)
    assert first(outcome) == {
        "small": 7, "big": 2, "exact": 1.5, "sum": 3, "float": 0.1, "nan": "NaN",
        "long": "12345678901234567890.123", "yes": True, "json": {"a": [1, 2.5, "1e400"]},
        "never": "infinity", "late": "24:00:00", "span": "5 years 3 days", "list": "{1,2}", "raw": "\\x00ff",
        "old": "4713-01-01 BC", "none": None, "count": 1, "count_2": 1,
    }  # fmt: skip


def test_the_server_knows_whose_query_it_is_and_how_long_it_may_take(nursery: Nursery, ask: Ask) -> None:
    script = """
        SELECT current_setting('application_name') AS name, current_setting('statement_timeout') AS timeout,
            current_setting('client_connection_check_interval') AS gone
    """
    outcome, _ = run(nursery, "pg", script, timeout=1000)
    assert first(outcome) == {"name": "jim: a step", "timeout": "1005s", "gone": "2s"}
    ask("pg", f"ALTER ROLE {CLERK} SET statement_timeout = '1007s'")
    for role, limits, timeout in (
        ("pg", {"timeout": 1000, "statement_timeout_seconds": 900.5}, "900500ms"),
        ("pg", {}, "0"),
        ("clerk", {"timeout": 2000}, "1007s"),  # a stricter limit of the role stays
        ("clerk", {"timeout": 1001}, "1006s"),
        ("clerk", {"statement_timeout_seconds": 1009}, "1009s"),
    ):
        assert first(run(nursery, role, script, **limits)[0])["timeout"] == timeout


def test_what_is_retried(nursery: Nursery) -> None:
    passing = ("40001", "40P01", "55P03", "53300", "57014", "08006")
    for code in (*passing, "23505", "42501", "42P01", "22012", "P0001"):
        outcome, _ = run(nursery, "pg", f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$")
        assert (outcome.status, outcome.can_retry) == ("failed_with_error", code in passing), code


def test_a_terminated_backend_is_retried(nursery: Nursery, ask: Ask) -> None:
    running = start(nursery, "pg", f"DELETE FROM staff; {ENDLESS['pg']}")
    wait_until_busy(ask, "pg")
    ask("pg", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
    assert "terminating connection due to administrator command" in running.outcome.error
    assert (running.outcome.can_retry, running.outcome.interrupted) == (True, None)
    assert ask("pg", "SELECT count(*) FROM staff") == 2


AT_COMMIT = """
    CREATE OR REPLACE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN {body}; RETURN NULL; END $$;
    DROP TRIGGER IF EXISTS late ON staff;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON staff DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION at_commit()
"""


def test_what_goes_wrong_at_commit(nursery: Nursery, ask: Ask) -> None:
    for body, words in (
        ("RAISE EXCEPTION 'too late'", "pg: too late"),
        ("PERFORM pg_terminate_backend(pg_backend_pid())", "so it is unknown whether the changes were saved"),
    ):
        ask("pg", AT_COMMIT.format(body=body))
        outcome, _ = run(nursery, "pg", "INSERT INTO staff VALUES (3, 'Cy')")
        assert words in outcome.error
        assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)
    ask("pg", AT_COMMIT.format(body="PERFORM pg_sleep(3600)"))
    running = start(nursery, "pg", "INSERT INTO staff VALUES (3, 'Cy')")
    wait_until_busy(ask, "pg")
    running.interrupt("cancel")
    assert running.outcome.status == "cancelled"
    assert ask("pg", "SELECT count(*) FROM staff") == 2


def test_a_query_that_refuses_to_be_cancelled_is_left_and_ends(
    nursery: Nursery, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_postgres, "GIVE_UP_SECONDS", 0.7)
    script = """
        DELETE FROM staff;
        DO $$ BEGIN LOOP
            BEGIN PERFORM pg_sleep(3600); EXCEPTION WHEN query_canceled THEN NULL; END;
        END LOOP; END $$
    """
    running = start(nursery, "pg", script)
    wait_until_busy(ask, "pg")
    running.interrupt("cancel")
    assert running.outcome.status == "cancelled"
    assert_nothing_left(ask, "pg")
    assert ask("pg", "SELECT count(*) FROM staff") == 2


def test_a_script_cannot_undo_read_only(nursery: Nursery, ask: Ask) -> None:
    for attempt in (
        "SET TRANSACTION READ WRITE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SAVEPOINT a; SET TRANSACTION READ WRITE",
        "RESET ALL",
        "DO $$ BEGIN COMMIT; END $$",
    ):
        outcome, _ = run(nursery, "pg", f"{attempt}; DELETE FROM staff", read_only=True)
        assert (outcome.status, outcome.can_retry) == ("failed_with_error", False), attempt
    outcome, _ = run(nursery, "lite", "PRAGMA query_only = OFF; DELETE FROM staff", read_only=True)
    assert "PRAGMA query_only is not allowed" in outcome.error
    assert [ask(engine, "SELECT count(*) FROM staff") for engine in ENGINES] == [2, 2]


def test_one_statement_is_one_statement_for_the_server_too(nursery: Nursery, ask: Ask) -> None:
    """Even where the server was told to read quotes otherwise than the scanner does."""
    script = r"SET standard_conforming_strings = off; SELECT 'a\'', 1; COMMIT; DELETE FROM staff; --'"
    outcome, _ = run(nursery, "pg", script)
    assert "statement 2, line 1: cannot insert multiple commands" in outcome.error
    assert ask("pg", "SELECT count(*) FROM staff") == 2


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("SET work_mem = :x", 'statement 1, line 1: syntax error at or near ":x"'),
        ("SELECT jsonb_build_object('a', :x)", "could not determine data type of parameter :x"),
        (
            "SELECT jsonb_build_object('a', :x)",
            "HINT: write the type of the parameter, as in CAST(:name AS text)",
        ),
        ("SELECT 1;\nSELECT\n  oops,\n :x", 'statement 2, line 3: column "oops" does not exist'),
        ("INSERT INTO staff VALUES (7, :x), (8, :x)", "DETAIL: Key (name)=(one) already exists."),
    ],
)
def test_errors_of_the_server_are_told(nursery: Nursery, script: str, words: str) -> None:
    outcome, _ = run(nursery, "pg", script, parameters={"x": "one"})
    assert words in outcome.error
    assert outcome.can_retry is False


def test_a_server_that_is_away_is_retried_and_no_password_shown(
    nursery: Nursery, postgres: PostgresServer
) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        urls = [
            f"postgresql://jim:{PASSWORD}@127.0.0.1:{port}/hr",
            postgres.url("missing").replace("postgres@", f"{CLERK}:{PASSWORD}@"),
            f"postgresql://jim:{PASSWORD}@127.0.0.1:{port}/hr?sslmode=nonsense",
        ]
        for url in urls:
            with override_settings(JIM_SQL_CONNECTIONS={"hr": SqlConnection.from_url(url)}):
                outcome, said = run(nursery, "hr", "SELECT 1")
                assert PASSWORD not in str(outcome) + str(said) + repr(settings.JIM_SQL_CONNECTIONS)
                assert outcome.error.startswith("hr: ")
                assert (outcome.status, outcome.can_retry) == ("failed_with_error", True)


def test_connecting_can_be_interrupted(nursery: Nursery) -> None:
    """The server takes the connection and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"postgresql://jim:{PASSWORD}@127.0.0.1:{silent.getsockname()[1]}/hr?connect_timeout=3600"
        with override_settings(JIM_SQL_CONNECTIONS={"hr": SqlConnection.from_url(url)}):
            running = start(nursery, "hr", "SELECT 1")
            accepted, _ = silent.accept()
            running.interrupt("cancel")
            assert running.outcome.status == "cancelled"
            accepted.close()
    wait_until(lambda: not any(thread.name == "sql connect" for thread in threading.enumerate()))


def test_a_server_that_falls_silent_is_given_up(
    nursery: Nursery, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_postgres, "GIVE_UP_SECONDS", 0.3)
    running = start(nursery, "pg", f"SELECT 1; {ENDLESS['pg']}")
    wait_until(lambda: running.sink.said)
    postgres.process.send_signal(signal.SIGSTOP)
    try:
        running.interrupt("timeout")
        assert running.outcome.interrupted == "timeout"
    finally:
        postgres.process.send_signal(signal.SIGCONT)


def test_jims_own_database_is_known_by_any_address_and_any_name(nursery: Nursery, ask: Ask) -> None:
    assert WorkerTask._meta.db_table in sql_postgres.OWN_TABLES
    ask("pg", "CREATE SCHEMA jim")
    ask("pg", "CREATE TABLE public.django_migrations (id integer)")
    assert run(nursery, "pg", "SELECT 1")[0].status == "complete", "another project of Django's"
    ask("pg", "CREATE TABLE jim.execution_workertask (id integer)")
    assert run(nursery, "pg", "SELECT 1")[0].status == "complete"
    ask("pg", "CREATE TABLE jim.django_migrations (id integer)")
    outcome, _ = run(nursery, "clerk", "SELECT 1")
    assert outcome.error == "clerk: this is JIM's own database, which sql steps cannot use"
    assert outcome.can_retry is False


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("ATTACH :file AS x", "ATTACH, or VACUUM INTO a file, is not allowed"),
        ("VACUUM INTO 'copy.sqlite3'", "ATTACH, or VACUUM INTO a file, is not allowed"),
        ("SELECT load_extension('evil')", "the function load_extension is not allowed"),
        ("SELECT Fts3_Tokenizer('simple', x'0011223344556677')", "is not allowed"),
        ("PRAGMA hard_heap_limit = 1000", "PRAGMA hard_heap_limit is not allowed"),
        ("PRAGMA main.busy_timeout = 100000", "PRAGMA busy_timeout is not allowed"),
    ],
)
def test_sqlite_stays_within_its_file(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    parameters = {"file": str(tmp_path / "other.sqlite3")} if ":file" in script else {}
    outcome, _ = run(nursery, "lite", script, transaction=False, parameters=parameters)
    assert words in outcome.error
    assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_sqlite_triggers_and_references(nursery: Nursery) -> None:
    script = """
        CREATE TABLE log (note text, of integer REFERENCES staff (id));
        CREATE TRIGGER hired AFTER INSERT ON staff BEGIN
            INSERT INTO log VALUES ('new; ' || new.name, new.id); SELECT 1;
        END;
        INSERT INTO staff VALUES (3, 'Cy', NULL, 1);
        SELECT note, of FROM log;
    """
    outcome, said = run(nursery, "lite", script)
    assert outcome.result == {"statements": 4, "rows": 1, "first": {"note": "new; Cy", "of": 3}}
    assert said[2] == "INSERT 1 row"
    outcome, _ = run(nursery, "lite", "INSERT INTO log VALUES ('x', 99)")
    assert "FOREIGN KEY constraint failed" in outcome.error


def test_sqlite_values(nursery: Nursery, ask: Ask) -> None:
    ask("lite", "INSERT INTO staff VALUES (5, CAST(x'c3ff28' AS text), NULL, 1)")
    script = "SELECT 1.5 AS f, x'00ff' AS raw, 9e999 AS inf, 9223372036854775807 AS big, name FROM staff"
    script += " WHERE id = 5"
    outcome, _ = run(nursery, "lite", script)
    assert first(outcome) == {
        "f": 1.5, "raw": "00ff", "inf": "inf", "big": 2**63 - 1, "name": "\ufffd\ufffd(",
    }  # fmt: skip


def test_a_busy_sqlite_is_retried_in_the_end(
    nursery: Nursery, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_sqlite, "LOCK_SECONDS", 0.1)
    ask("lite", "BEGIN IMMEDIATE")
    outcome, _ = run(nursery, "lite", "DELETE FROM staff")
    assert (outcome.error, outcome.can_retry) == ("lite: database is locked", True)
    outcome, _ = run(nursery, "lite", "DELETE FROM staff", transaction=False)
    assert (outcome.error, outcome.can_retry) == ("statement 1, line 1: database is locked", True)
    outcome, _ = run(nursery, "lite", "SELECT 1", read_only=True)
    assert outcome.status == "complete"


def test_a_sqlite_file_that_is_none(nursery: Nursery, tmp_path: Path) -> None:
    file = tmp_path / "new.sqlite3"
    with override_settings(JIM_SQL_CONNECTIONS={"new": SqlConnection.from_url(f"sqlite:///{file}")}):
        outcome, _ = run(nursery, "new", "CREATE TABLE a (b)")
        assert outcome.error == f"new: the file {file} does not exist; create it first (it can be empty)"
        assert not file.exists()
        file.touch()
        assert run(nursery, "new", "CREATE TABLE a (b)")[0].status == "complete"
        file.write_text("no database " * 1_000)
        outcome, _ = run(nursery, "new", "SELECT 1")
        assert (outcome.error, outcome.can_retry) == ("new: file is not a database", False)


def test_a_script_from_a_file(nursery: Nursery, tmp_path: Path, engine: str) -> None:
    file = tmp_path / "sql" / "a.sql"
    for content, row in (
        (b"SELECT name FROM staff WHERE id = :id;", {"name": "Bob"}),
        (b"\xef\xbb\xbf-- with a BOM\r\nSELECT name\r\nFROM staff WHERE id = :id", {"name": "Bob"}),
        ("SELECT 'Zoë {{ x' AS name, :id AS id".encode(), {"name": "Zoë {{ x", "id": 2}),
    ):
        file.write_bytes(content)
        outcome, _ = run(nursery, engine, "", file=str(file), parameters={"id": 2})
        assert first(outcome) == row


OURS = "datname = current_database() AND application_name LIKE 'jim: %'"


def wait_until_busy(ask: Ask, engine: str) -> None:
    """Until the step is in the middle of what does not end by itself."""
    if engine == "pg":
        sleeping = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND wait_event = 'PgSleep'"
        wait_until(lambda: ask("pg", sleeping))


def wait_until_locked_out(running: Running, ask: Ask, engine: str) -> None:
    if engine == "pg":
        ours = "SELECT pid FROM pg_locks WHERE relation = 'staff'::regclass"
        wait_until(lambda: ask("pg", f"SELECT 1 FROM pg_locks WHERE NOT granted AND pid IN ({ours})"))
    else:  # only the step itself knows that it waits for an SQLite file
        with patch.object(running.context, "wait", wraps=running.context.wait) as waits:
            wait_until(lambda: waits.called)


def assert_nothing_left(ask: Ask, engine: str) -> None:
    """No backend goes on; no lock is held."""
    if engine == "pg":
        wait_until(lambda: ask("pg", f"SELECT count(*) FROM pg_stat_activity WHERE {OURS}") == 0)
    else:
        ask("lite", "BEGIN EXCLUSIVE")
        ask("lite", "ROLLBACK")


def peak_memory() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
