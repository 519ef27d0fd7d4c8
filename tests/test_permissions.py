"""Who may do what: docs/permissions.md has the table, and every address of the site has its row in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import connection  # noqa: F401 (what is skipped asks for it)
from django.db.models import Q
from django.test import Client

from activities.models import Activity
from jimsite.roles import ROLES
from schedules.models import SharedCalendar, TaskTemplate
from tests.addresses import METHODS, Route, routes, visitor
from tests.base import NOW, SOMEBODY, make_schedule, make_template

pytestmark = pytest.mark.django_db
TABLE = Path(settings.BASE_DIR, "docs", "permissions.md")
ROW = re.compile(r"^\| `(?P<label>[^`]+)` \| (?P<method>[A-Z]+) \| (?P<who>[^|]+) \|$", re.MULTILINE)
WHO = ("everyone", "signed in", *ROLES)
SUPERUSERS = "superusers"
IDENTITIES = ("", "signed in", *ROLES)


def table() -> dict[tuple[str, str], str]:
    return {(row["label"], row["method"]): row["who"].strip() for row in ROW.finditer(TABLE.read_text())}


def test_every_address_has_its_rows() -> None:
    known = {label for label, _ in table()}
    assert sorted({route.label for route in routes()} - known) == []
    assert sorted(known - {route.label for route in routes()}) == []


def test_the_table_names_only_roles_that_exist() -> None:
    assert set(table().values()) <= {*WHO, SUPERUSERS}


def test_each_role_may_all_that_the_one_before_it_may() -> None:
    held = [set(permissions) for permissions in ROLES.values()]
    assert all(less < more for less, more in pairwise(held))


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="permissions know no database")
@pytest.mark.parametrize("everybody", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_role_gets_what_the_table_says(everybody: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is wrong with these requests: who may not is told so, and who may is not.

    Asked by those on either side of the line and by strangers; the others are farther from it.
    """
    wrong = []
    for identity in IDENTITIES:
        client = visitor(member(identity), monkeypatch, draws=False)
        for route, method, who in cases():
            if everybody or not identity or identity in at_the_line(who):
                answer = client.generic(method, route.path({}), **sent(route))
                if may(identity, who) != was_let_in(answer):
                    wrong.append(f"{route.label} {method}: {answer.status_code} for {identity}, not {who}")
    assert wrong == []


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="methods know no database")
def test_methods_that_are_not_in_the_table_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(member("Administrator"), monkeypatch, draws=False)
    known, wrong = table(), []
    for route in routes():
        # Django's admin asks only whether something is posted.
        for method in METHODS if not route.name.startswith("admin:") else ():
            if (route.label, method) not in known:
                answer = client.generic(method, route.path({}), **sent(route))
                if answer.status_code not in (404, 405):
                    wrong.append(f"{route.label} {method}: {answer.status_code}")
    assert wrong == []


# From which role on people see the records of what is done to these.
SEEN = {
    "schedule": "Viewer",
    "connectedsystem": "Viewer",
    "identitytype": "Viewer",
    "runprofile": "Viewer",
    "syncrule": "Viewer",
    "identity": "Operator",
    "account": "Operator",
    "pendingexport": "Operator",
    "endpoint": "Operator",
    "delivery": "Operator",
    "secret": "Administrator",
    "apitoken": "Administrator",
    "failedsignin": "Administrator",
    "user": "Administrator",
}
LISTS = ("/api/v1/activities", "/activities", "/activities?q=named", "/admin/activities/activity/")
PAGES = ("/api/v1/activities/{pk}", "/activities/{pk}", "/admin/activities/activity/{pk}/change/")
PARTS = (
    *("/api/v1/activities/{pk}/output", "/api/v1/activities/{pk}/children", "/api/v1/activities/{pk}/items"),
    *("/activities/{pk}/live", "/activities/{pk}/output", "/activities/{pk}/output.txt"),
    *("/admin/activities/activity/{pk}/output.txt", "/do/activity/retry?id={pk}"),
)


@pytest.mark.parametrize("role", ROLES)
def test_records_are_seen_by_those_who_may_see_what_they_are_about(role: str) -> None:
    """Wherever activities are shown: their names, messages and details say more than that they exist."""
    client = Client()
    client.force_login(member(role))  # type: ignore[arg-type]
    rows = {kind: record_of(kind) for kind in SEEN}
    hidden = {kind for kind, who in SEEN.items() if not may(role, who)}
    for place in LISTS:
        page = client.get(place).content.decode()
        assert {kind for kind in SEEN if f"{kind} is named" not in page} == hidden, place
    for place in (*PAGES, *PARTS):
        codes = {kind: client.get(place.format(pk=row.pk)).status_code for kind, row in rows.items()}
        asks_for_more = place.startswith("/do/") and role == "Viewer"
        assert asks_for_more or {kind for kind, code in codes.items() if code in (302, 404)} == hidden, codes


# The pages that list which schedules use a template or a calendar.
USES = (
    *("/templates/{pk}", "/templates/{pk}/edit", "/calendars/{pk}", "/calendars/{pk}/edit"),
    *("/api/v1/templates/{pk}", "/api/v1/calendars/{pk}"),
    *("/admin/schedules/tasktemplate/{pk}/change/", "/admin/schedules/sharedcalendar/{pk}/change/"),
)


@pytest.mark.parametrize("may_view", [True, False])
def test_schedules_that_use_something_are_named_to_people_who_may_view_schedules(may_view: bool) -> None:
    SharedCalendar.objects.define("days off", [{"dates": "2026-12-25"}], initiator=SOMEBODY, now=NOW)
    make_template("Export")
    steps = {"name": "work", "index": 0, "template": "Export"}
    make_schedule(steps, name="Payroll", spec={"every": ["1d"], "exclude": [{"calendar": "days off"}]})
    user = User.objects.create_user("member", is_staff=True)
    about = Q(content_type__model__in=["tasktemplate", "sharedcalendar"])
    user.user_permissions.set(
        Permission.objects.filter(about | Q(codename="view_schedule") if may_view else about)
    )
    client = Client()
    client.force_login(user)
    for place in USES:
        made = TaskTemplate if "template" in place else SharedCalendar
        answer = client.get(place.format(pk=made.objects.get().pk))
        assert (answer.status_code, "Payroll" in answer.text) == (200, may_view), place


def record_of(kind: str) -> Activity:
    return Activity.objects.create(
        operation="edit",
        status="complete",
        target_type=kind,
        target_id="7",
        target_name=f"{kind} is named",
        initiator_type="system",
        created_at=NOW,
        finished_at=NOW,
    )


def cases() -> Iterator[tuple[Route, str, str]]:
    known = table()
    for route in routes():
        for method in METHODS:
            if who := known.get((route.label, method)):
                yield route, method, who


def at_the_line(who: str) -> set[str]:
    """The least that may and the most that may not."""
    first = len(WHO) if who == SUPERUSERS else WHO.index(who)
    return set(WHO[max(first - 1, 0) : first + 1])


def may(identity: str, who: str) -> bool:
    if who == SUPERUSERS:
        return False
    return WHO.index(identity or "everyone") >= WHO.index(who)


def was_let_in(answer: Any) -> bool:
    """A page sends strangers to the form where they sign in, which leads them back afterwards."""
    to_login = answer.status_code == 302 and re.search(r"/login/?\?next=", answer.headers["Location"])
    return not (to_login or answer.status_code in (401, 403))


def sent(route: Route) -> dict[str, Any]:
    return {"data": "{}", "content_type": "application/json"} if route.name.startswith("api:") else {}


def member(identity: str) -> User | None:
    """With the group of that name; all of them may enter the admin, where the same permissions hold."""
    user = User.objects.create_user(identity, is_staff=True) if identity else None
    if user and identity in ROLES:
        user.groups.add(Group.objects.get(name=identity))
    return user
