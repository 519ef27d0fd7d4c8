"""Limits as people keep them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from execution.models import Limit
from tests.admin_pages import operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, claim, enqueue, make_worker, step

pytestmark = pytest.mark.django_db
LIST = "execution_limit_changelist"


@pytest.fixture
def client() -> Client:
    return sign_in()


def define(key: str = "global", size: int = 1) -> Limit:
    return Limit.objects.define(key, size, initiator=SOMEBODY, now=NOW)


def save(client: Client, limit: Limit | None = None, /, **fields: Any) -> Any:
    form = {"key": "global", "size": "1", "note": ""} | fields
    if limit is None:
        return client.post(page("execution_limit_add"), form)
    return client.post(page("execution_limit_change", quote(limit.pk)), form)


def errors(response: Any) -> dict[str, str]:
    assert response.status_code == 200
    return {name: " ".join(texts) for name, texts in response.context["adminform"].form.errors.items()}


def test_a_limit_is_added_changed_and_deleted(client: Client) -> None:
    key = "resource:odd_3A/key ü"
    assert "was added successfully" in told(client, save(client, key=key, size="2", note="Ours"))
    limit = Limit.objects.get()
    assert (limit.key, limit.size, limit.note) == (key, 2, "Ours")
    assert "was changed successfully" in told(client, save(client, limit, size="5", key="another"))
    limit = Limit.objects.get()
    assert (limit.key, limit.size) == (key, 5)
    text = client.get(page("execution_limit_change", quote(key))).content.decode()
    assert "0 of 5" in text
    assert client.get(page("execution_limit_history", quote(key)), follow=True).status_code == 200
    response = client.post(f"{page('execution_limit_do', 'delete')}?id=resource%3Aodd_3A%2Fkey%20%C3%BC")
    assert "is deleted" in told(client, response)
    assert not Limit.objects.exists()
    done = Activity.objects.filter(target_type="limit").order_by("pk")
    assert [activity.operation for activity in done] == ["create", "edit", "delete"]
    assert {activity.initiator_name for activity in done} == {"superuser"}


def test_saving_it_as_it_was_changes_nothing(client: Client) -> None:
    limit = define()
    before = Activity.objects.count()
    told(client, save(client, limit))
    assert Activity.objects.count() == before


def test_what_is_wrong_is_said_at_its_field(client: Client) -> None:
    """tests/execution/test_limits.py has all that may be wrong."""
    define("pool:taken")
    for field, text in (("key", ""), ("key", "a\nb"), ("key", "pool:taken"), ("size", "1" * 400)):
        assert list(errors(save(client, **{field: text}))) == [field]
    assert Limit.objects.count() == 1


def test_the_list_says_what_is_in_use_and_what_waits(client: Client) -> None:
    define("global", 2)
    define("resource:crm", 9)
    enqueue(*(step(f"job {number}", resources=["crm"]) for number in range(105)), step("other"))
    claim(make_worker())
    rows = {row.key: row for row in client.get(page(LIST)).context["cl"].result_list}
    assert (rows["global"].in_use, rows["global"].waiting) == (2, 100)
    assert (rows["resource:crm"].in_use, rows["resource:crm"].waiting) == (2, 100)
    assert "100 or more" in client.get(page(LIST)).content.decode()


def test_the_list_takes_the_same_queries_for_many_limits(client: Client) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(page(LIST)).status_code == 200
        return len(captured)

    define("pool:one")
    few = count()
    for number in range(5):
        define(f"resource:{number}")
        enqueue(step(f"job {number}", resources=[f"{number}"]))
    assert count() == few


@pytest.mark.parametrize("may", [(), ("view", "add"), ("view", "change"), ("view", "delete")])
def test_each_verb_takes_its_permission(may: tuple[str, ...]) -> None:
    limit = define()
    user = User.objects.create_user("somebody", is_staff=True)
    for verb in may:
        user.user_permissions.add(Permission.objects.get(codename=f"{verb}_limit"))
    client = Client()
    client.force_login(user)
    answers = {
        "view": client.get(page(LIST)).status_code == 200,
        "add": save(client, key="type:sql").status_code == 302,
        "change": save(client, limit, size="7").status_code == 302,
        "delete": client.post(operation("execution_limit", "delete", "global")).status_code == 302,
    }
    assert {verb for verb, is_allowed in answers.items() if is_allowed} == set(may)
    sizes = {"global": 7 if "change" in may else 1} if "delete" not in may else {}
    assert dict(Limit.objects.values_list("key", "size")) == sizes | ({"type:sql": 1} if "add" in may else {})


def test_a_key_that_there_is_not_is_not_found(client: Client) -> None:
    for key in ("nobody", "a%00b", "%0A", "", "x" * 101):
        assert client.get(f"{page('execution_limit_do', 'delete')}?id={key}").status_code == 404
