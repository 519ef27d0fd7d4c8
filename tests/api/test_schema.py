"""The description of the API is true and complete."""

from __future__ import annotations

import json
from functools import cache
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import URLPattern, URLResolver, get_resolver

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


def _patterns(resolver: URLResolver | URLPattern) -> list[URLPattern]:
    if isinstance(resolver, URLPattern):
        return [resolver]
    return [pattern for each in resolver.url_patterns for pattern in _patterns(each)]


def test_every_action_names_the_permission_that_it_needs() -> None:
    for pattern in _patterns(api()):
        view: Any = getattr(pattern.callback, "cls", None)
        if Allowed in getattr(view, "permission_classes", ()):
            assert set(getattr(pattern.callback, "actions", {}).values()) <= set(view.needs), view


def test_every_route_is_described() -> None:
    described = {_shape(path.removeprefix("/api/v1/")) for path in schema()["paths"]}
    missing = set[str]()
    for name in {str(each.name) for each in _patterns(api())} - UNDESCRIBED:
        forms = [form for found in api().reverse_dict.getlist(name) for form, _ in found[0]]
        missing |= {name} if described.isdisjoint(map(_shape, forms)) else set()
    assert not missing


def _shape(path: str) -> str:
    """`schedules/%(pk)s/run` and `schedules/{id}/run` are the same."""
    parts = path.split("/")
    return "/".join("*" if part.startswith(("{", "%(")) else part for part in parts)


def test_operations_say_what_they_do_and_how_it_may_be_refused() -> None:
    assert schema()["openapi"] == "3.1.0"
    named = [each["operationId"] for _, _, each in operations()]
    assert len(set(named)) == len(named)
    assert [each["operationId"] for _, _, each in operations() if not each.get("summary")] == []
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
