"""Limits as people keep them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from activities.models import Activity
from execution.models import Limit
from tests.admin_pages import errors, page, sign_in, told
from tests.base import NOW, SOMEBODY, claim, enqueue, make_worker, step

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    return sign_in()


def define(key: str = "global", size: int = 1) -> Limit:
    return Limit.objects.define(key, size, initiator=SOMEBODY, now=NOW)


def save(client: Client, limit: Limit | None = None, /, **fields: Any) -> Any:
    url = page("execution_limit_change", quote(limit.pk)) if limit else page("execution_limit_add")
    return client.post(url, {"key": "global", "size": "1", "note": ""} | fields)


def test_a_limit_is_added_changed_and_deleted(client: Client) -> None:
    key = "resource:odd_3A/key ü"
    assert "was added successfully" in told(client, save(client, key=key, size="2", note="Ours"))
    limit = Limit.objects.get()
    assert (limit.key, limit.size, limit.note) == (key, 2, "Ours")
    for _ in range(2):  # saved as it is, it is not edited again
        assert "was changed successfully" in told(client, save(client, limit, size="5", key="another"))
    limit = Limit.objects.get()
    assert (limit.key, limit.size) == (key, 5)
    assert "0 of 5" in client.get(page("execution_limit_change", quote(key))).content.decode()
    assert client.get(page("execution_limit_history", quote(key)), follow=True).status_code == 200
    response = client.post(f"{page('execution_limit_do', 'delete')}?id=resource%3Aodd_3A%2Fkey%20%C3%BC")
    assert "is deleted" in told(client, response)
    assert not Limit.objects.exists()
    done = Activity.objects.filter(target_type="limit").order_by("pk")
    assert [activity.operation for activity in done] == ["create", "edit", "delete"]
    assert {activity.initiator_name for activity in done} == {"superuser"}


def test_what_is_wrong_is_said_at_its_field_and_an_odd_key_is_not_found(client: Client) -> None:
    """tests/execution/test_limits.py has all that may be wrong."""
    define("pool:taken")
    for field, text in (("key", ""), ("key", "a\nb"), ("key", "pool:taken"), ("size", "1" * 400)):
        assert list(errors(save(client, **{field: text}))) == [field]
    assert Limit.objects.count() == 1
    for key in ("nobody", "a%00b", "%0A", "", "x" * 101):
        assert client.get(f"{page('execution_limit_do', 'delete')}?id={key}").status_code == 404


def test_the_list_says_what_is_in_use_and_what_waits(client: Client) -> None:
    define("global", 2)
    define("resource:crm", 9)
    enqueue(*(step(f"job {number}", resources=["crm"]) for number in range(105)), step("other"))
    claim(make_worker())
    shown = client.get(page("execution_limit_changelist"))
    rows = {row.key: (row.in_use, row.waiting) for row in shown.context["cl"].result_list}
    assert rows == {"global": (2, 100), "resource:crm": (2, 100)}
    assert "100 or more" in shown.content.decode()
