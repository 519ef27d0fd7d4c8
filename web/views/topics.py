"""Pages of topics and events."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from activities.models import Activity
from database.batched import together
from schedules.models import Schedule
from web.filters import search_box
from web.keyset import OLDER, Pages, address, look_among, newest_first
from web.operating import register
from web.page import fragment, is_asked_by, page, version_of
from workflows.models import Event, Topic
from workflows.models.event import MOST_COUNTED, TopicQuerySet

VIEW_TOPIC, VIEW = "workflows.view_topic", "workflows.view_event"
MOST_TOPICS = 500
MOST_STARTED = 20
MOST_RELATED = 50
REACH = 10_000

register(Topic, view_permission=VIEW)
register(Event, view_permission=VIEW)


class EventFilters(forms.Form):
    q = search_box("Message id, or part of the id")
    status = forms.ChoiceField(
        label="State",
        required=False,
        choices=[("", "Any"), *((v, label.lower()) for v, label in Event.Status.choices)],
    )


@page(VIEW_TOPIC)
def topics(request: HttpRequest) -> HttpResponse:
    rows: Any = _topics().order_by("slug")[:MOST_TOPICS]
    shown = list(rows)
    version = version_of([(row.pk, row.last_seq, row.pending_count, row.oldest_at) for row in shown])
    context = {"title": "Topics", "rows": shown, "most_counted": MOST_COUNTED, "version": version}
    if is_asked_by(request, "rows"):
        return fragment(request, "web/workflows/_topics.html", context, version=version)
    return render(request, "web/workflows/topics.html", context)


@page(VIEW)
def topic(request: HttpRequest, slug: str) -> HttpResponse:
    form = EventFilters(request.GET)
    form.is_valid()
    wanted = {name: value for name, value in form.cleaned_data.items() if value}
    row, exact = _topic(slug, wanted)
    pages = Pages(exact) if exact else _find_events(request, row, wanted)
    version = version_of(row.last_seq, row.pending_count, [(event.pk, event.status) for event in pages.rows])
    context = {
        "title": f"Topic {row.slug}",
        "topic": row,
        "consumer": getattr(row, "subscription", None) and row.subscription.handler,
        "form": form,
        "is_filtered": bool(wanted),
        "pages": pages,
        "is_live": OLDER not in request.GET,
        "here": address(request),
        "most_counted": MOST_COUNTED,
        "version": version,
    }
    if is_asked_by(request, "rows"):
        return fragment(request, "web/workflows/_events.html", context, version=version)
    started = Schedule.objects.filter(event_triggers__topic=row).order_by("name")[:MOST_STARTED]
    return render(request, "web/workflows/topic.html", context | {"started": started})


def _topics() -> TopicQuerySet:
    rows = Topic.objects.select_related("workflow", "subscription__handler__workflow")
    return rows.defer("subscription__handler__state").with_backlog()


def _topic(slug: str, wanted: dict[str, Any]) -> tuple[Any, list[Event]]:
    """Return the topic, and a list with the event whose message id equals the search text, if any."""
    like_it = {"message_id" if name == "q" else name: value for name, value in wanted.items()}
    exact = _events(topic__slug=slug, **like_it) if "q" in wanted else Event.objects.none()
    topics, events = together(_topics().filter(slug=slug), exact)
    if not topics:
        raise Http404(f"Topic “{slug}” does not exist.")
    return topics[0], events


def _events(**wanted: Any) -> QuerySet[Event]:
    return Event.objects.filter(**wanted).defer("payload", "caused_by")


def _find_events(request: HttpRequest, row: Topic, wanted: dict[str, Any]) -> Pages[Event]:
    """Return a page of the topic's events, newest first.

    Without filters, or with only the filter for pending events, an index finds the page. Other filters are
    applied to one event after the other, from the newest backwards.
    """
    rows = _events(topic=row)
    if not wanted or wanted == {"status": Event.Status.PENDING}:
        return newest_first(request, rows.filter(**wanted), key="seq")
    condition = Q(status=wanted["status"]) if "status" in wanted else Q()
    condition &= Q(message_id__icontains=wanted["q"]) if "q" in wanted else Q()
    return look_among(request, rows, condition, key="seq", by="created_at", reach=REACH)


@page(VIEW)
def event(request: HttpRequest, pk: int) -> HttpResponse:
    related = ("topic", "reserved_by__handler__workflow", "created_by__handler__workflow")
    row = Event.objects.select_related(*related).filter(pk=pk).first()
    if row is None:
        raise Http404(f"Event {pk} does not exist.")
    others = _events().select_related("topic")
    led_to = others.filter(created_by=row.reserved_by_id) if row.reserved_by_id else others.none()
    records = Activity.objects.filter(target_type="event", target_id=str(row.pk), task_key=None)
    context = {
        "title": str(row),
        "event": row,
        "causes": list(others.filter(pk__in=row.caused_by).order_by("pk")) if row.caused_by else [],
        "led_to": list(led_to.order_by("pk")[:MOST_RELATED]),
        "records": list(records.defer("traceback", "result", "details").order_by("-pk")[:MOST_RELATED]),
    }
    return render(request, "web/workflows/event.html", context)
