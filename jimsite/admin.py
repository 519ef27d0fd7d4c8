"""Admin pages for accounts and groups.

Users can neither grant permissions that they do not have, nor change accounts and groups that have them.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from operations.admin_pages import PlainSearch

admin.site.unregister([User, Group])


@admin.register(User)
class Users(PlainSearch[User], UserAdmin):  # type: ignore[type-arg]
    """Account pages. Users can change only accounts that have no permissions beyond their own."""

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        if request.user.is_superuser:
            return fieldsets
        return [(title, _without(options, "is_superuser")) for title, options in fieldsets]

    def get_list_filter(self, request: HttpRequest) -> Any:
        filters = super().get_list_filter(request)
        return [name for name in filters if request.user.is_superuser or name != "is_superuser"]

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or _covers(request, _held(obj)))

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or _covers(request, _held(obj)))

    def formfield_for_manytomany(self, db_field: Any, request: Any = None, **kwargs: Any) -> Any:
        field = super().formfield_for_manytomany(db_field, request, **kwargs)
        if field is not None and not request.user.is_superuser:
            beyond = _beyond(request)
            within = {"user_permissions": ~Q(pk__in=beyond), "groups": ~Q(permissions__in=beyond)}
            field.queryset = field.queryset.filter(within[db_field.name])  # type: ignore[union-attr]
        return field


@admin.register(Group)
class Groups(PlainSearch[Group], GroupAdmin):
    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return super().has_change_permission(request, obj) and (
            obj is None or _covers(request, obj.permissions.all())
        )

    def has_delete_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (
            obj is None or _covers(request, obj.permissions.all())
        )

    def formfield_for_manytomany(self, db_field: Any, request: Any = None, **kwargs: Any) -> Any:
        field = super().formfield_for_manytomany(db_field, request, **kwargs)
        if field is not None and not request.user.is_superuser:
            field.queryset = field.queryset.exclude(pk__in=_beyond(request))  # type: ignore[union-attr]
        return field


def _without(options: Any, name: str) -> dict[str, Any]:
    return {**options, "fields": tuple(field for field in options["fields"] if field != name)}


def _held(user: User) -> QuerySet[Permission] | None:
    """Return the permissions of an account, even if it is inactive; None for a superuser."""
    if user.is_superuser:
        return None
    return Permission.objects.filter(Q(user=user) | Q(group__user=user))


def _covers(request: HttpRequest, held: QuerySet[Permission] | None) -> bool:
    """Return whether the current user has all permissions in `held`; None means those of a superuser."""
    if request.user.is_superuser:
        return True
    return held is not None and not held.filter(pk__in=_beyond(request)).exists()


def _beyond(request: HttpRequest) -> list[int]:
    """Return the ids of the permissions that the current user does not have, cached for the request."""
    if not hasattr(request, "beyond"):
        own = request.user.get_all_permissions()
        every = Permission.objects.values_list("content_type__app_label", "codename", "pk")
        request.beyond = [pk for app, codename, pk in every if f"{app}.{codename}" not in own]  # type: ignore[attr-defined]
    return request.beyond  # type: ignore[attr-defined, no-any-return]
