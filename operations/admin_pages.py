"""Base classes of JIM's admin pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import Model, Q, QuerySet, UUIDField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from database import clock
from database.keyset import read_page
from text.clean import search_text
from text.numbers import whole_number
from text.words import NOTHING

from .form_errors import Unsaved, complain
from .operation import (
    MOST_AT_ONCE,
    UUID_TEXT,
    Declined,
    Done,
    Operation,
    answers_of,
    offered_for,
    perform_each,
)

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin
else:

    class ModelAdmin(admin.ModelAdmin):
        """Accepts a type parameter, as in `ModelAdmin[Run]`, which Django's class refuses at run time."""

        def __class_getitem__(cls, parameter: object) -> type[ModelAdmin]:
            return cls


M = TypeVar("M", bound=Model)


class PlainSearch(ModelAdmin[M]):
    """Searches for the text exactly as typed; Django's own search interprets quotation marks."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not (text := search_text(search_term)):
            return queryset, False
        names = self.get_search_fields(request)
        found = Q(*[(f"{name}__icontains", text) for name in names], _connector=Q.OR)
        return queryset.filter(found), False

    # Columns by which JIM's own links filter a list, in addition to the filters of the list.
    linked_by: ClassVar[tuple[str, ...]] = ()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only lookups that the filters of the list use.

        Django allows every lookup of every column, and some of them fail in the database: patterns, numbers
        that are too large, and lookups of JSON.
        """
        name = lookup.removesuffix("__exact").removesuffix("__isnull")
        is_offered = name in self._filtered_by(request)
        return is_offered and super().lookup_allowed(lookup, value, request)

    def _filtered_by(self, request: HttpRequest) -> Iterator[str]:
        for each in (*self.get_list_filter(request), *self.linked_by):
            name = each[0] if isinstance(each, tuple | list) else getattr(each, "parameter_name", each)
            yield str(name).removesuffix("__exact")
            yield f"{name}__id"


class JimAdmin(PlainSearch[M]):
    """Admin pages without deletion. Changes are recorded as activities instead of admin log entries."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    empty_value_display = NOTHING

    @property
    def list_title(self) -> str:
        return capfirst(str(self.opts.verbose_name_plural))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        names = {"title": self.list_title, "list_title": self.list_title}
        return super().changelist_view(request, {**names, **(extra_context or {})})

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: Any = None,
    ) -> HttpResponse:
        if "_saveasnew" in request.POST:
            # Django accepts this even if `save_as` is off, and then shows an object that does not exist.
            raise BadRequest("“Save as new” is not available here.")
        return super().changeform_view(request, object_id, form_url, extra_context)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        return super().render_change_form(
            request, {"list_title": self.list_title, **context}, *args, **kwargs
        )

    def get_view_on_site_url(self, obj: Any = None) -> str | None:
        """Return the page of a row outside the admin, if it has one."""
        return obj.get_absolute_url() if hasattr(obj, "get_absolute_url") else None

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return None

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return None

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> NoReturn:
        raise Http404(f"{capfirst(opts.verbose_name)} {object_id} was not found.")


class KnownValues(ABC, admin.SimpleListFilter):
    """A filter by values that are known in advance, so that a large table is not queried for them."""

    @abstractmethod
    def values(self) -> Iterable[str]: ...

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, value.replace("_", " ")) for value in sorted(self.values())]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


class InWords(admin.ChoicesFieldListFilter):
    """A filter by state that shows the states in lower case, as badges do."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        everything, *states = super().choices(changelist)
        yield everything
        yield from ({**state, "display": str(state["display"]).lower()} for state in states)


class RecordAdmin(JimAdmin[M]):
    """Read-only pages of rows that only JIM itself writes."""

    change_form_template = "admin/record.html"
    change_list_template = "admin/endless_list.html"
    sortable_by: ClassVar[tuple[str, ...]] = ()
    oldest_first = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> NoReturn:
        raise Http404("This record is read-only, so it has no history of changes.")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return EndlessChangeList

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show only the fields that have a value."""
        fields = super().get_fields(request, obj)
        return [name for name in fields if obj is None or self._value(name, obj) not in (None, "", NOTHING)]

    def _value(self, name: Any, obj: Any) -> Any:
        return getattr(self, name)(obj) if hasattr(self, name) else getattr(obj, name)


class EndlessChangeList(ChangeList):
    """A list that is sorted and paged by key, so that the rows of a large table are never counted."""

    older: str | None

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["pk" if self.oldest_first else "-pk"]

    def get_results(self, request: HttpRequest) -> None:
        after = self.page_num if PAGE_VAR in request.GET else None
        page = read_page(self.queryset, after=after, count=self.list_per_page, oldest_first=self.oldest_first)
        self.result_list = page.rows
        self.older = None if page.next is None else self.get_query_string({PAGE_VAR: page.next})
        self.newest = self.get_query_string() if PAGE_VAR in request.GET else None
        self.result_count = len(self.result_list)
        self.full_result_count, self.show_full_result_count = None, False
        self.show_admin_actions, self.can_show_all, self.multi_page = True, False, False

    @property
    def oldest_first(self) -> bool:
        return bool(getattr(self.model_admin, "oldest_first", False))


class OperationsAdmin(JimAdmin[M]):
    """Pages that offer the operations of a model as buttons and list actions."""

    @property
    def operations(self) -> Sequence[Operation[Any]]:
        return offered_for(self.model)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operation_view)
        return [path("do/<slug:name>/", view, name=self._url_name), *super().get_urls()]

    def get_actions(self, request: HttpRequest) -> Any:
        return {
            operation.name: (partial(_ask, operation=operation), operation.name, operation.label)
            for operation in self.operations
            if operation.is_allowed(request)
        }

    def operation_view(self, request: HttpRequest, name: str) -> HttpResponse:
        operation = next((each for each in self.operations if each.name == name), None)
        if operation is None:
            raise Http404(f"Operation {name} was not found.")
        if not (operation.is_allowed(request) and self.has_view_permission(request)):
            raise PermissionDenied
        targets = self._targets(request)
        form = operation.ask(targets, request.GET, request.POST if request.method == "POST" else None)
        if not form.is_valid():
            return self._confirmation(request, operation, targets, form)
        if operation.is_rehearsed and request.POST.get("rehearsed") != answers_of(request):
            rehearsed = self._rehearse(request, operation, targets, form)
            return self._confirmation(request, operation, targets, form, rehearsed)
        done = perform_each(request, operation, targets, form)
        if done is None:
            return self._confirmation(request, operation, targets, form)
        if any(each.reveal for each in done):
            return self.revelation(request, operation.label, done, back=self._page_after(targets, done))
        return HttpResponseRedirect(self._page_after(targets, done))

    def revelation(
        self, request: HttpRequest, title: str, done: Sequence[Done], *, back: str
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "revealed": [each.reveal for each in done],
            "back": back,
        }
        return TemplateResponse(request, "admin/revelation.html", context)

    def buttons(self, request: HttpRequest, target: M) -> list[tuple[Operation[Any], str]]:
        return [
            (operation, self.operation_url(operation.name, [target.pk]))
            for operation in self.operations
            if operation.is_allowed(request) and operation.applies(target)
        ]

    def operation_url(self, name: str, ids: Sequence[Any]) -> str:
        return f"{reverse(f'admin:{self._url_name}', args=[name])}?{urlencode([('id', pk) for pk in ids])}"

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if context.get("original"):
            context["buttons"] = self.buttons(request, context["original"])
        return super().render_change_form(request, context, *args, **kwargs)

    def _targets(self, request: HttpRequest) -> list[M]:
        ids = set(request.GET.getlist("id"))
        if not all(self._is_id(text) for text in ids):
            raise Http404("The address contains an invalid id.")
        targets = list(self.get_queryset(request).filter(pk__in=ids).order_by("pk")[:MOST_AT_ONCE])
        if not targets or len(targets) != len(ids):
            raise Http404(f"Not all selected rows were found. Go back and select 1 to {MOST_AT_ONCE} rows.")
        return targets

    def _is_id(self, text: str) -> bool:
        if isinstance(self.opts.pk, UUIDField):
            return UUID_TEXT.fullmatch(text) is not None
        return whole_number(text) is not None

    def _rehearse(
        self, request: HttpRequest, operation: Operation[Any], targets: Sequence[M], form: forms.Form
    ) -> list[str]:
        """Describe what the operation would do to each target, or return [] if an answer is invalid."""
        shown, now = [], clock.now()
        for target in targets:
            try:
                shown.append(operation.rehearse(target, answers=form.cleaned_data, now=now))
            except Declined as declined:
                self.message_user(request, declined.args[0], messages.ERROR)
            except ValidationError as error:
                complain(form, error)
                return []
        return shown

    def _confirmation(
        self,
        request: HttpRequest,
        operation: Operation[Any],
        targets: Sequence[M],
        form: forms.Form,
        rehearsed: Sequence[str] = (),
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": operation.label,
            "list_title": getattr(self, "list_title", ""),
            "opts": self.opts,
            "operation": operation,
            "targets": [(target, self._change_url(target), operation.about(target)) for target in targets],
            "form": form,
            "rehearsed": rehearsed,
            "answers": answers_of(request),
            "back": self._page_after(targets, []),
        }
        return TemplateResponse(request, "admin/confirmation.html", context)

    def _page_after(self, targets: Sequence[M], done: Sequence[Done]) -> str:
        if len(targets) > 1:
            return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        return (done[0].url if done else "") or self._change_url(targets[0])

    def _change_url(self, target: M) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[quote(target.pk)])

    @property
    def _url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_do"


def _ask(
    admin: OperationsAdmin[Any], request: HttpRequest, chosen: QuerySet[Any], *, operation: Operation[Any]
) -> HttpResponse | None:
    """Redirect a list action to the confirmation page of the operation."""
    ids = list(chosen.order_by().values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
    if len(ids) > MOST_AT_ONCE:
        admin.message_user(request, f"Select at most {MOST_AT_ONCE} rows at a time.", messages.ERROR)
        return None
    return HttpResponseRedirect(admin.operation_url(operation.name, ids))


class VerbsAdmin(OperationsAdmin[M]):
    """Pages whose forms are saved by a method of the model; the method can refuse what the form accepts."""

    def get_form(self, request: HttpRequest, obj: M | None = None, *args: Any, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, *args, **kwargs)
        form.unsaved = unsaved_of(request)  # Django makes a new class for each request
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
            # The transaction was rolled back: show the page again with the input and the errors.
            setattr(request, "unsaved", unsaved)  # noqa: B010 Django's class does not know it
            return super().changeform_view(request, object_id, form_url, extra_context)

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        return []

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the activities of the row."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = urlencode({"target_type": str(self.opts.model_name), "target_id": object_id})
        return HttpResponseRedirect(f"{reverse('admin:activities_activity_changelist')}?{query}")


def unsaved_of(request: HttpRequest) -> Unsaved:
    return getattr(request, "unsaved", None) or Unsaved({})


def admin_link(row: Model, text: str) -> SafeString:
    """Return a link to the admin page of a row."""
    url = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[quote(row.pk)])
    return format_html('<a href="{}">{}</a>', url, text)


def text_panel(title: str, text: str) -> str:
    return render_to_string("admin/activities/_text.html", {"title": title, "text": text}) if text else ""
