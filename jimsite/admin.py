"""Accounts, searched as everything else is."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User

from activities.pages import PlainSearch

admin.site.unregister([User, Group])


@admin.register(User)
class Users(PlainSearch[User], UserAdmin):  # type: ignore[type-arg]
    pass


@admin.register(Group)
class Groups(PlainSearch[Group], GroupAdmin):
    pass
