"""Looking changes nothing, markup is shown as text, and what another site sends is refused."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from activities.models import Activity, ActivityItem, OutputLine
from api.models import ApiToken
from database import clock
from execution.models import Limit, Reservation, Worker
from execution.models.adhoc import job_line
from operations.initiator import Initiator
from schedules.models import Backfill, Occurrence, Secret, SharedCalendar, TaskTemplate
from tests.addresses import routes, visitor
from tests.base import enqueue, everything, make_schedule, run_until_idle, start, step
from webhooks.models import Delivery, Endpoint
from workflows import Consumer, Prepared, Producer
from workflows import Workflow as Definition
from workflows.definition import Definitions
from workflows.deployment import deploy
from workflows.failures import Status, Stop, Tries
from workflows.models import Event, Handler, Run, Subscription, Topic, Workflow
from workflows.models.event import Publication

pytestmark = pytest.mark.django_db
MARKUP = "<script>alert(1)</script><b>x"
# What becomes of a page when nobody escaped it.
LIVE = re.compile(r"<script>alert|<b>x", re.IGNORECASE)


def test_looking_changes_nothing_and_shows_markup_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    examples = furnish(MARKUP)
    before, wrong = everything() | others(), []
    for route in routes():
        answer = client.get(route.path(examples))
        content = b"".join(answer) if answer.streaming else answer.content
        if answer.status_code >= 500 and route.name != "api:ready":  # which says so: no scheduler ticks here
            wrong.append(f"{route.label}: {answer.status_code}")
        is_page = answer.headers.get("Content-Type", "").startswith("text/html")
        if is_page and LIVE.search(content.decode()):
            wrong.append(f"{route.label} shows markup")
        if "no-store" not in answer.headers.get("Cache-Control", ""):
            wrong.append(f"{route.label} may be stored by a browser or a proxy")
    assert wrong == []
    static = client.head("/static/jim/jim.css")
    assert (static.status_code, "max-age" in static.headers["Cache-Control"]) == (200, True)
    assert "no-store" not in static.headers["Cache-Control"]
    assert everything() | others() == before


def test_what_is_sent_from_another_site_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ada = User.objects.create_superuser("ada")
    client = visitor(ada, monkeypatch, draws=False, enforce_csrf_checks=True)
    examples = furnish("plain")
    before = everything() | others()
    let_in = []
    for route in routes():
        json: dict[str, Any] = {"data": "{}", "content_type": "application/json"}
        answer = client.post(route.path(examples), **json if route.name.startswith("api:") else {})
        if answer.status_code not in (401, 403, 404, 405, 415):
            let_in.append(f"{route.label}: {answer.status_code}")
    assert let_in == []
    assert everything() | others() == before


def furnish(text: str) -> dict[str, Any]:
    """One of everything, with this text wherever a person or a step may write some; the keys of all of it."""
    now = clock.now()
    by = Initiator("user", "1", text)
    asked: dict[str, Any] = {"initiator": by, "now": now}
    closed = [{"dates": "2027-01-01"}]
    calendar = SharedCalendar.objects.define(f"Closed {text}", closed, **asked, description=text)
    config = {"function": "tests.work.noop", "isolation": "thread", "kwargs": {"a": text}}
    named: dict[str, Any] = {"name": f"Template {text}", "step_type": "python", "config": config}
    template = TaskTemplate.objects.define(**named, **asked)
    schedule = make_schedule(
        step(f"say {text}", 0, "result", kwargs={"value": text}),
        step("later", 1),
        name=f"Schedule {text}",
        description=text,
        tags=["tagged"],
        memo={"note": text},
        spec={"cron": ["0 3 * * *"], "exclude": [{"calendar": calendar.name}]},
        now=now - timedelta(days=3),
    )
    between: dict[str, Any] = {"start_at": now - timedelta(days=2), "end_at": now}
    backfill = Backfill.objects.ask(schedule, **between, which="all", **asked)
    limit = Limit.objects.define("resource:crm", 3, **asked, note=text)
    [task] = enqueue(step(f"job {text}"), now=now + timedelta(hours=1))
    ended = start(step("fails", 0, "fail", kwargs={"message": text}), name=f"Failing {text}", now=now)
    run_until_idle(now=now)
    start(step(f"slow {text}"), name=f"Running {text}", now=now)
    schedule.refresh_from_db()
    schedule.pause(**asked, note=text)
    hook: dict[str, Any] = {"name": f"Endpoint {text}", "kinds": ["execution.failed"]}
    hook |= {"url": "https://example.com/hook", "description": text}
    endpoint, _ = Endpoint.objects.define(**hook, **asked)
    ada = User.objects.get(username="ada")
    token, _ = ApiToken.objects.issue(name=text, scopes=["view"], user=ada, **asked)
    attempt = Activity.objects.filter(parent=ended.activity_id)[0]
    about = {"name": text, "message": text, "external_id": text, "data": {text: [text, None], "line": 17}}
    about |= {"outcome": "failed", "change": "updated", "error_type": "bad_value"}
    ActivityItem.objects.create(activity=attempt, created_at=now, **about)
    OutputLine.objects.create(activity=attempt, number=900, stream="stdout", text=text, written_at=now)
    occurrence = Occurrence.objects.filter(schedule=schedule).first()
    rows: dict[str, Any] = {"schedule": schedule, "calendar": calendar, "template": template, "limit": limit}
    rows |= {"backfill": backfill, "execution": ended, "activity": attempt, "worker": Worker.objects.all()[0]}
    rows |= {"task-row": task, "endpoint": endpoint, "webhook": endpoint, "token": token}
    rows |= {"delivery": endpoint.test(**asked)}
    secret = Secret.objects.define("smtp", "correct horse", description=text, **asked)
    seat = Reservation.objects.reserve(job_line(step(pool="ldap"), now=now), holder=text, now=now)
    assert seat is not None
    others = {
        "secret": secret.name,
        "reservation": seat.pk,
        "task": task.key,
        "occurrence": occurrence.pk if occurrence else 0,
    }
    return {name: row.pk for name, row in rows.items()} | others | furnish_workflow(text, by=by, now=now)


def furnish_workflow(text: str, *, by: Initiator, now: datetime) -> dict[str, Any]:
    """With a run that is stuck at one of its events."""

    class Look(Producer):
        title, every, publishes, version = text[:20], "5m", ["mail"], text

        def produce(self, ctx: Any) -> None: ...

    class Sort(Consumer):
        title, subscribe, version = text[:20], ["mail"], text

        def prepare(self, ctx: Any) -> None: ...

    fields = {"slug": "inbox", "title": text, "description": text, "topics": {"mail": text}}
    inbox = type("Inbox", (Definition,), {**fields, "producers": [Look], "consumers": [Sort]})
    deploy(Definitions.of([inbox]), initiator=by, now=now)
    Topic.objects.publish([Publication.of("mail", f"{text}{n}", {"a": text}, text) for n in "12"], now=now)
    event = Event.objects.earliest("pk")
    Handler.objects.update(state={"cursor": text})
    run = Run.objects.open().filter(workflow__slug="inbox").first() or Run.objects.begin(
        Handler.objects.get(name="Sort"), now=now
    )
    run.start(now)
    run.reach_prepared(Prepared([event.as_pending()], {"a": text}, title=text), now=now)
    run.stop(Stop(Status.PAUSED_APPROVAL, None, Tries()), f"{text} may not\n{text}", now=now)
    run.retry(text, initiator=by, now=now + timedelta(hours=1))
    found = {"workflow": "inbox", "workflow-row": run.workflow_id, "topic": "mail", "event": event.pk}
    return found | {"run": run.pk, "handler": run.handler_id}


def others() -> dict[str, list[dict[str, Any]]]:
    kept: list[Any] = [Endpoint, Delivery, ApiToken, User]
    kept += [Workflow, Handler, Subscription, Topic, Event, Run]
    return {model.__name__: list(model._default_manager.order_by("pk").values()) for model in kept}
