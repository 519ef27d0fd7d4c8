"""The page, or dialogue, that asks for confirmation of an operation and performs it.

Operations are shared with the admin, so that both ask the same questions, check the same
permissions and report the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, QuerySet, UUIDField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from database import clock
from operations.form_errors import complain
from operations.operation import (
    MOST_AT_ONCE,
    UUID_TEXT,
    Declined,
    Done,
    Operation,
    answers_of,
    offered_for,
    perform_each,
)
from text.numbers import whole_number

from .page import form_page, is_htmx


@dataclass(frozen=True)
class Kind:
    """A model with operations, the permission to see its rows, and the rows that a user may see."""

    model: type[Model]
    view_permission: str
    rows: Callable[[HttpRequest], QuerySet[Any]]

    def operation(self, name: str) -> Operation[Any]:
        found = next((each for each in offered_for(self.model) if each.name == name), None)
        if found is None:
            raise Http404(f"Unknown operation: {name}")
        return found


kinds: dict[str, Kind] = {}


def register(
    model: type[Model],
    *,
    view_permission: str,
    rows: Callable[[HttpRequest], QuerySet[Any]] | None = None,
) -> None:
    """Offer the operations of a model on pages: for all rows, or only for the rows that `rows` returns."""
    seen = rows or (lambda request: model._default_manager.all())
    kinds[str(model._meta.model_name)] = Kind(model, view_permission, seen)


def operations_of(request: HttpRequest, target: Model) -> list[tuple[Operation[Any], str]]:
    """Return the operations that the user may perform on `target` now, each with its address."""
    kind = kinds[str(target._meta.model_name)]
    return [
        (operation, operation_url(operation.name, [target]))
        for operation in offered_for(kind.model)
        if operation.is_allowed(request) and operation.applies(target)
    ]


def operation_url(name: str, targets: Sequence[Model], *, back: str = "") -> str:
    kind = str(targets[0]._meta.model_name)
    query = [("id", str(target.pk)) for target in targets] + ([("next", back)] if back else [])
    return f"{reverse('web:operate', args=[kind, name])}?{urlencode(query)}"


@form_page("")
def operate(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    """Check the permissions for the kind and the operation, then ask for confirmation and perform it."""
    if kind not in kinds:
        raise Http404(f"Unknown kind of object: {kind}")
    of = kinds[kind]
    operation = of.operation(name)
    if not (request.user.has_perm(of.view_permission) and operation.is_allowed(request)):
        raise PermissionDenied(f"This action requires the permission “{operation.permission}”.")
    if not request.GET.getlist("id"):
        messages.error(request, "Select at least one row first.")
        return _redirect(request, _return_url(request, [], []))
    return conduct(request, operation, _targets(request, of))


def conduct(request: HttpRequest, operation: Operation[Any], targets: Sequence[Model]) -> HttpResponse:
    """Ask for confirmation, show a preview if there is one, and perform the operation.

    The caller has checked the permission.
    """
    form = operation.ask(targets, request.GET, request.POST if request.method == "POST" else None)
    if not form.is_valid():
        return _question(request, operation, targets, form)
    if operation.is_rehearsed and request.POST.get("rehearsed") != answers_of(request):
        return _question(request, operation, targets, form, _rehearse(operation, targets, form))
    done = perform_each(request, operation, targets, form)
    if done is None:
        return _question(request, operation, targets, form)
    if any(each.reveal for each in done):
        context = {"title": operation.label, "revealed": done, "back": _return_url(request, targets, done)}
        return render(request, "web/secret.html", context)
    return _redirect(request, _return_url(request, targets, done))


def _targets(request: HttpRequest, of: Kind) -> list[Any]:
    ids = set(request.GET.getlist("id"))
    if not ids or not all(_is_id(of.model, text) for text in ids):
        raise Http404("The address contains an invalid id.")
    targets = list(of.rows(request).filter(pk__in=ids).order_by("pk")[: MOST_AT_ONCE + 1])
    if len(targets) != len(ids) or len(targets) > MOST_AT_ONCE:
        raise Http404(
            f"Some of the selected rows no longer exist, or more than {MOST_AT_ONCE} rows are selected. "
            f"Go back, reload the list, and select at most {MOST_AT_ONCE} rows."
        )
    return targets


def _is_id(model: type[Model], text: str) -> bool:
    key = model._meta.pk
    if isinstance(key, UUIDField):
        return UUID_TEXT.fullmatch(text) is not None
    if key.get_internal_type() == "CharField":
        return 0 < len(text) <= (key.max_length or 100)
    return whole_number(text) is not None


def _rehearse(operation: Operation[Any], targets: Sequence[Model], form: forms.Form) -> list[str]:
    shown, now = [], clock.now()
    for target in targets:
        try:
            shown.append(operation.rehearse(target, answers=form.cleaned_data, now=now))
        except Declined as declined:
            form.add_error(None, str(declined.args[0]))
        except ValidationError as error:
            complain(form, error)
            return []
    return shown


def _question(
    request: HttpRequest,
    operation: Operation[Any],
    targets: Sequence[Model],
    form: forms.Form,
    rehearsed: Sequence[str] = (),
) -> HttpResponse:
    context = {
        "title": operation.label,
        "operation": operation,
        "targets": [(target, _url_of(target), operation.about(target)) for target in targets],
        "form": form,
        "rehearsed": rehearsed,
        "answers": answers_of(request),
        "address": request.get_full_path(),
        "back": _return_url(request, targets, []),
    }
    return render(request, "web/_question.html" if is_htmx(request) else "web/question.html", context)


def _redirect(request: HttpRequest, url: str) -> HttpResponse:
    if is_htmx(request):
        return HttpResponse(status=204, headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


def _return_url(request: HttpRequest, targets: Sequence[Model], done: Sequence[Done]) -> str:
    """Return the address where the user goes next.

    This is the page of the result, or else the page in the parameter `next`, the page of the first target, or
    the home page.
    """
    if len(targets) == 1 and done and done[0].url:
        return done[0].url
    asked = request.GET.get("next", "")
    if url_has_allowed_host_and_scheme(asked, allowed_hosts=None):
        return asked
    return (_url_of(targets[0]) if targets else "") or reverse("web:home")


def _url_of(target: Model) -> str:
    return str(target.get_absolute_url()) if hasattr(target, "get_absolute_url") else ""
