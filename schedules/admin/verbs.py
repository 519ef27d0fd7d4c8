"""Forms that a verb of their model saves."""

from __future__ import annotations

from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode

from operations.admin_pages import OperationsAdmin
from schedules.forms import Unsaved

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


def unsaved_of(request: HttpRequest) -> Unsaved:
    return getattr(request, "unsaved", None) or Unsaved({})
