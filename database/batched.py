"""Runs several queries as one statement, for data that is read very often."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

from .statements import fetch, kind_of


class Statement(NamedTuple):
    """An SQL query without a model. In its result rows, times and UUIDs are strings, not Python objects."""

    sql: str
    params: Sequence[Any]
    columns: int


Question = QuerySet[Any] | Statement
Row = list[Any]


def together(*questions: Question) -> list[list[Any]]:
    """Run all queries in one statement, and return a list of rows for each query.

    Rows are transferred as JSON, so that rows of different tables fit into one result. Columns of exact
    decimals, durations or bytes cannot be transferred in this way.
    """
    compilers = [_compiler(each) for each in questions]
    rows = _rows([_statement(each, by) for each, by in zip(questions, compilers, strict=True)])
    return [
        found if by is None or isinstance(each, Statement) else _objects(each, by, found)
        for each, by, found in zip(questions, compilers, rows, strict=True)
    ]


def _compiler(question: Question) -> Any:
    return None if isinstance(question, Statement) else question.query.get_compiler(connection=connection)


def _statement(question: Question, compiler: Any) -> Statement | None:
    """Return the SQL statement of a query, or None if Django knows in advance that no rows match."""
    if isinstance(question, Statement):
        return question
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:
        return None
    return Statement(sql, params, len(compiler.select))


def _rows(statements: Sequence[Statement | None]) -> list[list[Row]]:
    lists, parts, params = list[str](), list[str](), list[Any]()
    for number, each in enumerate(statements):
        if each is not None:
            columns = [f"c{place}" for place in range(each.columns)]
            lists.append(f"q{number}({', '.join(columns)}) AS ({each.sql})")
            parts.append(f"SELECT {number}, ROW_NUMBER() OVER (), {_json(number, columns)} FROM q{number}")
            params += each.params
    found: list[list[Row]] = [[] for _ in statements]
    answer = fetch(f"WITH {', '.join(lists)} {' UNION ALL '.join(parts)}", params) if parts else []
    for number, _, text in sorted(answer, key=lambda row: row[:2]):
        row = json.loads(text)
        found[number].append(list(row.values()) if isinstance(row, dict) else row)
    return found


def _json(number: int, columns: Sequence[str]) -> str:
    """Return an SQL expression that converts a row of query number `number` to JSON.

    PostgreSQL allows at most 100 arguments per function call, so the whole row is passed as one argument.
    """
    is_postgresql = connection.vendor == "postgresql"
    return f"CAST(row_to_json(q{number}) AS text)" if is_postgresql else f"json_array({', '.join(columns)})"


def _objects(question: QuerySet[Any], compiler: Any, rows: list[Row]) -> list[Any]:
    """Convert rows to the objects that the queryset would return."""
    if not rows:
        return []
    if connection.vendor == "postgresql":
        rows = [list(row) for row in zip(*_as_its_driver_reads(compiler, rows), strict=True)]
    compiler.execute_sql = lambda *_, **__: [rows]
    answered: Any = question.all()
    answered.query.get_compiler = lambda *_, **__: compiler
    return list(answered)


def _as_its_driver_reads(compiler: Any, rows: list[Row]) -> list[Sequence[Any]]:
    kinds = [kind_of(expression.output_field) for expression, *_ in compiler.select]
    return [
        [None if value is None else _READS[kind](value) for value in column] if kind in _READS else column
        for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)
    ]


_READS: dict[str, Callable[[Any], Any]] = {
    "DateTimeField": datetime.fromisoformat,
    "UUIDField": UUID,
    "JSONField": json.dumps,
}
