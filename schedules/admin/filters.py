"""Filters for the lists in the admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Func, Q, QuerySet, TextField, Value
from django.http import HttpRequest

from database import clock
from operations.admin_pages import KnownValues
from schedules.models import Overlap, Schedule, ScheduleQuerySet, Tag
from text.clean import clean_text
from text.numbers import whole_number

MOST_CHOICES = 50


class StateFilter(admin.SimpleListFilter):
    """A filter by schedule state. Closed schedules are listed only if “closed” or “all” is chosen."""

    title = parameter_name = "state"
    STATES: ClassVar = {
        "active": Q(status="active", spec_error=""),
        "paused": Q(status="paused"),
        "overdue": ~Q(status="closed"),
        "broken": ~Q(spec_error="") & ~Q(status="closed"),
        "closed": Q(status="closed"),
        "all": Q(),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in self.STATES]

    def choices(self, changelist: Any) -> Any:
        first, *rest = super().choices(changelist)
        return [{**first, "display": "open"}, *rest]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Schedule]:
        rows: ScheduleQuerySet = queryset.filter(self.STATES.get(self.value() or "", ~Q(status="closed")))
        return rows.overdue(clock.now()) if self.value() == "overdue" else rows


class OutcomeFilter(KnownValues):
    title = "last outcome"
    parameter_name = "last_outcome"

    def values(self) -> tuple[str, ...]:
        return ("completed", "failed", "cancelled")


class OverlapFilter(KnownValues):
    title = parameter_name = "overlap"

    def values(self) -> list[str]:
        return Overlap.values


class TagFilter(admin.SimpleListFilter):
    title = parameter_name = "tag"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        used = Tag.objects.exclude(schedule__status=Schedule.Status.CLOSED).order_by("name")
        names = list(used.values_list("name", flat=True).distinct()[:MOST_CHOICES])
        chosen = request.GET.get(self.parameter_name)
        return [(name, name) for name in dict.fromkeys([*names, *filter(None, [chosen])])]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Schedule]:
        tag = clean_text(self.value() or "")
        tagged: QuerySet[Schedule] = queryset.tagged(tag) if tag else queryset
        return tagged


class MemoText(Func):
    """The SQL for the text of a memo entry. Django's own lookup would read the name “7” as a list index."""

    function = "jsonb_extract_path_text"

    def __init__(self, name: str) -> None:
        super().__init__("memo", Value(name), output_field=TextField())

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template, joiner = "(SELECT value FROM json_each(%(expressions)s))", ") WHERE key = ("
        return self.as_sql(compiler, connection, template=template, arg_joiner=joiner, **context)


class MemoFilter(admin.SimpleListFilter):
    """A filter by memo. Users type “name” or “name=text”, because a list would have too many choices."""

    title = parameter_name = "memo"
    template = "admin/schedules/schedule/_memo_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[Any]:
        yield {
            "value": self.value() or "",
            "others": [(name, value) for name, value in changelist.params.items()],
            "clear": changelist.get_query_string(remove=[self.parameter_name]),
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> QuerySet[Schedule]:
        name, _, text = clean_text(self.value() or "").partition("=")
        if not name.strip():
            return queryset
        named = queryset.alias(memo_text=MemoText(name.strip()))
        return named.filter(memo_text=text.strip()) if text.strip() else named.filter(memo_text__isnull=False)


class ScheduleFilter(admin.SimpleListFilter):
    """A filter by schedule.

    It lists the open schedules and the chosen one. If too many are open, it lists only the chosen one.
    """

    title = "schedule"
    parameter_name = "schedule__id__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get(self.parameter_name, "")
        rows = list(Schedule.objects.open().order_by("name").values_list("pk", "name")[: MOST_CHOICES + 1])
        shown = {str(pk): name for pk, name in rows} if len(rows) <= MOST_CHOICES else {}
        if chosen not in shown and (wanted := whole_number(chosen)) is not None:
            shown |= {
                str(pk): name for pk, name in Schedule.objects.filter(pk=wanted).values_list("pk", "name")
            }
        return list(shown.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if not chosen:
            return queryset
        wanted = whole_number(chosen)
        return queryset.none() if wanted is None else queryset.filter(schedule=wanted)
