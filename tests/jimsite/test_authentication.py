"""One question answers who somebody is and what they may do, and the answer is Django's."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Group, Permission, User

from jimsite.authentication import Backend

pytestmark = pytest.mark.django_db


def make_user(*groups: str, own: str = "", **fields: Any) -> User:
    user = User.objects.create_user("ada", **fields)
    user.groups.set(Group.objects.filter(name__in=groups))
    user.user_permissions.set(Permission.objects.filter(codename=own))
    return user


@pytest.mark.parametrize(
    ("groups", "own", "fields"),
    [
        ((), "", {}),
        ((), "view_apitoken", {}),
        (("Viewer", "Author"), "view_schedule", {}),
        (("Empty", "Administrator"), "view_settings", {}),
        ((), "", {"is_superuser": True}),
    ],
)
def test_it_says_what_django_says(groups: tuple[str, ...], own: str, fields: dict[str, bool]) -> None:
    Group.objects.create(name="Empty")
    user = make_user(*groups, own=own, **fields)
    found = Backend().get_user(user.pk)
    assert found == user
    assert Backend().get_all_permissions(found) == ModelBackend().get_all_permissions(user)
    assert bool(groups or own or fields) == bool(Backend().get_all_permissions(found))


def test_it_asks_once(django_assert_num_queries: Any) -> None:
    user = make_user("Operator", own="view_apitoken")
    with django_assert_num_queries(1):
        found = Backend().get_user(user.pk)
        assert found is not None
        may = [found.has_perm(name) for name in ("schedules.run_schedule", "api.view_apitoken", "no.such")]
        assert may == [True, True, False]
        assert (found.has_module_perms("schedules"), found.has_module_perms("auth")) == (True, False)


def test_what_somebody_lost_is_lost_with_the_next_request() -> None:
    user = make_user("Operator")
    may = []
    for _ in range(2):
        found = Backend().get_user(user.pk)
        assert found is not None
        may.append(found.has_perm("schedules.run_schedule"))
        # A permission on one row is not one on all.
        assert Backend().get_all_permissions(found, obj=user) == set()
        user.groups.clear()
    assert may == [True, False]


def test_who_is_not_active_or_not_there_is_nobody() -> None:
    assert Backend().get_user(make_user("Operator", is_active=False).pk) is None
    assert Backend().get_user(0) is None


def test_somebody_found_in_another_way_has_the_same() -> None:
    user = make_user("Operator")
    assert user.has_perm("schedules.run_schedule")
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert not User.objects.get(pk=user.pk).has_perm("schedules.run_schedule")
