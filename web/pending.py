"""How many events wait in each topic, counted no further than it matters."""

from __future__ import annotations

from typing import Any

from django.db.models import IntegerField, OuterRef, QuerySet, Subquery

from workflows.models import Event, Topic

MOST_COUNTED = 1_000


class _Count(Subquery):
    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"
    output_field = IntegerField()


def with_pending(topics: QuerySet[Topic]) -> QuerySet[Any]:
    """Each with `pending`, on the index of what is."""
    events = Event.objects.pending().filter(topic=OuterRef("pk")).order_by("seq")
    return topics.annotate(pending=_Count(events.values("pk")[:MOST_COUNTED]))
