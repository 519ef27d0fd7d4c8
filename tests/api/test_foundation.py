"""What holds for every resource: errors, versions, keys, pages, tokens. Limits stand for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client

from api.models import ApiToken, KeyedAnswer
from api.rates import Meter
from api.resources.limits import Limits
from database import clock
from execution.models import Limit
from tests.api.calling import Caller, fields
from tests.base import NOW, SOMEBODY

pytestmark = pytest.mark.django_db
PROBLEM = "application/problem+json"
LIMIT = {"key": "global", "size": 2}


def define(count: int) -> None:
    for number in range(count):
        Limit.objects.define(key=f"pool:{number}", size=1, initiator=SOMEBODY, now=NOW)


def test_a_body_that_cannot_be_read() -> None:
    api = Caller()
    for body, media_type, code, said in (
        ("{", "application/json", 400, "not valid JSON"),
        ("[1]", "application/json", 400, "must be a JSON object"),
        ('{"size": 1, "size": 2}', "application/json", 400, "appears twice"),
        (b"\xff", "application/json", 400, "not valid UTF-8"),
        (b" " * 1_048_577, "application/json", 400, "at most 1,048,576 bytes"),
        ("[" * 100_000, "application/json", 400, "nested too deeply"),
        ("a=1", "application/x-www-form-urlencoded", 415, "Unsupported media type"),
    ):
        response = api.client.generic("POST", "/api/v1/limits", body, content_type=media_type)
        assert (response.status_code, response["Content-Type"]) == (code, PROBLEM), said
        assert said in response.json()["detail"]
    marked = b'\xef\xbb\xbf{"key": "global", "size": 2}'
    assert api.client.post("/api/v1/limits", marked, content_type="application/json").status_code == 201


def test_what_a_body_says_has_the_right_type() -> None:
    api, told = Caller(), []
    wrong: list[dict[str, Any]] = [
        *({"size": value} for value in ("3", True, 3.0, 10**30, None)),
        *({"note": value} for value in (3, ["a"], "a\0b", "\ud800")),
        {"key": ""},
    ]
    for fault in wrong:
        response = api.post("limits", LIMIT | fault)
        told.append((response.status_code, fields(response)))
    assert told == [(400, list(fault)) for fault in wrong]
    assert fields(api.post("limits", LIMIT | {"colour\0": "red"})) == ["colour\ufffd"]
    response = api.post("limits", {"size": "3", "colour": "red"})
    assert sorted(fields(response)) == ["colour", "key", "size"]
    assert response.json()["detail"].endswith("(and 2 more)")
    assert not Limit.objects.exists()


def test_what_does_not_exist_is_a_problem_too() -> None:
    api = Caller()
    for path in ("nowhere", "limits/none", "limits/a%00b", "schedules/x"):
        response = api.get(path)
        assert (response.status_code, response["Content-Type"]) == (404, PROBLEM), path
        assert response.json()["status"] == 404
    response = api.client.get("/api/v1/limits", headers={"Accept": "text/html"})
    assert (response.status_code, response["Content-Type"]) == (406, PROBLEM)
    response = api.put("limits", {})
    assert (response.status_code, response["Content-Type"]) == (405, PROBLEM)
    assert set(response["Allow"].split(", ")) == {"GET", "POST", "HEAD"}
    assert api.client.options("/api/v1/limits").status_code == 405
    for query in ({"limit": "501"}, {"limit": "1.5"}, {"limit": ["1", "2"]}, {"key": "a\0b"}):
        response = api.get("limits", **query)
        assert (response.status_code, fields(response)) == (400, list(query))


def test_without_the_database_it_is_said_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Caller()

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("gone")

    for missing in ("api.resources.limits.Limits.filter_queryset", "api.models.ApiTokenQuerySet.named_by"):
        monkeypatch.setattr(missing, away)
        response = api.get("limits")
        assert (response.status_code, response["Content-Type"]) == (503, PROBLEM)
        assert response["Retry-After"] == "2"
        assert "gone" not in response.content.decode()


def test_a_list_is_read_in_pages_forth_and_back_whatever_moves() -> None:
    define(5)
    api = Caller()
    first = api.get("limits", limit=2).json()
    assert ([row["key"] for row in first["results"]], first["previous"]) == (["pool:0", "pool:1"], None)
    Limit.objects.define(key="a", size=1, initiator=SOMEBODY, now=NOW)
    second = api.client.get(first["next"]).json()
    assert [row["key"] for row in second["results"]] == ["pool:2", "pool:3"]
    third = api.client.get(second["next"]).json()
    assert ([row["key"] for row in third["results"]], third["next"]) == (["pool:4"], None)
    assert api.client.get(second["previous"]).json()["results"] == first["results"]
    backwards = api.get("limits", limit=1, ordering="-key").json()
    assert backwards["results"][0]["key"] == "pool:4"


def test_what_is_known_already_is_not_sent_again() -> None:
    define(1)
    api = Caller()
    tag = api.get("limits/pool:0")["ETag"]
    again = api.client.get("/api/v1/limits/pool:0", headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", tag)
    Limit.objects.get().edit(changes={"size": 9}, initiator=SOMEBODY, now=NOW)
    changed = api.client.get("/api/v1/limits/pool:0", headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["size"]) == (200, 9)


def test_a_refused_request_may_be_repeated_with_its_key() -> None:
    api = Caller()
    tag = api.post("limits", LIMIT)["ETag"]
    assert api.post("limits", LIMIT, idempotency_key="a").status_code == 400
    assert not KeyedAnswer.objects.exists()
    api.delete("limits/global", if_match=tag)
    assert api.post("limits", LIMIT, idempotency_key="a").status_code == 201


def test_after_a_day_a_key_is_forgotten_and_one_that_was_never_answered_stays_taken() -> None:
    """Earlier versions committed keys before their answers."""
    api = Caller()
    api.post("limits", LIMIT, idempotency_key="a")
    KeyedAnswer.objects.update(created_at=clock.now() - timedelta(hours=25))
    assert api.post("limits", LIMIT | {"key": "pool:b"}, idempotency_key="a").status_code == 201
    api.post("limits", LIMIT | {"key": "pool:c"}, idempotency_key="b")
    KeyedAnswer.objects.update(status=None)
    response = api.post("limits", LIMIT | {"key": "pool:c"}, idempotency_key="b")
    assert (response.status_code, response["Retry-After"]) == (409, "1")


def test_what_nobody_expected_is_a_problem_without_a_traceback_and_has_done_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Caller()
    with monkeypatch.context() as broken:
        broken.setattr(Limits, "version_of", lambda *_: 1 / 0)
        response = api.post("limits", LIMIT, idempotency_key="a")
    assert (response.status_code, response["Content-Type"]) == (500, PROBLEM)
    assert "ZeroDivisionError" not in response.content.decode()
    assert not KeyedAnswer.objects.exists()
    assert api.post("limits", LIMIT, idempotency_key="a").status_code == 201


ENDED: dict[str, Callable[[Caller], Any]] = {
    "revoked": lambda api: api.token.revoke(initiator=SOMEBODY, now=NOW),
    "expired": lambda _: ApiToken.objects.update(expires_at=clock.now() - timedelta(seconds=1)),
    "inactive": lambda _: User.objects.update(is_active=False),
    "unknown": lambda _: ApiToken.objects.all().delete(),
}


@pytest.mark.parametrize("end", ENDED.values(), ids=ENDED)
def test_a_token_that_is_none_any_more(end: Callable[[Caller], Any]) -> None:
    api = Caller()
    end(api)
    for response in (api.get("limits"), Client().get("/api/v1/limits")):
        assert (response.status_code, response["WWW-Authenticate"]) == (401, "Bearer")
        assert response["Content-Type"] == PROBLEM


def test_a_use_is_noted_once_a_minute() -> None:
    api = Caller()
    api.get("limits")
    first = ApiToken.objects.get().last_used_at
    assert first is not None
    api.get("limits")
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=first - timedelta(seconds=61))
    api.get("limits")
    assert ApiToken.objects.filter(last_used_at__gte=first).exists()


def test_a_token_reaches_no_further_than_its_user_and_its_scopes() -> None:
    response = Caller("Viewer", scopes=["admin"]).post("limits", LIMIT)
    assert response.status_code == 403
    assert "which you do not have" in response.json()["detail"]
    api = Caller(scopes=["view"])
    assert api.get("limits").status_code == 200
    response = api.post("limits", LIMIT)
    assert (response.status_code, "scopes of this token (view)" in response.json()["detail"]) == (403, True)


def test_a_session_has_to_prove_that_it_is_no_other_page() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(Caller().user)
    assert client.get("/api/v1/limits").status_code == 200
    body = json.dumps(LIMIT)
    refused = client.post("/api/v1/limits", body, content_type="application/json")
    assert (refused.status_code, refused["Content-Type"]) == (403, PROBLEM)
    client.get("/password")
    token = next(cookie.value for name, cookie in client.cookies.items() if "csrf" in name)
    headers = {"X-CSRFToken": token}
    made = client.post("/api/v1/limits", body, content_type="application/json", headers=headers)
    assert made.status_code == 201


def test_too_many_requests_are_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.throttling.meter", Meter())
    monkeypatch.setattr(clock, "estimate", lambda: NOW)
    monkeypatch.setitem(settings.CALLS_PER_MINUTE, "principal", 2)
    api, other = Caller(), Caller()
    codes = [api.get("limits").status_code for _ in range(3)]
    response = api.get("limits")
    assert (codes, response.status_code) == ([200, 200, 429], 429)
    assert response["Retry-After"] == str(60 - NOW.second)
    assert other.get("limits").status_code == 200
    monkeypatch.setitem(settings.CALLS_PER_MINUTE, "user", 6)
    assert [Caller().get("limits").status_code for _ in range(3)] == [200, 429, 429], "however many tokens"
