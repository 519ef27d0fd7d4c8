"""The pages of what activities are about."""

from __future__ import annotations

from django.urls import NoReverseMatch, reverse

from activities.models import Activity

PAGES = {
    "schedule": "schedule",
    "execution": "execution",
    "sharedcalendar": "calendar",
    "tasktemplate": "template",
    "backfill": "backfill",
    "limit": "limit",
    "worker": "worker",
    "endpoint": "endpoint",
    "delivery": "delivery",
    "activity": "activity",
}


def target_url(activity: Activity) -> str:
    """Empty if it has none: most targets are steps, whose page is the activity's own."""
    try:
        return reverse(f"web:{PAGES[activity.target_type]}", args=[activity.target_id])
    except (KeyError, NoReverseMatch):
        return ""
