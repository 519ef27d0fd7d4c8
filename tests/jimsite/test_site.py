"""Every page of the admin that is JIM's own: who gets it, and that looking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from activities.models import Activity
from execution.models import Limit, Reservation, Worker, WorkerTask
from schedules.models import Backfill, Occurrence, Schedule, Secret, SharedCalendar
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
OF_ALL = ("changelist", "add", "pause_all", "resume_all")
# What a viewer gets; what is not named here is a page that nobody thought about.
VIEWER = {
    "schedules_schedule_changelist": 200,
    "schedules_schedule_add": 403,
    "schedules_schedule_change": 200,
    "schedules_schedule_history": 302,
    "schedules_schedule_delete": 302,
    "schedules_schedule_do": 403,
    "schedules_schedule_pause_all": 403,
    "schedules_schedule_resume_all": 403,
    "schedules_schedule_why": 200,
    "schedules_schedule_revisions": 200,
    "schedules_backfill_changelist": 200,
    "schedules_backfill_add": 403,
    "schedules_backfill_change": 200,
    "schedules_backfill_history": 404,
    "schedules_backfill_delete": 403,
    "schedules_backfill_do": 403,
    "schedules_sharedcalendar_changelist": 200,
    "schedules_sharedcalendar_add": 403,
    "schedules_sharedcalendar_change": 200,
    "schedules_sharedcalendar_history": 302,
    "schedules_sharedcalendar_delete": 302,
    "schedules_sharedcalendar_do": 404,
    "schedules_tasktemplate_changelist": 200,
    "schedules_tasktemplate_add": 403,
    "schedules_tasktemplate_change": 200,
    "schedules_tasktemplate_history": 302,
    "schedules_tasktemplate_delete": 403,
    "schedules_tasktemplate_do": 404,
    "schedules_occurrence_changelist": 200,
    "schedules_occurrence_add": 403,
    "schedules_occurrence_change": 200,
    "schedules_occurrence_history": 404,
    "schedules_occurrence_delete": 403,
    "schedules_secret_changelist": 403,
    "schedules_secret_add": 403,
    "schedules_secret_change": 403,
    "schedules_secret_history": 403,
    "schedules_secret_delete": 302,
    "schedules_secret_do": 404,
    "execution_execution_changelist": 200,
    "execution_execution_add": 403,
    "execution_execution_change": 200,
    "execution_execution_history": 404,
    "execution_execution_delete": 403,
    "execution_execution_do": 403,
    "execution_workertask_changelist": 200,
    "execution_workertask_add": 403,
    "execution_workertask_change": 200,
    "execution_workertask_history": 404,
    "execution_workertask_delete": 403,
    "execution_workertask_do": 403,
    "execution_limit_changelist": 200,
    "execution_limit_add": 403,
    "execution_limit_change": 200,
    "execution_limit_history": 302,
    "execution_limit_delete": 302,
    "execution_limit_do": 404,
    "execution_worker_changelist": 200,
    "execution_worker_add": 403,
    "execution_worker_change": 200,
    "execution_worker_history": 404,
    "execution_worker_delete": 403,
    "execution_reservation_changelist": 200,
    "execution_reservation_add": 403,
    "execution_reservation_change": 200,
    "execution_reservation_history": 404,
    "execution_reservation_delete": 403,
    "execution_reservation_do": 404,
    "activities_activity_changelist": 200,
    "activities_activity_add": 403,
    "activities_activity_change": 200,
    "activities_activity_history": 404,
    "activities_activity_delete": 403,
    "activities_activity_output": 200,
    "activities_activity_do": 403,
}


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


def routes() -> Iterator[str]:
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label in ("schedules", "execution", "activities"):
            yield from (str(url.name) for url in model_admin.get_urls() if url.name)


def url_of(route: str, rows: dict[str, object]) -> str:
    _, model, what = route.split("_", 2)
    if what == "do":
        verb = "retry" if model == "activity" else "cancel"
        return f"{page(route, verb)}?id={rows[model]}"
    return page(route, *([] if what in OF_ALL else [rows[model]]))


def test_every_page_is_in_the_table() -> None:
    assert set(routes()) == set(VIEWER)


@pytest.mark.parametrize(("route", "status"), VIEWER.items())
def test_a_viewer_sees_and_changes_nothing(route: str, status: int, rows: dict[str, object]) -> None:
    client = sign_in("viewer")
    before = everything()
    assert client.get(url_of(route, rows)).status_code == status
    assert client.post(url_of(route, rows)).status_code in (200, 302, 403, 404, 405)
    assert everything() == before


@pytest.mark.parametrize("route", VIEWER)
def test_others_see_nothing(route: str, rows: dict[str, object]) -> None:
    url = url_of(route, rows)
    assert sign_in("nobody").get(url).status_code in (302 if route.endswith("_delete") else 403, 403, 404)
    response = Client().get(url)
    assert response.status_code == 302
    assert response["Location"].startswith(reverse("admin:login"))


@pytest.mark.parametrize("route", VIEWER)
def test_looking_changes_nothing_even_for_those_who_may(route: str, rows: dict[str, object]) -> None:
    client = sign_in()
    before = everything()
    for method in ("GET", "HEAD"):
        assert client.generic(method, url_of(route, rows)).status_code in (200, 302, 403, 404), method
    assert everything() == before


@pytest.mark.parametrize(
    "route", [route for route in VIEWER if route.endswith(("_change", "_do", "_output"))]
)
def test_what_is_not_there_is_not_found(route: str) -> None:
    client = sign_in()
    asks = route.endswith("_do")
    for key in ("999999", "abc", "9223372036854775808", "0", "-1", "1e3", "%00"):
        url = f"{page(route, 'cancel')}?id={key}" if asks else page(route, 1).replace("/1/", f"/{key}/")
        assert client.get(url, follow=True).status_code == 404, key


ODD_QUESTIONS = (
    "p=-1",
    "p=abc",
    "p=99999999999999999999999",
    "o=99",
    "o=1.-2",
    "all=",
    "unknown=1",
    "status__exact=unknown",
    "schedule__id__exact=abc",
    "schedule__id__exact=99999999999999999999999",
    "id__in=1,x",
    "q=%00",
    "q=" + "x" * 5000,
    "state=unknown",
)


@pytest.mark.parametrize("route", [route for route in VIEWER if route.endswith("_changelist")])
def test_odd_questions_to_a_list_get_an_answer(route: str, rows: dict[str, object]) -> None:
    client = sign_in()
    for query in ODD_QUESTIONS:
        assert client.get(f"{page(route)}?{query}").status_code in (200, 302, 400), query


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
