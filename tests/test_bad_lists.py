"""What addresses of lists get wrong: the API names the parameter, and no page breaks."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client

from tests.addresses import routes
from tests.api.calling import Caller
from tests.api.test_schema import schema
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
    for path, of in schema()["paths"].items():
        names = {each["name"] for each in of.get("get", {}).get("parameters", [])}
        if "cursor" in names and "{" not in path:
            found.append(path)
    return found


@pytest.mark.parametrize(
    ("name", "value"), [row[1:] for row in PARAMETERS], ids=[row[0] for row in PARAMETERS]
)
def test_the_api_names_the_parameter(name: str, value: str) -> None:
    caller = Caller()
    assert len(lists()) > 10
    answers = {path: caller.client.get(path, {name: value}) for path in lists()}
    told = {path: [each["field"] for each in got.json().get("errors", [])] for path, got in answers.items()}
    assert {path: got.status_code for path, got in answers.items()} == dict.fromkeys(answers, 400)
    assert told == {path: [name] for path in answers}


PAGED = (
    "page",
    "p",
    "o",
    "skip",
    "from",
    "to",
    "after",
    "year",
    "of",
    "version",
    "e",
    "colour",
    OLDER,
)
VALUES = ("-1", "1e9", "\0")


@pytest.fixture
def client() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("ada"))
    return client


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_no_page_breaks(client: Client, value: str) -> None:
    examples = furnish("plain")
    before, broken = everything() | others(), []
    for route in [each for each in routes() if not each.fixed and not each.name.startswith("api:")]:
        path = route.path(examples)
        answer = client.get(path, dict.fromkeys(PAGED, value))
        if answer.status_code >= 500:
            broken.append(f"{path}: {answer.status_code}")
    assert broken == []
    assert everything() | others() == before


@pytest.mark.parametrize(
    "query",
    [
        {"pk__regex": "("},
        {"name__regex": "("},
        {"message_id__regex": "("},
        {"pk__in": "x"},
        {"pk__gt": "9" * 40},
    ],
    ids=str,
)
def test_no_list_of_the_admin_breaks_by_a_lookup(client: Client, query: dict[str, str]) -> None:
    furnish("plain")
    paths = {f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in site._registry}
    answers = {path: client.get(path, query).status_code for path in paths}
    assert {path: code for path, code in answers.items() if code >= 500} == {}


def test_what_nobody_may_see_is_answered_as_what_is_not_there() -> None:
    """Who has what is told nobody else."""
    viewer, other = Caller("Viewer"), Caller()
    theirs, nobodys = (viewer.get(f"tokens/{pk}") for pk in (other.token.pk, 999_999))
    assert (theirs.status_code, nobodys.status_code) == (404, 404)
    assert _told(theirs) == _told(nobodys)


@pytest.mark.parametrize("pk", ["0", "999999", str(2**63), "9" * 40, "-1", "x", "%00"])
def test_an_unknown_id_is_not_found(client: Client, pk: str) -> None:
    make_schedule()
    before = everything()
    for path in (
        f"/schedules/{pk}",
        f"/api/v1/schedules/{pk}",
        f"/api/v1/executions/{pk}",
        f"/executions/{pk}",
    ):
        assert client.get(path).status_code == 404, path
    assert client.get(f"/admin/schedules/schedule/{pk}/change/").status_code == 404
    assert everything() == before


def _told(answer: Any) -> dict[str, Any]:
    return {name: value for name, value in answer.json().items() if name not in ("instance", "request_id")}
