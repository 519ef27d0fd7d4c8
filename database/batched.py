"""Several questions in one statement, for what is asked again and again."""

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
    """A question without a model: its rows are lists, with times and keys as the database writes them."""

    sql: str
    params: Sequence[Any]
    columns: int


Question = QuerySet[Any] | Statement
Row = list[Any]


def together(*questions: Question) -> list[list[Any]]:
    """Return the rows of each question, in its order. Rows travel as JSON, which all tables can be read as.

    Not for fractions that have to be exact, for durations and for bytes.
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
    """None: it is known that there are none."""
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
    """PostgreSQL's functions take a hundred arguments at most, but know what a row is."""
    is_postgresql = connection.vendor == "postgresql"
    return f"CAST(row_to_json(q{number}) AS text)" if is_postgresql else f"json_array({', '.join(columns)})"


def _objects(question: QuerySet[Any], compiler: Any, rows: list[Row]) -> list[Any]:
    """As the question makes them of what it is answered."""
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
