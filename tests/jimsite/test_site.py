"""Every page of the admin that is JIM's own: what a viewer gets, and what is not there."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.urls import reverse

from activities.models import Activity
from execution.models import Limit, Reservation, Worker, WorkerTask
from schedules.models import Backfill, Occurrence, Schedule, Secret, SharedCalendar
from tests.addresses import visitor
from tests.admin_pages import page, sign_in
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    everything,
    make_schedule,
    make_template,
    make_worker,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db
OURS = ("schedules", "execution", "activities")
OF_ALL = ("changelist", "add", "pause_all", "resume_all")
ODD_KEYS = ("999999", "abc", "9223372036854775808", "0", "-1", "1e3", "%00")
# What a viewer gets instead of a page (200 with something to look at) or a refusal (403).
LOOKS_AT = ("changelist", "change", "why", "revisions", "output")
LED_ELSEWHERE = {
    *("schedules_schedule_history", "schedules_schedule_delete", "schedules_secret_delete"),
    *("schedules_sharedcalendar_history", "schedules_sharedcalendar_delete"),
    *("schedules_tasktemplate_history", "execution_limit_history", "execution_limit_delete"),
}
# Their history is in their activities, and there is no operation “cancel” of these.
MISSING = {
    *(f"schedules_{model}_history" for model in ("backfill", "occurrence")),
    *(f"execution_{model}_history" for model in ("execution", "workertask", "worker", "reservation")),
    "activities_activity_history",
    *(f"schedules_{model}_do" for model in ("sharedcalendar", "tasktemplate", "secret")),
    *(f"execution_{model}_do" for model in ("limit", "reservation")),
}


def for_a_viewer(route: str) -> int:
    _, model, what = route.split("_", 2)
    if route in LED_ELSEWHERE:
        return 302
    if route in MISSING:
        return 404
    return 200 if what in LOOKS_AT and model != "secret" else 403


@pytest.fixture
def rows() -> dict[str, object]:
    """One row of each model, so that every page has something to show."""
    execution = start(step("a"), step("b", 1))
    claim(make_worker())
    make_schedule()
    calendar = SharedCalendar.objects.define("Closed", [{"dates": "2026-12-25"}], initiator=SOMEBODY, now=NOW)
    backfill = Backfill.objects.ask(
        make_schedule(spec={"every": ["1h"]}),
        start_at=NOW - seconds(7_200),
        end_at=NOW,
        initiator=SOMEBODY,
        now=NOW,
    )
    secret = Secret.objects.put("token", "a value", initiator=SOMEBODY, now=NOW)
    reservation = Reservation.objects.create(
        pool="default", holder="here:1", created_at=NOW, lease_until=NOW + seconds(60)
    )
    limit = Limit.objects.define("type:sql", 2, initiator=SOMEBODY, now=NOW)
    return {
        "limit": limit.pk,
        "schedule": execution.schedule_id,
        "execution": execution.pk,
        "occurrence": Occurrence.objects.get().pk,
        "workertask": WorkerTask.objects.order_by("pk")[0].pk,
        "worker": Worker.objects.get().pk,
        "reservation": reservation.pk,
        "secret": secret.pk,
        "sharedcalendar": calendar.pk,
        "tasktemplate": make_template().pk,
        "backfill": backfill.pk,
        "activity": Activity.objects.order_by("pk")[0].pk,
    }


def routes() -> list[str]:
    assert reverse("admin:index"), "The admin is loaded with the addresses."
    found = [
        str(url.name)
        for model, model_admin in admin.site._registry.items()
        if model._meta.app_label in OURS
        for url in model_admin.get_urls()
        if url.name
    ]
    assert len(found) >= 75
    return found


def url_of(route: str, rows: dict[str, object]) -> str:
    _, model, what = route.split("_", 2)
    if what == "do":
        verb = "retry" if model == "activity" else "cancel"
        return f"{page(route, verb)}?id={rows[model]}"
    return page(route, *([] if what in OF_ALL else [rows[model]]))


def test_a_viewer_sees_and_changes_nothing(rows: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in("viewer")
    client = visitor(User.objects.get(username="viewer"), monkeypatch, draws=False)
    before, wrong = everything(), []
    for route in routes():
        url = url_of(route, rows)
        if (status := client.get(url).status_code) != for_a_viewer(route):
            wrong.append((route, status))
        if (status := client.post(url).status_code) not in (200, 302, 403, 404, 405):
            wrong.append((f"{route} POST", status))
    assert wrong == []
    assert everything() == before


def test_what_is_not_there_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch, draws=False)
    wrong = []
    for route in routes():
        if not route.endswith(("_change", "_do", "_output")):
            continue
        # Every key at pages of each kind, and a few at those that are like them.
        is_first = route.startswith(("schedules_schedule_", "activities_"))
        url = f"{page(route, 'cancel')}?id=KEY" if route.endswith("_do") else page(route, 1)
        for key in ODD_KEYS if is_first else ODD_KEYS[:2]:
            asked = url.replace("/1/", f"/{key}/").replace("KEY", key)
            if (status := client.get(asked, follow=True).status_code) != 404:
                wrong.append((asked, status))
    assert wrong == []


def test_the_index_shows_what_runs_and_what_needs_a_look(rows: dict[str, object]) -> None:
    Schedule.objects.filter(executions=None).update(last_outcome="failed")
    text = sign_in().get(page("index")).content.decode()
    assert page("execution_execution_change", rows["execution"]) in text
    assert "Needs a look" in text
    assert "1 alive" in text
    names = ("Schedules", "Executions", "Queue", "Activities", "Users")
    places = [text.index(f">{name}</a>") for name in names]
    assert places == sorted(places)


def test_the_index_shows_nobody_what_they_may_not_see(rows: dict[str, object]) -> None:
    text = sign_in("nobody").get(page("index")).content.decode()
    assert "Running now" not in text
    assert "alive" not in text
