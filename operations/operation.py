"""Verbs on admin pages. Each asks on a page of its own before it does anything."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, QuerySet, UUIDField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from database import clock

from .admin_pages import JimAdmin
from .initiator import Initiator

M = TypeVar("M", bound=Model)
MOST_AT_ONCE = 100
UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Declined(Exception):
    """It cannot be done; says why, as text or safe markup."""


@dataclass(frozen=True)
class Done:
    """What was done, and the page that shows it.

    `reveal` is safe markup that is shown once, in the answer itself: it must not be kept until the next page.
    """

    message: str
    url: str = ""
    reveal: str = ""


class Operation(ABC, Generic[M]):
    name: ClassVar[str]
    label: ClassVar[str]
    permission: ClassVar[str]
    question: ClassVar[str]
    form: type[forms.Form] = forms.Form
    is_final: ClassVar[bool] = False
    is_rehearsed: ClassVar[bool] = False

    @abstractmethod
    def perform(self, target: M, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        """May raise Declined, or ValidationError about the answers."""

    def rehearse(self, target: M, *, answers: dict[str, Any], now: datetime) -> str:
        """What it would do, as safe markup, for those that show it first; may raise as `perform` does."""
        return ""

    def ask(self, targets: Sequence[M], asked: QueryDict, given: QueryDict | None = None) -> forms.Form:
        """The form of its page, whose address is `asked`; with the answers, once they are given."""
        return self.form(given)

    def about(self, target: M) -> str:
        """What to know about one of them before it is done."""
        return ""

    def applies(self, target: M) -> bool:
        """Whether its button is shown; `perform` decides anew."""
        return True

    def is_allowed(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.permission)


class OperationsAdmin(JimAdmin[M]):
    operations: ClassVar[list[Operation[Any]]] = []

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
            raise Http404(f"There is no operation {name}.")
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
            raise Http404("That is no id.")
        targets = list(self.get_queryset(request).filter(pk__in=ids).order_by("pk")[:MOST_AT_ONCE])
        if not targets or len(targets) != len(ids):
            raise Http404("Not all of these exist.")
        return targets

    def _is_id(self, text: str) -> bool:
        if isinstance(self.opts.pk, UUIDField):
            return UUID_TEXT.fullmatch(text) is not None
        return text.isascii() and text.isdigit() and len(text) < 19

    def _rehearse(
        self, request: HttpRequest, operation: Operation[Any], targets: Sequence[M], form: forms.Form
    ) -> list[str]:
        """What it would do to each of them; nothing if there is something wrong with the answers."""
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


def perform_each(
    request: HttpRequest, operation: Operation[Any], targets: Sequence[Model], form: forms.Form
) -> list[Done] | None:
    """One after the other, each on its own, and each told; None if the answers turned out to be wrong."""
    assert request.user.is_authenticated
    by, now, done = Initiator.user(request.user), clock.now(), []
    for target in targets:
        try:
            result = operation.perform(target, answers=form.cleaned_data, initiator=by, now=now)
        except Declined as declined:
            messages.error(request, declined.args[0])
        except ValidationError as error:
            complain(form, error)
            return None
        else:
            messages.success(request, result.message)
            done.append(result)
    return done


def answers_of(request: HttpRequest) -> str:
    """What was typed, to tell whether it is still what was rehearsed."""
    return urlencode(
        sorted((n, v) for n, v in request.POST.items() if n not in ("csrfmiddlewaretoken", "rehearsed"))
    )


def complain(form: forms.Form, error: ValidationError) -> None:
    """At the fields that it is about, as far as the form has them."""
    for name, texts in getattr(error, "error_dict", {None: error}).items():
        form.add_error(name if name in form.fields else None, texts)


def _ask(
    admin: OperationsAdmin[Any], request: HttpRequest, chosen: QuerySet[Any], *, operation: Operation[Any]
) -> HttpResponse | None:
    """From a list's action to the page that asks."""
    ids = list(chosen.order_by().values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
    if len(ids) > MOST_AT_ONCE:
        admin.message_user(request, f"Choose at most {MOST_AT_ONCE} at once.", messages.ERROR)
        return None
    return HttpResponseRedirect(admin.operation_url(operation.name, ids))
