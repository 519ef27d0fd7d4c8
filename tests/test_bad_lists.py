"""What addresses of lists get wrong: the API names the parameter, and no page breaks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.db.models import Model

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


# The ends of what a date can be: a zone, or a little slack, leads beyond them.
ENDS = (
    "0001-01-01T00:00:00+14:00",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-14:00",
)


def test_the_api_names_a_time_out_of_range() -> None:
    caller, wrong, found = Caller(), [], set()
    for path, of in described().items():
        for each in of.get("get", {}).get("parameters", []):
            if each["schema"].get("format") == "date-time":
                found.add(each["name"])
                address = re.sub(r"\{[^}]*\}", str(make_schedule().pk), path)
                for value in ENDS:
                    answer = caller.client.get(address, {each["name"]: value})
                    told = [one["field"] for one in answer.json().get("errors", [])]
                    wrong += [] if (answer.status_code, told) == (400, [each["name"]]) else [(path, value)]
    assert wrong == []
    assert len(found) > 3


NUMBERS = ("page", "p", "o", "skip", "year", "version")
WORDS = ("from", "to", "after", "of", "e", "colour", OLDER)
PAGED = dict.fromkeys(NUMBERS, "-1") | dict.fromkeys(WORDS, "\0")
TIMES = ("since", "until", "from", "to", "after", "at")
EARLY, LATE = (dict.fromkeys(TIMES, end) for end in ("0001-01-01", "9999-12-31T23:59:59"))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(PAGED, id="mixed"),
        pytest.param(EARLY, id="early"),
        pytest.param(LATE, id="late"),
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


LOOKUPS = [{"pk__regex": "("}, {"pk__in": "9" * 20}, {"pk__gt": "9" * 40}, {"pk__x__exact": "x"}]


def lookups(model: type[Model]) -> list[dict[str, str]]:
    """What a type, or the database, cannot take, of one column of each type."""
    columns = {field.get_internal_type(): field.attname for field in model._meta.concrete_fields}
    hows = [("in", "9" * 20), ("contains", "x"), ("year", "9" * 20), ("exact", ENDS[0]), ("lte", ENDS[3])]
    return LOOKUPS + [{f"{name}__{how}": value} for name in columns.values() for how, value in hows]


def offered(admin: Any) -> Iterator[dict[str, str]]:
    """What the filters of the list lead to, with numbers that no column holds."""
    for each in admin.list_filter:
        if not isinstance(each, type):
            name = each if isinstance(each, str) else each[0]
            is_relation = admin.model._meta.get_field(name).is_relation
            yield {f"{name}__id__exact" if is_relation else f"{name}__exact": "9" * 20}
        else:
            yield {str(getattr(each, "parameter_name", "")): "9" * 20}


def test_no_list_of_the_admin_breaks_by_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    furnish("plain")
    assert client.get("/admin/").status_code == 200  # which loads the pages of all apps
    wrong = []
    for model, admin in site._registry.items():
        path = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        told = [(asked, client.get(path, asked).status_code) for asked in lookups(model)]
        wrong += [(path, *each) for each in told if each[1] >= 500]
        told = [(asked, client.get(path, asked).status_code) for asked in offered(admin)]
        wrong += [(path, *each) for each in told if each[1] not in (200, 302)]
    assert wrong == []
    answer = client.get("/admin/execution/execution/", {"plan__contains": "x"})
    assert "plan__contains" in answer.content.decode()


def test_no_method_breaks_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    examples = furnish("plain")
    before = everything() | others()
    paths = [route.path(examples) for route in routes() if not route.fixed]
    asked = [(method, path) for path in paths for method in ("OPTIONS", "PROPFIND")]
    assert {each for each in asked if client.generic(*each).status_code >= 500} == set()
    for name in ("docs", "redoc", "schema"):
        assert client.options(f"/api/v1/{name}").status_code == 405
    assert everything() | others() == before


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
