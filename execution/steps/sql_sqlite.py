"""A session that runs one script on an SQLite file, with its own connection."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from execution.children.alarms import alarms
from execution.steps.sql_results import VALUE_CHARS, SqlFailed, StatementResult
from execution.steps.sql_text import Statement

from .context import Context
from .outcome import SPARE_CHARS
from .sql_connections import SqlConnection

# SQLite cannot be interrupted while it waits for a lock, so each wait is short and is repeated.
BUSY_SECONDS = 0.05
LOCK_SECONDS = 20.0
AGAIN_SECONDS = 0.1
# The most bytes of one value or one stored row. Python holds several copies of each in memory.
MOST_BYTES = 64 * 1024 * 1024
CHANGING = {"INSERT", "UPDATE", "DELETE", "REPLACE"}
# These pragmas change the whole process, including JIM's own database, can crash the process, or undo
# settings of the session.
FORBIDDEN_PRAGMAS = {
    "busy_timeout",
    "data_store_directory",
    "hard_heap_limit",
    "query_only",
    "soft_heap_limit",
    "temp_store_directory",
    "writable_schema",
}
FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
TEMPORARY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_INTERRUPT,
}
T = TypeVar("T")


class SqliteSession:
    """A session, used as a context manager. At its end, changes that were not committed are rolled back."""

    def __init__(
        self,
        ctx: Context,
        connection: SqlConnection,
        *,
        read_only: bool,
        transaction: bool,
        statement_seconds: float | None,
    ) -> None:
        self._ctx = ctx
        self._read_only, self._transaction = read_only, transaction
        self._statement_seconds = statement_seconds or math.inf
        self._deadline = math.inf
        self._lock = threading.Lock()
        self._refused = ""
        self._connection = _opened(Path(connection.options["file"]), read_only=read_only)
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(self._ctx.on_interrupt(self._stop))
        try:
            self._heeding(self._prepare)
        except BaseException:
            self._close()
            raise
        return self

    def execute(self, statement: Statement, parameters: Mapping[str, Any], *, keep: int) -> StatementResult:
        """Run the statement and return its result, with the first `keep` rows to show."""
        given = {name: parameters[name] for name in statement.names}
        with self._time_limit():
            return self._heeding(lambda: self._read(statement, given, keep))

    def finish(self) -> None:
        """Commit the transaction; raise SqlFailed if the script ended it or left its own transaction open."""
        if self._transaction and self._connection.in_transaction:
            self._heeding(lambda: self._patiently("COMMIT"))
        elif self._transaction:
            raise SqlFailed("the script has ended its transaction itself", can_retry=False)
        elif self._connection.in_transaction:
            raise SqlFailed("the script leaves a transaction open: add COMMIT", can_retry=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _prepare(self) -> None:
        connection = self._connection
        connection.text_factory = _decoded
        connection.execute("PRAGMA foreign_keys = ON")
        if self._read_only:
            connection.execute("PRAGMA query_only = ON")
        if self._transaction:
            # A transaction that writes takes the lock at its start, because it could not wait for it later.
            self._patiently("BEGIN" if self._read_only else "BEGIN IMMEDIATE")
        connection.set_authorizer(self._authorize)

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        if math.isinf(self._statement_seconds):
            yield
            return
        self._deadline = time.monotonic() + self._statement_seconds
        alarm = alarms.after(self._statement_seconds, self._stop)
        try:
            yield
        finally:
            alarms.cancel(alarm)
            with self._lock:
                self._deadline = math.inf

    def _close(self) -> None:
        self._held.close()
        with suppress(sqlite3.Error):
            self._connection.rollback()
        self._connection.close()

    def _read(self, statement: Statement, given: dict[str, Any], keep: int) -> StatementResult:
        changes = self._connection.total_changes
        with closing(self._patiently(statement.text, given)) as cursor:
            columns = [column[0] for column in cursor.description or ()]
            answer = StatementResult(keep, self._ctx.masked, verb=statement.verb, columns=columns)
            for row in cursor:
                if answer.first is None:
                    answer.keep_first([_as_json(value) for value in row])
                if answer.wants_more:
                    answer.show([_shown(value) for value in row])
                answer.count += 1
        if statement.verb in CHANGING:
            has_changed = self._connection.total_changes > changes
            answer.changed = self._connection.execute("SELECT changes()").fetchone()[0] if has_changed else 0
        return answer

    def _patiently(self, command: str, given: Mapping[str, Any] | None = None) -> sqlite3.Cursor:
        until = min(self._deadline, time.monotonic() + LOCK_SECONDS)
        while True:
            was_inside = self._connection.in_transaction
            try:
                return self._connection.execute(command, given or {})
            except sqlite3.OperationalError as error:
                has_lost = was_inside and not self._connection.in_transaction
                if _code(error) != sqlite3.SQLITE_BUSY or has_lost or time.monotonic() >= until:
                    raise
            self._ctx.wait(BUSY_SECONDS)

    def _heeding(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (sqlite3.Error, OverflowError) as error:
            self._ctx.check()
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> SqlFailed:
        message, code = str(error), _code(error)
        if code == sqlite3.SQLITE_AUTH or self._refused:
            return SqlFailed(f"{self._refused or message} is not allowed in sql steps", can_retry=False)
        if time.monotonic() >= self._deadline and code in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY):
            message = f"cancelled after {self._statement_seconds:g} s (statement_timeout_seconds)"
        elif code == sqlite3.SQLITE_TOOBIG:
            message += f": a value can have at most {MOST_BYTES // 1024**2} MiB"
        elif "VACUUM" in message and "transaction" in message:
            message += "; set transaction to false to run this statement outside a transaction"
        return SqlFailed(message, can_retry=code in TEMPORARY)

    def _stop(self) -> None:
        """Interrupt the current statement if the step was interrupted or the statement's time is over.

        Called in another thread, and again a little later, because the session may be between two statements
        now.
        """
        with self._lock:
            if self._ctx.reason is None and time.monotonic() < self._deadline:
                return
            try:
                self._connection.interrupt()
            except sqlite3.ProgrammingError:  # it is closed
                return
        alarms.after(AGAIN_SECONDS, self._stop)

    def _authorize(self, action: int, one: str | None, two: str | None, *_: str | None) -> int:
        match action:
            # A plain VACUUM attaches a file without a name. Any other file could be JIM's own database.
            case sqlite3.SQLITE_ATTACH if one != "":
                self._refused = "ATTACH, or VACUUM INTO a file,"
            case sqlite3.SQLITE_FUNCTION if str(two).lower() in FORBIDDEN_FUNCTIONS:
                self._refused = f"the function {two}"
            case sqlite3.SQLITE_PRAGMA if two is not None and str(one).lower() in FORBIDDEN_PRAGMAS:
                self._refused = f"PRAGMA {one}"
            case _:
                return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


def _opened(file: Path, *, read_only: bool) -> sqlite3.Connection:
    if not file.is_file():
        raise SqlFailed(f"the file {file} does not exist; create it first (it can be empty)", can_retry=False)
    uri = f"{file.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise SqlFailed(f"{file}: {error}", can_retry=_code(error) in TEMPORARY) from None
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    return connection


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _as_json(value: Any) -> object:
    match value:
        case bytes():
            return _hex(value)
        case float() if not math.isfinite(value):
            return str(value)
    return value


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    return _hex(value) if isinstance(value, bytes) else str(value)


def _hex(value: bytes) -> str:
    return value[: VALUE_CHARS + SPARE_CHARS].hex()


def _code(error: Exception) -> int:
    """Return SQLite's primary result code of the error, without the details in the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
