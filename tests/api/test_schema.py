"""The description of the API is true and complete."""

from __future__ import annotations

import json
from functools import cache
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.validation import validate_schema

from api.permissions import Allowed

UNDESCRIBED = {"schema", "docs", "redoc"}


@cache
def schema() -> Any:
    written = StringIO()
    call_command("spectacular", fail_on_warn=True, format="openapi-json", stdout=written)
    return json.loads(written.getvalue())


def operations() -> list[tuple[str, str, Any]]:
    return [(path, method, each) for path, of in schema()["paths"].items() for method, each in of.items()]


def api() -> URLResolver:
    [found] = [each for each in get_resolver().url_patterns if getattr(each, "app_name", "") == "api"]
    assert isinstance(found, URLResolver)
    return found


def routes() -> set[str]:
    return {str(each.name) for each in _patterns(api())} - UNDESCRIBED


def _patterns(resolver: URLResolver | URLPattern) -> list[URLPattern]:
    if isinstance(resolver, URLPattern):
        return [resolver]
    return [pattern for each in resolver.url_patterns for pattern in _patterns(each)]


def test_every_action_names_the_permission_that_it_needs() -> None:
    for pattern in _patterns(api()):
        view: Any = getattr(pattern.callback, "cls", None)
        if Allowed in getattr(view, "permission_classes", ()):
            assert set(getattr(pattern.callback, "actions", {}).values()) <= set(view.needs), view


def test_it_is_made_without_a_warning() -> None:
    assert schema()["openapi"] == "3.1.0"


@pytest.mark.long
def test_it_is_valid_openapi() -> None:
    """A client that is generated from it says in less time whether it can be read."""
    validate_schema(schema())  # type: ignore[no-untyped-call]


def test_every_route_is_described() -> None:
    described = {path.removeprefix("/api/v1/") for path in schema()["paths"]}
    shapes = {_shape(path) for path in described}
    missing = {name for name in routes() if not _shapes(name) & shapes}
    assert not missing


def _shapes(name: str) -> set[str]:
    return {
        _shape(form) for form, _ in (pair for found in api().reverse_dict.getlist(name) for pair in found[0])
    }


def _shape(path: str) -> str:
    """`schedules/%(pk)s/run` and `schedules/{id}/run` are the same."""
    parts = path.split("/")
    return "/".join("*" if part.startswith(("{", "%(")) else part for part in parts)


def test_operations_have_names_of_their_own_and_say_what_they_do() -> None:
    named = [each["operationId"] for _, _, each in operations()]
    assert len(set(named)) == len(named)
    silent = [each["operationId"] for _, _, each in operations() if not each.get("summary")]
    assert silent == []


def test_every_operation_that_needs_a_person_says_how_it_may_be_refused() -> None:
    for path, method, each in operations():
        if each.get("security") and {} not in each["security"]:
            missing = {"400", "401", "403", "429", "503"} - set(each["responses"])
            assert not missing, (path, method, missing)


def test_bodies_are_closed_and_changes_name_a_version() -> None:
    parts = schema()["components"]["schemas"]
    for path, method, each in operations():
        if "requestBody" in each:
            content = each["requestBody"]["content"]["application/json"]["schema"]
            name = content["$ref"].rpartition("/")[2]
            assert parts[name].get("additionalProperties") is False, (path, name)
        if method in ("put", "patch", "delete") and "tokens" not in path:
            headers = {one["name"] for one in each.get("parameters", ()) if one["in"] == "header"}
            assert "If-Match" in headers, (path, method)


@pytest.mark.django_db
def test_it_is_served_to_whoever_is_signed_in(client: Any, admin_client: Any) -> None:
    for path in ("schema", "docs", "redoc"):
        assert client.get(f"/api/v1/{path}").status_code in (401, 403)
        response = admin_client.get(f"/api/v1/{path}")
        assert response.status_code == 200
        assert path == "schema" or b"https://" not in response.content
