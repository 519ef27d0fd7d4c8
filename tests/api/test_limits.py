from __future__ import annotations

import pytest

from api.idempotency import KEPT_HEADERS
from execution.models import Limit
from tests.api.calling import Caller, fields
from tests.api.test_foundation import LIMIT

pytestmark = pytest.mark.django_db


def test_a_limit_is_made_read_changed_and_removed_by_version() -> None:
    api = Caller()
    made = api.post("limits", {"key": "pool:0", "size": 2})
    assert (made.status_code, made.json()["size"]) == (201, 2)
    tag, path = made["ETag"], "limits/pool:0"
    assert api.get(path)["ETag"] == tag
    assert api.patch(path, {"size": 3}).status_code == 428
    stale = api.patch(path, {"size": 3}, if_match='"x"')
    assert (stale.status_code, stale["ETag"].strip('"') in tag) == (412, True)
    for size, asked in enumerate(("*", '"x", {tag}', "W/{tag}"), 3):
        changed = api.patch(path, {"size": size}, if_match=asked.replace("{tag}", tag))
        assert (changed.status_code, changed.json()["size"]) == (200, size), asked
        tag = changed["ETag"]
    assert api.delete(path, if_match=tag).status_code == 204
    assert not Limit.objects.exists()


def test_a_key_makes_a_request_count_once_and_its_answer_is_the_same() -> None:
    api, other = Caller(), Caller()
    first = api.post("limits", LIMIT, idempotency_key="a")
    again = api.post("limits", LIMIT, idempotency_key="a")
    assert (again.status_code, again.json()) == (201, first.json())
    assert {name: again.get(name) for name in KEPT_HEADERS} == {n: first.get(n) for n in KEPT_HEADERS}
    assert again["Idempotent-Replayed"] == "true"
    assert api.post("limits", LIMIT | {"size": 3}, idempotency_key="a").status_code == 409
    assert "Idempotent-Replayed" not in other.post("limits", LIMIT, idempotency_key="a")
    for key in ("x" * 201, "a\tb"):
        assert fields(api.post("limits", LIMIT, idempotency_key=key)) == ["Idempotency-Key"]
