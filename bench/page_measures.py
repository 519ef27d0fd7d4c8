"""Fills a large database, requests every page and list like a browser, and prints the readings as JSON."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import django

AGGREGATING = ("Aggregate", "WindowAgg", "Sort", "Incremental Sort", "Hash", "Unique")
# Addresses that an open page requests repeatedly.
POLLED = ("-now", "-live", "-rows", "-pulse", "-attention", "-running", "-upcoming", "-progress")
NOT_ALLOWED = 405
# Addresses that end the session, need more than a key, or are neither a page nor a list.
LEFT_OUT = (
    "web:logout",
    "web:token-revoke",
    "api:schedule-why",
    "api:token-detail",
    "api:ready",
    "api:schema",
)
NARROWED = (
    "/schedules?q=large+4",
    "/schedules?state=paused",
    "/schedules?tag=large",
    "/executions?state=failed",
    "/executions?q=large",
    "/activities?status=failed_with_error",
    "/activities?q=step+3",
    "/activities?operation=create",
    "/queue?pool=default",
    "/api/v1/schedules?search=large",
    "/api/v1/executions?state=failed",
    "/api/v1/activities?status=cancelled",
    "/api/v1/activities?text=step",
    "/api/v1/schedules?ordering=-name",
    "/api/v1/schedules/1/why?at=2026-11-16T09:00:00Z",
    "/metrics",
)


class Address(NamedTuple):
    path: str
    polls: bool = False


class Query(NamedTuple):
    sql: str
    params: Any


def main() -> None:
    django.setup()
    from bench.large import fill
    from bench.large_sizes import Large

    fill(Large(*json.loads(sys.argv[1])))
    answers = (ask(address, int(sys.argv[2])) for address in addresses())
    # An address that does not accept GET is not a page.
    json.dump([answer for answer in answers if answer["status"] != NOT_ALLOWED], sys.stdout)


def ask(address: Address, repetitions: int) -> dict[str, Any]:
    """Request the address once to warm up, then `repetitions` times, and return what was measured.

    Queries, rows and bytes are those of the last request.
    """
    client = _client()
    if client.get(address.path).status_code == NOT_ALLOWED:
        repetitions = 1
    times, queries, answer = [], list[Query](), None
    for _ in range(repetitions):
        began = time.perf_counter()
        answer, queries = _get(client, address.path)
        times.append(1000 * (time.perf_counter() - began))
    times.sort()
    return {
        "address": address.path,
        "polls": address.polls,
        "status": answer.status_code if answer else 0,
        "queries": len(queries),
        "p50": statistics.median(times),
        "p95": times[math.ceil(0.95 * len(times)) - 1],
        "bytes": len(answer.content) if answer and not answer.streaming else 0,
        "rows": max((_rows_gone_through(query) for query in queries), default=0),
    }


def addresses() -> Iterator[Address]:
    """Yield the address of every page and list, for the newest objects, and of some lists with filters."""
    from tests.addresses import routes

    examples = _examples()
    for route in routes():
        if route.name.startswith(("web:", "api:")) and not route.fixed and route.name not in LEFT_OUT:
            yield Address(route.path(examples), polls=route.name.endswith(POLLED))
    yield from (Address(path) for path in NARROWED)


def _examples() -> dict[str, Any]:
    from activities.models import Activity
    from execution.models import Execution, Limit, Worker, WorkerTask
    from schedules.models import Backfill, Occurrence, SharedCalendar, TaskTemplate
    from webhooks.models import Delivery, Endpoint
    from workflows.models import Event, Run

    ended = Execution.objects.filter(status="completed").latest("pk")
    newest = {
        "calendar": SharedCalendar,
        "template": TaskTemplate,
        "backfill": Backfill,
        "limit": Limit,
        "worker": Worker,
        "endpoint": Endpoint,
        "delivery": Delivery,
        "run": Run,
        "event": Event,
    }
    found = {kind: model._default_manager.order_by("-pk").first() for kind, model in newest.items()}
    return {kind: row.pk for kind, row in found.items() if row} | {
        "workflow": "switchboard",
        "topic": "calls",
        "schedule": ended.schedule_id,
        "execution": ended.pk,
        "activity": Activity.objects.filter(parent=ended.activity_id).latest("pk").pk,
        "occurrence": Occurrence.objects.latest("pk").pk,
        "task": WorkerTask.objects.filter(execution=None).latest("pk").key,
    }


def _client() -> Any:
    from django.contrib.auth.models import User
    from django.test import Client

    user, _ = User.objects.get_or_create(username="bench", is_superuser=True, is_staff=True)
    client = Client(headers={"Accept": "*/*"}, raise_request_exception=False, SERVER_NAME="127.0.0.1")
    client.force_login(user)
    return client


def _get(client: Any, path: str) -> tuple[Any, list[Query]]:
    from django.db import connection

    queries: list[Query] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        queries.append(Query(sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        answer = client.get(path)
        if answer.streaming:
            list(answer.streaming_content)
    return answer, queries


def _rows_gone_through(query: Query) -> int:
    """Return how many rows PostgreSQL expects to count, sort or hash for the answer."""
    from django.db import connection

    if not query.sql.lstrip().upper().startswith(("SELECT", "WITH")):
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {query.sql}", query.params)
        [(plans,)] = cursor.fetchall()
    return _most_rows(plans[0]["Plan"])


def _most_rows(plan: dict[str, Any]) -> int:
    below = plan.get("Plans", [])
    own = [part["Plan Rows"] for part in below] if plan["Node Type"] in AGGREGATING else []
    return max([0, *map(int, own), *map(_most_rows, below)])


if __name__ == "__main__":
    main()
