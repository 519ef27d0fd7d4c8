from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from activities import clock
from activities.pages import RecordAdmin
from activities.words import NOTHING, badge, exact, moment, span
from schedules.models import Occurrence


@admin.register(Occurrence)
class OccurrenceAdmin(RecordAdmin[Occurrence]):
    list_display = ("nominal", "schedule_link", "source", "state", "why", "settled")
    list_filter = ("status", "source")
    list_select_related = ("schedule", "execution")
    fields = ("nominal", "schedule_link", "source", "state", "why", "settled", "initiator", "key")

    @admin.display(description="time")
    def nominal(self, occurrence: Occurrence) -> SafeString:
        zone = occurrence.schedule.zone
        return format_html(
            '{} <span class="quiet">{}</span>',
            exact(occurrence.nominal_at, zone),
            moment(occurrence.nominal_at, now=clock.now()),
        )

    @admin.display(description="schedule")
    def schedule_link(self, occurrence: Occurrence) -> SafeString:
        url = reverse("admin:schedules_schedule_change", args=[occurrence.schedule_id])
        return format_html('<a href="{}">{}</a>', url, occurrence.schedule)

    @admin.display(description="fate")
    def state(self, occurrence: Occurrence) -> SafeString:
        execution = getattr(occurrence, "execution", None)
        if execution is None:
            return badge(occurrence.status)
        return format_html("{} {}", badge(occurrence.status), _execution_link(execution.pk))

    @admin.display(description="reason")
    def why(self, occurrence: Occurrence) -> SafeString | str:
        if occurrence.blocked_by is None:
            return occurrence.reason or NOTHING
        return format_html("{}: {} was running", occurrence.reason, _execution_link(occurrence.blocked_by))

    @admin.display(description="settled")
    def settled(self, occurrence: Occurrence) -> str:
        lag = occurrence.lag
        return NOTHING if lag is None else f"{span(lag)} after its time"

    def initiator(self, occurrence: Occurrence) -> str:
        return f"{occurrence.initiator_name} ({occurrence.initiator_type.replace('_', ' ')})"


def _execution_link(pk: int) -> SafeString:
    url = reverse("admin:execution_execution_change", args=[pk])
    return format_html('<a href="{}">execution {}</a>', url, pk)
