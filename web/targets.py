"""The pages of what activities are about."""

from __future__ import annotations

from django.urls import NoReverseMatch, reverse

from activities.models import Activity
from workflows.models import Topic, Workflow

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
    "run": "run",
    "event": "event",
}
# Their pages have a name in the address, and no number.
NAMED: dict[str, type[Workflow | Topic]] = {"workflow": Workflow, "topic": Topic}


def target_url(activity: Activity) -> str:
    """Empty if it has none: most targets are steps, whose page is the activity's own."""
    if named := NAMED.get(activity.target_type):
        known: Workflow | Topic | None = named.objects.filter(pk=activity.target_id).first()
        return known.get_absolute_url() if known else ""
    try:
        return reverse(f"web:{PAGES[activity.target_type]}", args=[activity.target_id])
    except (KeyError, NoReverseMatch):
        return ""
