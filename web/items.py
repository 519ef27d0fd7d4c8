"""The items of attempts on a page, by outcome."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest

from activities.models import ActivityItem

from .keyset import address

MOST_SHOWN = 100
OUTCOMES = {"": "All", **dict(ActivityItem.Outcome.choices)}


def items_page(request: HttpRequest, items: QuerySet[ActivityItem]) -> dict[str, Any]:
    """In the order of the attempts, so that one index finds them, whatever is asked for."""
    outcome = request.GET.get("outcome", "")
    if outcome in ActivityItem.Outcome.values:
        items = items.filter(outcome=outcome)
    rows = items.select_related("activity").order_by("activity", "pk")
    rows = rows.only("name", "outcome", "message", "created_at", "activity__target_name", "activity__attempt")
    found = list(rows.filter(_after(request.GET.get("from", "")))[: MOST_SHOWN + 1])
    shown = found[:MOST_SHOWN]
    more = (
        address(request, **{"from": f"{shown[-1].activity_id}.{shown[-1].pk}"})
        if len(found) > MOST_SHOWN
        else ""
    )
    outcomes = [
        (label, address(request, outcome=name, **{"from": ""}), name == outcome)
        for name, label in OUTCOMES.items()
    ]
    return {"items": shown, "more_items": more, "outcomes": outcomes, "outcome": outcome}


def _after(cursor: str) -> Q:
    """What makes no sense is the beginning."""
    activity, _, item = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (activity, item)):
        return Q()
    return Q(activity__gt=int(activity)) | Q(activity=int(activity), pk__gt=int(item))
