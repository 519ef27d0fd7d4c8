from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from database import clock
from operations.admin_pages import InWords, RecordAdmin
from schedules.models import Occurrence, Schedule
from schedules.models.occurrence import named_time
from schedules.outcomes import REASONS, LocalTime, outcome_in_words
from text.clean import search_text
from text.words import NOTHING, badge, moment, on_the_clock, span

from .filters import ScheduleFilter
from .schedule import schedule_link

MOST_FOUND = 1_000


@admin.register(Occurrence)
class OccurrenceAdmin(RecordAdmin[Occurrence]):
    list_display = ("nominal", "schedule_link", "source", "state", "execution_link", "why", "lag")
    list_filter: ClassVar = [("status", InWords), "source", ScheduleFilter]
    linked_by = ("backfill",)
    search_fields = ("schedule__name",)
    search_help_text = "Search by the name of a schedule, or by part of the name."
    fields = (
        "nominal",
        "schedule_link",
        "planned",
        "source",
        "state",
        "sentence",
        "execution_link",
        "settled",
        "policy",
        "backfill_link",
        "initiator",
        "key",
        "all_of_that_time",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Occurrence]:
        rows = super().get_queryset(request).select_related("schedule", "execution")
        return rows.defer("execution__plan", "execution__last_result", "schedule__last_result")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        """Keep the occurrences of schedules whose name contains the search term.

        The schedules are searched first, because there are far fewer schedules than occurrences.
        """
        if not (text := search_text(search_term)):
            return queryset, False
        found = Schedule.objects.filter(name__icontains=text).order_by("pk")
        return queryset.filter(schedule__in=list(found.values_list("pk", flat=True)[:MOST_FOUND])), False

    @admin.display(description="time")
    def nominal(self, occurrence: Occurrence) -> SafeString:
        at, zone, planned = occurrence.nominal_at, occurrence.schedule.zone, self.planned(occurrence)
        return format_html(
            '{}<br><span class="quiet">{} · {}{}</span>',
            on_the_clock(at, zone),
            zone,
            moment(at, now=clock.now()),
            format_html("<br>planned {}", planned) if planned != NOTHING else "",
        )

    @admin.display(description="schedule")
    def schedule_link(self, occurrence: Occurrence) -> SafeString:
        return schedule_link(occurrence.schedule)

    @admin.display(description="planned")
    def planned(self, occurrence: Occurrence) -> str:
        """Return the time with jitter, or a dash if the occurrence has no jitter."""
        if occurrence.planned_at == occurrence.nominal_at or occurrence.source != Occurrence.Source.AUTO:
            return NOTHING
        return on_the_clock(occurrence.planned_at, occurrence.schedule.zone)

    @admin.display(description="outcome")
    def state(self, occurrence: Occurrence) -> SafeString:
        return badge(occurrence.status)

    @admin.display(description="execution")
    def execution_link(self, occurrence: Occurrence) -> SafeString | str:
        execution = getattr(occurrence, "execution", None)
        if execution is None:
            return NOTHING
        return format_html("{} {}", _execution_link(execution.pk), badge(execution.state))

    @admin.display(description="reason")
    def why(self, occurrence: Occurrence) -> SafeString | str:
        """Return the reason in a few words; the page of the occurrence has the full explanation."""
        if occurrence.status == Occurrence.Status.PENDING:
            return self._waits_for(occurrence)
        if occurrence.reason == "overlap" and occurrence.blocked_by is not None:
            return format_html("{} was running", _execution_link(occurrence.blocked_by))
        return REASONS.get(occurrence.reason, occurrence.reason) or NOTHING

    def _waits_for(self, occurrence: Occurrence) -> SafeString | str:
        if occurrence.schedule.is_paused and occurrence.source in Occurrence.AUTOMATIC_SOURCES:
            return "waiting: the schedule is paused"
        is_early = occurrence.planned_at > clock.now()
        return "delayed by jitter" if is_early else "waiting for its turn"

    @admin.display(description="why")
    def sentence(self, occurrence: Occurrence) -> str:
        schedule, at = occurrence.schedule, occurrence.nominal_at
        local = LocalTime(schedule.zone, at.astimezone(schedule.zone).date())
        return outcome_in_words(occurrence, local=local, now=clock.now())

    def lag(self, occurrence: Occurrence) -> str:
        return span(occurrence.lag)

    @admin.display(description="decided")
    def settled(self, occurrence: Occurrence) -> str:
        lag = occurrence.lag
        return NOTHING if lag is None else f"{span(lag)} after the planned time"

    @admin.display(description="policy")
    def policy(self, occurrence: Occurrence) -> str:
        return occurrence.get_overlap_display() if occurrence.overlap else NOTHING

    @admin.display(description="backfill")
    def backfill_link(self, occurrence: Occurrence) -> SafeString | str:
        if occurrence.backfill_id is None:
            return NOTHING
        url = reverse("admin:schedules_backfill_change", args=[occurrence.backfill_id])
        return format_html('<a href="{}">backfill {}</a>', url, occurrence.backfill_id)

    def initiator(self, occurrence: Occurrence) -> str:
        return f"{occurrence.initiator_name} ({occurrence.initiator_type.replace('_', ' ')})"

    @admin.display(description="explanation")
    def all_of_that_time(self, occurrence: Occurrence) -> SafeString:
        query = urlencode({"at": named_time(occurrence.nominal_at)})
        url = f"{reverse('admin:schedules_schedule_why', args=[occurrence.schedule_id])}?{query}"
        return format_html('<a href="{}">Explain this time</a>', url)


def _execution_link(pk: int) -> SafeString:
    url = reverse("admin:execution_execution_change", args=[pk])
    return format_html('<a href="{}">execution {}</a>', url, pk)
