"""The admin: its index, and what is not there."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from database import clock
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
    make_worker(clock.now())
    make_schedule()
    Schedule.objects.filter(executions=None).update(last_outcome="failed")
    text = sign_in().get(page("index")).content.decode()
    assert page("execution_execution_change", execution.pk) in text
    assert "Needs attention" in text
    assert "1 alive" in text
    names = ("Schedules", "Executions", "Queue", "Activities", "Users")
    places = [text.index(f">{name}</a>") for name in names]
    assert places == sorted(places)
    text = sign_in("nobody").get(page("index")).content.decode()
    assert "Running now" not in text
    assert "alive" not in text


def administrator(**extra: Any) -> tuple[User, Client]:
    user = User.objects.create_user("ada", password="correct horse 1", is_staff=True, **extra)
    user.groups.add(Group.objects.get(name="Administrator"))
    client = Client()
    client.force_login(user)
    return user, client


def user_form(user: User, **changed: Any) -> dict[str, Any]:
    """What the admin's form of an account sends."""
    joined = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    groups = list(user.groups.values_list("pk", flat=True))
    return {
        "username": user.username,
        "is_active": "on",
        "is_staff": "on",
        "groups": groups,
        **joined,
        **changed,
    }


def test_an_administrator_does_not_become_a_superuser() -> None:
    user, client = administrator()
    url = reverse("admin:auth_user_change", args=[user.pk])
    assert 'name="is_superuser"' not in client.get(url).content.decode()
    more = Permission.objects.get(codename="delete_user")
    assert client.post(url, user_form(user, is_superuser="on")).status_code == 302
    refused = client.post(url, user_form(user, user_permissions=[more.pk]))
    assert refused.status_code == 200, "what one does not hold is no choice"
    boss = Group.objects.create(name="boss")
    boss.permissions.add(more)
    assert client.post(url, user_form(user, groups=[boss.pk])).status_code == 200
    user.refresh_from_db()
    assert (user.is_superuser, user.user_permissions.count(), user.groups.count()) == (False, 0, 1)


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("kind", ["superuser", "deleter", "viewer"])
def test_an_administrator_changes_only_accounts_that_may_do_no_more(kind: str, is_active: bool) -> None:
    _, client = administrator()
    other = User.objects.create_user("other", is_superuser=kind == "superuser", is_active=is_active)
    if kind == "deleter":
        other.user_permissions.add(Permission.objects.get(codename="delete_user"))
    if kind == "viewer":
        other.groups.add(Group.objects.get(name="Viewer"))
    code = 200 if kind == "viewer" else 403
    assert client.get(reverse("admin:auth_user_password_change", args=[other.pk])).status_code == code
    changed = client.post(
        reverse("admin:auth_user_change", args=[other.pk]), user_form(other, username="taken")
    )
    assert changed.status_code == (302 if kind == "viewer" else 403)
    other.refresh_from_db()
    assert other.username == ("taken" if kind == "viewer" else "other")


def test_groups_get_only_permissions_that_their_editor_holds() -> None:
    user, client = administrator()
    user.user_permissions.add(Permission.objects.get(codename="change_group"))
    more, less = (Permission.objects.get(codename=name) for name in ("delete_user", "view_schedule"))
    own, beyond = Group.objects.create(name="own"), Group.objects.create(name="beyond")
    beyond.permissions.add(more)
    page = reverse("admin:auth_group_change", args=[own.pk])
    assert client.post(page, {"name": "own", "permissions": [more.pk]}).status_code == 200
    assert client.post(page, {"name": "own", "permissions": [less.pk]}).status_code == 302
    taken = client.post(reverse("admin:auth_group_change", args=[beyond.pk]), {"name": "beyond"})
    assert taken.status_code == 403
    assert (list(own.permissions.all()), list(beyond.permissions.all())) == ([less], [more])
