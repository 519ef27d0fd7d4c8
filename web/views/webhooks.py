"""Pages of webhook endpoints and deliveries."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.db import IntegrityError
from django.db.models import QuerySet
from django.db.models.functions import Lower
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from database import clock
from operations.initiator import initiator_of
from schedules.models import Schedule
from schedules.revisions import records_of
from text.numbers import whole_number
from web import operating
from web.keyset import newest_first
from web.page import form_page, fragment, page, version_of
from web.saving import save
from webhooks.events import KINDS, TEST
from webhooks.forms import EndpointForm
from webhooks.models import Delivery, Endpoint
from webhooks.operations import revealed, trouble

MOST_SHOWN = 500
NAMES_SHOWN = 20
DELIVERIES_SHOWN = 10
CHANGES_SHOWN = 10
# The page of a delivery polls if the next attempt is due within this time.
SOON = timedelta(minutes=10)
ABOUT = (
    "An endpoint is a web address to which JIM sends events, for example when an execution fails or a worker "
    "is lost. Each request is signed."
)


class EditEndpoint(EndpointForm):
    """The form of an existing endpoint. It has no field for the secret, which is changed by a rotation."""

    secret = None  # type: ignore[assignment]


operating.register(Endpoint, view_permission="webhooks.view_endpoint")
operating.register(Delivery, view_permission="webhooks.view_delivery")


@page("webhooks.view_endpoint")
def webhooks(request: HttpRequest) -> HttpResponse:
    rows = Endpoint.objects.present().order_by(Lower("name"))[:MOST_SHOWN]
    shown = [(row, _events(row), row.succeeded_at > row.created_at) for row in rows]
    return render(request, "web/webhooks.html", {"title": "Webhooks", "about": ABOUT, "rows": shown})


@page("webhooks.view_endpoint")
def endpoint(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Endpoint.objects.present(), pk=pk)
    now, until = clock.now(), found.old_token_until
    newest = found.deliveries.defer("body").order_by("-pk")
    context = {
        "title": found.name,
        "endpoint": found,
        "has_succeeded": found.succeeded_at > found.created_at,
        "trouble": trouble(found, now),
        "old_secret_until": until if until and until > now else None,
        "kinds": [(kind, KINDS.get(kind, "")) for kind in found.kinds],
        "schedules": _schedules(found),
        "deliveries": newest[:DELIVERIES_SHOWN] if request.user.has_perm("webhooks.view_delivery") else None,
        "changes": records_of(found).order_by("-pk")[:CHANGES_SHOWN],
    }
    return render(request, "web/endpoint.html", context)


@sensitive_post_parameters("secret")
@form_page("webhooks.add_endpoint")
@sensitive_variables()
def new(request: HttpRequest) -> HttpResponse:
    form = EndpointForm(request.POST or None)
    made = save(form, lambda given: _define(request, form, given))
    if made is None:
        return _form(request, form, title="New endpoint")
    found, secret = made
    if form.cleaned_data["secret"]:
        messages.success(request, f"Created “{found}”. Send a test to try it.")
        return redirect(found)
    context = {
        "title": f"Created “{found}”",
        "revealed": [{"reveal": revealed(found, secret)}],
        "back": found.get_absolute_url(),
    }
    return render(request, "web/secret.html", context)


@form_page("webhooks.change_endpoint")
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Endpoint.objects.present(), pk=pk)
    form = EditEndpoint(request.POST or None, instance=get_object_or_404(Endpoint, pk=pk))
    if save(form, lambda given: _edit(request, form, found, given)) is None:
        return _form(request, form, title=f"Edit {found}", endpoint=found)
    messages.success(request, f"Saved “{found}”.")
    return redirect(found)


@page("webhooks.view_delivery")
def deliveries(request: HttpRequest) -> HttpResponse:
    chosen = {name: request.GET.get(name, "") for name in ("status", "event", "endpoint")}
    context = {
        "title": "Deliveries",
        "pages": newest_first(request, _deliveries(chosen)),
        "chosen": chosen,
        "statuses": Delivery.Status.values,
        "events": (*KINDS, TEST),
        "endpoints": Endpoint.objects.order_by(Lower("name")).only("name", "status")[:MOST_SHOWN],
    }
    return render(request, "web/deliveries.html", context)


@page("webhooks.view_delivery")
def delivery(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Delivery.objects.select_related("endpoint"), pk=pk)
    return render(request, "web/delivery.html", {"title": str(found), **_delivery_context(found)})


@page("webhooks.view_delivery")
def delivery_now(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Delivery.objects.select_related("endpoint"), pk=pk)
    now = _delivery_context(found)
    return fragment(request, "web/_delivery.html", now, version=now["version"], is_final=now["is_final"])


@sensitive_variables()
def _define(request: HttpRequest, form: Any, given: dict[str, Any]) -> tuple[Endpoint, str] | None:
    fields = {name: given[name] for name in Endpoint.EDITABLE}
    by, now = initiator_of(request), clock.now()
    try:
        return Endpoint.objects.define(**fields, secret=given["secret"], initiator=by, now=now)
    except IntegrityError:
        _refuse_name(form)
        return None


def _edit(request: HttpRequest, form: Any, found: Endpoint, given: dict[str, Any]) -> Endpoint | None:
    try:
        found.edit(changes=given, initiator=initiator_of(request), now=clock.now())
    except IntegrityError:
        _refuse_name(form)
        return None
    return found


def _refuse_name(form: Any) -> None:
    form.add_error("name", "A webhook with this name already exists. Choose another name.")


def _form(request: HttpRequest, form: Any, *, title: str, endpoint: Endpoint | None = None) -> HttpResponse:
    context = {"title": title, "about": ABOUT, "form": form, "target": endpoint, "list": "web:webhooks"}
    return render(request, "web/form.html", context)


def _deliveries(chosen: dict[str, str]) -> QuerySet[Delivery]:
    rows = Delivery.objects.select_related("endpoint").defer("body")
    if chosen["status"] in Delivery.Status.values:
        rows = rows.filter(status=chosen["status"])
    if chosen["event"] in (*KINDS, TEST):
        rows = rows.filter(kind=chosen["event"])
    if (endpoint := whole_number(chosen["endpoint"])) is not None:
        rows = rows.filter(endpoint=endpoint)
    return rows


def _delivery_context(found: Delivery) -> dict[str, Any]:
    at = found.next_try_at
    return {
        "delivery": found,
        "tries": [_attempt(tried) for tried in reversed(found.log)],
        "body": json.dumps(json.loads(found.body), indent=2, ensure_ascii=False),
        "version": version_of(found.status, found.tries, at),
        "is_final": at is None or at - clock.now() > SOON,
    }


def _attempt(tried: dict[str, Any]) -> dict[str, Any]:
    took = timedelta(seconds=tried["seconds"])
    return {**tried, "at": datetime.fromisoformat(tried["at"]), "took": took}


def _events(found: Endpoint) -> str:
    return "all events" if set(KINDS) <= set(found.kinds) else ", ".join(found.kinds)


def _schedules(found: Endpoint) -> list[Schedule]:
    """Return the first schedules whose events the endpoint receives; an empty list means all schedules."""
    rows = Schedule.objects.filter(pk__in=found.schedules).order_by(Lower("name"))
    return list(rows[:NAMES_SHOWN]) if found.schedules else []
