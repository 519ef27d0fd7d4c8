"""The groups that JIM creates, and their permissions."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.db.models import Max

VIEWER = (
    *("schedules.view_schedule", "schedules.view_occurrence", "schedules.view_backfill"),
    *("schedules.view_step", "schedules.view_sharedcalendar", "schedules.view_tasktemplate"),
    *("execution.view_execution", "execution.view_workertask", "execution.view_worker"),
    *("execution.view_limit", "execution.view_reservation"),
    *("activities.view_activity", "activities.view_activityitem", "activities.view_outputline"),
    *("workflows.view_workflow", "workflows.view_handler", "workflows.view_run"),
    *("workflows.view_topic", "workflows.view_event"),
    *("identity.view_connectedsystem", "identity.view_syncrule"),
)
OPERATOR = (
    *(*VIEWER, "schedules.run_schedule", "webhooks.view_endpoint", "webhooks.view_delivery"),
    *("workflows.operate_workflow", "workflows.publish_event"),
    *("identity.view_identity", "identity.run_profile"),
)
AUTHOR = (
    *OPERATOR,
    *("schedules.add_schedule", "schedules.change_schedule", "schedules.delete_schedule"),
    *("schedules.add_tasktemplate", "schedules.change_tasktemplate"),
    *("schedules.add_sharedcalendar", "schedules.change_sharedcalendar", "schedules.delete_sharedcalendar"),
    *("schedules.define_code", "identity.define_identity"),
)
ADMINISTRATOR = (
    *AUTHOR,
    *("schedules.view_secret", "schedules.add_secret", "schedules.change_secret", "schedules.delete_secret"),
    *("execution.add_limit", "execution.change_limit", "execution.delete_limit"),
    *("execution.change_reservation",),
    *("webhooks.add_endpoint", "webhooks.change_endpoint", "webhooks.delete_endpoint"),
    *("webhooks.change_delivery",),
    *("api.view_apitoken", "api.add_apitoken", "api.change_apitoken", "api.delete_apitoken"),
    "api.view_failedsignin",
    *("identity.approve_removal", "identity.delete_accounts"),
    "web.view_settings",
    *("auth.view_user", "auth.add_user", "auth.change_user", "auth.view_group"),
)
ROLES = {"Viewer": VIEWER, "Operator": OPERATOR, "Author": AUTHOR, "Administrator": ADMINISTRATOR}

_newest_before = 0


def remember_permissions(**_: Any) -> None:
    """Remember the newest permission before a migration, so that `give_permissions` knows which are new."""
    global _newest_before
    is_there = Permission._meta.db_table in connection.introspection.table_names()
    newest = Permission.objects.aggregate(newest=Max("pk"))["newest"] if is_there else None
    _newest_before = newest or 0


def give_permissions(**_: Any) -> None:
    """Give new groups all of their permissions, and existing groups only permissions that are new.

    Permissions that an administrator has removed from a group stay removed.
    """
    found = Permission.objects.values_list("content_type__app_label", "codename", "pk")
    ids = {f"{app}.{codename}": pk for app, codename, pk in found}
    for role, names in ROLES.items():
        group, is_new = Group.objects.get_or_create(name=role)
        given = [ids[name] for name in names if is_new or ids[name] > _newest_before]
        if given:
            group.permissions.add(*given)
