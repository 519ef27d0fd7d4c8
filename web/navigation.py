"""The menu of all pages: links to the lists that the user may see."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from .page import zone_for


class Item(NamedTuple):
    label: str
    url: str
    is_current: bool
    key: str = ""


# Label, URL name, permission, and the key that opens the page when it is typed after “g”.
MAIN = (
    ("Schedules", "schedules", "schedules.view_schedule", "s"),
    ("Executions", "executions", "execution.view_execution", "e"),
    ("Workflows", "workflows", "workflows.view_workflow", "w"),
    ("Queue", "queue", "execution.view_workertask", "q"),
    ("Activities", "activities", "activities.view_activity", "a"),
)
MORE = (
    ("Workers", "workers", "execution.view_worker", ""),
    ("Limits and pools", "limits", "execution.view_limit", ""),
    ("Calendars", "calendars", "schedules.view_sharedcalendar", ""),
    ("Templates", "templates", "schedules.view_tasktemplate", ""),
    ("Webhooks", "webhooks", "webhooks.view_endpoint", ""),
    ("API tokens", "tokens", "", ""),
    ("Settings", "settings", "web.view_settings", ""),
)
# The menu entries of pages whose addresses do not begin with the address of their menu entry.
KIN = {"backfill": "schedules"} | dict.fromkeys(("run", "topics", "topic", "event"), "workflows")


def navigation(request: HttpRequest) -> dict[str, Any]:
    if not getattr(request, "user", None) or not request.user.is_authenticated:
        return {}
    more = _items(request, MORE)
    return {
        "navigation": _items(request, MAIN),
        "navigation_more": more,
        "navigation_more_current": any(item.is_current for item in more),
        "time_zone": zone_for(request),
    }


def _items(request: HttpRequest, entries: tuple[tuple[str, str, str, str], ...]) -> list[Item]:
    items, page = [], request.resolver_match.url_name if request.resolver_match else None
    for label, name, permission, key in entries:
        if permission and not request.user.has_perm(permission):
            continue
        try:
            url = reverse(f"web:{name}")
        except NoReverseMatch:
            continue
        items.append(Item(label, url, request.path.startswith(url) or KIN.get(page or "") == name, key))
    return items
