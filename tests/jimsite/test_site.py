"""The admin: its index, and what is not there."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.urls import reverse

from schedules.models import Schedule
from tests.addresses import visitor
from tests.admin_pages import page, sign_in
from tests.base import (
    make_schedule,
    make_worker,
    start,
)

pytestmark = pytest.mark.django_db
OURS = ("schedules", "execution", "activities")
ODD_KEYS = ("999999", "abc", "9223372036854775808", "0", "-1", "1e3", "%00")


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


def test_the_index_shows_what_runs_and_what_needs_a_look_and_nobody_what_they_may_not_see() -> None:
    execution = start()
    make_worker()
    make_schedule()
    Schedule.objects.filter(executions=None).update(last_outcome="failed")
    text = sign_in().get(page("index")).content.decode()
    assert page("execution_execution_change", execution.pk) in text
    assert "Needs a look" in text
    assert "1 alive" in text
    names = ("Schedules", "Executions", "Queue", "Activities", "Users")
    places = [text.index(f">{name}</a>") for name in names]
    assert places == sorted(places)
    text = sign_in("nobody").get(page("index")).content.decode()
    assert "Running now" not in text
    assert "alive" not in text
