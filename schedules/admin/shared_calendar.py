from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString

from database import clock
from operations.admin_pages import VerbsAdmin
from operations.form_errors import Unsaved
from operations.initiator import initiator_of
from schedules.calendar_form import CalendarForm
from schedules.models import Conflict, Refused, SharedCalendar
from schedules.operations import DeleteCalendar
from schedules.spec.wording import counted
from schedules.spec_text import exclusions_to_text

DATES_SHOWN = 400


@admin.register(SharedCalendar)
class SharedCalendarAdmin(VerbsAdmin[SharedCalendar]):
    """The admin pages of shared calendars."""

    form = CalendarForm
    change_form_template = "admin/schedules/sharedcalendar/change_form.html"
    list_display = ("name", "sentence", "users", "description")
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SharedCalendar]:
        is_open = ~Q(schedules__status="closed")
        return super().get_queryset(request).annotate(users=Count("schedules", filter=is_open))

    def get_fields(self, request: HttpRequest, obj: SharedCalendar | None = None) -> Any:
        if obj is None:
            return ("name", "description", "excluded", "version")
        if self.has_change_permission(request, obj):
            return ("description", "excluded", "version")
        return ("name", "description", "rules")

    def get_readonly_fields(self, request: HttpRequest, obj: SharedCalendar | None = None) -> Any:
        return () if obj is None or self.has_change_permission(request, obj) else ("rules",)

    def save_model(self, request: HttpRequest, obj: SharedCalendar, form: Any, change: bool) -> None:
        given = {name: form.cleaned_data[name] for name in SharedCalendar.EDITABLE}
        by, now = initiator_of(request), clock.now()
        try:
            if change:
                # Load the stored calendar, because the form has already changed `obj`.
                stored = SharedCalendar.objects.get(pk=obj.pk)
                stored.edit(token=form.cleaned_data["version"], changes=given, initiator=by, now=now)
            else:
                obj.pk = SharedCalendar.objects.define(obj.name, **given, initiator=by, now=now).pk
        except (Refused, Conflict) as refused:
            raise Unsaved({}, refusal=str(refused)) from refused
        except ValidationError as error:
            raise Unsaved(error.message_dict) from error

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(self.operation_url(DeleteCalendar.name, [object_id]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if calendar := context.get("original"):
            calendar = SharedCalendar.objects.get(pk=calendar.pk)  # a form may have changed the instance
            year = clock.now().year
            context["sentence"] = calendar.describe()
            can_see = request.user.has_perm("schedules.view_schedule")
            context["used_by"] = calendar.used_by() if can_see else None
            context["years"] = [
                (each, calendar.upcoming_dates(each)[:DATES_SHOWN]) for each in (year, year + 1)
            ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="excludes")
    def sentence(self, calendar: SharedCalendar) -> str:
        return calendar.describe()

    @admin.display(description="used by")
    def users(self, calendar: Any) -> str:
        return counted(calendar.users, "schedule") if calendar.users else "no schedule"

    @admin.display(description="excluded")
    def rules(self, calendar: SharedCalendar) -> SafeString:
        return format_html("<pre>{}</pre>", exclusions_to_text(calendar.excluded))
