"""What every part of a page that asks again and again costs those who are no superusers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from activities import clock
from activities.models import Activity
from execution.models import Execution, Worker
from jimsite import demo_installation
from schedules.models import Backfill
from webhooks.models import Delivery

pytestmark = pytest.mark.django_db
MOST = 5
# Four kinds of things that somebody should look at, for those who may see all of them.
MOST_OF = {"home-attention": 6}
# Why each task waits is found out only when one has moved, and every quarter of a minute.
MOST_WITH_NEWS = {"queue": 11}
PAGES = ("/", "/schedules", "/executions", "/queue", "/workers", "/limits")
POLLING = {
    *("home-pulse", "home-attention", "home-running", "home-upcoming"),
    *("schedules-rows", "schedule-now", "backfill-progress", "queue"),
    *("executions", "execution-live", "execution-output", "activity-live", "activity-output"),
    *("workers-now", "worker-now", "limits-now"),
}
POLL = re.compile(r"<\w+[^>]*\bdata-poll\b[^>]*>")


def member(role: str) -> Client:
    user = User.objects.create_user(role)
    user.groups.add(Group.objects.get(name=role))
    # One of their own as well: both ways to have a permission cost something.
    user.user_permissions.add(Permission.objects.get(codename="view_apitoken"))
    client = Client()
    client.force_login(user)
    return client


def pages(role: str) -> Iterator[str]:
    """All that poll, each with something that goes on."""
    yield from PAGES
    if role == "Operator":
        yield Delivery.objects.filter(status="pending")[0].get_absolute_url()
    execution = Execution.objects.in_progress().filter(schedule__isnull=False).latest("pk")
    step = Activity.objects.filter(parent=execution.activity, status="in_progress").latest("pk")
    assert execution.schedule is not None
    yield from (row.get_absolute_url() for row in (execution, execution.schedule, step))
    yield f"{execution.get_absolute_url()}?tab=output"
    yield Backfill.objects.latest("pk").get_absolute_url()
    yield Worker.objects.alive()[0].get_absolute_url()


def polls(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Of each part that polls its address, what it says, and its id."""
    for tag in POLL.findall(text):
        found = {name: _attribute(tag, name) for name in ("hx-get", "hx-vals", "id")}
        yield found["hx-get"], json.loads(found["hx-vals"] or "{}"), found["id"]


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf"""\b{name}=("([^"]*)"|'([^']*)')""", tag)
    return html.unescape(found[2] or found[3] or "") if found else ""


def ask(client: Client, url: str, given: dict[str, Any], part: str) -> tuple[int, int]:
    """The status of the answer, and how many queries it took."""
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/", "HX-Target": part}
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(f"{url}{'&' if '?' in url else '?'}{urlencode(given)}", headers=headers)
    return answer.status_code, len(asked)


@pytest.mark.parametrize("role", ["Viewer", "Operator"])
def test_no_poll_costs_an_ordinary_user_more_than_five_queries(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No quarter of a minute ends between a page and its poll.
    monkeypatch.setattr("web.views.queue.REASONS_SECONDS", 10**12)
    demo_installation.create(now=clock.now(), days=2, owner=User.objects.create_superuser("ada"))
    client, found, dear = member(role), set(), []
    for page in pages(role):
        shown = client.get(page)
        assert shown.status_code == 200, page
        for url, given, part in polls(shown.text):
            name = str(resolve(url.partition("?")[0]).url_name)
            found.add(name)
            for is_news in (False, True):
                status, count = ask(client, url, given | ({"version": "another"} if is_news else {}), part)
                assert status in (200, 204), (url, status)
                most = (MOST_OF | MOST_WITH_NEWS if is_news else MOST_OF).get(name, MOST)
                if count > most:
                    dear.append(f"{name}{' with news' if is_news else ''}: {count}")
    assert found == POLLING | ({"delivery-now"} if role == "Operator" else set())
    assert dear == []
