"""Who may see and do what: the objects of other systems are mostly people, so runs have personal data."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.test import Client

from activities.models import PERSONAL, Activity, ActivityItem
from identity.models import RunProfile
from jimsite.roles import ROLES
from tests.api.calling import Caller
from tests.base import NOW, attempts, run_until_idle, start, step
from tests.web.pages import text_of
from tests.webhooks.base import make_endpoint
from webhooks.models import Delivery

from .world import FULL_IMPORT, System

pytestmark = pytest.mark.django_db

PERSON = "0815-Lovelace"
MAY_SEE = {"Viewer": False, "Operator": True, "Author": True, "Administrator": True}
REFUSAL = (
    "You do not have permission to see {} objects of this run, because they are personal data. "
    "Ask an administrator for the permission identity.view_identity ."
)
OF_THE_STEP = (
    "/activities/{pk}",
    "/activities/{pk}?outcome=ok",
    "/activities/{pk}?from={pk}.0",
    "/admin/activities/activity/{pk}/change/",
)
OF_THE_EXECUTION = (
    "/executions/{execution}?tab=items",
    "/executions/{execution}?tab=items&outcome=ok",
    "/executions/{execution}?tab=items&from={pk}.0",
)
OF_THE_API = (
    "activities/{pk}/items",
    "activities/{pk}/items?outcome=ok",
    "activities/{pk}/items?ordering=-id",
)


class Night(NamedTuple):
    """An execution with an import of one person, and a step of another type that has items too."""

    execution: int
    imported: Activity

    def at(self, place: str) -> str:
        return place.format(pk=self.imported.pk, execution=self.execution)


def night() -> Night:
    hr = System("HR")
    hr.put(PERSON, first="Ada")
    profile = RunProfile.objects.create(system=hr.row, name="Full import", run_type=FULL_IMPORT)
    execution = start(hr.step(profile), step("other", 0, "talk"))
    run_until_idle()
    (imported,) = attempts(execution, str(profile))
    assert [item.name for item in imported.items.all()] == [PERSON]
    return Night(execution.pk, imported)


def signed_in(role: str) -> Client:
    user = Caller(role).user
    user.is_staff = True
    user.save()
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("role", ROLES)
class TestObjects:
    """What a run did to each object is shown to people with `identity.view_identity`."""

    def test_the_pages_of_a_run_say_who_may_see_its_objects(self, role: str) -> None:
        client, found = signed_in(role), night()
        for place in OF_THE_STEP:
            answer = client.get(found.at(place))
            shown = (PERSON in answer.text, REFUSAL.format("the") in text_of(answer))
            assert shown == (MAY_SEE[role], not MAY_SEE[role]), place

    def test_the_items_of_other_steps_stay_visible(self, role: str) -> None:
        client, found = signed_in(role), night()
        for place in OF_THE_EXECUTION:
            answer = client.get(found.at(place))
            shown = (PERSON in answer.text, REFUSAL.format("all") in text_of(answer))
            assert shown == (MAY_SEE[role], not MAY_SEE[role]), place
            assert "object 2" in answer.text, place

    def test_the_counts_stay_visible(self, role: str) -> None:
        client, found = signed_in(role), night()
        assert '"added": 1' in text_of(client.get(f"/activities/{found.imported.pk}"))
        told = Caller(role).get(f"activities/{found.imported.pk}").json()
        assert (told["result"], told["items_total"]) == ({"added": 1}, 1)

    def test_the_api_names_the_missing_permission(self, role: str) -> None:
        api, found = Caller(role), night()
        for place in OF_THE_API:
            answer = api.get(found.at(place))
            assert (answer.status_code, PERSON in answer.text) == (
                (200, True) if MAY_SEE[role] else (403, False)
            )
            assert ("“identity.view_identity”" in answer.text) == (not MAY_SEE[role]), place
        every = ("activities", "activities/{pk}", "activities/{pk}/children", "executions/{execution}")
        for place in (*every, "executions/{execution}/steps"):
            assert PERSON not in api.get(found.at(place)).text, place


@pytest.mark.parametrize("scopes", [["view"], ["run"], ["define"], ["admin"]])
def test_every_scope_of_a_token_reads_the_objects_that_its_user_may_see(scopes: list[str]) -> None:
    found = night()
    for role, may_see in MAY_SEE.items():
        answer = Caller(role, scopes=scopes).get(f"activities/{found.imported.pk}/items")
        assert answer.status_code == (200 if may_see else 403), role


@pytest.mark.parametrize(
    "kind", ["run_profile", "generate_data", "clear_system", "delete_system", "identity"]
)
def test_items_of_these_activities_are_personal(kind: str) -> None:
    for target_type in (kind, "python"):
        activity = Activity.objects.create(
            target_type=target_type, target_name="x", initiator_type="system", created_at=NOW
        )
        ActivityItem.objects.create(activity=activity, name=target_type, outcome="ok", created_at=NOW)
    for role, may_see in MAY_SEE.items():
        seen = ActivityItem.objects.seen_by(Caller(role).user.has_perm).order_by("pk")
        assert [item.name for item in seen] == [*([kind] if may_see else []), "python"], role


def test_a_shell_shows_all_objects(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("activity", str(night().imported.pk), "--items")
    assert PERSON in capsys.readouterr().out


def test_webhooks_say_nothing_about_objects() -> None:
    make_endpoint(kinds=["activity.completed", "execution.completed"])
    night()
    bodies = [json.loads(body) for body in Delivery.objects.order_by("pk").values_list("body", flat=True)]
    assert sorted(body["type"] for body in bodies) == [*["activity.completed"] * 2, "execution.completed"]
    assert PERSON not in json.dumps(bodies)


# From which role on people may queue a step of this type. Viewers may queue nothing.
MAY_QUEUE = {
    "run_profile": "Operator",
    "generate_data": "Operator",
    "clear_system": "Administrator",
    "delete_system": "Administrator",
}


@pytest.mark.parametrize("kind", MAY_QUEUE)
@pytest.mark.parametrize("role", ["Operator", "Author", "Administrator"])
def test_each_type_of_step_needs_its_permission(kind: str, role: str) -> None:
    answer = Caller(role).post("tasks", {"step_type": kind, "config": config_of(kind)})
    roles = list(ROLES)
    may = roles.index(role) >= roles.index(MAY_QUEUE[kind])
    assert answer.status_code == (202 if may else 403), answer.text
    if not may:
        assert "need the permission “identity.delete_accounts”" in answer.json()["detail"]


def test_a_token_needs_the_scope_run_to_run_a_profile() -> None:
    job = {"step_type": "run_profile", "config": config_of("run_profile")}
    codes = {scope: Caller(scopes=[scope]).post("tasks", job).status_code for scope in ("view", "run")}
    assert codes == {"view": 403, "run": 202}


def config_of(kind: str) -> dict[str, Any]:
    hr = System("HR").row
    RunProfile.objects.create(system=hr, name="Full import", run_type=FULL_IMPORT)
    template = {"count": 1, "attributes": {"id": {"sequence": 1}}}
    configs: dict[str, dict[str, Any]] = {
        "run_profile": {"system": "HR", "profile": "Full import"},
        "generate_data": {"system": "HR", "template": template},
    }
    return configs.get(kind, {"system": "HR"})


def test_there_is_a_role_for_each_permission() -> None:
    found = Permission.objects.filter(content_type__app_label="identity").values_list("codename", flat=True)
    known = {name.partition(".")[2] for name in ROLES["Administrator"] if name.startswith("identity.")}
    assert set(found) == known
    assert set(PERSONAL.values()) == {"identity.view_identity"}
