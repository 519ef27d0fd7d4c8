"""What addresses of lists get wrong: the API names the parameter, and no page breaks."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User

from tests.addresses import described, routes, visitor
from tests.api.calling import Caller
from tests.base import everything, make_schedule
from tests.test_looking import furnish, others
from web.keyset import OLDER

pytestmark = pytest.mark.django_db

# (what, the parameter, its value); lists that have no such parameter refuse it by name as well.
PARAMETERS: list[tuple[str, str, str]] = [
    ("page -1", "page", "-1"),
    ("a page's size", "page_size", "1000000000"),
    ("limit -1", "limit", "-1"),
    ("limit 0", "limit", "0"),
    ("limit 1e9", "limit", "1e9"),
    ("limit 10^9", "limit", "1000000000"),
    ("limit in full width", "limit", "\uff15"),
    ("unknown filter", "colour", "red"),
    ("another lookup", "name__regex", "("),
    ("unknown order", "ordering", "colour"),
    ("order by two", "ordering", "id,name"),
    ("a forged cursor", "cursor", "nonsense"),
    ("an unreadable cursor", "cursor", "%"),
    ("a cursor that says nothing", "cursor", "YWJj"),
]


def lists() -> list[str]:
    """Of the API, those that come in pages."""
    found = []
    for path, of in described().items():
        names = {each["name"] for each in of.get("get", {}).get("parameters", [])}
        if "cursor" in names and "{" not in path:
            found.append(path)
    return found


def test_the_api_names_the_parameter() -> None:
    caller, wrong = Caller(), []
    assert len(lists()) > 10
    for what, name, value in PARAMETERS:
        for path in lists():
            answer = caller.client.get(path, {name: value})
            told = [each["field"] for each in answer.json().get("errors", [])]
            if (answer.status_code, told) != (400, [name]):
                wrong.append(f"{path}, {what}: {answer.status_code} {told}")
    assert wrong == []


NUMBERS, WORDS = (
    ("page", "p", "o", "skip", "year", "version"),
    ("from", "to", "after", "of", "e", "colour", OLDER),
)
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


LOOKUPS = [
    {"pk__regex": "("},
    {"name__regex": "("},
    {"message_id__regex": "("},
    {"pk__in": "x"},
    {"pk__gt": "9" * 40},
]


def test_no_list_of_the_admin_breaks_by_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    furnish("plain")
    paths = {f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in site._registry}
    answers = {(path, str(asked)): client.get(path, asked) for path in paths for asked in LOOKUPS}
    assert {asked for asked, answer in answers.items() if answer.status_code >= 500} == set()


def test_what_nobody_may_see_is_answered_as_what_is_not_there() -> None:
    """Who has what is told nobody else."""
    viewer, other = Caller("Viewer"), Caller()
    theirs, nobodys = (viewer.get(f"tokens/{pk}") for pk in (other.token.pk, 999_999))
    assert (theirs.status_code, nobodys.status_code) == (404, 404)
    assert _told(theirs) == _told(nobodys)


UNKNOWN = ("0", "999999", str(2**63), "9" * 40, "-1", "x", "%00")
PATHS = ("/schedules/{}", "/executions/{}", "/api/v1/schedules/{}", "/api/v1/executions/{}")


def test_an_unknown_id_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch, draws=False)
    make_schedule()
    before = everything()
    asked = [path.format(pk) for path in (*PATHS, "/admin/schedules/schedule/{}/change/") for pk in UNKNOWN]
    assert {path for path in asked if client.get(path).status_code != 404} == set()
    assert everything() == before


def _told(answer: Any) -> dict[str, Any]:
    return {name: value for name, value in answer.json().items() if name not in ("instance", "request_id")}
