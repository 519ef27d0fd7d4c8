"""The sql step: a script for a database from the settings, with parameters that are bound as values."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings

from execution.steps.fields import Field, shown
from execution.steps.sql_results import SqlFailed, StatementResult
from execution.steps.sql_text import SqlTextError, Statement, split
from files import given_files

from .context import Context
from .outcome import ERROR_CHARS, SPARE_CHARS, CannotRun, StepFailed, as_result
from .sql_connections import SqlConnection
from .step_type import StepType

SCRIPT_BYTES = 1024 * 1024
MOST_ROWS = 1_000
MOST_SECONDS = 7 * 86_400
PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TRANSACTION_VERBS = {"BEGIN", "START", "COMMIT", "END", "ABORT", "ROLLBACK"}


class SqlStep(StepType):
    name = "sql"
    title = "SQL script"
    fields = (
        Field("connection", "Connection", required=True, fixed=True, help="a name from JIM_SQL_CONNECTIONS"),
        Field(
            "script",
            "Script",
            kind="textarea",
            fixed=True,
            help="statements, separated by semicolons; write parameters as :name",
        ),
        Field(
            "file",
            "Script file",
            fixed=True,
            help="instead of a script: the absolute path of a file in a folder of JIM_SQL_FOLDERS",
        ),
        Field(
            "parameters",
            "Parameters",
            kind="mapping",
            help="text, numbers, true, false or null by name; bound as values, never read as SQL",
        ),
        Field(
            "read_only",
            "Read only",
            kind="bool",
            default=False,
            fixed=True,
            help="let the database refuse all changes",
        ),
        Field(
            "transaction",
            "One transaction",
            kind="bool",
            default=True,
            fixed=True,
            help="run the script completely or not at all; turn off for VACUUM and similar statements",
        ),
        Field(
            "max_rows", "Rows to show", kind="number", default=20, help="how many rows of each result to show"
        ),
        Field(
            "statement_timeout_seconds",
            "Statement timeout",
            kind="number",
            help="how many seconds each statement may take",
        ),
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        complaints = {
            "connection": _connection_complaint(values["connection"]),
            "read_only": _read_only_complaint(values),
            "max_rows": _range_complaint(values["max_rows"], 0, MOST_ROWS, whole=True),
            "statement_timeout_seconds": _range_complaint(
                values["statement_timeout_seconds"], 0.001, MOST_SECONDS
            ),
        }
        if not complaints["connection"]:
            try:
                statements = _statements(values)
                complaints["parameters"] = _parameters_complaint(values["parameters"], statements)
            except _Unreadable as error:
                complaints[error.field] = str(error)
        return {field: complaint for field, complaint in complaints.items() if complaint}

    def run(self, ctx: Context) -> object:
        config = ctx.config
        try:
            statements = _statements(config)
        except _Unreadable as error:  # the file has changed since it was checked
            raise CannotRun(f"{error.field}: {error}") from None
        try:
            with _session(ctx) as session:
                ctx.await_lease()
                ctx.started()
                answers = [
                    _execute(ctx, session, statement, number)
                    for number, statement in enumerate(statements, 1)
                ]
                result = as_result(_result(answers))
                ctx.check()
                session.finish()
        except SqlFailed as error:
            words = f"{config['connection']}: {_words(ctx, error)}"
            raise StepFailed(words, can_retry=error.can_retry) from None
        return result


class Session(Protocol):
    def execute(
        self, statement: Statement, parameters: Mapping[str, Any], *, keep: int
    ) -> StatementResult: ...

    def finish(self) -> None: ...


def _session(ctx: Context) -> AbstractContextManager[Session]:
    config = ctx.config
    connection = settings.JIM_SQL_CONNECTIONS[config["connection"]]
    options = {
        "read_only": config["read_only"],
        "transaction": config["transaction"],
        "statement_seconds": config["statement_timeout_seconds"],
    }
    # Imported here, because the driver takes 16 MB, which a worker without PostgreSQL databases saves.
    if connection.engine == "postgresql":
        from execution.steps.sql_postgres import PostgresSession

        return PostgresSession(ctx, connection, **options)
    from execution.steps.sql_sqlite import SqliteSession

    return SqliteSession(ctx, connection, **options)


def _execute(ctx: Context, session: Session, statement: Statement, number: int) -> StatementResult:
    ctx.check()
    config, started = ctx.config, time.monotonic()
    try:
        answer = session.execute(statement, config["parameters"], keep=int(config["max_rows"]))
    except SqlFailed as error:
        place = f"statement {number}, line {error.line or statement.line}"
        raise StepFailed(f"{place}: {_words(ctx, error)}", can_retry=error.can_retry) from None
    ctx.output("stdout", answer.lines(seconds=time.monotonic() - started))
    return answer


def _words(ctx: Context, error: SqlFailed) -> str:
    return ctx.masked_fragments(str(error)[: ERROR_CHARS + SPARE_CHARS])


def _result(answers: Sequence[StatementResult]) -> dict[str, object]:
    results = [answer for answer in answers if answer.columns]
    return {
        "statements": len(answers),
        "rows": sum(answer.changed or 0 for answer in answers),
        "first": results[-1].first_row() if results else None,
    }


class _Unreadable(Exception):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _statements(values: Mapping[str, Any]) -> tuple[Statement, ...]:
    """Return the statements of the script or file; raise _Unreadable if they cannot be used."""
    connection = settings.JIM_SQL_CONNECTIONS[values["connection"]]
    if values["script"] and values["file"]:
        raise _Unreadable("file", "cannot be given together with a script; clear one of the two")
    field, text = ("file", _read(values["file"])) if values["file"] else ("script", values["script"])
    if len(text.encode()) > SCRIPT_BYTES:
        raise _Unreadable(field, f"is longer than {SCRIPT_BYTES:,} bytes; split it into several steps")
    try:
        statements = split(text.removeprefix("\ufeff"), connection.engine)
    except SqlTextError as error:
        raise _Unreadable(field, str(error)) from None
    if not statements:
        is_given = values["file"] or text.strip()
        empty = "contains only spaces and comments" if is_given else "is required, unless a file is given"
        raise _Unreadable(field, empty)
    for statement in statements:
        if values["transaction"] and _ends_transaction(statement):
            raise _Unreadable(
                field,
                f"line {statement.line}: {statement.verb} is not allowed in a script that runs as one "
                "transaction; remove it, or set transaction to false",
            )
    return statements


def _read(name: str) -> str:
    path = Path(name)
    if not path.is_absolute():
        raise _Unreadable("file", f"{name!r} is not an absolute path; it must begin with /")
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise _Unreadable("file", f"{name} does not exist") from None
    if not any(path.is_relative_to(Path(folder).resolve()) for folder in settings.JIM_SQL_FOLDERS):
        allowed = ", ".join(str(folder) for folder in settings.JIM_SQL_FOLDERS) or "none"
        raise _Unreadable("file", f"{name} is outside the folders that scripts may come from: {allowed}")
    try:
        return given_files.read(path, most=SCRIPT_BYTES)
    except given_files.Unfit as error:
        raise _Unreadable("file", f"{name} {error}") from None


def _ends_transaction(statement: Statement) -> bool:
    if statement.verb == "ROLLBACK":
        return "TO" not in statement.words[:3]
    return statement.verb in TRANSACTION_VERBS or statement.words[:2] == ("PREPARE", "TRANSACTION")


def _connection_complaint(name: str) -> str:
    connection: SqlConnection | None = settings.JIM_SQL_CONNECTIONS.get(name)
    if connection is None:
        known = ", ".join(sorted(settings.JIM_SQL_CONNECTIONS))
        way = f"known connections: {known}" if known else "no connection is defined yet"
        return f"unknown connection {shown(name)}; {way} (JIM_SQL_CONNECTIONS, or sql_connections.json)"
    if connection.is_jims_own(settings.DATABASES["default"]):
        return f"{name} is JIM's own database, which sql steps cannot use; choose another connection"
    return ""


def _read_only_complaint(values: Mapping[str, Any]) -> str:
    if values["read_only"] and not values["transaction"]:
        return "requires transaction to be true: a database can refuse all changes only in a transaction"
    return ""


def _range_complaint(value: Any, least: float, most: float, *, whole: bool = False) -> str:
    if value is None or isinstance(value, str):  # not given, or a placeholder
        return ""
    if not least <= value <= most or (whole and value != int(value)):
        return f"must be a {'whole ' if whole else ''}number from {least:g} to {most:,}"
    return ""


def _parameters_complaint(parameters: Any, statements: Sequence[Statement]) -> str:
    if isinstance(parameters, str):  # a placeholder for all of them
        return ""
    used = {name: statement.line for statement in reversed(statements) for name in statement.names}
    for name, line in used.items():
        if name not in parameters:
            return f"the script uses :{name} in the statement of line {line}; give it a value here"
    for name, value in parameters.items():
        if not PARAMETER_NAME.fullmatch(name):
            return f"{shown(name)} is not a valid parameter name; use letters, digits and _"
        if name not in used:
            return f"{name} is not used: the script has no :{name} outside quotes and comments"
        if not isinstance(value, str | int | float | bool | None):
            return (
                f"the value of {name} must be text, a number, true, false or null; give a list as JSON text"
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"the value of {name} is too large for a database; give it as text"
    return ""
