"""What addresses of lists get wrong: the API names the parameter, and no page breaks."""

from __future__ import annotations

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User

from tests.addresses import described, routes, visitor
from tests.api.calling import Caller
from tests.base import everything, make_schedule
from tests.test_looking import furnish, others
from web.keyset import OLDER

pytestmark = pytest.mark.django_db

# Lists that have no such parameter refuse it by name as well.
PARAMETERS: list[tuple[str, str]] = [
    *(("limit", value) for value in ("-1", "0", "1e9", "1000000000", "\uff15")),
    *(("cursor", value) for value in ("nonsense", "%", "YWJj")),  # forged, unreadable, one that says nothing
    *(("ordering", value) for value in ("colour", "id,name")),
    *(("page", "-1"), ("colour", "red"), ("name__regex", "(")),
]


def test_the_api_names_the_parameter() -> None:
    caller, wrong, lists = Caller(), [], []
    for path, of in described().items():
        names = {each["name"] for each in of.get("get", {}).get("parameters", [])}
        lists += [path] if "cursor" in names and "{" not in path else []
    assert len(lists) > 10
    for name, value in PARAMETERS:
        for path in lists:
            answer = caller.client.get(path, {name: value})
            told = [each["field"] for each in answer.json().get("errors", [])]
            if (answer.status_code, told) != (400, [name]):
                wrong.append(f"{path}?{name}={value}: {answer.status_code} {told}")
    assert wrong == []


NUMBERS = ("page", "p", "o", "skip", "year", "version")
WORDS = ("from", "to", "after", "of", "e", "colour", OLDER)
PAGED = dict.fromkeys(NUMBERS, "-1") | dict.fromkeys(WORDS, "\0")


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(PAGED, id="mixed"),
        *(pytest.param(dict.fromkeys(PAGED, value), marks=pytest.mark.long) for value in ("-1", "1e9", "\0")),
    ],
)
def test_no_page_breaks(asked: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    examples = furnish("plain")
    before, broken = everything() | others(), []
    for route in [each for each in routes() if not each.fixed and not each.name.startswith("api:")]:
        path = route.path(examples)
        answer = client.get(path, asked)
        if answer.status_code >= 500:
            broken.append(f"{path}: {answer.status_code}")
    assert broken == []
    assert everything() | others() == before


LOOKUPS = [{"pk__regex": "("}, {"name__regex": "("}, {"pk__in": "x"}, {"pk__gt": "9" * 40}]


def test_no_list_of_the_admin_breaks_by_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    furnish("plain")
    paths = {f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in site._registry}
    answers = {(path, str(asked)): client.get(path, asked) for path in paths for asked in LOOKUPS}
    assert {asked for asked, answer in answers.items() if answer.status_code >= 500} == set()


UNKNOWN = ("0", "999999", str(2**63), "9" * 40, "-1", "x", "%00")
PATHS = ["/admin/schedules/schedule/{}/change/", "/api/v1/schedules/{}", "/api/v1/executions/{}"]
PATHS += [f"/api/v1/activities/{{}}{part}" for part in ("", "/children", "/items", "/output?follow=true")]
PATHS += [
    f"/{kind}/{{}}{part}" for kind in ("activities", "executions") for part in ("", "/live", "/output.txt")
]
PATHS += [
    f"/schedules/{{}}{part}"
    for part in ("", "/ledger", "/why", "/revisions", "/backfills", "/export", "/now")
]
PATHS += ["/backfills/{}", "/runs/{}", "/runs/{}/now", "/events/{}", "/workflows/{}", "/topics/{}"]


def test_an_unknown_id_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch, draws=False)
    make_schedule()
    before = everything()
    asked = [path.format(pk) for path in PATHS for pk in UNKNOWN]
    assert {path for path in asked if client.get(path).status_code != 404} == set()
    assert everything() == before
