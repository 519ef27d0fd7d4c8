from __future__ import annotations

from datetime import datetime
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite, autodiscover
from django.core.checks import CheckMessage
from django.db.models import Model
from django.http import HttpRequest, QueryDict
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse

from database import clock
from execution.models import Execution, Worker
from schedules.models import Schedule
from text.clean import clean_text
from web.signing_in import AdminSignInForm, limits_guesses
from webhooks.models import Endpoint

ROWS = 10
ORDER = {
    "schedules": ("Schedule", "Occurrence", "Backfill", "TaskTemplate", "SharedCalendar", "Secret"),
    "execution": ("Execution", "WorkerTask", "Limit", "Reservation", "Worker"),
    "workflows": ("Workflow", "Run", "Handler", "Topic", "Event"),
    "webhooks": ("Endpoint", "Delivery"),
    "activities": ("Activity",),
    "api": ("ApiToken",),
}


class JimAdminSite(AdminSite):
    """The admin site. Only processes that serve or check the admin pages load the modules of these pages."""

    site_header = site_title = "JIM"
    site_url = "/"
    login_form = AdminSignInForm
    index_title = "Schedules, executions and activities"

    @property
    def urls(self) -> Any:
        autodiscover()
        return super().urls

    def check(self, app_configs: Any) -> list[CheckMessage]:
        autodiscover()
        return super().check(app_configs)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Wrap a view, and replace the characters in its query parameters that the database cannot store."""

        @wraps(view)
        def cleaned_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            request.GET = QueryDict(_clean(request.GET))
            return view(request, *args, **kwargs)

        return super().admin_view(cleaned_view, cacheable)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return limits_guesses(super().login)(request, extra_context)

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Redirect to the password page outside the admin, which limits guesses and warns about tokens."""
        return redirect("web:password")

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the apps and their models, sorted in the order of `ORDER` instead of by name."""
        apps = super().get_app_list(request, app_label)
        for app in apps:
            for model in app["models"]:
                model["name"] = getattr(self.get_model_admin(model["model"]), "list_title", model["name"])
            app["models"].sort(
                key=lambda model: _place(ORDER.get(app["app_label"], ()), model["object_name"])
            )
        return sorted(apps, key=lambda app: _place(tuple(ORDER), app["app_label"]))

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        return super().index(request, {**_now(request), **(extra_context or {})})


def _clean(query: QueryDict) -> str:
    given = [(clean_text(name), clean_text(text)) for name, texts in query.lists() for text in texts]
    return urlencode(given)


def _place(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _now(request: HttpRequest) -> dict[str, Any]:
    can, now = request.user.has_perm, clock.now()
    shown: dict[str, Any] = {"troubled": []}
    if can("execution.view_execution"):
        shown["running"] = Execution.objects.in_progress().defer("plan").order_by("-pk")[:ROWS]
        late = Execution.objects.late(now).defer("plan").order_by("deadline_at")[:ROWS]
        shown["troubled"] += [("late", execution, _page(execution)) for execution in late]
    if can("execution.view_worker"):
        shown["workers"] = Worker.objects.holding_leases(now).count()
    if can("schedules.view_schedule"):
        shown["troubled"] += _troubled_schedules(now)
    if can("webhooks.view_endpoint"):
        silenced = Endpoint.objects.filter(status="disabled", is_disabled_by_itself=True).order_by("name")
        shown["troubled"] += [("disabled", endpoint, _page(endpoint)) for endpoint in silenced[:ROWS]]
    return shown


def _troubled_schedules(now: datetime) -> list[tuple[str, Schedule, str]]:
    """Return the schedules that need attention, each once with its most serious problem."""
    schedules = Schedule.objects.open()
    troubles = {
        "broken": schedules.exclude(spec_error=""),
        "overdue": schedules.overdue(now),
        "failed": schedules.filter(last_outcome="failed"),
    }
    found: dict[int, tuple[str, Schedule, str]] = {}
    for trouble, rows in troubles.items():
        for schedule in rows.order_by("name")[:ROWS]:
            found.setdefault(schedule.pk, (trouble, schedule, _page(schedule)))
    return list(found.values())[:ROWS]


def _page(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
