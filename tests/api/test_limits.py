from __future__ import annotations

import pytest

from execution.models import Limit
from tests.api.calling import Caller

pytestmark = pytest.mark.django_db


def test_a_limit_is_made_read_changed_and_removed() -> None:
    api = Caller()
    made = api.post("limits", {"key": "pool:ldap", "size": 2})
    assert (made.status_code, made.json()["size"]) == (201, 2)
    read = api.get("limits/pool:ldap")
    assert read["ETag"] == made["ETag"]
    changed = api.patch("limits/pool:ldap", {"size": 3}, if_match=read["ETag"])
    assert (changed.status_code, changed.json()["size"]) == (200, 3)
    assert api.delete("limits/pool:ldap", if_match=changed["ETag"]).status_code == 204
    assert not Limit.objects.exists()


def test_a_change_names_the_version_it_is_about() -> None:
    api = Caller()
    api.post("limits", {"key": "global", "size": 2})
    assert api.patch("limits/global", {"size": 3}).status_code == 428
    stale = api.patch("limits/global", {"size": 3}, if_match='"old"')
    assert stale.status_code == 412
    assert api.patch("limits/global", {"size": 3}, if_match=stale["ETag"]).status_code == 200


def test_what_does_not_exist_is_refused_by_name() -> None:
    api = Caller()
    assert api.get("limits", colour="red").json()["errors"][0]["field"] == "colour"
    wrong = api.post("limits", {"key": "global", "size": 2, "colour": "red"})
    assert wrong.json()["errors"] == [
        {"field": "colour", "detail": "There is no such field; there are: size, note, key."}
    ]
    assert wrong["Content-Type"] == "application/problem+json"


def test_a_key_makes_a_request_count_once() -> None:
    api = Caller()
    first = api.post("limits", {"key": "global", "size": 2}, idempotency_key="a")
    again = api.post("limits", {"key": "global", "size": 2}, idempotency_key="a")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again["Idempotent-Replayed"] == "true"
    assert api.post("limits", {"key": "global", "size": 3}, idempotency_key="a").status_code == 409


def test_a_viewer_reads_only() -> None:
    api = Caller("Viewer")
    assert api.get("limits").json() == {"next": None, "previous": None, "results": []}
    assert api.post("limits", {"key": "global", "size": 2}).status_code == 403


def test_a_token_reaches_as_far_as_its_scopes() -> None:
    api = Caller(scopes=["view"])
    assert api.get("limits").status_code == 200
    assert "outside the scopes" in api.post("limits", {"key": "global", "size": 2}).json()["detail"]
