from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from database import clock
from operations.admin_pages import InWords, OperationsAdmin, RecordAdmin
from schedules.models import Backfill
from text.words import NOTHING, badge, exact, moment

from .filters import ScheduleFilter
from .schedule import schedule_link


@admin.register(Backfill)
class BackfillAdmin(RecordAdmin[Backfill], OperationsAdmin[Backfill]):
    list_display = ("__str__", "schedule_link", "state", "progress", "which", "overlap_name", "who", "asked")
    list_filter: ClassVar = [("status", InWords), ScheduleFilter]
    fields = (
        "schedule_link",
        "state",
        "range",
        "which",
        "overlap",
        "progress",
        "became",
        "reason",
        "who",
        "asked",
        "finished",
        "runs",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Backfill]:
        rows: Any = super().get_queryset(request)
        heavy = ("schedule__last_result", "schedule__calendars")
        found: QuerySet[Backfill] = rows.with_waiting().select_related("schedule").defer(*heavy)
        return found

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["is_moving"] = self.operations[0].applies(context["original"])
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="schedule")
    def schedule_link(self, backfill: Backfill) -> SafeString:
        return schedule_link(backfill.schedule)

    @admin.display(description="status")
    def state(self, backfill: Any) -> SafeString:
        """Return the status as a badge: “waiting” if the backfill is done but has pending occurrences."""
        return badge(
            "waiting" if backfill.status == Backfill.Status.DONE and backfill.waiting else backfill.status
        )

    @admin.display(description="policy")
    def overlap_name(self, backfill: Backfill) -> str:
        return backfill.get_overlap_display().partition(":")[0]

    @admin.display(description="progress")
    def progress(self, backfill: Any) -> SafeString:
        done = backfill.passed_count - backfill.waiting
        words = f"{done:,} of {backfill.total:,}"
        return format_html('<progress max="{}" value="{}"></progress> {}', backfill.total, done, words)

    @admin.display(description="outcomes")
    def became(self, backfill: Backfill) -> str:
        at = backfill.progress()
        counts = (
            (at.started - at.running, "ended"),
            (at.running, "running"),
            (at.waiting, "waiting"),
            (at.not_started, "not started"),
            (at.passed - at.added, "left out"),
        )
        return ", ".join(f"{count:,} {name}" for count, name in counts if count) or "nothing yet"

    def range(self, backfill: Backfill) -> str:
        zone = backfill.schedule.zone
        return f"{exact(backfill.start_at, zone)} to {exact(backfill.end_at, zone)}"

    @admin.display(description="requested by")
    def who(self, backfill: Backfill) -> str:
        return backfill.initiator_name

    @admin.display(description="requested")
    def asked(self, backfill: Backfill) -> SafeString:
        return moment(backfill.created_at, now=clock.now())

    def finished(self, backfill: Any) -> SafeString:
        return moment(None if backfill.waiting else backfill.finished_at, now=clock.now())

    @admin.display(description="occurrences")
    def runs(self, backfill: Backfill) -> SafeString | str:
        if not backfill.added_count:
            return NOTHING
        url = f"{reverse('admin:schedules_occurrence_changelist')}?backfill__id__exact={backfill.pk}"
        return format_html('<a href="{}">{} in the ledger</a>', url, f"{backfill.added_count:,}")
