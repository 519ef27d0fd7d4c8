"""Forms that a verb of their model saves."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, TypeVar

from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode

from operations.initiator import Initiator
from operations.operation import Declined, Done, Operation, OperationsAdmin
from schedules.forms import Unsaved
from schedules.models import Refused

M = TypeVar("M", bound=Model)


class VerbsAdmin(OperationsAdmin[M]):
    """Forms that are saved by a verb of their model, which may still refuse what the form let through."""

    def get_form(self, request: HttpRequest, obj: M | None = None, *args: Any, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, *args, **kwargs)
        form.unsaved = unsaved_of(request)  # a class of this request's own
        return form

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: Any = None,
    ) -> HttpResponse:
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except Unsaved as unsaved:
            # Rolled back. The same page again, with all that was typed and the reason where it belongs.
            setattr(request, "unsaved", unsaved)  # noqa: B010 Django's class does not know it
            return super().changeform_view(request, object_id, form_url, extra_context)

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        return []

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Its activities are its history."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = urlencode({"target_type": str(self.opts.model_name), "target_id": object_id})
        return HttpResponseRedirect(f"{reverse('admin:activities_activity_changelist')}?{query}")


class Removal(Operation[Any]):
    """The verb `remove` of a model, which may refuse."""

    name, label, is_final = "delete", "Delete", True
    # Where one goes on: what was deleted has no page any more.
    list_name: ClassVar = ""

    def perform(self, target: Any, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        name = str(target)
        try:
            target.remove(initiator=initiator, now=now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        meta = target._meta
        list_name = self.list_name or f"admin:{meta.app_label}_{meta.model_name}_changelist"
        return Done(f"“{name}” is deleted.", reverse(list_name))


def unsaved_of(request: HttpRequest) -> Unsaved:
    return getattr(request, "unsaved", None) or Unsaved({})


def initiator_of(request: HttpRequest) -> Initiator:
    assert request.user.is_authenticated
    return Initiator.user(request.user)
