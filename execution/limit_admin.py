from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from database import clock
from execution.limit_form import LimitForm
from execution.operations import DeleteLimit
from execution.queue.concurrency import key_complaint
from execution.queue.snapshot import MOST_COUNTED, usage
from operations.admin_pages import VerbsAdmin
from operations.form_errors import Unsaved
from operations.initiator import initiator_of
from schedules.models import Refused

from .models import Limit


class LimitChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        _count(self.result_list)


@admin.register(Limit)
class LimitAdmin(VerbsAdmin[Limit]):
    """The limits on how many tasks with the same key can run at once."""

    form = LimitForm
    change_form_template = "admin/execution/limit/change_form.html"
    list_display = ("key", "size", "in_use", "waiting", "note")
    search_fields = ("key", "note")
    ordering = ("key",)
    sortable_by = ("key", "size")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LimitChangeList]:
        return LimitChangeList

    def get_fields(self, request: HttpRequest, obj: Limit | None = None) -> Any:
        return ("key", "size", "note") if obj is None else ("size", "note")

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        given = {name: form.cleaned_data[name] for name in Limit.EDITABLE}
        by, now = initiator_of(request), clock.now()
        try:
            if change:
                Limit.objects.get(pk=obj.pk).edit(changes=given, initiator=by, now=now)
            else:
                Limit.objects.define(obj.key, **given, initiator=by, now=now)
        except (Refused, Limit.DoesNotExist) as refused:
            raise Unsaved({}, refusal=str(refused)) from refused
        except ValidationError as error:
            raise Unsaved(error.message_dict) from error

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Limit | None:
        return super().get_object(request, object_id, from_field) if self._is_id(unquote(object_id)) else None

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(self.operation_url(DeleteLimit.name, [unquote(object_id)]))

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        # An activity stores only the first 64 characters of a key.
        return super().history_view(request, unquote(object_id)[:64], extra_context)

    def _is_id(self, text: str) -> bool:
        return not key_complaint(text)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if limit := context.get("original"):
            _count([limit])
            context |= {"in_use": limit.in_use, "waiting": self.waiting(limit)}
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="in use now")
    def in_use(self, limit: Any) -> int:
        return int(limit.in_use)

    @admin.display(description="waiting now")
    def waiting(self, limit: Any) -> str:
        return str(limit.waiting) if limit.waiting < MOST_COUNTED else f"{MOST_COUNTED} or more"


def _count(limits: Any) -> None:
    used = usage() if limits else {}
    for limit in limits:
        limit.in_use, limit.waiting = used.get(limit.key, (0, 0))
