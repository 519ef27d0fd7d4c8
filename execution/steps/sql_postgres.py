"""One script's session with a PostgreSQL server, on a connection of its own.

It speaks through libpq's own calls. Only so can rows be counted without being kept; and the thread that waits
for a query is the one that cancels it, so a cancellation never meets a query that it was not meant for.
"""

from __future__ import annotations

import json
import math
import re
import select
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from decimal import Decimal
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from execution.steps.sql_answers import Answer, SqlFailed
from execution.steps.sql_text import Statement

from .context import Context
from .sql_connections import SqlConnection

# A peer that vanished without a word is noticed within half a minute, not after the kernel's two hours.
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
    "standard_conforming_strings": "on",  # as the scanner takes for granted
}
OWN_TABLES = ("django_migrations", "execution_workertask")
CHUNK_ROWS = 10  # all of them are held at once, and may be wide; a hundred would not be twice as quick
POLL_MILLISECONDS = 100
CANCEL_SECONDS = 0.5
GIVE_UP_SECONDS = 3.0
# The server's limit ends what no worker waits for any more; it must not come before the worker's own.
TIMEOUT_MARGIN = 5
MOST_MILLISECONDS = 2**31 - 1

UNKNOWN, BOOL, INT4, INT8, NUMERIC = 0, 16, 23, 20, 1700
INTEGERS = {20, 21, 23, 26}
DECIMALS = {700, 701, 1700}
JSONS = {114, 3802}
CHANGING = {"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"}
COPYING = {ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH}
# Connections, resources, locks, deadlocks, serialisation, timeouts: what may go well the next time.
TEMPORARY = re.compile(r"08...|53...|40001|40003|40P01|55P03|57014|57P0.|25P0[34]|58030")
LOST = re.compile(r"08...|57P0.")
HINTS = {
    "42P08": "write its type, as in CAST(:name AS text)",
    "42P18": "write its type, as in CAST(:name AS text)",
    "25001": "with transaction set to false, the step would run it outside of one",
}
EXPLANATIONS = {
    "DETAIL": DiagnosticField.MESSAGE_DETAIL,
    "HINT": DiagnosticField.MESSAGE_HINT,
    "CONTEXT": DiagnosticField.CONTEXT,
}
QUOTING = ("DETAIL", "CONTEXT")


class ConnectionLost(SqlFailed):
    def __init__(self, message: str) -> None:
        super().__init__(message, can_retry=True)


class PostgresSession:
    """Used as a context: what was not finished by its end is rolled back."""

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
        self._cancel_at, self._give_up_at = 0.0, math.inf
        self._connection = _connected(ctx, connection)
        self._connection.add_notice_handler(self._tell)
        self._pgconn = self._connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket)

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException as error:
            self._close()
            if isinstance(error, SqlFailed):
                self._ctx.check()
            raise
        return self

    def execute(self, statement: Statement, parameters: Mapping[str, Any], *, keep: int) -> Answer:
        """`keep` is how many rows are to be shown."""
        values = [_sent(parameters[name]) for name in statement.names]
        answer = Answer(keep, self._ctx.masked)
        try:
            for result in self._results(statement.numbered(), values, statement):
                _read(result, answer)
        except SqlFailed:
            self._ctx.check()
            raise
        return answer

    def finish(self) -> None:
        """Makes all of it last, or says why that cannot be."""
        status = self._pgconn.transaction_status
        if self._transaction and status == TransactionStatus.INTRANS:
            self._commit()
        elif self._transaction:
            raise SqlFailed("the script has ended its transaction itself", can_retry=False)
        elif status != TransactionStatus.IDLE:
            raise SqlFailed("the script leaves a transaction open: COMMIT is missing", can_retry=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _prepare(self) -> None:
        if self._pgconn.server_version >= 140000:
            # Ends a query whose worker has died. On some systems the server cannot do it and says so.
            with suppress(SqlFailed):
                self._ask("SELECT set_config('client_connection_check_interval', '2s', false)")
        if self._transaction:
            self._ask("BEGIN READ ONLY" if self._read_only else "BEGIN")
        # It is the transaction's first query, and after that the server lets nobody undo READ ONLY.
        calls = (f"set_config('{name}', '{value}', {self._scope})" for name, value in SERVER_SETTINGS.items())
        self._ask(f"SELECT {', '.join(calls)}")
        self._limit_time()
        self._refuse_own()

    def _limit_time(self) -> None:
        """Of each statement; a stricter limit that the role has yields only to one that the step names."""
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
        """Whether settings are only for the transaction, and leave no trace on a connection of a pooler."""
        return str(self._transaction).lower()

    def _refuse_own(self) -> None:
        """Its address, or a pooler, may give it any name; but a database with JIM's tables is JIM's."""
        is_own = (
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname IN ($1, $2) "
            "GROUP BY relnamespace HAVING count(*) = 2)"
        )
        if self._ask(is_own, *OWN_TABLES) == b"t":
            raise SqlFailed("it is JIM's own database, which sql steps may not touch", can_retry=False)

    def _commit(self) -> None:
        try:
            self._ask("COMMIT")
        except ConnectionLost as error:
            words = "the connection was lost during COMMIT, so whether the script took effect is unknown"
            raise SqlFailed(f"{words}: look before it runs again ({error})", can_retry=False) from None
        except SqlFailed:
            self._ctx.check()
            raise

    def _close(self) -> None:
        self._cancel_at = math.inf
        if self._pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(SqlFailed):
                self._ask("ROLLBACK")
        self._connection.close()

    def _ask(self, command: str, *texts: str) -> bytes | None:
        """The first value of the answer."""
        found = [
            result.get_value(0, 0)
            for result in self._results(command, [(text.encode(), UNKNOWN) for text in texts])
            if result.ntuples
        ]
        return found[0] if found else None

    def _results(
        self,
        command: str,
        values: Sequence[tuple[bytes | None, int]],
        statement: Statement | None = None,
    ) -> Iterator[PGresult]:
        """The parts of the answer, then SqlFailed if the server refused."""
        failure = None
        try:
            self._send(command, values)
            while result := self._next():
                if result.status == ExecStatus.FATAL_ERROR:
                    failure = failure or self._failure(result, statement)
                elif result.status in COPYING:
                    raise SqlFailed("COPY cannot reach the client here", can_retry=False)
                else:
                    yield result
        except psycopg.Error as error:
            raise failure or ConnectionLost(_one_line(error)) from None
        if failure:
            raise failure

    def _send(self, command: str, values: Sequence[tuple[bytes | None, int]]) -> None:
        # With this call the server takes one statement only, whatever the text is made to look like.
        self._pgconn.send_query_params(
            command.encode(), [value for value, _ in values], param_types=[kind for _, kind in values]
        )
        self._pgconn.set_chunked_rows_mode(CHUNK_ROWS)
        while self._pgconn.flush():
            if self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN:
                self._pgconn.consume_input()

    def _next(self) -> PGresult | None:
        while self._pgconn.is_busy():
            self._wait(select.POLLIN)
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _wait(self, events: int) -> int:
        self._poll.modify(self._pgconn.socket, events)
        while True:
            self._heed_interrupt()
            for _, happened in self._poll.poll(POLL_MILLISECONDS):
                return happened

    def _heed_interrupt(self) -> None:
        """Asks the server to cancel, more than once: it may have been between two queries, or refuse."""
        if self._ctx.reason is None:
            return
        now = time.monotonic()
        self._give_up_at = min(self._give_up_at, now + GIVE_UP_SECONDS)
        if now >= self._give_up_at:
            raise ConnectionLost("the server does not end the query")
        if now >= self._cancel_at:
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=1)
            self._cancel_at = time.monotonic() + CANCEL_SECONDS

    def _tell(self, notice: psycopg.errors.Diagnostic) -> None:
        words = self._ctx.masked_fragments(str(notice.message_primary))
        self._ctx.write(f"{notice.severity}: {words}")

    def _failure(self, result: PGresult, statement: Statement | None) -> SqlFailed:
        code = _diagnosis(result, DiagnosticField.SQLSTATE)
        message = _diagnosis(result, DiagnosticField.MESSAGE_PRIMARY) or _one_line(
            result.error_message.decode()
        )
        if not code or LOST.fullmatch(code):
            return ConnectionLost(message)
        if statement and code.startswith("42"):
            message = re.sub(r"\$(\d+)\b", lambda found: _name_of(found, statement), message)
        more = _explained(result) if self._ctx.mask is None else _explained_discreetly(result)
        if code in HINTS and statement and statement.verb != "SET":
            more.append(f"HINT: {HINTS[code]}")
        position = _diagnosis(result, DiagnosticField.STATEMENT_POSITION)
        line = statement.line_at(int(position) - 1) if statement and position else None
        return SqlFailed("\n".join([message, *more]), can_retry=bool(TEMPORARY.fullmatch(code)), line=line)


def _connected(ctx: Context, connection: SqlConnection) -> psycopg.Connection[Any]:
    """In a thread of its own, as nothing can interrupt it; a connection that comes too late is closed."""
    options = {
        **CLIENT_SETTINGS,
        **connection.options,
        "client_encoding": "UTF8",
        "application_name": f"jim: {ctx.work.name}"[:63],
    }
    connecting: Future[psycopg.Connection[Any]] = Future()
    woken = threading.Event()
    connecting.add_done_callback(lambda _: woken.set())
    threading.Thread(target=_connect, args=(connecting, options), name="sql connect", daemon=True).start()
    with ctx.on_interrupt(woken.set):
        woken.wait()
    if ctx.cancelled:
        connecting.add_done_callback(_close_again)
        ctx.check()
    try:
        return connecting.result()
    except psycopg.Error as error:
        raise SqlFailed(_one_line(error), can_retry=True) from None


def _connect(connecting: Future[psycopg.Connection[Any]], options: dict[str, str]) -> None:
    try:
        connecting.set_result(psycopg.connect(autocommit=True, prepare_threshold=None, **options))  # type: ignore[arg-type]
    except BaseException as error:
        connecting.set_exception(error)


def _close_again(connecting: Future[psycopg.Connection[Any]]) -> None:
    if connecting.exception() is None:
        connecting.result().close()


def _sent(value: object) -> tuple[bytes | None, int]:
    """With the types that literals of SQL have: 1.5 is an exact number, and text is whatever is wanted."""
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


def _read(result: PGresult, answer: Answer) -> None:
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
    if tag := _text(result.command_status):  # the last part has it, or, if that is empty, the one before
        answer.verb = tag.rstrip("0123456789 ")
        # CREATE TABLE … AS calls itself SELECT as well, but returns nothing.
        makes_table = answer.verb == "SELECT" and result.status == ExecStatus.COMMAND_OK
        answer.changed = result.command_tuples if answer.verb in CHANGING or makes_table else None


def _as_json(value: bytes | None, kind: int) -> Any:
    """Numbers, booleans and JSON as what they are, everything else as the server writes it."""
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
    """As JSON's, unless that would change it."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    number = float(text)
    return number if math.isfinite(number) and Decimal(repr(number)) == Decimal(text) else text


def _explained(result: PGresult, left_out: Container[str] = ()) -> list[str]:
    return [
        f"{label}: {words}"
        for label, field in EXPLANATIONS.items()
        if label not in left_out and (words := _diagnosis(result, field))
    ]


def _explained_discreetly(result: PGresult) -> list[str]:
    """Without those that show values, of which the server cuts the long ones: parts of secrets."""
    more = _explained(result, QUOTING)
    if len(more) < len(_explained(result)):
        more.append(f"({' and '.join(QUOTING)} are left out, as the step uses secrets)")
    return more


def _name_of(number: re.Match[str], statement: Statement) -> str:
    """The server knows parameters by their number only."""
    names = statement.names
    return f":{names[int(number[1]) - 1]}" if 0 < int(number[1]) <= len(names) else number[0]


def _diagnosis(result: PGresult, field: DiagnosticField) -> str:
    return _text(result.error_field(field)) or ""


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="replace")


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
