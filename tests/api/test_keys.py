"""A request with an Idempotency-Key is carried out once, wherever `kill -9` or a full disk ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from django.apps import apps
from django.db import OperationalError, connection
from drf_spectacular.generators import SchemaGenerator

from database import clock
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.models import Execution, WorkerTask
from jimsite.roles import give_permissions
from schedules.models import Backfill, Schedule
from tests.api.calling import Caller
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    enqueue,
    make_schedule,
    make_template,
    make_worker,
    start,
    step,
)
from tests.killing import kept_state, kill_at
from tests.webhooks.base import make_delivery, make_endpoint
from tests.workflows.base import make_topics
from tests.workflows.orders import orders, stuck
from webhooks.models import Delivery
from workflows import AuthRequired, Indeterminate, Transient
from workflows.models import Workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    # Of Python 3.12 and newer: the threads of the process that runs the tests hold nothing that is needed.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]

AN_HOUR = timedelta(hours=1)
JOB: dict[str, Any] = {"name": "Load", "step_type": "python", "config": {"function": "tests.work.noop"}}
OTHER_APPS = ("api", "webhooks", "workflows")
Asked = tuple[str, dict[str, Any]]


def new_schedule() -> Asked:
    return "schedules", {"name": "New", "spec": {"every": ["1h"]}, "steps": [JOB]}


def manual_run() -> Asked:
    return f"schedules/{make_schedule(overlap='allow_all').pk}/run", {}


def backfill() -> Asked:
    hourly = make_schedule(spec={"every": ["1h"]}, paused=True)
    times = {"start_at": (NOW - 3 * AN_HOUR).isoformat(), "end_at": NOW.isoformat()}
    return f"schedules/{hourly.pk}/backfills", times


def group_retry() -> Asked:
    group = Execution.objects.submit("Group", [step(max_retries=0)], initiator=SOMEBODY, now=NOW)
    return f"executions/{_failed(group).pk}/retry", {}


def scheduled_retry() -> Asked:
    return f"executions/{_failed(start(step(max_retries=0), overlap='allow_all')).pk}/retry", {}


def _failed(execution: Execution) -> Execution:
    worker = make_worker()
    break_down(worker, *claim(worker))
    return execution


def job_retry(path: str, field: str) -> Asked:
    [task] = enqueue(step(max_retries=0))
    worker = make_worker()
    break_down(worker, *claim(worker))
    return path.format(getattr(task, field)), {}


def workflow_run() -> Asked:
    worker = make_worker()
    Workflow.objects.get().start(NOW)
    end(worker, *claim(worker))
    return "workflows/orders/run", {}


def way_out(action: str, error: Exception, **body: Any) -> Asked:
    return f"runs/{stuck(error).pk}/{action}", body


def events() -> Asked:
    make_topics("mail")
    return "topics/mail/events", {"message_id": "a", "title": "A", "payload": {}}


def redelivery() -> Asked:
    delivery = make_delivery(make_endpoint())
    Delivery.objects.filter(pk=delivery.pk).update(status=Delivery.Status.FAILED, ended_at=NOW)
    return f"deliveries/{delivery.pk}/redeliver", {}


# By route: what is there before, and what is asked for.
ROUTES: dict[str, list[Callable[[], Asked]]] = {
    "limits": [lambda: ("limits", {"key": "global", "size": 2})],
    "calendars": [lambda: ("calendars", {"name": "Off", "excluded": [{"dates": "2026-12-25"}]})],
    "templates": [lambda: ("templates", JOB)],
    "secrets": [lambda: ("secrets", {"name": "smtp", "value": "correct horse"})],
    "templates/{id}/run": [lambda: (f"templates/{make_template().pk}/run", {})],
    "schedules": [new_schedule],
    "schedules/import": [lambda: ("schedules/import", {"version": 1, "schedules": [new_schedule()[1]]})],
    "schedules/{id}/run": [manual_run],
    "schedules/{schedule_id}/backfills": [backfill],
    "executions": [lambda: ("executions", {"name": "Group", "steps": [JOB], "mode": "sequential"})],
    "executions/{id}/retry": [scheduled_retry, group_retry],
    "tasks": [
        lambda: ("tasks", JOB),
        lambda: ("tasks", JOB | {"dedup_key": "twin"}),
    ],
    "tasks/batch": [lambda: ("tasks/batch", {"jobs": [JOB, JOB]})],
    "tasks/{id}/retry": [partial(job_retry, "tasks/{}/retry", "key")],
    "activities/{id}/retry": [partial(job_retry, "activities/{}/retry", "activity_id")],
    "topics/{topic}/events": [events],
    "workflows/{slug}/run": [workflow_run],
    "runs/{id}/approve": [partial(way_out, "approve", AuthRequired("?"))],
    "runs/{id}/reject": [partial(way_out, "reject", AuthRequired("?"))],
    "runs/{id}/reconcile": [partial(way_out, "reconcile", Indeterminate("?"), happened=True)],
    "runs/{id}/skip": [partial(way_out, "skip", Transient("?"))],
    "runs/{id}/retry": [partial(way_out, "retry", Transient("?"))],
    "webhooks/{id}/test": [lambda: (f"webhooks/{make_endpoint().pk}/test", {})],
    "deliveries/{id}/redeliver": [redelivery],
}
REQUESTS = [
    pytest.param(route, arrange, id=f"{route}-{number}")
    for route, requests in ROUTES.items()
    for number, arrange in enumerate(requests)
]


# Only commits can leave something behind; `make test-all` tries every other statement too.
EVERYWHERE = pytest.mark.parametrize(
    "any_statement",
    [
        pytest.param(False, id="at any commit"),
        pytest.param(True, id="at any statement", marks=pytest.mark.long),
    ],
)


class Time:
    def __init__(self) -> None:
        self.now: datetime = NOW


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    moment = Time()
    monkeypatch.setattr(clock, "now", lambda: moment.now)
    return moment


@pytest.fixture
def api(time: Time) -> Caller:
    give_permissions()
    return Caller()


def test_every_route_that_takes_a_key_is_tried() -> None:
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    declared = {
        path.removeprefix("/api/v1/").strip("/")
        for path, methods in schema["paths"].items()
        for each in methods.get("post", {}).get("parameters", ())
        if each["name"] == "Idempotency-Key"
    }
    assert declared == set(ROUTES)


@pytest.fixture
def workflows() -> Iterator[None]:
    with orders():
        yield


@pytest.mark.usefixtures("workflows")
@pytest.mark.parametrize(("route", "arrange"), REQUESTS)
class TestEachRoute:
    @EVERYWHERE
    def test_killed_before_it_answered(
        self, route: str, arrange: Callable[[], Asked], any_statement: bool, api: Caller, time: Time
    ) -> None:
        path, body = arrange()
        call = partial(api.post, path, body, idempotency_key="k")
        with kept_state(*OTHER_APPS) as restore:
            untouched = rows()
            assert call().status_code in (200, 201, 202), route
            done = rows_at_rest(time)
            restore()
            for place in count(1):
                death = kill_at(place, call, any_statement=any_statement)
                if death.was_killed and rows() == untouched:
                    continue
                time.now = NOW + AN_HOUR
                again, once_more = call(), call()
                time.now = NOW
                assert rows_at_rest(time) == done, (place, death)
                assert (again.status_code, again.json()) == (once_more.status_code, once_more.json())
                assert again.status_code in (200, 201, 202), (place, death)
                if not death.was_killed:
                    assert again["Idempotent-Replayed"] == "true"
                    return
                restore()

    def test_an_answer_that_cannot_be_kept(
        self, route: str, arrange: Callable[[], Asked], api: Caller, time: Time
    ) -> None:
        path, body = arrange()
        before = rows()
        with connection.execute_wrapper(full_disk):
            refused = api.post(path, body, idempotency_key="k")
        assert (refused.status_code, rows()) == (503, before)
        time.now = NOW + AN_HOUR
        first, again = (api.post(path, body, idempotency_key="k") for _ in range(2))
        assert first.status_code in (200, 201, 202)
        assert ("Idempotent-Replayed" in first, again["Idempotent-Replayed"]) == (False, "true")
        assert (again.json(), again.get("Location")) == (first.json(), first.get("Location"))


def test_times_of_a_backfill_are_counted_before_its_transaction(
    api: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite lets nothing else be written meanwhile; and a repeat counts nothing."""
    path, body = backfill()
    inside: list[bool] = []
    survey = Backfill.survey

    def spied(self: Backfill, *, limit: int) -> Any:
        inside.append(connection.in_atomic_block)
        return survey(self, limit=limit)

    monkeypatch.setattr(Backfill, "survey", spied)
    first, again = (api.post(path, body | {"which": "missing"}, idempotency_key="k") for _ in range(2))
    assert (first.status_code, again.json(), inside) == (202, first.json(), [False])


def full_disk(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
    if sql.startswith('UPDATE "api_keyedanswer"'):
        raise OperationalError("database or disk is full")
    return execute(sql, *arguments)


def rows() -> dict[str, int]:
    """How many there are; a token also notes when it was used."""
    models = [
        model
        for app in ("activities", "schedules", "execution", *OTHER_APPS)
        for model in apps.get_app_config(app).get_models(include_auto_created=True)
    ]
    return {model._meta.label: model._default_manager.count() for model in models}


def rows_at_rest(time: Time) -> dict[str, int]:
    """After a scheduler has done what the dead process left to it."""
    tick(time.now)
    return rows()


class TestVerbsWithKeys:
    """Those that Python and commands call: the key is stored with what it made."""

    BY: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW}
    CALLS: dict[str, Callable[[], object]] = {
        "a job": lambda: WorkerTask.objects.enqueue(
            [step() | {"idempotency_key": "k"}], **TestVerbsWithKeys.BY
        ),
        "several jobs": lambda: WorkerTask.objects.enqueue(
            [step() | {"idempotency_key": key} for key in "kl"], **TestVerbsWithKeys.BY
        ),
        "a job with a twin": lambda: WorkerTask.objects.enqueue(
            [step() | {"dedup_key": "k", "idempotency_key": "k"}], **TestVerbsWithKeys.BY
        ),
        "a run": lambda: trigger(Schedule.objects.get(), key="k", **TestVerbsWithKeys.BY).pk,
        "a retry": lambda: _pk(Execution.objects.earliest("pk").retry(key="k", **TestVerbsWithKeys.BY)),
        "a retry of a group": lambda: _pk(
            Execution.objects.get(schedule=None, retry_of=None).retry(key="k", **TestVerbsWithKeys.BY)
        ),
    }

    @EVERYWHERE
    @pytest.mark.parametrize("name", CALLS)
    def test_killed_before_it_returned(self, name: str, any_statement: bool, time: Time) -> None:
        scheduled_retry(), group_retry()
        call = self.CALLS[name]
        with kept_state() as restore:
            untouched = rows()
            call()
            done = rows()
            restore()
            for place in count(1):
                death = kill_at(place, call, any_statement=any_statement)
                assert rows() in (untouched, done), (place, death)
                assert call() == call()
                assert rows() == done, (place, death)
                restore()
                if not death.was_killed:
                    return


def _pk(execution: Execution | None) -> int:
    assert execution is not None
    return execution.pk
