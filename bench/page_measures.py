"""Fills a large database and asks for every page and list, as a browser does; prints the readings as JSON."""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import django

LARGE = ("activities_activity", "execution_execution", "schedules_occurrence", "activities_outputline")
COUNTING = re.compile(r'SELECT COUNT\(.*?FROM "?(\w+)"?', re.IGNORECASE | re.DOTALL)


class Address(NamedTuple):
    path: str
    polls: bool = False


def main() -> None:
    django.setup()
    from bench.large import Large, fill

    fill(Large(*json.loads(sys.argv[1])))
    json.dump([ask(address, int(sys.argv[2])) for address in addresses()], sys.stdout)


def ask(address: Address, repetitions: int) -> dict[str, Any]:
    """Once to warm up, then as often as asked; the queries are those of the last time."""
    client = _client()
    client.get(address.path)
    times, queries, answer = [], list[str](), None
    for _ in range(repetitions):
        began = time.perf_counter()
        answer, queries = _get(client, address.path)
        times.append(1000 * (time.perf_counter() - began))
    times.sort()
    found = {name for text in queries for name in COUNTING.findall(text)}
    return {
        "address": address.path,
        "polls": address.polls,
        "status": answer.status_code if answer else 0,
        "queries": len(queries),
        "p50": statistics.median(times),
        "p95": times[min(len(times) - 1, int(0.95 * len(times)))],
        "bytes": len(answer.content) if answer and not answer.streaming else 0,
        "counted": sorted(found & set(LARGE)),
    }


def addresses() -> Iterator[Address]:
    """Every address of pages and API that can be asked for, with examples for what it is about."""
    from tests.every_address import addresses as all_of_them

    for found in all_of_them():
        yield Address(found.path, found.polls)


def _client() -> Any:
    from django.contrib.auth.models import User
    from django.test import Client

    user, _ = User.objects.get_or_create(username="bench", is_superuser=True, is_staff=True)
    client = Client(headers={"Accept": "*/*"}, raise_request_exception=False)
    client.force_login(user)
    return client


def _get(client: Any, path: str) -> tuple[Any, list[str]]:
    from django.db import connection

    queries: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        queries.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        answer = client.get(path)
        if answer.streaming:
            list(answer.streaming_content)
    return answer, queries


if __name__ == "__main__":
    main()
