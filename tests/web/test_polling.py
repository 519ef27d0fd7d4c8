"""What every part of a page that asks again and again costs those who look at it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from activities.models import Activity
from database import clock
from execution.models import Execution, Worker, WorkerTask
from schedules.models import Backfill
from tests.installation import installation
from webhooks.models import Delivery
from workflows.models import Run
from workflows.steps import HandlerStep

pytestmark = pytest.mark.django_db
MOST = 5
POLL = re.compile(r"<\w+[^>]*\bdata-poll\b[^>]*>")
TEMPLATES = Path(settings.BASE_DIR) / "templates"
# Those that poll, wherever they are: whoever adds one names a page below that has it.
POLLING = {
    str(path.relative_to(TEMPLATES))
    for path in TEMPLATES.rglob("*.html")
    if re.search(r"<[^>]*\bdata-poll\b", path.read_text())
}
HIDDEN_FROM = {"Viewer": {"web/_delivery.html"}}
LISTS = (
    *(
        "/",
        "/schedules",
        "/schedules?q=a&tag=hr&state=all",
        "/executions",
        "/activities",
        "/executions?state=in_progress",
    ),
    *("/queue", "/queue?state=queued&pool=default", "/queue?state=waiting", "/workers", "/limits"),
    *("/workflows", "/workflows/orders", "/workflows/invoices", "/workflows/attachments"),
    *("/workflows/orders/runs", "/workflows/orders/runs?status=committed&handler=Pack"),
    *("/topics", "/topics/orders", "/topics/orders?status=pending", "/topics/orders?q=order"),
    *("/topics/orders?q=order-20-1&status=consumed", "/topics/orders?q=order-240-1"),
)


def member(role: str) -> Client:
    user = User.objects.create_user(role, is_superuser=role == "superuser")
    # One of their own as well: both ways to have a permission cost something.
    user.user_permissions.add(Permission.objects.get(codename="view_apitoken"))
    user.groups.set(Group.objects.filter(name=role))
    client = Client()
    client.force_login(user)
    return client


def pages(role: str, now: datetime) -> Iterator[str]:
    """All that poll, each with something that goes on."""
    yield from LISTS
    if role != "Viewer":
        yield Delivery.objects.filter(status="pending")[0].get_absolute_url()
    execution = Execution.objects.in_progress().filter(schedule__isnull=False).latest("pk")
    assert execution.schedule is not None
    yield from (row.get_absolute_url() for row in (execution, execution.schedule))
    yield f"{execution.get_absolute_url()}?tab=output"
    between = f"since={now - timedelta(days=9):%Y-%m-%dT%H:%M}&until={now:%Y-%m-%dT%H:%M}"
    yield f"/executions?q=a&schedule={execution.schedule.pk}&{between}"
    yield from (step.get_absolute_url() for step in _steps())
    yield from (run.get_absolute_url() for run in Run.objects.open())
    yield Backfill.objects.latest("pk").get_absolute_url()
    yield Worker.objects.alive()[0].get_absolute_url()


def _steps() -> Iterator[Activity]:
    """One that runs, one that is a run of a handler, and one of each kind that waits."""
    steps = Activity.objects.filter(task_key__isnull=False)
    yield steps.filter(status="in_progress", parent__isnull=False).latest("pk")
    yield steps.filter(status__in=Activity.OPEN, target_type=HandlerStep.name).latest("pk")
    for is_like in ({"status": "waiting"}, {"status": "queued", "is_delayed": False}, {"is_delayed": True}):
        task = WorkerTask.objects.filter(**is_like).latest("pk")
        yield steps.get(pk=task.activity_id)


def polls(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Of each part that polls its address, what it says, and its id."""
    for tag in POLL.findall(text):
        found = {name: _attribute(tag, name) for name in ("hx-get", "hx-vals", "id")}
        yield found["hx-get"], json.loads(found["hx-vals"] or "{}"), found["id"]


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf"""\b{name}=("([^"]*)"|'([^']*)')""", tag)
    return html.unescape(found[2] or found[3] or "") if found else ""


def ask(client: Client, url: str, given: dict[str, Any], part: str) -> tuple[Any, list[str]]:
    """The answer, and the queries that it took."""
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/", "HX-Target": part}
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(f"{url}{'&' if '?' in url else '?'}{urlencode(given)}", headers=headers)
    return answer, [query["sql"] for query in asked]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No quarter of a minute ends between a page and its poll; and nobody looks back to the beginning."""
    for view in ("queue", "activities", "execution"):
        monkeypatch.setattr(f"web.views.{view}.REASONS_SECONDS", 10**12)
    monkeypatch.setattr("web.views.workflows.WORDS_SECONDS", 10**12)
    for view in ("executions", "runs", "topics"):
        monkeypatch.setattr(f"web.views.{view}.REACH", 3)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "role", ["Operator", *(pytest.param(role, marks=pytest.mark.long) for role in ("Viewer", "superuser"))]
)
def test_no_poll_takes_more_than_five_queries_with_or_without_news(role: str) -> None:
    now = clock.now()
    installation.create(now=now, days=2, owner=User.objects.create_superuser("ada"))
    client, seen, dear = member(role), set[str](), list[str]()
    for page in pages(role, now):
        shown = client.get(page)
        assert shown.status_code == 200, page
        found = list(polls(shown.text))
        assert found, f"{page} does not poll."
        for url, given, part in found:
            name = str(resolve(url.partition("?")[0]).url_name)
            answer, asked = ask(client, url, given, part)
            dear += [f"{name} of {page}:", *asked] if len(asked) > MOST else []
            assert answer.status_code in (200, 204), (url, answer.status_code)
            answer, asked = ask(client, url, dict.fromkeys(given, "another"), part)
            dear += [f"{name} of {page}, with news:", *asked] if len(asked) > MOST else []
            # What waits has written nothing, however often it is asked for all.
            assert answer.status_code == 200 or "after" in given, (url, answer.status_code)
            seen |= {template.name for template in answer.templates}
    assert dear == []
    assert seen & POLLING == POLLING - HIDDEN_FROM.get(role, set())
