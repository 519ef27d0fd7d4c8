"""A session that runs one script on a PostgreSQL server, with its own connection.

The script's statements are sent with libpq's own calls, because psycopg's cursors either keep all rows in
memory or, with `stream`, refuse statements that return no rows. Psycopg does the rest, such as waiting and
reporting errors.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from decimal import Decimal
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic, error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from execution.steps.sql_results import SqlFailed, StatementResult
from execution.steps.sql_text import Statement

from .context import Context
from .sql_connections import SqlConnection

T = TypeVar("T")
# With these settings, a server that vanished is noticed within half a minute instead of two hours.
CLIENT_SETTINGS = {
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
SERVER_SETTINGS = {
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "DateStyle": "ISO",
    "standard_conforming_strings": "on",  # the scanner assumes it
}
OWN_TABLES = ["django_migrations", "execution_workertask"]
CHUNK_ROWS = 10  # rows held in memory at once, which may be wide; 100 would not be twice as fast
CANCEL_SECONDS = 0.5
GIVE_UP_SECONDS = 3.0
# Seconds between the worker's limit and the later one of the server, which ends queries of dead workers.
TIMEOUT_MARGIN = 5
MOST_MILLISECONDS = 2**31 - 1

UNKNOWN, BOOL, INT4, INT8, NUMERIC = 0, 16, 23, 20, 1700
INTEGERS = {20, 21, 23, 26}
DECIMALS = {700, 701, 1700}
JSONS = {114, 3802}
CHANGING = {"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"}
COPYING = {ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH}
# Connections, resources, locks, deadlocks, serialisation, timeouts: errors that a retry may avoid.
TEMPORARY = re.compile(r"08...|53...|40001|40003|40P01|55P03|57014|57P0.|25P0[34]|58030")
LOST = re.compile(r"08...|57P0.")
HINTS = {
    "42P08": "write the type of the parameter, as in CAST(:name AS text)",
    "42P18": "write the type of the parameter, as in CAST(:name AS text)",
    "25001": "set transaction to false to run this statement outside a transaction",
}
QUOTING = ("DETAIL", "CONTEXT")


class ConnectionLost(SqlFailed):
    def __init__(self, message: str) -> None:
        super().__init__(message, can_retry=True)


class InterruptibleConnection(psycopg.Connection[Any]):
    """A connection that asks the server to cancel its query once the step is interrupted.

    The thread that waits for a query is the one that cancels it, so that no later query is hit by mistake.
    """

    ctx: Context | None = None
    _cancel_at, _give_up_at = 0.0, math.inf

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        return super().wait(self._interruptible(gen), *args, **options)

    def stop_cancelling(self) -> None:
        self._cancel_at = math.inf

    def _interruptible(self, gen: PQGen[T]) -> PQGen[T]:
        try:
            wanted = next(gen)
            while True:
                self._heed_interrupt()
                wanted = gen.send((yield wanted))
        except StopIteration as end:
            result: T = end.value
            return result

    def _heed_interrupt(self) -> None:
        """Ask the server to cancel the query if the step was interrupted; raise ConnectionLost if that fails.

        The request is repeated, because the server may have been between two queries or may refuse it.
        """
        if self.ctx is None or self.ctx.reason is None:
            return
        now = time.monotonic()
        self._give_up_at = min(self._give_up_at, now + GIVE_UP_SECONDS)
        if now >= self._give_up_at:
            raise ConnectionLost("the server was asked to cancel the query, but did not end it")
        if now >= self._cancel_at:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=1)
            self._cancel_at = time.monotonic() + CANCEL_SECONDS


class PostgresSession:
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
        self._statement_seconds = statement_seconds
        self._connection = _connected(ctx, connection)
        self._connection.add_notice_handler(self._tell)
        self._pgconn = self._connection.pgconn

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException as error:
            self._close()
            if isinstance(error, SqlFailed):
                self._ctx.check()
            raise
        return self

    def execute(self, statement: Statement, parameters: Mapping[str, Any], *, keep: int) -> StatementResult:
        """Run the statement and return its result, with the first `keep` rows to show."""
        answer = StatementResult(keep, self._ctx.masked)
        try:
            for result in self._results(statement, [_sent(parameters[name]) for name in statement.names]):
                _read(result, answer)
        except SqlFailed:
            self._ctx.check()
            raise
        except psycopg.Error as error:
            self._ctx.check()
            raise self._failure(error, statement) from None
        return answer

    def finish(self) -> None:
        """Commit the transaction; raise SqlFailed if the script ended it or left its own transaction open."""
        status = self._pgconn.transaction_status
        if self._transaction and status == TransactionStatus.INTRANS:
            self._commit()
        elif self._transaction:
            raise SqlFailed("the script has ended its transaction itself", can_retry=False)
        elif status != TransactionStatus.IDLE:
            raise SqlFailed("the script leaves a transaction open: add COMMIT", can_retry=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _prepare(self) -> None:
        if self._pgconn.server_version >= 140000:
            # This setting ends a query whose worker has died. Servers on some systems do not support it.
            with suppress(SqlFailed):
                self._ask("SELECT set_config('client_connection_check_interval', '2s', false)")
        if self._transaction:
            self._ask("BEGIN READ ONLY" if self._read_only else "BEGIN")
        # After this first query of the transaction, the server no longer lets the script undo READ ONLY.
        calls = (f"set_config('{name}', '{value}', {self._scope})" for name, value in SERVER_SETTINGS.items())
        self._ask(f"SELECT {', '.join(calls)}")
        self._limit_time()
        self._refuse_own()

    def _limit_time(self) -> None:
        """Limit the time that the server spends on each statement.

        A stricter limit of the database role stays in force, unless the step itself sets a limit for
        statements.
        """
        of_step = (self._ctx.work.timeout_seconds or math.inf) + TIMEOUT_MARGIN
        seconds = min(of_step, self._statement_seconds or math.inf)
        if seconds * 1000 > MOST_MILLISECONDS:
            return
        limit = max(int(seconds * 1000), 1)
        condition = f"name = 'statement_timeout' AND setting::bigint NOT BETWEEN 1 AND {limit}"
        if seconds == self._statement_seconds:
            condition = "name = 'statement_timeout'"
        self._ask(
            f"SELECT set_config(name, '{limit}', {self._scope}) FROM pg_catalog.pg_settings WHERE {condition}"
        )

    @property
    def _scope(self) -> str:
        """Return, as an SQL literal, whether settings are to last only for the current transaction.

        A transaction must not leave settings on a connection that a connection pooler reuses.
        """
        return str(self._transaction).lower()

    def _refuse_own(self) -> None:
        """Raise SqlFailed if the database has JIM's tables: its address may not show that it is JIM's own."""
        tables = "SELECT FROM pg_catalog.pg_class WHERE relname = ANY(%s)"
        if self._ask(f"{tables} GROUP BY relnamespace HAVING count(*) = 2", [OWN_TABLES]).rowcount:
            raise SqlFailed("this is JIM's own database, which sql steps cannot use", can_retry=False)

    def _commit(self) -> None:
        try:
            self._ask("COMMIT")
        except ConnectionLost as error:
            words = "the connection was lost during COMMIT, so it is unknown whether the changes were saved"
            raise SqlFailed(
                f"{words}: check the database before you run the script again ({error})", can_retry=False
            ) from None
        except SqlFailed:
            self._ctx.check()
            raise

    def _close(self) -> None:
        self._connection.stop_cancelling()
        if self._pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(SqlFailed):
                self._ask("ROLLBACK")
        self._connection.close()

    def _ask(self, query: str, parameters: list[Any] | None = None) -> psycopg.Cursor[Any]:
        try:
            return self._connection.execute(query, parameters)
        except psycopg.Error as error:
            raise self._failure(error) from None

    def _results(self, statement: Statement, values: list[tuple[bytes | None, int]]) -> Iterator[PGresult]:
        # With this call, the server accepts only a single statement, whatever the text contains.
        self._pgconn.send_query_params(
            statement.numbered().encode(), [value for value, _ in values], [kind for _, kind in values]
        )
        self._pgconn.set_chunked_rows_mode(CHUNK_ROWS)
        self._connection.wait(generators.send(self._pgconn))
        while result := self._connection.wait(generators.fetch(self._pgconn)):
            if result.status == ExecStatus.FATAL_ERROR:
                with suppress(psycopg.Error):  # libpq requires that all results are read
                    while self._connection.wait(generators.fetch(self._pgconn)):
                        pass
                raise error_from_result(result)
            if result.status in COPYING:
                raise SqlFailed(
                    "COPY between the server and its client is not supported; use INSERT and SELECT, or a "
                    "file on the server",
                    can_retry=False,
                )
            yield result

    def _tell(self, notice: Diagnostic) -> None:
        words = self._ctx.masked_fragments(str(notice.message_primary))
        self._ctx.write(f"{notice.severity}: {words}")

    def _failure(self, error: psycopg.Error, statement: Statement | None = None) -> SqlFailed:
        code, diag = error.sqlstate, error.diag
        message = diag.message_primary or _one_line(error)
        if not code or LOST.fullmatch(code):
            return ConnectionLost(message)
        if statement and code.startswith("42"):
            message = re.sub(r"\$(\d+)\b", lambda found: _name_of(found, statement), message)
        more = _explained(diag) if self._ctx.mask is None else _explained_discreetly(diag)
        if code in HINTS and statement and statement.verb != "SET":
            more.append(f"HINT: {HINTS[code]}")
        position = diag.statement_position
        line = statement.line_at(int(position) - 1) if statement and position else None
        return SqlFailed("\n".join([message, *more]), can_retry=bool(TEMPORARY.fullmatch(code)), line=line)


def _connected(ctx: Context, connection: SqlConnection) -> InterruptibleConnection:
    """Return a new connection, made in another thread, because connecting cannot be interrupted.

    If the step is interrupted meanwhile, the connection is closed as soon as it is made.
    """
    options = {
        **CLIENT_SETTINGS,
        **connection.options,
        "client_encoding": "UTF8",
        "application_name": f"jim: {ctx.work.name}"[:63],
    }
    connecting: Future[InterruptibleConnection] = Future()
    woken = threading.Event()
    connecting.add_done_callback(lambda _: woken.set())
    threading.Thread(target=_connect, args=(connecting, options), name="sql connect", daemon=True).start()
    with ctx.on_interrupt(woken.set):
        woken.wait()
    if ctx.cancelled:
        connecting.add_done_callback(_close_again)
        ctx.check()
    try:
        connected = connecting.result()
    except psycopg.Error as error:
        raise SqlFailed(_one_line(error), can_retry=True) from None
    connected.ctx = ctx
    return connected


def _connect(connecting: Future[InterruptibleConnection], options: dict[str, Any]) -> None:
    try:
        made = InterruptibleConnection.connect(autocommit=True, prepare_threshold=None, **options)
        connecting.set_result(made)
    except BaseException as error:
        connecting.set_exception(error)


def _close_again(connecting: Future[InterruptibleConnection]) -> None:
    if connecting.exception() is None:
        connecting.result().close()


def _sent(value: object) -> tuple[bytes | None, int]:
    """Return the value as bytes, and the type that it would have as an SQL literal.

    For example, 1.5 is numeric. For text, the type is left to the server.
    """
    match value:
        case None:
            return None, UNKNOWN
        case bool():
            return str(value).encode(), BOOL
        case int():
            bits = value.bit_length()
            return str(value).encode(), INT4 if bits < 32 else INT8 if bits < 64 else NUMERIC
        case float():
            return repr(value).encode(), NUMERIC
    return str(value).encode(), UNKNOWN


def _read(result: PGresult, answer: StatementResult) -> None:
    columns = range(result.nfields)
    if not answer.columns:
        answer.columns = [_text(result.fname(column)) or "" for column in columns]
    if answer.first is None and result.ntuples:
        answer.keep_first([_as_json(result.get_value(0, column), result.ftype(column)) for column in columns])
    for row in range(result.ntuples):
        if not answer.wants_more:
            break
        answer.show([_text(result.get_value(row, column)) for column in columns])
    answer.count += result.ntuples
    if tag := _text(result.command_status):  # in the last part, or in the one before if that is empty
        answer.verb = tag.rstrip("0123456789 ")
        # CREATE TABLE … AS reports SELECT as well, but returns no rows.
        makes_table = answer.verb == "SELECT" and result.status == ExecStatus.COMMAND_OK
        answer.changed = result.command_tuples if answer.verb in CHANGING or makes_table else None


def _as_json(value: bytes | None, kind: int) -> Any:
    """Return numbers, booleans and JSON as JSON values, and other values as the server's text."""
    text = _text(value)
    if text is None:
        return None
    if kind == BOOL:
        return text == "t"
    if kind in INTEGERS:
        return int(text)
    if kind in DECIMALS:
        return _number(text)
    if kind in JSONS:
        with suppress(ValueError, RecursionError):
            return json.loads(text, parse_float=_number)
    return text


def _number(text: str) -> int | float | str:
    """Return the text as a number if JSON can hold it exactly, otherwise unchanged."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    number = float(text)
    return number if math.isfinite(number) and Decimal(repr(number)) == Decimal(text) else text


def _explained(diag: Diagnostic, left_out: Container[str] = ()) -> list[str]:
    found = {"DETAIL": diag.message_detail, "HINT": diag.message_hint, "CONTEXT": diag.context}
    return [f"{label}: {words}" for label, words in found.items() if words and label not in left_out]


def _explained_discreetly(diag: Diagnostic) -> list[str]:
    """Return the explanations of an error without the fields that quote values.

    The server cuts long values, which could leave a part of a secret that is not recognised.
    """
    more = _explained(diag, QUOTING)
    if len(more) < len(_explained(diag)):
        more.append(f"({' and '.join(QUOTING)} are left out, because the step uses secrets)")
    return more


def _name_of(number: re.Match[str], statement: Statement) -> str:
    """Return the name of a parameter that the server's message calls by its number, such as $1."""
    names = statement.names
    return f":{names[int(number[1]) - 1]}" if 0 < int(number[1]) <= len(names) else number[0]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="replace")


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
