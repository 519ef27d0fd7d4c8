"""The API as programs call it: with a token, in JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import Group, User
from django.test import Client

from api.models import ApiToken
from operations.initiator import Initiator
from tests.base import NOW


class Caller:
    """Somebody with a role, and a token with these scopes."""

    def __init__(self, role: str = "Administrator", *, scopes: Sequence[str] = ("admin",)) -> None:
        self.user, _ = User.objects.get_or_create(username=role.lower())
        if role:
            self.user.groups.add(Group.objects.get(name=role))
        self.token, self.text = ApiToken.objects.issue(
            name="test", scopes=scopes, user=self.user, initiator=Initiator.user(self.user), now=NOW
        )
        self.client = Client(headers={"Authorization": f"Bearer {self.text}"}, raise_request_exception=False)

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(f"/api/v1/{path}", query)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self._send("post", path, {} if body is None else body, headers)

    def patch(self, path: str, body: Any, **headers: str) -> Any:
        return self._send("patch", path, body, headers)

    def put(self, path: str, body: Any, **headers: str) -> Any:
        return self._send("put", path, body, headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.client.delete(f"/api/v1/{path}", headers=_named(headers))

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.client.generic(
            method.upper(), f"/api/v1/{path}", data, content_type="application/json", headers=_named(headers)
        )


def _named(headers: dict[str, str]) -> dict[str, str]:
    """`if_match` → `If-Match`."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


def fields(answer: Any) -> list[str]:
    """Those that an answer complains about."""
    return [each["field"] for each in answer.json()["errors"]]
